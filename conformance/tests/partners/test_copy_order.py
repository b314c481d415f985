"""What a copy waits for, what its end waits for, and what it leaves alone: under both schedules."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import random
import time
import weakref
from functools import partial
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.ownership.waiting import until
from conformance.tests.partners.copying import (
    LEGACY,
    MEBIBYTE,
    OLD,
    PER_THREAD,
    SIZE,
    copy_for,
    is_alive,
    is_at_most,
    memory,
    on_a_thread,
    read_on,
    release_and_wait,
    settled,
    view,
    wait,
)
from conformance.tests.simulated.capture import ACTIVE, GLOBAL, RELAXED, THREAD_LOCAL, Captures
from conformance.tests.simulated.machine import Machine

NEW = bytes([2]) * SIZE
HOST = (abi.CPU, 0)
HOST_WAITS = {"cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"}

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("schedule")]


# --- the end of a copy ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ordinal", [0, 1])
@pytest.mark.parametrize("kind", ["device", "managed", "pinned"])
def test_the_end_follows_the_stream_that_the_copy_was_made_for(kind: str, ordinal: int, machine: Machine) -> None:
    """Also a stream of another device: no free of memory waits for that one."""
    pointer, target = memory(machine, kind), machine.device_memory(SIZE)
    stream = machine.stream(ordinal)
    before = settled(machine)
    with machine.control.gate(stream):
        tensor = copy_for(view(pointer), stream)
        read_on(machine, stream, target, tensor.data)
        abi.release(tensor)
        time.sleep(0.05)
        assert is_alive(machine, tensor)
    assert wait(machine, stream) == 0
    assert machine.read(target, SIZE) == OLD
    assert until(partial(is_at_most, machine, before))


@pytest.mark.parametrize("kind", ["device", "managed", "pinned"])
@pytest.mark.parametrize("stream", [LEGACY, PER_THREAD, -1])
def test_the_end_of_a_copy_for_a_stream_without_a_handle(stream: int, kind: str, machine: Machine) -> None:
    """Work on the default streams is waited for, and after -1 that of the whole device."""
    pointer, target = memory(machine, kind), machine.device_memory(SIZE)
    worker = machine.stream() if stream == -1 else stream
    before = settled(machine)
    tensor = copy_for(view(pointer), stream)
    with machine.control.gate(worker):
        read_on(machine, worker, target, tensor.data)
        abi.release(tensor)
        time.sleep(0.05)
        assert is_alive(machine, tensor)
    assert wait(machine, worker) == 0
    assert machine.read(target, SIZE) == OLD
    assert until(partial(is_at_most, machine, before))


@pytest.mark.parametrize("ordinal", [0, 1])
def test_a_stream_that_is_gone_before_its_copy(ordinal: int, machine: Machine) -> None:
    """Its work goes on: the end waits for its context, and names the stream no more."""
    pointer, target = memory(machine, "device"), machine.device_memory(SIZE)
    stream = machine.stream(ordinal)
    before = settled(machine)
    with machine.control.gate(stream):
        tensor = copy_for(view(pointer), stream)
        read_on(machine, stream, target, tensor.data)
        machine.set_current(ordinal)
        machine.destroy_stream(stream)
        machine.set_current(0)
        machine.clear()
        abi.release(tensor)
        time.sleep(0.05)
        assert is_alive(machine, tensor)
    assert until(partial(is_at_most, machine, before))
    assert stream not in {named for _, named in machine.calls()}, (
        "the handle of a stream that is gone ends a process on a GPU"
    )
    machine.set_current(ordinal)
    assert machine.driver.cuCtxSynchronize() == 0
    assert machine.read(target, SIZE) == OLD


def test_another_stream_under_the_same_handle_is_not_taken_for_it(machine: Machine) -> None:
    pointer, target = memory(machine, "device"), machine.device_memory(SIZE)
    machine.control.set("reuse", 1)
    try:
        stream = machine.stream()
        gate = machine.control.gate(stream)
        tensor = copy_for(view(pointer), stream)
        read_on(machine, stream, target, tensor.data)
        machine.destroy_stream(stream)
        assert machine.stream() == stream, "the handle comes back"
        abi.release(tensor)
        time.sleep(0.05)
        assert is_alive(machine, tensor)
        gate.open()
        assert until(lambda: not is_alive(machine, tensor))
        assert machine.driver.cuCtxSynchronize() == 0
        assert machine.read(target, SIZE) == OLD
    finally:
        machine.control.set("reuse", 0)


@pytest.mark.parametrize("pools", [True, False], ids=["pools", "no-pools"])
@pytest.mark.parametrize("kind", ["device", "managed", "pinned"])
@pytest.mark.parametrize("default", [False, True], ids=["handle", "default"])
def test_copies_are_given_back_behind_an_unrelated_backlog(
    default: bool, kind: str, pools: bool, machine: Machine
) -> None:
    """Memory of a pool is freed; other memory, whose free waits for the device, is used anew. The stream is marked by
    the next copy for it, so that the last one stays."""
    pointer, other = memory(machine, kind), machine.stream()
    mine = LEGACY if default else machine.stream()
    source = view(pointer)
    before = settled(machine)
    if not pools:
        for nth in range(1, 102):
            machine.control.fault("cuMemAllocAsync", 801, nth)
    with machine.control.gate(other):
        for _ in range(100):
            machine.clear()
            release_and_wait(machine, copy_for(source, mine), mine)
            # What cannot be freed is taken again once the thread has seen that its stream is done.
            assert until(partial(is_at_most, machine, before + 10)), (before, machine.control.live())
    machine.control.clear_faults()
    assert until(partial(is_at_most, machine, before))


@pytest.mark.parametrize("pools", [True, False], ids=["pools", "no-pools"])
def test_copies_for_a_threads_stream_are_given_back_behind_an_unrelated_backlog(pools: bool, machine: Machine) -> None:
    """The thread marks its stream in the next copy, as no other thread can name it."""
    source, other = view(memory(machine, "device")), machine.stream()
    before = settled(machine)
    for nth in range(1, 102 * (not pools)):
        machine.control.fault("cuMemAllocAsync", 801, nth)
    with machine.control.gate(other):
        machine.control.store(other, memory(machine, "device"), bytes(SIZE))
        for _ in range(100):
            machine.clear()
            release_and_wait(machine, copy_for(source, PER_THREAD), PER_THREAD)
        # One waits for the device in the thread that frees.
        assert machine.control.live().allocations - before <= 10
    machine.control.clear_faults()


@pytest.mark.parametrize("full", [1, 7])
def test_streams_that_take_no_more_work_delay_no_other_streams_copies(full: int, machine: Machine) -> None:
    """The driver blocks who enqueues on them: the thread that marks the end of a copy."""
    source, target, capacity = view(memory(machine, "device")), memory(machine, "device"), 4
    streams, other = [machine.stream() for _ in range(full)], machine.stream()
    usual, before = machine.control.get("queue"), settled(machine)
    tensors = [copy_for(source, stream) for stream in streams]
    assert [wait(machine, stream) for stream in streams] == [0] * full
    with contextlib.ExitStack() as gates:
        gates.callback(machine.control.set, "queue", usual)
        machine.control.set("queue", capacity)
        for stream in streams:
            gates.enter_context(machine.control.gate(stream))
            while machine.control.pending(stream) < capacity:
                machine.control.store(stream, target, bytes(1))
        for tensor in tensors:
            abi.release(tensor)
        for _ in range(3):
            abi.release(copy_for(source, other))
            assert wait(machine, other) == 0
            # The last one is marked by the next; and a byte, by which the context is waited for.
            assert until(partial(is_at_most, machine, before + full + 2))
        assert all(is_alive(machine, tensor) for tensor in tensors)
    assert until(partial(is_at_most, machine, before))


@pytest.mark.parametrize("stream", [LEGACY, PER_THREAD])
def test_a_default_stream_is_used_by_calls_for_it_alone(stream: int, machine: Machine) -> None:
    """Not by the library's threads: 2 is their own there, and 1 would break a capture of a blocking stream."""
    source, before = view(memory(machine, "device")), settled(machine)
    tensor = copy_for(source, stream)
    assert wait(machine, stream) == 0
    machine.clear()
    abi.release(tensor)
    assert until(partial(is_at_most, machine, before))
    assert stream not in {named for _, named in machine.calls()}, machine.calls()


