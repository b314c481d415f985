"""Each library's side of a hand-over: how it makes an array on a stream of its own, takes one, and reads it there."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import itertools
import os
import weakref
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import numpy as np
from cai_conformance.library import is_simulator, loaded

from conformance.gpu.machine import Gpu, SlowTrack, machine
from conformance.gpu.registry import NotRun
from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.streams.race import NBYTES

# JAX would take most of the memory of the GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

COUNT = itertools.count()
#: Says whether memory is still held.
IsHeld = Callable[[], bool]


def next_value() -> int:
    """Returns a value that the writes before did not have."""
    return next(COUNT) % 120 + 1


def value_of(data: bytes) -> int:
    """Returns the value of every byte, or -1."""
    return data[0] if len(data) == NBYTES and data == data[:1] * NBYTES else -1


def interface_of(address: int, stream: int | None) -> dict[str, Any]:
    return interface(shape=(NBYTES,), typestr="|u1", data=(address, False), stream=stream)


class Library:
    """The side of a library whose working stream is `stream`; no other is its current one."""

    stream: int
    #: Whether the host waits as it takes an array (docs/pairs.md).
    host_waits = False

    @property
    def keywords(self) -> dict[str, Any]:
        """What `cd.to` and `cd.view` are told of its arrays."""
        return {}

    def current(self) -> contextlib.AbstractContextManager[object]:
        """Makes the working stream the library's current one."""
        return contextlib.nullcontext()

    # --- as a producer ---

    def array(self) -> Any:
        """Returns a new array of NBYTES bytes."""
        raise NotImplementedError

    def address(self, array: Any) -> int:
        raise NotImplementedError

    @functools.cached_property
    def own(self) -> Any:
        return self.array()

    def written(self, track: SlowTrack, value: int, seconds: float) -> Any:
        """Returns an array of which every byte is this value, once the stream has done its work."""
        track.slow.fill(self.stream, self.address(self.own), value, NBYTES, seconds)
        return self.own

    def watched(self) -> tuple[Any, IsHeld]:
        """Returns a new array, and whether it, or its memory, is still there."""
        array = self.array()
        ended = weakref.ref(array)
        return array, lambda: ended() is not None

    def view(self, array: Any) -> cd.CaiView:
        """Returns the view that is shared with another process."""
        return cd.view(array, **self.keywords)

    def undeclared(self, array: Any) -> cd.CaiView:
        """The same memory, said to be ready."""
        return cd.view(interface_of(self.address(array), None), owner=array, producer_stream=None)

    # --- as a consumer ---

    def taken(self, array: Any, **given: Any) -> Any:
        """Returns what `cd.to` makes of another library's array."""
        raise NotImplementedError

    def value(self, taken: Any) -> int:
        """Copies it on the working stream, waits for that, and returns the value."""
        raise NotImplementedError


class Counted(Library):
    """Watches how many bytes the library's allocator has in use: what keeps the memory need not keep the array."""

    def used(self) -> int:
        raise NotImplementedError

    def watched(self) -> tuple[Any, IsHeld]:
        gc.collect()
        before = self.used()
        array = self.array()
        assert self.used() > before, "the allocator does not count"
        return array, lambda: self.used() > before


class Torch(Counted):
    def __init__(self) -> None:
        self.torch = load("torch")
        self.work = self.torch.cuda.Stream()
        self.stream = self.work.cuda_stream
        self.copy = self.torch.empty(NBYTES, dtype=self.torch.uint8, device="cuda")

    def current(self) -> contextlib.AbstractContextManager[object]:
        found: contextlib.AbstractContextManager[object] = self.torch.cuda.stream(self.work)
        return found

    def array(self) -> Any:
        with self.current():
            return self.torch.zeros(NBYTES, dtype=self.torch.uint8, device="cuda")

    def address(self, array: Any) -> int:
        return int(array.data_ptr())

    def used(self) -> int:
        return int(self.torch.cuda.memory_allocated())

    def taken(self, array: Any, **given: Any) -> Any:
        with self.current():
            return cd.to(array, "torch", **given)

    def value(self, taken: Any) -> int:
        with self.current():
            self.copy.copy_(taken.view(self.torch.uint8), non_blocking=True)
            self.work.synchronize()
            return value_of(bytes(self.copy.tolist()))


