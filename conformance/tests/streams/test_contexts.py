"""Devices, contexts and events: whose context an order is made in, and that the caller's is left alone."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cuda.core import Device
from cuda.core._utils.cuda_utils import CUDAError
from cuda.core.utils import StridedMemoryView

from conformance.tests.doubles.producers import cai
from conformance.tests.interpreter.process import on_the_simulator
from conformance.tests.simulated.machine import Machine, one_event
from conformance.tests.streams.faces import HOST_FACES, STREAM_FACES, Face
from conformance.tests.streams.race import LEGACY, PER_THREAD, Track

OUT_OF_MEMORY = 2


@pytest.fixture
def second(machine: Machine) -> Iterator[Track]:
    """The track on device 1, while device 0 is current."""
    made = Track(machine, ordinal=1)
    machine.set_current(0)
    yield made
    machine.control.clear_faults()
    machine.set_current(1)
    made.close()


def view_on(track: Track, ordinal: int, stream: int | None) -> cd.CaiView:
    return cd.view(track.producer(stream), device_id=ordinal)


FACES = STREAM_FACES | HOST_FACES
# What makes no order, or more than that.
MORE_FACES: dict[str, Face] = {
    **FACES,
    "copy": lambda view, stream: view.__dlpack__(stream=stream, copy=True),
    "copy-where-it-is-ready": lambda view, _: view.__dlpack__(stream=view.stream, copy=True),
    "copy-to-the-cpu": lambda view, _: view.__dlpack__(dl_device=(1, 0)),
    "use-stream": lambda _, stream: cd.use_stream(stream),
}


@pytest.mark.parametrize("face", MORE_FACES)
def test_the_callers_context_is_current_again(face: str, second: Track, machine: Machine) -> None:
    view, before = view_on(second, 1, second.a), machine.current()
    MORE_FACES[face](view, second.b)
    assert machine.current() == before == machine.context(0)


@pytest.mark.parametrize("face", MORE_FACES)
def test_a_thread_without_a_context_stays_without_one(face: str, second: Track, machine: Machine) -> None:
    found: list[int] = []

    def work() -> None:
        MORE_FACES[face](view_on(second, 1, second.a), second.b)
        found.append(machine.current())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [0]


@pytest.mark.parametrize(("ready", "requested"), [("a", LEGACY), ("a", PER_THREAD), (LEGACY, "b"), (PER_THREAD, "b")])
def test_default_streams_are_those_of_the_arrays_device(
    ready: Any, requested: Any, second: Track, machine: Machine
) -> None:
    """1 and 2 exist in each context: what waits for device 1 must not be device 0's."""
    ready, requested = {"a": second.a}.get(ready, ready), {"b": second.b}.get(requested, requested)
    machine.control.schedule = "lazy"
    machine.set_current(1)
    second.write(ready, 5)
    machine.set_current(0)
    view_on(second, 1, ready).on(requested)
    machine.set_current(1)
    second.read(requested)
    second.wait(requested)
    assert second.seen() == 5
    second.wait(ready)
    machine.set_current(0)
    machine.control.schedule = "threaded"


def test_a_ready_stream_of_another_device_is_waited_for(track: Track, second: Track, machine: Machine) -> None:
    machine.control.schedule = "lazy"
    machine.set_current(0)
    track.write(track.a, 9)
    machine.clear()
    track.view(track.a).on(second.a)
    assert machine.order() == one_event(track.a, second.a)
    machine.set_current(1)
    size = ctypes.c_size_t(24)
    second._do(
        "cuMemcpyAsync", ctypes.c_uint64(second.copy), ctypes.c_uint64(track.data), size, ctypes.c_void_p(second.a)
    )
    second.wait(second.a)
    assert second.seen() == 9
    machine.set_current(0)


