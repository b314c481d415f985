"""Streams as people give them: ints, objects of libraries, and what is refused without a trace."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import cai_dlpack as cd
import cai_example_peer as peer
import numba.cuda
import numpy as np
import pytest
from cai_conformance import abi, exchange
from cuda.core import Device

from conformance.tests.doubles.producers import Cai, Dlpack, OwningStream, StreamObject, interface
from conformance.tests.expectations.refusal import check_refusal, nothing_changes, refuse
from conformance.tests.interpreter import needs
from conformance.tests.simulated.machine import Machine, one_event
from conformance.tests.streams.race import LEGACY, PER_THREAD, Track

# --- accepted -----------------------------------------------------------------------------------------


class Attribute:
    """The tuple as an attribute, which some libraries had before the method."""

    def __init__(self, handle: int) -> None:
        self.__cuda_stream__ = (0, handle)


class TorchShaped:
    """A double: what of torch.cuda.Stream matters here. torch cannot run on the simulated driver."""

    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle
        self.device_index = 0

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.cuda_stream)


class CupyShaped:
    """A double: what of cupy.cuda.Stream matters here. CuPy cannot run on the simulated driver."""

    def __init__(self, handle: int) -> None:
        self.ptr = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.ptr)


class NumpyShaped:
    """An integer by `__index__`, as NumPy's scalars are."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __index__(self) -> int:
        return self.handle


@pytest.mark.parametrize("wrap", [int, StreamObject, Attribute, TorchShaped, CupyShaped, NumpyShaped])
def test_every_shape_of_a_stream_is_the_same_stream(wrap: Callable[[int], Any], track: Track) -> None:
    view, b = track.view(track.a), wrap(track.b)
    track.machine.clear()
    assert view.on(b).stream == track.b
    view.__dlpack__(stream=b, max_version=(1, 3))
    cd.to_dlpack(view, stream=b)
    cd.join([view], on=b)
    assert track.machine.order() == 4 * one_event(track.a, track.b)
    with view.consume(b) as lent:
        assert lent.stream == track.b
    assert cd.view(track.producer(None), producer_stream=b, device_id=0).stream == track.b


@pytest.mark.parametrize("wrap", [StreamObject, Attribute, TorchShaped, CupyShaped])
def test_handle_0_of_an_object_is_the_legacy_default_stream(wrap: Callable[[int], Any], track: Track) -> None:
    """`__cuda_stream__` shows a cudaStream_t, where 0 is a stream; the integer 0 is refused."""
    track.machine.clear()
    assert track.view(track.a).on(wrap(0)).stream == LEGACY
    assert track.machine.order() == one_event(track.a, LEGACY)


def test_cuda_core_streams(track: Track) -> None:
    device = Device(0)
    device.set_current()
    ready, mine = device.create_stream(), device.create_stream()
    view = cd.view(track.producer(None), producer_stream=ready, device_id=0)
    track.machine.clear()
    assert view.on(mine).stream == int(mine.handle)
    assert track.machine.order() == one_event(int(ready.handle), int(mine.handle))
    assert view.on(device.default_stream).stream in (LEGACY, PER_THREAD)


@needs.numba_cuda
def test_numba_streams(track: Track) -> None:
    ready, mine = numba.cuda.stream(), numba.cuda.stream()
    view = track.view(int(ready))
    track.machine.clear()
    assert view.on(mine).stream == int(mine)
    assert track.machine.order() == one_event(int(ready), int(mine))
    assert view.on(numba.cuda.legacy_default_stream()).stream == LEGACY
    assert view.on(numba.cuda.per_thread_default_stream()).stream == PER_THREAD


# --- kept alive ---------------------------------------------------------------------------------------


def kept_by(make: Callable[[Any], Any], handle: int) -> bool:
    """Returns whether the result keeps a stream object alive, and releases it at the end."""
    stream = StreamObject(handle)
    alive = weakref.ref(stream)
    made = make(stream)
    del stream
    gc.collect()
    is_kept = alive() is not None
    del made
    gc.collect()
    assert alive() is None, "it is never let go of"
    return is_kept


