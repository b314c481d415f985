"""A thread that finds no memory waits for all that is on its way back, and for nothing that may be its own to end."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import cai_dlpack as cd
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.interpreter.free_threaded import FREE_THREADED
from conformance.tests.interpreter.process import on_the_simulator
from conformance.tests.ownership.waiting import PATIENCE, until
from conformance.tests.partners.copying import copy_for, is_at_most, memory, settled, view, wait
from conformance.tests.simulated.capture import RELAXED, Captures
from conformance.tests.simulated.machine import Machine

MEBIBYTE, SOON = 1 << 20, 0.03

pytestmark = pytest.mark.usefixtures("schedule")


@contextmanager
def full(machine: Machine) -> Iterator[None]:
    """Lets the devices take no MiB more."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    machine._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    everything = machine.control.get("memory")
    machine.control.set("memory", total.value - free.value + MEBIBYTE // 2)
    try:
        yield
    finally:
        machine.control.set("memory", everything)


@pytest.mark.parametrize("device", [0, 1])
def test_memory_that_a_stream_of_any_device_reads(device: int, machine: Machine) -> None:
    """A copy's memory comes back once the stream is done that reads it, also if that is of another device."""
    source = view(memory(machine, "device", MEBIBYTE), MEBIBYTE)
    first, second, reader = machine.stream(0), machine.stream(0), machine.stream(device)
    machine.set_current(0)
    before = settled(machine)
    copied = cd.from_dlpack(source, copy=True, stream=first)
    assert wait(machine, first) == 0
    gate = machine.control.gate(reader)
    tensor = copy_for(cd.view(copied, producer_stream=None), reader)
    machine.set_current(0)
    with full(machine):
        del copied
        threading.Timer(SOON, gate.open).start()
        abi.release(copy_for(source, second))
    abi.release(tensor)
    assert wait(machine, reader) == wait(machine, second) == 0
    assert until(partial(is_at_most, machine, before))


class Holder(Cai):
    """An array of Python's that keeps a copy."""

    def __init__(self, tensor: abi.Read, stream: int) -> None:
        self.tensor = tensor
        super().__init__(interface(shape=(MEBIBYTE,), typestr="|u1", data=(tensor.data, False), stream=stream))

    def __del__(self) -> None:
        abi.release(self.tensor)


@pytest.mark.parametrize("busy", [0, 1, 3])
def test_memory_that_a_python_object_holds(busy: int, machine: Machine) -> None:
    """The object ends on a thread that has to wait for the GIL, behind others that want it, too."""
    pointer, first, second = machine.managed_memory(MEBIBYTE), machine.stream(), machine.stream()
    machine.set_current(0)
    source = cd.view(Cai(interface(shape=(MEBIBYTE,), typestr="|u1", data=(pointer, False))), producer_stream=None)
    before, is_over = settled(machine), threading.Event()

    def spin() -> None:
        while not is_over.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=spin) for _ in range(busy)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            holder = Holder(copy_for(source, first), first)
            gate = machine.control.gate(first)
            tensor = copy_for(cd.view(holder), first)
            with full(machine):
                del holder
                threading.Timer(SOON, gate.open).start()
                abi.release(copy_for(source, second))
            abi.release(tensor)
            assert wait(machine, first) == wait(machine, second) == 0
            assert until(partial(is_at_most, machine, before))
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


class Slow(Holder):
    """One whose finaliser lets the GIL go for a while."""

    def __init__(self, tensor: abi.Read, stream: int, begun: threading.Event) -> None:
        super().__init__(tensor, stream)
        self.begun = begun

    def __del__(self) -> None:
        self.begun.set()
        time.sleep(SOON)
        super().__del__()


@pytest.mark.skipif(
    FREE_THREADED, reason="not run: free-threaded CPython ends an object on its own thread, and tells no other"
)
@pytest.mark.parametrize("beside", ["nothing", "a capture", "another owner"])
def test_memory_that_a_slow_finaliser_gives_back(beside: str, machine: Machine) -> None:
    """It is waited for beside what is stuck, and until it has ended itself: an owner that comes later may end first."""
    pointer, first, second, captured = machine.managed_memory(MEBIBYTE), *(machine.stream() for _ in range(3))
    machine.set_current(0)
    source = cd.view(Cai(interface(shape=(MEBIBYTE,), typestr="|u1", data=(pointer, False))), producer_stream=None)
    begun, ended, captures = threading.Event(), threading.Event(), Captures(machine)
    made: list[object] = []
    holder, stuck = Slow(copy_for(source, first), first, begun), copy_for(source, captured)
    small = cd.view(Cai(interface(shape=(8,), typestr="|u1", data=(pointer, False))), producer_stream=None)
    other = abi.consume(small.__dlpack__(stream=first, max_version=(1, 3)))
    del small
    assert wait(machine, first) == wait(machine, captured) == 0
    gate = machine.control.gate(first)
    tensor = copy_for(cd.view(holder), first)
    if beside == "a capture":
        captures.begin(captured, RELAXED)
        abi.release(stuck)

    def work() -> None:
        machine.set_current(0)
        try:
            abi.release(copy_for(source, second))
        except cd.DriverError as error:
            made.append(error)
        ended.set()

    with full(machine):
        del holder
        thread = threading.Thread(target=work)
        thread.start()
        gate.open()
        assert begun.wait(PATIENCE)
        if beside == "another owner":
            abi.release(other, gil=False)
        while not ended.is_set():  # pending calls are made on this thread
            sum(range(100))
        thread.join()
    assert made == []
    if beside == "a capture":
        captures.nodes(captures.end(captured))
    else:
        abi.release(stuck)
    if beside != "another owner":
        abi.release(other)
    abi.release(tensor)