@pytest.mark.parametrize("default", [LEGACY, PER_THREAD])
def test_a_default_stream_that_asks_is_of_the_arrays_device_whatever_is_waited_for(
    default: int, track: Track, second: Track, machine: Machine
) -> None:
    """Memory of device 1, written by a stream of device 0, read on device 1's default stream."""
    machine.control.schedule = "lazy"
    machine.set_current(0)
    size = ctypes.c_size_t(24)
    track.control.store(track.a, track.data, b"\x06" * 24)
    track._do(
        "cuMemcpyAsync", ctypes.c_uint64(second.data), ctypes.c_uint64(track.data), size, ctypes.c_void_p(track.a)
    )
    view_on(second, 1, track.a).on(default)
    machine.set_current(1)
    second.read(default)
    second.wait(default)
    assert second.seen() == 6
    machine.set_current(0)


def calls_of(face: str, view: cd.CaiView, stream: int, machine: Machine) -> list[str]:
    machine.clear()
    FACES[face](view, stream)
    return machine.names()


@pytest.mark.parametrize("face", FACES)
def test_whatever_call_fails_the_callers_context_is_current_again(face: str, second: Track, machine: Machine) -> None:
    """Each call of the order in turn, but for those that put the context back."""
    view, before = view_on(second, 1, second.a), machine.current()
    made = calls_of(face, view, second.b, machine)
    assert made[-1] == "cuCtxPopCurrent" or face == "wait"
    # A wait in a coroutine ends its order by the record, and what follows a question puts mode and context back.
    ends = ("cuStreamWaitEvent", "cuEventRecord") if face == "wait" else ("cuStreamWaitEvent",)
    last = made.index("cuEventQuery") + 1 if face == "wait" else -1
    for at, name in enumerate(made[:last]):
        if name == "cuCtxPopCurrent" and made[at - 1] in ends:
            continue
        if made[at - 1 : at + 1] == ["cuStreamSynchronize", "cuThreadExchangeStreamCaptureMode"]:
            continue  # puts the mode back
        nth = made[: at + 1].count(name)
        machine.control.fault(name, OUT_OF_MEMORY, nth)
        machine.control.clear()
        try:
            FACES[face](view, second.b)
        except cd.DriverError as error:
            assert (error.call, error.code) == (name, OUT_OF_MEMORY)  # noqa: PT017 - whether it raises is asked below
        else:
            raise AssertionError(f"{name}, call {nth}, failed, and nobody said so")
        assert machine.current() == before, name
        assert machine.control.pending_faults() == 0
        assert cd.stats()["open_guards"] == 0
    assert calls_of(face, view, second.b, machine)[-1] == made[-1], "and the next order is made"
    assert machine.current() == before


def test_whatever_call_fails_a_thread_without_a_context_stays_without_one(second: Track, machine: Machine) -> None:
    left: dict[str, int] = {}

    def work() -> None:
        view = view_on(second, 1, second.a)
        for name in dict.fromkeys(calls_of("on", view, second.b, machine)):
            machine.control.fault(name, OUT_OF_MEMORY, 1)
            with pytest.raises(cd.DriverError):
                view.on(second.b)
            left[name] = machine.current()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert left
    assert set(left.values()) == {0}, left
    assert {"cuStreamGetCtx", "cuStreamIsCapturing", "cuEventRecord", "cuStreamWaitEvent"} <= set(left)


def test_a_context_that_cannot_be_put_back_is_reported(second: Track, machine: Machine) -> None:
    """It is tried twice, as the order is made by then."""
    view = view_on(second, 1, second.a)
    machine.control.fault("cuCtxPopCurrent", OUT_OF_MEMORY, 1)
    view.on(second.b)
    assert machine.current() == machine.context(0)
    for nth in (1, 2):
        machine.control.fault("cuCtxPopCurrent", OUT_OF_MEMORY, nth)
    with pytest.raises(cd.DriverError, match="cuCtxPopCurrent"):
        view.on(second.b)
    machine.set_current(0)