def test_a_stream_object_lives_as_long_as_the_views_that_it_orders(track: Track) -> None:
    view = track.view(track.a)
    tensor = abi.make(device=(abi.CUDA, 0), data=track.data)
    assert kept_by(view.on, track.b)
    assert kept_by(view.consume, track.b)
    assert kept_by(lambda s: cd.join([view], on=s), track.b)
    assert kept_by(lambda s: cd.view(track.producer(None), producer_stream=s, device_id=0), track.b)
    assert kept_by(lambda s: cd.from_cai(track.producer(None), producer_stream=s, device_id=0), track.b)
    assert kept_by(lambda s: cd.from_dlpack(Dlpack(tensor), producer_stream=s), track.b)
    assert kept_by(lambda s: cd.from_dlpack(Dlpack(tensor), stream=s), track.b)
    assert kept_by(lambda s: cd.view(view, producer_stream=s), track.b)
    assert kept_by(cd.use_stream, track.b)


def entered(view: cd.CaiView, stream: Any) -> tuple[Any, cd.CaiView]:
    """What a consume block lends, and the block."""
    block = view.consume(stream)
    return block, block.__enter__()


#: Each makes a view that is ready on the stream.
ORDERED: dict[str, Callable[[cd.CaiView, Any], Any]] = {
    "on": lambda view, stream: view.on(stream),
    "on, and again": lambda view, stream: view.on(stream).on(stream),
    "on, and its number": lambda view, stream: view.on(stream).on(stream.handle),
    "on, described": lambda view, stream: cd.view(view.on(stream), shape=(6,)),
    "join": lambda view, stream: cd.join([view], on=stream)[0],
    "join of a passed view": lambda view, stream: cd.join([peer.view_of(view)], on=stream)[0],
    "consume": entered,
    "to": lambda view, stream: cd.to(view, cd.CaiView, stream=stream),
    "view": lambda view, stream: cd.view(view, producer_stream=stream),
    "view of a passed view": lambda view, stream: cd.view(peer.view_of(view), producer_stream=stream),
    "from_cai": lambda view, stream: cd.from_cai(view, producer_stream=stream),
    "from_dlpack": lambda view, stream: cd.from_dlpack(view, stream=stream),
    "owner": lambda view, stream: cd.view(view.to_cai(), owner=view.on(stream)),
}


@pytest.mark.filterwarnings("ignore::cai_dlpack.ConsumeWarning")
@pytest.mark.parametrize("is_there", [False, True], ids=["elsewhere", "there already"])
@pytest.mark.parametrize("call", ORDERED)
def test_a_view_that_is_ready_on_an_objects_stream_keeps_it(call: str, is_there: bool, track: Track) -> None:
    """A dict names its stream by a number, which keeps none alive."""
    view = track.view(track.b if is_there else track.a)
    assert kept_by(lambda stream: ORDERED[call](view, stream), track.b)


#: Each makes a view of what is asked for without a stream, in a block that names one.
IN_A_BLOCK: dict[str, Callable[[Track], Any]] = {
    "view of a tensor": lambda track: cd.view(tensor_of(track)),
    "from_dlpack of a tensor": lambda track: cd.from_dlpack(tensor_of(track)),
    "split_masked of a tensor": lambda track: cd.split_masked(tensor_of(track)),
    "to of a tensor": lambda track: cd.to(tensor_of(track), cd.CaiView),
    "from_dlpack of a view": lambda track: cd.from_dlpack(track.view(track.a)),
    "from_dlpack of a passed view": lambda track: cd.from_dlpack(peer.view_of(track.view(track.a))),
    "a copy": lambda track: cd.from_dlpack(track.view(track.a), copy=True),
    "a copy of the host's": lambda track: cd.from_dlpack(np.arange(6.0), device="cuda:0"),
    "the table": lambda track: adopted(track),
}


def tensor_of(track: Track) -> Dlpack:
    return Dlpack(abi.make(device=(abi.CUDA, 0), data=track.data))


def adopted(track: Track) -> object:
    """The view that the table of the class makes of a tensor, as a library in C does."""
    made, out = abi.make(device=(abi.CUDA, 0), data=track.data), ctypes.c_void_p()
    to_object = exchange.ToObject(exchange.table_of(cd.CaiView).to_object)
    assert to_object(made.address, ctypes.byref(out)) == 0
    view = ctypes.cast(out, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(view))
    return view


