"""cuda-core's pools, buffers and events between processes, unmodified: the calls that its users make, with
multiprocessing and pickle as the way."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.queues import Queue
from typing import Any

import pytest
from cai_conformance import Sim
from cuda.core import Buffer, Device, DeviceMemoryResource, DeviceMemoryResourceOptions

SECONDS = 30
NBYTES = 64
IPC = {"ipc_enabled": True}

Body = Callable[[Device, "Queue[Any]"], object]


def serve(inbox: Queue[Any], outbox: Queue[Any]) -> None:
    """Runs in the other process: answers each body with what it returns, or the class and text of its error."""
    device = Device(0)
    device.set_current()
    while (body := inbox.get()) is not None:
        try:
            outbox.put(body(device, inbox))
        except Exception as error:
            outbox.put((type(error).__name__, str(error)))


class Other:
    """A process that runs bodies with what they are sent."""

    def __init__(self) -> None:
        # cuda-core asks for the default method, and warns of one that CUDA does not support.
        multiprocessing.set_start_method("spawn", force=True)
        self.inbox: Queue[Any] = multiprocessing.Queue()
        self.outbox: Queue[Any] = multiprocessing.Queue()
        self.process = multiprocessing.Process(target=serve, args=(self.inbox, self.outbox))
        self.process.start()

    def __call__(self, body: Body, *things: object) -> Any:
        for thing in (body, *things):
            self.inbox.put(thing)
        return self.outbox.get(timeout=SECONDS)

    def end(self) -> None:
        self.inbox.put(None)
        self.process.join(SECONDS)
        assert self.process.exitcode == 0


@pytest.fixture(scope="module")
def other() -> Iterator[Other]:
    started = Other()
    yield started
    started.end()


@pytest.fixture
def resource(device: Device) -> Iterator[DeviceMemoryResource]:
    made = DeviceMemoryResource(device, options=DeviceMemoryResourceOptions(max_size=1 << 21, ipc_enabled=True))
    yield made
    made.close()


def peek(address: Any, nbytes: int) -> bytes:
    return Sim().peek(int(address), nbytes)


def read_and_answer(device: Device, inbox: Queue[Any]) -> object:
    """Waits for the event on a stream of its own, reads, and writes an answer behind."""
    buffer, event = inbox.get(timeout=SECONDS), inbox.get(timeout=SECONDS)
    stream = device.create_stream()
    stream.wait(event)
    copy = device.allocate(NBYTES, stream=stream)
    buffer.copy_to(copy, stream=stream)
    Sim().store(int(stream.handle), int(buffer.handle), b"answer")
    stream.sync()
    seen = peek(copy.handle, 6)
    facts = buffer.size, buffer.memory_resource.is_mapped, buffer.is_device_accessible, event.is_done
    buffer.close(stream)
    copy.close(stream)
    stream.sync()
    return seen, facts


def test_a_buffer_and_an_event_travel(device: Device, resource: DeviceMemoryResource, sim: Sim, other: Other) -> None:
    stream = device.create_stream()
    buffer = resource.allocate(NBYTES, stream=stream)
    sim.store(int(stream.handle), int(buffer.handle), b"before")
    event = stream.record(options=IPC)
    answer = other(read_and_answer, buffer, event)
    assert answer == (b"before", (NBYTES, True, True, True))
    assert peek(buffer.handle, 6) == b"answer"
    buffer.close(stream)
    stream.sync()


def read_early(device: Device, inbox: Queue[Any]) -> object:
    buffer = inbox.get(timeout=SECONDS)
    stream = device.create_stream()
    copy = device.allocate(NBYTES, stream=stream)
    buffer.copy_to(copy, stream=stream)
    stream.sync()
    return peek(copy.handle, 6)


def test_a_reader_that_does_not_wait_for_the_event_is_too_early(
    device: Device, resource: DeviceMemoryResource, sim: Sim, other: Other
) -> None:
    stream = device.create_stream()
    buffer = resource.allocate(NBYTES, stream=stream)
    stream.sync()
    with sim.gate(int(stream.handle)):
        sim.store(int(stream.handle), int(buffer.handle), b"before")
        assert other(read_early, buffer) == b"\xa5" * 6
    stream.sync()
    buffer.close(stream)
    stream.sync()


def import_twice(device: Device, inbox: Queue[Any]) -> object:
    """The first one is closed while the second one is still used: cuda-core's cache holds the mapping."""
    resource, descriptor = inbox.get(timeout=SECONDS), inbox.get(timeout=SECONDS)
    stream = device.create_stream()
    first = Buffer.from_ipc_descriptor(resource, descriptor, stream=stream)
    second = Buffer.from_ipc_descriptor(resource, descriptor, stream=stream)
    same = int(first.handle) == int(second.handle)
    first.close(stream)
    stream.sync()
    seen = peek(second.handle, 5)
    second.close(stream)
    stream.sync()
    return same, seen


