"""Memory that every device reaches, under another name: its default streams stay those of the first name."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import Cai, Dlpack, interface
from conformance.tests.expectations.refusal import refuse
from conformance.tests.reach.test_pickling import registered
from conformance.tests.simulated.machine import one_event
from conformance.tests.streams.moved_producers import Moving
from conformance.tests.streams.race import LEGACY, NBYTES, PER_THREAD, Track
from conformance.tests.streams.test_producer_and_consumer import read_on

__all__ = ["registered"]

pytestmark = pytest.mark.usefixtures("registered")

BEFORE, WRITTEN, NEXT = 0xEE, 0x11, 0x22
#: The device whose name the memory has: not the current one.
NAMED = 1
UINT8 = (1, 8, 1)

#: Memory that every device and the CPU reach.
MEMORY = ["pinned", "managed"]

Route = Callable[[cd.CaiView, dict[str, Any]], Any]


def packed(view: cd.CaiView, _: dict[str, Any]) -> cd.CaiView:
    loaded: cd.CaiView = pickle.loads(pickle.dumps(view))
    return loaded


#: Every way on which a view goes on under the name that the driver has for its memory, or the CPU's.
ROUTES: dict[str, Route] = {
    "the view itself": lambda view, _: view,
    "view": lambda view, _: cd.view(view, dtype="int8"),
    "from_cai": lambda view, _: cd.from_cai(view),
    "view of a dict": lambda view, described: cd.view(described, owner=view),
    "view of a dict, on the other device": lambda view, described: cd.view(described, owner=view, device_id=0),
    "view of a dict, on its device": lambda view, described: cd.view(described, owner=view, device_id=NAMED),
    "from_cai of a dict": lambda view, described: cd.from_cai(described, owner=view),
    "view of an object's dict": lambda view, described: cd.view(Cai(described), owner=view),
    "to_dlpack of a dict": lambda view, described: cd.view(
        cd.to_dlpack(described, owner=view, stream=LEGACY), producer_stream=LEGACY
    ),
    "to": lambda view, _: cd.to(view, cd.CaiView),
    "join": lambda view, _: cd.join([view], on=view.stream or LEGACY)[0],
    "present_as host": lambda view, _: view.present_as("host"),
    "from_dlpack": lambda view, _: cd.from_dlpack(view),
    "from_dlpack, on the CPU": lambda view, _: cd.from_dlpack(view, device="cpu"),
    "from_dlpack, a copy": lambda view, _: cd.from_dlpack(view, copy=True),
    "pickle": packed,
}
#: Those of which the host has waited for a copy, or waits for it.
COPIES = ("from_dlpack, on the CPU", "from_dlpack, a copy", "pickle")
#: A tensor names no producer's stream.
TENSORS = ("from_dlpack", "to_dlpack of a dict")
#: By capsule and by dict: the producer has named the device, or the caller.
ORIGINS: dict[str, Callable[[int, int], cd.CaiView]] = {
    "a capsule": lambda data, stream: cd.view(
        abi.make((NBYTES,), dtype=UINT8, device=(abi.CUDA, NAMED), data=data).capsule(), producer_stream=stream
    ),
    "a dict": lambda data, stream: cd.view(described(data, stream=stream), owner=object(), device_id=NAMED),
}


def described(data: int, **stream: int) -> dict[str, Any]:
    return interface(shape=(NBYTES,), typestr="|u1", data=(data, False), **stream)


@pytest.fixture
def shared(request: pytest.FixtureRequest, lazily: Track) -> Iterator[Track]:
    """The race on memory that every device and the CPU reach."""
    before, lazily.data = lazily.data, getattr(lazily.machine, f"{request.param}_memory")(NBYTES)
    yield lazily
    lazily.data = before


def write_there(track: Track, stream: int, value: int) -> None:
    """The work of the default stream of the device that the memory is named of."""
    track.machine.set_current(NAMED)
    track.write(stream, value)
    track.machine.set_current(0)


def read_before_the_next_write(track: Track, found: cd.CaiView) -> tuple[int, str | None]:
    """The value that a consumer reads if its producer writes anew once the block has ended, and the return edge."""
    with found.consume(track.b, strict=True) as block:
        track.read(track.b)
    track.write(track.a, NEXT)
    track.wait(track.a)
    track.wait(track.b)
    return track.seen(), block.return_edge


def activate(track: Track) -> None:
    """Has the other device a context, as one whose default stream is used has it."""
    track.machine.set_current(NAMED)
    track.machine.set_current(0)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("shared", MEMORY, indirect=True)
def test_what_another_device_s_default_stream_writes_is_waited_for(origin: str, route: str, shared: Track) -> None:
    lazily = shared
    for stream in (LEGACY, PER_THREAD):
        lazily.machine.write(lazily.data, bytes([BEFORE]) * NBYTES)
        write_there(lazily, stream, WRITTEN)
        view = ORIGINS[origin](lazily.data, stream)
        found = ROUTES[route](view, described(lazily.data))
        if route in COPIES:
            assert np.from_dlpack(found, device="cpu")[0] == WRITTEN
            continue
        found = found.on(lazily.b)
        assert read_on(lazily, lazily.b, found) == WRITTEN, stream


@pytest.mark.parametrize("route", [route for route in ROUTES if route not in (*COPIES, *TENSORS)])
@pytest.mark.parametrize("shared", MEMORY, indirect=True)
def test_another_device_s_default_stream_waits_before_it_writes_again(route: str, shared: Track) -> None:
    """The return edge goes to the stream that the view was of."""
    lazily = shared
    for stream in (LEGACY, PER_THREAD):
        lazily.machine.write(lazily.data, bytes([WRITTEN]) * NBYTES)
        found = ROUTES[route](ORIGINS["a capsule"](lazily.data, stream), described(lazily.data))
        with found.consume(lazily.b, strict=True) as block:
            lazily.read(lazily.b)
        write_there(lazily, stream, NEXT)
        lazily.machine.set_current(NAMED)
        lazily.wait(stream)
        lazily.machine.set_current(0)
        lazily.wait(lazily.b)
        assert (lazily.seen(), block.return_edge) == (WRITTEN, "event"), stream


#: Calls that make a stream wait for a view.
REQUESTS: dict[str, Callable[[cd.CaiView, int], Any]] = {
    "on": lambda view, stream: view.on(stream),
    "__dlpack__": lambda view, stream: view.__dlpack__(stream=stream),
    "to_dlpack": lambda view, stream: cd.to_dlpack(view, stream=stream),
    "from_dlpack": lambda view, stream: cd.from_dlpack(view, stream=stream),
    "from_dlpack, a copy": lambda view, stream: cd.from_dlpack(view, stream=stream, copy=True).ptr,
    "to": lambda view, stream: cd.to(view, cd.CaiView, stream=stream),
    "join": lambda view, stream: cd.join([view], on=stream),
    "consume": lambda view, stream: view.consume(stream).__enter__(),
}


@pytest.mark.parametrize("request_", [name for name in REQUESTS if "copy" not in name])
@pytest.mark.parametrize("shared", MEMORY, indirect=True)
def test_under_a_device_s_name_one_number_is_two_streams(request_: str, shared: Track) -> None:
    """The memory is ready on a default stream of the current device, and then named as another's, whose default stream
    asks for it."""
    activate(shared)
    for stream, wanted in itertools.product((LEGACY, PER_THREAD), repeat=2):
        shared.machine.write(shared.data, bytes([BEFORE]) * NBYTES)
        shared.write(stream, WRITTEN)
        view = cd.view(described(shared.data), owner=object(), producer_stream=stream)
        view = cd.view(described(shared.data), owner=view, device_id=NAMED)
        kept = REQUESTS[request_](view, wanted)
        shared.machine.set_current(NAMED)
        shared.wait(wanted)
        shared.machine.set_current(0)
        assert shared.control.peek(shared.data, 1)[0] == WRITTEN, (stream, wanted)
        del kept


@pytest.mark.parametrize("shared", MEMORY, indirect=True)
def test_under_a_device_s_name_a_default_stream_waits_for_its_namesake(shared: Track) -> None:
    """As above, the way back."""
    activate(shared)
    for stream, wanted in itertools.product((LEGACY, PER_THREAD), repeat=2):
        shared.machine.write(shared.data, bytes([WRITTEN]) * NBYTES)
        view = cd.view(described(shared.data), owner=object(), producer_stream=stream)
        view = cd.view(described(shared.data), owner=view, device_id=NAMED)
        with view.consume(wanted, strict=True) as block:
            shared.machine.set_current(NAMED)
            shared.read(wanted)
            shared.machine.set_current(0)
        shared.write(stream, NEXT)
        shared.wait(stream)
        shared.machine.set_current(NAMED)
        shared.wait(wanted)
        shared.machine.set_current(0)
        assert (shared.seen(), block.return_edge) == (WRITTEN, "event"), (stream, wanted)


#: Those of which the producer stays known.
FOLLOWED = [route for route in ROUTES if route not in (*COPIES, *TENSORS, "to_dlpack of a dict", "join")]


@pytest.mark.parametrize("moved", [LEGACY, PER_THREAD, "a handle"])
@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("named", [0, NAMED])
@pytest.mark.parametrize("route", FOLLOWED)
@pytest.mark.parametrize("shared", MEMORY, indirect=True)
def test_a_producer_that_moves_is_followed_under_another_name(
    route: str, named: int, is_before: bool, moved: Any, shared: Track
) -> None:
    """It tells its stream as that of the device that it has named, whatever is current where the block ends."""
    there = shared.machine.stream(named)
    shared.machine.set_current(0)
    made = abi.make((NBYTES,), dtype=UINT8, device=(abi.CUDA, named), data=shared.data)
    producer = exchange.Producer(made)
    producer.stream = there
    view = cd.view(exchange.make_type(exchange.capsule(exchange.table(producer)), producer)())
    new = shared.machine.stream(named) if moved == "a handle" else moved
    shared.machine.set_current(0)
    shared.machine.write(shared.data, bytes([WRITTEN]) * NBYTES)
    if is_before:
        producer.stream = new
    found = ROUTES[route](view, described(shared.data))
    producer.stream = new
    shared.machine.set_current(1 - named)
    with found.consume(shared.b, strict=True) as block:
        shared.read(shared.b)
    shared.machine.set_current(named)
    shared.write(new, NEXT)
    shared.wait(new)
    shared.machine.set_current(0)
    shared.wait(shared.b)
    assert (shared.seen(), block.return_edge) == (WRITTEN, "event")
    for stream in {there, new} - {LEGACY, PER_THREAD}:
        shared.machine.destroy_stream(stream)


@pytest.mark.parametrize("current", [0, NAMED])
@pytest.mark.parametrize("before", [LEGACY, PER_THREAD, "a handle"])
@pytest.mark.parametrize("moved", [LEGACY, PER_THREAD])
@pytest.mark.parametrize("shared", MEMORY, indirect=True)
def test_a_producer_that_names_no_device_moves_to_the_current_context_s_default_stream(
    moved: int, before: Any, current: int, shared: Track
) -> None:
    """The view goes by another device's name; its producer knows the memory as every device's."""
    activate(shared)
    device = cd.view(described(shared.data), owner=object(), producer_stream=None).device
    moving = Moving.of(shared.data, device, shared.a if before == "a handle" else before)
    view = cd.view(described(shared.data), owner=cd.view(moving.array), device_id=NAMED)
    shared.machine.write(shared.data, bytes([BEFORE]) * NBYTES)
    moving.go(moved)
    shared.machine.set_current(current)
    shared.write(moved, WRITTEN)
    with view.consume(shared.b, strict=True) as block:
        shared.read(shared.b)
    shared.write(moved, NEXT)
    shared.wait(moved)
    shared.wait(shared.b)
    assert (shared.seen(), block.return_edge) == (WRITTEN, "event")


@pytest.mark.parametrize("shared", MEMORY, indirect=True)
def test_a_name_whose_context_is_not_told_is_refused(shared: Track) -> None:
    """Each question to the driver refused in turn: the view stays as it was."""
    activate(shared)
    view = cd.view(described(shared.data), owner=object(), device_id=NAMED, producer_stream=LEGACY)
    before, refused = repr(view), []
    for nth in itertools.count(1):
        shared.control.fault("cuPointerGetAttributes", 999, nth, by="this")
        try:
            cd.from_cai(view)
        except cd.DriverError as error:
            refused.append(error.call)
            assert repr(view) == before
        if shared.control.pending_faults():
            break
    shared.control.clear_faults()
    assert refused == ["cuPointerGetAttributes"] * 2, "where the memory is, and whose the stream"


#: Arrays in memory that the CPU reads too.
ON_THE_CPU: dict[str, Callable[[Track, tuple[int, int]], Any]] = {
    "a view": lambda track, _: track.view_of_any(track.a),
    "an object of CAI": lambda track, _: track.producer(track.a),
    "a capsule": lambda track, device: abi.make(device=device, data=track.data).capsule(),
    "an object of DLPack": lambda track, device: Refuses(abi.make(device=device, data=track.data)),
}


class Refuses(Dlpack):
    """Exports to its own device alone."""

    def __dlpack__(self, **request: Any) -> Any:
        if request.pop("dl_device", None) not in (None, self.device) or request.get("copy"):
            raise BufferError("no other device")
        return super().__dlpack__(**request)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("copy", [None, False])
@pytest.mark.parametrize("kind", ON_THE_CPU)
@pytest.mark.parametrize("shared", MEMORY, indirect=True)
def test_memory_that_the_cpu_reads_is_shared_and_its_producer_waits(
    kind: str, copy: bool | None, named: bool, shared: Track
) -> None:
    lazily = shared
    device = cd.view(described(lazily.data), owner=object(), producer_stream=None).device
    lazily.machine.write(lazily.data, bytes([BEFORE]) * NBYTES)
    lazily.write(lazily.a, WRITTEN)
    if (not named and "DLPack" in kind) or kind == "a capsule":
        lazily.wait(lazily.a)  # The double has no stream of its own to wait for.
    streams: dict[str, Any] = {"producer_stream": lazily.a} if named else {}
    found = cd.from_dlpack(ON_THE_CPU[kind](lazily, device), device="cpu", copy=copy, **streams)
    assert (found.device, found.ptr, found.stream) == ((1, 0), lazily.data, None)
    assert lazily.control.peek(lazily.data, 1)[0] == WRITTEN
    if named or kind in ("a view", "an object of CAI"):
        assert found.producer_stream == lazily.a
        assert read_before_the_next_write(lazily, found) == (WRITTEN, "event")


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("kind", ["a view", "a capsule", "an object of DLPack"])
def test_device_memory_is_not_shared_with_the_cpu(kind: str, named: bool, lazily: Track) -> None:
    array = ON_THE_CPU[kind](lazily, (abi.CUDA, 0))
    streams: dict[str, Any] = {"producer_stream": lazily.a} if named else {}
    refused = refuse(lambda: cd.from_dlpack(array, device="cpu", copy=False, **streams), BufferError)
    assert "stream" not in refused.message
    if kind == "a capsule":
        assert cd.view(array, producer_stream=None).ptr == lazily.data


#: Keywords that describe the array, and change nothing of it.
DESCRIBED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "read_only": {"read_only": True},
    "check": {"check": "bounds"},
    "owner": {"owner": object()},
    "device_id": {"device_id": 0},
    "shape": {"shape": (6,)},
}


@pytest.mark.parametrize("described", DESCRIBED)
@pytest.mark.parametrize("where", [{"device": (abi.CUDA, 0)}, {"copy": True}, {"device": (abi.CUDA, 0), "copy": False}])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("stream", ["its own", LEGACY, None])
@pytest.mark.parametrize("kind", ["a view", "a capsule"])
def test_what_is_described_is_ready_on_the_stream_that_is_named(
    kind: str, stream: Any, named: bool, where: dict[str, Any], described: str, lazily: Track
) -> None:
    wanted = lazily.b if stream == "its own" else stream
    streams: dict[str, Any] = {"producer_stream": lazily.a} if named else {}
    lazily.machine.write(lazily.data, bytes([BEFORE]) * NBYTES)
    lazily.write(lazily.a, WRITTEN)
    if kind == "a capsule" and not named:
        lazily.wait(lazily.a)  # By the caller's word it is ready where it is wanted.
    array = ON_THE_CPU[kind](lazily, (abi.CUDA, 0))
    found = cd.from_dlpack(array, stream=wanted, **where, **streams, **DESCRIBED[described])
    reader = wanted or (lazily.a if named and not where.get("copy") else LEGACY)
    assert found.stream == reader or kind == "a capsule"
    assert read_on(lazily, reader, found) == WRITTEN


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("kind", ["a view", "a capsule", "an object of DLPack"])
def test_device_id_is_of_the_array_that_is_copied_here(kind: str, named: bool, lazily: Track) -> None:
    """Of an object that is asked for the copy it is that of the copy, whether its stream is named or not."""
    right, wrong = (1, 0) if kind == "an object of DLPack" else (0, 1)
    streams: dict[str, Any] = {"producer_stream": lazily.a} if named else {}
    array, again = (ON_THE_CPU[kind](lazily, (abi.CUDA, 0)) for _ in range(2))

    def call(array: Any, device_id: int) -> cd.CaiView:
        return cd.from_dlpack(array, device="cuda:1", device_id=device_id, **streams)

    # Done before the memory ends, which belongs to no one here.
    assert call(array, right).synchronize().device == (abi.CUDA, 1)
    refused = refuse(lambda: call(again, wrong), BufferError)
    assert (refused.rule, refused.field) == ("pointer-device", "device_id")
    said = "asked for on" if kind == "an object of DLPack" else "the array is on"
    assert f"{said} {(abi.CUDA, right)}" in refused.message


def of_rocm(track: Track, ordinal: int, stream: int) -> cd.CaiView:
    return cd.view(abi.make(device=(abi.ROCM, ordinal), data=track.data).capsule(), producer_stream=stream)


def test_streams_of_rocm_and_of_cuda_are_not_one(lazily: Track) -> None:
    """Nothing waits, for any numbers and in any order."""
    for number, on in itertools.product((LEGACY, lazily.a), (LEGACY, lazily.a, lazily.b)):
        others: list[Any] = [lazily.view(number), number]
        if not number == on == lazily.a:
            others.append(of_rocm(lazily, 1, number))  # One handle is one stream.
        for other in others:
            for items in itertools.permutations((of_rocm(lazily, 0, number), other)):
                lazily.machine.clear()
                refused = refuse(partial(cd.join, items, on=on), BufferError)
                assert refused.rule == "rocm-order", (number, on, items)
                assert not lazily.machine.order()
    alone = [of_rocm(lazily, 0, LEGACY) for _ in range(2)]
    assert [view.stream for view in cd.join(alone, on=LEGACY)] == [LEGACY, LEGACY]


@pytest.mark.parametrize("policy", ["event", "host", "none"])
@pytest.mark.parametrize("strides", [None, (1, 2)])
def test_a_view_is_pickled_when_its_data_is_there(strides: Any, policy: Any, lazily: Track) -> None:
    """The pickle holds the data by whatever policy, in C order or not."""
    lazily.machine.write(lazily.data, bytes([BEFORE]) * NBYTES)
    lazily.write(lazily.a, WRITTEN)
    made = abi.make((2, 3), strides=strides, dtype=UINT8, device=(abi.CUDA, 0), data=lazily.data)
    view = cd.view(made.capsule(), producer_stream=lazily.a)
    with cd.policy(sync=policy):
        dumped = pickle.dumps(view)
    assert lazily.control.peek(pickle.loads(dumped).synchronize().ptr, 6) == bytes([WRITTEN]) * 6


#: Views that are made of memory that is shared as the CPU's.
CHAINS: dict[str, Callable[[cd.CaiView], cd.CaiView]] = {
    "from_dlpack": cd.from_dlpack,
    "from_dlpack, on the CPU": lambda view: cd.from_dlpack(view, device="cpu"),
    "from_dlpack, not copied": lambda view: cd.from_dlpack(view, device="cpu", copy=False),
    "from_dlpack, read-only": lambda view: cd.from_dlpack(view, device="cpu", read_only=True),
    "view": lambda view: cd.view(view, read_only=True),
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("first", ["from_dlpack, on the CPU", "present_as host"])
@pytest.mark.parametrize("shared", MEMORY, indirect=True)
def test_the_producer_s_stream_stays_known_from_view_to_view(first: str, chain: str, shared: Track) -> None:
    found = CHAINS[chain](ROUTES[first](shared.view_of_any(shared.a), {}))
    shared.machine.write(shared.data, bytes([WRITTEN]) * NBYTES)
    assert found.producer_stream == shared.a
    assert read_before_the_next_write(shared, found) == (WRITTEN, "event")


#: Those that neither name a device nor read the view's dict.
BY_VIEW = [route for route in ROUTES if "device" not in route and route not in (*COPIES, "from_cai")]


@pytest.mark.parametrize("route", BY_VIEW)
@pytest.mark.parametrize("shared", MEMORY, indirect=True)
def test_a_default_stream_that_was_named_without_a_context_stays_the_memory_s(route: str, shared: Track) -> None:
    """The view is made on a thread without a context; another device is current where it goes on."""
    for stream in (LEGACY, PER_THREAD):
        there = shared.machine.stream(NAMED)
        shared.machine.write(shared.data, bytes([BEFORE]) * NBYTES)
        shared.write(stream, WRITTEN)
        shared.machine.enter(0)
        view = cd.view(described(shared.data), owner=object(), producer_stream=stream)
        shared.machine.set_current(NAMED)
        try:
            found = ROUTES[route](view, described(shared.data)).on(there)
            if found.stream:
                shared.wait(there)
            assert shared.control.peek(shared.data, 1)[0] == WRITTEN, stream
        finally:
            shared.machine.destroy_stream(there)
            shared.machine.set_current(0)


@pytest.mark.parametrize("current", [0, NAMED, None])
@pytest.mark.parametrize("is_named_by_a_context", [True, False])
@pytest.mark.parametrize("shared", MEMORY, indirect=True)
def test_a_dict_names_no_default_stream_of_another_context(
    is_named_by_a_context: bool, current: int | None, shared: Track
) -> None:
    """Of the memory's, which a stream is that was named without one."""
    activate(shared)
    for stream in (LEGACY, PER_THREAD):
        if not is_named_by_a_context:
            shared.machine.enter(0)
        view = cd.view(described(shared.data), owner=object(), producer_stream=stream)
        shared.machine.set_current(current) if current is not None else shared.machine.enter(0)
        try:
            if current == NAMED:
                refused = refuse(view.to_cai, BufferError)
                assert refused.rule == "stream-context"
            else:
                assert view.to_cai()["stream"] == stream
        finally:
            shared.machine.set_current(0)