def test_a_copy_for_a_threads_stream_that_another_thread_drops(machine: Machine) -> None:
    """Its end comes after that thread's stream, whichever thread makes the next copy."""
    source, target = view(memory(machine, "device")), machine.device_memory(SIZE)
    before = settled(machine)
    tensor = copy_for(source, PER_THREAD)
    with machine.control.gate(PER_THREAD):
        read_on(machine, PER_THREAD, target, tensor.data)

        def work() -> None:
            machine.set_current(0)
            abi.release(tensor)
            time.sleep(0.02)
            abi.release(copy_for(source, PER_THREAD))

        on_a_thread(work)
        time.sleep(0.02)
        assert is_alive(machine, tensor)
        abi.release(copy_for(source, PER_THREAD))
        time.sleep(0.02)
        assert is_alive(machine, tensor)
    assert wait(machine, PER_THREAD) == 0
    assert machine.read(target, SIZE) == OLD
    assert until(partial(is_at_most, machine, before))


@pytest.mark.parametrize("default", [None, LEGACY, PER_THREAD], ids=["handle", "legacy", "per-thread"])
def test_a_full_device_waits_for_no_more_than_it_needs(default: int | None, machine: Machine) -> None:
    """A copy that a held stream uses does not delay one whose memory is there."""
    pointer, mine, other = memory(machine, "device", MEBIBYTE), machine.stream(), machine.stream()
    source = view(pointer, MEBIBYTE)
    settled(machine)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    machine._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    everything = machine.control.get("memory")
    held = copy_for(source, other)
    # One is held, and one for a thread's stream may be waiting for the device.
    machine.control.set("memory", total.value - free.value + 4 * MEBIBYTE)
    try:
        with machine.control.gate(other):
            machine.control.store(other, pointer, bytes(1))
            abi.release(held)

            def copied() -> bool:
                machine.set_current(0)
                for _ in range(8):
                    abi.release(copy_for(source, default or mine))
                    assert wait(machine, default or mine) == 0
                return True

            assert on_a_thread(copied)
    finally:
        machine.control.set("memory", everything)


