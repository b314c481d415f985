"""Handles: dead ones, a context's number, default streams, green contexts, two devices."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_uint, c_uint64, c_void_p

from cai_conformance.slow import Slow

from conformance.tests.cusim.model.driver import LEGACY, PER_THREAD, Driver
from conformance.tests.cusim.questions.ask import LONG, another_context, on_another_thread, question, second_device


def stream_calls(cu: Driver, stream: int) -> dict[str, Callable[[], int]]:
    """Calls for a stream that a producer or a consumer names."""
    event = cu.event()
    return {
        "id": lambda: cu.code("cuStreamGetId", c_void_p(stream), byref(c_uint64())),
        "query": lambda: cu.code("cuStreamQuery", c_void_p(stream)),
        "is-capturing": lambda: cu.code("cuStreamIsCapturing", c_void_p(stream), byref(c_uint())),
        "context": lambda: cu.code("cuStreamGetCtx", c_void_p(stream), byref(c_void_p())),
        "record": lambda: cu.code("cuEventRecord", c_void_p(event), c_void_p(stream)),
        "wait": lambda: cu.code("cuStreamWaitEvent", c_void_p(stream), c_void_p(event), c_uint(0)),
        "synchronise": lambda: cu.code("cuStreamSynchronize", c_void_p(stream)),
    }


def asked(calls: dict[str, Callable[[], int]]) -> dict[str, int]:
    return {name: call() for name, call in calls.items()}


# One question each for what may end the process: the others are answered all the same.
def dead_stream(name: str) -> None:
    def ask(cu: Driver) -> object:
        stream = cu.stream()
        calls = stream_calls(cu, stream)
        cu.destroy_stream(stream)
        return calls[name]()

    ask.__doc__ = f"a destroyed stream: {name}"
    question(ask)


for each in ("is-capturing", "context", "record", "wait", "synchronise", "id", "query"):
    dead_stream(each)


@question
def invented_stream(cu: Driver) -> object:
    """a number that never was a stream: is-capturing"""
    return cu.code("cuStreamIsCapturing", c_void_p(0x1234560), byref(c_uint()))


def dead_event(name: str) -> None:
    def ask(cu: Driver) -> object:
        event, stream = cu.event(), cu.stream()
        cu.destroy_event(event)
        calls = {
            "record": lambda: cu.code("cuEventRecord", c_void_p(event), c_void_p(stream)),
            "wait": lambda: cu.code("cuStreamWaitEvent", c_void_p(stream), c_void_p(event), c_uint(0)),
            "query": lambda: cu.code("cuEventQuery", c_void_p(event)),
            "destroy": lambda: cu.code("cuEventDestroy_v2", c_void_p(event)),
        }
        return calls[name]()

    ask.__doc__ = f"a destroyed event: {name}"
    question(ask)


for each in ("record", "wait", "query", "destroy"):
    dead_event(each)


@question
def dead_context(cu: Driver) -> object:
    """a destroyed context: its id, set current"""
    context = cu.create_context(0)
    cu.pop()
    cu("cuCtxDestroy_v2", c_void_p(context))
    return [
        cu.code("cuCtxGetId", c_void_p(context), byref(c_uint64())),
        cu.code("cuCtxSetCurrent", c_void_p(context)),
    ]


@question
def stream_of_a_dead_context(cu: Driver) -> object:
    """a stream of a destroyed context: its context, is-capturing"""
    context = cu.create_context(0)
    stream = cu.stream()
    cu.pop()
    cu("cuCtxDestroy_v2", c_void_p(context))
    calls = stream_calls(cu, stream)
    return [calls["context"](), calls["is-capturing"]()]


@question
def event_of_a_dead_context(cu: Driver) -> object:
    """an event of a destroyed context, recorded on a stream of a living one; destroyed"""
    stream, context = cu.stream(), cu.create_context(0)
    event = cu.event()
    cu.pop()
    cu("cuCtxDestroy_v2", c_void_p(context))
    return [
        cu.code("cuEventRecord", c_void_p(event), c_void_p(stream)),
        cu.code("cuEventDestroy_v2", c_void_p(event)),
    ]


def reset(cu: Driver) -> None:
    cu("cuDevicePrimaryCtxReset_v2", 0)


def release_to_nothing(cu: Driver) -> None:
    cu.set_current(0)
    state = c_int(1)
    while state.value and cu.code("cuDevicePrimaryCtxRelease_v2", 0) == 0:
        cu("cuDevicePrimaryCtxGetState", 0, byref(c_uint()), byref(state))


@question
def context_id_over_a_reset(cu: Driver) -> object:
    """cuCtxGetId of the primary context over a reset, and over a release to nothing and a new retain: same handle,
    same id?"""
    found = []
    for end in (reset, release_to_nothing):
        context = cu.retain(0)
        cu.set_current(context)
        number = cu.context_id(context)
        end(cu)
        again = cu.retain(0)
        cu.set_current(again)
        found.append((again == context, cu.context_id(again) == number))
    return found


@question
def stream_over_a_reset(cu: Driver) -> object:
    """a stream of the primary context after its reset and a new retain: is-capturing"""
    stream = cu.stream()
    reset(cu)
    cu.set_current(cu.retain(0))
    return cu.code("cuStreamIsCapturing", c_void_p(stream), byref(c_uint()))


@question
def stream_over_a_release(cu: Driver) -> object:
    """a stream of the primary context after its release to nothing and a new retain: is-capturing"""
    stream = cu.stream()
    release_to_nothing(cu)
    cu.set_current(cu.retain(0))
    return cu.code("cuStreamIsCapturing", c_void_p(stream), byref(c_uint()))


@question
def default_streams(cu: Driver) -> object:
    """cuStreamGetCtx of the legacy and the per-thread stream: code, is it the current context?"""
    found = []
    for stream in (LEGACY, PER_THREAD):
        context = c_void_p()
        code = cu.code("cuStreamGetCtx", c_void_p(stream), byref(context))
        found.append((code, (context.value or 0) == cu.current()))
    return found


@question
def per_thread_stream_by_plain_names(cu: Driver) -> object:
    """stream 2 by the plain entry points: is it busy for its own thread, for another one, for the legacy stream?"""
    slow = Slow()
    slow.busy(PER_THREAD, 0)
    cu.wait_for(PER_THREAD)
    slow.busy(PER_THREAD, LONG)
    found = [
        cu.code("cuStreamQuery", c_void_p(PER_THREAD)),
        on_another_thread(cu, lambda: cu.code("cuStreamQuery", c_void_p(PER_THREAD))),
    ]
    cu.wait_for(LEGACY)
    return [*found, cu.code("cuStreamQuery", c_void_p(PER_THREAD))]


@question
def per_thread_stream_of_two_contexts(cu: Driver) -> object:
    """stream 2 of one thread in two contexts of the device: is the second one busy with the first one's work?"""
    slow = Slow()
    slow.busy(PER_THREAD, 0)
    cu.wait_for(PER_THREAD)
    slow.busy(PER_THREAD, LONG)
    with another_context(cu):
        elsewhere = cu.code("cuStreamQuery", c_void_p(PER_THREAD))
    here = cu.code("cuStreamQuery", c_void_p(PER_THREAD))
    cu.wait_for(PER_THREAD)
    return elsewhere, here


