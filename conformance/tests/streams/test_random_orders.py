"""Random programs over every kind of memory, both devices, their default streams and all who leave those unsaid."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.moved_producers import LOANS
from conformance.tests.streams.random_orders import TABLE, Program

pytestmark = pytest.mark.long

SEEDS = range(300)


@pytest.fixture
def program(machine: Machine) -> Iterator[Program]:
    gc.collect()  # what earlier tests have left may hold streams and memory, which the programs count
    made = Program(machine)
    yield made
    machine.control.clear_faults()
    machine.control.schedule = "threaded"
    made.close()


# On a device that wants its managed memory to itself, which the machine of the programs has none of.
EXCLUSIVE = {(ready, "host", "managed", "A's") for ready in ("A", "None", "1")}
# Of orders in a capture, and of the host's: the programs make the others fail.
NOT_FAILED = {"cuStreamGetCaptureInfo", "cuStreamSynchronize", "cuThreadExchangeStreamCaptureMode"}


@pytest.mark.parametrize("schedule", ["lazy", "threaded"])
def test_every_copy_is_of_the_step_before_it_by_the_calls_of_the_table(schedule: str, program: Program) -> None:
    program.machine.control.schedule = schedule
    assert [seed for seed in SEEDS if not program.is_right(seed)] == [], program.wrong
    assert set(program.rows) == set(TABLE) - EXCLUSIVE
    assert set(program.moved) == set(LOANS)
    calls = {call for row in program.rows for call in TABLE[row]} - NOT_FAILED
    assert set(program.failed) == calls | {"cuEventCreate"}


@pytest.mark.parametrize("call", ["cuEventRecord", "cuStreamWaitEvent"])
def test_without_one_call_some_program_is_wrong(call: str, program: Program) -> None:
    program.machine.control.schedule = "lazy"
    program.has_edges = False
    wrong, seeds = 0, SEEDS[:50]
    for seed in seeds:
        program.machine.control.fault(call, 0, 2)
        wrong += not program.is_right(seed)
        program.machine.control.clear_faults()
    assert wrong > len(seeds) // 10
