"""Code that runs in the midst of a call: what it ends, or makes current, counts for the rest of the call."""

from __future__ import annotations

import contextvars
import ctypes
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi, exchange

from conformance.tests.doubles.hooks import Hook, HookedStream, exchanger
from conformance.tests.doubles.producers import Cai, Dlpack, OwningStream, interface
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.simulated.machine import Machine, one_event
from conformance.tests.streams.race import LEGACY, NBYTES, PER_THREAD, Track

VERSION = (1, 1)


class Receiver:
    """A class of a consumer, whose table makes the same object of every tensor."""

    def __init__(self, hook: Hook, track: Track) -> None:
        def to_object(_tensor: object, out: Any) -> int:
            out[0] = id(self.made)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.made))
            return 0

        to = exchange.ToObject(to_object)
        self.made = exchanger(hook, track.b, (abi.CUDA, 0), track.data, to_object=to)


def owned(lent: cd.CaiView) -> None:
    """As an extension imports it, by the table of views."""
    function, out = exchange.FromObject(exchange.table_of(cd.CaiView).from_object), ctypes.c_void_p()
    if function(id(lent), ctypes.byref(out)):
        raise AssertionError("no exception is set")


Route = Callable[[cd.CaiView, Any], object]

#: Routes that read a stream.
BY_STREAM: dict[str, Route] = {
    "__dlpack__": lambda lent, stream: lent.__dlpack__(stream=stream, max_version=VERSION),
    "__dlpack__, a copy": lambda lent, stream: lent.__dlpack__(stream=stream, copy=True),
    "to_dlpack": lambda lent, stream: cd.to_dlpack(lent, stream=stream, max_version=VERSION),
    "to_dlpack, a copy": lambda lent, stream: cd.to_dlpack(lent, stream=stream, copy=True),
    "to cuda.core": lambda lent, stream: cd.to(lent, "cuda.core", stream=stream),
    "to tvm_ffi": lambda lent, stream: cd.to(lent, "tvm_ffi", stream=stream),
    "a nested block": lambda lent, stream: lent.consume(stream).__enter__(),
}
#: Those that ask the producer where it works.
BY_TABLE: dict[str, Route] = {
    **BY_STREAM,
    "the interface": lambda lent, _: lent.__cuda_array_interface__,
    "to_cai": lambda lent, _: lent.to_cai(),
    "the exchange table": lambda lent, _: owned(lent),
}


@pytest.mark.parametrize("name", BY_STREAM)
def test_a_block_that_the_code_of_a_stream_ends_lends_nothing(name: str, track: Track) -> None:
    hook = Hook()
    block = track.view(track.a).consume(track.b)
    lent = block.__enter__()
    hook.then = lambda: block.__exit__(None, None, None)
    stream = HookedStream(track.b, hook)
    check_refusal(refuse(lambda: BY_STREAM[name](lent, stream), BufferError), "scope-ended", None)


@pytest.mark.parametrize("name", BY_TABLE)
def test_a_block_that_the_producers_table_ends_lends_nothing(name: str, track: Track) -> None:
    hook = Hook()
    view = cd.view(exchanger(hook, track.a, (abi.CUDA, 0), track.data))
    block = view.consume(track.a)
    lent = block.__enter__()
    hook.then = lambda: block.__exit__(None, None, None)
    check_refusal(refuse(lambda: BY_TABLE[name](lent, track.b), BufferError), "scope-ended", None)


def test_a_block_that_the_consumers_table_ends_lends_nothing(track: Track) -> None:
    hook = Hook()
    receiver = Receiver(hook, track)
    block = track.view(track.a).consume(track.b)
    lent = block.__enter__()
    assert cd.to(lent, type(receiver.made)) is receiver.made
    hook.then = lambda: block.__exit__(None, None, None)
    check_refusal(refuse(lambda: cd.to(lent, type(receiver.made)), BufferError), "scope-ended", None)


#: Routes by which the host reads.
BY_HOST: dict[str, Callable[[cd.CaiView], object]] = {
    "a buffer": memoryview,
    "the array interface": lambda lent: lent.__array_interface__,
    "an array": np.asarray,
    "from_dlpack": np.from_dlpack,
    "to_dlpack": lambda lent: cd.to_dlpack(lent, stream="host"),
}


