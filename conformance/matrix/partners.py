"""The libraries on both sides: how each makes an array of given values, and how each takes a view.

Every function imports its library by itself, so that one that is not installed is one line of the
report and not the end of it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import cai_dlpack as cd
import numpy as np
from cai_conformance import Sim

Array = np.ndarray[Any, Any]


def load(name: str) -> Any:
    """A library, or ModuleNotFoundError; without types, which few of them have."""
    return importlib.import_module(name)


class NotOffered(Exception):
    """The library itself has no such array: nothing of the bridge is tried."""


@dataclass(frozen=True)
class Made:
    """A producer's array: what it is, and where its first element lies (None: it does not say)."""

    array: Any
    pointer: int | None


@dataclass(frozen=True)
class Seen:
    """What a consumer made of a view: its first element's address (None: it does not say), its values."""

    pointer: int | None
    values: Array


@dataclass(frozen=True)
class Library:
    name: str
    package: str
    side: str  # "host" or "device"
    make: Callable[[Array], Made] | None = None
    take: Callable[[Any], Seen] | None = None

    @property
    def version(self) -> str:
        return importlib.metadata.version(self.package)


# --- the host's side ------------------------------------------------------------------------------------


def numpy_make(values: Array) -> Made:
    return Made(values, values.ctypes.data)


def numpy_take(view: Any) -> Seen:
    found = np.from_dlpack(view)
    return Seen(found.ctypes.data, found)


def laid_out(found: Any, view: Any) -> Array:
    """The bytes of a consumer of contiguous memory, in the view's own order."""
    order: Literal["C", "F"] = "C" if view.byte_strides == np.empty(view.shape, view.dtype).strides else "F"
    return np.frombuffer(found, view.dtype).reshape(view.shape, order=order)


def buffer_take(view: Any) -> Seen:
    found = np.asarray(memoryview(view))
    return Seen(found.ctypes.data, found)


def strict_make(values: Array) -> Made:
    strict = load("array_api_strict")

    found = strict.from_dlpack(values)
    return Made(found, values.ctypes.data)


def strict_take(view: Any) -> Seen:
    strict = load("array_api_strict")

    found = np.from_dlpack(strict.from_dlpack(view))
    return Seen(found.ctypes.data, found)


def jax_make(values: Array) -> Made:
    jax = load("jax")
    jnp = load("jax.numpy")

    jax.config.update("jax_enable_x64", True)
    found = jnp.asarray(values)
    if str(found.dtype) != str(values.dtype):
        raise NotOffered("jax has no such type")
    return Made(found, found.unsafe_buffer_pointer())


def jax_take(view: Any) -> Seen:
    jax = load("jax")

    jax.config.update("jax_enable_x64", True)
    found = jax.dlpack.from_dlpack(view)
    return Seen(found.unsafe_buffer_pointer(), np.asarray(found))


def tensorflow_make(values: Array) -> Made:
    tf = load("tensorflow")

    found = tf.constant(values)
    return Made(found, None)


def tensorflow_take(view: Any) -> Seen:
    tf = load("tensorflow")

    found = tf.experimental.dlpack.from_dlpack(cd.to_dlpack(view, stream="host" if view.stream else None))
    # Where the tensor lies is said by its own capsule: `numpy()` may copy.
    pointer = cd.from_dlpack(tf.experimental.dlpack.to_dlpack(found)).ptr
    return Seen(pointer, np.asarray(found.numpy()))


def paddle_make(values: Array) -> Made:
    paddle = load("paddle")

    found = paddle.to_tensor(values, place="cpu")
    return Made(found, found.data_ptr())


def paddle_take(view: Any) -> Seen:
    paddle = load("paddle")

    found = paddle.from_dlpack(view)
    return Seen(found.data_ptr(), found.numpy())


def tvm_make(values: Array) -> Made:
    tvm_ffi = load("tvm_ffi")

    found = tvm_ffi.from_dlpack(values)
    return Made(found, found.data_ptr())


def tvm_take(view: Any) -> Seen:
    tvm_ffi = load("tvm_ffi")

    found = tvm_ffi.from_dlpack(view)
    return Seen(found.data_ptr(), np.from_dlpack(found))


