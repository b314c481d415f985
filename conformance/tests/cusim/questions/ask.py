"""The list of questions, and what several of them need."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_uint, c_void_p

from cai_conformance.slow import Slow

from conformance.tests.cusim.model.driver import NON_BLOCKING, Driver, Refused

Question = Callable[[Driver], object]
QUESTIONS: list[Question] = []

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
MODES = {"GLOBAL": GLOBAL, "THREAD_LOCAL": THREAD_LOCAL, "RELAXED": RELAXED}
# Long beside every call, on a busy machine too.
LONG = 0.3


def question(ask: Question) -> Question:
    """Adds a question; its docstring is what is printed."""
    QUESTIONS.append(ask)
    return ask


def text(ask: Question) -> str:
    """The question in one line."""
    return " ".join((ask.__doc__ or "").split())


def answered(ask: Question, cu: Driver) -> str:
    """The answer, or the call that was refused."""
    try:
        return str(ask(cu))
    except Refused as refused:
        return f"refused: {refused}"


def second_device(cu: Driver) -> int | None:
    """The primary context of device 1; None where there is one device only."""
    count = c_int()
    cu("cuDeviceGetCount", byref(count))
    return cu.retain(1) if count.value > 1 else None


@contextmanager
def another_context(cu: Driver) -> Iterator[int]:
    """A second context of device 0, current inside."""
    context = cu.create_context(0)
    try:
        yield context
    finally:
        cu.pop()


def on_another_thread(cu: Driver, call: Callable[[], object], mode: int | None = None) -> object:
    """Returns the answer of a thread with the caller's context current and, if given, its capture mode."""
    found: list[object] = []
    context = cu.current()

    def run() -> None:
        cu.set_current(context)
        if mode is not None:
            cu("cuThreadExchangeStreamCaptureMode", byref(c_uint(mode)))
        try:
            found.append(call())
        except Refused as refused:
            found.append(f"refused: {refused}")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def has_waited(cu: Driver, call: Callable[[], object], context: int | None = None) -> str:
    """Whether `call` returns after the work of a stream of `context` (the current one), and the call's code."""
    here = cu.current()
    cu.set_current(context or here)
    slow, stream = Slow(), cu.stream()
    slow.busy(stream, 0)  # loads the kernel: that waits too
    cu.wait_for(stream)
    slow.busy(stream, LONG)
    cu.set_current(here)
    code = call()
    cu.set_current(context or here)
    is_done = cu.is_done(stream)
    cu.wait_for(stream)
    cu.destroy_stream(stream)
    cu.set_current(here)
    return f"{'waits' if is_done else 'does not wait'} ({code})"


def beside_a_capture(
    cu: Driver, mode: int, call: Callable[[], object], flags: int = NON_BLOCKING
) -> tuple[object, int]:
    """The answer of `call` while a stream of this thread is captured, and the code of the capture's end."""
    stream = cu.stream(flags)
    cu.begin_capture(stream, mode)
    found = call()
    end = cu.code("cuStreamEndCapture", c_void_p(stream), byref(c_void_p()))
    cu.destroy_stream(stream)
    return found, end
