"""The return edge goes to the stream on which the producer works when it is made, on every route that makes one."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator

import cai_dlpack as cd
import pytest
from cai_conformance import abi

from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.moved_producers import COPIES, LOANS, ROUTES, Moving, Use
from conformance.tests.streams.race import NBYTES, Track

SCHEDULES = ["lazy", "threaded"]
# When the producer goes to its other stream: before the view is used at all, or as late as a route allows.
WHEN = ["at-once", "late"]
# Which return no edge.
WITHOUT_A_BLOCK = {*COPIES, "never-left"} - {"copy-in-a-loan"}


@pytest.fixture
def streams(track: Track, machine: Machine) -> Iterator[tuple[int, int, int]]:
    """The stream to which the producer goes, the consumer's, and another one of the consumer's."""
    made = machine.stream(), machine.stream(), machine.stream()
    machine.set_current(0)
    yield made
    track.control.open_gates()
    track.control.schedule = "threaded"
    for stream in made:
        machine.destroy_stream(stream)


def use_of(track: Track, moving: Moving, to: int, consumer: int, between: int) -> Use:
    def read(address: int) -> None:
        arguments = ctypes.c_uint64(track.copy), ctypes.c_uint64(address), ctypes.c_size_t(NBYTES)
        track._do("cuMemcpyAsync", *arguments, ctypes.c_void_p(consumer))

    return Use(consumer, between, lambda: moving.go(to), read)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("name", ROUTES)
def test_what_a_moved_producer_writes_next_waits(
    name: str, when: str, schedule: str, track: Track, streams: tuple[int, int, int]
) -> None:
    to, consumer, between = streams
    track.control.schedule = schedule
    track.machine.write(track.data, b"\1" * NBYTES)
    moving = Moving.of(track.data, (abi.CUDA, 0), track.a)
    view = cd.view(moving.array)
    use = use_of(track, moving, to, consumer, between)
    if when == "at-once":
        use.move()
    with track.control.gate(consumer):
        edge = ROUTES[name](view, use)
        track.write(to, 2)
        if schedule == "threaded":
            time.sleep(0.005)  # for a write that does not wait
    track.wait(to)
    track.wait(consumer)
    assert track.seen() == 1
    assert edge == (None if name in WITHOUT_A_BLOCK else "event")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ROUTES)
def test_what_is_enqueued_on_the_stream_of_the_import_waits_too(
    name: str, schedule: str, track: Track, streams: tuple[int, int, int]
) -> None:
    """In its order the producer's memory is used anew."""
    to, consumer, between = streams
    track.control.schedule = schedule
    track.machine.write(track.data, b"\1" * NBYTES)
    moving = Moving.of(track.data, (abi.CUDA, 0), track.a)
    view = cd.view(moving.array)
    with track.control.gate(consumer):
        ROUTES[name](view, use_of(track, moving, to, consumer, between))
        track.write(track.a, 2)
    track.wait(track.a)
    track.wait(consumer)
    assert track.seen() == 1


@pytest.mark.parametrize("name", ["consume", "consume-async"])
def test_a_consumer_on_the_stream_of_the_import_is_told_of_the_edge(
    name: str, track: Track, streams: tuple[int, int, int]
) -> None:
    to, _, between = streams
    moving = Moving.of(track.data, (abi.CUDA, 0), track.a)
    view = cd.view(moving.array)
    assert LOANS[name](view, use_of(track, moving, track.a, track.a, between)) == "same-stream"
    track.machine.clear()
    assert LOANS[name](view, use_of(track, moving, to, track.a, between)) == "event"
    assert track.machine.order() == [("cuEventRecord", track.a), ("cuStreamWaitEvent", to)]
    assert (view.stream, view.producer_stream) == (track.a, to)


def test_a_consumer_that_the_producer_joins(track: Track, streams: tuple[int, int, int]) -> None:
    """The stream of the import waits; its own needs no edge."""
    _, consumer, between = streams
    moving = Moving.of(track.data, (abi.CUDA, 0), track.a)
    view = cd.view(moving.array).on(between)
    track.machine.clear()
    assert LOANS["consume"](view, use_of(track, moving, consumer, consumer, between)) == "event"
    back = [("cuEventRecord", consumer), ("cuStreamWaitEvent", track.a)]
    assert track.machine.order()[-2:] == back
    assert len(track.machine.order()) == 4  # forward, and back


def test_a_named_stream_is_not_asked_about(track: Track, streams: tuple[int, int, int]) -> None:
    to, consumer, between = streams
    moving = Moving.of(track.data, (abi.CUDA, 0), track.a)
    for array in (moving.array, cd.view(moving.array)):
        view = cd.view(array, producer_stream=track.b)
        moving.producer.asked.clear()
        moving.go(to)
        track.machine.clear()
        LOANS["consume"](view, use_of(track, moving, to, consumer, between))
        assert moving.producer.asked == []
        assert track.machine.order()[-1] == ("cuStreamWaitEvent", track.b)


def test_no_edge_asks_nobody(track: Track) -> None:
    """Only what makes an edge pays for the question."""
    moving = Moving.of(track.data, (abi.CUDA, 0), track.a)
    view = cd.view(moving.array)
    moved = view.on(track.b)
    moving.producer.asked.clear()
    moved.__dlpack__(stream=track.b, max_version=(1, 3))
    moved.to_cai()
    assert moving.producer.asked == []


def test_the_producer_is_asked_about_its_own_device(track: Track) -> None:
    """Under another name too."""
    address = track.machine.managed_memory(NBYTES)
    moving = Moving.of(address, (abi.CUDA_MANAGED, 0), track.a)
    view = cd.view(moving.array).present_as("cuda")
    moving.producer.asked.clear()
    with view.consume(track.b):
        pass
    assert set(moving.producer.asked) == {(abi.CUDA_MANAGED, 0)}
    track.machine.free(address)
