"""cuda-core's Device, Stream, Event, Buffer and StridedMemoryView, unmodified."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from cai_conformance import Sim
from cuda.bindings import driver as cuda
from cuda.core import Buffer, Device, EventOptions, LegacyPinnedMemoryResource, StreamOptions
from cuda.core.utils import StridedMemoryView


class Interface:
    """A producer that speaks the CUDA Array Interface and nothing else."""

    def __init__(self, pointer: int, count: int, stream: int | None) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": "|u1",
            "data": (pointer, False),
            "strides": None,
            "stream": stream,
            "version": 3,
        }


def number(stream: Any) -> int:
    return int(stream.handle)


def done(answer: Any) -> Any:
    assert answer[0] == cuda.CUresult.CUDA_SUCCESS, answer[0]
    return answer[1] if len(answer) > 1 else None


# --- Device ---


def test_devices_are_found_and_say_what_they_are(sim: Sim) -> None:
    devices = Device.get_all_devices()
    assert len(devices) == sim.get("devices")
    assert "simulated" in devices[0].name and devices[1].device_id == 1
    assert devices[0].uuid != devices[1].uuid
    assert devices[0].compute_capability.major == 9
    assert devices[0].properties.unified_addressing and devices[0].properties.memory_pools_supported


def test_the_current_device_is_a_matter_of_its_context(device: Device) -> None:
    other = Device(1)
    other.set_current()
    assert Device().device_id == 1
    device.set_current()
    assert Device().device_id == 0 and device.context is not None


# --- Stream ---


def test_a_stream_has_its_options(device: Device) -> None:
    stream = device.create_stream(options=StreamOptions(nonblocking=True, priority=-1))
    assert stream.is_nonblocking and stream.priority == -1
    assert stream.device.device_id == 0 and stream.context == device.context
    stream.sync()
    stream.close()


def test_default_streams(device: Device) -> None:
    device.default_stream.sync()
    assert number(device.default_stream) in (0, 1, 2)


def test_a_stream_waits_for_a_stream(device: Device, sim: Sim) -> None:
    first, second = device.create_stream(), device.create_stream()
    gate = sim.gate(number(first))
    sim.clear()
    second.wait(first)
    assert [call.stream for call in sim.calls("cuEventRecord", "cuStreamWaitEvent")] == [number(first), number(second)]
    assert done_code(second) == 600
    gate.open()
    second.sync()
    first.close()
    second.close()


def done_code(stream: Any) -> int:
    return int(cuda.cuStreamQuery(stream.handle)[0])


# --- Event ---


def test_events_are_recorded_and_timed(device: Device, sim: Sim) -> None:
    stream = device.create_stream()
    timing = (
        device.create_event(EventOptions(timing_enabled=True)),
        device.create_event(EventOptions(timing_enabled=True)),
    )
    stream.record(timing[0])
    gate = sim.gate(number(stream))
    stream.record(timing[1])
    assert not timing[1].is_done
    gate.open()
    timing[1].sync()
    assert timing[1].is_done and timing[1] - timing[0] >= 0
    assert timing[0].device.device_id == 0
    stream.close()


def test_an_event_without_timing_refuses_to_tell(device: Device) -> None:
    stream = device.create_stream()
    first, second = stream.record(), stream.record()
    second.sync()
    with pytest.raises(RuntimeError):
        _ = second - first
    stream.close()


# --- Buffer ---


def test_a_buffer_is_allocated_in_stream_order(device: Device, sim: Sim) -> None:
    before, stream = sim.live().allocations, device.create_stream()
    buffer = device.allocate(256, stream=stream)
    assert (buffer.size, buffer.device_id) == (256, 0)
    assert buffer.is_device_accessible and not buffer.is_host_accessible
    buffer.close(stream)
    stream.sync()
    assert sim.live().allocations == before
    stream.close()


def test_buffers_are_copied_and_filled(device: Device, sim: Sim) -> None:
    stream = device.create_stream()
    source, target = device.allocate(16, stream=stream), device.allocate(16, stream=stream)
    source.fill(7, stream=stream)
    target.copy_from(source, stream=stream)
    stream.sync()
    assert sim.peek(int(target.handle), 16) == b"\x07" * 16
    source.close(stream)
    target.close(stream)
    stream.sync()
    stream.close()


def test_pinned_memory_is_readable_by_both_sides(device: Device) -> None:
    stream = device.create_stream()
    pinned = LegacyPinnedMemoryResource().allocate(8, stream=stream)
    assert pinned.is_host_accessible and pinned.is_device_accessible
    ctypes.memset(int(pinned.handle), 3, 8)
    host = np.from_dlpack(pinned)
    assert host.view(np.uint8).tolist() == [3] * 8
    pinned.close(stream)
    stream.close()


def test_a_foreign_pointer_is_looked_up(device: Device, sim: Sim) -> None:
    memory = int(done(cuda.cuMemAlloc(64)))
    sim.clear()
    buffer = Buffer.from_handle(memory, 64, owner=object())
    assert (buffer.device_id, buffer.is_host_accessible) == (0, False)
    assert sim.count("cuPointerGetAttributes") + sim.count("cuPointerGetAttribute") > 0
    buffer.close()
    done(cuda.cuMemFree(memory))


def test_memory_of_the_other_device_is_told_apart(device: Device) -> None:
    other = Device(1)
    other.set_current()
    stream = other.create_stream()
    buffer = other.allocate(8, stream=stream)
    assert buffer.device_id == 1
    buffer.close(stream)
    stream.sync()
    stream.close()
    device.set_current()


# --- StridedMemoryView ---


@pytest.fixture
def memory(device: Device) -> Any:
    address = int(done(cuda.cuMemAlloc(8)))
    yield address
    done(cuda.cuCtxSynchronize())
    done(cuda.cuMemFree(address))


def view(producer: Any, stream: int) -> Any:
    return StridedMemoryView.from_cuda_array_interface(producer, stream_ptr=stream)


def test_a_different_stream_costs_one_record_and_one_wait(device: Device, memory: int, sim: Sim) -> None:
    producer, consumer = device.create_stream(), device.create_stream()
    gate = sim.gate(number(producer))
    sim.clear()
    seen = view(Interface(memory, 8, number(producer)), number(consumer))
    calls = [call.name for call in sim.calls()]
    assert seen.ptr == memory and seen.device_id == 0
    ordering = ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuEventDestroy"]
    assert [name for name in calls if name in ordering] == ordering
    assert done_code(consumer) == 600
    gate.open()
    consumer.sync()
    producer.close()
    consumer.close()


@pytest.mark.parametrize("stream", ["none", "same", "minus one"])
def test_no_order_is_made_where_none_is_needed(device: Device, memory: int, sim: Sim, stream: str) -> None:
    producer = device.create_stream()
    declared = None if stream == "none" else number(producer)
    asked = -1 if stream == "minus one" else number(producer)
    with sim.no_calls("cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuStreamSynchronize"):
        view(Interface(memory, 8, declared), asked)
    producer.close()


@pytest.mark.parametrize("waits", [True, False], ids=["with the wait", "without"])
def test_the_wait_is_what_makes_the_data_right(device: Device, memory: int, sim: Sim, waits: bool) -> None:
    producer, consumer = device.create_stream(), device.create_stream()
    sim.poke(memory, b"old data")
    target = int(done(cuda.cuMemHostAlloc(8, 0)))
    gate = sim.gate(number(producer))
    sim.store(number(producer), memory, b"new data")
    seen = view(Interface(memory, 8, number(producer)), number(consumer) if waits else -1)
    done(cuda.cuMemcpyDtoHAsync(target, seen.ptr, 8, consumer.handle))
    if waits:
        gate.open()
    consumer.sync()
    assert ctypes.string_at(target, 8) == (b"new data" if waits else b"old data")
    gate.open()
    producer.sync()
    done(cuda.cuMemFreeHost(target))
    producer.close()
    consumer.close()


def test_a_buffer_goes_through_dlpack(device: Device) -> None:
    stream = device.create_stream()
    buffer = device.allocate(32, stream=stream)
    seen = StridedMemoryView.from_dlpack(buffer, stream_ptr=number(stream))
    assert seen.ptr == int(buffer.handle) and seen.is_device_accessible and seen.device_id == 0
    del seen
    buffer.close(stream)
    stream.sync()
    stream.close()