@pytest.mark.parametrize("call", IN_A_BLOCK)
def test_a_view_keeps_the_object_of_the_block_whose_stream_it_is_ready_on(call: str, track: Track) -> None:
    def made(stream: Any) -> object:
        with cd.use_stream(stream):
            view = IN_A_BLOCK[call](track)
        ready = view[0] if isinstance(view, tuple) else view
        assert ready.stream == track.b
        return view

    assert kept_by(made, track.b)


def test_a_view_of_another_stream_than_the_block_s_does_not_keep_its_object(track: Track) -> None:
    def made(stream: Any) -> object:
        with cd.use_stream(stream):
            return [track.view(track.a), track.view(None)]

    assert not kept_by(made, track.b)


class Leaving(Dlpack):
    """Leaves the block of the caller before it answers."""

    block: Any = None

    def __dlpack__(self, **keywords: Any) -> Any:
        self.block.__exit__(None, None, None)
        self.block = None
        return super().__dlpack__(**keywords)


class LeavingLater(Leaving):
    """Leaves the block in the destructor of its capsule, which runs when the tensor has been taken."""

    destructor: Any = None

    def __dlpack__(self, **keywords: Any) -> Any:
        def leave(_capsule: int) -> None:
            self.destructor = None
            self.block.__exit__(None, None, None)
            self.block = None

        self.destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(leave)
        name = abi.VERSIONED if self.made.versioned else abi.LEGACY
        return abi.new_capsule(self.made.address, name, destructor=self.destructor)


@pytest.mark.parametrize("leaving", [Leaving, LeavingLater])
@pytest.mark.parametrize(
    "make",
    [
        cd.view,
        cd.from_dlpack,
        lambda array: cd.from_dlpack(array, read_only=True),
        lambda array: cd.to(array, cd.CaiView),
        lambda array: cd.split_masked(array)[0],
    ],
)
def test_a_block_that_the_producer_leaves_has_its_object_kept(
    make: Callable[[Any], Any], leaving: type[Leaving], track: Track
) -> None:
    def made(stream: Any) -> Any:
        array = leaving(abi.make(device=(abi.CUDA, 0), data=track.data))
        array.block = cd.use_stream(stream)
        array.block.__enter__()
        del stream
        return make(array)

    assert made(StreamObject(track.b)).stream == track.b
    assert kept_by(made, track.b)


class Trash:
    """Garbage whose finaliser makes garbage again, and the last of a number leaves a block."""

    def __init__(self, number: int, leave: Callable[[], None], counted: list[list[object]]) -> None:
        self.number, self.leave, self.counted, self.me = number, leave, counted, self

    def __del__(self) -> None:
        # Collected garbage counts for nothing: these have the next allocation collect.
        self.counted += [[], [], [], []]
        if self.number:
            Trash(self.number - 1, self.leave, self.counted)
        else:
            self.leave()


def left_within(make: Callable[[], Any], block: Any, collections: int) -> tuple[Any, bool]:
    """Calls with a collection at each allocation, of which one leaves the block; and whether it came in time."""
    entered = [block]

    def leave() -> None:
        if entered:
            entered.pop().__exit__(None, None, None)

    block.__enter__()
    Trash(collections, leave, [])
    gc.set_threshold(1, 1, 1)
    gc.enable()
    made = make()
    gc.disable()
    is_left = not entered
    leave()
    return made, is_left


@pytest.mark.parametrize("call", IN_A_BLOCK)
def test_a_block_that_a_collection_leaves_has_its_object_kept(call: str, track: Track) -> None:
    """A collection at each allocation in turn: before 3.12 in the middle of the call, then between byte codes."""
    thresholds, is_left, collections = gc.get_threshold(), True, 0
    gc.disable()
    try:
        while is_left:
            gc.collect()
            stream = StreamObject(track.b)
            alive, block = weakref.ref(stream), cd.use_stream(stream)
            del stream
            made, is_left = left_within(lambda: IN_A_BLOCK[call](track), block, collections)
            del block
            collections += 1
            ready = made[0] if isinstance(made, tuple) else made
            assert ready.stream != track.b or alive() is not None, f"left by collection {collections}"
            del made, ready
            gc.collect()
            assert alive() is None
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    if collections == 1 and sys.version_info >= (3, 14):
        pytest.skip("not run: CPython collects nothing during this call")
    assert collections > 1