@pytest.mark.parametrize("shared", MEMORY, indirect=True)
def test_a_producer_that_stays_is_not_followed_by_another_name(shared: Track) -> None:
    """Its table tells a default stream as the memory's own name has it: of the context that is current."""
    device = cd.view(described(shared.data), owner=object(), producer_stream=None).device
    for stream in (LEGACY, PER_THREAD):
        view = cd.view(Moving.of(shared.data, device, stream).array).present_as("cuda")
        shared.machine.clear()
        with view.consume(stream) as block:
            pass
        assert block.return_edge == "same-stream"
        assert not shared.machine.order()


@pytest.mark.parametrize("stream", [LEGACY, PER_THREAD, "a handle"])
@pytest.mark.parametrize("shared", MEMORY, indirect=True)
def test_a_producer_that_stays_is_waited_for_once_by_another_device_s_name(stream: Any, shared: Track) -> None:
    activate(shared)
    at = shared.a if stream == "a handle" else stream
    view = cd.view(described(shared.data), owner=cd.view(Moving.of(shared.data, (abi.CUDA, 0), at).array), device_id=1)
    shared.machine.clear()
    with view.consume(shared.b):
        pass
    assert shared.machine.order() == [*one_event(at, shared.b), *one_event(shared.b, at)]


class Copies(Dlpack):
    """Copies whatever it is asked for, and says so."""

    def __dlpack__(self, **request: Any) -> Any:
        if request.pop("dl_device", None) not in (None, self.device):
            raise BufferError("no other device")
        return super().__dlpack__(**request)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("is_capsule", [True, False])
