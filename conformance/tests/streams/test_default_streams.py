"""The default streams, 1 and 2: a number that means another stream in each context and on each thread."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import cai_dlpack as cd
import numba.cuda
import pytest
from cai_conformance import abi
from cai_dlpack import _core

from conformance.tests.doubles.producers import Cai, Dlpack, interface
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.simulated.machine import Machine, one_event
from conformance.tests.streams.race import LEGACY, NBYTES, PER_THREAD, Track

SCHEDULES = ["lazy", "threaded"]


def elsewhere(work: Callable[[], Any]) -> Any:
    """Returns what `work` returns, or the exception that it raises, on another thread."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


# --- the dict on another thread ---------------------------------------------------------------------------


def test_the_dict_of_another_threads_stream_is_refused(track: Track) -> None:
    """`'stream': 2` would mean the reader's own stream, on which nothing is pending."""
    view = track.view(PER_THREAD)
    assert view.__cuda_array_interface__["stream"] == PER_THREAD
    absent = elsewhere(lambda: view.__cuda_array_interface__)
    assert isinstance(absent, AttributeError)
    assert "[stream-thread]" in str(absent)
    refused = elsewhere(view.to_cai)
    assert isinstance(refused, cd.BufferRefusal) and refused.rule == "stream-thread"
    assert not elsewhere(lambda: hasattr(view, "__cuda_array_interface__"))


@pytest.mark.parametrize("to", [row["name"] for row in _core._partners() if row["calls"]])
@pytest.mark.parametrize("memory", ["device_memory", "pinned_memory", "managed_memory"])
def test_explain_refuses_it_whatever_stream_the_consumer_names(memory: str, to: str, machine: Machine) -> None:
    """Also where the caller has not named it: what refuses every stream refuses that one."""
    data = (getattr(machine, memory)(64), False)

    def imported() -> cd.CaiView:
        machine.set_current(0)
        return cd.view(Cai(interface(data=data, stream=PER_THREAD)))

    view = elsewhere(imported)
    named = cd.explain(view, to=to, stream=LEGACY)
    found = cd.explain(view, to=to)
    assert (found.refused is None) == (named.refused is None)
    assert (found.launch is None) == (named.launch is None)
    if found.launch is not None and named.launch is not None:
        assert (found.launch.refused is None) == (named.launch.refused is None)
    if found.refused is not None:
        assert "[stream-thread]" in found.refused or found.refused == named.refused


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_numba_on_another_thread_does_not_read_too_early(schedule: str, track: Track, machine: Machine) -> None:
    """It refuses the view; of a view that was moved to a handle it reads what was written."""
    track.control.schedule = schedule
    view, seen = track.view(PER_THREAD), []

    def read(view: cd.CaiView) -> None:
        machine.set_current(0)
        numba.cuda.as_cuda_array(view)
        seen.append(machine.read(track.data, 1))

    with track.control.gate(PER_THREAD):
        track.write(PER_THREAD, 7)
        assert isinstance(elsewhere(lambda: read(view)), (TypeError, AttributeError, BufferError))
        moved = view.on(track.a)
    elsewhere(lambda: read(moved))
    assert seen == [b"\x07"]
    track.wait(PER_THREAD)


# --- memory without a context of its own -----------------------------------------------------------------


@pytest.fixture(params=["pinned", "managed"])
def foreign(request: pytest.FixtureRequest, machine: Machine) -> Iterator[Track]:
    """The track on device 1, which is current, with its data allocated under device 0."""
    made = Track(machine, ordinal=1)
    own, memory = made.data, {"pinned": machine.pinned_memory, "managed": machine.managed_memory}
    made.data = memory[request.param](NBYTES)
    machine.set_current(1)
    yield made
    made.control.open_gates()
    made.control.schedule = "threaded"
    machine.set_current(1)
    made.data = own
    made.close()


def raced(track: Track, schedule: str, writer: tuple[int, int], reader: tuple[int, int], order: Any) -> int:
    """Writes on one (device, stream) and copies on another, with `order` between; returns what was copied."""
    machine = track.machine
    machine.write(track.data, bytes(NBYTES))
    track.control.schedule = schedule
    machine.set_current(writer[0])
    gate = track.control.gate(writer[1])
    with gate:
        track.write(writer[1], 5)
        kept = order()
        machine.set_current(reader[0])
        track.read(reader[1])
        if schedule == "threaded":
            time.sleep(0.002)  # for a copy that does not wait
    track.wait(reader[1])
    machine.set_current(writer[0])
    track.wait(writer[1])
    del kept
    return track.seen()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("default", [LEGACY, PER_THREAD])
