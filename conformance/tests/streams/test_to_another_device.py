"""Copies to another device, or on a stream of one: of the CPU's memory, of a device's, pinned and managed.

The source is written on a stream of its own; the copy is read on the consumer's. The producer may write again at once.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import random
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import cai
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.ownership.waiting import until
from conformance.tests.partners.copying import is_at_most, on_a_thread, settled
from conformance.tests.simulated.machine import Machine

SHAPE = (3, 4)
SIZE = 12
LEGACY, PER_THREAD, NO_SYNC = 1, 2, -1
# The bytes between elements, of an array in 64 bytes: C order, Fortran order, gaps, backwards.
LAYOUTS = {
    "c": (0, (4, 1)),
    "f": (0, (1, 3)),
    "gaps": (3, (16, 3)),
    "backwards": (20, (-4, -1)),
    "broadcast": (5, (0, 2)),
}
SOURCES = ("cpu", "device 0", "device 1", "pool of device 0", "pinned", "managed")


class Source:
    """64 bytes of memory of a kind, and an array in it that is written on a stream."""

    def __init__(self, machine: Machine, kind: str, layout: str, value: int) -> None:
        self.machine, self.kind, self.value = machine, kind, value
        self.offset, self.strides = LAYOUTS[layout]
        self.stream = 0 if kind == "cpu" else machine.stream(1 if kind == "device 1" else 0)
        self.host = np.zeros(64, np.uint8)
        self.address = self.host.ctypes.data if kind == "cpu" else self._allocate()
        self.write(value)

    def _allocate(self) -> int:
        allocate: dict[str, Callable[[], int]] = {
            "device 0": lambda: self.machine.device_memory(64),
            "device 1": lambda: self.machine.device_memory(64, 1),
            "pool of device 0": self._pooled,
            "pinned": lambda: self.machine.pinned_memory(64),
            "managed": lambda: self.machine.managed_memory(64),
        }
        address = allocate[self.kind]()
        self.machine.write(address, bytes(64))
        return address

    def _pooled(self) -> int:
        found = ctypes.c_uint64()
        self.machine._call("cuMemAllocAsync", ctypes.byref(found), ctypes.c_size_t(64), ctypes.c_void_p(self.stream))
        self.machine._call("cuStreamSynchronize", ctypes.c_void_p(self.stream))
        return found.value

    def write(self, value: int) -> None:
        """Writes all bytes: on the stream, as late as that may be; on the CPU at once."""
        data = bytes((value + at) % 256 for at in range(64))
        if self.kind == "cpu":
            self.host[:] = np.frombuffer(data, np.uint8)
        else:
            self.machine.control.store(self.stream, self.address, data)

    def view(self) -> cd.CaiView:
        if self.kind == "cpu":
            whole = np.lib.stride_tricks.as_strided(self.host[self.offset :], SHAPE, self.strides)
            return cd.view(whole)
        data = (self.address + self.offset, False)
        return cd.view(cai(shape=SHAPE, typestr="|u1", strides=self.strides, data=data, stream=self.stream))

    @property
    def expected(self) -> bytes:
        indices = itertools.product(*map(range, SHAPE))
        starts = (self.offset + sum(a * b for a, b in zip(index, self.strides, strict=True)) for index in indices)
        return bytes((self.value + start) % 256 for start in starts)

    def close(self) -> None:
        if self.kind == "pinned":
            self.machine._call("cuMemFreeHost", ctypes.c_void_p(self.address))
        elif self.kind == "pool of device 0":
            self.machine._call("cuMemFreeAsync", ctypes.c_uint64(self.address), ctypes.c_void_p(self.stream))
        elif self.kind != "cpu":
            self.machine.free(self.address)
        if self.stream:
            self.machine.destroy_stream(self.stream)


def device_of(kind: str) -> int:
    return {"cpu": -1, "device 1": 1, "pinned": -1, "managed": -1}.get(kind, 0)


def copied_alike(source: cd.CaiView, stream: int) -> abi.Read:
    """Copies to the array's own device."""
    return abi.consume(source.__dlpack__(stream=stream, copy=True, max_version=(1, 3)))


def copied(source: cd.CaiView, ordinal: int, stream: int) -> abi.Read:
    return abi.consume(source.__dlpack__(stream=stream, dl_device=(2, ordinal), max_version=(1, 3)))


