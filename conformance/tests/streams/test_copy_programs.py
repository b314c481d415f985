"""Runs random programs of copies. `make soak` runs more of them."""

from __future__ import annotations

import pytest

from conformance.tests.ownership.waiting import until
from conformance.tests.partners.copying import settled
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.copy_programs import is_right
from conformance.tests.streams.race import Track

pytestmark = pytest.mark.long


@pytest.mark.parametrize("schedule", ["threaded", "lazy"])
def test_every_copy_is_right(schedule: str, track: Track, machine: Machine) -> None:
    track.control.schedule = schedule
    assert [seed for seed in range(60) if not is_right(machine, seed)] == []


def test_without_their_waits_copies_are_wrong(lazily: Track, machine: Machine) -> None:
    """Each run has one wait that does nothing. No thread frees meanwhile, which would run work at any time: the same
    programs are wrong each time."""
    live = settled(machine)
    wrong = []
    for seed in range(60):
        lazily.control.fault("cuStreamWaitEvent", 0, 1 + seed % 6)
        if not is_right(machine, seed, drops=False):
            wrong.append(seed)
        lazily.control.clear_faults()
        assert until(lambda: machine.control.live().allocations <= live)
    assert len(wrong) > 5, wrong
