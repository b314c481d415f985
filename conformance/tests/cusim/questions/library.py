"""What a capture allows of every call that the library makes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p, create_string_buffer

from conformance.tests.cusim.model.driver import Driver
from conformance.tests.cusim.questions.ask import GLOBAL, RELAXED, beside_a_capture, on_another_thread, question

#: Of the functions in src/driver/cuda.rs what only a graph or another process has objects for.
NOT_ASKED = {
    "cuGraphRetainUserObject",
    "cuIpcOpenMemHandle",
    "cuIpcCloseMemHandle",
    "cuIpcOpenEventHandle",
}
NOTHING = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: None)


class Memcpy2d(ctypes.Structure):
    """`CUDA_MEMCPY2D`, of one row between two addresses."""

    _fields_ = [
        *((f"source_{name}", kind) for name, kind in (("x", c_size_t), ("y", c_size_t), ("type", c_uint))),
        *((f"source_{name}", c_void_p) for name in ("host", "device", "array")),
        ("source_pitch", c_size_t),
        *((f"target_{name}", kind) for name, kind in (("x", c_size_t), ("y", c_size_t), ("type", c_uint))),
        *((f"target_{name}", c_void_p) for name in ("host", "device", "array")),
        ("target_pitch", c_size_t),
        ("width", c_size_t),
        ("height", c_size_t),
    ]


def library_calls(cu: Driver) -> dict[str, Callable[[], int]]:
    """A call of each function in src/driver/cuda.rs, about objects that no capture knows."""
    stream, spare, context = cu.stream(), cu.stream(), cu.current()
    event, old, shared = cu.event(), cu.event(), cu.event(2 | 4)
    memory, copy, freed, pinned = cu.alloc(64), cu.alloc(64), cu.alloc(64), cu.alloc_host(64)
    cu.record(event, stream)
    cu.wait_for(stream)
    one, two = byref(c_uint64()), byref(c_uint64())
    attribute, value = c_uint(2), c_uint()
    values = (c_void_p * 1)(ctypes.addressof(value))
    row = Memcpy2d(source_type=4, source_device=memory, target_type=4, target_device=copy, width=8, height=1)
    row.source_pitch = row.target_pitch = 8
    keep = (values, value, row)

    def call(name: str, *arguments: object) -> Callable[[], int]:
        return lambda: (cu.code(name, *arguments), keep)[0]

    def pushed_and_popped() -> tuple[int, int]:
        return cu.code("cuCtxPushCurrent_v2", c_void_p(context)), cu.code("cuCtxPopCurrent_v2", one)

    s, e, m, c = c_void_p(stream), c_void_p(event), c_uint64(memory), c_uint64(copy)
    return {
        "cuInit": call("cuInit", c_uint(0)),
        "cuDeviceGet": call("cuDeviceGet", one, c_int(0)),
        "cuDeviceGetCount": call("cuDeviceGetCount", one),
        "cuDeviceGetAttribute": call("cuDeviceGetAttribute", one, c_uint(75), c_int(0)),
        "cuDeviceGetUuid": call("cuDeviceGetUuid_v2", create_string_buffer(16), c_int(0)),
        "cuPointerGetAttributes": call("cuPointerGetAttributes", c_uint(1), byref(attribute), values, m),
        "cuStreamIsCapturing": call("cuStreamIsCapturing", s, one),
        "cuStreamGetCaptureInfo": call("cuStreamGetCaptureInfo_v2", s, one, two, None, None, None),
        "cuUserObjectCreate": call("cuUserObjectCreate", one, None, NOTHING, c_uint(1), c_uint(1)),
        "cuStreamGetCtx": call("cuStreamGetCtx", s, one),
        "cuCtxGetId": call("cuCtxGetId", c_void_p(context), one),
        "cuCtxGetCurrent": call("cuCtxGetCurrent", one),
        "cuCtxPushCurrent": lambda: pushed_and_popped()[0],
        "cuCtxPopCurrent": lambda: pushed_and_popped()[1],
        "cuCtxSetCurrent": call("cuCtxSetCurrent", c_void_p(context)),
        "cuCtxGetDevice": call("cuCtxGetDevice", one),
        "cuCtxSynchronize": call("cuCtxSynchronize"),
        "cuDevicePrimaryCtxGetState": call("cuDevicePrimaryCtxGetState", c_int(0), one, two),
        "cuDevicePrimaryCtxRetain": call("cuDevicePrimaryCtxRetain", one, c_int(0)),
        "cuDevicePrimaryCtxRelease": call("cuDevicePrimaryCtxRelease_v2", c_int(0)),
        "cuEventCreate": call("cuEventCreate", one, c_uint(2)),
        "cuEventRecord": call("cuEventRecord", e, s),
        "cuStreamWaitEvent": call("cuStreamWaitEvent", s, e, c_uint(0)),
        "cuEventDestroy": call("cuEventDestroy_v2", c_void_p(old)),
        "cuEventQuery": call("cuEventQuery", e),
        "cuStreamCreate": call("cuStreamCreate", one, c_uint(1)),
        "cuStreamDestroy": call("cuStreamDestroy_v2", c_void_p(spare)),
        "cuStreamGetId": call("cuStreamGetId", s, one),
        "cuStreamSynchronize": call("cuStreamSynchronize", s),
        "cuLaunchHostFunc": call("cuLaunchHostFunc", s, NOTHING, None),
        "cuMemAlloc": call("cuMemAlloc_v2", one, c_size_t(64)),
        "cuMemAllocAsync": call("cuMemAllocAsync", one, c_size_t(64), s),
        "cuMemAllocManaged": call("cuMemAllocManaged", one, c_size_t(64), c_uint(1)),
        "cuMemHostAlloc": call("cuMemHostAlloc", one, c_size_t(64), c_uint(0)),
        "cuThreadExchangeStreamCaptureMode": call("cuThreadExchangeStreamCaptureMode", byref(c_uint(RELAXED))),
        "cuMemFreeHost": call("cuMemFreeHost", c_void_p(pinned)),
        "cuMemFree": call("cuMemFree_v2", c_uint64(freed)),
        "cuMemcpyAsync": call("cuMemcpyAsync", c, m, c_size_t(8), s),
        "cuMemcpyPeerAsync": call("cuMemcpyPeerAsync", c, c_void_p(context), m, c_void_p(context), c_size_t(8), s),
        "cuMemcpy2DAsync": call("cuMemcpy2DAsync_v2", byref(row), s),
        "cuIpcGetMemHandle": call("cuIpcGetMemHandle", create_string_buffer(64), m),
        "cuIpcGetEventHandle": call("cuIpcGetEventHandle", create_string_buffer(64), c_void_p(shared)),
    }


def refused(cu: Driver, run: Callable[[Callable[[], int]], object]) -> dict[str, object]:
    """The calls that are refused beside a GLOBAL capture, or break it: code, and the capture's end."""
    found: dict[str, object] = {}
    for name in library_calls(cu):
        call = library_calls(cu)[name]
        answer = beside_a_capture(cu, GLOBAL, lambda call=call: run(call))  # type: ignore[misc]
        if answer != (0, 0):
            found[name] = answer
    return found


