"""Checks the order of work: streams, events, the legacy stream, and both schedules."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator

import pytest
from cai_conformance import Sim

from conformance.tests.cusim.model.driver import HOST_FUNCTION, LEGACY, PER_THREAD, Driver, Refused

OLD, NEW = b"\x00" * 4, b"\x11" * 4


class Pair:
    """A producer stream that holds a write of NEW, a consumer stream, and 4 bytes of OLD."""

    def __init__(self, cu: Driver) -> None:
        self.cu = cu
        self.memory = cu.alloc(4)
        self.result = cu.alloc_host(4)
        self.producer, self.consumer = cu.stream(), cu.stream()
        cu.write(self.memory, OLD)
        cu.synchronize()

    def read(self) -> bytes:
        """Returns what work on the consumer stream reads."""
        self.cu.read_async(self.result, self.memory, 4, self.consumer)
        self.cu.wait_for(self.consumer)
        return ctypes.string_at(self.result, 4)

    def close(self) -> None:
        self.cu.synchronize()
        self.cu.free(self.memory)
        self.cu.free_host(self.result)
        self.cu.destroy_stream(self.producer)
        self.cu.destroy_stream(self.consumer)


@pytest.fixture
def pair(cu: Driver) -> Iterator[Pair]:
    made = Pair(cu)
    yield made
    made.close()


def test_without_a_wait_the_consumer_reads_what_was_there_before(pair: Pair, sim: Sim) -> None:
    with sim.gate(pair.producer):
        sim.store(pair.producer, pair.memory, NEW)
        assert pair.read() == OLD
    pair.cu.wait_for(pair.producer)
    assert pair.read() == NEW


def test_lazily_a_missing_wait_shows_without_any_gate(pair: Pair, sim: Sim) -> None:
    before, sim.schedule = sim.schedule, "lazy"
    sim.store(pair.producer, pair.memory, NEW)
    assert pair.read() == OLD
    sim.schedule = before


def test_lazily_only_what_is_needed_runs_and_the_latest_first(pair: Pair, sim: Sim) -> None:
    before, sim.schedule = sim.schedule, "lazy"
    sim.store(pair.producer, pair.memory, NEW)
    pair.cu.fill_async(pair.result, 9, 4, pair.consumer)
    pair.cu.wait_for(pair.producer)
    assert (sim.pending(pair.producer), sim.pending(pair.consumer)) == (0, 1)
    sim.poke(pair.memory, OLD)
    sim.store(pair.producer, pair.memory, NEW)
    pair.cu.read_async(pair.result, pair.memory, 4, pair.consumer)
    pair.cu.synchronize()  # both are needed; what nobody ordered goes the wrong way round
    assert ctypes.string_at(pair.result, 4) == NEW, "the consumer's older fill was its head"
    sim.poke(pair.memory, OLD)
    sim.store(pair.producer, pair.memory, NEW)
    pair.cu.read_async(pair.result, pair.memory, 4, pair.consumer)
    pair.cu.synchronize()
    assert ctypes.string_at(pair.result, 4) == OLD
    sim.schedule = before


def test_one_record_and_one_wait_are_enough(pair: Pair, sim: Sim) -> None:
    sim.clear()
    gate = sim.gate(pair.producer)
    sim.store(pair.producer, pair.memory, NEW)
    pair.cu.order(pair.producer, pair.consumer)
    assert [call.stream for call in sim.calls("cuEventRecord", "cuStreamWaitEvent")] == [pair.producer, pair.consumer]
    opener = threading.Timer(0.02, gate.open)
    opener.start()
    assert pair.read() == NEW
    opener.join()


def test_an_event_stands_for_the_place_of_its_last_record(cu: Driver, sim: Sim) -> None:
    stream, event = cu.stream(), cu.event()
    cu.record(event, stream)
    gate = sim.gate(stream)
    cu.event_wait(event)
    assert cu.event_done(event)
    cu.record(event, stream)
    assert not cu.event_done(event)
    gate.open()
    cu.event_wait(event)
    cu.destroy_event(event)
    cu.destroy_stream(stream)


def test_an_event_that_was_never_recorded_is_done_and_no_wait(cu: Driver) -> None:
    stream, event = cu.stream(), cu.event()
    assert cu.event_done(event)
    cu.stream_wait(stream, event)
    cu.wait_for(stream)
    cu.destroy_event(event)
    cu.destroy_stream(stream)


def test_a_wait_holds_when_the_event_is_destroyed_first(pair: Pair, sim: Sim) -> None:
    gate = sim.gate(pair.producer)
    sim.store(pair.producer, pair.memory, NEW)
    pair.cu.order(pair.producer, pair.consumer)  # destroys its event
    assert not pair.cu.is_done(pair.consumer) or sim.schedule == "threaded"
    gate.open()
    assert pair.read() == NEW


def stays_undone(cu: Driver, event: int) -> None:
    """Checks that an event stays undone, by repeated queries."""
    for _ in range(20):
        assert not cu.event_done(event)
        time.sleep(0.001)


def check_follows(cu: Driver, sim: Sim, gated: int, follower: int, ordered: bool) -> None:
    """Checks that work on `follower` waits for the gate of `gated` if it is ordered behind it, and only then."""
    memory, event = cu.alloc(4), cu.event()
    gate = sim.gate(gated)
    cu.fill_async(memory, 1, 4, follower)
    cu.record(event, follower)
    assert sim.pending(gated) == 1
    if ordered:
        stays_undone(cu, event)
        assert not cu.is_done(follower)
    else:
        cu.wait_for(follower)
    gate.open()
    cu.destroy_event(event)
    cu.wait_for(follower)
    cu.free(memory)


@pytest.mark.parametrize("default", [0, LEGACY])
@pytest.mark.parametrize("flags, ordered", [(0, True), (1, False)], ids=["blocking", "non-blocking"])
def test_the_legacy_stream_waits_for_blocking_streams(
    cu: Driver, sim: Sim, default: int, flags: int, ordered: bool
) -> None:
    stream = cu.stream(flags)
    check_follows(cu, sim, stream, default, ordered)
    cu.wait_for(stream)
    cu.destroy_stream(stream)


@pytest.mark.parametrize("flags, done", [(0, False), (1, True)], ids=["blocking", "non-blocking"])
def test_waiting_for_the_legacy_stream_is_waiting_for_blocking_streams(
    cu: Driver, sim: Sim, flags: int, done: bool
) -> None:
    stream = cu.stream(flags)
    gate = sim.gate(stream)
    assert cu.is_done(LEGACY) is done, "although it has no work of its own"
    gate.open()
    cu.wait_for(LEGACY)
    assert sim.pending(stream) == 0 or done
    cu.destroy_stream(stream)


@pytest.mark.parametrize("flags, ordered", [(0, True), (1, False)], ids=["blocking", "non-blocking"])
def test_blocking_streams_wait_for_the_legacy_stream(cu: Driver, sim: Sim, flags: int, ordered: bool) -> None:
    stream = cu.stream(flags)
    check_follows(cu, sim, LEGACY, stream, ordered)
    cu.destroy_stream(stream)


def test_the_per_thread_stream_is_blocking_and_another_one_on_each_thread(cu: Driver, sim: Sim) -> None:
    memory, context, seen = cu.alloc(4), cu.current(), []
    gate, event = sim.gate(PER_THREAD), cu.event()
    cu.fill_async(memory, 1, 4, LEGACY)
    cu.record(event, LEGACY)
    stays_undone(cu, event)
    cu.destroy_event(event)

    def other() -> None:
        cu.set_current(context)
        seen.append(cu.is_done(PER_THREAD))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [True] and not cu.is_done(PER_THREAD)
    gate.open()
    cu.synchronize()
    cu.free(memory)


def test_zero_means_the_per_thread_stream_in_the_ptsz_functions(cu: Driver, sim: Sim) -> None:
    gate = sim.gate(PER_THREAD)
    assert cu.code("cuStreamQuery", ctypes.c_void_p(PER_THREAD)) == 600
    assert cu.code("cuStreamQuery_ptsz", ctypes.c_void_p(0)) == 600
    stream = cu.stream()
    assert cu.code("cuStreamQuery", ctypes.c_void_p(stream)) == 0
    gate.open()
    cu("cuStreamSynchronize_ptsz", ctypes.c_void_p(0))
    cu.destroy_stream(stream)


def test_a_stream_waits_for_an_event_of_another_device(pair: Pair, sim: Sim) -> None:
    cu, here = pair.cu, pair.cu.current()
    there = cu.retain(1)
    gate = sim.gate(pair.producer)
    sim.store(pair.producer, pair.memory, NEW)
    event = cu.event()
    cu.record(event, pair.producer)
    with cu.on(there):
        stream = cu.stream()
        cu.stream_wait(stream, event)
        assert not cu.is_done(stream)
        gate.open()
        cu.wait_for(stream)
        cu.destroy_stream(stream)
    assert cu.current() == here and sim.peek(pair.memory, 4) == NEW
    cu.destroy_event(event)
    cu("cuDevicePrimaryCtxRelease_v2", 1)


def test_event_and_stream_must_share_a_context_to_record(cu: Driver) -> None:
    stream = cu.stream()
    with cu.on(cu.retain(1)):
        event = cu.event()
        with pytest.raises(Refused) as refused:
            cu.record(event, stream)
        cu.destroy_event(event)
    assert refused.value.code == 400
    cu("cuDevicePrimaryCtxRelease_v2", 1)
    cu.destroy_stream(stream)


def test_host_functions_run_in_order_and_may_not_call_the_driver(cu: Driver) -> None:
    stream, seen = cu.stream(), []
    event = cu.event()

    def ask(_: object) -> None:
        seen.append(cu.code("cuEventQuery", ctypes.c_void_p(event)))

    function = HOST_FUNCTION(ask)
    cu.host_function(stream, function)
    cu.wait_for(stream)
    assert seen == [800]
    cu.destroy_event(event)
    cu.destroy_stream(stream)


def test_elapsed_time_needs_two_reached_records_with_timing(cu: Driver, sim: Sim) -> None:
    stream, start, end, untimed = cu.stream(), cu.event(0), cu.event(0), cu.event()
    with pytest.raises(Refused) as refused:
        cu.elapsed(start, end)
    assert refused.value.code == 400
    cu.record(start, stream)
    sim.delay(stream, 0.01)
    gate = sim.gate(stream)
    cu.record(end, stream)
    with pytest.raises(Refused) as refused:
        cu.elapsed(start, end)
    assert refused.value.code == 600
    gate.open()
    cu.wait_for(stream)
    assert 9 < cu.elapsed(start, end) < 10_000
    with pytest.raises(Refused) as refused:
        cu.elapsed(start, untimed)
    assert refused.value.code == 400
    for event in (start, end, untimed):
        cu.destroy_event(event)
    cu.destroy_stream(stream)


def test_a_destroyed_stream_still_does_its_work(pair: Pair, sim: Sim) -> None:
    stream = pair.cu.stream()
    gate = sim.gate(stream)
    sim.store(stream, pair.memory, NEW)
    pair.cu.destroy_stream(stream)
    with pytest.raises(Refused) as refused:
        pair.cu.wait_for(stream)
    assert refused.value.code == 400 and sim.peek(pair.memory, 4) == OLD
    gate.open()
    pair.cu.synchronize()
    assert sim.peek(pair.memory, 4) == NEW


def test_a_loop_of_queries_ends(pair: Pair, sim: Sim) -> None:
    for _ in range(5):
        sim.store(pair.producer, pair.memory, NEW)
    for _ in range(100_000):
        if pair.cu.is_done(pair.producer):
            break
    assert pair.read() == NEW


def test_a_full_queue_blocks_the_host(cu: Driver, sim: Sim) -> None:
    stream, memory, context = cu.stream(), cu.alloc(1), cu.current()
    before = sim.get("queue")
    sim.set("queue", 4)
    gate, sent = sim.gate(stream), []

    def send() -> None:
        cu.set_current(context)
        for number in range(8):
            cu.fill_async(memory, number, 1, stream)
            sent.append(number)

    sender = threading.Thread(target=send)
    sender.start()
    sender.join(0.1)
    assert sender.is_alive() and sent == [0, 1, 2] and sim.pending(stream) == 4
    gate.open()
    sender.join()
    cu.wait_for(stream)
    assert sim.peek(memory, 1) == b"\x07"
    sim.set("queue", before)
    cu.free(memory)
    cu.destroy_stream(stream)
