"""What a dropped copy leaves is not given away before its use is over; the stream that it was for uses it again."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import cai_dlpack as cd
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.ownership.waiting import PATIENCE, until
from conformance.tests.partners.copying import (
    OLD,
    SIZE,
    copy_for,
    is_alive,
    is_at_most,
    memory,
    on_a_thread,
    read_on,
    settled,
    view,
    wait,
)
from conformance.tests.simulated.machine import Machine

NEW = bytes([2]) * SIZE
PER_THREAD, MEBIBYTE, OUT_OF_MEMORY, UNKNOWN = 2, 1 << 20, 2, 999
# The calls by which the library's threads find the devices of a copy's work, and wait for them, as often as it makes
# each of them.
WAITS = {
    "nothing can be allocated": ["cuMemAlloc_v2", "cuMemAlloc_v2", "cuMemHostAlloc"],
    "the allocation cannot be freed": ["cuMemFree_v2"],
    "the device is not told": ["cuCtxGetDevice"],
}

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("schedule")]


def refuse_the_wait(machine: Machine, calls: list[str], code: int, times: int) -> None:
    for call in set(calls):
        for nth in range(1, times * calls.count(call) + 1):
            machine.control.fault(call, code, nth, by="other")


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("code", [OUT_OF_MEMORY, UNKNOWN])
@pytest.mark.parametrize("why", WAITS)
def test_a_copy_whose_work_cannot_be_waited_for_is_kept(why: str, code: int, times: int, machine: Machine) -> None:
    """No thread but its own can name the stream, so that the device is waited for; refused, that is tried again."""
    source, target = view(memory(machine, "device")), machine.device_memory(SIZE)
    before = settled(machine)
    tensor = copy_for(source, PER_THREAD)
    assert wait(machine, PER_THREAD) == 0
    with machine.control.gate(PER_THREAD):
        read_on(machine, PER_THREAD, target, tensor.data)
        refuse_the_wait(machine, WAITS[why], code, times)
        abi.release(tensor)
        time.sleep(0.1)
        assert is_alive(machine, tensor), "freed under pending work"
    assert wait(machine, PER_THREAD) == 0
    assert machine.read(target, SIZE) == OLD
    more = times if why == "the allocation cannot be freed" else 0
    assert until(lambda: machine.control.pending_faults() == 0)
    assert until(lambda: machine.control.live().allocations <= before + more)


@pytest.mark.parametrize("call", ["cuDeviceGetCount", "cuDevicePrimaryCtxGetState", "cuMemAlloc_v2"])
def test_a_copy_for_no_stream_whose_devices_are_not_told_is_kept(call: str, machine: Machine) -> None:
    """Work on the other device reads it."""
    source, other = view(memory(machine, "managed")), machine.stream(1)
    target = machine.device_memory(SIZE, 1)
    before = settled(machine)
    tensor = copy_for(source, -1)
    with machine.control.gate(other):
        read_on(machine, other, target, tensor.data)
        refuse_the_wait(machine, [call] + ["cuMemHostAlloc"] * (call == "cuMemAlloc_v2"), UNKNOWN, 2)
        abi.release(tensor)
        time.sleep(0.1)
        assert is_alive(machine, tensor), "freed under pending work"
    assert wait(machine, other) == 0
    assert machine.read(target, SIZE) == OLD
    assert until(lambda: machine.control.live().allocations <= before)


def test_an_allocation_does_not_wait_for_what_cannot_be_waited_for(machine: Machine) -> None:
    """A full device is refused while the driver refuses the wait that would give memory back."""
    pointer = memory(machine, "device", MEBIBYTE)
    source = view(pointer, MEBIBYTE)
    mine = machine.stream()
    with room_for(machine, 1):
        tensor = copy_for(source, PER_THREAD)
        with machine.control.gate(PER_THREAD):
            machine.control.store(PER_THREAD, pointer, bytes(1))
            refuse_the_wait(machine, WAITS["nothing can be allocated"], OUT_OF_MEMORY, 10_000)
            abi.release(tensor)
            time.sleep(0.05)

            def refused() -> bool:
                machine.set_current(0)
                with pytest.raises(cd.DriverError, match="OUT_OF_MEMORY"):
                    copy_for(source, mine)
                return True

            assert on_a_thread(refused)
    machine.control.clear_faults()
    assert until(lambda: not is_alive(machine, tensor))


@contextmanager
def room_for(machine: Machine, copies: int) -> Iterator[None]:
    """Lets the device take so many MiB more, and no others' crumbs."""
    settled(machine)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    machine._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    everything = machine.control.get("memory")
    machine.control.set("memory", total.value - free.value + copies * MEBIBYTE + MEBIBYTE // 2)
    try:
        yield
    finally:
        machine.control.set("memory", everything)


@pytest.mark.parametrize("pools", [True, False], ids=["pools", "no-pools"])
@pytest.mark.parametrize("kind", ["device", "managed", "pinned"])
@pytest.mark.parametrize("default", [None, 1, PER_THREAD], ids=["handle", "legacy", "per-thread"])
def test_copies_for_a_busy_stream_on_a_full_device_go_on(
    default: int | None, kind: str, pools: bool, machine: Machine
) -> None:
    """The next copy is enqueued behind the last use of what the same stream's dropped copies have."""
    pointer, mine = memory(machine, kind, MEBIBYTE), default or machine.stream()
    ready = machine.stream()
    targets = [machine.device_memory(1) for _ in range(12)]
    before = settled(machine)
    if not pools:
        for nth in range(1, 100):
            machine.control.fault("cuMemAllocAsync", 801, nth)

    def copied() -> bool:
        machine.set_current(0)
        with machine.control.gate(mine):
            for nth, target in enumerate(targets):
                machine.control.store(ready, pointer, bytes([nth + 1]))
                producer = Cai(interface(shape=(MEBIBYTE,), typestr="|u1", data=(pointer, False), stream=ready))
                tensor = copy_for(cd.view(producer), mine)
                addresses = (ctypes.c_uint64(target), ctypes.c_uint64(tensor.data), ctypes.c_size_t(1))
                machine._call("cuMemcpyAsync", *addresses, ctypes.c_void_p(mine))
                abi.release(tensor)
        return wait(machine, mine) == 0

    with room_for(machine, 3):
        assert on_a_thread(copied)
    machine.control.clear_faults()
    assert [machine.read(target, 1)[0] for target in targets] == list(range(1, 13))
    assert until(partial(is_at_most, machine, before))


def fill(machine: Machine, code: int = OUT_OF_MEMORY) -> None:
    """Lets no memory be allocated until the faults are cleared."""
    for call in ("cuMemAllocAsync", "cuMemAlloc_v2", "cuMemAllocManaged", "cuMemHostAlloc"):
        for nth in range(1, 100):
            machine.control.fault(call, code, nth)


@pytest.mark.parametrize("pending", ["read", "write"])
@pytest.mark.parametrize("stream", [None, 1, PER_THREAD], ids=["handle", "legacy", "per-thread"])
def test_the_host_writes_no_copy_whose_memory_the_stream_still_uses(
    stream: int | None, pending: str, machine: Machine
) -> None:
    """Ready pinned data is read by the call, but what a dropped copy left is written in the order of its stream.

    Memory that was dropped a while before is given back instead, if no thread can name its stream: a busy machine tries
    again.
    """
    first, second = memory(machine, "pinned"), memory(machine, "pinned")
    mine, ready = stream or machine.stream(), machine.stream()
    targets = [machine.device_memory(SIZE) for _ in range(2)]
    before = settled(machine)

    def is_taken_over() -> bool:
        machine.set_current(0)
        if pending == "read":
            tensor = copy_for(view(first), mine)
        with machine.control.gate(mine if pending == "read" else ready):
            if pending == "write":
                machine.control.store(ready, first, OLD)
                tensor = copy_for(view(first, stream=ready), mine)
            read_on(machine, mine, targets[0], tensor.data)
            abi.release(tensor)
            machine.write(second, NEW)
            fill(machine)
            try:
                other = copy_for(view(second), mine)
            except cd.DriverError:
                return False
            finally:
                machine.control.clear_faults()
            machine.write(second, OLD)
            read_on(machine, mine, targets[1], other.data)
        assert wait(machine, mine) == 0
        abi.release(other)
        return other.data == tensor.data

    def taken_over() -> bool:
        machine.write(first, OLD)
        is_late = threading.Event()

        def open_late() -> None:
            is_late.set()
            machine.control.open_gates()

        # Memory that is being freed by then waits for the gate, and the copy for the memory: such a try shows nothing.
        opener = threading.Timer(PATIENCE / 10, open_late)
        opener.start()
        try:
            is_taken = bool(on_a_thread(is_taken_over)) and not is_late.is_set()
        finally:
            opener.cancel()
        return until(partial(is_at_most, machine, before)) and is_taken

    assert any(taken_over() for _ in range(50))
    assert [machine.read(target, SIZE) for target in targets] == [OLD, NEW]


def test_a_source_stays_until_a_finished_copy_that_could_not_be_waited_for_has_read_it(machine: Machine) -> None:
    producer = Cai(interface(shape=(SIZE,), typestr="|u1", data=(memory(machine, "device"), False)))
    sources, alive = [cd.view(producer)], weakref.ref(producer)
    machine.clear()
    abi.release(copy_for(sources[0], -1))
    ours = machine.control.calls("cuStreamSynchronize")[-1].arguments["stream"]
    settled(machine)
    with machine.control.gate(ours):
        machine.control.fault("cuStreamSynchronize", UNKNOWN, 1, by="any")
        refused: list[str] = []

        def copied() -> bool:
            machine.set_current(0)
            try:
                copy_for(sources[0], -1)
            except cd.DriverError as error:
                refused.append(str(error))
            return True

        assert on_a_thread(copied)
        assert "cuStreamSynchronize" in refused[0]
        del producer
        sources.clear()
        gc.collect()
        time.sleep(0.05)
        assert alive() is not None, "let go while the copy is enqueued"
    assert until(lambda: gc.collect() >= 0 and alive() is None)


# What the driver can refuse to tell the threads of the library, each time that they ask.
QUESTIONS = {
    "the context's number": {"cuCtxGetId": 2},
    "the context": {"cuCtxPushCurrent": 2},
}


@pytest.mark.parametrize(("code", "rounds"), [(OUT_OF_MEMORY, 1), (UNKNOWN, 3)])
@pytest.mark.parametrize("kind", ["device", "managed", "pinned"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_what_the_driver_does_not_tell_is_not_over(
    question: str, kind: str, code: int, rounds: int, machine: Machine
) -> None:
    """A copy stays while it is not told that its stream is done, and is given back once that is told."""
    source, mine, target = view(memory(machine, kind)), machine.stream(), machine.device_memory(SIZE)
    before = settled(machine)
    tensor = copy_for(source, mine)
    assert wait(machine, mine) == 0
    time.sleep(0.05)  # The source is kept no longer, and its event asked no more.
    with machine.control.gate(mine):
        read_on(machine, mine, target, tensor.data)
        for call, times in QUESTIONS[question].items():
            refuse_the_wait(machine, [call], code, times * rounds)
        abi.release(tensor)
        assert until(lambda: machine.control.pending_faults() == 0)
        time.sleep(0.02)
        assert is_alive(machine, tensor), "freed under pending work"
    assert wait(machine, mine) == 0
    assert machine.read(target, SIZE) == OLD
    assert until(partial(is_at_most, machine, before))


@pytest.mark.parametrize("code", [OUT_OF_MEMORY, UNKNOWN])
def test_a_source_is_kept_while_its_copy_is_not_told_to_be_done(code: int, machine: Machine) -> None:
    producer = Cai(interface(shape=(SIZE,), typestr="|u1", data=(memory(machine, "pinned"), False)))
    producer.__cuda_array_interface__["stream"] = machine.stream()
    alive, mine = weakref.ref(producer), machine.stream()
    with machine.control.gate(mine):
        refuse_the_wait(machine, ["cuEventQuery"], code, 2)
        tensor = copy_for(cd.view(producer), mine)
        del producer
        assert until(lambda: machine.control.pending_faults() == 0)
        gc.collect()
        assert alive() is not None, "let go before the copy has read it"
    assert wait(machine, mine) == 0
    assert until(lambda: gc.collect() >= 0 and alive() is None)
    abi.release(tensor)


@pytest.mark.parametrize("pause", [0, 0.05])
@pytest.mark.parametrize("room", [1, 2])
@pytest.mark.parametrize(
    ("kind", "pools"),
    [("device", True), ("device", False), ("managed", True), ("pinned", True)],
    ids=["pool", "device", "managed", "pinned"],
)
def test_what_waits_for_the_device_is_taken_over(
    kind: str, pools: bool, room: int, pause: float, machine: Machine
) -> None:
    """A copy for the thread's own stream does until the next one, which then has no room but that copy's."""
    pointer, ready = memory(machine, kind, MEBIBYTE), machine.stream()
    targets = [machine.device_memory(1) for _ in range(4)]
    before = settled(machine)
    if not pools:
        for nth in range(1, 100):
            machine.control.fault("cuMemAllocAsync", 801, nth)

    def copied() -> bool:
        machine.set_current(0)
        with machine.control.gate(PER_THREAD):
            for nth, target in enumerate(targets):
                machine.control.store(ready, pointer, bytes([nth + 1]))
                producer = Cai(interface(shape=(MEBIBYTE,), typestr="|u1", data=(pointer, False), stream=ready))
                tensor = copy_for(cd.view(producer), PER_THREAD)
                addresses = (ctypes.c_uint64(target), ctypes.c_uint64(tensor.data), ctypes.c_size_t(1))
                machine._call("cuMemcpyAsync", *addresses, ctypes.c_void_p(PER_THREAD))
                abi.release(tensor)
                time.sleep(pause)
        return wait(machine, PER_THREAD) == 0

    with room_for(machine, room):
        assert on_a_thread(copied)
    machine.control.clear_faults()
    assert [machine.read(target, 1)[0] for target in targets] == [1, 2, 3, 4]
    assert until(partial(is_at_most, machine, before))
