"""The track of the races, and drained queues and open gates after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.race import Track


@pytest.fixture
def track(machine: Machine) -> Iterator[Track]:
    """The memory and streams of one race on device 0, under the schedule of threads."""
    control = machine.control
    control.schedule = "threaded"
    made = Track(machine)
    yield made
    control.open_gates()
    control.clear_faults()
    control.schedule = "threaded"
    made.close()


@pytest.fixture
def lazily(track: Track) -> Track:
    """Returns the track under the lazy schedule: work runs when it is waited for, the latest first."""
    track.control.schedule = "lazy"
    return track
