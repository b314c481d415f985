"""Four threads on two devices: no wrong read with the waits, and wrong ones without them."""

from __future__ import annotations

import json
import os

import pytest

from conformance.tests.interpreter.process import simulate

# The share of the tests; the soak entry sets more.
ROUNDS = int(os.environ.get("CUSIM_STRESS_ROUNDS", "300"))


def wrong_reads(schedule: str, waits: bool) -> tuple[int, int]:
    """(wrong reads, reads) of one run."""
    arguments = ["-m", "conformance.tests.cusim.stress", str(ROUNDS), str(int(waits))]
    done = simulate(["--schedule", schedule], arguments, timeout=60 + ROUNDS)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = json.loads(done.stdout)
    return counted["wrong"], counted["reads"]


@pytest.mark.parametrize("schedule", ["threaded", "lazy"])
def test_with_waits_no_read_is_wrong(schedule: str) -> None:
    assert wrong_reads(schedule, waits=True) == (0, 4 * ROUNDS)


def test_without_waits_the_threaded_schedule_reads_wrongly() -> None:
    wrong, reads = wrong_reads("threaded", waits=False)
    assert 0 < wrong <= reads


def test_without_waits_the_lazy_schedule_reads_wrongly_each_time() -> None:
    wrong, reads = wrong_reads("lazy", waits=False)
    assert wrong == reads