def in_relaxed_mode(cu: Driver, call: Callable[[], int]) -> int:
    mode = c_uint(RELAXED)
    cu("cuThreadExchangeStreamCaptureMode", byref(mode))
    try:
        return call()
    finally:
        cu("cuThreadExchangeStreamCaptureMode", byref(mode))


@question
def library_calls_of_the_capturing_thread(cu: Driver) -> object:
    """calls of the library on the capturing thread, beside its GLOBAL capture: what is refused, and the capture's
    end"""
    return refused(cu, lambda call: on_this_thread(cu, call))


@question
def relaxed_library_calls_of_the_capturing_thread(cu: Driver) -> object:
    """calls of the library on the capturing thread in RELAXED mode, beside its GLOBAL capture: what is refused, and the
    capture's end"""
    return refused(cu, lambda call: in_relaxed_mode(cu, call))


@question
def relaxed_library_calls_of_another_thread(cu: Driver) -> object:
    """calls of the library on another thread in RELAXED mode, beside a GLOBAL capture: what is refused, and the
    capture's end"""
    return refused(cu, lambda call: on_another_thread(cu, call, RELAXED))


def on_this_thread(cu: Driver, call: Callable[[], int]) -> int:
    """The thread's mode is as before afterwards."""
    try:
        return call()
    finally:
        cu("cuThreadExchangeStreamCaptureMode", byref(c_uint(GLOBAL)))
