"""The driver API by ctypes, as thin as it goes: one method for each call that the tests make."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from cai_conformance.library import require_simulator

NOT_READY = 600
NON_BLOCKING = 1
DISABLE_TIMING = 2
INTERPROCESS = 4 | DISABLE_TIMING
POSIX_FILE_DESCRIPTOR = 1
HOST_FUNCTION: Callable[[Callable[[object], None]], Any] = ctypes.CFUNCTYPE(None, c_void_p)

LEGACY, PER_THREAD = 1, 2


class Refused(Exception):
    """A call answered something other than SUCCESS."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(name, code)
        self.name, self.code = name, code

    def __str__(self) -> str:
        return f"{self.name}: {self.code}"


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle and CUipcEventHandle, passed by value; CUmemPoolPtrExportData."""

    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


class Driver:
    """Calls raise `Refused`; handles and addresses are numbers."""

    def __init__(self, library: ctypes.CDLL | None = None) -> None:
        self.library = library or require_simulator()
        self("cuInit", 0)

    def __call__(self, name: str, *arguments: object) -> None:
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise Refused(name, code)

    def code(self, name: str, *arguments: object) -> int:
        """The CUresult itself."""
        return int(getattr(self.library, name)(*arguments))

    def _handle(self, name: str, *arguments: object) -> int:
        out = c_void_p()
        self(name, byref(out), *arguments)
        return out.value or 0

    def uuid(self, device: int) -> bytes:
        out = (ctypes.c_ubyte * 16)()
        self("cuDeviceGetUuid_v2", out, device)
        return bytes(out)

    # --- contexts ---

    def retain(self, device: int) -> int:
        return self._handle("cuDevicePrimaryCtxRetain", device)

    def create_context(self, device: int) -> int:
        return self._handle("cuCtxCreate_v2", c_uint(0), device)

    def set_current(self, context: int) -> None:
        self("cuCtxSetCurrent", c_void_p(context))

    def current(self) -> int:
        return self._handle("cuCtxGetCurrent")

    def pop(self) -> int:
        return self._handle("cuCtxPopCurrent_v2")

    @contextmanager
    def on(self, context: int) -> Iterator[None]:
        """The context is current inside."""
        self("cuCtxPushCurrent_v2", c_void_p(context))
        try:
            yield
        finally:
            self.pop()

    def context_id(self, context: int) -> int:
        out = c_uint64()
        self("cuCtxGetId", c_void_p(context), byref(out))
        return out.value

    # --- memory ---

    def alloc(self, nbytes: int) -> int:
        out = c_uint64()
        self("cuMemAlloc_v2", byref(out), c_size_t(nbytes))
        return out.value

    def alloc_managed(self, nbytes: int) -> int:
        out = c_uint64()
        self("cuMemAllocManaged", byref(out), c_size_t(nbytes), c_uint(1))
        return out.value

    def alloc_host(self, nbytes: int) -> int:
        return self._handle("cuMemHostAlloc", c_size_t(nbytes), c_uint(0))

    def alloc_async(self, nbytes: int, stream: int) -> int:
        out = c_uint64()
        self("cuMemAllocAsync", byref(out), c_size_t(nbytes), c_void_p(stream))
        return out.value

    def free_async(self, address: int, stream: int) -> None:
        self("cuMemFreeAsync", c_uint64(address), c_void_p(stream))

    def free(self, address: int) -> None:
        self("cuMemFree_v2", c_uint64(address))

    def free_host(self, address: int) -> None:
        self("cuMemFreeHost", c_void_p(address))

    def write(self, address: int, data: bytes) -> None:
        self("cuMemcpyHtoD_v2", c_uint64(address), data, c_size_t(len(data)))

    def read(self, address: int, nbytes: int) -> bytes:
        block = ctypes.create_string_buffer(nbytes)
        self("cuMemcpyDtoH_v2", block, c_uint64(address), c_size_t(nbytes))
        return block.raw

    def copy_async(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        self("cuMemcpyAsync", c_uint64(dst), c_uint64(src), c_size_t(nbytes), c_void_p(stream))

    def copy_between(self, dst: int, dst_context: int, src: int, src_context: int, nbytes: int) -> None:
        ends = (c_uint64(dst), c_void_p(dst_context), c_uint64(src), c_void_p(src_context))
        self("cuMemcpyPeer", *ends, c_size_t(nbytes))

    def read_async(self, dst: int, address: int, nbytes: int, stream: int) -> None:
        self("cuMemcpyDtoHAsync_v2", c_void_p(dst), c_uint64(address), c_size_t(nbytes), c_void_p(stream))

    def write_async(self, address: int, src: object, nbytes: int, stream: int) -> None:
        self("cuMemcpyHtoDAsync_v2", c_uint64(address), src, c_size_t(nbytes), c_void_p(stream))

    def fill_async(self, address: int, value: int, count: int, stream: int) -> None:
        self("cuMemsetD8Async", c_uint64(address), value, c_size_t(count), c_void_p(stream))

    # --- other processes ---

    def ipc_memory(self, address: int) -> bytes:
        handle = IpcHandle()
        self("cuIpcGetMemHandle", byref(handle), c_uint64(address))
        return bytes(handle)

    def ipc_open(self, handle: bytes, flags: int = 1) -> int:
        out = c_uint64()
        self("cuIpcOpenMemHandle_v2", byref(out), IpcHandle.from_buffer_copy(handle), c_uint(flags))
        return out.value

    def ipc_close(self, address: int) -> None:
        self("cuIpcCloseMemHandle", c_uint64(address))

    def ipc_event(self, event: int) -> bytes:
        handle = IpcHandle()
        self("cuIpcGetEventHandle", byref(handle), c_void_p(event))
        return bytes(handle)

    def ipc_open_event(self, handle: bytes) -> int:
        return self._handle("cuIpcOpenEventHandle", IpcHandle.from_buffer_copy(handle))

    def create_pool(self, device: int = 0, handle_types: int = POSIX_FILE_DESCRIPTOR) -> int:
        # CUmemPoolProps: pinned memory, handle types, a device, its number; the rest is 0.
        properties = (c_uint * 22)(1, handle_types, 1, device)
        return self._handle("cuMemPoolCreate", byref(properties))

    def set_pool(self, device: int, pool: int) -> None:
        self("cuDeviceSetMemPool", device, c_void_p(pool))

    def destroy_pool(self, pool: int) -> None:
        self("cuMemPoolDestroy", c_void_p(pool))

    def set_pool_access(self, pool: int, wanted: Mapping[int, int]) -> None:
        # CUmemAccessDesc: a device, its number, the flags.
        flat = [number for device, flags in wanted.items() for number in (1, device, flags)]
        self("cuMemPoolSetAccess", c_void_p(pool), (c_uint * len(flat))(*flat), c_size_t(len(wanted)))

    def pool_access(self, pool: int, device: int) -> int:
        out = c_uint()
        self("cuMemPoolGetAccess", byref(out), c_void_p(pool), (c_uint * 2)(1, device))
        return out.value

    def alloc_from_pool(self, nbytes: int, pool: int, stream: int) -> int:
        out = c_uint64()
        self("cuMemAllocFromPoolAsync", byref(out), c_size_t(nbytes), c_void_p(pool), c_void_p(stream))
        return out.value

    def export_pool(self, pool: int, kind: int = POSIX_FILE_DESCRIPTOR) -> int:
        out = c_int(-1)
        self("cuMemPoolExportToShareableHandle", byref(out), c_void_p(pool), c_uint(kind), c_uint64(0))
        return out.value

    def import_pool(self, descriptor: int, kind: int = POSIX_FILE_DESCRIPTOR) -> int:
        handle = c_void_p(descriptor)
        return self._handle("cuMemPoolImportFromShareableHandle", handle, c_uint(kind), c_uint64(0))

    def export_pointer(self, address: int) -> bytes:
        data = IpcHandle()
        self("cuMemPoolExportPointer", byref(data), c_uint64(address))
        return bytes(data)

    def import_pointer(self, pool: int, data: bytes) -> int:
        out = c_uint64()
        self("cuMemPoolImportPointer", byref(out), c_void_p(pool), byref(IpcHandle.from_buffer_copy(data)))
        return out.value

    # --- streams and events ---

    def stream(self, flags: int = NON_BLOCKING) -> int:
        return self._handle("cuStreamCreate", c_uint(flags))

    def destroy_stream(self, stream: int) -> None:
        self("cuStreamDestroy_v2", c_void_p(stream))

    def wait_for(self, stream: int) -> None:
        self("cuStreamSynchronize", c_void_p(stream))

    def is_done(self, stream: int) -> bool:
        return self._ready("cuStreamQuery", stream)

    def event(self, flags: int = DISABLE_TIMING) -> int:
        return self._handle("cuEventCreate", c_uint(flags))

    def destroy_event(self, event: int) -> None:
        self("cuEventDestroy_v2", c_void_p(event))

    def record(self, event: int, stream: int) -> None:
        self("cuEventRecord", c_void_p(event), c_void_p(stream))

    def stream_wait(self, stream: int, event: int) -> None:
        self("cuStreamWaitEvent", c_void_p(stream), c_void_p(event), c_uint(0))

    def event_wait(self, event: int) -> None:
        self("cuEventSynchronize", c_void_p(event))

    def event_done(self, event: int) -> bool:
        return self._ready("cuEventQuery", event)

    def elapsed(self, start: int, end: int) -> float:
        out = c_float()
        self("cuEventElapsedTime_v2", byref(out), c_void_p(start), c_void_p(end))
        return out.value

    def order(self, before: int, after: int) -> None:
        """One record and one wait: what comes on `after` follows what is on `before`."""
        event = self.event()
        self.record(event, before)
        self.stream_wait(after, event)
        self.destroy_event(event)

    def host_function(self, stream: int, function: object) -> None:
        self("cuLaunchHostFunc", c_void_p(stream), function, c_void_p(0))

    def synchronize(self) -> None:
        self("cuCtxSynchronize")

    def _ready(self, name: str, handle: int) -> bool:
        code = self.code(name, c_void_p(handle))
        if code not in (0, NOT_READY):
            raise Refused(name, code)
        return code == 0

    # --- capture ---

    def begin_capture(self, stream: int, mode: int = 0) -> None:
        self("cuStreamBeginCapture_v2", c_void_p(stream), c_uint(mode))

    def end_capture(self, stream: int) -> int:
        out = c_void_p()
        self("cuStreamEndCapture", c_void_p(stream), byref(out))
        return out.value or 0

    def capture_status(self, stream: int) -> int:
        out = c_uint()
        self("cuStreamIsCapturing", c_void_p(stream), byref(out))
        return out.value

    def launch(self, graph: int, stream: int) -> None:
        executable = self._handle("cuGraphInstantiateWithFlags", c_void_p(graph), c_uint64(0))
        self("cuGraphLaunch", c_void_p(executable), c_void_p(stream))
        self("cuGraphExecDestroy", c_void_p(executable))

    # --- pointers ---

    def attribute(self, number: int, address: int, kind: Any = c_uint64) -> int:
        out = kind()
        self("cuPointerGetAttribute", byref(out), c_uint(number), c_uint64(address))
        return int(out.value)

    def attributes(self, address: int, wanted: Mapping[int, Any]) -> dict[int, int]:
        """Several attributes in one call: number -> value."""
        values = {number: kind(77) for number, kind in wanted.items()}
        numbers = (c_int * len(wanted))(*wanted)
        slots = (c_void_p * len(wanted))(*[ctypes.addressof(value) for value in values.values()])
        self("cuPointerGetAttributes", c_uint(len(wanted)), numbers, slots, c_uint64(address))
        return {number: int(value.value) for number, value in values.items()}

    def proc_address(self, name: str, version: int, flags: int = 0) -> tuple[int, int, int]:
        """CUresult, address, symbol status."""
        address, status = c_void_p(), c_int(-1)
        code = self.code(
            "cuGetProcAddress_v2", c_char_p(name.encode()), byref(address), version, c_uint64(flags), byref(status)
        )
        return code, address.value or 0, status.value
