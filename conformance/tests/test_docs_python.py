"""The Python blocks of the documentation, run as they are printed.

Each page is one test and one namespace: its blocks run in order, as a reader would type them.
A failure points to the page's own line.
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.tests.expectations.fences import PAGES, blocks
from conformance.tests.interpreter import needs
from conformance.tests.interpreter.process import ROOT


def test_the_readme_has_python_blocks() -> None:
    assert blocks("python", [ROOT / "README.md"]), "the pattern finds nothing, so this file would test nothing"


NEEDS = {"reach.md": needs.dask}


@pytest.fixture
def _unregistered() -> Iterator[None]:
    """What a page registers for pickling is for that page: other tests of this process ask for the refusal."""
    before = dict(copyreg.dispatch_table)
    yield
    for registered in copyreg.dispatch_table.keys() - before.keys():
        del copyreg.dispatch_table[registered]


@pytest.mark.usefixtures("_unregistered")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=NEEDS.get(page.name, ()), id=page.name) for page in PAGES if blocks("python", [page])],
)
def test_the_blocks_of(page: Path) -> None:
    namespace: dict[str, object] = {"__name__": page.stem}
    for block in blocks("python", [page]):
        exec(compile("\n" * block.line + block.code, page, "exec"), namespace)