ENDING = """
import ctypes, os, threading, time
import cai_dlpack as cd
from cai_conformance import Sim
from conformance.tests.partners.test_copy_room import MEBIBYTE, SOON, Holder
from cai_conformance import abi
from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.ownership.waiting import PATIENCE, until
from conformance.tests.partners.copying import copy_for
from conformance.tests.simulated.machine import Machine

class Copies(Holder):
    def __del__(self):
        machine.set_current(0)
        try:
            abi.release(copy_for(source, stream))
        except cd.DriverError as error:
            refused.append(error)
        super().__del__()

machine, refused = Machine(Sim()), []
pointer, stream = machine.managed_memory(MEBIBYTE), machine.stream()
machine.set_current(0)
source = cd.view(Cai(interface(shape=(MEBIBYTE,), typestr="|u1", data=(pointer, False))), producer_stream=None)
holder, gate = Copies(copy_for(source, stream), stream), machine.control.gate(stream)
tensor = copy_for(cd.view(holder), stream)
free, total = ctypes.c_size_t(), ctypes.c_size_t()
machine._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
machine.control.set("memory", total.value - free.value)
del holder
threading.Timer(SOON, gate.open).start()
os._exit(0 if until(lambda: refused) else 1)
"""


@pytest.mark.parametrize("schedule", ["threaded"])  # the lazy one runs nothing while only a finaliser waits
def test_a_finaliser_waits_for_no_end_of_its_own(schedule: str) -> None:
    """It runs on a thread that ends what others wait for: without memory it is refused at once."""
    assert on_the_simulator(ENDING, "--schedule", schedule).returncode == 0


POOL = """
import ctypes
from functools import partial
import cai_dlpack as cd
from cai_conformance import Sim
from conformance.tests.doubles.producers import Cai, interface
from cai_conformance import abi
from conformance.tests.ownership.waiting import PATIENCE, until
from conformance.tests.partners.copying import copy_for, is_at_most, settled, wait
from conformance.tests.simulated.machine import Machine
machine = Machine(Sim())
home, made = machine.create_context(0), ctypes.c_uint64()
machine.enter(home)
machine._call("cuMemAlloc_v2", ctypes.byref(made), ctypes.c_size_t(8))
source = cd.view(Cai(interface(shape=(8,), typestr="|u1", data=(made.value, False))), producer_stream=None)
before = settled(machine)
for is_ended_first in [True, False] * 5:
    ending, stream = machine.create_context(0), ctypes.c_void_p()
    machine.enter(ending)
    machine._call("cuStreamCreate", ctypes.byref(stream), 1)
    tensor = copy_for(source, stream.value)
    assert wait(machine, stream.value) == 0
    machine.enter(home)
    if is_ended_first:
        machine.destroy_context(ending)
    abi.release(tensor)
    if not is_ended_first:
        machine.destroy_context(ending)
def is_idle():
    is_active, flags = ctypes.c_int(), ctypes.c_uint()
    machine._call("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(is_active))
    return not is_active.value
# The thread that frees may have retained it for that.
assert until(is_idle)
assert until(partial(is_at_most, machine, before)), machine.control.live()
"""


@pytest.mark.parametrize("schedule", ["lazy", "threaded"])
def test_memory_of_a_pool_outlives_its_context(schedule: str) -> None:
    """Also while the device's primary context is not in use: another context works on."""
    done = on_the_simulator(POOL, "--schedule", schedule)
    assert done.returncode == 0, done.stderr


LOCKED = """
import ctypes, os, threading, time
import cai_dlpack as cd
from cai_conformance import Sim
from conformance.tests.partners.test_copy_room import MEBIBYTE, SOON, Holder
from cai_conformance import abi
from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.ownership.waiting import PATIENCE, until
from conformance.tests.partners.copying import copy_for
from conformance.tests.simulated.machine import Machine

lock, ended = threading.Lock(), threading.Event()

class Locks(Holder):
    def __del__(self):
        with lock:
            ended.set()
            super().__del__()

machine = Machine(Sim())
pointer, stream, other = machine.managed_memory(MEBIBYTE), machine.stream(), machine.stream()
machine.set_current(0)
source = cd.view(Cai(interface(shape=(MEBIBYTE,), typestr="|u1", data=(pointer, False))), producer_stream=None)
holder, gate = Locks(copy_for(source, stream), stream), machine.control.gate(stream)
tensor = copy_for(cd.view(holder), stream)
free, total = ctypes.c_size_t(), ctypes.c_size_t()
machine._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
machine.control.set("memory", total.value - free.value)
with lock:
    del holder
    threading.Timer(SOON, gate.open).start()
    begun = time.monotonic()
    try:
        abi.release(copy_for(source, other))
        raise SystemExit("there was memory")
    except cd.DriverError as error:
        assert "OUT_OF_MEMORY" in str(error), error
    took = time.monotonic() - begun
    assert not ended.is_set() and took < 5, took
os._exit(0 if until(ended.is_set) else 1)
"""


@pytest.mark.skipif(
    FREE_THREADED, reason="not run: free-threaded CPython runs the finaliser on the thread that holds the lock"
)
@pytest.mark.parametrize("schedule", ["threaded", "lazy"])
def test_a_finaliser_that_wants_the_waiting_threads_lock_is_not_waited_for(schedule: str) -> None:
    """Memory that hangs on it is waited for until the threads with the GIL have ended no owner for a second."""
    assert on_the_simulator(LOCKED, "--schedule", schedule).returncode == 0
