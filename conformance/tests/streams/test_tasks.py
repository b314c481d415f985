"""Tests that `policy` and `use_stream` blocks belong to the context: to the asyncio task, else to the thread."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import pytest
from cai_conformance import abi, exchange

from conformance.tests.interpreter.threads import THREADS_INHERIT
from conformance.tests.streams.race import Track
from conformance.tests.streams.task_programs import Programs, work_stream

SEEDS = range(60)


@pytest.mark.parametrize("schedule", ["threaded", "lazy"])
def test_each_task_has_its_own_blocks(schedule: str, track: Track) -> None:
    track.control.schedule = schedule
    programs = Programs(track)
    assert {seed: wrongs for seed in SEEDS if (wrongs := programs.wrongs(seed))} == {}


def test_two_tasks_take_turns_inside_their_blocks(track: Track) -> None:
    programs = Programs(track)
    seen: list[tuple[str, int]] = []

    async def work(sync: Any, stream: int) -> None:
        with cd.policy(sync=sync), cd.use_stream(stream):
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append((programs.made(), work_stream()))

    async def both() -> None:
        await asyncio.gather(work("host", track.a), work("none", track.b))

    asyncio.run(both())
    assert seen == 3 * [("host", track.a), ("none", track.b)]
    assert (programs.made(), work_stream()) == ("event", 0)


# --- leaving elsewhere ----------------------------------------------------------------------------------------


def in_a_thread(body: Callable[[], None]) -> None:
    caught: list[BaseException] = []

    def run() -> None:
        try:
            body()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if caught:
        raise caught[0]


def in_a_task(body: Callable[[], None]) -> None:
    async def run() -> None:
        body()

    asyncio.run(run())


def in_a_copy(body: Callable[[], None]) -> None:
    contextvars.copy_context().run(body)


def in_an_empty_context(body: Callable[[], None]) -> None:
    contextvars.Context().run(body)


@pytest.mark.parametrize("elsewhere", [in_a_thread, in_a_task, in_a_copy, in_an_empty_context])
def test_leaving_in_another_context_is_refused_and_changes_nothing(
    elsewhere: Callable[[Callable[[], None]], None], track: Track
) -> None:
    programs = Programs(track)
    block, inner = cd.policy(sync="host"), cd.use_stream(track.b)
    with block, inner:
        for each in (block, inner):
            with pytest.raises(RuntimeError, match="not entered in the current context"):
                elsewhere(lambda each=each: each.__exit__(None, None, None))  # type: ignore[misc]
        assert (programs.made(), work_stream()) == ("host", track.b)
    assert (programs.made(), work_stream()) == ("event", 0)


def test_a_copy_of_a_context_keeps_a_block_that_has_ended(track: Track) -> None:
    programs = Programs(track)
    block = cd.policy(sync="host")
    with block:
        copy = contextvars.copy_context()
    assert copy.run(programs.made) == "host"
    assert programs.made() == "event"
    with pytest.raises(RuntimeError, match="not entered in the current context"):
        copy.run(block.__exit__, None, None, None)


def test_the_bodys_exception_stays_visible_when_the_block_is_left_elsewhere() -> None:
    block = cd.policy(sync="host")
    contextvars.copy_context().run(block.__enter__)

    class Left:
        def __enter__(self) -> None: ...
        def __exit__(self, *error: Any) -> None:
            block.__exit__(*error)

    with pytest.raises(RuntimeError, match="not entered") as caught, Left():
        raise LookupError
    assert isinstance(caught.value.__context__, LookupError)


# --- who reads ---------------------------------------------------------------------------------------------------


def test_to_thread_copies_the_context_and_an_executor_does_not(track: Track) -> None:
    async def main() -> tuple[int, int]:
        with cd.use_stream(track.b):
            copied = await asyncio.to_thread(work_stream)
            return copied, await asyncio.get_running_loop().run_in_executor(None, work_stream)

    assert asyncio.run(main()) == (track.b, track.b if THREADS_INHERIT else 0)


def test_the_table_reads_the_context_without_the_gil_too(track: Track) -> None:
    table = exchange.table_of(cd.CaiView)
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
    without_gil, out = kind(table.work_stream), ctypes.c_void_p()
    with cd.use_stream(track.b):
        assert without_gil(abi.CUDA, 0, ctypes.byref(out)) == 0
        assert out.value == track.b
        assert without_gil(abi.CPU, 0, ctypes.byref(out)) == 0
        assert out.value is None


def test_the_end_of_a_consume_block_follows_the_policy_of_its_beginning(track: Track) -> None:
    view = track.view(track.a)
    with cd.policy(sync="none"):
        block = view.consume(track.b)
        block.__enter__()
    track.machine.clear_own()
    block.__exit__(None, None, None)
    assert track.machine.calls() == []


# --- what is kept --------------------------------------------------------------------------------------------------


class Stream:
    """A stream object that can be seen to go."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def test_a_context_keeps_the_streams_of_its_open_blocks_and_no_longer(track: Track) -> None:
    stream = Stream(track.b)
    alive, context = weakref.ref(stream), contextvars.Context()
    context.run(cd.use_stream(stream, device_id=0).__enter__)
    del stream
    gc.collect()
    assert alive() is not None
    assert context.run(work_stream) == track.b
    del context
    gc.collect()
    assert alive() is None, "token and context refer to each other"
