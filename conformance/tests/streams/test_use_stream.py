"""Tests `cd.use_stream`, the work stream that the C Exchange API reports, by tvm-ffi."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
import tvm_ffi
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.interpreter.threads import THREADS_INHERIT
from conformance.tests.simulated.capture import GLOBAL, RELAXED, THREAD_LOCAL, Captures
from conformance.tests.simulated.machine import Machine, one_event
from conformance.tests.streams.race import LEGACY, NBYTES, PER_THREAD, Calls, Track


@pytest.fixture
def captures(track: Track) -> Iterator[Captures]:
    """Captures that are ended, whatever happens in them."""
    made = Captures(track.machine)
    yield made
    made.close()


def asked(track: Track, machine: Machine, ordinal: int = 0) -> Calls:
    """Returns the waits of passing a view, ready on a, to a tvm-ffi function."""
    view = cd.view(track.producer(track.a), device_id=ordinal)
    machine.clear()
    tvm_ffi.convert(lambda tensor: None)(view)
    return machine.order()


def test_without_a_block_it_is_the_legacy_default_stream(track: Track, machine: Machine) -> None:
    assert asked(track, machine) == one_event(track.a, LEGACY)


def test_blocks_nest_and_end_with_an_exception(track: Track, machine: Machine) -> None:
    def inside() -> None:
        with cd.use_stream(track.a):
            assert asked(track, machine) == []
            raise LookupError

    with cd.use_stream(track.b):
        assert asked(track, machine) == one_event(track.a, track.b)
        with pytest.raises(LookupError):
            inside()
        assert asked(track, machine) == one_event(track.a, track.b)
    assert asked(track, machine) == one_event(track.a, LEGACY)


def test_each_device_has_its_own(track: Track, machine: Machine) -> None:
    there = Track(machine, ordinal=1)
    machine.set_current(0)
    with cd.use_stream(there.b, device_id=1):
        assert asked(track, machine) == one_event(track.a, LEGACY)
        assert asked(there, machine, ordinal=1) == one_event(there.a, there.b)
        with cd.use_stream(track.b):
            assert asked(track, machine) == one_event(track.a, track.b)
            assert asked(there, machine, ordinal=1) == one_event(there.a, there.b)
    machine.set_current(1)
    there.close()


@pytest.mark.parametrize("kind", ["pinned", "managed"])
@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("blocks", [[0], [1], [0, 1], [1, 0]], ids=str)
def test_memory_of_every_device_counts_as_the_current_contexts(
    blocks: list[int], current: int, kind: str, machine: Machine
) -> None:
    """Pinned and managed memory has no device of its own: its work is the current device's."""
    ready, streams = machine.stream(current), [machine.stream(0), machine.stream(1)]
    pointer = machine.pinned_memory(24) if kind == "pinned" else machine.managed_memory(24)
    with contextlib.ExitStack() as opened:
        for ordinal in blocks:
            opened.enter_context(cd.use_stream(streams[ordinal], device_id=ordinal))
        machine.set_current(current)
        view = cd.view(Cai(interface(data=(pointer, False), stream=ready)))
        machine.clear()
        tvm_ffi.convert(lambda tensor: None)(view)
        found = machine.order()
    assert found == one_event(ready, streams[current] if current in blocks else LEGACY)


def test_the_driver_knows_the_device_of_a_stream(track: Track, machine: Machine) -> None:
    """Of a handle by its context, of a default stream by the thread's; the thread's stays what it was."""
    there = Track(machine, ordinal=1)
    machine.set_current(0)
    with cd.use_stream(there.b):
        assert asked(there, machine, ordinal=1) == one_event(there.a, there.b)
        assert asked(track, machine) == one_event(track.a, LEGACY)
    machine.set_current(1)
    with cd.use_stream(PER_THREAD):
        assert asked(there, machine, ordinal=1) == one_event(there.a, PER_THREAD)
    there.close()


def test_a_destroyed_stream_is_an_error_and_no_block(track: Track, machine: Machine) -> None:
    stream = machine.stream()
    machine.destroy_stream(stream)
    with pytest.raises(cd.DriverError, match="cuStreamGetCtx"):
        cd.use_stream(stream)
    assert asked(track, machine) == one_event(track.a, LEGACY)


def test_each_thread_has_its_own(track: Track, machine: Machine) -> None:
    found: list[Calls] = []

    def work() -> None:
        machine.set_current(0)
        found.append(asked(track, machine))

    with cd.use_stream(track.b):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [one_event(track.a, track.b if THREADS_INHERIT else LEGACY)]


def test_blocks_of_generators_end_in_any_order(track: Track, machine: Machine) -> None:
    def inside(stream: int) -> Generator[None, None, None]:
        with cd.use_stream(stream):
            yield

    first, second = inside(track.b), inside(track.a)
    next(first)
    next(second)
    first.close()
    assert asked(track, machine) == []
    second.close()
    assert asked(track, machine) == one_event(track.a, LEGACY)