def pyarrow_make(values: Array) -> Made:
    pa = load("pyarrow")

    if values.ndim != 1 or not values.flags.c_contiguous:
        raise NotOffered("an Arrow array has one contiguous axis")
    found = pa.array(values)
    return Made(found, found.buffers()[1].address)


def pyarrow_take(view: Any) -> Seen:
    pa = load("pyarrow")

    found = pa.py_buffer(view)
    return Seen(found.address, laid_out(found, view))


def onnxruntime_make(values: Array) -> Made:
    ort = load("onnxruntime")

    if not values.flags.c_contiguous:
        raise NotOffered("an OrtValue is contiguous")
    found = ort.OrtValue.ortvalue_from_numpy(values)
    return Made(found, found.data_ptr())


def onnxruntime_take(view: Any) -> Seen:
    state = load("onnxruntime.capi._pybind_state")

    found = state.OrtValue.from_dlpack(cd.to_dlpack(view), view.dtype == "bool")
    return Seen(found.data_ptr(), found.numpy())


def strided_memory_view_make(values: Array) -> Made:
    StridedMemoryView = load("cuda.core.utils").StridedMemoryView

    return Made(StridedMemoryView.from_dlpack(values, stream_ptr=-1), values.ctypes.data)


def strided_memory_view_take(view: Any) -> Seen:
    StridedMemoryView = load("cuda.core.utils").StridedMemoryView

    found = StridedMemoryView.from_dlpack(view, stream_ptr=-1)
    return Seen(found.ptr, np.from_dlpack(found))


def mpi4py_take(view: Any) -> Seen:
    MPI = load("mpi4py.MPI")

    found = MPI.memory.frombuffer(view)
    return Seen(found.address, laid_out(found, view))


def warp_make(values: Array) -> Made:
    wp = load("warp")

    wp.config.quiet = True
    if values.ndim == 0:
        raise NotOffered("warp makes one axis of none")
    found = wp.from_numpy(values, device="cpu")
    return Made(found, found.ptr)


def warp_take(view: Any) -> Seen:
    wp = load("warp")

    wp.config.quiet = True
    found = wp.from_dlpack(view)
    return Seen(found.ptr, found.numpy())


# --- the device's side, on the simulated driver ---------------------------------------------------------------


def device_values(pointer: int, like: Any) -> Array:
    """The elements at a device address, by the shape, byte strides and type of `like`, a view."""
    low = sum(min(0, step * (extent - 1)) for extent, step in zip(like.shape, like.byte_strides, strict=True))
    high = sum(max(0, step * (extent - 1)) for extent, step in zip(like.shape, like.byte_strides, strict=True))
    if 0 in like.shape:
        return np.zeros(like.shape, like.dtype)
    raw = Sim().peek(pointer + low, high - low + like.itemsize)
    return np.ndarray(like.shape, like.dtype, bytearray(raw), -low, like.byte_strides)


def numba_make(values: Array) -> Made:
    cuda = load("numba.cuda")

    if values.size == 0:
        return Made(cuda.to_device(values), 0)
    whole = values.base if isinstance(values.base, np.ndarray) else values
    device = cuda.to_device(np.ascontiguousarray(whole))
    cuda.synchronize()
    pointer = device.__cuda_array_interface__["data"][0] + values.ctypes.data - whole.ctypes.data
    is_whole = (whole.shape, whole.dtype) == (values.shape, values.dtype)
    return Made(device if is_whole else _Shown(device, pointer, values), pointer)


class _Shown:
    """A part of a device array, with the interface that Numba gives it."""

    def __init__(self, owner: Any, pointer: int, values: Array) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            **owner.__cuda_array_interface__,
            "shape": values.shape,
            "typestr": values.dtype.str,
            "strides": values.strides,
            "data": (pointer, False),
        }


def numba_take(view: Any) -> Seen:
    cuda = load("numba.cuda")

    found = cuda.as_cuda_array(view)
    pointer = found.__cuda_array_interface__["data"][0]
    return Seen(pointer, device_values(pointer, view))


def core_cai_take(view: Any) -> Seen:
    StridedMemoryView = load("cuda.core.utils").StridedMemoryView

    found = StridedMemoryView.from_cuda_array_interface(view, stream_ptr=1)
    return Seen(found.ptr, device_values(found.ptr, view))


