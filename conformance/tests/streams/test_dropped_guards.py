"""A guard that is dropped and never left: the best that can be is done then, and the warning tells what it is."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Literal

import cai_dlpack as cd
import pytest
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import Dlpack
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.interpreter.free_threaded import FREE_THREADED
from conformance.tests.simulated.capture import ACTIVE, Captures
from conformance.tests.simulated.machine import Machine, one_event
from conformance.tests.streams.elsewhere import elsewhere
from conformance.tests.streams.race import LEGACY, PER_THREAD, Track

EDGE = "its return edge was made only now"
WAITED = "the host has waited for its consumer only now"
NOTHING = "nothing waits for its consumer"
NEEDLESS = "nothing has to wait for its consumer"

pytestmark = pytest.mark.skipif(
    FREE_THREADED, reason="not run: free-threaded CPython ends a guard on its own thread, which can name its stream"
)


@pytest.fixture(autouse=True, params=["threaded", "lazy"])
def schedule(request: pytest.FixtureRequest, track: Track) -> None:
    track.control.schedule = request.param


def dropped(view: cd.CaiView, stream: int, then: Callable[[], None] = lambda: None) -> list[Any]:
    """Enters a block; its only reference."""
    block = view.consume(stream)
    block.__enter__()
    then()
    return [block]


def told(drop: Callable[[], None]) -> str:
    """Drops; what the one warning tells of the end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        drop()
        gc.collect()
    (found,) = caught
    assert issubclass(found.category, cd.ConsumeWarning)
    begin, end = "a consume block was never left; ", str(found.message)
    assert end.startswith(begin)
    return end.removeprefix(begin)


def on_device(machine: Machine, work: Callable[[], None]) -> Callable[[], None]:
    """The work, on a thread of its own that has the device."""

    def run() -> None:
        machine.set_current(0)
        work()

    return lambda: elsewhere(run)


def opened_later(track: Track, gate: Any) -> threading.Timer:
    timer = threading.Timer(0.1, gate.open)
    timer.start()
    return timer


@pytest.fixture
def captures(track: Track) -> Iterator[Captures]:
    made = Captures(track.machine)
    yield made
    made.close()


def blocking_stream(machine: Machine) -> int:
    made = ctypes.c_void_p()
    machine._call("cuStreamCreate", ctypes.byref(made), 0)
    assert made.value
    return made.value


# --- on another thread than the consumer's ----------------------------------------------------------------------


@pytest.mark.parametrize("producer", ["handle", LEGACY])
@pytest.mark.parametrize("in_time", [True, False], ids=["idle", "busy"])
def test_a_default_stream_of_another_thread_is_waited_for(producer: Any, in_time: bool, track: Track) -> None:
    """Its own thread alone can name it; the legacy default stream waits for those of all threads."""
    ready = track.a if producer == "handle" else producer
    track.write(ready, 7)
    held = dropped(track.view(ready), PER_THREAD)
    with track.control.gate(PER_THREAD) as gate:
        track.read(PER_THREAD)
        track.machine.clear()
        text = told(on_device(track.machine, held.clear))
        assert text == (EDGE if producer == "handle" else NEEDLESS)
        # A default stream of its own context waits for that of each thread by itself.
        assert track.machine.order() == (one_event(LEGACY, track.a) if producer == "handle" else [])
        if in_time:
            gate.open()
        else:
            opened_later(track, gate)
        track.write(ready, 8)
        track.wait(ready)
    track.wait(PER_THREAD)
    assert track.seen() == 7
    assert cd.stats()["open_guards"] == 0


def test_the_producers_default_stream_of_this_thread_makes_the_host_wait(track: Track) -> None:
    """No other thread can make it wait."""
    track.write(PER_THREAD, 7)
    held = dropped(track.view(PER_THREAD), track.b)
    with track.control.gate(track.b) as gate:
        track.read(track.b)
        timer = opened_later(track, gate)
        text = told(on_device(track.machine, held.clear))
        timer.join()
        assert text.startswith(f"{WAITED}, as no return edge can be made: ") and text.endswith("[stream-thread]")
        track.write(PER_THREAD, 8)
    track.wait(PER_THREAD)
    assert track.seen() == 7


def test_one_default_stream_for_both_needs_no_edge_on_another_thread(track: Track) -> None:
    held = dropped(track.view(PER_THREAD), PER_THREAD)
    track.machine.clear()
    assert told(on_device(track.machine, held.clear)) == NEEDLESS
    assert track.machine.order() == []


# --- in a capture -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("captured", "rule"),
    [("consumer", "capture-producer"), ("producer", "capture-consumer")],
)
def test_what_a_capture_refuses_is_told_by_its_rule(captured: str, rule: str, track: Track, captures: Captures) -> None:
    """Of a captured consumer nothing can wait; for a captured producer the host waits instead."""
    track.write(track.a, 7)
    held = dropped(track.view(track.a), track.b)
    track.wait(track.b)
    stream = track.b if captured == "consumer" else track.a
    captures.begin(stream)
    track.machine.clear()
    text = told(held.clear)
    assert f"[{rule}]" in text
    assert captures.state(stream) == ACTIVE, "a capture that was touched"
    if captured == "consumer":
        assert text.startswith(NOTHING) and "[capture-host-wait]" in text
        assert track.machine.order() == []
    else:
        assert text.startswith(WAITED)
        assert track.machine.order() == [("cuStreamSynchronize", track.b)]
    captures.end(stream)