def test_the_ready_stream_is_of_the_context_at_the_import(default: int, schedule: str, foreign: Track) -> None:
    def order() -> Any:
        view = foreign.view_of_any(default)
        foreign.machine.set_current(0)  # what is current later does not matter
        return view.on(foreign.b)

    assert raced(foreign, schedule, (1, default), (1, foreign.b), order) == 5


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("default", [LEGACY, PER_THREAD])
def test_the_consumers_stream_is_of_the_current_context(default: int, schedule: str, foreign: Track) -> None:
    def order() -> Any:
        return foreign.view_of_any(foreign.a).on(default)

    assert raced(foreign, schedule, (1, foreign.a), (1, default), order) == 5


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("default", [LEGACY, PER_THREAD])
def test_one_number_in_two_contexts_is_two_streams(default: int, schedule: str, foreign: Track) -> None:
    def order() -> Any:
        view = foreign.view_of_any(default)
        foreign.machine.set_current(0)
        foreign.machine.clear()
        capsule = view.__dlpack__(stream=default, max_version=(1, 3))
        assert foreign.machine.order() == one_event(default, default)
        return capsule

    assert raced(foreign, schedule, (1, default), (0, default), order) == 5


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("default", [LEGACY, PER_THREAD])
def test_the_policy_host_waits_for_the_stream_of_the_ready_context(default: int, schedule: str, foreign: Track) -> None:
    """The host waits for the number that the data is ready on, where the consumer's means another stream."""
    machine = foreign.machine
    machine.write(foreign.data, bytes(NBYTES))
    foreign.control.schedule = schedule
    view = foreign.view_of_any(default)
    foreign.control.delay(default, 0.02)
    foreign.write(default, 5)
    machine.set_current(0)
    with cd.policy(sync="host"):
        view.__dlpack__(stream=default, max_version=(1, 3))
    assert machine.read(foreign.data, NBYTES) == bytes([5]) * NBYTES
    machine.set_current(1)
    foreign.wait(default)


@pytest.mark.parametrize("default", [LEGACY, PER_THREAD])
def test_one_number_in_one_context_is_one_stream(default: int, foreign: Track) -> None:
    view = foreign.view_of_any(default)
    foreign.machine.clear()
    view.__dlpack__(stream=default, max_version=(1, 3))
    assert foreign.machine.names() == ["cuCtxGetCurrent"]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("default", [LEGACY, PER_THREAD])
def test_the_return_edge_goes_to_the_context_at_the_import(default: int, schedule: str, foreign: Track) -> None:
    machine = foreign.machine
    machine.write(foreign.data, b"\x01" * NBYTES)
    foreign.control.schedule = schedule
    view = foreign.view_of_any(default)
    machine.set_current(0)
    with foreign.control.gate(foreign.b):
        with view.consume(foreign.b):
            foreign.read(foreign.b)
        machine.set_current(1)
        foreign.write(default, 2)
        if schedule == "threaded":
            time.sleep(0.002)
    foreign.wait(default)
    foreign.wait(foreign.b)
    assert foreign.seen() == 1


# --- the same memory, named as that of a device -----------------------------------------------------------


# The names under which the memory, allocated under device 0, is that of device 1 or of its own.
NAMES: dict[str, tuple[int, Callable[[Track, int], cd.CaiView]]] = {
    "device-id": (1, lambda track, ready: cd.view(track.producer(ready), device_id=1)),
    "dlpack": (1, lambda track, ready: cd.view(called(track, 1), producer_stream=ready)),
    "device-id-its-own": (0, lambda track, ready: cd.view(track.producer(ready), device_id=0)),
    "dlpack-its-own": (0, lambda track, ready: cd.view(called(track, 0), producer_stream=ready)),
}


def called(track: Track, device: int) -> Dlpack:
    """The memory, as a library exports it that calls it its device's."""
    return Dlpack(abi.make(device=(abi.CUDA, device), data=track.data))


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("default", [LEGACY, PER_THREAD])
def test_a_default_stream_is_of_the_device_that_the_view_names(
    default: int, schedule: str, name: str, current: int, foreign: Track
) -> None:
    """As the ready stream, as the consumer's, and as the one that a return edge goes to."""
    machine, (device, make) = foreign.machine, NAMES[name]

    def ready() -> Any:
        machine.set_current(current)
        return make(foreign, default).on(foreign.b)

    def consumed() -> Any:
        machine.set_current(current)
        return make(foreign, foreign.a).on(default)

    assert raced(foreign, schedule, (device, default), (1, foreign.b), ready) == 5
    assert raced(foreign, schedule, (1, foreign.a), (device, default), consumed) == 5
    machine.write(foreign.data, b"\x01" * NBYTES)
    view = make(foreign, default)
    with foreign.control.gate(foreign.b):
        with view.consume(foreign.b):
            foreign.read(foreign.b)
        machine.set_current(device)
        foreign.write(default, 2)
        if schedule == "threaded":
            time.sleep(0.002)
    foreign.wait(default)
    foreign.wait(foreign.b)
    assert foreign.seen() == 1