def read_on(machine: Machine, ordinal: int, stream: int, address: int) -> int:
    """Enqueues a read on a stream of a device."""
    target = machine.device_memory(SIZE, ordinal)
    machine.set_current(ordinal)
    addresses = (ctypes.c_uint64(target), ctypes.c_uint64(address), ctypes.c_size_t(SIZE))
    machine._call("cuMemcpyAsync", *addresses, ctypes.c_void_p(stream))
    machine.set_current(0)
    return target


def wait(machine: Machine, ordinal: int, stream: int) -> None:
    machine.set_current(ordinal)
    machine._call("cuStreamSynchronize", ctypes.c_void_p(stream))
    machine.set_current(0)


def is_right(machine: Machine, seed: int) -> bool:
    """Copies to a device that the array is not on, or for a stream of one; returns whether the copy is right."""
    at = random.Random(seed)
    kind, layout = at.choice(SOURCES), at.choice(list(LAYOUTS))
    ordinal = at.choice([each for each in (0, 1) if each != device_of(kind)])
    handle = machine.stream(ordinal)
    consumer = at.choice([handle, handle, LEGACY, PER_THREAD, NO_SYNC])
    machine.set_current(at.choice([0, 1]))
    source = Source(machine, kind, layout, at.randrange(256))
    expected, host_may_wait = source.expected, consumer == NO_SYNC
    # A default stream is one of the copy's own device.
    is_alike = consumer == handle and device_of(kind) >= 0 and at.random() < 0.5
    tensor = copied_alike(source.view(), consumer) if is_alike else copied(source.view(), ordinal, consumer)
    if kind not in ("pinned", "managed"):
        source.write(source.value + 77)  # the producer goes on: in the order of its stream
    assert (tensor.device, tensor.shape) == ((2, device_of(kind) if is_alike else ordinal), SHAPE)
    if host_may_wait:
        right = machine.read(tensor.data, SIZE) == expected
    else:
        target = read_on(machine, ordinal, consumer, tensor.data)
        abi.release(tensor)
        wait(machine, ordinal, consumer)
        right = machine.read(target, SIZE) == expected
        machine.free(target)
    if host_may_wait:
        abi.release(tensor)
    if source.stream:
        wait(machine, 0, source.stream)
    machine.destroy_stream(handle)
    source.close()
    return right


@pytest.fixture(params=["lazy", "threaded"])
def schedule(request: pytest.FixtureRequest, machine: Machine) -> Any:
    before = machine.control.schedule
    machine.context(1)
    machine.control.schedule = request.param
    yield request.param
    machine.control.schedule = before


def test_a_copy_holds_what_the_array_held_in_the_order_of_its_stream(schedule: str, machine: Machine) -> None:
    live = settled(machine)
    assert [seed for seed in range(120) if not is_right(machine, seed)] == []
    gc.collect()
    assert until(lambda: machine.control.live().allocations <= live)


def test_without_a_wait_a_copy_is_wrong(machine: Machine) -> None:
    """Each run has one wait that does nothing."""
    machine.context(1)
    before, machine.control.schedule = machine.control.schedule, "lazy"
    wrong = []
    for seed in range(120):
        machine.control.fault("cuStreamWaitEvent", 0, 1)
        if not is_right(machine, seed):
            wrong.append(seed)
        machine.control.clear_faults()
    machine.control.schedule = before
    assert len(wrong) > 10, wrong


@pytest.mark.parametrize("kind", SOURCES)
def test_the_copy_is_made_by_few_calls_and_the_host_does_not_wait(kind: str, machine: Machine) -> None:
    source = Source(machine, kind, "gaps", 1)
    ordinal = 0 if device_of(kind) == 1 else 1
    consumer = machine.stream(ordinal)
    view = source.view()
    machine.clear()
    abi.release(copied(view, ordinal, consumer))
    calls = [name for name in machine.names() if name.startswith("cuMemcpy") or "Synchronize" in name]
    packed = {"cpu": ["cuMemcpyAsync"], "pinned": ["cuMemcpy2DAsync"] * 3, "managed": ["cuMemcpy2DAsync"] * 3}
    peers = [*["cuMemcpy2DAsync"] * 3, "cuMemcpyPeerAsync"]
    assert calls == packed.get(kind, peers), calls
    wait(machine, ordinal, consumer)
    machine.destroy_stream(consumer)
    source.close()


ACROSS: dict[str, Callable[[cd.CaiView, int], abi.Read]] = {
    "to the stream's device": lambda source, stream: copied(source, 1, stream),
    "for another device's stream": copied_alike,
}