def core_dlpack_take(view: Any) -> Seen:
    StridedMemoryView = load("cuda.core.utils").StridedMemoryView

    found = StridedMemoryView.from_dlpack(view, stream_ptr=1)
    return Seen(found.ptr, device_values(found.ptr, view))


def core_dlpack_make(values: Array) -> Made:
    StridedMemoryView = load("cuda.core.utils").StridedMemoryView

    source = numba_make(values)
    return Made(StridedMemoryView.from_cuda_array_interface(source.array, stream_ptr=-1), source.pointer)


def tvm_device_make(values: Array) -> Made:
    tvm_ffi = load("tvm_ffi")

    source = numba_make(values)
    return Made(tvm_ffi.from_dlpack(cd.view(source.array)), source.pointer)


def tvm_device_take(view: Any) -> Seen:
    tvm_ffi = load("tvm_ffi")

    found = tvm_ffi.from_dlpack(view)
    return Seen(found.data_ptr(), device_values(found.data_ptr(), view))


def warp_device_make(values: Array) -> Made:
    wp = load("warp")

    wp.config.quiet = True
    if values.ndim == 0:
        raise NotOffered("warp makes one axis of none")
    source = numba_make(values)
    dtype = wp.dtype_from_numpy(values.dtype)
    found = wp.array(ptr=source.pointer, dtype=dtype, shape=values.shape, strides=values.strides, device="cuda:0")
    found.kept = source.array
    return Made(found, source.pointer)


def warp_device_take(view: Any) -> Seen:
    wp = load("warp")

    wp.config.quiet = True
    found = wp.from_dlpack(view)
    return Seen(found.ptr, device_values(found.ptr, view))


def pycuda_make(values: Array) -> Made:
    gpuarray = load("pycuda.gpuarray")

    source = numba_make(values)
    found = gpuarray.GPUArray(
        values.shape, values.dtype, gpudata=source.pointer, strides=values.strides, base=source.array
    )
    return Made(found, source.pointer)


def numpy_device_take(view: Any) -> Seen:
    """Device memory for NumPy: the copy that it asks for."""
    found = np.from_dlpack(view, device="cpu")
    return Seen(found.ctypes.data, found)


LIBRARIES = [
    Library("numpy", "numpy", "host", numpy_make, numpy_take),
    Library("memoryview", "numpy", "host", None, buffer_take),
    Library("array-api-strict", "array-api-strict", "host", strict_make, strict_take),
    Library("jax", "jax", "host", jax_make, jax_take),
    Library("tvm-ffi", "apache-tvm-ffi", "host", tvm_make, tvm_take),
    Library("tensorflow", "tensorflow-cpu", "host", tensorflow_make, tensorflow_take),
    Library("paddle", "paddlepaddle", "host", paddle_make, paddle_take),
    Library("pyarrow", "pyarrow", "host", pyarrow_make, pyarrow_take),
    Library("onnxruntime", "onnxruntime", "host", onnxruntime_make, onnxruntime_take),
    Library("cuda.core", "cuda-core", "host", strided_memory_view_make, strided_memory_view_take),
    Library("mpi4py", "mpi4py", "host", None, mpi4py_take),
    Library("warp", "warp-lang", "host", warp_make, warp_take),
    Library("numba", "numba-cuda", "device", numba_make, numba_take),
    Library("cuda.core (CAI)", "cuda-core", "device", None, core_cai_take),
    Library("cuda.core (DLPack)", "cuda-core", "device", core_dlpack_make, core_dlpack_take),
    Library("tvm-ffi", "apache-tvm-ffi", "device", tvm_device_make, tvm_device_take),
    Library("warp", "warp-lang", "device", warp_device_make, warp_device_take),
    Library("pycuda", "pycuda", "device", pycuda_make, None),
    Library("numpy (copy)", "numpy", "device", None, numpy_device_take),
]

# What no run of this file can reach, and why.
NOT_HERE = {
    "torch": "its wheel brings several GB along: `make torch`",
    "cupy": "its runtime asks the driver for private tables, which no simulator has: needs a GPU",
    "jax (GPU), torch (GPU)": "need a GPU",
    "cudf, rmm, pylibraft": "need a GPU",
}
