"""The suite of malformed dicts in the mode in which every allocation collects; the other suites by `make soak`."""

from __future__ import annotations

import re

from conformance.tests.interpreter.process import ROOT, simulate

SUITES = ["test_malformed_cai.py"]


def test_malformed_dicts_with_a_collection_at_every_allocation() -> None:
    suites = [str(ROOT / "conformance" / "tests" / name) for name in SUITES]
    pytest = ["-m", "pytest", "-q", "-c", str(ROOT / "pytest.ini"), "-p", "no:cacheprovider"]
    ended = simulate([], [*pytest, "--collect-always", *suites], timeout=600, PYTHONMALLOC="debug")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counted = re.search(r"(\d+) collections, (\d+) hostile finalisers", ended.stdout)
    assert counted, ended.stdout
    assert min(map(int, counted.groups())) > 10_000, counted[0]