@pytest.mark.parametrize("name", BY_HOST)
def test_a_block_that_another_thread_ends_while_the_host_waits_lends_nothing(
    name: str, track: Track, machine: Machine
) -> None:
    view = cd.view(Cai(interface(data=(machine.pinned_memory(NBYTES), False), stream=track.a)))
    block = view.consume(track.b)
    lent = block.__enter__()
    gate = track.control.gate(track.b)

    def end() -> None:
        time.sleep(0.05)
        block.__exit__(None, None, None)
        gate.open()

    thread = threading.Thread(target=end)
    thread.start()
    check_refusal(refuse(lambda: BY_HOST[name](lent), BufferError), "scope-ended", None)
    thread.join()


def test_the_block_of_a_call_has_ended_in_copies_of_the_context_too(track: Track) -> None:
    """As a task has one that is made while a library imports."""
    array, copies = Dlpack(abi.make(device=(abi.CUDA, 0), data=track.data)), list[contextvars.Context]()
    hook = Hook()
    view = cd.view(exchanger(hook, track.a, (abi.CUDA, 0), track.data))
    cd.to(view, "tvm_ffi", stream=track.b)

    def copied() -> None:
        hook.then = copied
        copies.append(contextvars.copy_context())

    hook.then = copied
    cd.to(view, "tvm_ffi", stream=track.b)
    assert copies
    assert {copy.run(lambda: cd.from_dlpack(array).stream) for copy in copies} == {LEGACY}


# --- another context ----------------------------------------------------------------------------------------


@pytest.fixture
def contexts(track: Track, machine: Machine) -> Iterator[tuple[int, int]]:
    """The primary context of device 0, which is current, and another one there; nothing runs until somebody waits."""
    first, second = machine.context(0), machine.create_context(0)
    before, track.control.schedule, own = track.control.schedule, "lazy", track.data
    track.data = machine.pinned_memory(NBYTES)
    machine.write(track.data, bytes(NBYTES))
    machine.set_current(0)
    yield first, second
    for context in (first, second):
        machine.enter(context)
        machine._call("cuCtxSynchronize")
    machine._call("cuMemFreeHost", ctypes.c_void_p(track.data))
    track.control.schedule, track.data = before, own
    machine.set_current(0)
    machine.destroy_context(second)


@pytest.mark.parametrize("default", [LEGACY, PER_THREAD])
@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize("nth", [1, 2])
def test_both_edges_of_a_block_are_of_the_context_that_the_producers_table_leaves(
    nth: int, is_moved: bool, default: int, contexts: tuple[int, int], track: Track, machine: Machine
) -> None:
    """After the call a default stream is that of the context that is current then."""
    hook, asked = Hook(), 0

    def switch() -> None:
        nonlocal asked
        asked += 1
        if asked == nth:
            machine.enter(contexts[1])
        else:
            hook.then = switch

    view = cd.view(exchanger(hook, track.a, (abi.CUDA_HOST, 0), track.data))
    track.write(track.a, 1)
    view = view.on(track.b) if is_moved else view
    hook.then = switch
    with view.consume(default):
        hook.then = None
        track.read(default)
    machine.set_current(0)
    track.write(track.a, 2)
    track.wait(track.a)
    assert track.seen() == 1


@pytest.mark.parametrize("default", [LEGACY, PER_THREAD])
@pytest.mark.parametrize("second_item", ["a stream's code", "the iterator"])
def test_a_default_stream_is_of_the_context_that_was_current_when_it_was_handed_out(
    second_item: str, default: int, contexts: tuple[int, int], track: Track, machine: Machine
) -> None:
    hook = Hook()
    hook.then = lambda: machine.enter(contexts[1])

    def items() -> Iterator[Any]:
        yield default
        if second_item == "the iterator":
            hook()
            yield default
        else:
            yield HookedStream(track.a, hook)

    track.write(default, 1)
    cd.join(items(), on=track.b)
    machine.set_current(0)
    track.read(track.b)
    track.wait(track.b)
    assert track.seen() == 1


class Switching(Dlpack):
    """Makes the data ready on the stream that it is asked for, and leaves another context current."""

    def __init__(self, track: Track, hook: Hook) -> None:
        super().__init__(abi.make(device=(abi.CUDA_HOST, 0), data=track.data))
        self.track, self.hook = track, hook

    def __dlpack__(self, **keywords: Any) -> object:
        if keywords["stream"] not in (None, -1):
            self.track.view(self.track.a).on(keywords["stream"])
        self.hook()
        return super().__dlpack__(**keywords)


