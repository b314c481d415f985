"""The rules of the CUDA Array Interface on docs/mapping.md: the code and the test that each row names are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from conformance.tests.interpreter.process import ROOT

PAGE = (ROOT / "docs" / "mapping.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("<!-- rules of the interface -->")[2].partition("<!-- end -->")[0]
ROW = re.compile(r"^\| (?P<rule>[^|]+) \| `(?P<code>[^`]+)` \| `(?P<file>[^`:]+)::(?P<test>\w+)` \|$", re.MULTILINE)
ROWS = list(ROW.finditer(TABLE))
#: The words by which the specification demands something, as it is kept here.
KEYS = ("shape", "typestr", "data", "version", "strides", "descr", "mask", "stream")


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}


def test_every_line_of_the_table_is_a_row() -> None:
    assert len(ROWS) == TABLE.count("\n| ") - 1 > 20


def test_every_key_of_the_dict_has_a_rule() -> None:
    rules = " ".join(row["rule"] for row in ROWS)
    assert [key for key in KEYS if f"`{key}`" not in rules] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["rule"])
def test_its_code_and_its_test_are_there(row: re.Match[str]) -> None:
    assert (ROOT / "src" / row["code"]).is_file(), row["code"]
    test = ROOT / "conformance" / "tests" / row["file"]
    assert test.is_file() and row["test"] in functions(test), row["test"]
