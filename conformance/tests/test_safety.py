"""Tests that docs/safety.md names every room with unsafe code, and premises and tests that exist."""

from __future__ import annotations

import re

import pytest

from conformance.soak.defects import DEFECTS, Defect
from conformance.tests.interpreter.process import ROOT

PAGE = (ROOT / "docs" / "safety.md").read_text(encoding="utf-8")
ROWS = [line.split("|")[1:4] for line in PAGE.splitlines() if line.startswith("| `src/")]
ROOMS = {room for row in ROWS for room in re.findall(r"`(src/[^`]*)`", row[0])}
PREMISES = set(re.findall(r"^### (.*)$", PAGE, re.MULTILINE))
FOLDERS = sorted(
    {
        f"{path.parent.relative_to(ROOT)}/"
        for path in (ROOT / "src").rglob("*.rs")
        if re.search(r"\bunsafe\b", path.read_text(encoding="utf-8"))
    }
)


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_folder_with_unsafe_code_is_a_room(folder: str) -> None:
    assert folder in ROOMS


def test_each_room_has_unsafe_code() -> None:
    assert set(FOLDERS) >= ROOMS


def test_each_premise_is_quoted_and_stands_there() -> None:
    quoted = {anchor.replace("-", " ") for row in ROWS for anchor in re.findall(r"\]\(#([^)]*)\)", row[2])}
    assert quoted == PREMISES


@pytest.mark.parametrize("premise", sorted(PREMISES))
def test_each_premise_names_what_tries_to_break_it(premise: str) -> None:
    section = PAGE.split(f"### {premise}\n")[1].split("\n### ")[0]
    tried = section.split("\n- Tried by ")[1].split("\n- ")[0]
    named = re.findall(r"`((?:conformance|src)/[^`]*)`", tried)
    parts = re.findall(r"make soak PARTS='?([\w -]+)'?`", tried)
    assert named or parts
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert "\n- If false: " in section


def test_the_parts_of_the_soak_exist() -> None:
    from conformance.soak.run import PARTS

    named = {part for parts in re.findall(r"make soak PARTS='?([\w -]+)'?`", PAGE) for part in parts.split()}
    assert named and named <= set(PARTS)


def test_each_defect_is_on_the_page_with_the_machine_that_finds_it() -> None:
    table = PAGE.split("\n## Found again\n")[1].split("|---|---|\n")[1].split("\n\n")[0]
    assert table.splitlines() == [f"| {defect.name} | {defect.found_by()} |" for defect in DEFECTS]


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name[:40])
def test_each_fix_can_be_taken_out(defect: Defect) -> None:
    """By the edits of `conformance.soak.found_again`, which tells whether the defect is found then."""
    for edit in defect.edits:
        assert (ROOT / edit.file).read_text(encoding="utf-8").count(edit.old) == 1
    paths = re.findall(r"`((?:conformance|src)/[^`]*)`", defect.found_by())
    assert paths and [path for path in paths if not (ROOT / path).exists()] == []
