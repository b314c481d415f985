"""Checks the simulator against the answers of `answers.tsv`, under both schedules."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.tests.interpreter.process import simulate

ANSWERS = Path(__file__).with_name("answers.tsv")


@pytest.mark.parametrize("schedule", ["threaded", "lazy"])
def test_the_answers_are_those_of_the_list(schedule: str) -> None:
    done = simulate(["--schedule", schedule], ["-m", "conformance.tests.cusim.questions"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == ANSWERS.read_text(encoding="utf-8")