@question
def wait_across_devices(cu: Driver) -> object:
    """an event of device 0: a wait and a record on a stream of device 1"""
    event, second = cu.event(), second_device(cu)
    if second is None:
        return "not asked: one device"
    with cu.on(second):
        stream = cu.stream()
        return [
            cu.code("cuStreamWaitEvent", c_void_p(stream), c_void_p(event), c_uint(0)),
            cu.code("cuEventRecord", c_void_p(event), c_void_p(stream)),
        ]


@question
def green_contexts(cu: Driver) -> object:
    """a stream of a green context: its context is the green one's, not the primary one; its id is another; an event of
    the green one, and one of the primary one, recorded on it"""
    resource, groups = ctypes.create_string_buffer(1024), ctypes.create_string_buffer(4096)
    count, description, green, own = c_uint(1), c_void_p(), c_void_p(), c_void_p()
    sm_resource, default_stream = c_uint(1), c_uint(1)
    cu("cuDeviceGetDevResource", 0, resource, sm_resource)
    cu("cuDevSmResourceSplitByCount", groups, byref(count), resource, None, c_uint(0), c_uint(1))
    cu("cuDevResourceGenerateDesc", byref(description), groups, c_uint(1))
    cu("cuGreenCtxCreate", byref(green), description, 0, default_stream)
    cu("cuCtxFromGreenCtx", byref(own), green)
    stream, named, primary = c_void_p(), c_void_p(), cu.current()
    cu("cuGreenCtxStreamCreate", byref(stream), green, c_uint(1), 0)
    outer = cu.event()
    code = cu.code("cuStreamGetCtx", stream, byref(named))
    foreign = cu.code("cuEventRecord", c_void_p(outer), stream)
    cu.set_current(named.value or 0)
    inner = cu.event()
    domestic = cu.code("cuEventRecord", c_void_p(inner), stream)
    ids = cu.context_id(named.value or 0) != cu.context_id(primary)
    return code, named.value == own.value, named.value != primary, ids, domestic, foreign