@pytest.mark.parametrize("device", [0, 1])
def test_a_copy_of_named_memory_is_of_that_device(device: int, foreign: Track) -> None:
    machine = foreign.machine
    tensor = abi.consume(cd.view(foreign.producer(None), device_id=device).__dlpack__(stream=LEGACY, copy=True))
    found = ctypes.c_int()
    machine._call("cuPointerGetAttribute", ctypes.byref(found), 9, ctypes.c_uint64(tensor.data))
    assert (found.value, tensor.device) == (device, (abi.CUDA, device))
    abi.release(tensor)


def test_present_as_names_the_device_of_the_allocation(foreign: Track) -> None:
    assert foreign.view_of_any(foreign.a).present_as("cuda").device == (abi.CUDA, 0)


# --- loans -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_block_on_a_default_stream_ends_where_it_began(schedule: str, foreign: Track) -> None:
    """The consumer's default stream is that of the context that was current when the block was entered."""
    machine = foreign.machine
    machine.write(foreign.data, b"\x01" * NBYTES)
    foreign.control.schedule = schedule
    view = foreign.view_of_any(foreign.a)
    gate = foreign.control.gate(LEGACY)
    with gate:
        with view.consume(LEGACY):
            foreign.read(LEGACY)
            machine.set_current(0)
        foreign.write(foreign.a, 2)
        if schedule == "threaded":
            time.sleep(0.002)
    machine.set_current(1)
    foreign.wait(foreign.a)
    foreign.wait(LEGACY)
    assert foreign.seen() == 1


def test_the_dict_of_another_contexts_stream_is_refused(foreign: Track) -> None:
    view = foreign.view_of_any(LEGACY)
    assert view.to_cai()["stream"] == LEGACY
    foreign.machine.set_current(0)
    check_refusal(refuse(view.to_cai, BufferError), "stream-context", None)
    assert not hasattr(view, "__cuda_array_interface__")
    assert view.on(foreign.b).to_cai()["stream"] == foreign.b


def test_a_thread_without_a_context_means_that_of_the_allocation(machine: Machine) -> None:
    data = machine.managed_memory(NBYTES)
    track = Track(machine)
    own, track.data = track.data, data
    made = elsewhere(lambda: track.view_of_any(LEGACY).on(track.b))
    assert made.stream == track.b
    track.data = own
    track.close()


# --- join ------------------------------------------------------------------------------------------------


@pytest.fixture
def second(track: Track, machine: Machine) -> Iterator[Track]:
    """The track on device 1, while device 0 is current."""
    made = Track(machine, ordinal=1)
    machine.set_current(0)
    yield made
    machine.set_current(1)
    made.close()


@pytest.mark.parametrize("default", [LEGACY, PER_THREAD])
@pytest.mark.parametrize("ready", ["a", "default"])
def test_a_join_of_two_devices_on_a_default_stream_is_refused(
    ready: str, default: int, track: Track, second: Track, machine: Machine
) -> None:
    here = track.view(track.a)
    there = cd.view(second.producer(second.a if ready == "a" else default), device_id=1)
    machine.clear()
    check_refusal(refuse(lambda: cd.join([here, there], on=default), BufferError), "stream-context", None)
    assert machine.order() == []
    assert machine.current() == machine.context(0)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_join_on_a_default_stream_is_that_of_the_views(schedule: str, second: Track) -> None:
    """As `on` means it; a bare stream that is joined along waits for nothing else."""

    def order() -> Any:
        second.machine.set_current(0)
        view = cd.view(second.producer(second.a), device_id=1)
        return cd.join([second.b, view], on=LEGACY)

    assert raced(second, schedule, (1, second.a), (1, LEGACY), order) == 5


def test_memory_without_a_context_joins_on_the_current_contexts_stream(foreign: Track, machine: Machine) -> None:
    own = machine.device_memory(NBYTES, 1)
    machine.set_current(1)
    device = cd.view(Cai(interface(data=(own, False), stream=foreign.a)))
    shared = foreign.view_of_any(foreign.b)
    machine.clear()
    cd.join([device, shared], on=LEGACY)
    assert machine.order() == [*one_event(foreign.a, LEGACY), *one_event(foreign.b, LEGACY)]
    machine.free(own)


def test_bare_streams_are_joined_on_a_thread_without_a_context(track: Track, machine: Machine) -> None:
    machine.clear()
    assert elsewhere(lambda: cd.join([track.a], on=track.b)) == []
    assert machine.order() == one_event(track.a, track.b)
    machine.clear()
    assert elsewhere(lambda: cd.join([LEGACY], on=track.b)) == []
    assert machine.order() == one_event(LEGACY, track.b)
    assert elsewhere(machine.current) == 0
