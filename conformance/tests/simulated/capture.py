"""Graph capture, as thin as it goes."""

from __future__ import annotations

import ctypes
from typing import Any

from conformance.tests.simulated.machine import Machine

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
IDLE, ACTIVE, INVALIDATED = 0, 1, 2

# The driver's questions about a capture's state.
ASKED = ("cuStreamIsCapturing", "cuStreamGetCaptureInfo")

# What may be asked about streams while one of them is captured: none of it touches a capture.
QUESTIONS = {
    "cuInit",  # where the library meets the driver for the first time
    "cuCtxGetCurrent",
    "cuCtxPushCurrent",
    "cuCtxSetCurrent",
    "cuCtxPopCurrent",
    "cuCtxGetId",
    "cuStreamGetCtx",
    *ASKED,
    "cuPointerGetAttributes",
    "cuDevicePrimaryCtxGetState",
    "cuDeviceGetCount",  # as cuDeviceGet, where the host first looks for devices that want their managed memory
    "cuDeviceGet",
    "cuDeviceGetAttribute",
}


class Captures:
    """Begins and ends captures, and ends those left open: the machine does so after each test."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.open = machine.captured

    def begin(self, stream: int, mode: int = GLOBAL) -> None:
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_uint(mode))
        self.open.append(stream)

    def end(self, stream: int) -> int:
        """The graph."""
        self.open.remove(stream)
        graph = ctypes.c_void_p()
        self._call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        assert graph.value
        return graph.value

    def abandon(self, stream: int) -> int:
        """Ends a capture that is broken; the code."""
        return self.machine.abandon(stream)

    def nodes(self, graph: int) -> int:
        """How many nodes a graph has, which ends with that."""
        count = ctypes.c_size_t()
        self._call("cuGraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count))
        self._call("cuGraphDestroy", ctypes.c_void_p(graph))
        return count.value

    def launch(self, graph: int, stream: int) -> None:
        ready = ctypes.c_void_p()
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(ready), ctypes.c_void_p(graph), ctypes.c_uint64(0))
        self._call("cuGraphLaunch", ready, ctypes.c_void_p(stream))
        self._call("cuGraphExecDestroy", ready)
        self._call("cuGraphDestroy", ctypes.c_void_p(graph))

    def state(self, stream: int) -> int:
        found = ctypes.c_uint()
        self._call("cuStreamIsCapturing", ctypes.c_void_p(stream), ctypes.byref(found))
        return found.value

    def fork(self, stream: int, into: int) -> None:
        """Draws another stream into the capture, as a user does."""
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(2))
        self._call("cuEventRecord", event, ctypes.c_void_p(stream))
        self._call("cuStreamWaitEvent", ctypes.c_void_p(into), event, ctypes.c_uint(0))
        self._call("cuEventDestroy_v2", event)

    def close(self) -> None:
        self.machine.end_captures()

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.machine.driver, name)(*arguments)
        assert code == 0, f"{name}: {code}"