class CuPy(Counted):
    def __init__(self) -> None:
        self.cupy = load("cupy")
        self.work = self.cupy.cuda.Stream(non_blocking=True)
        self.stream = int(self.work.ptr)
        self.copy = self.cupy.empty(NBYTES, "u1")

    def current(self) -> contextlib.AbstractContextManager[object]:
        found: contextlib.AbstractContextManager[object] = self.work
        return found

    def array(self) -> Any:
        with self.current():
            return self.cupy.empty(NBYTES, "u1")

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def used(self) -> int:
        return int(self.cupy.get_default_memory_pool().used_bytes())

    def taken(self, array: Any, **given: Any) -> Any:
        with self.current():
            return cd.to(array, "cupy", **given)

    def value(self, taken: Any) -> int:
        with self.current():
            self.copy.data.copy_from_device_async(taken.data, NBYTES, self.work)
            self.work.synchronize()
            return value_of(self.copy.get().tobytes())


class PoolOfCuPy(CuPy):
    """Arrays of the driver's own pool."""

    def array(self) -> Any:
        with self.cupy.cuda.using_allocator(self.cupy.cuda.MemoryAsyncPool().malloc):
            return super().array()


class Numba(Library):
    host_waits = True

    def __init__(self) -> None:
        self.cuda = load("numba.cuda")
        self.work = self.cuda.stream()
        self.stream = int(self.work.handle)
        # Its own streams wait for the legacy one, and that would be an order which no call has made.
        self.reads_on = self.cuda.external_stream(machine().stream())

    def array(self) -> Any:
        return self.cuda.device_array(NBYTES, np.uint8, stream=self.work)

    def address(self, array: Any) -> int:
        return int(array.device_ctypes_pointer.value)

    def taken(self, array: Any, **given: Any) -> Any:
        return cd.to(array, "numba", **given)

    def value(self, taken: Any) -> int:
        found = taken.copy_to_host(stream=self.reads_on)
        self.reads_on.synchronize()
        return value_of(found.tobytes())


class KernelOfNumba(Numba):
    """Reads by a kernel, which is launched as it takes the view."""

    host_waits = False

    def __init__(self) -> None:
        if is_simulated():
            raise NotRun("the simulator runs no kernel")
        # Numba that is older than NumPy 2.5 asks for this as it makes its first kernel.
        if not hasattr(np, "row_stack"):
            np.row_stack = np.vstack
            print("# Numba's kernels: numpy.row_stack, which NumPy has no more, is numpy.vstack here", flush=True)
        super().__init__()
        self.copy, cuda = self.cuda.device_array(NBYTES, np.int8), self.cuda

        def copied(source, target):  # type: ignore[no-untyped-def]
            at = cuda.grid(1)
            if at < target.size:
                target[at] = source[at]

        self.kernel = cuda.jit(copied)
        try:
            self.kernel[1, 32, self.reads_on](self.copy, self.copy)
        except Exception as error:  # of a compiler that is not there, or is newer than the driver
            raise NotRun(f"Numba makes no kernel here: {type(error).__name__}: {error}") from None

    def taken(self, array: Any, **given: Any) -> Any:
        policy = cd.policy(sync="none") if given.pop("stream", None) == -1 else contextlib.nullcontext()
        with policy:
            view = cd.view(array, **given)
            self.kernel[1, 32, self.reads_on](view, self.copy)
        return view

    def value(self, taken: Any) -> int:
        return super().value(self.copy)


class CudaCore(Library):
    def __init__(self) -> None:
        core = load("cuda.core")
        self.device, self.Buffer = core.Device(0), core.Buffer
        self.device.set_current()
        self.work = self.device.create_stream()
        self.stream = int(self.work.handle)
        self.copy = self.device.allocate(NBYTES, stream=self.work)

    @property
    def keywords(self) -> dict[str, Any]:
        return {"producer_stream": self.work}

    def array(self) -> Any:
        return self.device.allocate(NBYTES, stream=self.work)

    def address(self, array: Any) -> int:
        return int(array.handle)

    def taken(self, array: Any, **given: Any) -> Any:
        return cd.to(array, "cuda.core", **{"stream": self.work, **given})

    def value(self, taken: Any) -> int:
        self.copy.copy_from(self.Buffer.from_handle(taken.ptr, NBYTES, owner=taken), stream=self.work)
        self.work.sync()
        return value_of(read(int(self.copy.handle)))


