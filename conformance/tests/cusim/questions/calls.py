"""Questions about single calls: what they write, and which code they return."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p

from conformance.tests.cusim.model.driver import LEGACY, Driver
from conformance.tests.cusim.questions.ask import question


def width(cu: Driver, attribute: int, address: int) -> int:
    """Returns how many bytes cuPointerGetAttribute writes."""
    block = (c_ubyte * 16)(*[0xEE] * 16)
    cu("cuPointerGetAttribute", block, c_uint(attribute), c_uint64(address))
    return next((index for index in range(16, 0, -1) if block[index - 1] != 0xEE), 0)


@question
def widths(cu: Driver) -> object:
    """bytes written for attributes 1 to 13 of managed memory, without 5"""
    memory = cu.alloc_managed(64)
    found = {number: width(cu, number, memory) for number in (1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13)}
    cu.free(memory)
    return found


@question
def pool_context(cu: Driver) -> object:
    """is the context of stream-ordered memory null?"""
    stream = cu.stream()
    memory = cu.alloc_async(64, stream)
    context = c_uint64(1)
    code = cu.code("cuPointerGetAttribute", byref(context), c_uint(1), c_uint64(memory))
    cu.free_async(memory, stream)
    cu.wait_for(stream)
    cu.destroy_stream(stream)
    return code, context.value == 0


@question
def unknown_alone(cu: Driver) -> object:
    """one attribute (memory type) of an unknown address"""
    return cu.code("cuPointerGetAttribute", byref(c_uint()), c_uint(2), c_uint64(id(cu)))


@question
def unknown_together(cu: Driver) -> object:
    """type, ordinal, range start and size of an unknown address, at once"""
    return cu.attributes(id(cu), {2: c_uint, 9: c_int, 11: c_uint64, 12: c_uint64})


@question
def attributes_without_a_context(cu: Driver) -> object:
    """one attribute with no current context"""
    memory, context = cu.alloc(8), cu.pop()
    code = cu.code("cuPointerGetAttribute", byref(c_uint()), c_uint(2), c_uint64(memory))
    cu.set_current(context)
    cu.free(memory)
    return code


@question
def without_a_context(cu: Driver) -> object:
    """stream query, event query, event destroy, stream destroy, free: with no current context"""
    stream, event, memory, context = cu.stream(), cu.event(), cu.alloc(8), cu.pop()
    codes = [
        cu.code("cuStreamQuery", c_void_p(stream)),
        cu.code("cuEventQuery", c_void_p(event)),
        cu.code("cuEventDestroy_v2", c_void_p(event)),
        cu.code("cuStreamDestroy_v2", c_void_p(stream)),
        cu.code("cuMemFree_v2", c_uint64(memory)),
    ]
    cu.set_current(context)
    return codes


@question
def an_order_without_its_context(cu: Driver) -> object:
    """the calls of an order with another context current, and with none: capturing, context, id, record, wait"""
    own = cu.current()
    stream, waiting, event = cu.stream(), cu.stream(), cu.event()
    other, word = cu.create_context(0), c_uint64()

    def codes() -> list[int]:
        return [
            cu.code("cuStreamIsCapturing", c_void_p(stream), byref(word)),
            cu.code("cuStreamGetCtx", c_void_p(stream), byref(word)),
            cu.code("cuCtxGetId", c_void_p(own), byref(word)),
            cu.code("cuEventRecord", c_void_p(event), c_void_p(stream)),
            cu.code("cuStreamWaitEvent", c_void_p(waiting), c_void_p(event), c_uint(0)),
        ]

    found = {}
    for name, context in (("another", other), ("none", 0)):
        cu.set_current(context)
        found[name] = codes()
    cu.set_current(own)
    cu("cuCtxDestroy_v2", c_void_p(other))
    return found


@question
def primary_after_reset(cu: Driver) -> object:
    """the primary context after a reset: same handle, same id?"""
    context = cu.retain(0)
    number = cu.context_id(context)
    cu("cuDevicePrimaryCtxReset_v2", 0)
    again = cu.retain(0)
    cu.set_current(again)
    return again == context, cu.context_id(again) == number


@question
def sizes(cu: Driver) -> object:
    """allocate 0 bytes, free null, free inside a range, write past the end"""
    memory = cu.alloc(64)
    codes = [
        cu.code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(0)),
        cu.code("cuMemFree_v2", c_uint64(0)),
        cu.code("cuMemFree_v2", c_uint64(memory + 8)),
        cu.code("cuMemcpyHtoD_v2", c_uint64(memory + 60), b"x" * 8, c_size_t(8)),
    ]
    cu.free(memory)
    return codes


@question
def misaligned_memset(cu: Driver) -> object:
    """a 32-bit memset at an odd address"""
    memory = cu.alloc(64)
    code = cu.code("cuMemsetD32_v2", c_uint64(memory + 1), c_uint(0), c_size_t(1))
    cu.free(memory)
    return code


@question
def foreign_record(cu: Driver) -> object:
    """recording an event of another context of the same device"""
    stream = cu.stream()
    context = cu.create_context(0)
    event = cu.event()
    code = cu.code("cuEventRecord", c_void_p(event), c_void_p(stream))
    cu("cuCtxDestroy_v2", c_void_p(context))
    cu.destroy_stream(stream)
    return code


@question
def unrecorded_events(cu: Driver) -> object:
    """query, and elapsed time, of events that were never recorded"""
    event, other = cu.event(0), cu.event(0)
    codes = [
        cu.code("cuEventQuery", c_void_p(event)),
        cu.code("cuEventElapsedTime", byref(ctypes.c_float()), c_void_p(event), c_void_p(other)),
    ]
    cu.destroy_event(event)
    cu.destroy_event(other)
    return codes


@question
def event_flags(cu: Driver) -> object:
    """event flags: INTERPROCESS without DISABLE_TIMING, and an unknown flag"""
    return [cu.code("cuEventCreate", byref(c_void_p()), c_uint(flags)) for flags in (4, 64)]


@question
def capture_twice(cu: Driver) -> object:
    """begin on the legacy stream, begin twice, end twice"""
    stream = cu.stream()

    def begin(on: int) -> int:
        return cu.code("cuStreamBeginCapture_v2", c_void_p(on), c_uint(2))

    def end() -> int:
        return cu.code("cuStreamEndCapture", c_void_p(stream), byref(c_void_p()))

    codes = [begin(LEGACY), begin(stream), begin(stream), end(), end()]
    cu.destroy_stream(stream)
    return codes


def captured(cu: Driver, ask: Callable[[int, int, int], int]) -> tuple[int, int]:
    """Returns the code of a call during a capture, and of ending the capture after it. `ask` gets the
    capturing stream, another stream, and an event recorded in the capture."""
    stream, other, event = cu.stream(), cu.stream(), cu.event()
    cu.begin_capture(stream, 2)
    cu.record(event, stream)
    code = ask(stream, other, event)
    end = cu.code("cuStreamEndCapture", c_void_p(stream), byref(c_void_p()))
    cu.destroy_event(event)
    cu.destroy_stream(stream)
    cu.destroy_stream(other)
    return code, end


@question
def captured_waits(cu: Driver) -> object:
    """in a capture, then its end: stream query, event query, context synchronise, legacy wait"""
    return [
        captured(cu, lambda stream, other, event: cu.code("cuStreamQuery", c_void_p(stream))),
        captured(cu, lambda stream, other, event: cu.code("cuEventQuery", c_void_p(event))),
        captured(cu, lambda stream, other, event: cu.code("cuCtxSynchronize")),
        captured(cu, lambda stream, other, event: cu.code("cuStreamWaitEvent", c_void_p(LEGACY), c_void_p(event), 0)),
    ]


@question
def captured_properties(cu: Driver) -> object:
    """what is asked of a stream in a capture: code, and the capture's end"""
    word = byref(c_uint64())
    asked: dict[str, Callable[[int], int]] = {
        "id": lambda stream: cu.code("cuStreamGetId", c_void_p(stream), word),
        "context": lambda stream: cu.code("cuStreamGetCtx", c_void_p(stream), word),
        "flags": lambda stream: cu.code("cuStreamGetFlags", c_void_p(stream), word),
        "priority": lambda stream: cu.code("cuStreamGetPriority", c_void_p(stream), word),
        "is capturing": lambda stream: cu.code("cuStreamIsCapturing", c_void_p(stream), word),
    }
    return {name: captured(cu, lambda stream, other, event, ask=ask: ask(stream)) for name, ask in asked.items()}  # type: ignore[misc]


@question
def after_the_capture(cu: Driver) -> object:
    """waiting for, and asking about, an event of a capture that has ended"""
    stream, event = cu.stream(), cu.event()
    cu.begin_capture(stream, 2)
    cu.record(event, stream)
    cu.end_capture(stream)
    codes = [
        cu.code("cuStreamWaitEvent", c_void_p(stream), c_void_p(event), 0),
        cu.code("cuEventQuery", c_void_p(event)),
    ]
    cu.destroy_event(event)
    cu.destroy_stream(stream)
    return codes


@question
def joined_without_work(cu: Driver) -> object:
    """a fork without work that is not joined back: the end of the capture"""

    def fork(stream: int, other: int, event: int) -> int:
        return cu.code("cuStreamWaitEvent", c_void_p(other), c_void_p(event), 0)

    return captured(cu, fork)
