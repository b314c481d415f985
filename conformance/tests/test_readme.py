"""Tests what README and its neighbours claim: the interpreters, what to install for the pages, the runs on a GPU."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from conformance.tests.expectations.fences import PAGES, blocks
from conformance.tests.interpreter import needs
from conformance.tests.interpreter.process import ROOT

README = ROOT / "README.md"
TEXT = README.read_text("utf-8")
PROJECT = importlib.metadata.metadata("cai-dlpack")
COMMANDS = [line for block in blocks("sh", [README]) for line in block.code.splitlines()]


def test_the_classifiers_are_the_interpreters_on_which_every_test_runs() -> None:
    (row,) = re.findall(r"^\| ([\d., ]+) \| all \(", TEXT, re.MULTILINE)
    versions = row.split(", ")
    said = [name.rpartition(" ")[2] for name in PROJECT.get_all("Classifier") or () if "Python :: 3." in name]
    assert said == versions
    assert f"\nPython {versions[0]} to {versions[-1]}, " in TEXT


def test_each_extra_is_named() -> None:
    extras = PROJECT.get_all("Provides-Extra")
    assert extras and [name for name in extras if f"`{name}`" not in TEXT] == []


def test_the_commands_of_the_readme_fit_the_site() -> None:
    """A code block of the site has 80 columns on a small screen, and scrolls for more."""
    assert COMMANDS and [line for line in COMMANDS if len(line) > 80] == []


def brought(names: set[str]) -> set[str]:
    """The distributions and, if they are installed, what they bring along."""
    found, left = set(), {*names}
    while left:
        name = left.pop()
        found.add(name)
        try:
            needed = map(Requirement, importlib.metadata.requires(name) or ())
        except importlib.metadata.PackageNotFoundError:
            continue
        left |= {each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})} - found
    return {re.sub("[-_.]+", "-", name).lower() for name in found}


@needs.dask
@needs.numba_cuda
@pytest.mark.parametrize("page", [page for page in PAGES if blocks("python", [page])], ids=lambda page: page.name)
def test_the_readme_installs_what_the_blocks_import(page: Path) -> None:
    """By the lines that name the page, and those that name none."""
    installed = {"cai-dlpack", "cai-conformance"}
    for line in COMMANDS:
        command, _, remark = line.partition("#")
        if command.startswith("pip install ") and ("docs/" not in remark or page.name in remark):
            installed |= {*command.split()[2:]}
    modules = set()
    for block in blocks("python", [page]):
        for node in ast.walk(ast.parse(block.code)):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add(node.module or "")
    tops = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - {"cai_conformance"}
    homes = importlib.metadata.packages_distributions()
    there = brought(installed)
    lacking = {top for top in tops if not there & {re.sub("[-_.]+", "-", name).lower() for name in homes.get(top, ())}}
    assert not lacking


def test_no_page_denies_the_runs_on_a_gpu() -> None:
    assert (ROOT / "conformance" / "results" / "gpu" / "README.md").exists()
    assert "](conformance/results/gpu/README.md)" in TEXT.split("\n## Limits\n")[1]
    denied = re.compile(r"not (yet )?(been )?run on a GPU|none is there yet|it has not been run|NCCL itself is not run")
    found = {page.name: denied.findall(" ".join(page.read_text("utf-8").split())) for page in PAGES}
    assert not any(found.values()), found
