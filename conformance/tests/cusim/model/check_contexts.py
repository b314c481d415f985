"""Contexts: primary ones, created ones, stacks, destroy, reset."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from ctypes import byref, c_int, c_uint, c_uint64, c_void_p

import pytest
from cai_conformance import Sim

from conformance.tests.cusim.model.driver import Driver, Refused

INVALID_CONTEXT, INVALID_HANDLE, DESTROYED = 201, 400, 709


@pytest.fixture
def made(cu: Driver) -> Iterator[int]:
    """A created context, current."""
    context = cu.create_context(1)
    yield context
    cu.code("cuCtxDestroy_v2", c_void_p(context))


def test_a_thread_begins_without_a_context(cu: Driver) -> None:
    seen: list[int] = []

    def other() -> None:
        seen.append(cu.current())
        seen.append(cu.code("cuCtxSynchronize"))
        seen.append(cu.code("cuStreamCreate", byref(c_void_p()), c_uint(0)))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [0, INVALID_CONTEXT, INVALID_CONTEXT]


def test_the_stack_of_contexts(cu: Driver, made: int) -> None:
    assert cu.current() == made
    first = cu.retain(0)
    cu("cuCtxPushCurrent_v2", c_void_p(first))
    assert cu.current() == first
    assert cu.pop() == first and cu.current() == made
    cu.set_current(first)
    assert cu.current() == first, "set replaces the top"
    cu.set_current(made)
    cu("cuDevicePrimaryCtxRelease_v2", 0)
    assert cu.pop() == made and cu.pop() == first
    assert cu.code("cuCtxPopCurrent_v2", byref(c_void_p())) == INVALID_CONTEXT
    cu.set_current(first)


def test_a_destroyed_context_is_told_to_the_threads_that_have_it(cu: Driver, made: int) -> None:
    stream, event, memory = cu.stream(), cu.event(), cu.alloc(8)
    seen: list[int] = []
    ready, go = threading.Event(), threading.Event()

    def other() -> None:
        cu.set_current(made)
        ready.set()
        go.wait()
        seen.append(cu.code("cuCtxSynchronize"))
        seen.append(cu.code("cuStreamSynchronize", c_void_p(0)))

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()
    cu("cuCtxDestroy_v2", c_void_p(made))
    go.set()
    thread.join()
    assert seen == [DESTROYED, DESTROYED]
    assert cu.current() != made, "popped from the thread that destroyed it"
    assert cu.code("cuStreamSynchronize", c_void_p(stream)) == INVALID_CONTEXT
    assert cu.code("cuEventQuery", c_void_p(event)) == DESTROYED
    with pytest.raises(Refused):
        cu.read(memory, 8)
    assert cu.code("cuCtxGetId", c_void_p(made), byref(c_uint64())) == DESTROYED


def test_a_destroyed_context_may_be_made_current_and_is_good_for_nothing(cu: Driver, made: int) -> None:
    first = cu.retain(0)
    cu("cuDevicePrimaryCtxRelease_v2", 0)
    cu("cuCtxDestroy_v2", c_void_p(made))
    cu.set_current(made)
    assert cu.current() == made
    assert cu.code("cuCtxSynchronize") == DESTROYED
    assert cu.code("cuStreamCreate", byref(c_void_p()), c_uint(0)) == DESTROYED
    cu.set_current(first)
    assert cu.code("cuCtxSetCurrent", c_void_p(0x12340)) == INVALID_CONTEXT, "never was one"
    assert cu.current() == first


def test_a_destroyed_event_is_told_from_a_number_that_never_was_one(cu: Driver) -> None:
    event, stream = cu.event(), cu.stream()
    cu.destroy_event(event)
    assert cu.code("cuEventRecord", c_void_p(event), c_void_p(stream)) == DESTROYED
    assert cu.code("cuEventDestroy_v2", c_void_p(event)) == DESTROYED
    assert cu.code("cuEventRecord", c_void_p(0x12340), c_void_p(stream)) == INVALID_HANDLE
    cu.destroy_stream(stream)


def test_destroying_a_context_drops_its_pending_work(cu: Driver, made: int, sim: Sim) -> None:
    stream = cu.stream()
    gate = sim.gate(stream)
    cu("cuCtxDestroy_v2", c_void_p(made))
    cu.synchronize()
    gate.open()
    assert sim.pending() == 0


def active(cu: Driver, device: int) -> int:
    """Returns whether the device's primary context is active."""
    flags, answer = c_uint(), c_int()
    cu("cuDevicePrimaryCtxGetState", device, byref(flags), byref(answer))
    return answer.value


def test_a_primary_context_is_counted_and_comes_back_as_another_one(cu: Driver) -> None:
    context = cu.retain(1)
    first_id = cu.context_id(context)
    assert cu.retain(1) == context and active(cu, 1) == 1
    with cu.on(context):
        stream = cu.stream()
    cu("cuDevicePrimaryCtxReset_v2", 1)
    assert active(cu, 1) == 0
    with cu.on(cu.retain(1)):
        assert cu.current() == context and cu.context_id(context) != first_id
        assert cu.code("cuStreamSynchronize", c_void_p(stream)) == INVALID_HANDLE


def test_a_primary_context_cannot_be_destroyed_or_released_too_often(cu: Driver) -> None:
    context = cu.retain(0)
    cu("cuDevicePrimaryCtxRelease_v2", 0)
    assert cu.code("cuCtxDestroy_v2", c_void_p(context)) == INVALID_CONTEXT
    while cu.code("cuDevicePrimaryCtxRelease_v2", 1) == 0:
        pass
    assert active(cu, 1) == 0
    assert cu.code("cuDevicePrimaryCtxRelease_v2", 1) == INVALID_CONTEXT
    cu.retain(1)


def test_devices_say_that_they_are_simulated(cu: Driver, sim: Sim) -> None:
    name = ctypes.create_string_buffer(64)
    cu("cuDeviceGetName", name, 64, 0)
    assert b"simulated" in name.value
    assert cu.code("cuDeviceGetName", name, 64, sim.get("devices")) == 101


def test_a_sticky_error_stays_with_its_context(cu: Driver, made: int, sim: Sim) -> None:
    sim.poison(719)
    assert cu.code("cuCtxSynchronize") == 719
    assert cu.code("cuStreamCreate", byref(c_void_p()), c_uint(0)) == 719
    with cu.on(cu.retain(0)):
        cu.synchronize()
    cu("cuDevicePrimaryCtxRelease_v2", 0)
    cu("cuCtxDestroy_v2", c_void_p(made))


def test_a_handle_that_never_was_is_refused(cu: Driver) -> None:
    for call in ("cuStreamSynchronize", "cuStreamDestroy_v2", "cuEventQuery", "cuEventDestroy_v2"):
        assert cu.code(call, c_void_p(0x12340)) == INVALID_HANDLE