@pytest.mark.parametrize("way", ACROSS)
def test_elements_of_a_pool_are_read_by_their_own_device(way: str, machine: Machine) -> None:
    """Work of another device does not reach a pool that was not granted to it (`cuMemPoolSetAccess`)."""
    source, consumer = Source(machine, "pool of device 0", "gaps", 1), machine.stream(1)
    view = source.view()
    machine.clear()
    abi.release(ACROSS[way](view, consumer))
    readers = {stream for name, stream in machine.calls() if name == "cuMemcpy2DAsync"}
    assert len(readers) == 1 and consumer not in readers
    assert "cuStreamSynchronize" not in machine.names()
    wait(machine, 1, consumer)
    machine.destroy_stream(consumer)
    source.close()


@pytest.mark.parametrize("way", ACROSS)
def test_every_call_of_a_copy_across_devices_fails_in_turn(way: str, schedule: str, machine: Machine) -> None:
    """After a failure nothing reads the array any more once it has been let go. Another copy is right afterwards."""
    consumer, live = machine.stream(1), cd.stats()["live"]

    def copy_once(faults: tuple[str, int] | None = None) -> bool:
        """Copies an array, freed in its stream's order once nothing refers to it; returns whether that was refused."""
        source, refused = Source(machine, "pool of device 0", "gaps", 1), False
        if faults:
            machine.control.fault(faults[0], 999, faults[1], by="this")
        try:
            tensor = ACROSS[way](source.view(), consumer)
        except cd.DriverError:
            refused = True
        finally:
            machine.control.clear_faults()
        if not refused:
            wait(machine, 1, consumer)
            assert machine.read(tensor.data, SIZE) == source.expected, faults
            abi.release(tensor)
        assert until(lambda: cd.stats()["live"] <= live), faults
        source.close()
        return refused

    copy_once()
    machine.clear()
    copy_once()
    called = machine.names()
    failed = 0
    for function in set(called):
        for nth in range(called.count(function)):
            failed += copy_once((function, nth + 1))
            copy_once()
    for ordinal in (0, 1):
        wait(machine, ordinal, LEGACY)  # a read of freed memory would have ended the context
    assert failed > 20
    settled(machine)
    machine.destroy_stream(consumer)


@pytest.mark.parametrize("way", ACROSS)
@pytest.mark.parametrize("then", ["to the cpu", "finished", "for another stream"])
def test_no_other_copy_waits_behind_one_across_devices(way: str, then: str, schedule: str, machine: Machine) -> None:
    """The private stream of a copy is behind the consumer's, which may wait for what this thread does next."""
    source, consumer, other = Source(machine, "pool of device 0", "gaps", 1), machine.stream(1), machine.stream(1)
    ready = machine.device_memory(64)
    machine.write(ready, bytes(range(64)))
    view = cd.view(cai(shape=SHAPE, typestr="|u1", strides=(16, 3), data=(ready, False)))

    def copy() -> bool:
        machine.set_current(0)
        if then == "to the cpu":
            return bool(np.from_dlpack(view, device="cpu")[2, 3] == 41)
        tensor = copied_alike(view, NO_SYNC) if then == "finished" else ACROSS[way](view, other)
        wait(machine, 1, other)
        right = machine.read(tensor.data, SIZE)[11] == 41
        abi.release(tensor)
        return right

    with machine.control.gate(consumer):
        tensor = ACROSS[way](source.view(), consumer)
        right = on_a_thread(copy)
    assert right
    wait(machine, 1, consumer)
    assert machine.read(tensor.data, SIZE) == source.expected
    abi.release(tensor)
    settled(machine)
    machine.free(ready)
    for stream in (consumer, other):
        machine.destroy_stream(stream)
    source.close()