class PoolOfCudaCore(CudaCore):
    """Buffers of a pool that another process can open."""

    def __init__(self) -> None:
        super().__init__()
        core = load("cuda.core")
        options = core.DeviceMemoryResourceOptions(max_size=1 << 21, ipc_enabled=True)
        self.pool = core.DeviceMemoryResource(self.device, options=options)

    def array(self) -> Any:
        return self.pool.allocate(NBYTES, stream=self.work)

    def view(self, array: Any) -> cd.CaiView:
        return cd.view(interface_of(self.address(array), self.stream), owner=array)


class TvmFfi(Library):
    """Has no copy of its own: the driver makes it, on the stream for which the tensor was taken."""

    def __init__(self) -> None:
        load("tvm_ffi")
        self.machine = machine()
        self.stream, self.copy = self.machine.stream(), self.machine.device_memory(NBYTES)

    def taken(self, array: Any, **given: Any) -> Any:
        return cd.to(array, "tvm_ffi", **{"stream": self.stream, **given})

    def value(self, taken: Any) -> int:
        driver, size, stream = self.machine.driver, ctypes.c_size_t(NBYTES), ctypes.c_void_p(self.stream)
        source, target = ctypes.c_uint64(taken.data_ptr()), ctypes.c_uint64(self.copy)
        codes = driver.cuMemcpyAsync(target, source, size, stream), driver.cuStreamSynchronize(stream)
        assert codes == (0, 0), codes
        return value_of(read(self.copy))


class Jax(Counted):
    """Works on streams that it does not name. What it makes of an array that is still written is as late as that."""

    def __init__(self) -> None:
        self.jax = load("jax")
        self.device = self.jax.devices("gpu")[0]
        self.inverted = self.jax.jit(lambda array: ~array)

    def array(self) -> Any:
        return self.jax.device_put(np.zeros(NBYTES, np.uint8), self.device).block_until_ready()

    def address(self, array: Any) -> int:
        return int(array.unsafe_buffer_pointer())

    def used(self) -> int:
        counts = self.device.memory_stats()
        if not counts:
            raise NotRun("this JAX does not count its memory")
        return int(counts["bytes_in_use"])

    def written(self, track: SlowTrack, value: int, seconds: float) -> Any:
        self.stream = track.a
        track.slow.fill(track.a, track.data, 255 - value, NBYTES, seconds)
        return self.inverted(cd.to(Cai(interface_of(track.data, track.a)), "jax"))

    def taken(self, array: Any, **given: Any) -> Any:
        return cd.to(array, "jax", **given)

    def value(self, taken: Any) -> int:
        found = value_of(np.asarray(self.inverted(taken)).tobytes())
        return found if found < 0 else 255 - found


LIBRARIES: dict[str, Callable[[], Library]] = {
    "torch": Torch,
    "CuPy": CuPy,
    "CuPy, the driver's pool": PoolOfCuPy,
    "Numba": Numba,
    "Numba, a kernel": KernelOfNumba,
    "cuda.core": CudaCore,
    "cuda.core, a pool for IPC": PoolOfCudaCore,
    "tvm-ffi": TvmFfi,
    "JAX": Jax,
}


def load(name: str) -> Any:
    """A library; without types, which few of them have."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise NotRun(f"not installed: {error.name}") from None


STARTED: dict[str, Library | Exception] = {}


def library(name: str) -> Any:
    """Returns a library's side, which is started once; on the simulator not run if the library cannot reach that."""
    if name not in STARTED:
        try:
            STARTED[name] = LIBRARIES[name]()
        except NotRun as reason:
            STARTED[name] = reason
        except Exception as error:  # whatever a library says
            STARTED[name] = NotRun(f"cannot reach the simulator: {error}") if is_simulated() else error
    found = STARTED[name]
    if isinstance(found, Exception):
        raise found
    return found


def is_simulated() -> bool:
    driver = loaded()
    return driver is not None and is_simulator(driver)


def read(address: int) -> bytes:
    return Gpu.read(machine(), address, NBYTES)  # type: ignore[arg-type]