def test_memory_that_nobody_knows_is_no_hindrance_to_streams_with_handles(track: Track) -> None:
    view = cd.view(cai(stream=track.a), device_id=0)
    track.machine.clear()
    view.on(track.b)
    assert track.machine.order() == one_event(track.a, track.b)


def cuda_core_on_device_1(track: Track) -> tuple[Any, Any]:
    """A buffer of cuda.core on device 1 and the stream that it is written on, while device 0 is current."""
    device = Device(1)
    device.set_current()
    stream = device.create_stream()
    buffer = device.allocate(24, stream=stream)
    stream.sync()
    Device(0).set_current()
    return buffer, stream


def test_cuda_core_as_a_producer_on_the_second_device(second: Track, machine: Machine) -> None:
    buffer, stream = cuda_core_on_device_1(second)
    machine.control.schedule = "lazy"
    machine.control.store(int(stream.handle), int(buffer.handle), b"\x0b" * 24)
    view = cd.view(buffer, producer_stream=stream)
    assert view.device == (2, 1)
    machine.clear()
    with view.consume(second.b):
        assert machine.order() == one_event(int(stream.handle), second.b)
        own, second.data = second.data, int(buffer.handle)
        second.read(second.b)
        second.data = own
    machine.control.store(int(stream.handle), int(buffer.handle), bytes(24))
    second.wait(second.b)
    assert second.seen() == 0x0B
    assert machine.current() == machine.context(0)
    stream.sync()
    machine.control.schedule = "threaded"


def test_cuda_core_as_a_consumer_of_the_second_devices_memory(second: Track, machine: Machine) -> None:
    """By DLPack the event is ours, and it is made where it has to be. By the interface it is cuda.core's."""
    view = view_on(second, 1, second.a)
    machine.clear()
    seen = StridedMemoryView.from_dlpack(view, stream_ptr=second.b)
    assert (seen.device_id, seen.ptr) == (1, second.data)
    assert machine.order() == one_event(second.a, second.b)
    with pytest.raises(CUDAError):
        StridedMemoryView.from_cuda_array_interface(view, stream_ptr=second.b)
    moved = view.on(second.b)
    assert StridedMemoryView.from_cuda_array_interface(moved, stream_ptr=second.b).ptr == second.data


# --- contexts that end ------------------------------------------------------------------------------------

CONTEXTS = """
import ctypes
import cai_dlpack as cd
from cai_conformance import Sim
from conformance.tests.simulated.machine import Machine, one_event
from conformance.tests.streams.race import Track

machine = Machine(Sim())
control, driver = machine.control, machine.driver
machine.set_current(0)
primary = machine.current()

def create():
    made = ctypes.c_void_p()
    assert driver.cuCtxCreate_v2(ctypes.byref(made), 0, 0) == 0
    return made.value

def stream():
    made = ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(made), 1) == 0
    return made.value

def allocate():
    made = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(made), ctypes.c_size_t(24)) == 0
    return made.value

def bench():
    track = Track.__new__(Track)
    track.machine, track.control = machine, control
    track.a, track.b, track.data, track.copy = stream(), stream(), allocate(), allocate()
    return track
"""

REBUILT = """
handles, contexts = set(), set()
for generation in range(6):
    context = create()
    track = bench()
    contexts.add(context)
    handles.update([track.a, track.b])
    old = track.view(track.a)
    for schedule in ("lazy", "threaded"):
        control.schedule = schedule
        for value in range(1, 4):
            track.write(track.a, value)
            machine.clear()
            old.on(track.b)
            assert machine.order() == one_event(track.a, track.b)
            track.read(track.b)
            track.wait(track.b)
            track.wait(track.a)
            assert track.seen() == value
    control.schedule = "threaded"
    assert driver.cuCtxDestroy_v2(ctypes.c_void_p(context)) == 0
    machine.set_current(0)
    try:
        old.on(track.b)
    except cd.DriverError as error:
        assert error.code in (201, 400, 709), error
    else:
        raise AssertionError("a stream of a dead context was waited for")
    assert machine.current() == primary
print(len(contexts), len(handles))
"""