def test_beside_a_capture_another_threads_default_stream_is_left_alone(track: Track, captures: Captures) -> None:
    """A capture of a blocking stream forbids the legacy one, which alone waits for the thread's."""
    held = dropped(track.view(track.a), PER_THREAD)
    blocking = blocking_stream(track.machine)
    captures.begin(blocking)
    text = told(on_device(track.machine, held.clear))
    assert text.startswith(NOTHING) and "[capture-legacy]" in text
    assert captures.state(blocking) == ACTIVE
    captures.end(blocking)
    track.machine.destroy_stream(blocking)


# --- what else the end may be -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("producer", "consumer", "policy", "expected"),
    [
        ("a", "b", "event", EDGE),
        ("a", "b", "host", WAITED),
        ("a", "b", "none", f'{NOTHING}: the policy is "none"'),
        ("a", "a", "event", NEEDLESS),
        (None, "b", "event", NEEDLESS),
        ("unknown", "b", "event", f"{NOTHING}: the producer's stream is unknown"),
    ],
)
def test_the_warning_tells_what_was_done(
    producer: str | None, consumer: str, policy: Any, expected: str, track: Track
) -> None:
    view = track.view(track.a if producer == "a" else None)
    if producer == "unknown":
        view = cd.view(Dlpack(abi.make(device=(abi.CUDA, 0), data=track.data)))
    with cd.policy(sync=policy):
        held = dropped(view, getattr(track, consumer))
    track.machine.clear()
    assert told(held.clear) == expected
    order = {EDGE: one_event(track.b, track.a), WAITED: [("cuStreamSynchronize", track.b)]}.get(expected, [])
    assert track.machine.order() == order


@pytest.mark.parametrize("call", ["cuEventRecord", "cuStreamWaitEvent"])
@pytest.mark.parametrize(("refusals", "of_wait", "expected"), [(1, 0, EDGE), (2, 1, WAITED), (2, 2, NOTHING)])
def test_a_driver_that_refuses_the_edge_is_named(
    call: str, refusals: int, of_wait: int, expected: str, track: Track
) -> None:
    """A single refusal proves nothing: each way is tried twice."""
    held = dropped(track.view(track.a), track.b)
    for refused, times in ((call, refusals), ("cuStreamSynchronize", of_wait)):
        for nth in range(1, times + 1):
            track.control.fault(refused, 2, nth)
    text = told(held.clear)
    assert text.startswith(expected)
    assert (call in text) == (expected != EDGE)
    assert ("cuStreamSynchronize" in text) == (expected == NOTHING)


# --- a producer that has moved to another thread's default stream -----------------------------------------------


def test_the_default_stream_of_another_thread_is_not_the_consumers(track: Track, machine: Machine) -> None:
    """Both are 2: the end of the block is refused where the producer works on another thread's."""
    producer = exchange.Producer(abi.make(device=(abi.CUDA, 0), data=track.data))
    producer.stream = PER_THREAD
    array = exchange.make_type(exchange.capsule(exchange.table(producer)), producer)()
    track.write(PER_THREAD, 7)
    block = cd.view(array).consume(PER_THREAD)
    lent = block.__enter__()
    assert lent.return_edge == "same-stream"
    with track.control.gate(PER_THREAD):
        track.read(PER_THREAD)

        def leave() -> None:
            machine.clear()
            check_refusal(refuse(lambda: lent.return_edge, BufferError), "stream-thread", "stream")
            check_refusal(refuse(lambda: block.__exit__(None, None, None), BufferError), "stream-thread", "stream")
            assert machine.order() == []

        on_device(machine, leave)()
    track.wait(PER_THREAD)
    assert track.seen() == 7


def test_the_edge_is_told_where_it_can_be_made(track: Track, machine: Machine) -> None:
    """On another thread the question is refused if and only if the end is: both name the same streams."""
    found = set()
    streams = (track.a, track.b, LEGACY, PER_THREAD)
    policies: tuple[Literal["event", "none"], ...] = ("event", "none")
    for producer, consumer, policy in product((None, *streams), streams, policies):
        with cd.policy(sync=policy):
            block = track.view(producer).consume(consumer)
            lent = block.__enter__()
        rules: list[str | None] = []

        def leave(lent: cd.CaiView = lent, block: Any = block, rules: list[str | None] = rules) -> None:
            rules.append(rule_of(lambda: lent.return_edge))
            rules.append(rule_of(lambda: block.__exit__(None, None, None)))

        on_device(machine, leave)()
        assert rules[0] == rules[1], (producer, consumer, policy)
        found.add(rules[0])
    assert found == {None, "stream-thread"}


def rule_of(call: Callable[[], object]) -> str | None:
    """The rule by which a call is refused, if it is."""
    try:
        call()
    except BufferError as refused:
        return str(getattr(refused, "rule", refused))
    return None


def test_dropped_there_it_waits_for_the_consumer(track: Track, machine: Machine) -> None:
    producer = exchange.Producer(abi.make(device=(abi.CUDA, 0), data=track.data))
    producer.stream = PER_THREAD
    array = exchange.make_type(exchange.capsule(exchange.table(producer)), producer)()
    track.write(PER_THREAD, 7)
    held = dropped(cd.view(array), PER_THREAD)
    with track.control.gate(PER_THREAD) as gate:
        track.read(PER_THREAD)

        def leave() -> None:
            assert told(held.clear) == EDGE
            opened_later(track, gate)
            track.write(PER_THREAD, 8)
            track.wait(PER_THREAD)

        on_device(machine, leave)()
    track.wait(PER_THREAD)
    time.sleep(0.01)
    assert track.seen() == 7
