"""Loans: `with view.consume(stream) as lent`, and the return edge at their end."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import cai_dlpack as cd
import pytest
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import Cai, Dlpack, interface
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.interpreter.free_threaded import FREE_THREADED
from conformance.tests.interpreter.process import on_the_simulator
from conformance.tests.interpreter.threads import on_stack_of
from conformance.tests.simulated.machine import Machine, one_event
from conformance.tests.streams.race import LEGACY, PER_THREAD, Track

LEFT = "a consume block was never left"


class Trouble(Exception):
    """Raised by the body of a block."""


# --- the edges ------------------------------------------------------------------------------------------


def test_one_event_in_and_one_event_out(track: Track) -> None:
    view = track.view(track.a)
    track.machine.clear()
    with view.consume(track.b) as lent:
        assert track.machine.order() == one_event(track.a, track.b)
        assert (lent.stream, lent.producer_stream, lent.return_edge) == (track.b, track.a, "event")
        track.machine.clear()
    assert track.machine.order() == one_event(track.b, track.a)
    assert (view.stream, view.return_edge) == (track.a, None), "the view itself is as it was"


def test_the_same_stream_costs_no_call(track: Track) -> None:
    view = track.view(track.a)
    track.machine.clear_own()
    with view.consume(track.a) as lent:
        assert lent.return_edge == "same-stream"
    assert track.machine.calls() == []


def test_a_producer_without_a_stream_needs_no_edge(track: Track) -> None:
    view = track.view(None)
    track.machine.clear_own()
    with view.consume(track.b) as lent:
        assert (lent.return_edge, lent.stream) == ("not-needed", None)
    assert track.machine.calls() == []


def test_under_policy_none_both_edges_are_the_callers(track: Track) -> None:
    """The policy is that of the block's entry; `return_edge` tells the edge that is left to make."""
    view = track.view(track.a)
    track.machine.clear()
    with cd.policy(sync="none"):
        loan = view.consume(track.b)
        lent = loan.__enter__()
    assert lent.return_edge == "event"
    loan.__exit__(None, None, None)
    assert track.machine.order() == []


def test_the_edge_goes_to_the_producer_and_not_to_the_ready_stream(track: Track, machine: Machine) -> None:
    third = machine.stream()
    moved = track.view(track.a).on(track.b)
    machine.clear()
    with moved.consume(third):
        assert machine.order() == one_event(track.b, third)
        machine.clear()
    assert machine.order() == one_event(third, track.a)
    machine.destroy_stream(third)


def test_the_edge_is_made_when_the_body_raises(track: Track) -> None:
    with pytest.raises(Trouble), track.view(track.a).consume(track.b):
        raise Trouble
    assert track.machine.order() == one_event(track.a, track.b) + one_event(track.b, track.a)


def test_the_bodys_exception_stays_visible_when_the_edge_fails(track: Track) -> None:
    track.control.fault("cuStreamWaitEvent", 2, nth=2)
    with pytest.raises(cd.DriverError) as caught, track.view(track.a).consume(track.b):
        raise Trouble
    assert isinstance(caught.value.__context__, Trouble)
    assert cd.stats()["open_guards"] == 0


def test_a_loan_that_cannot_begin_leaves_nothing_open(track: Track) -> None:
    track.control.fault("cuEventRecord", 2)
    with pytest.raises(cd.DriverError), track.view(track.a).consume(track.b):
        raise AssertionError("entered")
    assert cd.stats()["open_guards"] == 0


# --- an unknown producer ----------------------------------------------------------------------------------


def unknown(track: Track) -> cd.CaiView:
    view = cd.from_dlpack(Dlpack(abi.make(device=(abi.CUDA, 0), data=track.data)), stream=track.a)
    assert view.producer_stream == "unknown"
    return view


def test_an_unknown_producer_is_ordered_after_and_cannot_be_made_to_wait(track: Track) -> None:
    view = unknown(track)
    track.machine.clear()
    with view.consume(track.b) as lent:
        assert lent.return_edge == "unknown"
    assert track.machine.order() == one_event(track.a, track.b)


