"""The script that runs cuda.core's own tests of a checkout tells what has passed, and why the rest has not."""

from __future__ import annotations

from pathlib import Path

from conformance.soak import cuda_core_ipc

CHECKOUT = """
import pytest
from cuda.core import Device

def test_right(): Device(0).set_current()
def test_absent(): pytest.skip("two GPUs are needed")
def test_wrong(): assert 1 == 2
"""


def test_each_test_of_a_checkout_is_told_with_its_reason(tmp_path: Path) -> None:
    tests = tmp_path / cuda_core_ipc.TESTS
    tests.mkdir(parents=True)
    (tests / "test_some.py").write_text(CHECKOUT, encoding="utf-8")
    report = tmp_path / "report.xml"
    assert cuda_core_ipc.run(tmp_path, report) == 1
    found = list(cuda_core_ipc.outcomes(report))
    assert [(outcome.test, outcome.what) for outcome in found] == [
        ("test_some::test_right", "passed"),
        ("test_some::test_absent", "skipped"),
        ("test_some::test_wrong", "failed"),
    ]
    first, *others = cuda_core_ipc.text(found, "1.2.2").splitlines()
    assert first.endswith("on the simulated driver: 1 failed, 1 passed, 1 skipped.")
    assert others == [
        "skipped: test_some::test_absent: two GPUs are needed",
        "failed: test_some::test_wrong: assert 1 == 2",
    ]