@pytest.mark.parametrize("order", ["rising", "falling", "random"])
@pytest.mark.parametrize("kind", ["device", "managed", "pinned"])
def test_copies_of_many_sizes_share_what_cannot_be_freed(kind: str, order: str, machine: Machine) -> None:
    """Four sizes of memory in each doubling serve them all; each holds its copy, and nothing else."""
    sizes = list(range(1000, 31000, 300))
    if order != "rising":
        sizes.reverse()
    if order == "random":
        random.Random(0).shuffle(sizes)
    pointer, mine, other = memory(machine, kind, max(sizes)), machine.stream(), machine.stream()
    before = settled(machine)
    for nth in range(1, len(sizes) + 1):
        machine.control.fault("cuMemAllocAsync", 801, nth)
    with machine.control.gate(other):
        for size in sizes:
            machine.clear()
            release_and_wait(machine, copy_for(view(pointer, size), mine), mine)
        # Twenty, as there are five doublings, and as many again that a thread has seen the end of but not put away yet.
        assert machine.control.live().allocations - before <= len(sizes) // 2
    machine.control.clear_faults()
    assert until(partial(is_at_most, machine, before))


@pytest.mark.parametrize("kind", ["device", "managed"])
def test_a_full_device_waits_for_copies_of_other_sizes(kind: str, machine: Machine) -> None:
    """None of them has room for the next, and unrelated work delays the calls that free them."""
    sizes = [MEBIBYTE << doubled for doubled in range(4)]
    pointer, mine, other = memory(machine, kind, sizes[-1]), machine.stream(), machine.stream()
    before = settled(machine)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    machine._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    everything = machine.control.get("memory")
    for nth in range(1, 100):
        machine.control.fault("cuMemAllocAsync", 801, nth)
    machine.control.set("memory", total.value - free.value + sizes[-1] + MEBIBYTE)
    try:
        for _ in range(3):
            machine.control.delay(other, 0.02)
            for size in sizes:
                source = view(pointer, size)
                abi.release(on_a_thread(partial(copy_for, source, mine)))
    finally:
        machine.control.set("memory", everything)
        machine.control.clear_faults()
    assert until(partial(is_at_most, machine, before))


