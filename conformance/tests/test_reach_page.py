"""The page between processes has the tables of the kept run, and each extra."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.tests.interpreter.process import ROOT
from conformance.tests.reach.page import page as text_of_the_page

RUN = """Commit 0123abc, CPython 3.11.7, 2 cores, Linux.

{head}
| pickle | 1 | 4 | 1 | 40.0 | 41.0 | 10.0 | 4.00 | 25,000 |
| pickle | 10 | 4 | 1 | 12.5 | 30.0 | 5.0 | 2.50 | 80,000 |
| pickle | 1 | 65536 | 1 | 44.0 | 50.0 | 11.0 | 4.00 | 22,727 |
| Pool | 200 | 4 | 1 | 30.0 | 31.0 | 15.0 | 2.00 | 33,333 |
| Pool | 200 | 4 | 2 | 20.0 | 31.0 | 10.0 | 2.00 | 50,000 |
| share | 100 | 4 | 1 | 8.0 | 8.5 | 2.0 | 4.00 | 125,000 |
| share, 2 devices | 100 | 4 | 1 | 9.0 | 9.5 |  |  | 111,111 |
| pickle | 1 | 4 | 1 | 99.0 | 99.0 | 10.0 | 9.90 | 10,101 |
"""
TABLES = """| arrays in a message | 1 | 10 | a second, most |
|---|---|---|---|
| pickle | 40 (4.00) | 12.5 (2.50) | 80,000 |

| KiB of one array | 4 | 65536 | a second, most |
|---|---|---|---|
| pickle | 40 (4.00) | 44 (4.00) | 25,000 |

| receivers | 1 | 2 | a second, most |
|---|---|---|---|
| Pool | 30 (2.00) | 20 (2.00) | 50,000 |

| devices | 1 | 2 | a second, most |
|---|---|---|---|
| share | 8 (4.00) | 9 | 125,000 |
"""


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benches"))
    monkeypatch.delitem(sys.modules, "reach_page", raising=False)
    import reach_page  # type: ignore[import-not-found]

    return reach_page


def test_the_page_is_written_from_the_newest_kept_run(bench: Any) -> None:
    page = bench.PAGE.read_text(encoding="utf-8")
    assert page == bench.replaced(page, bench.section(bench.kept())), "run benches/reach_page.py"


def test_a_run_is_a_table_for_each_direction_of_growth(bench: Any, tmp_path: Path) -> None:
    run = tmp_path / "2026-01-02-reach-python3.11.7.md"
    run.write_text(RUN.format(head=bench.HEAD), encoding="utf-8")
    head, _, tables = bench.section(run).partition("\n\n")
    assert run.name in head and "Commit 0123abc" in head
    assert tables == TABLES


def test_a_run_of_other_columns_is_none(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    assert bench.kept() is None
    for day in (1, 2):
        (tmp_path / f"2026-01-0{day}-reach-python3.11.7.md").write_text(RUN.format(head=bench.HEAD), encoding="utf-8")
    (tmp_path / "2026-01-03-reach-python3.11.7.md").write_text(RUN.format(head="| engine |"), encoding="utf-8")
    assert bench.kept().name == "2026-01-02-reach-python3.11.7.md"


def test_the_page_names_each_extra() -> None:
    table = text_of_the_page().partition("`pip install 'cai-dlpack[...]'`")[2].partition("\n\n")[0]
    named = {name for line in table.splitlines()[2:] for name in re.findall(r"`([\w-]+)`", line.split("|")[2])}
    assert {*named, "cli"} == {*(importlib.metadata.metadata("cai-dlpack").get_all("Provides-Extra") or ())}