@pytest.mark.parametrize("way", ACROSS)
def test_a_copy_across_devices_that_fails_does_not_wait(way: str, schedule: str, machine: Machine) -> None:
    """The consumer's stream may wait for this thread. What was enqueued keeps the array, and the memory of the copy."""
    source, consumer, live = Source(machine, "pool of device 0", "gaps", 1), machine.stream(1), cd.stats()["live"]
    for function, nth in (("cuMemcpy2DAsync", 2), ("cuStreamWaitEvent", 3)):
        allocated = settled(machine)

        def refused(function: str = function, nth: int = nth) -> bool:
            machine.set_current(0)
            view = source.view()
            machine.control.fault(function, 999, nth, by="this")
            with pytest.raises(cd.DriverError, match=function):
                ACROSS[way](view, consumer)
            return True

        with machine.control.gate(consumer):
            assert on_a_thread(refused)
            assert cd.stats()["live"] > live  # kept, not freed behind the work
            next_one = on_a_thread(lambda: ACROSS[way](source.view(), consumer))
        machine.control.clear_faults()
        wait(machine, 1, consumer)
        assert machine.read(next_one.data, SIZE) == source.expected
        abi.release(next_one)
        assert until(lambda: cd.stats()["live"] <= live)
        assert until(partial(is_at_most, machine, allocated))
    for ordinal in (0, 1):
        wait(machine, ordinal, LEGACY)
    machine.destroy_stream(consumer)
    source.close()


@pytest.mark.parametrize("array", [np.arange(12.0), np.arange(12, dtype=np.int8)[::-2], np.zeros((0, 3)), np.array(7)])
@pytest.mark.parametrize("device", ["cuda:1", (2, 0)])
def test_an_array_of_numpy_goes_to_a_device(array: Any, device: Any, machine: Machine) -> None:
    """NumPy refuses the device, so that this package makes the copy, which the array API's `from_dlpack` asks for."""
    stream = machine.stream(1 if device == "cuda:1" else 0)
    view = cd.from_dlpack(array, device=device, stream=stream)
    expected = array.copy()
    array[...] = 0  # at once: what is read was copied aside
    assert (view.device, view.shape, view.dtype) == ((2, 1 if device == "cuda:1" else 0), array.shape, array.dtype)
    assert view.read_only is False and view.is_c_contiguous
    assert np.array_equal(np.from_dlpack(view, device="cpu"), expected)
    array[...] = expected
    machine.destroy_stream(stream)


@pytest.mark.parametrize("kind", ["pinned", "managed", "ready device memory"])
def test_the_owner_is_kept_until_the_copy_has_read_it(kind: str, schedule: str, machine: Machine) -> None:
    """Of memory that no stream of the producer's keeps: the host may give it away at once."""
    source = Source(machine, kind if kind in SOURCES else "device 0", "c", 1)
    wait(machine, 0, source.stream)
    consumer = machine.stream(1)
    owner = cai(shape=SHAPE, typestr="|u1", data=(source.address, False), stream=None)
    alive = weakref.ref(owner)
    with machine.control.gate(consumer):
        tensor = on_a_thread(partial(copied, cd.view(owner), 1, consumer))
        del owner
        gc.collect()
        time.sleep(0.02)
        assert alive() is not None, "the copy has not been made"
    wait(machine, 1, consumer)

    def has_gone() -> bool:
        cd.stats()  # what another thread has ended goes with the next call into the package
        gc.collect()
        return alive() is None

    assert until(has_gone)
    assert machine.read(tensor.data, SIZE) == source.expected
    abi.release(tensor)
    machine.destroy_stream(consumer)
    source.close()


def test_an_array_of_the_cpu_is_let_go_at_once(machine: Machine) -> None:
    array = np.arange(12.0)
    alive = weakref.ref(array)
    tensor = copied(cd.view(array), 1, LEGACY)
    del array
    assert alive() is None
    wait(machine, 1, LEGACY)
    abi.release(tensor)


