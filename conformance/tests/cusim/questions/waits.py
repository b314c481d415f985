"""Calls of other threads while one waits in a call that frees; and which calls a capture forbids them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p, create_string_buffer
from functools import partial

from cai_conformance.slow import Slow

from conformance.tests.cusim.model.driver import LEGACY, Driver
from conformance.tests.cusim.questions.ask import (
    GLOBAL,
    LONG,
    MODES,
    RELAXED,
    another_context,
    beside_a_capture,
    on_another_thread,
    question,
)


def common_calls(cu: Driver) -> dict[str, Callable[[], int]]:
    """Calls that this library and its users make on any thread, for a stream that is idle."""
    stream, event, memory, copy = cu.stream(), cu.event(), cu.alloc(64), cu.alloc(64)
    block, spare, old = create_string_buffer(64), cu.stream(), cu.event()
    cu.record(event, stream)
    cu.wait_for(stream)
    return {
        "cuEventRecord": lambda: cu.code("cuEventRecord", c_void_p(event), c_void_p(stream)),
        "cuStreamWaitEvent": lambda: cu.code("cuStreamWaitEvent", c_void_p(stream), c_void_p(event), c_uint(0)),
        "cuMemsetD8Async": lambda: cu.code(
            "cuMemsetD8Async", c_uint64(memory), c_ubyte(1), c_size_t(64), c_void_p(stream)
        ),
        "cuMemcpyAsync": lambda: cu.code(
            "cuMemcpyAsync", c_uint64(copy), c_uint64(memory), c_size_t(64), c_void_p(stream)
        ),
        "cuMemcpyDtoHAsync to pageable memory": lambda: cu.code(
            "cuMemcpyDtoHAsync_v2", block, c_uint64(memory), c_size_t(64), c_void_p(stream)
        ),
        "cuPointerGetAttribute": lambda: cu.code(
            "cuPointerGetAttribute", byref(c_uint64()), c_uint(2), c_uint64(memory)
        ),
        "cuStreamIsCapturing": lambda: cu.code("cuStreamIsCapturing", c_void_p(stream), byref(c_uint())),
        "cuStreamGetId": lambda: cu.code("cuStreamGetId", c_void_p(stream), byref(c_uint64())),
        "cuMemAllocAsync": lambda: cu.code("cuMemAllocAsync", byref(c_uint64()), c_size_t(64), c_void_p(stream)),
        "cuMemAlloc": lambda: cu.code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(64)),
        "cuStreamCreate": lambda: cu.code("cuStreamCreate", byref(c_void_p()), c_uint(1)),
        "cuStreamDestroy": lambda: cu.code("cuStreamDestroy_v2", c_void_p(spare)),
        "cuEventCreate": lambda: cu.code("cuEventCreate", byref(c_void_p()), c_uint(2)),
        "cuEventDestroy": lambda: cu.code("cuEventDestroy_v2", c_void_p(old)),
        "cuDevicePrimaryCtxRetain": lambda: cu.code("cuDevicePrimaryCtxRetain", byref(c_void_p()), c_int(0)),
        "cuDevicePrimaryCtxRelease": lambda: cu.code("cuDevicePrimaryCtxRelease_v2", c_int(0)),
        "cuIpcGetMemHandle": lambda: cu.code("cuIpcGetMemHandle", create_string_buffer(64), c_uint64(memory)),
    }


def beside(cu: Driver, wait: Callable[[], object], name: str) -> str:
    """Whether a call returns while another thread waits for the context's work."""
    slow, stream = Slow(), cu.stream()
    slow.busy(stream, 0)
    cu.wait_for(stream)
    call = common_calls(cu)[name]
    slow.busy(stream, LONG)
    context = cu.current()

    def waits() -> None:
        cu.set_current(context)
        wait()

    waiting = threading.Thread(target=waits)
    waiting.start()
    time.sleep(LONG / 4)
    code = call()
    is_done = cu.is_done(stream)
    waiting.join()
    return f"{'waits' if is_done else 'does not wait'} ({code})"


