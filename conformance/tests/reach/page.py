"""What docs/reach.md states, for those who check it."""

from __future__ import annotations

import re
import textwrap

from conformance.tests.interpreter.process import ROOT

#: How the page names an engine.
NAMES = {
    "dask": "Dask over TCP",
    "dask over ucxx": "Dask over UCXX",
    "pickle": "pickle, multiprocessing",
    "ray": "Ray",
    "nixl": "NIXL",
    "mpi4py": "mpi4py",
    "ucxx": "UCXX",
}


def page() -> str:
    return (ROOT / "docs/reach.md").read_text(encoding="utf-8")


def stated(engine: str, kind: str, at: int = 0) -> tuple[int, int]:
    """The copies at the sender and at the receiver that the page states for an array in C order: its first numbers, or
    those `at` another place of the cell."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page().splitlines() if line.startswith("| ")]
    (copies,) = (row[5] for row in rows if row[0] == NAMES[engine] and kind in row[1].split(", "))
    sender, receiver = re.findall(r"(\d) \+ (\d)", copies)[at]
    return int(sender), int(receiver)


def recipe_of_nccl() -> str:
    section = page().partition("\n## NCCL\n")[2]
    found = re.search(r"^```\w+[^\n]*\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found
    return textwrap.dedent(found[1])