@pytest.mark.parametrize("option", ["stream", "producer_stream"])
def test_an_import_is_ready_on_the_default_stream_that_the_caller_named(
    option: str, contexts: tuple[int, int], track: Track, machine: Machine
) -> None:
    hook, size = Hook(), ctypes.c_size_t(NBYTES)
    hook.then = lambda: machine.enter(contexts[1])
    source, data = machine.device_memory(NBYTES), track.data
    track.data = source
    track.write(LEGACY, 1)
    track.data = data
    track._do("cuMemcpyAsync", ctypes.c_uint64(data), ctypes.c_uint64(source), size, ctypes.c_void_p(LEGACY))
    named: Any = {option: LEGACY}
    view = cd.from_dlpack(Switching(track, hook), **named)
    machine.set_current(0)
    view.on(track.b)
    track.read(track.b)
    track.wait(track.b)
    assert track.seen() == 1


# --- what keeps a stream ------------------------------------------------------------------------------------


def ends_with(made: Callable[[Any, int], Any], track: Track, machine: Machine) -> bool:
    """Whether a stream lives as long as what was made with its object, and no longer."""
    handle = machine.stream()
    stream = OwningStream(handle, machine.destroy_stream)
    kept = made(stream, handle)
    machine.clear()
    del stream
    gc.collect()
    is_kept = "cuStreamDestroy" not in machine.names()
    del kept
    gc.collect()
    return is_kept and "cuStreamDestroy" in machine.names()


RENAMED: dict[str, Callable[[cd.CaiView, int], object]] = {
    "on": lambda view, handle: view.on(handle),
    "to": lambda view, handle: cd.to(view, cd.CaiView, stream=handle),
    "view": lambda view, handle: cd.view(view, producer_stream=handle),
    "from_cai": lambda view, handle: cd.from_cai(view, producer_stream=handle),
    "join": lambda view, handle: cd.join([view], on=handle)[0],
}


@pytest.mark.parametrize("memory", ["device", "pinned"])
@pytest.mark.parametrize("name", RENAMED)
def test_a_stream_that_is_named_again_by_its_number_is_kept(
    name: str, memory: str, track: Track, machine: Machine
) -> None:
    data = track.data if memory == "device" else machine.pinned_memory(NBYTES)
    view = cd.view(Cai(interface(data=(data, False), stream=track.a)))
    assert ends_with(lambda stream, handle: RENAMED[name](view.on(stream), handle), track, machine)


def test_a_block_of_a_number_keeps_what_the_block_around_it_keeps(track: Track, machine: Machine) -> None:
    array = Dlpack(abi.make(device=(abi.CUDA, 0), data=track.data))

    def made(stream: Any, handle: int) -> cd.CaiView:
        with cd.use_stream(stream), cd.use_stream(handle):
            return cd.from_dlpack(array)

    assert ends_with(made, track, machine)


@pytest.mark.parametrize("ready", ["everywhere", "everywhere, pinned", "there"])
def test_a_join_lets_go_of_what_it_does_not_keep(ready: str, track: Track, machine: Machine) -> None:
    """At once, and not when PyO3 is next called."""
    data = machine.pinned_memory(NBYTES) if "pinned" in ready else track.data

    def made(stream: Any, _handle: int) -> object:
        view = track.view(track.a).on(stream) if ready == "there" else cd.view(Cai(interface(data=(data, False))))
        return view, cd.join([view], on=stream)

    if ready == "there":
        assert ends_with(made, track, machine)
        return
    handle = machine.stream()
    stream = OwningStream(handle, machine.destroy_stream)
    kept = made(stream, handle)
    machine.clear()
    del stream
    assert machine.names() == ["cuStreamDestroy"]
    del kept


def test_the_order_of_a_call_that_is_not_interrupted_is_as_it_was(track: Track) -> None:
    """The control: hooks that do nothing."""
    stream = HookedStream(track.b, Hook())
    with track.view(track.a).consume(track.b) as lent:
        track.machine.clear()
        cd.to_dlpack(lent, stream=HookedStream(track.a, Hook()), max_version=VERSION)
        assert track.machine.order() == one_event(track.b, track.a)
        assert cd.to_dlpack(lent, stream=stream)
