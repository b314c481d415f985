"""Copies where two things meet: several devices, a capture, a policy, a full device. Under both schedules."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import cai_dlpack as cd
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.ownership.waiting import until
from conformance.tests.partners.copying import (
    LEGACY,
    MEBIBYTE,
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
from conformance.tests.simulated.capture import ACTIVE, ASKED, GLOBAL, IDLE, RELAXED, THREAD_LOCAL, Captures
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.moved_producers import KINDS, Moving

pytestmark = pytest.mark.usefixtures("schedule")

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


@pytest.fixture
def no_pools(machine: Machine) -> Iterator[None]:
    """Devices whose memory only a waiting call frees."""
    for nth in range(1, 500):
        machine.control.fault("cuMemAllocAsync", 801, nth)
    yield
    machine.control.clear_faults()


# --- several devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordinal", [0, 1])
@pytest.mark.parametrize("kind", ["device", "managed", "pinned"])
def test_a_copy_for_no_stream_is_there_for_every_device(kind: str, ordinal: int, machine: Machine) -> None:
    """The consumer orders its streams itself, and any device reaches the memory."""
    pointer, target, stream = memory(machine, kind), machine.device_memory(SIZE), machine.stream(ordinal)
    before = settled(machine)
    tensor = copy_for(view(pointer), -1)
    with machine.control.gate(stream):
        read_on(machine, stream, target, tensor.data)
        abi.release(tensor)
        time.sleep(0.05)
        assert is_alive(machine, tensor)
    assert wait(machine, stream) == 0
    assert machine.read(target, SIZE) == OLD
    assert until(partial(is_at_most, machine, before))


@pytest.mark.usefixtures("no_pools")
def test_a_busy_device_keeps_no_other_devices_memory(machine: Machine) -> None:
    """Copies of many sizes, none of which can be used again for the next."""
    here, there = memory(machine, "device"), machine.device_memory(SIZE, 1)
    mine, theirs, other = machine.stream(), machine.stream(1), machine.stream()
    before = settled(machine)
    with machine.control.gate(other):
        abi.release(copy_for(view(here), mine))
        assert wait(machine, mine) == 0
        time.sleep(0.05)  # for the thread that frees to begin its wait
        for size in range(1, SIZE):
            source = view(there, size)
            abi.release(copy_for(source, theirs))
            assert wait(machine, theirs) == 0
        assert until(lambda: machine.control.live().allocations <= before + 1)
    assert until(partial(is_at_most, machine, before))


@pytest.mark.parametrize("pools", [True, False], ids=["pools", "no-pools"])
def test_a_full_device_waits_for_its_own_copies(pools: bool, machine: Machine) -> None:
    """A copy of another device that waits for a stream is of no help, and is not waited for."""
    here, there = machine.device_memory(MEBIBYTE), machine.device_memory(MEBIBYTE, 1)
    mine, theirs = machine.stream(), machine.stream(1)
    settled(machine)
    if not pools:
        for nth in range(1, 500):
            machine.control.fault("cuMemAllocAsync", 801, nth)

    def source(pointer: int) -> cd.CaiView:
        return view(pointer, MEBIBYTE)

    def full() -> bool:
        with pytest.raises(cd.DriverError, match="OUT_OF_MEMORY"):
            copy_for(source(there), theirs)
        return True

    everything = machine.control.get("memory")
    with machine.control.gate(mine):
        abi.release(copy_for(source(here), mine))
        machine.control.set("memory", MEBIBYTE)
        try:
            assert on_a_thread(full)
        finally:
            machine.control.set("memory", everything)


# --- a capture -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
@pytest.mark.parametrize("kind", ["device", "managed", "pinned"])
def test_a_refused_copy_draws_its_stream_into_no_capture(kind: str, mode: int, machine: Machine) -> None:
    """The stream would be captured from then on, and the capture could not end without it."""
    pointer, ready, stream, captures = memory(machine, kind), machine.stream(), machine.stream(), Captures(machine)
    source = view(pointer, stream=ready)
    captures.begin(ready, mode)
    machine.clear()
    refused = refuse(lambda: copy_for(source, stream), BufferError)
    assert machine.order() == []
    assert (captures.state(stream), captures.state(ready)) == (IDLE, ACTIVE)
    captures.end(ready)
    check_refusal(refused, "capture-producer", "stream")


def test_a_refused_copy_adds_nothing_to_the_capture_of_both_streams(machine: Machine) -> None:
    pointer, ready, stream, captures = memory(machine, "device"), machine.stream(), machine.stream(), Captures(machine)
    source = view(pointer, stream=ready)
    captures.begin(ready)
    captures.fork(ready, stream)
    machine.clear()
    check_refusal(refuse(lambda: copy_for(source, stream), BufferError), "capture-consumer", "copy", hint="before")
    assert machine.order() == []
    captures.abandon(ready)


@pytest.mark.parametrize("policy", ["event", "host"])
@pytest.mark.parametrize("derive", ["on", "synchronize"])
@pytest.mark.parametrize("has_moved", [False, True])
@pytest.mark.parametrize("kind", ["device", "managed", "pinned"])
def test_a_copy_that_a_captured_producer_cannot_wait_for_is_not_begun(
    kind: str, has_moved: bool, derive: str, policy: Any, machine: Machine
) -> None:
    """Data and consumer are outside of the capture: it is the return edge that would be refused."""
    pointer, captures = memory(machine, kind), Captures(machine)
    ready, other, stream, captured = (machine.stream() for _ in range(4))
    if has_moved:
        moving = Moving.of(pointer, KINDS[kind], ready)
        source = cd.view(moving.array)
    else:
        captured, source = ready, view(pointer, stream=ready)
    derived = source.synchronize() if derive == "synchronize" else source.on(other)
    if has_moved:
        moving.go(captured)
    captures.begin(captured)
    machine.clear()
    with cd.policy(sync=policy):
        refused = refuse(lambda: copy_for(derived, stream), BufferError)
    check_refusal(refused, "capture-consumer", "stream", hint="before the capture")
    assert not {"cuMemAllocAsync", "cuMemcpyAsync", "cuMemAllocHost"} & set(machine.names())
    assert machine.order() == []
    assert (captures.state(stream), captures.state(captured)) == (IDLE, ACTIVE)
    captures.end(captured)


# --- a policy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_legacy", [False, True], ids=["handle", "legacy"])
def test_a_copy_that_waits_for_memory_enters_no_capture(is_legacy: bool, machine: Machine) -> None:
    """Another thread begins to capture its stream meanwhile, or a blocking one beside the legacy stream."""
    # One that is past its question, or in the driver, when the capture begins cannot know of it: once more.
    assert any(capture_while_a_copy_waits(machine, is_legacy) for _ in range(5))


def capture_while_a_copy_waits(machine: Machine, is_legacy: bool) -> bool:
    """Checks that the copy enters no capture. Returns whether it waited when the capture began."""
    captured, other, refused = machine.stream(flags=0), machine.stream(), list[BaseException]()
    mine = LEGACY if is_legacy else captured
    source, captures = view(memory(machine, "device", MEBIBYTE), MEBIBYTE), Captures(machine)
    settled(machine)
    held = copy_for(source, other)
    assert wait(machine, other) == 0
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    machine._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    everything = machine.control.get("memory")
    machine.control.set("memory", total.value - free.value)

    def work() -> None:
        machine.set_current(0)
        try:
            abi.release(copy_for(source, mine))
        except (BufferError, cd.DriverError) as error:
            refused.append(error)

    thread = threading.Thread(target=work)
    try:
        with machine.control.gate(other):
            machine.control.store(other, held.data, bytes(1))
            abi.release(held)
            machine.clear()
            thread.start()
            assert until(lambda: len(machine.control.calls("cuMemAllocAsync")) > 1)
            time.sleep(0.02)  # for the attempts after what has ended meanwhile
            captures.begin(captured, RELAXED)
        thread.join()
    finally:
        machine.control.set("memory", everything)
    calls = machine.control.calls("cuStreamBeginCapture", *ASKED, "cuMemAllocAsync")
    names = [call.name for call in calls]
    begun = names.index("cuStreamBeginCapture")
    if calls[begun - 1].result != OUT_OF_MEMORY or names[begun + 1 : begun + 2] == ["cuMemAllocAsync"]:
        captures.abandon(captured)
        return False
    assert "cuMemAllocAsync" not in names[begun:]
    assert captures.nodes(captures.end(captured)) == 0
    assert [getattr(error, "rule", None) for error in refused] == ["capture-consumer"]
    return True


def test_without_waits_the_source_is_kept_until_it_was_read(machine: Machine) -> None:
    """The policy leaves order to the caller; the memory is still the library's to keep."""
    pointer, home, stream = memory(machine, "device"), machine.stream(), machine.stream()
    producer = Cai(interface(shape=(SIZE,), typestr="|u1", strides=None, data=(pointer, False), stream=home))
    kept = weakref.ref(producer)
    with machine.control.gate(stream):
        with cd.policy(sync="none"):
            tensor = copy_for(cd.view(producer), stream)
        del producer
        gc.collect()
        time.sleep(0.05)
        assert kept() is not None
    assert until(lambda: kept() is None)
    assert wait(machine, stream) == 0
    abi.release(tensor)