@pytest.mark.parametrize("kind", ["device", "managed"])
def test_a_full_device_gets_back_what_waits(kind: str, machine: Machine) -> None:
    pointer, mine, other = memory(machine, kind, MEBIBYTE), machine.stream(), machine.stream()
    source = view(pointer, MEBIBYTE)
    settled(machine)
    total, free = ctypes.c_size_t(), ctypes.c_size_t()
    machine._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    everything = machine.control.get("memory")
    machine.control.set("memory", total.value - free.value + 4 * MEBIBYTE)
    try:
        with machine.control.gate(other):
            for _ in range(40):
                machine.control.delay(mine, 0.001)
                abi.release(on_a_thread(lambda: copy_for(source, mine)))
        kept = [copy_for(source, mine) for _ in range(3)]
        with pytest.raises(cd.DriverError, match="OUT_OF_MEMORY"):
            _ = [copy_for(source, mine) for _ in range(3)]
        for tensor in kept:
            abi.release(tensor)
    finally:
        machine.control.set("memory", everything)
    machine.destroy_stream(other)


def test_a_copy_that_ends_in_a_capture_of_its_stream_touches_nothing(machine: Machine) -> None:
    pointer, mine, captures = memory(machine, "device"), machine.stream(), Captures(machine)
    before = settled(machine)
    tensor = copy_for(view(pointer), mine)
    assert wait(machine, mine) == 0
    captures.begin(mine)
    abi.release(tensor)
    # No thread marks the stream: the context's work is waited for, and the capture's is none.
    assert until(partial(is_at_most, machine, before))
    assert captures.state(mine) == ACTIVE
    assert nodes(machine, captures.end(mine)) == 0


# --- what the consumer gets -----------------------------------------------------------------------------


@pytest.mark.parametrize("ready", [None, LEGACY, "stream"])
@pytest.mark.parametrize("kind", ["device", "managed", "pinned"])
def test_a_copy_for_no_stream_is_finished(kind: str, ready: Any, machine: Machine) -> None:
    pointer = memory(machine, kind)
    stream = machine.stream() if ready == "stream" else ready
    if stream is not None:
        machine.control.store(stream, pointer, NEW)
    tensor = copy_for(view(pointer, stream=stream), -1)
    assert machine.read(tensor.data, SIZE) == (OLD if stream is None else NEW)
    abi.release(tensor)


def test_a_copy_for_no_stream_is_finished_under_every_policy(machine: Machine) -> None:
    pointer, stream = memory(machine, "device"), machine.stream()
    machine.control.store(stream, pointer, NEW)
    for policy in ("event", "host", "none"):
        with cd.policy(sync=policy):
            tensor = copy_for(view(pointer, stream=stream), -1)
        assert machine.read(tensor.data, SIZE) == NEW
        abi.release(tensor)


@pytest.mark.parametrize("version", [2, 3], ids=["unknown", "none"])
@pytest.mark.parametrize("kind", ["device", "managed", "pinned"])
def test_the_host_does_not_wait_for_a_copy_on_a_stream(kind: str, version: int, machine: Machine) -> None:
    pointer, stream = memory(machine, kind), machine.stream()
    declared = {"version": 2} if version == 2 else {"stream": None}
    gate = machine.control.gate(stream)
    machine.clear()
    tensor = on_a_thread(lambda: copy_for(view(pointer, **declared), stream))
    assert not HOST_WAITS & set(machine.names())
    gate.open()
    assert wait(machine, stream) == 0
    assert machine.read(tensor.data, SIZE) == OLD
    abi.release(tensor)


@pytest.mark.parametrize("kind", ["device", "managed", "pinned"])
def test_nor_for_a_copy_of_data_that_another_stream_writes(kind: str, machine: Machine) -> None:
    pointer, ready, stream = memory(machine, kind), machine.stream(), machine.stream()
    gate = machine.control.gate(ready)
    machine.control.store(ready, pointer, NEW)
    tensor = on_a_thread(lambda: copy_for(view(pointer, stream=ready), stream))
    machine.control.store(ready, pointer, bytes(SIZE))
    gate.open()
    assert wait(machine, stream) == 0
    assert machine.read(tensor.data, SIZE) == NEW
    abi.release(tensor)


@pytest.mark.parametrize("version", [2, 3], ids=["unknown", "none"])
@pytest.mark.parametrize("kind", ["device", "managed"])
def test_the_source_is_kept_until_it_was_read(kind: str, version: int, machine: Machine) -> None:
    """Nothing else orders the free of the producer's memory after the copy."""
    pointer, stream = memory(machine, kind), machine.stream()
    declared = {"version": 2} if version == 2 else {"stream": None}
    producer = Cai(interface(shape=(SIZE,), typestr="|u1", strides=None, data=(pointer, False), **declared))
    kept = weakref.ref(producer)
    with machine.control.gate(stream):
        tensor = on_a_thread(lambda: copy_for(cd.view(producer), stream))  # noqa: F821
        del producer
        gc.collect()
        time.sleep(0.05)
        assert kept() is not None
    assert until(lambda: kept() is None)
    assert wait(machine, stream) == 0
    abi.release(tensor)


