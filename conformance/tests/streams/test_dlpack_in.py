"""Tests the `stream` that is passed to producers of DLPack, and the order if a producer does not take it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import pytest
from cai_conformance import abi
from cuda.core import Device

from conformance.tests.doubles.producers import FAKE_POINTER, Dlpack, Legacy, StreamOnly
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.simulated.machine import Machine, one_event
from conformance.tests.streams.race import LEGACY, PER_THREAD, Track

PINNED, MANAGED = (3, 0), (13, 0)


def sent(device: tuple[int, int], **keywords: Any) -> tuple[object, cd.CaiView]:
    """Returns the `stream` that a producer on this device is passed, and the view."""
    producer = Dlpack(abi.make(device=device, data=FAKE_POINTER))
    view = cd.from_dlpack(producer, **keywords)
    assert len(producer.calls) == 1
    assert "stream" in producer.calls[0], "never left out: torch takes that for `do not synchronise`"
    return producer.calls[0]["stream"], view


@pytest.mark.parametrize(
    ("device", "stream", "ready"),
    [
        pytest.param((abi.CUDA, 0), 1, LEGACY, id="cuda"),
        pytest.param((abi.CUDA, 1), 1, LEGACY, id="cuda-1"),
        pytest.param(PINNED, None, None, id="pinned"),
        pytest.param(MANAGED, None, None, id="managed"),
        pytest.param((abi.CPU, 0), None, None, id="cpu"),
        pytest.param((abi.ROCM, 0), 0, LEGACY, id="rocm"),
    ],
)
def test_without_a_wish_the_stream_is_the_devices_default(device: Any, stream: object, ready: object) -> None:
    told, view = sent(device)
    assert (told, type(told)) == (stream, type(stream))
    assert view.stream == ready
    assert view.producer_stream == (None if device[0] == abi.CPU else "unknown")


@pytest.mark.parametrize("device", [(abi.CUDA, 0), PINNED, MANAGED, (abi.ROCM, 0)])
def test_a_wish_is_passed_on_and_the_view_is_ready_there(device: Any) -> None:
    told, view = sent(device, stream=0x5500)
    assert (told, view.stream) == (0x5500, 0x5500)


def test_the_named_producer_stream_is_the_one_that_is_told() -> None:
    """`cd.view` requests the data on the stream on which it is made, so that no wait is needed."""
    producer = Dlpack(abi.make(device=(abi.CUDA, 0), data=FAKE_POINTER))
    view = cd.view(producer, producer_stream=0x5500)
    assert producer.calls[0]["stream"] == 0x5500
    assert (view.stream, view.producer_stream) == (0x5500, 0x5500)


@pytest.mark.parametrize("function", [cd.view, cd.from_dlpack])
@pytest.mark.parametrize(("device", "told"), [((abi.CUDA, 0), -1), (PINNED, None), ((abi.CPU, 0), None)])
def test_where_nothing_is_pending_the_producer_need_not_wait(function: Any, device: Any, told: object) -> None:
    """`producer_stream=None` is the caller's word for it, and `...` is no word at all."""
    producer = Dlpack(abi.make(device=device, data=FAKE_POINTER))
    view = function(producer, producer_stream=None)
    assert (producer.calls[0]["stream"], view.stream, view.producer_stream) == (told, None, None)
    plain, dots = (Dlpack(abi.make(device=device, data=FAKE_POINTER)) for _ in range(2))
    views = function(plain), function(dots, producer_stream=...)
    assert dots.calls == plain.calls
    assert views[0].stream == views[1].stream
    assert views[0].producer_stream == views[1].producer_stream


@pytest.mark.parametrize("function", [cd.view, cd.from_cai])
def test_nothing_is_pending_whatever_the_interface_says(function: Any, track: Track) -> None:
    array = track.producer(track.a)
    view = function(array, producer_stream=None, device_id=0)
    assert (view.stream, view.producer_stream) == (None, None)
    assert function(array, producer_stream=..., device_id=0).stream == track.a
    assert function(array, **{"".join(["producer", "_stream"]): None}, device_id=0).stream is None  # by the careful way
    with track.control.no_calls():
        view.__dlpack__(stream=track.b, max_version=(1, 3))