def test_a_collection_that_leaves_a_block_is_not_undone_by_another_block(track: Track) -> None:
    """The one that is entered and left meanwhile."""

    def inner() -> None:
        with cd.use_stream(track.a, device_id=0):
            pass

    inner()
    thresholds, is_left, collections = gc.get_threshold(), True, 0
    gc.disable()
    try:
        while is_left:
            _, is_left = left_within(inner, cd.use_stream(track.b, device_id=0), collections)
            assert cd.from_dlpack(tensor_of(track)).stream == LEGACY, f"left by collection {collections}"
            gc.collect()
            collections += 1
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    assert collections > 1


#: Each uses the stream of the block, and asks the producer's table for its own, whose code may do anything.
ASKING: dict[str, Callable[[cd.CaiView], Any]] = {
    "__dlpack__": lambda view: view.__dlpack__(max_version=(1, 3)),
    "a copy": lambda view: view.__dlpack__(copy=True, max_version=(1, 3)),
    "explain": lambda view: cd.explain(view, to="tvm_ffi"),
    "from_dlpack": lambda view: cd.from_dlpack(view, copy=True),
    "to": lambda view: cd.to(view, "tvm_ffi"),
}


@pytest.mark.parametrize("call", ASKING)
def test_a_block_that_the_producers_table_leaves_has_its_stream_kept(call: str, track: Track) -> None:
    open_blocks: list[Any] = []

    def work_stream(_type: int, _id: int, out: Any) -> int:
        if open_blocks:
            open_blocks.pop().__exit__(None, None, None)
        out[0] = track.a
        return 0

    producer = exchange.Producer(abi.make(device=(abi.CUDA, 0), data=track.data))
    table = exchange.table(producer, work_stream=exchange.WorkStream(work_stream))
    view = cd.view(exchange.make_type(exchange.capsule(table), producer)())
    ASKING[call](view)  # what is made once is made here
    stream = OwningStream(track.machine.stream(), track.machine.destroy_stream)
    handle = stream.handle
    open_blocks.append(cd.use_stream(stream).__enter__())
    del stream
    track.machine.clear()
    made = ASKING[call](view)
    assert not open_blocks
    if isinstance(made, cd.CaiView) and made.stream == handle:
        assert "cuStreamDestroy" not in track.machine.names()
    del made
    gc.collect()
    named = [name for name, of in track.machine.calls() if of == handle]
    assert named[-1] == "cuStreamDestroy"
    assert named.count("cuStreamDestroy") == 1


class LeavingArgument(StreamObject):
    """An argument whose code leaves the block of the caller."""

    open_blocks: ClassVar[list[Any]] = []

    def __cuda_stream__(self) -> tuple[int, int]:
        self.leave()
        return super().__cuda_stream__()

    def __index__(self) -> int:
        self.leave()
        return 1

    def leave(self) -> None:
        if self.open_blocks:
            self.open_blocks.pop().__exit__(None, None, None)


#: Each imports what is ready on the stream of the block, and then reads an argument.
READING: dict[str, Callable[[Any, Any], Any]] = {
    "to_dlpack": lambda array, argument: cd.to_dlpack(array, stream=argument),
    "to_dlpack, max_version": lambda array, argument: cd.to_dlpack(array, max_version=(argument, argument)),
    "to_dlpack, copy": lambda array, argument: cd.to_dlpack(array, stream=argument, copy=True),
    "view": lambda array, argument: cd.view(array).__dlpack__(stream=argument, max_version=(1, 3)),
    "on": lambda array, argument: cd.view(array).on(argument),
    "join": lambda array, argument: cd.join([cd.view(array), argument], on=argument),
    "from_dlpack": lambda array, argument: cd.from_dlpack(array, stream=argument),
    "to CaiView": lambda array, argument: cd.to(array, cd.CaiView, stream=argument),
    "to tvm_ffi": lambda array, argument: cd.to(array, "tvm_ffi", stream=argument),
    "to cuda.core": lambda array, argument: cd.to(array, "cuda.core", stream=argument),
    "to numba": lambda array, argument: cd.to(array, "numba", stream=argument),
}


