"""Random programs over every kind of memory, both devices and their default streams (`random_orders`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.random_orders import Program

SEEDS = range(150)


@pytest.fixture
def program(machine: Machine) -> Iterator[Program]:
    made = Program(machine)
    yield made
    machine.control.clear_faults()
    machine.control.schedule = "threaded"
    made.close()


@pytest.mark.parametrize("schedule", ["lazy", "threaded"])
def test_every_copy_is_of_the_step_before_it(schedule: str, program: Program) -> None:
    program.machine.control.schedule = schedule
    assert [seed for seed in SEEDS if not program.is_right(seed)] == []


@pytest.mark.parametrize("call", ["cuEventRecord", "cuStreamWaitEvent"])
def test_without_one_call_some_program_is_wrong(call: str, program: Program) -> None:
    program.machine.control.schedule = "lazy"
    wrong = 0
    for seed in SEEDS:
        program.machine.control.fault(call, 0, 2)
        wrong += not program.is_right(seed)
        program.machine.control.clear_faults()
    assert wrong > len(SEEDS) // 10
