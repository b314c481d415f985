"""Events between processes: whose work a wait waits for, and what is left of it if a process ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from cai_conformance import Sim

from conformance.tests.cusim.model.check_memory import code_of
from conformance.tests.cusim.model.driver import DISABLE_TIMING, INTERPROCESS, Driver
from conformance.tests.cusim.model.other import Other

INVALID_VALUE, INVALID_CONTEXT, MAP_FAILED, INVALID_HANDLE, ISOLATION = 1, 201, 205, 400, 905


@pytest.fixture(scope="module")
def shared_other() -> Iterator[Other]:
    """A process for the tests that do not end it."""
    with Other() as started:
        yield started


@pytest.fixture
def other(shared_other: Other) -> Iterator[Other]:
    before = shared_other.sim.live()
    yield shared_other
    shared_other.sim.open_gates()
    shared_other.cu.synchronize()
    assert shared_other.sim.live() == before, "the test left something behind there"


class Scene:
    """Memory of `maker`, an event that it has exported, a stream; and the same over at `taker`."""

    def __init__(self, maker: Driver, taker: Driver, data: bytes = b"old!") -> None:
        self.maker, self.taker, self.nbytes = maker, taker, len(data)
        self.memory, self.event, self.stream = maker.alloc(len(data)), maker.event(INTERPROCESS), maker.stream()
        maker.write(self.memory, data)
        maker.synchronize()
        self.memory_there = taker.ipc_open(maker.ipc_memory(self.memory))
        self.event_there = taker.ipc_open_event(maker.ipc_event(self.event))
        self.stream_there, self.out = taker.stream(), taker.alloc_host(len(data))

    def take(self) -> None:
        """Enqueues the copy into page-locked memory over there."""
        self.taker.read_async(self.out, self.memory_there, self.nbytes, self.stream_there)

    def taken(self, sim: Sim) -> bytes:
        """The bytes once that stream is done."""
        self.taker.wait_for(self.stream_there)
        return sim.peek(self.out, self.nbytes)

    def end(self) -> None:
        self.taker.wait_for(self.stream_there)
        self.taker.ipc_close(self.memory_there)
        self.taker.destroy_event(self.event_there)
        self.taker.destroy_stream(self.stream_there)
        self.taker.free_host(self.out)
        self.maker.wait_for(self.stream)
        self.maker.destroy_event(self.event)
        self.maker.destroy_stream(self.stream)
        self.maker.free(self.memory)


@pytest.mark.parametrize("waits", [True, False])
def test_a_reader_over_there_has_the_new_bytes_only_if_its_stream_waits(
    cu: Driver, other: Other, sim: Sim, waits: bool
) -> None:
    scene = Scene(other.cu, cu)
    gate = other.sim.shut_gate(scene.stream)
    other.sim.store(scene.stream, scene.memory, b"new!")
    other.cu.record(scene.event, scene.stream)
    if waits:
        cu.stream_wait(scene.stream_there, scene.event_there)
        other.sim.open_gate(gate)
    scene.take()
    assert scene.taken(sim) == (b"new!" if waits else b"old!")
    other.sim.open_gate(gate)
    scene.end()


def test_a_reader_that_does_not_wait_is_too_early_under_lazy_without_a_gate(cu: Driver, other: Other, sim: Sim) -> None:
    """The control for tests of programs on the lazy schedule: they have no gates."""
    scene = Scene(other.cu, cu)
    other.sim.store(scene.stream, scene.memory, b"new!")
    other.cu.record(scene.event, scene.stream)
    scene.take()
    early = scene.taken(sim)
    if sim.schedule == "lazy":
        assert early == b"old!"
    cu.stream_wait(scene.stream_there, scene.event_there)
    scene.take()
    assert scene.taken(sim) == b"new!"
    scene.end()


@pytest.mark.parametrize("way", ["event_wait", "event_done", "stream_wait"])
def test_each_way_to_wait_has_the_recorder_do_its_work(cu: Driver, other: Other, sim: Sim, way: str) -> None:
    scene = Scene(cu, other.cu)
    sim.store(scene.stream, scene.memory, b"new!")
    cu.record(scene.event, scene.stream)
    if way == "event_wait":
        other.cu.event_wait(scene.event_there)
    elif way == "event_done":
        until = time.monotonic() + 10
        while not other.cu.event_done(scene.event_there):
            assert time.monotonic() < until
    else:
        other.cu.stream_wait(scene.stream_there, scene.event_there)
        other.cu.wait_for(scene.stream_there)
    assert sim.peek(scene.memory, 4) == b"new!" == other.sim.peek(scene.memory_there, 4)
    assert cu.event_done(scene.event)
    scene.end()


def test_a_wait_lasts_for_as_long_as_the_recorder_works(cu: Driver, other: Other, sim: Sim) -> None:
    scene = Scene(cu, other.cu)
    gate = sim.gate(scene.stream)
    cu.record(scene.event, scene.stream)
    assert not other.cu.event_done(scene.event_there)
    other.later_cu.event_wait(scene.event_there)
    assert not other.has_answered(0.2)
    gate.open()
    other.result()
    assert other.cu.event_done(scene.event_there)
    scene.end()


def test_an_event_that_nobody_has_recorded_is_no_wait(cu: Driver, other: Other) -> None:
    scene = Scene(cu, other.cu)
    other.cu.stream_wait(scene.stream_there, scene.event_there)
    other.cu.event_wait(scene.event_there)
    assert other.cu.event_done(scene.event_there)
    scene.end()


def test_a_wait_is_for_the_last_record_at_the_call(cu: Driver, other: Other, sim: Sim) -> None:
    scene = Scene(cu, other.cu)
    second = cu.stream()
    cu.record(scene.event, scene.stream)
    other.cu.stream_wait(scene.stream_there, scene.event_there)
    gate = sim.gate(second)
    cu.record(scene.event, second)
    other.cu.wait_for(scene.stream_there)
    assert not other.cu.event_done(scene.event_there)
    gate.open()
    other.cu.event_wait(scene.event_there)
    cu.destroy_stream(second)
    scene.end()


def test_the_opened_event_can_be_recorded_for_its_creator_to_wait_for(cu: Driver, other: Other, sim: Sim) -> None:
    scene = Scene(cu, other.cu)
    gate = other.sim.shut_gate(scene.stream_there)
    other.sim.store(scene.stream_there, scene.memory_there, b"back")
    other.cu.record(scene.event_there, scene.stream_there)
    assert not cu.event_done(scene.event)
    other.sim.open_gate(gate)
    cu.stream_wait(scene.stream, scene.event)
    cu.wait_for(scene.stream)
    assert sim.peek(scene.memory, 4) == b"back" and cu.event_done(scene.event)
    scene.end()


def test_waits_follow_each_other_through_both_processes(cu: Driver, other: Other, sim: Sim) -> None:
    """Ping-pong of ten records, all enqueued before anything is waited for by a host."""
    scene = Scene(cu, other.cu, bytes(10))
    events = [cu.event(INTERPROCESS) for _ in range(10)]
    there = [other.cu.ipc_open_event(cu.ipc_event(event)) for event in events]
    for turn in range(10):
        if turn % 2 == 0:
            driver, controls, stream, memory, own = cu, sim, scene.stream, scene.memory, events
        else:
            driver, controls, stream = other.cu, other.sim, scene.stream_there
            memory, own = scene.memory_there, there
        if turn:
            driver.stream_wait(stream, own[turn - 1])
        controls.store(stream, memory + turn, bytes([sum(range(turn + 1)) + 1]))
        driver.record(own[turn], stream)
    cu.event_wait(events[-1])
    assert list(sim.peek(scene.memory, 10)) == [sum(range(turn + 1)) + 1 for turn in range(10)]
    for event, opened in zip(events, there, strict=True):
        other.cu.destroy_event(opened)
        cu.destroy_event(event)
    scene.end()


def test_an_event_opened_twice_is_one_event(cu: Driver, other: Other) -> None:
    scene = Scene(cu, other.cu)
    again = other.cu.ipc_open_event(cu.ipc_event(scene.event))
    gate = other.sim.shut_gate(scene.stream_there)
    other.cu.record(again, scene.stream_there)
    assert not other.cu.event_done(scene.event_there)
    other.sim.open_gate(gate)
    other.cu.destroy_event(again)
    other.cu.event_wait(scene.event_there)
    assert cu.event_done(scene.event)
    scene.end()


def test_two_processes_may_wait_for_one_record(cu: Driver, other: Other, sim: Sim) -> None:
    scene = Scene(cu, other.cu)
    with Other() as third:
        opened = third.cu.ipc_open_event(cu.ipc_event(scene.event))
        gate = sim.gate(scene.stream)
        cu.record(scene.event, scene.stream)
        for process, event in ((other, scene.event_there), (third, opened)):
            process.later_cu.event_wait(event)
        assert not other.has_answered(0.05) and not third.has_answered(0.05)
        gate.open()
        other.result()
        third.result()
    scene.end()


def test_a_destroyed_event_keeps_the_waits_that_were_called_before(cu: Driver, other: Other, sim: Sim) -> None:
    memory, event, stream = cu.alloc(4), cu.event(INTERPROCESS), cu.stream()
    handle, there = cu.ipc_event(event), other.cu.stream()
    opened = other.cu.ipc_open_event(handle)
    gate = sim.gate(stream)
    cu.record(event, stream)
    other.cu.stream_wait(there, opened)
    cu.destroy_event(event)
    other.later_cu.wait_for(there)
    assert not other.has_answered(0.1)
    gate.open()
    other.result()
    # Afterwards any use is an error, where a driver's behaviour is undefined.
    for use in (other.cu.event_wait, other.cu.event_done):
        assert code_of(cu, use, opened) == INVALID_HANDLE
    assert code_of(cu, other.cu.stream_wait, there, opened) == INVALID_HANDLE
    assert code_of(cu, other.cu.record, opened, there) == INVALID_HANDLE
    assert code_of(cu, other.cu.ipc_open_event, handle) == MAP_FAILED
    other.cu.destroy_event(opened)
    other.cu.destroy_stream(there)
    cu.destroy_stream(stream)
    cu.free(memory)


def test_what_is_no_event_of_several_processes(cu: Driver, other: Other) -> None:
    event, plain, memory = cu.event(INTERPROCESS), cu.event(DISABLE_TIMING), cu.alloc(8)
    assert code_of(cu, cu.event, 4) == INVALID_VALUE, "with timing"
    assert code_of(cu, cu.ipc_event, plain) == INVALID_HANDLE, "without INTERPROCESS"
    handle = cu.ipc_event(event)
    assert code_of(cu, cu.ipc_open_event, handle) == INVALID_CONTEXT, "in the process that created it"
    opened = other.cu.ipc_open_event(handle)
    assert code_of(cu, other.cu.ipc_event, opened) == INVALID_HANDLE, "by a process that has only opened it"
    assert code_of(cu, other.cu.elapsed, opened, opened) == INVALID_HANDLE, "it has no timing"
    assert code_of(cu, other.cu.ipc_open_event, bytes(64)) == INVALID_HANDLE
    assert code_of(cu, other.cu.ipc_open_event, cu.ipc_memory(memory)) == INVALID_HANDLE
    assert code_of(cu, other.cu.ipc_open, handle) == INVALID_HANDLE
    other.cu.destroy_event(opened)
    cu.destroy_event(event)
    cu.destroy_event(plain)
    cu.free(memory)


def test_a_capture_cannot_wait_for_another_process(cu: Driver, other: Other) -> None:
    scene = Scene(cu, other.cu)
    cu.record(scene.event, scene.stream)
    other.cu.begin_capture(scene.stream_there)
    assert code_of(cu, other.cu.stream_wait, scene.stream_there, scene.event_there) == ISOLATION
    assert code_of(cu, other.cu.end_capture, scene.stream_there) == 901
    scene.end()


@pytest.mark.parametrize("signals", ["while it waits", "before it waits"])
def test_the_death_of_the_recorder_ends_every_wait(cu: Driver, signals: str) -> None:
    with Other() as maker, Other() as taker:
        scene = Scene(maker.cu, taker.cu)
        maker.sim.shut_gate(scene.stream)
        maker.cu.record(scene.event, scene.stream)
        taker.cu.stream_wait(scene.stream_there, scene.event_there)
        if signals == "before it waits":
            maker.kill()
        taker.later_cu.event_wait(scene.event_there)
        if signals == "while it waits":
            assert not taker.has_answered(0.1)
            maker.kill()
        assert code_of(cu, taker.result) == INVALID_HANDLE
        taker.cu.wait_for(scene.stream_there)
        # The process is usable, and what it had opened can be given back.
        taker.cu.destroy_event(scene.event_there)
        taker.cu.ipc_close(scene.memory_there)
        taker.cu.free(taker.cu.alloc(8))


def test_the_death_of_one_that_had_opened_an_event_leaves_its_creator_alone(cu: Driver, sim: Sim) -> None:
    event, stream = cu.event(INTERPROCESS), cu.stream()
    with Other() as other:
        opened, there = other.cu.ipc_open_event(cu.ipc_event(event)), other.cu.stream()
        other.sim.shut_gate(there)
        other.cu.record(opened, there)
        cu.stream_wait(stream, event)
        assert not cu.event_done(event)
        other.kill()
    cu.event_wait(event)
    cu.wait_for(stream)
    cu.record(event, stream)
    cu.event_wait(event)
    cu.destroy_event(event)
    cu.destroy_stream(stream)


def test_a_forked_child_of_the_recorder_does_not_stand_for_it(cu: Driver) -> None:
    """It has the same files open and mapped, and outlives its parent."""
    with Other() as maker, Other() as taker:
        scene = Scene(maker.cu, taker.cu)
        maker.sim.shut_gate(scene.stream)
        maker.cu.record(scene.event, scene.stream)
        child = maker.sim.fork()
        handles = maker.cu.ipc_memory(scene.memory), maker.cu.ipc_event(scene.event)
        taker.later_cu.event_wait(scene.event_there)
        maker.kill()
        assert code_of(cu, taker.result) == INVALID_HANDLE
        assert code_of(cu, cu.ipc_open, handles[0]) == MAP_FAILED == code_of(cu, cu.ipc_open_event, handles[1])
        os.kill(child, signal.SIGKILL)