@pytest.mark.parametrize("call", READING)
def test_a_block_that_an_argument_leaves_has_its_stream_kept(call: str, track: Track) -> None:
    array, argument = tensor_of(track), LeavingArgument(track.a)
    READING[call](array, argument)  # what is made once is made here
    stream = OwningStream(track.machine.stream(), track.machine.destroy_stream)
    handle = stream.handle
    argument.open_blocks.append(cd.use_stream(stream).__enter__())
    del stream
    track.machine.clear()
    made = READING[call](array, argument)
    assert not argument.open_blocks
    del made
    gc.collect()
    named = [name for name, of in track.machine.calls() if of == handle]
    assert named[-1] == "cuStreamDestroy"
    assert named.count("cuStreamDestroy") == 1


def test_a_module_passes_its_own_view_on_with_its_stream_object(track: Track) -> None:
    """To itself: as an argument of a function in Rust it is of the module's own class."""
    passed = peer.view_of(track.view(track.a))
    assert kept_by(lambda stream: peer.view_of(passed.on(stream)), track.b)
    assert kept_by(lambda stream: peer.view_of(peer.view_of(passed.on(stream))), track.b)


def test_what_is_ready_there_is_the_view_itself(track: Track) -> None:
    view, stream = track.view(track.a), StreamObject(track.a)
    kept = view.on(stream)
    assert view.on(track.a) is view
    assert kept is not view
    assert all(found is kept for found in (kept.on(stream), kept.on(track.a), cd.join([kept], on=stream)[0]))
    ready = track.view(None)
    assert ready.on(stream) is ready


def test_the_producers_stream_object_lives_on_in_what_is_made_of_the_view(track: Track) -> None:
    """The return edge of a view that has moved on goes to the producer's stream, which must be there."""

    def moved(stream: Any) -> Any:
        return cd.view(track.producer(None), producer_stream=stream, device_id=0).on(track.b)

    def lent(stream: Any) -> Any:
        loan = moved(stream).consume(track.b)
        return loan, loan.__enter__()

    assert kept_by(moved, track.a)
    assert kept_by(lambda s: cd.view(moved(s), read_only=True), track.a)
    assert kept_by(lambda s: cd.join([moved(s)], on=1), track.a)
    assert kept_by(lambda s: moved(s).synchronize(), track.a)
    with pytest.warns(ResourceWarning):
        assert kept_by(lent, track.a)


# --- refused ------------------------------------------------------------------------------------------


def join_on(view: cd.CaiView, stream: Any) -> object:
    return cd.join([view], on=stream)


def join_item(view: cd.CaiView, stream: Any) -> object:
    return cd.join([view, stream], on=LEGACY)


def consume(view: cd.CaiView, stream: Any) -> object:
    return view.consume(stream)


def on(view: cd.CaiView, stream: Any) -> object:
    return view.on(stream)


def use_stream(view: cd.CaiView, stream: Any) -> object:
    return cd.use_stream(stream)


def producer_stream(view: cd.CaiView, stream: Any) -> object:
    return cd.view(view, producer_stream=stream)


def from_dlpack(view: cd.CaiView, stream: Any) -> object:
    return cd.from_dlpack(view, stream=stream)


def dlpack(view: cd.CaiView, stream: Any) -> object:
    return view.__dlpack__(stream=stream, max_version=(1, 3))


def to_dlpack(view: cd.CaiView, stream: Any) -> object:
    return cd.to_dlpack(view, stream=stream)


NAMED = [on, consume, join_on, join_item, use_stream, producer_stream, from_dlpack]
ASKED = [dlpack, to_dlpack]


class Raises:
    def __cuda_stream__(self) -> tuple[int, int]:
        raise LookupError("the stream's own trouble")