def test_events_are_kept_per_context_and_made_anew_for_the_next_one() -> None:
    done = on_the_simulator(CONTEXTS + REBUILT)
    assert (done.returncode, done.stdout) == (0, "6 12\n"), done.stderr


def test_a_context_with_a_dead_ones_handle_has_events_of_its_own() -> None:
    """Drivers give handles of contexts, streams and events out again."""
    done = on_the_simulator(CONTEXTS + REBUILT, "--reuse")
    contexts, handles = map(int, done.stdout.split()) if done.returncode == 0 else (0, 0)
    assert done.returncode == 0, done.stderr
    assert (contexts, handles) < (6, 12), "no handle was given out twice: the test has shown nothing"


RESET = """
events = []
for generation in range(3):
    machine.set_current(0)
    track = bench()
    track.view(track.a).on(track.b)
    events.append(control.count("cuEventCreate"))
    machine.clear()
    track.view(track.a).on(track.b)
    assert control.count("cuEventCreate") == 0, "kept"
    machine.clear()
    assert driver.cuDevicePrimaryCtxReset_v2(0) == 0
    machine._contexts.clear()
print(events)
"""


@pytest.mark.parametrize("options", [(), ("--reuse",)], ids=["fresh-handles", "reused-handles"])
def test_the_events_of_a_primary_context_end_with_its_reset(options: tuple[str, ...]) -> None:
    done = on_the_simulator(CONTEXTS + RESET, *options)
    assert (done.returncode, done.stdout) == (0, "[1, 1, 1]\n"), done.stderr


def test_a_pool_whose_events_are_dead_is_dropped_and_the_order_made(track: Track) -> None:
    """After a record that fails as for a dead event, and fails again beside a new one, the pool is dropped."""
    view = track.view(track.a)
    view.on(track.b)
    track.machine.clear()
    for nth in (1, 3):
        track.control.fault("cuEventRecord", 400, nth)
    view.on(track.b)
    assert track.machine.names().count("cuEventCreate") == 1
    assert track.machine.order() == [*2 * [("cuEventRecord", track.a)], *one_event(track.a, track.b)]
    track.machine.clear()
    view.on(track.b)
    assert track.machine.names().count("cuEventCreate") == 0


def test_events_are_kept_and_not_made_for_each_order(track: Track) -> None:
    view = track.view(track.a)
    view.on(track.b)
    before = track.control.live().events
    track.machine.clear()
    for _ in range(100):
        view.on(track.b)
    assert track.machine.names().count("cuEventCreate") == 0
    assert track.control.live().events == before


def test_system_memory_is_taken_on_the_callers_word(track: Track) -> None:
    """The driver does not know it, whether the device reaches it (HMM, ATS) or not."""
    array = np.zeros(6, np.float32)
    producer = cai(data=(array.ctypes.data, False), stream=LEGACY)
    with pytest.raises(BufferError, match="pointer-unknown"):
        cd.view(producer)
    with pytest.raises(BufferError, match="pointer-unknown"):
        cd.view(producer, device_id=0, check="bounds")
    view = cd.view(producer, device_id=0)
    assert (view.device, view.ptr) == ((2, 0), array.ctypes.data)
    track.machine.set_current(1)
    track.machine.clear()
    view.on(track.a)
    assert track.machine.order() == one_event(LEGACY, track.a)
    switched = [next(iter(call.arguments.values())) for call in track.control.calls("cuCtxPushCurrent")]
    assert switched == [track.machine.context(0)]
    assert track.machine.current() == track.machine.context(1)
    with pytest.raises(TypeError, match="array-unreadable"):
        memoryview(view)
    track.machine.set_current(0)