def test_strict_refuses_an_unknown_producer_before_any_call(track: Track) -> None:
    view = unknown(track)
    track.machine.clear_own()
    found = refuse(lambda: view.consume(track.b, strict=True), BufferError)
    check_refusal(found, "stream-unknown", None, hint="producer_stream=")
    assert track.machine.calls() == []
    with cd.view(view, producer_stream=track.a).consume(track.b, strict=True) as lent:
        assert lent.return_edge == "event"


# --- several at once -----------------------------------------------------------------------------------------


def test_several_consumers_are_several_edges_and_the_producer_waits_for_all(track: Track, machine: Machine) -> None:
    outcomes, third = set(), machine.stream()
    view = track.view(track.a)
    copies = [machine.device_memory(24) for _ in range(2)]
    for _ in track.control.orders():
        track.write(track.a, 1)
        with view.consume(track.b), view.consume(third):
            for stream, copy in zip((track.b, third), copies, strict=True):
                track.copy = copy
                track.read(stream)
        track.write(track.a, 2)
        for stream in (track.a, track.b, third):
            track.wait(stream)
        outcomes.add(tuple(machine.read(copy, 24)[0] for copy in copies))
    assert outcomes == {(1, 1)}
    machine.destroy_stream(third)
    machine.free(copies[0])


def test_loans_nest_and_each_goes_back_to_the_producer(track: Track, machine: Machine) -> None:
    third = machine.stream()
    with track.view(track.a).consume(track.b) as lent:
        machine.clear()
        with lent.consume(third) as further:
            assert further.producer_stream == track.a
            assert machine.order() == one_event(track.b, third)
            machine.clear()
        assert machine.order() == one_event(third, track.a)
        assert lent.on(track.b) is lent, "the outer loan goes on"
    machine.destroy_stream(third)


def test_threads_consume_at_the_same_time(track: Track, machine: Machine) -> None:
    """Each with its own stream; the producer writes once all of them are done, and waits for no thread."""
    view, step = track.view(track.a), threading.Barrier(5)
    streams = [machine.stream() for _ in range(4)]
    copies = [machine.device_memory(24) for _ in range(4)]

    def work(stream: int, copy: int) -> None:
        machine.set_current(0)
        mine = Track.__new__(Track)
        mine.__dict__.update(track.__dict__, copy=copy)
        for _ in range(20):
            step.wait(20)  # it is written
            with view.consume(stream):
                mine.read(stream)
            step.wait(20)  # every loan has ended
            step.wait(20)  # it is looked at

    threads = [threading.Thread(target=work, args=pair) for pair in zip(streams, copies, strict=True)]
    for thread in threads:
        thread.start()
    for trial in range(20):
        track.busy(track.a)
        track.write(track.a, trial + 1)
        step.wait(20)
        step.wait(20)
        track.write(track.a, 0xEE)
        for stream in (*streams, track.a):
            track.wait(stream)
        assert {machine.read(copy, 24)[0] for copy in copies} == {trial + 1}
        step.wait(20)
    for thread in threads:
        thread.join()
    assert cd.stats()["open_guards"] == 0
    for stream, copy in zip(streams, copies, strict=True):
        machine.destroy_stream(stream)
        machine.free(copy)


def test_one_block_is_entered_once_at_a_time_and_again_later(track: Track) -> None:
    loan = track.view(track.a).consume(track.b)
    with loan, pytest.raises(RuntimeError, match="open"):
        loan.__enter__()
    with loan as again:
        assert again.stream == track.b
    loan.__exit__(None, None, None)  # nothing is open: nothing happens
    assert cd.stats()["open_guards"] == 0