def test_a_view_of_a_view_is_told_that_nothing_is_pending(track: Track) -> None:
    view = cd.view(track.producer(track.a), device_id=0)
    assert cd.view(view, producer_stream=...).stream == track.a
    ready = cd.view(view, producer_stream=None)
    assert ready.stream is None
    assert view.stream == track.a


@pytest.mark.parametrize("kind", [Dlpack, StreamOnly])
def test_who_was_told_is_ordered_after_what_it_was_told(kind: Any, track: Track) -> None:
    view = cd.from_dlpack(kind(abi.make(device=(abi.CUDA, 0), data=track.data)), stream=track.a)
    track.machine.clear()
    view.on(track.b)
    assert track.machine.order() == one_event(track.a, track.b)


def test_who_takes_no_stream_is_taken_to_work_on_the_legacy_default_stream(track: Track) -> None:
    """Data requested on A is ready on 1: A was not made to wait, so that a request for A makes a wait."""
    producer = Legacy(abi.make(device=(abi.CUDA, 0), data=track.data))
    view = cd.from_dlpack(producer, stream=track.a)
    assert (view.stream, view.producer_stream) == (LEGACY, "unknown")
    track.machine.clear()
    view.__dlpack__(stream=track.a, max_version=(1, 3))
    assert track.machine.order() == one_event(LEGACY, track.a)


class Tensorflow(Dlpack):
    """A double of TensorFlow's eager tensor: any stream is a RuntimeError, and its export has waited."""

    def __dlpack__(self, stream: Any = None) -> object:  # type: ignore[override]
        self.calls.append({"stream": stream})
        if stream is not None:
            raise RuntimeError("stream argument is not supported")
        return self.made.capsule()


Tensorflow.__module__ = "tensorflow.python.framework.ops"


@pytest.mark.parametrize("keywords", [{}, {"stream": 0x5500}])
def test_tensorflow_has_waited(keywords: Any, track: Track) -> None:
    producer = Tensorflow(abi.make(device=(abi.CUDA, 0), data=track.data))
    view = cd.from_dlpack(producer, **keywords)
    assert producer.calls[-1] == {"stream": None}
    assert view.stream is None
    track.machine.clear_own()
    view.on(track.b)
    assert track.machine.calls() == []


def test_a_runtime_error_of_anybody_else_is_its_own() -> None:
    class Fails(Dlpack):
        def __dlpack__(self, **keywords: Any) -> object:
            self.calls.append(keywords)
            raise RuntimeError("stream argument is not supported")

    producer = Fails(abi.make(device=(abi.CUDA, 0), data=FAKE_POINTER))
    with pytest.raises(RuntimeError, match="not supported"):
        cd.from_dlpack(producer)
    assert len(producer.calls) == 1


def test_a_stream_for_the_cpu_is_refused_before_the_producer_is_asked() -> None:
    producer = Dlpack(abi.make())
    found = refuse(lambda: cd.from_dlpack(producer, stream=LEGACY), ValueError)
    check_refusal(found, "stream-cpu", "stream")
    assert producer.calls == []


def test_a_bare_capsule_is_ready_where_the_caller_says(track: Track) -> None:
    made = abi.make(device=(abi.CUDA, 0), data=track.data)
    assert cd.from_dlpack(made.capsule()).stream == LEGACY
    assert cd.from_dlpack(made.capsule(), stream=track.a).stream == track.a
    assert cd.from_dlpack(made.capsule()).producer_stream == "unknown"


@pytest.mark.parametrize(
    "device", [(abi.CUDA, 0), PINNED, MANAGED, (abi.CPU, 0)], ids=["cuda", "pinned", "managed", "cpu"]
)
@pytest.mark.parametrize("stream", ["a", LEGACY, None])
def test_every_door_believes_what_the_caller_says_of_a_capsule(
    device: tuple[int, int], stream: Any, track: Track, machine: Machine
) -> None:
    named = track.a if stream == "a" else stream

    def answer(door: Callable[..., Any]) -> object:
        capsule = abi.make(device=device, data=track.data).capsule()
        try:
            view = door(capsule, producer_stream=named)
        except ValueError as error:
            return error.rule  # type: ignore[attr-defined]
        machine.clear()
        if isinstance(view, cd.CaiView):
            found = view.stream, view.producer_stream
            view.__dlpack__(stream=track.b if device[0] == abi.CUDA else None if device[0] == abi.CPU else -1)
            return found, machine.order()
        return machine.order()

    assert answer(cd.view) == answer(cd.from_dlpack)
    if device[0] == abi.CUDA:
        found: Any = answer(cd.view)
        machine.clear()
        cd.to_dlpack(abi.make(device=device, data=track.data).capsule(), producer_stream=named, stream=track.b)
        assert machine.order() == found[1] == ([] if named is None else one_event(named, track.b))
    if named is None:
        assert answer(cd.view) == ((None, None), [])


