"""Two contexts on one device: the device's number does not tell whose default streams are meant."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import cai_dlpack as cd
import pytest

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.simulated.machine import Machine, one_event
from conformance.tests.streams.race import LEGACY, NBYTES, PER_THREAD, Track

SCHEDULES = ["threaded", "lazy"]


@pytest.fixture
def second(track: Track, machine: Machine) -> Iterator[tuple[int, int]]:
    """A context of its own on device 0, with device memory; the primary context is current."""
    context, memory = machine.create_context(), ctypes.c_uint64()
    machine.enter(context)
    machine._call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(NBYTES))
    machine.set_current(0)
    yield context, memory.value
    track.control.open_gates()
    machine.enter(context)
    machine.free(memory.value)
    machine.set_current(0)
    machine.destroy_context(context)


def view(address: int, stream: int, named: int | None) -> cd.CaiView:
    return cd.view(Cai(interface(data=(address, False), stream=stream)), device_id=named)


@pytest.mark.parametrize("named", [0, None], ids=["device-0", "asked"])
@pytest.mark.parametrize("default", [LEGACY, PER_THREAD])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_join_waits_for_the_default_stream_of_each(
    schedule: str, default: int, named: int | None, second: tuple[int, int], track: Track, machine: Machine
) -> None:
    context, memory = second
    machine.write(memory, bytes(NBYTES))
    track.control.schedule = schedule
    machine.enter(context)
    with track.control.gate(default):
        track.control.store(default, memory, b"\x05" * NBYTES)
        machine.set_current(0)
        joined = cd.join([view(track.data, default, named), view(memory, default, named)], on=track.b)
        size = ctypes.c_size_t(NBYTES)
        track._do("cuMemcpyAsync", ctypes.c_uint64(track.copy), ctypes.c_uint64(memory), size, ctypes.c_void_p(track.b))
    track.wait(track.b)
    assert track.seen() == 5
    assert [each.stream for each in joined] == [track.b] * 2
    machine.enter(context)
    track.wait(default)
    machine.set_current(0)


@pytest.mark.parametrize("named", [0, None], ids=["device-0", "asked"])
def test_arrays_of_one_context_are_waited_for_once(named: int | None, track: Track) -> None:
    track.machine.clear()
    cd.join([view(address, LEGACY, named) for address in (track.data, track.copy, track.data)], on=track.a)
    assert track.machine.order() == one_event(LEGACY, track.a)


@pytest.mark.parametrize("default", [LEGACY, PER_THREAD])
@pytest.mark.parametrize("ready", ["handle", "default"])
def test_a_join_on_a_default_stream_of_both_is_refused(
    ready: str, default: int, second: tuple[int, int], track: Track, machine: Machine
) -> None:
    stream = default if ready == "default" else track.a
    views = [view(address, stream, 0) for address in (track.data, second[1])]
    machine.clear()
    check_refusal(refuse(lambda: cd.join(views, on=default), BufferError), "stream-context", None)
    assert machine.order() == []
    assert machine.current() == machine.context(0)


# --- memory that every context reaches, under the device's name -------------------------------------------


@pytest.fixture(params=["pinned", "managed"])
def shared(request: pytest.FixtureRequest, machine: Machine) -> int:
    """Memory that was allocated under device 0."""
    allocate: Any = {"pinned": machine.pinned_memory, "managed": machine.managed_memory}[request.param]
    return int(allocate(NBYTES))


@pytest.mark.parametrize("default", [LEGACY, PER_THREAD])
def test_another_contexts_stream_is_not_presented_as_the_devices(
    default: int, shared: int, track: Track, machine: Machine
) -> None:
    """Under device 0's name the number would mean device 0's own stream, on which nothing is pending."""
    machine.set_current(1)
    there = view(shared, default, None)
    check_refusal(refuse(lambda: there.present_as("cuda"), BufferError), "stream-context", None, hint="v.on(stream)")
    moved = there.on(track.b).present_as("cuda")
    assert (moved.device, moved.stream) == ((2, 0), track.b)
    machine.set_current(0)


@pytest.mark.parametrize("default", [LEGACY, PER_THREAD])
def test_a_loan_of_it_comes_back_to_the_other_context(
    default: int, shared: int, track: Track, machine: Machine
) -> None:
    """The producer's stream has the consumer's number, and is another one."""
    machine.set_current(1)
    presented = view(shared, default, None).on(track.b).present_as("cuda")
    machine.set_current(0)
    with presented.consume(default) as lent:
        assert lent.return_edge == "event"
        machine.clear()
    assert machine.order() == one_event(default, default)


@pytest.mark.parametrize("default", [LEGACY, PER_THREAD])
def test_the_memorys_own_context_is_presented(default: int, shared: int, track: Track, machine: Machine) -> None:
    presented = view(shared, default, None).present_as("cuda")
    machine.clear_own()
    with presented.consume(default) as lent:
        assert lent.return_edge == "same-stream"
    assert presented.to_cai()["stream"] == default
    assert machine.calls() == []
    presented.on(track.b)
    assert machine.order() == one_event(default, track.b)
