"""Producers with a table that have moved to another stream since the import, and have written there."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi, exchange

from conformance.tests.expectations.refusal import refuse
from conformance.tests.reach.test_pickling import registered
from conformance.tests.simulated.capture import Captures
from conformance.tests.streams.moved_producers import KINDS, Moving
from conformance.tests.streams.race import LEGACY, NBYTES, PER_THREAD, Track
from conformance.tests.streams.test_capture import captures
from conformance.tests.streams.test_consume import on_another_thread

__all__ = ["captures", "registered"]

pytestmark = pytest.mark.usefixtures("registered")

BEFORE, WRITTEN = 0xEE, 0x11

#: Returns the value that a consumer finds who has asked so.
Route = Callable[[cd.CaiView, Track], int]


def on_a_stream(track: Track, stream: int) -> int:
    track.read(stream)
    track.wait(stream)
    return track.seen()


def first(array: np.ndarray[Any, Any]) -> int:
    return array.tobytes()[0]


def at_once(track: Track) -> int:
    return track.control.peek(track.data, 1)[0]


def of_a_copy(track: Track, made: Any) -> int:
    if isinstance(made, cd.CaiView):
        tensor = abi.consume(made.__dlpack__(stream=None if made.device == (abi.CPU, 0) else -1, max_version=(1, 3)))
    else:
        tensor = abi.consume(made)
    host = tensor.device == (abi.CPU, 0)
    found = ctypes.string_at(tensor.data, 1)[0] if host else track.control.peek(tensor.data, 1)[0]
    abi.release(tensor)
    return found


#: Orders by name, or for the host, which follow no policy.
BY_NAME: dict[str, Route] = {
    "on": lambda view, track: (view.on(track.b), on_a_stream(track, track.b))[1],
    "on, of a view of it": lambda view, track: (cd.view(view).on(track.b), on_a_stream(track, track.b))[1],
    "join": lambda view, track: (cd.join([view], on=track.b), on_a_stream(track, track.b))[1],
    "synchronize": lambda view, track: (view.synchronize(), at_once(track))[1],
    "to_dlpack, for the host": lambda view, track: (cd.to_dlpack(view, stream="host"), at_once(track))[1],
    "to_dlpack, a finished copy": lambda view, track: of_a_copy(track, cd.to_dlpack(view, stream=-1, copy=True)),
    "to_dlpack, a copy for the host": lambda view, track: of_a_copy(
        track, cd.to_dlpack(view, stream="host", copy=True)
    ),
    "to_dlpack, on the CPU": lambda view, track: of_a_copy(track, cd.to_dlpack(view, dl_device=(abi.CPU, 0))),
    "__dlpack__, a finished copy": lambda view, track: of_a_copy(
        track, view.__dlpack__(stream=-1, copy=True, max_version=(1, 3))
    ),
    "__dlpack__, a finished copy of another device": lambda view, track: of_a_copy(
        track, view.__dlpack__(stream=-1, dl_device=(abi.CUDA, 1), max_version=(1, 3))
    ),
    "__dlpack__, on the CPU": lambda view, track: of_a_copy(
        track, view.__dlpack__(dl_device=(abi.CPU, 0), max_version=(1, 3))
    ),
    "from_dlpack, on the CPU": lambda view, track: of_a_copy(track, cd.from_dlpack(view, device="cpu")),
    "from_dlpack, a copy on the CPU": lambda view, track: of_a_copy(
        track, cd.from_dlpack(view, device="cpu", copy=True)
    ),
    "pickle": lambda view, track: of_a_copy(track, pickle.loads(pickle.dumps(view)).synchronize()),
}
#: Those of memory that the host reads.
ON_THE_HOST: dict[str, Route] = {
    "np.from_dlpack": lambda view, _: first(np.from_dlpack(view)),
    "np.asarray": lambda view, _: first(np.asarray(view)),
    "memoryview": lambda view, _: first(np.asarray(memoryview(view))),
    "__array_interface__": lambda view, track: (view.__array_interface__, at_once(track))[1],
    "present_as host": lambda view, track: (view.present_as("host"), at_once(track))[1],
    "to": lambda view, _: first(cd.to(view, np.ndarray)),
}
#: A stream that is named to DLPack: by the policy.
BY_POLICY: dict[str, Route] = {
    "to_dlpack": lambda view, track: (cd.to_dlpack(view, stream=track.b), on_a_stream(track, track.b))[1],
    "__dlpack__": lambda view, track: (view.__dlpack__(stream=track.b), on_a_stream(track, track.b))[1],
    "from_dlpack": lambda view, track: (cd.from_dlpack(view, stream=track.b), on_a_stream(track, track.b))[1],
    "from_dlpack, of a view of it": lambda view, track: (
        cd.from_dlpack(cd.view(view), stream=track.b),
        on_a_stream(track, track.b),
    )[1],
    "consume": lambda view, track: (view.consume(track.b).__enter__(), on_a_stream(track, track.b))[1],
}


@pytest.fixture
def written(request: pytest.FixtureRequest, lazily: Track) -> Iterator[tuple[cd.CaiView, Track]]:
    """A view whose producer has moved and written, and the race on its memory."""
    machine, before = lazily.machine, lazily.data
    if request.param != "device":
        lazily.data = getattr(machine, f"{request.param}_memory")(NBYTES)
    moving, new = Moving.of(lazily.data, KINDS[request.param], lazily.a), machine.stream(0)
    machine.write(lazily.data, bytes([BEFORE]) * NBYTES)
    view = cd.view(moving.array)
    moving.go(new)
    lazily.write(new, WRITTEN)
    yield view, lazily
    machine.finish()
    machine.destroy_stream(new)
    lazily.data = before


@pytest.mark.parametrize("policy", ["event", "host", "none"])
@pytest.mark.parametrize("route", BY_NAME)
@pytest.mark.parametrize("written", KINDS, indirect=True)
def test_an_order_by_name_is_after_all_that_the_producer_has_written(
    route: str, policy: Any, written: tuple[cd.CaiView, Track]
) -> None:
    with cd.policy(sync=policy):
        assert BY_NAME[route](*written) == WRITTEN


@pytest.mark.parametrize("policy", ["event", "host", "none"])
@pytest.mark.parametrize("route", ON_THE_HOST)
@pytest.mark.parametrize("written", ["pinned", "managed"], indirect=True)
def test_a_host_reads_all_that_the_producer_has_written(
    route: str, policy: Any, written: tuple[cd.CaiView, Track]
) -> None:
    with cd.policy(sync=policy):
        assert ON_THE_HOST[route](*written) == WRITTEN


@pytest.mark.parametrize("policy", ["event", "host", "none"])
@pytest.mark.parametrize("route", BY_POLICY)
@pytest.mark.parametrize("written", KINDS, indirect=True)
def test_a_stream_that_is_named_to_dlpack_waits_by_the_policy(
    route: str, policy: Any, written: tuple[cd.CaiView, Track]
) -> None:
    with cd.policy(sync=policy):
        assert BY_POLICY[route](*written) == (BEFORE if policy == "none" else WRITTEN)


@pytest.mark.parametrize("policy", ["event", "none"])
@pytest.mark.parametrize("written", ["device"], indirect=True)
def test_what_is_not_there_is_not_waited_for(policy: Any, written: tuple[cd.CaiView, Track]) -> None:
    """A property that the memory does not have is probed."""
    view, track = written
    track.machine.clear()
    with cd.policy(sync=policy):
        assert not hasattr(view, "__array_interface__")
    assert not track.machine.order()


@pytest.mark.parametrize("policy", ["event", "none"])
@pytest.mark.parametrize("written", KINDS, indirect=True)
def test_a_view_of_another_name_is_made_by_the_policy(policy: Any, written: tuple[cd.CaiView, Track]) -> None:
    view, track = written
    track.machine.clear()
    with cd.policy(sync=policy):
        view.present_as("cuda")
    assert bool(track.machine.order()) == (policy == "event")


def moved_into_its_capture(track: Track, captures: Captures) -> tuple[cd.CaiView, int]:
    """Returns a view whose producer has moved into the capture of its stream of before, and where it works now."""
    moving, new = Moving.of(track.data, (abi.CUDA, 0), track.a), track.machine.stream(0)
    view = cd.view(moving.array)
    captures.begin(track.a)
    captures.fork(track.a, new)
    moving.go(new)
    track.machine.clear()
    return view, new


#: Those that are refused beside a capture, whatever the policy. A view of the view comes after the wait.
REFUSED_ALWAYS = [
    (route, policy)
    for route in BY_NAME
    if route not in ("on, of a view of it", "pickle")
    for policy in ("event", "host", "none")
]


@pytest.mark.parametrize(("route", "policy"), [*REFUSED_ALWAYS, ("__dlpack__", "event"), ("to_dlpack", "event")])
def test_a_refused_order_leaves_the_capture_as_it_was(
    route: str, policy: Any, track: Track, captures: Captures
) -> None:
    """The producer has moved into the capture of the stream on which it was: only the user joins the two."""
    view, new = moved_into_its_capture(track, captures)
    with cd.policy(sync=policy):
        refused = refuse(lambda: (BY_NAME | BY_POLICY)[route](view, track), BufferError)
    assert str(refused.rule).startswith("capture-")
    assert not track.machine.order()
    captures.close()
    track.machine.destroy_stream(new)


@pytest.mark.parametrize("policy", ["event", "host", "none"])
def test_a_copy_in_the_capture_is_refused_before_the_wait_for_it(policy: Any, track: Track, captures: Captures) -> None:
    view, new = moved_into_its_capture(track, captures)
    with cd.policy(sync=policy):
        for copy in (lambda: view.__dlpack__(stream=new, copy=True), lambda: cd.to_dlpack(view, stream=new, copy=True)):
            assert refuse(copy, BufferError).rule == "capture-consumer"
    assert not track.machine.order()
    captures.close()
    track.machine.destroy_stream(new)


#: A copy that is made on the work stream of the block, or by `stream` of another device, and how.
COPIES: dict[str, Callable[[cd.CaiView], Any]] = {
    "in a block": lambda view: view.__dlpack__(copy=True, max_version=(1, 3)),
    "to_dlpack, on another device": lambda view: cd.to_dlpack(view, stream=1, dl_device=(abi.CUDA, 1)),
    "__dlpack__, on another device": lambda view: view.__dlpack__(
        stream=1, dl_device=(abi.CUDA, 1), max_version=(1, 3)
    ),
    "from_dlpack, on another device": lambda view: cd.from_dlpack(view, stream=1, device=(abi.CUDA, 1)),
}


@pytest.mark.parametrize("policy", ["event", "host", "none"])
@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("written", KINDS, indirect=True)
def test_a_capture_without_a_part_in_the_copy_refuses_none(
    copy: str, policy: Any, written: tuple[cd.CaiView, Track]
) -> None:
    """A blocking stream's capture forbids the default streams of its own context: the copy is for none of them."""
    view, track = written
    blocking, captures = track.machine.stream(0, flags=0), Captures(track.machine)
    captures.begin(blocking)
    with cd.policy(sync=policy), cd.use_stream(track.b):
        made = COPIES[copy](view)
    captures.end(blocking)
    track.machine.destroy_stream(blocking)
    if policy != "none":
        track.wait(track.b)
        track.machine.set_current(1)
        track.wait(LEGACY)
        track.machine.set_current(0)
        assert of_a_copy(track, made) == WRITTEN