def test_a_function_on_the_work_stream_finds_each_view_ready_under_every_order(track: Track, machine: Machine) -> None:
    """Two views, ready on two streams, go to one call: its stream waits for both."""
    third, other = machine.stream(), machine.device_memory(24)
    mine = track.data
    outcomes = set()

    def body(x: Any, y: Any) -> None:
        for tensor, target in ((x, 0), (y, 12)):
            track.control.sum(third, track.copy + target, tensor.data_ptr(), 24, "u1")

    function = tvm_ffi.convert(body)
    for _ in track.control.orders():
        machine.write(mine, bytes(24))
        machine.write(other, bytes(24))
        track.control.store(track.a, mine, b"\x01" * 24)
        track.control.store(track.b, other, b"\x02" * 24)
        x, track.data = track.view(track.a), other
        y, track.data = track.view(track.b), mine
        with cd.use_stream(third):
            function(x, y)
        for stream in (third, track.a, track.b):
            track.wait(stream)
        outcomes.add((machine.read(track.copy, 1), machine.read(track.copy + 12, 1)))
    assert outcomes == {(b"\x18", b"\x30")}
    machine.destroy_stream(third)
    machine.free(other)


@pytest.mark.parametrize(
    ("ordinal", "raises", "rule"),
    [(-1, ValueError, "device-id-range"), ("0", TypeError, "argument-type"), (True, TypeError, "argument-type")],
)
def test_a_wrong_ordinal(ordinal: Any, raises: type[Exception], rule: str, track: Track, machine: Machine) -> None:
    make: Callable[[], object] = lambda: cd.use_stream(track.b, device_id=ordinal)  # noqa: E731
    check_refusal(refuse(make, raises), rule, "device_id")
    assert asked(track, machine) == one_event(track.a, LEGACY)


ORDERING = {"cuEventRecord", "cuStreamWaitEvent", "cuStreamSynchronize", "cuCtxSynchronize"}


@pytest.mark.parametrize("sync", ["event", "host"])
@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
@pytest.mark.parametrize("captured", ["ready", "block"])
def test_a_bare_request_that_is_refused_touches_no_stream(
    captured: str, mode: int, sync: Any, track: Track, machine: Machine
) -> None:
    """In a block there are two orders: what forbids the second is found before the first is made."""
    captures = Captures(machine)
    streams = {"ready": [track.a], "block": [track.b]}[captured]
    view = cd.view(track.producer(track.a))
    for stream in streams:
        captures.begin(stream, mode)
    machine.clear()
    with cd.use_stream(track.b), cd.policy(sync=sync):
        refused = refuse(lambda: view.__dlpack__(), BufferError)
    made = ORDERING & {*machine.names()}
    for stream in streams:
        captures.end(stream)
    assert refused.rule in {"capture-consumer", "capture-producer"}
    assert not made


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("max_version", [None, (1, 1)])
@pytest.mark.parametrize("work", ["ready", "forked"])
def test_in_a_capture_the_stream_of_the_block_waits_alone(
    work: str,
    max_version: tuple[int, int] | None,
    blocking: bool,
    mode: int,
    track: Track,
    captures: Captures,
    machine: Machine,
) -> None:
    """A consumer that names no stream: the legacy default one must not be used, and the caller has named another."""
    ready, forked = (machine.stream(0, 0 if blocking else 1) for _ in range(2))
    view = cd.view(track.producer(ready))
    captures.begin(ready, mode)
    captures.fork(ready, forked)
    machine.clear()
    refused = refuse(lambda: view.__dlpack__(max_version=max_version), BufferError)
    assert refused.rule == "capture-legacy" and "with cd.use_stream(stream)" in refused.message
    assert not ORDERING & {*machine.names()}
    with cd.use_stream({"ready": ready, "forked": forked}[work]):
        view.__dlpack__(max_version=max_version)
    found = machine.order()
    captures.fork(forked, ready)
    graph = captures.end(ready)
    assert found == (one_event(ready, forked) if work == "forked" else [])
    assert captures.nodes(graph) == 0


def test_data_that_is_older_than_the_capture_is_made_ready_before_it(
    track: Track, captures: Captures, machine: Machine
) -> None:
    view = cd.view(track.producer(track.a))
    before = view.on(track.b)
    captures.begin(track.b)
    machine.clear()
    with cd.use_stream(track.b):
        before.__dlpack__(max_version=(1, 1))
        assert refuse(lambda: view.__dlpack__(max_version=(1, 1)), BufferError).rule == "capture-consumer"
    assert machine.order() == []
    captures.end(track.b)


def test_an_unrelated_capture_leaves_the_stream_of_the_block(
    track: Track, captures: Captures, machine: Machine
) -> None:
    """Nobody can use the legacy default stream beside it."""
    blocking = machine.stream(0, 0)
    view = cd.view(track.producer(track.a))
    captures.begin(blocking)
    machine.clear()
    with cd.use_stream(track.b):
        view.__dlpack__()
    assert machine.order() == one_event(track.a, track.b)
    assert captures.state(blocking) == 1
    captures.end(blocking)


def test_outside_a_capture_both_streams_wait(track: Track, machine: Machine) -> None:
    """The consumer may work on the legacy default stream all the same, as the array API has it."""
    view = cd.view(track.producer(track.a))
    machine.clear()
    with cd.use_stream(track.b):
        view.__dlpack__(max_version=(1, 1))
    assert machine.order() == one_event(track.a, track.b) + one_event(track.a, LEGACY)


