"""Tests `cd.use_stream`, the work stream that the C Exchange API reports, by tvm-ffi."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any

import cai_dlpack as cd
import pytest
import tvm_ffi

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.interpreter.threads import THREADS_INHERIT
from conformance.tests.simulated.capture import GLOBAL, RELAXED, THREAD_LOCAL, Captures
from conformance.tests.simulated.machine import Machine, one_event
from conformance.tests.streams.race import LEGACY, PER_THREAD, Calls, Track


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
@pytest.mark.parametrize("captured", ["ready", "block", "blocking"])
def test_a_bare_request_that_is_refused_touches_no_stream(
    captured: str, mode: int, sync: Any, track: Track, machine: Machine
) -> None:
    """In a block there are two orders: what forbids the second is found before the first is made."""
    blocking, captures = machine.stream(0, 0), Captures(machine)
    streams = {"ready": [track.a], "block": [track.b], "blocking": [blocking]}[captured]
    view = cd.view(track.producer(track.a))
    for stream in streams:
        captures.begin(stream, mode)
    machine.clear()
    with cd.use_stream(track.b), cd.policy(sync=sync):
        refused = refuse(lambda: view.__dlpack__(), BufferError)
    made = ORDERING & {*machine.names()}
    for stream in streams:
        captures.end(stream)
    assert refused.rule in {"capture-legacy", "capture-consumer", "capture-producer", "capture-host"}
    assert not made


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