def test_an_owner_is_not_kept_by_another_stream(machine: Machine) -> None:
    """One thread keeps them all: a stream that goes on does not delay what other streams have done."""
    pointer, slow, fast = memory(machine, "device"), machine.stream(), machine.stream()
    producers = [
        Cai(interface(shape=(SIZE,), typestr="|u1", strides=None, data=(pointer, False), version=2)) for _ in range(2)
    ]
    kept = [weakref.ref(producer) for producer in producers]
    with machine.control.gate(slow):
        tensors = [
            on_a_thread(lambda: copy_for(cd.view(producers[0]), slow)),
            on_a_thread(lambda: copy_for(cd.view(producers[1]), fast)),
        ]
        producers.clear()
        gc.collect()
        assert until(lambda: kept[1]() is None)
        assert kept[0]() is not None
    assert until(lambda: kept[0]() is None)
    for tensor in tensors:
        abi.release(tensor)


# --- to the CPU -----------------------------------------------------------------------------------------


def nodes(machine: Machine, graph: int) -> int:
    count = ctypes.c_size_t()
    machine._call("cuGraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count))
    machine._call("cuGraphDestroy", ctypes.c_void_p(graph))
    return count.value


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
@pytest.mark.parametrize("captured", [PER_THREAD, "stream"])
@pytest.mark.parametrize("ready", [None, "stream"])
def test_a_copy_to_the_cpu_beside_a_capture(ready: Any, captured: Any, mode: int, machine: Machine) -> None:
    pointer, captures = memory(machine, "device"), Captures(machine)
    stream = captured if captured == PER_THREAD else machine.stream()
    writer = None if ready is None else machine.stream()
    source = view(pointer, stream=writer)
    captures.begin(stream, mode)
    if writer is not None:
        machine.control.store(writer, pointer, NEW)
    tensor = abi.consume(source.__dlpack__(dl_device=HOST, max_version=(1, 3)))
    assert ctypes.string_at(tensor.data, SIZE) == (OLD if writer is None else NEW)
    assert nodes(machine, captures.end(stream)) == 0
    abi.release(tensor)


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
@pytest.mark.parametrize("captured", [PER_THREAD, "stream"])
def test_a_copy_to_the_cpu_of_data_in_a_capture_is_refused(captured: Any, mode: int, machine: Machine) -> None:
    pointer, captures = memory(machine, "device"), Captures(machine)
    stream = captured if captured == PER_THREAD else machine.stream()
    source = view(pointer, stream=stream)
    captures.begin(stream, mode)
    found = refuse(lambda: source.__dlpack__(dl_device=HOST, max_version=(1, 3)), BufferError)
    check_refusal(found, "capture-host-wait", "stream")
    assert nodes(machine, captures.end(stream)) == 0


@pytest.mark.parametrize("ordinal", [0, 1])
def test_a_copy_of_ready_data_to_the_cpu_waits_for_no_stream(ordinal: int, machine: Machine) -> None:
    pointer = machine.device_memory(SIZE, ordinal)
    machine.write(pointer, OLD)
    source = view(pointer, stream=None)
    machine.set_current(ordinal)
    with machine.control.gate(LEGACY):
        machine.set_current(0)
        tensor = on_a_thread(lambda: abi.consume(source.__dlpack__(dl_device=HOST, max_version=(1, 3))))
        assert ctypes.string_at(tensor.data, SIZE) == OLD
        machine.set_current(ordinal)
    abi.release(tensor)


@pytest.mark.parametrize("kind", ["managed", "pinned"])
def test_a_copy_of_ready_data_for_a_host_waits_for_no_stream(kind: str, machine: Machine) -> None:
    source = view(memory(machine, kind), stream=None)
    with machine.control.gate(LEGACY):
        found = on_a_thread(lambda: np.from_dlpack(source, copy=True).tobytes())
    assert found == OLD


def test_streams_of_copies_to_the_cpu_are_kept_and_used_again(machine: Machine) -> None:
    source = view(memory(machine, "device"), stream=None)
    np.from_dlpack(source, device="cpu")
    before = machine.control.live().streams
    for _ in range(5):
        np.from_dlpack(source, device="cpu")
    assert machine.control.live().streams == before