@pytest.mark.parametrize("shared", MEMORY, indirect=True)
def test_a_copy_is_not_shared(is_capsule: bool, named: bool, shared: Track) -> None:
    device = cd.view(described(shared.data), owner=object(), producer_stream=None).device
    made = abi.make(device=device, data=shared.data, flags=abi.IS_COPIED)
    streams: dict[str, Any] = {"producer_stream": shared.a} if named else {}
    array = made.capsule() if is_capsule else Copies(made)
    refused = refuse(lambda: cd.from_dlpack(array, device="cpu", copy=False, **streams), BufferError)
    assert refused.rule in ("copied-unasked", None)
    assert cd.from_dlpack(array, device="cpu", **streams).device == (abi.CPU, 0)


class Shares(Dlpack):
    """Shares its memory with the other device."""

    def __dlpack__(self, *, dl_device: Any = None, copy: Any = None, **request: Any) -> Any:
        if dl_device in (None, self.device):
            return super().__dlpack__(copy=copy, **request)
        if copy is not False:
            raise BufferError("it is not copied here")
        return abi.make(device=dl_device, data=self.made.tensor.data).capsule()


@pytest.mark.parametrize("streams", [{}, {"producer_stream": None}, {"producer_stream": LEGACY}])
def test_a_producer_may_share_with_another_device(streams: dict[str, Any], lazily: Track) -> None:
    array = Shares(abi.make(device=(abi.CUDA, 0), data=lazily.data))
    assert cd.from_dlpack(array, device="cuda:1", copy=False, **streams).device == (abi.CUDA, 1)