WRONG: list[Any] = [
    (0, ValueError, "stream-zero"),
    (-2, ValueError, "stream-range"),
    (2**64, ValueError, "stream-range"),
    (-(2**64), ValueError, "stream-range"),
    (True, TypeError, "stream-type"),
    ("1", TypeError, "stream-type"),
    (1.0, TypeError, "stream-type"),
    pytest.param(object(), TypeError, "stream-type", id="object()"),
    ((0, 7), TypeError, "stream-type"),
    (StreamObject(-1), ValueError, "stream-range"),
    (StreamObject(2**64), ValueError, "stream-range"),
    (StreamObject(True), TypeError, "stream-object"),
    (StreamObject("7"), TypeError, "stream-object"),  # type: ignore[arg-type]
    (StreamObject(None), TypeError, "stream-object"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("give", NAMED + ASKED, ids=lambda give: give.__name__)
@pytest.mark.parametrize(("stream", "raises", "rule"), WRONG, ids=lambda value: repr(value)[:24])
def test_a_wrong_stream_is_refused_before_anything_is_called(
    stream: Any, raises: type[Exception], rule: str, give: Callable[[cd.CaiView, Any], object], track: Track
) -> None:
    view = track.view(track.a)
    state = (view.stream, view.producer_stream, view.ptr, cd.stats()["open_guards"])
    track.machine.clear_own()
    with nothing_changes(view, stream):
        found = refuse(lambda: give(view, stream), raises)
    check_refusal(found, rule, None)
    assert track.machine.calls() == []
    assert (view.stream, view.producer_stream, view.ptr, cd.stats()["open_guards"]) == state


@pytest.mark.parametrize("give", [on, consume, join_on, join_item, use_stream], ids=lambda give: give.__name__)
@pytest.mark.parametrize("stream", [None, -1])
def test_who_asks_for_a_stream_by_name_gets_no_order_without_one(
    stream: Any, give: Callable[[cd.CaiView, Any], object], track: Track
) -> None:
    track.machine.clear_own()
    found = refuse(lambda: give(track.view(track.a), stream), TypeError if stream is None else ValueError)
    check_refusal(found, "stream-none" if stream is None else "stream-range", None)
    assert track.machine.calls() == []


@pytest.mark.parametrize("give", NAMED + ASKED, ids=lambda give: give.__name__)
def test_a_stream_objects_own_exception_passes_through(give: Callable[[cd.CaiView, Any], object], track: Track) -> None:
    with pytest.raises(LookupError, match="own trouble"):
        give(track.view(track.a), Raises())
    assert track.machine.order() == []


# --- destroyed ----------------------------------------------------------------------------------------


def enter(view: cd.CaiView, stream: Any) -> object:
    with view.consume(stream):
        raise AssertionError("entered")


@pytest.mark.parametrize("give", [on, enter, join_on, dlpack, to_dlpack], ids=lambda give: give.__name__)
@pytest.mark.parametrize("side", ["ready", "requested"])
def test_a_destroyed_stream_is_a_driver_error(
    side: str, give: Callable[[cd.CaiView, Any], object], track: Track, machine: Machine
) -> None:
    dead = machine.stream()
    machine.destroy_stream(dead)
    made = abi.make(device=(abi.CUDA, 0), data=track.data)
    view = cd.from_dlpack(made.capsule(), producer_stream=dead if side == "ready" else track.a)
    if side == "ready":
        view = cd.view(view, producer_stream=dead)
    state, current = (view.stream, view.producer_stream, cd.stats()["open_guards"]), machine.current()
    with pytest.raises(cd.DriverError) as caught:
        give(cd.view(view, producer_stream=dead if side == "ready" else track.a), track.b if side == "ready" else dead)
    assert (caught.value.code, caught.value.name) == (400, "CUDA_ERROR_INVALID_HANDLE")
    assert caught.value.call.startswith("cu")
    assert (view.stream, view.producer_stream, cd.stats()["open_guards"]) == state
    assert machine.current() == current
    del caught
    gc.collect()
    assert made.released == 0
    machine.clear()
    track.view(track.a).on(track.b)
    assert machine.order() == one_event(track.a, track.b), "the next order is as good as any"


def test_the_producer_is_let_go_of_after_a_refusal(track: Track) -> None:
    wrong: Any = "1"
    for give in (
        lambda producer: cd.to_dlpack(producer, stream=0, device_id=0),
        lambda producer: cd.view(producer, producer_stream=wrong, device_id=0),
    ):
        producer = Cai(interface(data=(track.data, False), stream=track.a))
        alive = weakref.ref(producer)
        with pytest.raises((ValueError, TypeError)):
            give(producer)
        del producer
        gc.collect()
        assert alive() is None
