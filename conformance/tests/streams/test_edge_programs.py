"""Runs random programs at the edges. `make soak` runs more of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from conformance.soak.simulator import COPIES, RANDOM, random_programs
from conformance.soak.simulator import EDGES as EDGES_CODE
from conformance.tests.interpreter.process import on_the_simulator
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.edge_machine import Bench
from conformance.tests.streams.edge_programs import EDGES, EXCLUSIVE, OTHER_NAMES, OTHERS_MEMORY, Program

pytestmark = pytest.mark.long

SEEDS = range(60)


@pytest.fixture
def bench(machine: Machine) -> Iterator[Bench]:
    made = Bench(machine)
    Program(made, 0).run()  # the library's first call starts the driver, with the GIL
    yield made
    machine.control.clear_faults()
    machine.control.schedule = "threaded"
    made.close()


@pytest.mark.parametrize("schedule", ["lazy", "threaded"])
def test_every_program_is_right_and_every_edge_is_met(schedule: str, bench: Bench) -> None:
    bench.machine.control.schedule = schedule
    wrong, reached = {}, Counter[str]()
    for seed in SEEDS:
        program = Program(bench, seed)
        with bench.machine.control.gil_watch("*"):
            if not program.run():
                wrong[seed] = program.wrong
        reached += program.reached
    assert wrong == {}
    assert set(reached) == EDGES | OTHER_NAMES


@pytest.mark.parametrize("call", ["cuStreamWaitEvent", "cuStreamSynchronize"])
def test_without_one_call_some_program_is_wrong(call: str, bench: Bench) -> None:
    bench.machine.control.schedule = "lazy"
    for seed in SEEDS:
        program = Program(bench, seed)
        bench.machine.control.fault(call, 0, 2)
        is_right = program.run()
        bench.machine.control.clear_faults()
        if not is_right:
            return
    raise AssertionError(f"none of {len(SEEDS)}")


@pytest.mark.parametrize("code", [RANDOM, COPIES, EDGES_CODE], ids=["model", "copies", "edges"])
def test_the_programs_of_the_soak_run(code: str) -> None:
    is_right, figures = random_programs(code, ["--schedule", "lazy"], seconds=0.5)
    assert is_right and json.loads(figures)["programs"] > 0, figures


PROGRAMS = """
from conformance.tests.streams.edge_machine import Bench
from conformance.tests.streams.edge_programs import Program
from conformance.tests.simulated.machine import Machine
from cai_conformance import Sim

bench = Bench(Machine(Sim()))
for seed in range(40):
    program = Program(bench, seed)
    assert program.run(), (seed, program.wrong)
    print(*program.reached, sep="\\n")
"""


@pytest.mark.parametrize("attribute", ["0:89=0", "1:89=0"])
@pytest.mark.parametrize("schedule", ["lazy", "threaded"])
def test_a_device_that_wants_its_managed_memory(schedule: str, attribute: str) -> None:
    """The attribute is asked for once in a process."""
    machine = ("--schedule", schedule, "--attribute", attribute)
    done = on_the_simulator(PROGRAMS, *machine, NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM="1")
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) >= {EXCLUSIVE, OTHERS_MEMORY, *OTHER_NAMES}