@question
def calls_beside_a_free(cu: Driver) -> object:
    """which calls wait while another thread's cuMemFree waits for unrelated work"""
    return {name: beside(cu, partial(cu.free, cu.alloc(8)), name) for name in common_calls(cu)}


@question
def calls_beside_a_wait_for_the_context(cu: Driver) -> object:
    """which calls wait while another thread's cuCtxSynchronize waits for unrelated work"""
    return {name: beside(cu, lambda: cu.code("cuCtxSynchronize"), name) for name in common_calls(cu)}


@question
def a_wait_for_another_context(cu: Driver) -> object:
    """cuCtxSynchronize of another context, on another thread in RELAXED mode: code, and the capture's end, beside a
    capture of each mode"""
    here = cu.current()
    with another_context(cu):
        other = cu.current()
    found = {}

    def synchronize() -> int:
        cu.set_current(other)
        return cu.code("cuCtxSynchronize")

    for name, mode in MODES.items():
        cu.set_current(here)
        found[name] = beside_a_capture(cu, mode, lambda: on_another_thread(cu, synchronize, RELAXED))
    return found


@question
def calls_beside_a_capture(cu: Driver) -> object:
    """calls of another thread in its own mode, beside a GLOBAL capture: what is refused, and the end of the capture"""
    return refused(cu, None)


@question
def relaxed_calls_beside_a_capture(cu: Driver) -> object:
    """calls of another thread in RELAXED mode, beside a GLOBAL capture: what is refused, and the end of the capture"""
    return refused(cu, RELAXED)


def refused(cu: Driver, mode: int | None) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in common_calls(cu):
        call = common_calls(cu)[name]
        answer = beside_a_capture(cu, GLOBAL, lambda call=call: on_another_thread(cu, call, mode))  # type: ignore[misc]
        if answer != (0, 0):
            found[name] = answer
    return found


@question
def a_blocking_stream_for_the_legacy_one(cu: Driver) -> object:
    """an event recorded on an idle blocking stream: is it reached before what the legacy stream held, what another
    blocking stream held, what a non-blocking one held? recorded beside the capture of a blocking stream: code, and the
    capture's end"""
    slow, blocking, other, apart = Slow(), cu.stream(0), cu.stream(0), cu.stream()
    event = cu.event()
    found: dict[str, bool] = {}
    for name, held in {"legacy": LEGACY, "blocking": other, "non-blocking": apart}.items():
        slow.busy(held, 0)
        cu.wait_for(held)
        slow.busy(held, LONG)
        cu.record(event, blocking)
        cu.code("cuStreamQuery", c_void_p(blocking))
        time.sleep(LONG / 4)
        is_reached, is_busy = cu.event_done(event), not cu.is_done(held)
        # Of an event that is not reached the rest says nothing: the simulator's lazy schedule works while it is asked.
        found[name] = is_reached and is_busy
        cu.wait_for(held)
    record = lambda: cu.code("cuEventRecord", c_void_p(event), c_void_p(blocking))  # noqa: E731
    return found, beside_a_capture(cu, RELAXED, record, flags=0)


@question
def an_event_of_a_whole_context(cu: Driver) -> object:
    """cuCtxRecordEvent (CUDA 12.5): code, and is the event reached before the work of a non-blocking stream; code, and
    the capture's end, beside a capture of each mode, on another thread in RELAXED mode"""
    context, event, stream, slow = cu.current(), cu.event(), cu.stream(), Slow()

    def record() -> int:
        return cu.code("cuCtxRecordEvent", c_void_p(context), c_void_p(event))

    slow.busy(stream, 0)
    cu.wait_for(stream)
    slow.busy(stream, LONG)
    code, is_reached = record(), cu.event_done(event)
    is_early = is_reached and not cu.is_done(stream)
    cu.wait_for(stream)
    return (code, is_early), {
        name: beside_a_capture(cu, mode, lambda: on_another_thread(cu, record, RELAXED)) for name, mode in MODES.items()
    }