def test_of_many_threads_that_enter_one_block_one_is_let_in(track: Track, machine: Machine) -> None:
    loan, start, let_in, refused = track.view(track.a).consume(track.b), threading.Barrier(8), [], []
    machine.clear()

    def enter() -> None:
        machine.set_current(0)
        start.wait(20)
        try:
            with cd.policy(sync="host"):
                let_in.append(loan.__enter__())
        except RuntimeError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=enter) for _ in range(8)]
    with track.control.gate(track.a):
        for thread in threads:
            thread.start()
        # All of them have found it free, and wait inside for the data.
        while track.control.count("cuStreamSynchronize") < 8:
            assert all(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join()
    assert (len(let_in), len(refused)) == (1, 7)
    assert let_in[0].on(track.b) is let_in[0], "the one that is in has a view that works"
    loan.__exit__(None, None, None)
    assert cd.stats()["open_guards"] == 0


# --- used after the end --------------------------------------------------------------------------------------

USES: dict[str, Callable[[cd.CaiView, Track], object]] = {
    "dlpack": lambda lent, track: lent.__dlpack__(stream=track.b, max_version=(1, 3)),
    "dlpack-without-order": lambda lent, track: lent.__dlpack__(stream=-1, max_version=(1, 3)),
    "to-dlpack": lambda lent, track: cd.to_dlpack(lent, stream=track.b),
    "interface": lambda lent, track: lent.__cuda_array_interface__,
    "to-cai": lambda lent, track: lent.to_cai(),
    "view": lambda lent, track: cd.view(lent),
    "on": lambda lent, track: lent.on(track.a),
    "synchronize": lambda lent, track: lent.synchronize(),
    "consume": lambda lent, track: lent.consume(track.a),
    "join": lambda lent, track: cd.join([lent], on=track.a),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("made", ["lent", "on", "view", "join", "from_cai", "from_dlpack", "consume"])
def test_after_the_end_a_lent_view_is_refused(use: str, made: str, track: Track) -> None:
    """So is whatever was made of it, in a block of its own that is still open, too."""
    inner = ExitStack()
    with track.view(track.a).consume(track.b) as lent:
        further = {
            "lent": lambda: lent,
            "on": lambda: lent.on(LEGACY),
            "view": lambda: cd.view(lent),
            "join": lambda: cd.join([lent], on=LEGACY)[0],
            "from_cai": lambda: cd.from_cai(lent),
            "from_dlpack": lambda: cd.from_dlpack(lent, stream=LEGACY),
            "consume": lambda: inner.enter_context(lent.consume(LEGACY)),
        }[made]()
    track.machine.clear_own()
    found = refuse(lambda: USES[use](further, track), BufferError)
    check_refusal(found, "scope-ended", None)
    assert track.machine.calls() == []
    assert (further.shape, further.ptr) == ((2, 3), track.data), "what it is can still be read"
    inner.close()


@pytest.mark.parametrize("keywords", [{}, {"producer_stream": 1}, {"stream": 1}], ids=str)
def test_a_view_of_a_copy_is_the_blocks_like_any_other(keywords: Any, machine: Machine) -> None:
    """Its tensor has the flag of a copy, which the memory is, though not one that this call has made."""
    copied = cd.from_dlpack(cd.view(abi.make((4,), device=(2, 0), data=machine.device_memory(16)).capsule()), copy=True)
    with copied.consume(LEGACY) as lent:
        further = cd.from_dlpack(lent, **keywords)
        assert further.ptr == copied.ptr
    check_refusal(refuse(lambda: further.on(LEGACY), BufferError), "scope-ended", None)


def test_blocks_within_blocks_end_however_many_they_are(machine: Machine) -> None:
    """In a bounded stack, and each costs what the first one does."""
    views = [cd.view(Cai(interface()), device_id=0, producer_stream=None)]
    blocks = []
    for _ in range(3_000):
        blocks.append(views[-1].consume(LEGACY))
        views.append(blocks[-1].__enter__())
    for block in blocks:
        block.__exit__(None, None, None)
    del blocks, views[:-1]
    check_refusal(refuse(lambda: views[-1].on(LEGACY), BufferError), "scope-ended", None)
    on_stack_of(256 << 10, views.clear)


@pytest.mark.parametrize("keywords", [{"copy": True}, {"device": "cpu"}], ids=str)
def test_a_copy_of_a_lent_view_is_not_the_blocks(keywords: Any, track: Track) -> None:
    with track.view(track.a).consume(track.b) as lent:
        copied = cd.from_dlpack(lent, **keywords)
    abi.release(abi.consume(cd.to_dlpack(copied, stream=None)))


class Ending:
    """A stream object whose conversion ends a block."""

    def __init__(self, loan: Any, stream: int) -> None:
        self.loan, self.stream = loan, stream

    def __cuda_stream__(self) -> tuple[int, int]:
        self.loan.__exit__(None, None, None)
        return (0, self.stream)


ENDED_BY_THE_ARGUMENT: dict[str, Callable[[cd.CaiView, Any], object]] = {
    "dlpack": lambda lent, stream: lent.__dlpack__(stream=stream, max_version=(1, 3)),
    "dlpack-copy": lambda lent, stream: lent.__dlpack__(stream=stream, max_version=(1, 3), copy=True),
    "to-dlpack": lambda lent, stream: cd.to_dlpack(lent, stream=stream),
    "to-dlpack-copy": lambda lent, stream: cd.to_dlpack(lent, stream=stream, copy=True),
    "on": lambda lent, stream: lent.on(stream),
    "consume": lambda lent, stream: lent.consume(stream).__enter__(),
    "join": lambda lent, stream: cd.join([lent], on=stream),
    "view": lambda lent, stream: cd.view(lent, producer_stream=stream),
    "from-cai": lambda lent, stream: cd.from_cai(lent, producer_stream=stream),
    "from-dlpack": lambda lent, stream: cd.from_dlpack(lent, stream=stream),
    "from-dlpack-producer": lambda lent, stream: cd.from_dlpack(lent, producer_stream=stream),
    "to": lambda lent, stream: cd.to(lent, "tvm_ffi", stream=stream),
}


@pytest.mark.parametrize("use", ENDED_BY_THE_ARGUMENT)
def test_a_block_that_the_stream_argument_ends_has_ended(use: str, track: Track) -> None:
    """The argument is read first: nothing is exported, nor waits, after the block."""
    loan = track.view(track.a).consume(track.b)
    lent = loan.__enter__()
    track.machine.clear()
    found = refuse(lambda: ENDED_BY_THE_ARGUMENT[use](lent, Ending(loan, track.a)), BufferError)
    check_refusal(found, "scope-ended", None)
    assert track.machine.order() == one_event(track.b, track.a), "the block's own"


# --- never left ------------------------------------------------------------------------------------------------


def abandoned(track: Track) -> Any:
    def body() -> Any:
        with track.view(track.a).consume(track.b) as lent:
            yield lent

    generator = body()
    next(generator)
    return generator


def test_a_block_that_a_generator_abandons_is_left_by_the_generator(track: Track) -> None:
    generator = abandoned(track)
    assert cd.stats()["open_guards"] == 1
    track.machine.clear()
    generator.close()
    assert track.machine.order() == one_event(track.b, track.a)
    assert cd.stats()["open_guards"] == 0


def open_loan(track: Track) -> Any:
    loan = track.view(track.a).consume(track.b)
    return loan, loan.__enter__()


def test_a_leaked_guard_is_counted_and_then_a_warning_and_an_edge(track: Track) -> None:
    held = [open_loan(track)]
    assert cd.stats()["open_guards"] == 1
    track.machine.clear()
    with pytest.warns(ResourceWarning, match=LEFT):
        held.clear()
    assert track.machine.order() == one_event(track.b, track.a)
    assert cd.stats()["open_guards"] == 0


def test_the_view_of_a_leaked_guard_has_ended_with_it(track: Track) -> None:
    loan, lent = open_loan(track)
    with pytest.warns(ResourceWarning, match=LEFT):
        del loan
    check_refusal(refuse(lambda: lent.on(LEGACY), BufferError), "scope-ended", None)


@pytest.mark.parametrize("mode", ["always", "error", "ignore"])
def test_a_guard_that_an_exception_drops_leaves_the_exception_alone(mode: Any, track: Track) -> None:
    """The guard is a temporary of the very expression that raises."""
    unraisable: list[object] = []
    with warnings.catch_warnings(record=True), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter(mode)
        patch.setattr("sys.unraisablehook", lambda found: unraisable.append(type(found.exc_value)))
        with pytest.raises(IndexError, match="list index out of range"):
            (open_loan(track), [][7])
        gc.collect()
    assert cd.stats()["open_guards"] == 0
    assert unraisable == ([cd.ConsumeWarning] if mode == "error" else [])


def test_where_the_edge_of_a_leaked_guard_fails_the_host_waits_for_the_consumer(track: Track) -> None:
    held = [open_loan(track)]
    track.machine.clear()
    for nth in (1, 2):
        track.control.fault("cuStreamWaitEvent", 2, nth)
    with pytest.warns(ResourceWarning, match=LEFT):
        held.clear()
    assert track.machine.order()[-1] == ("cuStreamSynchronize", track.b)


def test_a_leaked_guard_waits_for_no_gate(track: Track) -> None:
    """Its edge is an event: a consumer that is stopped stops the producer's stream alone."""
    with track.control.gate(track.b):
        held = [open_loan(track)]
        with pytest.warns(ResourceWarning, match=LEFT):
            held.clear()
        track.write(track.a, 7)
        assert track.control.pending(track.a) > 0
    track.wait(track.a)
    assert track.machine.read(track.data, 1) == b"\x07"


AT_EXIT = """
import gc, sys, threading
import cai_dlpack as cd
from cai_conformance import Sim
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.race import Track
machine = Machine(Sim())
machine.set_current(0)
track = Track(machine)
loan = track.view(track.a).consume(track.b)
lent = loan.__enter__()
HOW
print("end of the program", flush=True)
"""


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("", id="a-global"),
        pytest.param("sys.kept = loan", id="in-sys"),
        pytest.param("lent.owner.cycle = loan", id="in-a-cycle"),
        pytest.param("gate = track.control.gate(track.b)", id="behind-a-closed-gate"),
        pytest.param(
            "threading.Thread(target=lambda _: threading.Event().wait(), args=(loan,), daemon=True).start(); del loan",
            id="on-a-daemon-thread",
        ),
    ],
)
def test_a_guard_that_is_open_at_exit_holds_nobody_up(how: str) -> None:
    done = on_the_simulator(AT_EXIT.replace("HOW", how), timeout=30)
    assert (done.returncode, done.stdout) == (0, "end of the program\n"), done.stderr


