"""numba-cuda's own driver tests, from the installed package, pass on the simulator.

What cannot is listed in `numba_excluded.txt` with its reason, and must fail for that reason: an
entry that is no longer needed fails here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.tests.interpreter import needs
from conformance.tests.interpreter.process import simulate

EXCLUDED = Path(__file__).with_name("numba_excluded.txt")
# What a test that is listed under a reason has to say.
REASONS = {
    "kernel": r"failed DynamicLibNotFoundError: .*(nvvm|nvrtc)",
    "cupy": r"failed Skipped: could not import 'cupy'",
    "disabled": r"skipped ",
    "race": r"failed (AssertionError: Arrays are not equal|CudaAPIError: .*ILLEGAL_ADDRESS)",
}
# Certain under the lazy schedule alone: under the other one a race may end well.
LAZY = {"race"}


def excluded() -> dict[str, str]:
    """Test -> reason."""
    lines = EXCLUDED.read_text().splitlines()
    pairs = [line.split() for line in lines if line and not line.startswith("#")]
    return {test: reason for reason, test in pairs}


@needs.numba_cuda
@pytest.mark.parametrize("schedule", [pytest.param("threaded", marks=pytest.mark.long), "lazy"])
def test_numbas_own_tests(schedule: str) -> None:
    # One of them fills half of the device: a small one will do.
    done = simulate(
        ["--schedule", schedule, "--memory", str(64 << 20)],
        ["-m", "conformance.tests.cusim.numba_suite"],
        timeout=300,  # ten seconds on an idle machine; a process of it may be waited for longer (numba_suite.py)
    )
    assert done.returncode == 0, done.stderr
    outcomes = {}
    for line in done.stdout.splitlines():
        outcome, test, reason = line.split("\t")
        outcomes[test] = f"{outcome} {reason}"
    listed = {test: reason for test, reason in excluded().items() if reason not in LAZY or schedule == "lazy"}
    for test, reason in excluded().items():
        if test not in listed and re.match(REASONS[reason], outcomes[test]):
            listed[test] = reason
    wrong = {test: said for test, said in outcomes.items() if test not in listed and not said.startswith("passed")}
    assert wrong == {}, "failed or skipped, and not listed"
    for test, reason in listed.items():
        assert re.match(REASONS[reason], outcomes[test]), f"{test}: listed as {reason}, was {outcomes[test]}"
    assert len(outcomes) - len(listed) >= 160