@pytest.mark.parametrize("schedule", ["lazy", "threaded"])
@pytest.mark.parametrize("reader", ["block", "legacy"])
@pytest.mark.parametrize("source", [0, 1])
def test_a_copy_is_ready_on_the_stream_of_the_block(source: int, reader: str, schedule: Any, machine: Machine) -> None:
    """The block of the copy's device counts; who works on the legacy default stream finds the copy ready, too."""
    there, here = Track(machine, source), Track(machine)
    machine.control.schedule = schedule
    there.busy(there.a)
    there.write(there.a, 7)
    view = cd.view(there.producer(there.a))
    with cd.use_stream(here.b, device_id=0):
        copy: Any = cd.view(view.__dlpack__(max_version=(1, 1), dl_device=(2, 0), copy=source == 0 or None))
    used = here.b if reader == "block" else LEGACY
    read = (ctypes.c_uint64(here.copy), ctypes.c_uint64(copy.ptr), ctypes.c_size_t(NBYTES), ctypes.c_void_p(used))
    assert machine.driver.cuMemcpyAsync(*read) == 0
    if reader == "block":  # where the memory ends, too
        copy = None
    here.wait(used)
    assert here.seen() == 7
    copy = None
    machine.control.schedule = "threaded"
    for track, ordinal in ((there, source), (here, 0)):
        machine.set_current(ordinal)
        track.wait(track.a)
        track.wait(track.b)
        track.close()


@pytest.mark.parametrize("schedule", ["lazy", "threaded"])
@pytest.mark.parametrize("reader", ["block", "legacy"])
def test_a_copy_in_a_block_is_there_until_both_streams_have_read_it(
    reader: str, schedule: Any, machine: Machine
) -> None:
    """Which of them the consumer works on is not known; a next copy for the block's stream marks that stream alone."""
    track = Track(machine)
    machine.control.schedule = schedule
    view = cd.view(np.full(NBYTES, 7, "u1"))
    used = track.b if reader == "block" else LEGACY
    with cd.use_stream(track.b, device_id=0):
        copy = abi.consume(view.__dlpack__(max_version=(1, 1), dl_device=(2, 0)))
        machine.control.delay(used, 0.2)
        read = (ctypes.c_uint64(track.copy), ctypes.c_uint64(copy.data), ctypes.c_size_t(NBYTES))
        assert machine.driver.cuMemcpyAsync(*read, ctypes.c_void_p(used)) == 0
        abi.release(copy)
        others = [abi.consume(view.__dlpack__(max_version=(1, 1), dl_device=(2, 0))) for _ in range(3)]
        track.wait(track.b)
    track.wait(used)
    assert track.seen() == 7
    for other in others:
        abi.release(other)
    machine.control.schedule = "threaded"
    track.close()


@pytest.mark.parametrize("captured", ["", "a", "b", "ab", "other"])
@pytest.mark.parametrize("block", ["", "a", "b", "legacy"])
@pytest.mark.parametrize("sync", ["event", "host", "none"])
@pytest.mark.parametrize("max_version", [None, (1, 1)])
def test_explain_tells_the_same(
    captured: str,
    block: str,
    sync: Any,
    max_version: tuple[int, int] | None,
    track: Track,
    captures: Captures,
    machine: Machine,
) -> None:
    """Of a library that names no stream: what is refused, and which calls make the order."""
    streams = {"a": track.a, "b": track.b, "other": machine.stream(0, 0), "legacy": LEGACY}
    view = cd.view(track.producer(track.a))
    for stream in [streams["other"]] if captured == "other" else [streams[each] for each in captured[:1]]:
        captures.begin(stream)
    if captured == "ab":
        captures.fork(track.a, track.b)
    with contextlib.ExitStack() as opened:
        opened.enter_context(cd.policy(sync=sync))
        if block:
            opened.enter_context(cd.use_stream(streams[block]))
        told = cd.explain(view, to="onnxruntime")
        machine.clear()
        error: BufferError | None = None
        try:
            view.__dlpack__(max_version=max_version)
        except BufferError as refused:
            error = refused
        made = [each for each in machine.names() if each in ORDERING]
    if captured == "ab":
        captures.fork(track.b, track.a)
    for stream in list(captures.open):
        captures.end(stream)
    assert told.refused == (None if error is None else str(error).splitlines()[0])
    assert told.driver_calls is not None and list(told.driver_calls) == made


def test_a_block_of_another_kind_or_thread_changes_no_calls(track: Track, machine: Machine) -> None:
    view = cd.view(track.producer(track.a))

    def names() -> list[str]:
        machine.clear()
        view.__dlpack__()
        return machine.names()

    alone, inside, is_over = names(), threading.Event(), threading.Event()
    with cd.policy(strict=False):
        assert names() == alone

    def elsewhere() -> None:
        with cd.policy(sync="event"):
            inside.set()
            is_over.wait()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    inside.wait()
    try:
        assert names() == alone
    finally:
        is_over.set()
        thread.join()