# --- the per-thread default stream ------------------------------------------------------------------------------


def on_another_thread(machine: Machine, work: Callable[[], object]) -> BaseException | None:
    caught: list[BaseException] = []

    def run() -> None:
        machine.set_current(0)
        try:
            work()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    return caught[0] if caught else None


def refused_elsewhere(track: Track, work: Callable[[], object]) -> None:
    track.machine.clear()
    error = on_another_thread(track.machine, work)
    assert isinstance(error, BufferError), error
    assert getattr(error, "rule", None) == "stream-thread"
    assert track.machine.order() == []


@pytest.mark.parametrize("use", ["on", "dlpack", "to-dlpack", "synchronize", "join", "consume"])
def test_a_view_that_is_ready_on_2_is_refused_on_another_thread(use: str, track: Track) -> None:
    view = track.view(PER_THREAD)

    def consume() -> None:
        with view.consume(track.b):
            raise AssertionError("entered")

    refused_elsewhere(track, consume if use == "consume" else lambda: USES[use](view, track))
    moved = view.on(track.a)
    assert on_another_thread(track.machine, lambda: USES["on"](moved, track)) is None, "joined, it goes anywhere"


def test_2_is_not_the_same_stream_on_another_thread(track: Track) -> None:
    view = track.view(PER_THREAD)
    track.machine.clear_own()
    assert view.on(PER_THREAD) is view
    assert track.machine.calls() == []
    refused_elsewhere(track, lambda: view.on(PER_THREAD))