def test_the_context_of_a_device_that_nobody_uses_stays_for_the_copy() -> None:
    """A process that has called no driver yet: the copy has a context, and its memory outlives the call."""
    program = (
        "import numpy as np, cai_dlpack as cd; from cai_conformance import Sim; "
        "copies = [cd.from_dlpack(np.arange(3.0), device=device) for device in ('cuda', 'cuda:1', (2, 1))]; "
        "assert [copy.device for copy in copies] == [(2, 0), (2, 1), (2, 1)]; "
        "assert all(np.from_dlpack(copy, device='cpu').tolist() == [0, 1, 2] for copy in copies); "
        "assert Sim().live().contexts == 2"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


ONLY_OTHER_CONTEXTS = """
import ctypes, sys
import cai_dlpack as cd
from cai_conformance import Sim, abi

sim, number = Sim(), ctypes.c_void_p
sim.schedule = sys.argv[1]

def call(name, *arguments):
    code = getattr(sim.library, name)(*arguments)
    assert code == 0, (name, code)

def made(name, kind, *arguments):
    found = kind()
    call(name, ctypes.byref(found), *arguments)
    return found

call("cuInit", 0)
contexts, streams = [], []
for device in (0, 1):
    contexts.append(made("cuCtxCreate_v2", number, 0, device))
    streams.append(made("cuStreamCreate", number, 1))
call("cuCtxSetCurrent", contexts[0])
memory = made("cuMemAllocAsync", ctypes.c_uint64, ctypes.c_size_t(64), streams[0])
sim.store(streams[0].value, memory.value, bytes(range(64)))

class Array:
    __cuda_array_interface__ = dict(
        shape=(3, 4), typestr="|u1", strides=(16, 3), data=(memory.value, False), version=3, stream=streams[0].value
    )

view = cd.view(Array())
for device, stream in ((0, streams[1].value), (1, streams[1].value), (0, -1), (1, -1)):
    options = dict(copy=True) if device == 0 else dict(dl_device=(2, 1))
    tensor = abi.consume(view.__dlpack__(stream=stream, max_version=(1, 3), **options))
    call("cuStreamSynchronize", streams[1])
    assert sim.peek(tensor.data, 12) == bytes(16 * row + 3 * column for row in range(3) for column in range(4))
    abi.release(tensor)
assert made("cuCtxGetCurrent", number).value == contexts[0].value
"""


@pytest.mark.parametrize("schedule", ["lazy", "threaded"])
def test_memory_of_a_pool_is_copied_where_no_primary_context_is_active(schedule: str) -> None:
    """It belongs to no context, so that its copy is in the primary one, which nobody else keeps."""
    subprocess.run([sys.executable, "-c", ONLY_OTHER_CONTEXTS, schedule], check=True)


def test_what_is_on_the_device_is_not_copied(machine: Machine) -> None:
    source = Source(machine, "device 1", "c", 1)
    view = source.view()
    assert cd.from_dlpack(view, device="cuda:1", stream=source.stream).ptr == view.ptr
    source.close()


REFUSED: dict[str, tuple[str, str, Callable[[Source], object]]] = {
    "a device that is not there": ("transfer-refused", "device", lambda it: cd.from_dlpack(it.view(), device="cuda:7")),
    "the same by dl_device": ("transfer-refused", "dl_device", lambda it: it.view().__dlpack__(dl_device=(2, 7))),
    "a device of another kind": ("transfer-refused", "device", lambda it: cd.from_dlpack(it.view(), device=(4, 0))),
    "no copy": ("copy-needed", "copy", lambda it: it.view().__dlpack__(dl_device=(2, 1), copy=False)),
    "a stream of another device": (
        "stream-device",
        "stream",
        lambda it: it.view().__dlpack__(dl_device=(2, 1), stream=it.machine.stream(0)),
    ),
    "packed elements": (
        "copy-refused",
        "device",
        lambda it: cd.from_dlpack(cd.view(np.zeros(4, np.uint8), dtype="int4", shape=(8,)), device="cuda:1"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_names_the_argument_and_allocates_nothing(case: str, machine: Machine) -> None:
    rule, field, call = REFUSED[case]
    source = Source(machine, "device 0", "c", 1)
    live = settled(machine)
    found = refuse(lambda: call(source), BufferError)
    check_refusal(found, rule, field)
    assert machine.control.live().allocations == live
    source.close()


@pytest.mark.parametrize("kind", ["cpu", "device 0", "pinned"])
@pytest.mark.parametrize("captured", ["producer", "consumer"])
def test_no_stream_enters_a_capture(kind: str, captured: str, machine: Machine) -> None:
    source, consumer = Source(machine, kind, "c", 1), machine.stream(1)
    stream = consumer if captured == "consumer" or kind == "cpu" else source.stream
    view = source.view()
    machine._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), 2)
    refuse(lambda: copied(view, 1, consumer), BufferError)
    graph = ctypes.c_void_p()
    machine._call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
    nodes = ctypes.c_size_t()
    machine._call("cuGraphGetNodes", graph, None, ctypes.byref(nodes))
    assert nodes.value == 0
    machine.destroy_stream(consumer)
    source.close()


# --- arrays of the interface alone ------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["handle", LEGACY, None])
@pytest.mark.parametrize(("device", "copy"), [("cpu", None), ("cuda:1", None), ("cuda:1", True), (None, True)])
def test_from_dlpack_copies_an_array_without_dlpack(
    device: str | None, copy: bool | None, stream: Any, machine: Machine
) -> None:
    """It has no `__dlpack__` to ask for the copy: its view makes it, after the producer's stream."""
    source = Source(machine, "device 0", "gaps", 7)
    where = {"cpu": (1, 0), "cuda:1": (2, 1), None: (2, 0)}[device]
    on = None if where[0] == 1 else machine.stream(where[1]) if stream == "handle" else stream
    data = (source.address + source.offset, False)
    array = cai(shape=SHAPE, typestr="|u1", strides=source.strides, data=data, stream=source.stream)
    view = cd.from_dlpack(array, device=device, copy=copy, stream=on)
    assert (view.device, view.shape, view.elem_strides, view.read_only) == (where, SHAPE, (4, 1), False)
    if where[0] == 1:
        assert ctypes.string_at(view.ptr, SIZE) == source.expected
    else:
        target = read_on(machine, where[1], on or LEGACY, view.ptr)
        wait(machine, where[1], on or LEGACY)
        assert machine.read(target, SIZE) == source.expected


def test_the_options_describe_the_array_and_not_its_copy(machine: Machine) -> None:
    address = machine.device_memory(64)
    machine.write(address, bytes(range(64)))
    array = cai(shape=(8,), typestr="|u1", data=(address, True), stream=None)
    options: dict[str, Any] = {"dtype": "uint16", "shape": (2, -1), "device_id": 0}
    view = cd.from_dlpack(array, device="cpu", **options)
    assert (view.dtype.name, view.shape, view.device, view.read_only) == ("uint16", (2, 2), (1, 0), False)
    assert cd.from_dlpack(array, device="cpu", read_only=True, **options).read_only
    with_owner = cd.from_dlpack(array.__cuda_array_interface__, owner=array, device="cpu")
    assert ctypes.string_at(with_owner.ptr, 8) == bytes(range(8))


def test_a_copy_is_refused_that_nobody_can_make(machine: Machine) -> None:
    array = cai(shape=(8,), data=(machine.device_memory(64), False))
    found = refuse(lambda: cd.from_dlpack(array, device="cpu", copy=False), BufferError)
    check_refusal(found, "copy-needed", None)
    check_refusal(refuse(lambda: cd.from_dlpack(array, device="cuda:7"), BufferError), "transfer-refused", "device")
    nothing: Any = object()
    check_refusal(refuse(lambda: cd.from_dlpack(nothing, device="cpu"), TypeError), "protocol-missing", None)


@pytest.mark.parametrize("make", [np.zeros, lambda shape: cd.view(np.zeros(shape))], ids=["NumPy", "a view"])
def test_a_device_that_is_not_there_is_told_with_how_many_there_are(make: Callable[[int], Any]) -> None:
    array = make(3)
    hint = "this machine has no cuda:9; it has 2 devices"
    found = refuse(lambda: cd.from_dlpack(array, device="cuda:9"), BufferError)
    check_refusal(found, "transfer-refused", "device", hint=hint)
    found = refuse(lambda: cd.to_dlpack(array, dl_device=(2, 9)), BufferError)
    check_refusal(found, "transfer-refused", "dl_device", hint=hint)
    found = refuse(lambda: cd.from_dlpack(array, device=(4, 0)), BufferError)
    check_refusal(found, "transfer-refused", "device", hint="the data is on (1, 0)")


def test_what_does_not_copy_names_the_call_that_does(machine: Machine) -> None:
    loose: Any = cd
    array = cai(shape=(8,), data=(machine.device_memory(64), False))
    found = refuse(lambda: cd.from_dlpack(array), TypeError)
    check_refusal(found, "dlpack-missing", None, hint="view reads its interface")
    calls = (loose.view, loose.explain, loose.from_cai, lambda array, **options: loose.to(array, "numpy", **options))
    for call in calls:
        for word, value, hint in (
            ("device", "cpu", "cd.from_dlpack(obj, device=...) copies"),
            ("copy", True, "cd.from_dlpack(obj, copy=True) copies"),
        ):
            found = refuse(partial(call, array, **{word: value}), TypeError)
            check_refusal(found, "argument-unexpected", word, hint=hint)
            assert loose.from_dlpack(array, **{word: value}).shape == (8,)
    found = refuse(lambda: loose.to_dlpack(array, device="cpu"), TypeError)
    check_refusal(found, "argument-unexpected", "device", hint="dl_device= asks for a copy there")