@pytest.mark.parametrize("policy", ["event", "host", "none"])
@pytest.mark.parametrize("copy", ["in a block", "of another device"])
def test_a_copy_that_is_refused_by_its_stream_makes_no_wait(
    copy: str, policy: Any, track: Track, captures: Captures
) -> None:
    moving, new = Moving.of(track.data, (abi.CUDA, 0), track.a), track.machine.stream(0)
    view = cd.view(moving.array)
    moving.go(new)
    if copy == "in a block":
        captures.begin(track.b)
    track.machine.clear()
    with cd.policy(sync=policy), cd.use_stream(track.b):
        if copy == "in a block":
            refused = refuse(lambda: view.__dlpack__(copy=True), BufferError)
        else:
            refused = refuse(lambda: view.__dlpack__(stream=track.b, dl_device=(abi.CUDA, 1)), BufferError)
    assert refused.rule == ("capture-consumer" if copy == "in a block" else "stream-device")
    assert not track.machine.order()
    captures.close()
    track.machine.destroy_stream(new)


@pytest.mark.parametrize("route", ["on", "join", "synchronize", "__dlpack__", "to_dlpack", "consume"])
def test_a_refused_wait_is_told_as_what_it_is(route: str, track: Track, captures: Captures) -> None:
    """The caller has named neither stream."""
    moving, new = Moving.of(track.data, (abi.CUDA, 0), track.a), track.machine.stream(0)
    view = cd.view(moving.array)
    captures.begin(new)
    moving.go(new)
    refused = refuse(lambda: (BY_NAME | BY_POLICY)[route](view, track), BufferError)
    assert (refused.field, refused.rule) == ("__dlpack_c_exchange_api__", "capture-producer")
    assert f"{new:#x}, where the producer works now (the view is ready on stream {track.a:#x})" in str(refused)
    cd.view(moving.array).__dlpack__(stream=new)  # what the hint says
    captures.close()
    track.machine.destroy_stream(new)