def test_a_consumer_on_2_that_ends_elsewhere_is_refused_and_over(track: Track) -> None:
    loan = track.view(track.a).consume(PER_THREAD)
    loan.__enter__()
    refused_elsewhere(track, lambda: loan.__exit__(None, None, None))
    assert cd.stats()["open_guards"] == 0


def test_a_producer_on_2_is_not_made_to_wait_by_another_thread(track: Track) -> None:
    """On the other thread 2 is that thread's own stream: an edge to it would order nothing."""
    loan = track.view(PER_THREAD).consume(track.b)
    loan.__enter__()
    refused_elsewhere(track, lambda: loan.__exit__(None, None, None))
    held = [track.view(PER_THREAD).consume(track.b)]
    held[0].__enter__()
    track.machine.clear()
    with pytest.warns(ResourceWarning, match=LEFT):
        on_another_thread(track.machine, held.clear)
    # Dropped there, the host waits instead. Free-threaded CPython ends it on the thread that made it, after all.
    by_its_own = [("cuEventRecord", track.b), ("cuStreamWaitEvent", PER_THREAD)]
    assert track.machine.order() == (by_its_own if FREE_THREADED else [("cuStreamSynchronize", track.b)])


def test_a_loan_whose_return_edge_nobody_here_could_make_is_refused_at_its_entry(track: Track) -> None:
    """The data is ready on a handle by then, but the producer goes on working on its thread's 2."""
    moved = track.view(PER_THREAD).on(track.a)
    refused_elsewhere(track, lambda: moved.consume(track.b).__enter__())
    assert cd.stats()["open_guards"] == 0
    with moved.consume(track.b):
        track.machine.clear()
    assert track.machine.order() == one_event(track.b, PER_THREAD)


