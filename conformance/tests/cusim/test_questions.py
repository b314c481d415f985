"""The simulator keeps to the answers that were written down, under both schedules."""

from __future__ import annotations

import pytest

from conformance.tests.cusim.running import HERE, start


@pytest.mark.parametrize("schedule", ["threaded", "lazy"])
def test_the_answers_are_those_of_the_list(schedule: str) -> None:
    done = start(["--schedule", schedule], ["-m", "conformance.tests.cusim.questions"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == (HERE / "answers.tsv").read_text(encoding="utf-8")
