"""What a live capture allows beside it."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_uint, c_uint64, c_void_p, create_string_buffer

from conformance.tests.cusim.model.driver import LEGACY, PER_THREAD, Driver
from conformance.tests.cusim.questions.ask import (
    GLOBAL,
    MODES,
    RELAXED,
    beside_a_capture,
    on_another_thread,
    question,
)


def host_waits(cu: Driver) -> dict[str, Callable[[], object]]:
    """What makes the host wait, or asks whether it must, for a stream that no capture knows."""
    stream, event, memory = cu.stream(), cu.event(), cu.alloc(8)
    cu.record(event, stream)
    cu.wait_for(stream)
    block = create_string_buffer(8)
    return {
        "cuStreamSynchronize": lambda: cu.code("cuStreamSynchronize", c_void_p(stream)),
        "cuStreamQuery": lambda: cu.code("cuStreamQuery", c_void_p(stream)),
        "cuEventSynchronize": lambda: cu.code("cuEventSynchronize", c_void_p(event)),
        "cuEventQuery": lambda: cu.code("cuEventQuery", c_void_p(event)),
        "cuMemcpyDtoH": lambda: cu.code("cuMemcpyDtoH_v2", block, c_uint64(memory), c_uint64(8)),
        "cuCtxSynchronize": lambda: cu.code("cuCtxSynchronize"),
        "cuStreamSynchronize of the legacy stream": lambda: cu.code("cuStreamSynchronize", c_void_p(LEGACY)),
    }


@question
def host_waits_beside_another_threads_capture(cu: Driver) -> object:
    """host waits on another thread, beside a GLOBAL capture: code, and the capture's end"""
    return {
        name: beside_a_capture(cu, GLOBAL, lambda call=call: on_another_thread(cu, call))  # type: ignore[misc]
        for name, call in host_waits(cu).items()
    }


@question
def relaxed_host_waits_beside_another_threads_capture(cu: Driver) -> object:
    """host waits on another thread in RELAXED mode, beside a GLOBAL capture: code, and the capture's end"""
    return {
        name: beside_a_capture(cu, GLOBAL, lambda call=call: on_another_thread(cu, call, RELAXED))  # type: ignore[misc]
        for name, call in host_waits(cu).items()
    }


@question
def host_waits_on_the_capturing_thread(cu: Driver) -> object:
    """host waits on the capturing thread, in each mode: code, and the capture's end"""
    return {
        mode: {name: beside_a_capture(cu, number, call) for name, call in host_waits(cu).items()}
        for mode, number in MODES.items()
    }


@question
def questions_beside_a_capture(cu: Driver) -> object:
    """is-capturing of an idle, the legacy and the per-thread stream, pointer query, context id: beside a GLOBAL
    capture of this thread, of a non-blocking and of a blocking stream"""
    memory, idle, context = cu.alloc(8), cu.stream(), cu.current()

    def asked(stream: int) -> tuple[int, int]:
        status = c_uint(77)
        return cu.code("cuStreamIsCapturing", c_void_p(stream), byref(status)), status.value

    def ask() -> object:
        pointer = cu.code("cuPointerGetAttribute", byref(c_uint()), c_uint(2), c_uint64(memory))
        number = cu.code("cuCtxGetId", c_void_p(context), byref(c_uint64()))
        return [asked(idle), asked(LEGACY), asked(PER_THREAD), pointer, number]

    return beside_a_capture(cu, GLOBAL, ask), beside_a_capture(cu, GLOBAL, ask, flags=0)


@question
def orders_beside_a_capture(cu: Driver) -> object:
    """creating an event, recording it and waiting for it, on two idle streams beside a GLOBAL capture: on this thread,
    on another one"""

    def order() -> list[int]:
        first, second = streams
        event = c_void_p()
        return [
            cu.code("cuEventCreate", byref(event), c_uint(2)),
            cu.code("cuEventRecord", event, c_void_p(first)),
            cu.code("cuStreamWaitEvent", c_void_p(second), event, c_uint(0)),
            cu.code("cuEventDestroy_v2", event),
        ]

    streams = cu.stream(), cu.stream()
    here = beside_a_capture(cu, GLOBAL, order)
    return here, beside_a_capture(cu, GLOBAL, lambda: on_another_thread(cu, order))


@question
def an_event_of_a_capture_recorded_again(cu: Driver) -> object:
    """an event of a live capture recorded again in it, then on an idle stream; a wait for it; the capture's end"""
    stream, idle, event = cu.stream(), cu.stream(), cu.event()

    def record_again() -> list[int]:
        return [
            cu.code("cuEventRecord", c_void_p(event), c_void_p(idle)),
            cu.code("cuStreamWaitEvent", c_void_p(idle), c_void_p(event), c_uint(0)),
        ]

    cu.begin_capture(stream, RELAXED)
    codes = [cu.code("cuEventRecord", c_void_p(event), c_void_p(stream)) for _ in range(2)]
    codes += record_again()
    return codes, cu.code("cuStreamEndCapture", c_void_p(stream), byref(c_void_p()))


@question
def an_event_of_a_capture_destroyed(cu: Driver) -> object:
    """an event destroyed between its record in a capture and the capture's end, with a wait and without"""
    found = []
    for waits in (False, True):
        stream, other, event = cu.stream(), cu.stream(), cu.event()
        cu.begin_capture(stream, RELAXED)
        cu.record(event, stream)
        if waits:
            cu.stream_wait(other, event)
            cu.record(event, other)
            cu.stream_wait(stream, event)
        cu.destroy_event(event)
        found.append(cu.code("cuStreamEndCapture", c_void_p(stream), byref(c_void_p())))
    return found


@question
def a_memory_of_a_capture(cu: Driver) -> object:
    """a pointer query about memory that a capture allocates, before its end: code, type, context"""
    stream = cu.stream()
    cu.begin_capture(stream, RELAXED)
    memory, kind, context = c_uint64(), c_uint(77), c_uint64(77)
    codes = [
        cu.code("cuMemAllocAsync", byref(memory), c_uint64(64), c_void_p(stream)),
        cu.code("cuPointerGetAttribute", byref(kind), c_uint(2), memory),
        cu.code("cuPointerGetAttribute", byref(context), c_uint(1), memory),
    ]
    cu.code("cuMemFreeAsync", memory, c_void_p(stream))
    return codes, kind.value, context.value, cu.code("cuStreamEndCapture", c_void_p(stream), byref(c_void_p()))


@question
def a_mode_without_a_context(cu: Driver) -> object:
    """cuThreadExchangeStreamCaptureMode to RELAXED on a thread without a context: code; allocating there once it has
    one, beside a GLOBAL capture: code, and the capture's end"""
    context = cu.current()

    def allocate() -> tuple[int, int]:
        cu.set_current(0)
        code = cu.code("cuThreadExchangeStreamCaptureMode", byref(c_uint(RELAXED)))
        cu.set_current(context)
        return code, cu.code("cuMemAlloc_v2", byref(c_uint64()), c_uint64(8))

    return beside_a_capture(cu, GLOBAL, lambda: on_another_thread(cu, allocate))
