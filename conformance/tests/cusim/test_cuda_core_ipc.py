"""The script that runs cuda.core's own tests of a checkout tells what has passed, and why the rest has not."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.soak import cuda_core_ipc

CHECKOUT = """
import pytest
from cuda.core import Device

def test_right(): assert Device(0).properties.handle_type_posix_file_descriptor_supported
def test_absent(): pytest.skip("two GPUs are needed")
def test_absent_too(): pytest.skip("two GPUs are needed")
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
        ("test_some::test_absent_too", "skipped"),
        ("test_some::test_wrong", "failed"),
    ]
    first, *others = cuda_core_ipc.text(found, "1.2.2", "One file.\n").splitlines()
    assert first.endswith("on the simulated driver: 1 failed, 1 passed, 2 skipped.")
    assert others == [
        "One file.",
        "2 skipped: two GPUs are needed",
        "failed: test_some::test_wrong: assert 1 == 2",
    ]


def test_a_run_in_which_nearly_all_is_skipped_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = tmp_path / cuda_core_ipc.TESTS
    tests.mkdir(parents=True)
    (tests / "test_some.py").write_text(CHECKOUT, encoding="utf-8")
    kept = tmp_path / "kept.txt"
    monkeypatch.setattr(cuda_core_ipc, "RESULTS", kept)
    monkeypatch.setattr("sys.argv", ["cuda_core_ipc", str(tmp_path)])
    assert cuda_core_ipc.main() == 1
    assert not kept.exists()