def test_data_wanted_on_2_is_this_threads(track: Track, machine: Machine) -> None:
    view = cd.from_dlpack(Dlpack(abi.make(device=(abi.CUDA, 0), data=track.data)), stream=PER_THREAD)
    errors: list[BaseException] = []

    def elsewhere() -> None:
        machine.set_current(0)
        try:
            view.on(track.b)
        except BufferError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert [getattr(error, "rule", None) for error in errors] == ["stream-thread"]
    view.on(track.b)


class Orders(Dlpack):
    """A double of a producer that follows DLPack: it makes the stream that it is passed wait."""

    def __init__(self, track: Track) -> None:
        super().__init__(abi.make(device=(abi.CUDA, 0), data=track.data))
        self.track = track

    def __dlpack__(self, **keywords: Any) -> object:
        cd.join([self.track.a], on=keywords["stream"])
        return self.made.capsule()


def test_from_a_producer_that_orders_to_a_consumer_that_asks(track: Track) -> None:
    """A by the producer's own event to 1, from 1 by ours to B: B finds what was written on A."""
    outcomes = set()
    for _ in track.control.orders():
        track.machine.write(track.data, bytes(24))
        track.write(track.a, 8)
        view = cd.from_dlpack(Orders(track))
        track.machine.clear()
        view.__dlpack__(stream=track.b, max_version=(1, 3))
        assert track.machine.order() == one_event(LEGACY, track.b)
        track.read(track.b)
        for stream in (track.b, track.a, LEGACY):
            track.wait(stream)
        outcomes.add(track.seen())
    assert outcomes == {8}


def test_wanted_where_it_is_used_it_costs_no_event_of_ours(track: Track) -> None:
    view = cd.from_dlpack(Orders(track), stream=track.b)
    track.machine.clear_own()
    view.__dlpack__(stream=track.b, max_version=(1, 3))
    assert track.machine.calls() == []


# --- inside `use_stream` ---------------------------------------------------------------------------------


def test_the_stream_of_the_block_is_passed(track: Track) -> None:
    """As the C Exchange API would return it: the producer makes it wait, and no order of ours is left to make."""
    with cd.use_stream(track.b):
        view = cd.from_dlpack(Orders(track))
        assert (view.stream, cd.view(Orders(track)).stream) == (track.b, track.b)
    track.machine.clear_own()
    view.__dlpack__(stream=track.b, max_version=(1, 3))
    assert track.machine.calls() == []
    assert cd.from_dlpack(Orders(track)).stream == LEGACY


def test_a_wish_comes_before_the_block(track: Track) -> None:
    with cd.use_stream(track.b):
        assert cd.from_dlpack(Orders(track), stream=track.a).stream == track.a


@pytest.mark.parametrize(
    ("device", "passed"), [((abi.CUDA, 1), 1), ((abi.CPU, 0), None), (PINNED, None), (MANAGED, None)], ids=str
)
def test_a_block_of_another_device_is_not_meant(device: Any, passed: object, track: Track) -> None:
    with cd.use_stream(track.b, device_id=0):
        assert sent(device)[0] == passed


def test_a_threads_own_stream_is_not_passed(track: Track) -> None:
    """torch refuses it."""
    with cd.use_stream(PER_THREAD, device_id=0):
        assert sent((abi.CUDA, 0))[0] == LEGACY


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_nor_is_the_block_passed_to_a_producer_that_ignores_it(track: Track) -> None:
    """What it does not order is not ready there."""
    device = Device(0)
    device.set_current()
    buffer = device.allocate(64, stream=device.create_stream())
    with cd.use_stream(track.b, device_id=0):
        assert cd.from_dlpack(buffer).stream == LEGACY
