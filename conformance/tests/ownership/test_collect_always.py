"""The suite of malformed dicts in the mode in which every allocation collects; the other suites by `make soak`."""

from __future__ import annotations

import re

import pytest

from conformance.tests.interpreter.free_threaded import FREE_THREADED
from conformance.tests.interpreter.process import ROOT, simulate

SUITES = ["test_malformed_cai.py"]


@pytest.mark.skipif(
    FREE_THREADED, reason="not run: free-threaded CPython collects as it runs byte code, and at no allocation"
)
def test_malformed_dicts_with_a_collection_at_every_allocation() -> None:
    suites = [str(ROOT / "conformance" / "tests" / name) for name in SUITES]
    command = ["-m", "pytest", "-q", "-c", str(ROOT / "pytest.ini"), "-p", "no:cacheprovider"]
    ended = simulate([], [*command, "--collect-always", *suites], timeout=600, PYTHONMALLOC="debug")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counted = re.search(r"(\d+) collections, (\d+) hostile finalisers", ended.stdout)
    assert counted, ended.stdout
    assert min(map(int, counted.groups())) > 10_000, counted[0]
