"""The table of driver calls in docs/streams.md, compared with the simulator's log: every row, from left to right."""

from __future__ import annotations

import json

import pytest

from conformance.tests.interpreter.process import on_the_simulator
from conformance.tests.streams.call_table import Row, table

pytestmark = pytest.mark.long

# Prints the calls of one row. Device 0 wants its managed memory to itself; the row is the program's argument.
PROGRAM = """
import ctypes, json, sys, threading
import cai_dlpack as cd
from cai_conformance import Sim
from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.simulated.capture import Captures
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.race import Track, NBYTES

ready, consumer, memory, current = ROW
machine = Machine(Sim())
there, track, captures = Track(machine, 1), Track(machine), Captures(machine)
streams = {"A": track.a, "B": track.b, "1": 1, "2": 2, "-1": -1, "None": None}

def pool():
    made = ctypes.c_uint64()
    size, stream = ctypes.c_size_t(NBYTES), ctypes.c_void_p(track.a)
    assert machine.driver.cuMemAllocAsync(ctypes.byref(made), size, stream) == 0
    return made.value

make = {
    "device": lambda: track.data,
    "pool": pool,
    "pinned": lambda: machine.pinned_memory(NBYTES),
    "managed": lambda: machine.managed_memory(NBYTES),
}
data = make[memory]()

def convert(view):
    if consumer == "host":
        cd.to_dlpack(view, stream="host")
    else:
        view.__dlpack__(stream=streams[consumer], max_version=(1, 3))

def measure():
    machine.set_current(0)
    view = cd.view(Cai(interface(data=(data, False), stream=streams[ready])))
    convert(view)  # the first time makes an event, and meets the primary context
    if current == "another":
        machine.set_current(1)
    elif current == "none":
        machine.driver.cuCtxSetCurrent(None)
    elif current == "A's, both captured":
        captures.begin(track.a)
        captures.fork(track.a, track.b)
    convert(view)
    machine.clear()
    convert(view)
    print(json.dumps(machine.names()))

thread = threading.Thread(target=measure)
thread.start()
thread.join()
"""


CASES = table()


def test_the_page_has_the_table() -> None:
    assert len(CASES) > 40


def test_each_order_has_a_row_for_every_kind_of_memory() -> None:
    orders = {(ready, consumer) for ready, consumer, _, current in CASES if current == "A's"}
    kinds = {memory for _, _, memory, _ in CASES}
    every = {(*order, memory, "A's") for order in orders for memory in kinds}
    assert len(kinds) == 4 and every <= set(CASES), sorted(every - set(CASES))


@pytest.mark.parametrize(("row", "calls"), CASES.items(), ids=map("-".join, CASES))
def test_these_calls_and_no_others(row: Row, calls: list[str]) -> None:
    done = on_the_simulator(f"ROW = {row!r}\n{PROGRAM}", "--attribute", "0:89=0")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == calls
