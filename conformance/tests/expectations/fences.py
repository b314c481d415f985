"""The fenced blocks of the pages, by one pattern for all that run, compare or count them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from conformance.tests.interpreter.process import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("conformance/**/*.md")])
#: A fence may stand in a list, and end as far to the right as it begins.
FENCE = re.compile(r"^(?P<indent> *)```(?P<label>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    page: Path
    #: How many lines stand before the code.
    line: int
    #: The first word behind the fence.
    label: str
    code: str

    @property
    def name(self) -> str:
        return f"{self.page.name}: {self.code.strip().splitlines()[0]}"


def of_text(page: Path, text: str) -> Iterator[Block]:
    """The blocks of a page; fails for a fence that begins or ends none."""
    found = list(FENCE.finditer(text))
    assert len(re.findall("^ *```", text, re.MULTILINE)) == 2 * len(found), f"a fence of {page} is not of a pair"
    for block in found:
        label = (block["label"].split() or [""])[0]
        yield Block(page, text.count("\n", 0, block.start("code")), label, textwrap.dedent(block["code"]))


def blocks(label: str | None = None, pages: Sequence[Path] = PAGES) -> list[Block]:
    """The blocks with this label, or all."""
    found = [block for page in pages for block in of_text(page, page.read_text(encoding="utf-8"))]
    return [block for block in found if label in (None, block.label)]
