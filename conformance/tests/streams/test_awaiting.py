"""Tests `await view.wait()` and `async with view.consume(stream)`: the same order, and an event loop that goes on."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

import cai_dlpack as cd
import pytest

from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.simulated.capture import Captures
from conformance.tests.simulated.machine import Machine, one_event
from conformance.tests.streams.race import LEGACY, PER_THREAD, Calls, Track

T = TypeVar("T")


class Trouble(Exception):
    """Raised by the body of a block."""


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 20))


@asynccontextmanager
async def held(track: Track, stream: int, ticks: int = 5) -> AsyncIterator[list[float]]:
    """Holds a stream until another task has had so many turns; lists their times."""
    gate, times = track.control.gate(stream), list[float]()

    async def tick() -> None:
        for _ in range(ticks):
            await asyncio.sleep(0.002)
            times.append(time.monotonic())
        gate.open()

    ticking = asyncio.create_task(tick())
    yield times
    await ticking


def shown(track: Track) -> tuple[Calls, int]:
    """Returns the calls of order since the last look, and how many blocks are open."""
    order = track.machine.order()
    track.machine.clear()
    return order, cd.stats()["open_guards"]


# --- the event loop goes on ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["handle", "legacy", "per-thread"])
def test_a_wait_leaves_the_loop_to_other_tasks(name: str, track: Track) -> None:
    stream = {"handle": track.a, "legacy": LEGACY, "per-thread": PER_THREAD}[name]

    async def main() -> None:
        view = track.view(stream)
        async with held(track, stream) as ticks:
            track.write(stream, 7)
            ready = await view.wait()
            assert len(ticks) == 5
            assert track.control.peek(track.data, 1) == bytes([7])
            assert (ready.stream, ready.producer_stream) == (None, stream)
            assert view.stream == stream, "the view itself is as it was"

    run(main())


@pytest.mark.parametrize("side", ["entry", "end"])
def test_the_policy_host_waits_at_both_ends_and_leaves_the_loop_to_other_tasks(side: str, track: Track) -> None:
    stream = {"entry": track.a, "end": track.b}[side]

    async def main() -> None:
        view, order = track.view(track.a), list[tuple[Calls, int]]()
        with cd.policy(sync="host"):
            async with held(track, stream) as ticks:
                track.machine.clear()
                async with view.consume(track.b) as ready:
                    assert len(ticks) == (5 if side == "entry" else 0)
                    assert ready.return_edge == "event"
                    order.append(shown(track))
                order.append(shown(track))
                assert len(ticks) == 5
        assert order[0] == ([("cuEventRecord", track.a)], 1)
        # The event, too: a wait that is given up leaves the order made.
        assert order[1] == ([("cuEventRecord", track.b), *one_event(track.b, track.a)], 0)

    run(main())


def test_a_wait_ends_where_work_runs_only_when_it_is_waited_for(lazily: Track) -> None:
    lazily.write(lazily.a, 7)
    run(lazily.view(lazily.a).wait())
    assert lazily.control.peek(lazily.data, 1) == bytes([7])


def test_many_waits_go_on_together(track: Track) -> None:
    async def main() -> None:
        view = track.view(track.a)
        async with held(track, track.a):
            ready = await asyncio.gather(*(view.wait() for _ in range(100)))
        assert {each.stream for each in ready} == {None}

    run(main())


def test_no_call_is_made_with_the_gil_held(track: Track) -> None:
    async def main() -> None:
        view = track.view(track.a)
        with cd.policy(sync="host"), track.control.gil_watch("*"):
            async with held(track, track.a):
                await view.wait()
                async with view.consume(track.b):
                    pass

    run(main())


# --- what is called -----------------------------------------------------------------------------------------


def test_one_event_in_and_one_event_out_without_a_pause(track: Track) -> None:
    async def main() -> None:
        view, turns = track.view(track.a), list[int]()
        asyncio.get_running_loop().call_soon(turns.append, 1)
        track.machine.clear()
        async with view.consume(track.b) as ready:
            assert shown(track) == (one_event(track.a, track.b), 1)
            assert (ready.stream, ready.producer_stream, ready.return_edge) == (track.b, track.a, "event")
        assert shown(track) == (one_event(track.b, track.a), 0)
        assert turns == [], "no other task had a turn"
        check_refusal(refuse(lambda: ready.on(track.b), BufferError), "scope-ended", None)

    run(main())


def test_what_is_ready_costs_no_call(track: Track) -> None:
    async def main() -> None:
        ready, view = track.view(None), track.view(track.a)
        track.machine.clear_own()
        assert await ready.wait() is ready
        async with ready.consume(track.b) as lent:
            assert (lent.stream, lent.return_edge) == (None, "not-needed")
        async with view.consume(track.a) as lent:
            assert lent.return_edge == "same-stream"
        with cd.policy(sync="none"):
            async with view.consume(track.b):
                pass
        assert track.machine.calls() == []

    run(main())


def test_the_calls_of_a_wait(track: Track) -> None:
    async def main() -> list[str]:
        await track.view(track.a).wait()
        track.wait(track.a)
        track.machine.clear()
        await track.view(track.a).wait()
        return track.machine.names()

    question = ["cuThreadExchangeStreamCaptureMode", "cuCtxPushCurrent", "cuEventQuery", "cuCtxPopCurrent"]
    question += ["cuThreadExchangeStreamCaptureMode"]
    mark = ["cuCtxGetCurrent", "cuStreamGetCtx", "cuStreamIsCapturing", "cuCtxGetId", "cuEventRecord"]
    assert run(main()) == mark + question


def test_a_wait_is_for_every_policy(track: Track) -> None:
    async def main(sync: Literal["event", "host", "none"]) -> None:
        with cd.policy(sync=sync):
            track.machine.clear()
            assert (await track.view(track.a).wait()).stream is None
            assert track.machine.order() == [("cuEventRecord", track.a)]

    for sync in ("event", "host", "none"):
        run(main(sync))


def test_the_race_has_one_outcome_under_every_order(track: Track) -> None:
    async def main() -> None:
        async with track.view(track.a).consume(track.b):
            track.read(track.b)

    outcomes = set()
    for _ in track.control.orders():
        track.write(track.a, 1)
        asyncio.run(main())
        track.write(track.a, 2)
        for stream in (track.a, track.b):
            track.wait(stream)
        outcomes.add(track.seen())
    assert outcomes == {1}


def test_blocks_nest(track: Track, machine: Machine) -> None:
    third = machine.stream()

    async def main() -> None:
        async with track.view(track.a).consume(track.b) as outer:
            machine.clear()
            async with outer.consume(third) as inner:
                assert shown(track) == (one_event(track.b, third), 2)
                assert inner.producer_stream == track.a
            assert shown(track) == (one_event(third, track.a), 1)
            with outer.consume(third):
                pass
        assert shown(track)[1] == 0

    run(main())
    machine.destroy_stream(third)


# --- ends of every kind ---------------------------------------------------------------------------------------


def test_the_edge_is_made_when_the_body_raises(track: Track) -> None:
    async def main() -> None:
        with pytest.raises(Trouble):
            async with track.view(track.a).consume(track.b):
                raise Trouble
        assert shown(track) == (one_event(track.a, track.b) + one_event(track.b, track.a), 0)

    track.machine.clear()
    run(main())


def test_the_bodys_exception_stays_visible_when_the_edge_fails(track: Track) -> None:
    async def main() -> None:
        track.control.fault("cuStreamWaitEvent", 2, nth=2)
        with pytest.raises(cd.DriverError) as caught:
            async with track.view(track.a).consume(track.b):
                raise Trouble
        assert isinstance(caught.value.__context__, Trouble)
        assert cd.stats()["open_guards"] == 0

    run(main())


async def cancelled(work: Coroutine[Any, Any, Any], turns: int = 3) -> None:
    """Starts a task, gives it so many turns, and cancels it."""
    task = asyncio.create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_the_edge_is_made_when_the_task_is_cancelled_inside_the_block(track: Track) -> None:
    async def consume() -> None:
        async with track.view(track.a).consume(track.b):
            shown(track)
            await asyncio.sleep(60)

    async def main() -> None:
        await cancelled(consume())
        assert shown(track) == (one_event(track.b, track.a), 0)

    run(main())


def test_a_wait_at_the_end_that_is_cancelled_leaves_the_producer_waiting(track: Track) -> None:
    async def consume() -> None:
        async with track.view(track.a).consume(track.b):
            track.read(track.b)

    async def main() -> None:
        track.write(track.a, 1)
        track.wait(track.a)
        with track.control.gate(track.b), cd.policy(sync="host"):
            await cancelled(consume(), turns=10)
            track.write(track.a, 2)
            assert cd.stats()["open_guards"] == 0
            await asyncio.sleep(0.02)
            assert track.control.pending(track.a) > 0, "the producer's write waits for the consumer"
        track.wait(track.a)
        assert track.seen() == 1

    run(main())


def test_an_entry_that_is_cancelled_leaves_nothing_open(track: Track) -> None:
    entered = []

    async def main() -> None:
        block = track.view(track.a).consume(track.b)

        async def consume() -> None:
            async with block:
                entered.append(1)

        with track.control.gate(track.a), cd.policy(sync="host"):
            await cancelled(consume(), turns=10)
            track.machine.clear()
        assert (shown(track), entered) == (([], 0), [])
        async with block:
            assert cd.stats()["open_guards"] == 1

    run(main())


def test_a_cancelled_wait_ends_at_once_and_keeps_nothing(track: Track) -> None:
    async def main() -> None:
        view = track.view(track.a)
        await view.wait()
        events = track.control.live().events
        with track.control.gate(track.a):
            for _ in range(10):
                await cancelled(view.wait(), turns=10)
        gc.collect()
        assert track.control.live().events == events

    before = time.monotonic()
    run(main())
    assert time.monotonic() - before < 5


def test_a_wait_with_a_timeout(track: Track) -> None:
    async def main() -> None:
        view = track.view(track.a)
        with track.control.gate(track.a), pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(view.wait(), 0.02)
        assert (await view.wait()).stream is None

    run(main())


FAILURES: dict[str, Callable[[Track], Awaitable[Any]]] = {
    "the mark of a wait": lambda track: track.view(track.a).wait(),
    "the entry": lambda track: track.view(track.a).consume(track.b).__aenter__(),
}


@pytest.mark.parametrize("name", FAILURES)
def test_the_drivers_error_is_raised(name: str, track: Track) -> None:
    async def main() -> None:
        track.control.fault("cuEventRecord", 2)
        with pytest.raises(cd.DriverError, match="cuEventRecord"):
            await FAILURES[name](track)
        assert cd.stats()["open_guards"] == 0

    run(main())


def test_the_error_of_the_work_is_raised(track: Track) -> None:
    async def main() -> None:
        with track.control.gate(track.a):
            task = asyncio.create_task(track.view(track.a).wait())
            await asyncio.sleep(0.01)
            track.control.fault("cuEventQuery", 400)
            with pytest.raises(cd.DriverError, match="cuEventQuery"):
                await task
        assert (await track.view(track.a).wait()).stream is None

    run(main())


def test_a_wait_beside_a_capture_leaves_it_valid(track: Track, machine: Machine) -> None:
    captures = Captures(machine)

    async def main() -> None:
        view = track.view(track.a)
        captures.begin(track.b)
        async with held(track, track.a):
            assert (await view.wait()).stream is None
        assert captures.end(track.b) != 0

    run(main())


def test_a_captured_stream_cannot_be_waited_for(track: Track, machine: Machine) -> None:
    captures = Captures(machine)

    async def main() -> None:
        view = track.view(track.a)
        captures.begin(track.a)
        with pytest.raises(BufferError) as caught:
            await view.wait()
        assert caught.value.rule == "capture-host-wait"  # type: ignore[attr-defined]
        captures.end(track.a)

    run(main())


# --- misuse -----------------------------------------------------------------------------------------------------


def test_an_open_block_is_not_entered_again(track: Track) -> None:
    async def main() -> None:
        block = track.view(track.a).consume(track.b)
        async with block:
            shown(track)
            with pytest.raises(RuntimeError, match="consume-open"):
                await block.__aenter__()
            with pytest.raises(RuntimeError, match="consume-open"):
                block.__enter__()
            assert shown(track) == ([], 1)
        with block, pytest.raises(RuntimeError, match="consume-open"):
            await block.__aenter__()

    run(main())


def test_two_tasks_that_wait_to_enter_one_block(track: Track) -> None:
    async def main() -> None:
        block, outcomes = track.view(track.a).consume(track.b), []

        async def enter() -> None:
            try:
                await block.__aenter__()
                outcomes.append("entered")
            except RuntimeError:
                outcomes.append("refused")

        with cd.policy(sync="host"):
            async with held(track, track.a):
                await asyncio.gather(enter(), enter())
        assert (sorted(outcomes), cd.stats()["open_guards"]) == (["entered", "refused"], 1)
        await block.__aexit__(None, None, None)
        assert cd.stats()["open_guards"] == 0

    run(main())


def test_a_wait_that_is_never_awaited_does_nothing_and_warns(track: Track) -> None:
    view = track.view(track.a)
    track.machine.clear_own()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        view.wait()  # type: ignore[unused-coroutine]
        gc.collect()
    assert [str(each.message) for each in caught] == ["coroutine 'CaiView.wait' was never awaited"]
    assert track.machine.calls() == []


def test_a_block_that_is_left_twice_makes_one_edge(track: Track) -> None:
    async def main() -> None:
        block = track.view(track.a).consume(track.b)
        async with block:
            pass
        track.machine.clear()
        await block.__aexit__(None, None, None)
        block.__exit__(None, None, None)
        assert (track.machine.calls(), cd.stats()["open_guards"]) == ([], 0)

    run(main())