def test_a_descriptor_is_imported_twice(device: Device, resource: DeviceMemoryResource, sim: Sim, other: Other) -> None:
    stream = device.create_stream()
    buffer = resource.allocate(NBYTES, stream=stream)
    sim.store(int(stream.handle), int(buffer.handle), b"twice")
    stream.sync()
    answer = other(import_twice, resource, buffer.ipc_descriptor)
    assert answer == (True, b"twice")
    buffer.close(stream)
    stream.sync()


def import_from_the_wrong_resource(device: Device, inbox: Queue[Any]) -> object:
    resource, descriptor = inbox.get(timeout=SECONDS), inbox.get(timeout=SECONDS)
    Buffer.from_ipc_descriptor(resource, descriptor, stream=device.default_stream)
    return "imported"


def test_a_buffer_of_another_resource_is_refused(device: Device, resource: DeviceMemoryResource, other: Other) -> None:
    options = DeviceMemoryResourceOptions(max_size=1 << 21, ipc_enabled=True)
    second = DeviceMemoryResource(device, options=options)
    buffer = second.allocate(NBYTES, stream=device.default_stream)
    device.default_stream.sync()
    answer = other(import_from_the_wrong_resource, resource, buffer.ipc_descriptor)
    name, text = answer
    assert name == "CUDAError" and "CUDA_ERROR_INVALID_VALUE" in text
    buffer.close(device.default_stream)
    second.close()


def allocate_there(device: Device, inbox: Queue[Any]) -> object:
    inbox.get(timeout=SECONDS).allocate(NBYTES, stream=device.default_stream)
    return "allocated"


def test_an_imported_resource_does_not_allocate(resource: DeviceMemoryResource, other: Other) -> None:
    name, text = other(allocate_there, resource)
    assert (name, text) == ("TypeError", "Cannot allocate from a mapped IPC-enabled memory resource")


def properties(device: Device, inbox: Queue[Any]) -> object:
    event = inbox.get(timeout=SECONDS)
    event.sync()
    return event.is_ipc_enabled, event.is_timing_enabled, event.is_done


def test_what_an_imported_event_is(device: Device, other: Other) -> None:
    event = device.create_stream().record(options=IPC)
    assert other(properties, event) == (True, False, True)


def sum_of(device: Device, inbox: Queue[Any]) -> object:
    buffers = [inbox.get(timeout=SECONDS) for _ in range(8)]
    return sum(peek(buffer.handle, 1)[0] for buffer in buffers)


def test_many_buffers_of_one_resource_travel(
    device: Device, resource: DeviceMemoryResource, sim: Sim, other: Other
) -> None:
    stream = device.create_stream()
    buffers = [resource.allocate(NBYTES, stream=stream) for _ in range(8)]
    for index, buffer in enumerate(buffers):
        sim.store(int(stream.handle), int(buffer.handle), bytes([index]))
    stream.sync()
    assert other(sum_of, *buffers) == sum(range(8))
    for buffer in buffers:
        buffer.close(stream)
    stream.sync()
