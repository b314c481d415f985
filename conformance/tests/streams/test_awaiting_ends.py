"""Tests what a coroutine's wait leaves behind: a loop that is closed, an interpreter that ends, a device for itself.

Each is a process of its own, which would hang if anything waited for the held stream.
"""

from __future__ import annotations

import pytest

from conformance.tests.interpreter.process import on_the_simulator

ENDS = """
import asyncio, sys
import cai_dlpack as cd
from cai_conformance import Sim
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.race import Track
machine = Machine(Sim())
machine.set_current(0)
track = Track(machine)
view = track.view(track.a)

async def consume():
    with cd.policy(sync="host"):
        async with view.consume(track.b):
            pass

async def inside():
    async with view.consume(track.b):
        await asyncio.sleep(60)

async def start(work):
    task = asyncio.create_task(work)
    await asyncio.sleep(0.02)
    machine.clear()
    return task
"""

# The gate stays closed: whoever waited for the stream would hang.
WAYS = {
    "asyncio.run cancels a wait": """
gate = track.control.gate(track.a)
asyncio.run(start(view.wait()))
""",
    "a loop is closed with a wait": """
gate = track.control.gate(track.a)
loop = asyncio.new_event_loop()
loop.run_until_complete(start(view.wait()))
loop.close()
""",
    "a loop is closed with the end of a block": """
gate = track.control.gate(track.b)
loop = asyncio.new_event_loop()
task = loop.run_until_complete(start(consume()))
loop.close()
del task
assert cd.stats()["open_guards"] == 0
""",
    "a loop is closed inside a block": """
loop = asyncio.new_event_loop()
task = loop.run_until_complete(start(inside()))
loop.close()
del task
import gc
gc.collect()
assert [name for name, _ in machine.order()] == ["cuEventRecord", "cuStreamWaitEvent"], machine.names()
assert cd.stats()["open_guards"] == 0
""",
    "the interpreter ends with a wait": """
gate = track.control.gate(track.a)
loop = asyncio.new_event_loop()
task = loop.run_until_complete(start(view.wait()))
""",
    "the interpreter ends inside a block": """
loop = asyncio.new_event_loop()
task = loop.run_until_complete(start(inside()))
""",
}


@pytest.mark.parametrize("way", WAYS)
def test_neither_a_closed_loop_nor_an_ending_interpreter_waits(way: str) -> None:
    done = on_the_simulator(ENDS + WAYS[way] + "\nprint('ended')", timeout=30)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


EXCLUSIVE = """
import asyncio, ctypes
from cai_conformance import Sim
import cai_dlpack as cd
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.race import Track, NBYTES
machine = Machine(Sim())
control = machine.control
track = Track(machine)
track.data = machine.managed_memory(NBYTES)
control.schedule = "threaded"

async def main():
    for ready in (None, track.a):
        view, ticks = cd.view(track.producer(ready)), []
        gate = control.gate(track.b)
        control.store(track.b, track.copy, bytes(NBYTES))
        async def tick():
            for _ in range(5):
                await asyncio.sleep(0.002)
                ticks.append(1)
            gate.open()
        ticking = asyncio.create_task(tick())
        machine.clear()
        waited = await view.wait()
        assert len(ticks) == 5 and control.pending(track.b) == 0, (ready, ticks)
        assert waited.stream is None
        assert "cuCtxSynchronize" in machine.names()
        assert machine.current() == machine.context(0)
        await ticking
asyncio.run(main())
print("waited")
"""


def test_managed_memory_that_the_host_must_have_to_itself_is_waited_for_as_a_whole() -> None:
    done = on_the_simulator(EXCLUSIVE, "--attribute", "89=0", timeout=60)
    assert (done.returncode, done.stdout) == (0, "waited\n"), done.stderr
