"""Calls whose foreign code interferes with them, by random programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.interrupted_programs import ACTIONS, PRODUCERS, counted
from conformance.tests.streams.race import NBYTES, Track

QUICK, LONG = range(600), range(600, 6600)


@pytest.fixture
def second(track: Track, machine: Machine) -> Iterator[int]:
    """Another context of device 0."""
    context = machine.create_context(0)
    machine.set_current(0)
    yield context
    machine.set_current(0)
    machine.destroy_context(context)


@pytest.mark.parametrize("seeds", [QUICK, pytest.param(LONG, marks=pytest.mark.long)], ids=["quick", "long"])
def test_whoever_gets_the_memory_reads_what_was_written(
    seeds: range, track: Track, machine: Machine, second: int
) -> None:
    wrong, seen = counted(track, second, machine.pinned_memory(NBYTES), seeds)
    assert wrong == {}
    assert {*ACTIONS, *PRODUCERS, "lent", "pinned", "a default stream"} <= set(seen)
