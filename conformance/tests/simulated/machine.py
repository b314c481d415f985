"""The simulated machine as the tests use it: memory, streams, and the log of every call.

Memory and streams come from the driver API itself; the log and the pokes are the simulator's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator
from typing import Any

from cai_conformance import Sim as Control

# The calls that make a stream, or the host, wait for a stream.
ORDER = {"cuEventRecord", "cuStreamWaitEvent", "cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"}


class Machine:
    """The machine under this process. What the tests themselves call is logged too: `clear` after it."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.driver = control.library
        self._contexts: dict[int, int] = {}
        self.captured: list[int] = []  # the streams that are being captured, of the tests' own captures
        self._logs_own = False
        self._call("cuInit", 0)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.driver, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    # --- contexts ---

    def context(self, ordinal: int) -> int:
        """The device's primary context, retained once for the whole run."""
        if ordinal not in self._contexts:
            found = ctypes.c_void_p()
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(found), ordinal)
            assert found.value
            self._contexts[ordinal] = found.value
        return self._contexts[ordinal]

    def set_current(self, ordinal: int) -> None:
        """Makes the device's primary context current on this thread."""
        self._call("cuCtxSetCurrent", ctypes.c_void_p(self.context(ordinal)))

    def create_context(self, ordinal: int = 0) -> int:
        """A context of its own on a device; what was current stays."""
        found = ctypes.c_void_p()
        self._call("cuCtxCreate_v2", ctypes.byref(found), 0, ordinal)
        self._call("cuCtxPopCurrent_v2", ctypes.byref(found))
        assert found.value
        return found.value

    def enter(self, context: int) -> None:
        """Makes a context current on this thread; 0 leaves it without one."""
        self._call("cuCtxSetCurrent", ctypes.c_void_p(context))

    def destroy_context(self, context: int) -> None:
        """Ends a context, and what belongs to it."""
        self._call("cuCtxDestroy_v2", ctypes.c_void_p(context))

    def current(self) -> int:
        """The context that is current on this thread."""
        found = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(found))
        return found.value or 0

    def finish(self) -> None:
        """Waits for every device's work: `cuMemFree` waits for that of the memory's own device alone."""
        for ordinal in (1, 0):
            self.set_current(ordinal)
            self._call("cuCtxSynchronize")

    # --- memory ---

    def device_memory(self, nbytes: int, ordinal: int = 0) -> int:
        """`nbytes` of a device's memory."""
        self.set_current(ordinal)
        found = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(found), ctypes.c_size_t(nbytes))
        self.set_current(0)
        return found.value

    def pool_memory(self, nbytes: int, ordinal: int = 0) -> int:
        """`nbytes` of a pool of a device, which is granted to every device."""
        self.set_current(ordinal)
        # CUmemPoolProps: pinned memory of a device, for no other process.
        properties = (ctypes.c_uint * 22)(1, 0, 1, ordinal)
        pool, count, found = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
        self._call("cuMemPoolCreate", ctypes.byref(pool), properties)
        self._call("cuDeviceGetCount", ctypes.byref(count))
        # CUmemAccessDesc: a device, its number, to read and write.
        granted = [number for other in range(count.value) for number in (1, other, 3)]
        access = (ctypes.c_uint * len(granted))(*granted)
        self._call("cuMemPoolSetAccess", pool, access, ctypes.c_size_t(count.value))
        arguments = (ctypes.byref(found), ctypes.c_size_t(nbytes), pool, ctypes.c_void_p(1))
        self._call("cuMemAllocFromPoolAsync", *arguments)
        self._call("cuStreamSynchronize", ctypes.c_void_p(1))
        self.set_current(0)
        return found.value

    def managed_memory(self, nbytes: int) -> int:
        """`nbytes` of managed memory, reachable from both sides."""
        self.set_current(0)
        found = ctypes.c_uint64()
        self._call("cuMemAllocManaged", ctypes.byref(found), ctypes.c_size_t(nbytes), 1)
        return found.value

    def pinned_memory(self, nbytes: int) -> int:
        """`nbytes` of page-locked host memory."""
        self.set_current(0)
        found = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(found), ctypes.c_size_t(nbytes), 0)
        assert found.value
        return found.value

    def free(self, pointer: int) -> None:
        """Gives device or managed memory back."""
        self._call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def write(self, pointer: int, data: bytes) -> None:
        """Fills memory of any kind, now."""
        self.control.poke(pointer, data)

    def read(self, pointer: int, nbytes: int) -> bytes:
        """Memory of any kind, as it is now."""
        return self.control.peek(pointer, nbytes)

    # --- streams ---

    def stream(self, ordinal: int = 0, flags: int = 1) -> int:
        """A new stream of a device, which does not wait for the legacy one but if the flags are 0."""
        self.set_current(ordinal)
        found = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(found), flags)
        self.set_current(0)
        assert found.value
        return found.value

    def destroy_stream(self, stream: int) -> None:
        """Ends a stream; its handle is invalid afterwards."""
        self._call("cuStreamDestroy_v2", ctypes.c_void_p(stream))

    def abandon(self, stream: int) -> int:
        """Ends a capture that may be broken; the code."""
        self.captured.remove(stream)
        graph = ctypes.c_void_p()
        return int(self.driver.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)))

    def end_captures(self) -> None:
        """Ends what is still captured: beside it the next test's calls would be refused."""
        for stream in list(self.captured):
            self.abandon(stream)

    @contextlib.contextmanager
    def relaxed(self) -> Iterator[None]:
        """Allows what a capture forbids the thread, such as a wait of the host."""
        before = self.set_capture_mode(2)  # CU_STREAM_CAPTURE_MODE_RELAXED
        try:
            yield
        finally:
            self.set_capture_mode(before)

    def set_capture_mode(self, mode: int) -> int:
        """Says what captures elsewhere forbid this thread; returns the mode before."""
        exchanged = ctypes.c_uint(mode)
        self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(exchanged))
        return exchanged.value

    # --- the log ---

    def clear(self) -> None:
        """Forgets what was called so far."""
        if self._logs_own:
            self.control.set("log", 1)
        self._logs_own = False
        self.control.clear()

    def clear_own(self) -> None:
        """As `clear`, and logs this thread's calls alone: the library's own may still end what earlier tests left.

        So that no collection ends it here either, there is none until the end of the test.
        """
        gc.disable()
        self._logs_own = True
        self.control.set("log", 2)  # before the log is cleared: between the two a call of another thread would stay
        self.control.clear()

    def calls(self) -> list[tuple[str, int]]:
        """Every call since `clear`, with the stream that it names (0: none)."""
        return [(call.name, call.arguments.get("stream", 0)) for call in self.control.calls()]

    def names(self) -> list[str]:
        """The functions called since `clear`, in order."""
        return [name for name, _ in self.calls()]

    def order(self) -> list[tuple[str, int]]:
        """The calls since `clear` that make a stream or the host wait for a stream."""
        return [call for call in self.calls() if call[0] in ORDER]


def one_event(ready: int, waiting: int) -> list[tuple[str, int]]:
    """Returns the calls that make one stream wait for another."""
    return [("cuEventRecord", ready), ("cuStreamWaitEvent", waiting)]
