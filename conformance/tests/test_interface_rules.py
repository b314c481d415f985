"""The rules of the CUDA Array Interface on docs/mapping.md: the code and the test that each row names are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import cai_dlpack as cd
import pytest

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.expectations.refusal import refuse
from conformance.tests.interpreter.process import ROOT

PAGE = (ROOT / "docs" / "mapping.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("<!-- rules of the interface -->")[2].partition("<!-- end -->")[0]
ROW = re.compile(r"^\| (?P<rule>[^|]+) \| `(?P<code>[^`]+)` \| `(?P<file>[^`:]+)::(?P<test>\w+)` \|$", re.MULTILINE)
ROWS = list(ROW.finditer(TABLE))
#: The words by which the specification demands something, as it is kept here.
KEYS = ("shape", "typestr", "data", "version", "strides", "descr", "mask", "stream")


#: The specification's sentences by their words, each with the row that it demands, or why there is none.
SENTENCES = [
    line.split("\t")
    for line in (Path(__file__).parent / "expectations" / "cai_sentences.tsv").read_text(encoding="utf-8").splitlines()
]
MODAL = re.compile(r"\b(must|should|required|[Ee]xpected)\b")


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}


def test_every_line_of_the_table_is_a_row() -> None:
    assert len(ROWS) == TABLE.count("\n| ") - 1 > 20


def test_every_sentence_has_a_row_or_a_reason_and_every_row_a_sentence() -> None:
    rules = {row["rule"] for row in ROWS}
    demanded = {row for _, row in SENTENCES if not re.match("no rule: .", row)}
    # The attribute is a dict by the sentence that has its entries.
    assert demanded - rules == set() and rules - demanded == {"the attribute is a dict"}
    words = [words for words, _ in SENTENCES]
    assert len(set(words)) == len(words)
    # So many has the page, without its examples; each is counted by the sentence that it stands in.
    assert sum(MODAL.search(each) is not None for each in words) >= 25


@pytest.mark.parametrize("entry", ["shape", "typestr", "data", "version"])
def test_a_dict_without_an_entry_that_must_be_there(entry: str) -> None:
    """Refused by the entry's own rule; without a version only by a strict import, as such dicts are of version 0."""
    described = interface()
    del described[entry]
    if entry == "version":
        assert cd.view(Cai(described), device_id=0).shape == described["shape"]
    refused = refuse(lambda: cd.view(Cai(described), device_id=0, strict=entry == "version"), ValueError)
    assert refused.rule == f"{entry}-missing"


def test_a_user_may_have_none_exported() -> None:
    """By `producer_stream=None`, which tells that nothing is pending; the default is what the producer says."""
    array = Cai(interface(stream=7))
    assert cd.view(array, device_id=0).__cuda_array_interface__["stream"] == 7
    assert cd.view(array, device_id=0, producer_stream=None).__cuda_array_interface__["stream"] is None


def test_every_key_of_the_dict_has_a_rule() -> None:
    rules = " ".join(row["rule"] for row in ROWS)
    assert [key for key in KEYS if f"`{key}`" not in rules] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["rule"])
def test_its_code_and_its_test_are_there(row: re.Match[str]) -> None:
    assert (ROOT / "src" / row["code"]).is_file(), row["code"]
    test = ROOT / "conformance" / "tests" / row["file"]
    assert test.is_file() and row["test"] in functions(test), row["test"]
