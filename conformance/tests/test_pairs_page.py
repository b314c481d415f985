"""docs/pairs.md, against every pair of the libraries that are installed: what it says is taken is, and nothing else."""

from __future__ import annotations

import re

from cai_dlpack import _core, doctor

from conformance.tests.interpreter import needs
from conformance.tests.interpreter.process import ROOT

pytestmark = needs.numba_cuda
TITLES = {row["title"]: row["name"] for row in _core._partners()}
ROW = re.compile(r"^\| (?P<title>[^|]+) \| `(?P<call>[^`]+)` \| (?P<told>[^|]+) \|", re.MULTILINE)
REFUSED = re.compile(r"takes no|refuses|refused")
BY_BUILD = "not every build takes it"
MEMORY = {"host": "host memory: ", "device": "device memory: "}


def sections() -> dict[str, dict[str, tuple[str, str]]]:
    """By producer and consumer: the call, and what is told of it."""
    text = (ROOT / "docs" / "pairs.md").read_text(encoding="utf-8")
    found = {}
    for section in text.split("\n## I have an array of ")[1:]:
        title, _, rows = section.partition("\n")
        found[TITLES[title]] = {TITLES[row["title"]]: (row["call"], row["told"]) for row in ROW.finditer(rows)}
    return found


def told_of(memory: str, told: str) -> str:
    """The part that is about this memory."""
    parts = re.split("(?:^|; )(?=host memory: |device memory: )", told)
    return next((part for part in parts if part.startswith(MEMORY[memory])), told)


def test_each_pair_that_is_installed_does_what_the_page_says() -> None:
    page, tried, seen = sections(), doctor.tried(), 0
    for memory, producers in tried.items():
        for producer, came in producers.items():
            for consumer, result in came.items():
                call, told = page[producer].get(consumer, ("", "refused"))
                if call and not call.startswith("cd.to"):
                    continue  # it has no arrays of its own
                is_refused = REFUSED.search(told_of(memory, told)) is not None
                is_by_build = BY_BUILD in told_of(memory, told)
                assert (result == "works") != is_refused or is_by_build, (memory, producer, consumer, told, result)
                seen += 1
    assert seen > 7, tried
