"""The simulator's rules, in each of its modes: the same checks under both schedules."""

from __future__ import annotations

import pytest

from conformance.tests.cusim.running import checks, start

MODES = [
    ["--schedule", "threaded"],
    ["--schedule", "lazy"],
    ["--schedule", "threaded", "--protect", "--reuse"],
    ["--schedule", "lazy", "--protect", "--reuse"],
    ["--schedule", "lazy", "--devices", "3", "--queue", "8"],
]


@pytest.mark.parametrize("options", MODES, ids=lambda options: " ".join(options))
def test_the_rules_hold(options: list[str]) -> None:
    assert checks(options, "model") > 90


@pytest.mark.parametrize("schedule", ["threaded", "lazy"])
def test_cuda_core_runs_unmodified(schedule: str) -> None:
    assert checks(["--schedule", schedule], "outsiders") > 15


def test_a_failing_check_is_noticed(tmp_path: object) -> None:
    done = start([], ["-m", "pytest", "-q", "--rootdir", str(tmp_path), "--collect-only", str(tmp_path)])
    assert done.returncode == 5, "pytest's code for no tests"
