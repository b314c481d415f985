"""The page of figures has those that are kept, and names commits that the repository has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.tests.interpreter.process import ROOT

PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benches" / "results"


def instructions() -> Any:
    sys.path.insert(0, str(ROOT / "benches"))
    try:
        import instructions as module  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    return module


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_table_of_own_cost_is_that_of_the_kept_counts() -> None:
    bench = instructions()
    kept = json.loads(bench.SAVED.read_text(encoding="utf-8"))
    assert f"Counted at commit {kept['commit']}" in PAGE
    costs = bench.costs(kept["counts"])
    table = PAGE.partition("\n## Instructions")[2].partition("\n![")[0]
    row = r"^\| [^|]+ \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|(?: [\d.]+)? \|$"
    rows = re.findall(row, table, re.MULTILINE)
    found = []
    for conversion, cost in costs.items():
        counts = [f"{count:.0f}" for count in (cost.producer, cost.ours, cost.checked, cost.floor)]
        found.append((*counts, f"{cost.ratio:.2f}", f"{conversion.budget:g}"))
    assert rows == found


def test_each_commit_that_it_names_is_one_of_the_history() -> None:
    """A figure of a commit that nobody has cannot be counted again."""
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("not run: the checkout has no history")
    named = set(re.findall(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,40}\b", PAGE))
    assert named
    assert not {name for name in named if git("cat-file", "-e", name).returncode}


def test_the_newest_tables_are_those_that_it_links() -> None:
    newest: dict[str, Path] = {}
    for path in sorted(RESULTS.glob("*.md")):
        newest[re.sub(r"^[\d-]+", "", path.name)] = path
    linked = set(re.findall(r"\.\./benches/results/([\w.-]+\.md)", PAGE))
    assert {path.name for path in newest.values() if "reach" not in path.name} == linked
