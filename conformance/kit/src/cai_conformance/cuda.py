"""The few functions of the CUDA driver that the checks need, by ctypes: on a GPU or on the simulated driver."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from cai_conformance.library import is_simulator, loaded

#: CU_POINTER_ATTRIBUTE_*
MEMORY_TYPE, DEVICE_ORDINAL, RANGE_START, RANGE_SIZE = 2, 9, 11, 12
HOST, DEVICE = 1, 2
INVALID_VALUE = 1


class NoDriver(RuntimeError):
    """There is no CUDA driver, or it has no device."""


class Driver:
    """The driver, with the primary contexts of its devices: device 0's, unless another one is named."""

    def __init__(self) -> None:
        library = loaded()
        if library is None:
            raise NoDriver("no CUDA driver; `cai-conformance simulate -- COMMAND` starts a command on a simulated one")
        self._library = library
        self.simulated = is_simulator(library)
        count = ctypes.c_int()
        if self._code("cuInit", 0) or self._code("cuDeviceGetCount", ctypes.byref(count)) or not count.value:
            raise NoDriver("the CUDA driver has no device")
        self.devices = count.value
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._primary(0)

    def _code(self, name: str, *arguments: object) -> int:
        return int(getattr(self._library, name)(*arguments))

    def _do(self, name: str, *arguments: object) -> None:
        code = self._code(name, *arguments)
        if code:
            raise RuntimeError(f"{name}: CUresult {code}")

    def _primary(self, device: int) -> ctypes.c_void_p:
        if device not in self._contexts:
            context = ctypes.c_void_p()
            self._do("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._contexts[device] = context
        return self._contexts[device]

    @contextmanager
    def context(self, device: int = 0) -> Iterator[None]:
        """Makes the primary context of a device current."""
        self._do("cuCtxPushCurrent_v2", self._primary(device))
        try:
            yield
        finally:
            self._do("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def allocate(self, nbytes: int, device: int = 0) -> int:
        """Device memory, as an address; a multiple of 256. If the host reads it, the process ends, as on a GPU."""
        address = ctypes.c_uint64()
        with self.context(device), self._protected():
            self._do("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(nbytes, 1)))
        return address.value

    @contextmanager
    def _protected(self) -> Iterator[None]:
        """The simulated driver's memory is memory of the host, which it keeps from it if that is asked for."""
        if not self.simulated:
            yield
            return
        before = self._library.sim_get(b"protect")
        self._library.sim_set(b"protect", ctypes.c_uint64(1))
        try:
            yield
        finally:
            self._library.sim_set(b"protect", ctypes.c_uint64(before))

    def free(self, address: int, device: int = 0) -> None:
        with self.context(device):
            self._do("cuMemFree_v2", ctypes.c_uint64(address))

    def write(self, address: int, data: bytes, device: int = 0) -> None:
        """Copies bytes to memory of a device, whose `free` waits for the copy: it may still run when this returns."""
        if data:
            with self.context(device):
                self._do("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))

    def write_in(self, stream: int, address: int, data: bytes) -> None:
        """Copies bytes to memory of a device in a stream. The bytes must live until that is done."""
        with self.context():
            self._do(
                "cuMemcpyHtoDAsync_v2",
                ctypes.c_uint64(address),
                data,
                ctypes.c_size_t(len(data)),
                ctypes.c_void_p(stream),
            )

    def read(self, address: int, nbytes: int, *, wait: bool = True) -> bytes:
        """Waits for all work of the context, then copies."""
        buffer = ctypes.create_string_buffer(nbytes)
        if wait:
            self.synchronize()
        with self.context():
            if nbytes:
                self._do("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(address), ctypes.c_size_t(nbytes))
        return buffer.raw

    def read_after(self, stream: int, address: int, nbytes: int) -> bytes:
        """Copies once the work that a stream has now is done, and waits for no other work."""
        buffer = ctypes.create_string_buffer(nbytes)
        with self.context():
            self._do(
                "cuMemcpyDtoHAsync_v2",
                buffer,
                ctypes.c_uint64(address),
                ctypes.c_size_t(nbytes),
                ctypes.c_void_p(stream),
            )
        self.wait(stream)
        return buffer.raw

    def is_idle(self, stream: int) -> bool:
        """Whether the work of a stream is done."""
        with self.context():
            return self._code("cuStreamQuery", ctypes.c_void_p(stream)) == 0

    def wait(self, stream: int) -> None:
        """Waits for the work of a stream."""
        with self.context():
            self._do("cuStreamSynchronize", ctypes.c_void_p(stream))

    def synchronize(self, device: int = 0) -> None:
        """Waits for all work of the context."""
        with self.context(device):
            self._do("cuCtxSynchronize")

    def attribute(self, attribute: int, address: int) -> int | None:
        """An attribute of a pointer; None if the driver does not know the pointer."""
        value = ctypes.c_uint64()
        code = self._code("cuPointerGetAttribute", ctypes.byref(value), attribute, ctypes.c_uint64(address))
        if code == INVALID_VALUE:
            return None
        if code:
            raise RuntimeError(f"cuPointerGetAttribute: CUresult {code}")
        return value.value

    def allocation(self, address: int) -> tuple[int, int] | None:
        """The start and the size in bytes of the allocation that an address lies in; None if it is in none."""
        start, size = self.attribute(RANGE_START, address), self.attribute(RANGE_SIZE, address)
        return None if start is None or size is None or not size else (start, size)

    def stream(self, device: int = 0) -> int:
        """A new stream that does not wait for the default stream. It lives as long as the process."""
        handle = ctypes.c_void_p()
        with self.context(device):
            self._do("cuStreamCreate", ctypes.byref(handle), 1)
        return handle.value or 0

    def make_wait(self, stream: int, other: int) -> None:
        """Makes a stream wait for the work that another one has now. The host waits for neither."""
        event = ctypes.c_void_p()
        with self.context():
            self._do("cuEventCreate", ctypes.byref(event), 2)
            self._do("cuEventRecord", event, ctypes.c_void_p(other))
            self._do("cuStreamWaitEvent", ctypes.c_void_p(stream), event, 0)
            self._do("cuEventDestroy_v2", event)

    def knows_stream(self, handle: int) -> bool:
        """Whether the simulated driver has this stream. A real one cannot be asked about a handle that may be dead."""
        with self.context():
            return self._code("cuStreamQuery", ctypes.c_void_p(handle)) in (0, 600)


NOT_INITIALIZED = 3


def is_started() -> bool:
    """Whether this process has started the driver, by whatever library: a copy of it by fork then has none."""
    library = loaded()
    if library is None:
        return False
    return int(library.cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p()))) != NOT_INITIALIZED


@dataclass(frozen=True)
class _Absent:
    reason: str


@cache
def _driver() -> Driver | _Absent:
    try:
        return Driver()
    except NoDriver as why:
        return _Absent(str(why))


def driver() -> Driver:
    """The driver of this process, started once.

    Raises:
        NoDriver: there is none.
    """
    found = _driver()
    if isinstance(found, _Absent):
        raise NoDriver(found.reason)
    return found
