"""Two processes: with waits no read is wrong, and without each one; a killed one leaves the other alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conformance.tests.interpreter.process import simulate

ROUNDS = 60
BOTH = pytest.mark.parametrize("schedule", ["threaded", "lazy"])


def twins(schedule: str, *arguments: str) -> Any:
    done = simulate(["--schedule", schedule], ["-m", "conformance.tests.cusim.twins", *arguments])
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@BOTH
def test_with_waits_no_read_is_wrong(schedule: str) -> None:
    assert twins(schedule, "race", str(ROUNDS), "1") == {"reads": ROUNDS, "wrong": 0}


def test_without_waits_the_threaded_schedule_reads_wrongly() -> None:
    assert 0 < twins("threaded", "race", str(ROUNDS), "0")["wrong"] <= ROUNDS


def test_without_waits_the_lazy_schedule_reads_wrongly_each_time() -> None:
    assert twins("lazy", "race", str(ROUNDS), "0") == {"reads": ROUNDS, "wrong": ROUNDS}


@BOTH
def test_processes_that_are_killed_leave_the_others_alone(schedule: str) -> None:
    found = twins(schedule, "kills", "2")
    assert found["wrong"] == [] and found["rounds"] >= 3