def test_many_blocks_in_any_order(track: Track) -> None:
    with ExitStack() as stack:
        lent = [stack.enter_context(track.view(track.a).consume(track.b)) for _ in range(50)]
        assert cd.stats()["open_guards"] == 50
        assert {each.stream for each in lent} == {track.b}
    assert cd.stats()["open_guards"] == 0


# --- a producer that can be asked again ---------------------------------------------------------------------------


def test_a_producer_that_moves_during_a_loan_is_made_to_wait_where_it_is(track: Track, machine: Machine) -> None:
    """The producer goes on working on its new stream; the old one is made to wait as well."""
    producer, third = exchange.Producer(abi.make(device=(abi.CUDA, 0), data=track.data)), machine.stream()
    producer.stream = track.a
    shown = exchange.make_type(exchange.capsule(exchange.table(producer)), producer)()
    outcomes = set()
    for _ in track.control.orders():
        producer.stream = track.a
        view = cd.view(shown)
        track.write(track.a, 1)
        machine.clear()
        with view.consume(track.b):
            assert machine.order() == one_event(track.a, track.b)
            track.read(track.b)
            producer.stream = third
            machine.clear()
        assert machine.order() == one_event(track.b, track.a) + one_event(track.b, third)
        track.write(third, 2)
        for stream in (track.a, track.b, third):
            track.wait(stream)
        outcomes.add(track.seen())
    assert outcomes == {1}
    machine.destroy_stream(third)


def test_an_import_of_a_view_by_its_dict_keeps_both_streams(machine: Machine) -> None:
    """The dict names the ready one alone: the way back would be unknown."""
    ready, consumer = machine.stream(), machine.stream()
    made = Cai(interface(data=(machine.device_memory(4096), False), stream=ready))
    view = cd.view(made).on(consumer)
    again = cd.from_cai(view)
    assert (again.stream, again.producer_stream) == (view.stream, view.producer_stream) == (consumer, ready)
    named = cd.from_cai(view, producer_stream=consumer)
    assert named.producer_stream == consumer