@pytest.mark.parametrize("policy", ["event", "host"])
@pytest.mark.parametrize("is_captured", [False, True])
def test_a_type_that_the_interface_lacks_is_not_waited_for(
    policy: Any, is_captured: bool, track: Track, captures: Captures
) -> None:
    producer = exchange.Producer(abi.make(device=(abi.CUDA, 0), data=track.data, dtype=(abi.BFLOAT, 16, 1)))
    producer.stream = track.a
    view = cd.view(exchange.make_type(exchange.capsule(exchange.table(producer)), producer)())
    if is_captured:
        captures.begin(track.b)
    producer.stream = track.b
    track.machine.clear()
    with cd.policy(sync=policy):
        assert not hasattr(view, "__cuda_array_interface__")
        assert refuse(view.to_cai, BufferError).rule == "cai-dtype"
    assert not track.machine.order()
    captures.close()


@pytest.mark.parametrize("goes", ["handle", "own"])
@pytest.mark.parametrize("route", ["view", "shape", "present_as"])
def test_another_thread_s_default_stream_is_not_made_to_wait(route: str, goes: str, lazily: Track) -> None:
    """A view that is ready there is refused where its producer has gone on to a stream of this thread."""
    moving = Moving.of(lazily.data, (abi.CUDA, 0), PER_THREAD)
    view = cd.view(moving.array)
    moving.go(lazily.b if goes == "handle" else PER_THREAD)
    uses: dict[str, Callable[[], object]] = {
        "view": lambda: cd.view(view),
        "shape": lambda: cd.view(view, shape=(6,)),
        "present_as": lambda: view.present_as("cuda"),
    }
    lazily.machine.clear()
    refused = on_another_thread(lazily.machine, uses[route])
    assert isinstance(refused, BufferError) and "[stream-thread]" in str(refused)
    assert not lazily.machine.order()
