"""A copy that ends where no thread can be started: it ends all the same, and the next one has its threads."""

from __future__ import annotations

from conformance.tests.interpreter.process import on_the_simulator

# Bytes of the stack that a thread of the library asks for. Far more than all else that the program asks for: an arena
# of malloc is 64 MiB, and the allocator of the simulator's device maps what it is asked for.
STACK = 1 << 30

PROGRAM = """
import ctypes, pathlib, resource
import cai_dlpack as cd
from cai_conformance import Sim
from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.ownership.waiting import until
from conformance.tests.simulated.machine import Machine

machine = Machine(Sim())
pointer, stream = machine.device_memory(64), machine.stream()
machine.set_current(0)
machine.control.store(stream, pointer, bytes(64))  # the simulator's own thread begins
assert machine.driver.cuStreamSynchronize(ctypes.c_void_p(stream)) == 0
view = cd.view(Cai(interface(data=(pointer, False), stream=stream)))

def copied():
    cd.to_dlpack(view, copy=True, stream=stream, max_version=(1, 3))

def threads():
    names = {(task / "comm").read_text().strip() for task in pathlib.Path("/proc/self/task").iterdir()}
    return names & {"cai-dlpack-keep", "cai-dlpack-free"}

pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
limits = resource.getrlimit(resource.RLIMIT_AS)
# Room for objects and for memory of the simulator, and none for the stack of a thread.
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + {room}, limits[1]))
copied()
resource.setrlimit(resource.RLIMIT_AS, limits)
assert not threads()
copied()
assert until(lambda: len(threads()) == 2, 5), threads()
assert until(lambda: cd.stats()["live"] == 1, 5), cd.stats()
"""


def test_a_thread_that_could_not_be_started_is_started_later() -> None:
    ended = on_the_simulator(PROGRAM.replace("{room}", str(STACK // 2)), RUST_MIN_STACK=str(STACK))
    assert ended.returncode == 0, ended.stderr
