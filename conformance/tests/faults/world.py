"""The memory and the streams that the routes use, on the simulated driver or on none."""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

from conformance.tests.doubles.producers import FAKE_POINTER, host_memory

NBYTES = 256


class World(Protocol):
    """Two streams of one context, and an address for each kind of memory."""

    a: int
    b: int

    def address(self, kind: str) -> int:
        """The address of 256 bytes of `device`, `managed`, `pinned` or `host` memory."""


class Without(World):
    """A world without a driver: nobody follows these addresses and handles."""

    def __init__(self) -> None:
        self.a, self.b = 0x1000, 0x2000
        self._host = host_memory(NBYTES)

    def address(self, kind: str) -> int:
        return self._host[1] if kind == "host" else FAKE_POINTER


class Simulated(World):
    """Streams and memory from the simulated driver, by a library that may have some functions under other names."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self._host = host_memory(NBYTES)
        self._do("cuInit", 0)
        context, other = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(other), 1)
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._do("cuCtxSetCurrent", context)
        self.a, self.b = self._stream(), self._stream()
        self._addresses = {
            "device": self._made("cuMemAlloc_v2", ctypes.c_uint64(), ctypes.c_size_t(NBYTES)),
            "managed": self._made("cuMemAllocManaged", ctypes.c_uint64(), ctypes.c_size_t(NBYTES), 1),
            "pinned": self._made("cuMemHostAlloc", ctypes.c_void_p(), ctypes.c_size_t(NBYTES), 1),
            "host": self._host[1],
        }

    def address(self, kind: str) -> int:
        return self._addresses[kind]

    def close(self) -> None:
        """Gives memory and streams back."""
        for stream in (self.a, self.b):
            self._do("cuStreamDestroy_v2", ctypes.c_void_p(stream))
        for kind in ("device", "managed"):
            self._do("cuMemFree_v2", ctypes.c_uint64(self._addresses[kind]))
        self._do("cuMemFreeHost", ctypes.c_void_p(self._addresses["pinned"]))
        for ordinal in (0, 1):
            self._do("cuDevicePrimaryCtxRelease_v2", ordinal)

    def current(self) -> int:
        """The current context's handle; 0 for none."""
        found = ctypes.c_void_p()
        self._do("cuCtxGetCurrent", ctypes.byref(found))
        return found.value or 0

    def _stream(self) -> int:
        return self._made("cuStreamCreate", ctypes.c_void_p(), 1)

    def _made(self, name: str, result: Any, *arguments: Any) -> int:
        self._do(name, ctypes.byref(result), *arguments)
        assert result.value
        return int(result.value)

    def _do(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        assert code == 0, f"{name}: {code}"
