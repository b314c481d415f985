"""What a library's array says of itself, by the library's own attributes, compared with the view that it was made of.

Whatever both can say is the same: address, shape, strides, type, size, device, read-only flag. What a call is known
to drop is left to `explain`; a copy has an address of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import cai_dlpack as cd
import numpy as np
from cai_conformance import abi

Said = dict[str, Any]


def of_numpy(array: Any) -> Said:
    return {
        "ptr": array.ctypes.data,
        "shape": array.shape,
        "byte strides": array.strides,
        "NumPy's dtype": array.dtype,
        "nbytes": array.nbytes,
        "read-only": not array.flags.writeable,
    }


def of_numba(array: Any) -> Said:
    return {
        "ptr": array.device_ctypes_pointer.value or 0,
        "shape": array.shape,
        "byte strides": array.strides,
        "NumPy's dtype": array.dtype,
        "nbytes": array.size * array.dtype.itemsize,
    }


def of_cuda_core(memory: Any) -> Said:
    looks: dict[str, Callable[[], object]] = {
        "ptr": lambda: memory.ptr,
        "shape": lambda: tuple(memory.shape),
        "elem strides": lambda: None if memory.strides is None else tuple(memory.strides),
        "read-only": lambda: memory.readonly,
        "by CUDA": lambda: memory.is_device_accessible,
        "NumPy's dtype": lambda: np.dtype(memory.dtype),
    }
    said: Said = {}
    for field, look in looks.items():
        with contextlib.suppress(Exception):
            said[field] = look()
    return said


def of_tvm(tensor: Any) -> Said:
    said: Said = {
        "ptr": tensor.data_ptr(),
        "shape": tuple(tensor.shape),
        "elem strides": tuple(tensor.strides),
        "device": tuple(int(part) for part in tensor.__dlpack_device__()),
    }
    try:
        dtype = tensor.dtype
    except ValueError:
        return said  # it has no name for complex numbers
    return {**said, "DLPack's dtype": (int(dtype.type_code), int(dtype.bits), int(dtype.lanes))}


def of_mpi(sent: Any) -> Said:
    memory = sent.memory()
    return {"ptr": memory.address, "nbytes": memory.nbytes}


def of_pyarrow(found: Any) -> Said:
    """A buffer, or a tensor."""
    if hasattr(found, "to_numpy"):
        return {"shape": tuple(found.shape), "byte strides": tuple(found.strides), "read-only": not found.is_mutable}
    return {"ptr": found.address, "nbytes": found.size, "read-only": not found.is_mutable}


def of_jax(array: Any) -> Said:
    return {"shape": array.shape, "NumPy's dtype": array.dtype, "nbytes": array.nbytes}


def of_warp(array: Any) -> Said:
    return {"ptr": array.ptr or 0, "shape": tuple(array.shape), "byte strides": tuple(array.strides)}


def of_tensor(tensor: Any) -> Said:
    """Paddle and ONNX Runtime."""
    shape = tensor.shape() if callable(tensor.shape) else tensor.shape
    return {"ptr": tensor.data_ptr(), "shape": tuple(shape)}


def of_tensorflow(tensor: Any) -> Said:
    return {"shape": tuple(tensor.shape)}


# By distribution.
EYES: dict[str, Callable[[Any], Said]] = {
    "numpy": of_numpy,
    "array-api-strict": lambda array: of_numpy(array._array),
    "numba-cuda": of_numba,
    "cuda-core": of_cuda_core,
    "apache-tvm-ffi": of_tvm,
    "mpi4py": of_mpi,
    "pyarrow": of_pyarrow,
    "jax": of_jax,
    "warp-lang": of_warp,
    "paddlepaddle": of_tensor,
    "onnxruntime": of_tensor,
    "tensorflow-cpu": of_tensorflow,
}


def of_view(view: cd.CaiView) -> Said:
    """The same of a view."""
    said: Said = {
        "ptr": view.ptr + view.byte_offset,
        "shape": view.shape,
        "byte strides": view.byte_strides,
        "elem strides": view.elem_strides,
        "nbytes": view.nbytes,
        "read-only": view.read_only is not False,
        "by CUDA": view.device[0] in (abi.CUDA, abi.CUDA_HOST, abi.CUDA_MANAGED),
        "device": view.device,
    }
    with contextlib.suppress(TypeError):
        said["NumPy's dtype"] = np.dtype(view.dtype)
    try:
        named = view.device[0] in (abi.CUDA, abi.CUDA_HOST, abi.ROCM, 11, abi.CUDA_MANAGED)
        said["DLPack's dtype"] = abi.read(view.__dlpack__(stream=-1 if named else None, max_version=(1, 3))).dtype
    except BufferError:
        pass  # items that DLPack cannot describe
    return said


#: Without elements nothing lies anywhere.
OF_ELEMENTS = {"ptr", "byte strides", "elem strides", "by CUDA"}


#: Their arrays have the strides of axes of extent 1 as the tensor or the buffer has them.
KEEP_STRIDES = {"numpy", "apache-tvm-ffi"}


def differences(distribution: str, view: cd.CaiView, found: Any, dropped: str | None, is_copy: bool) -> Iterator[str]:
    """The fields that the view and the consumer's array state, and in which they differ."""
    eyes = EYES.get(distribution)
    if eyes is None:
        return
    ours, theirs = of_view(view), eyes(found)
    if distribution == "cuda-core":
        yield from unread(theirs, dropped or "")
    less = set() if view.nbytes else OF_ELEMENTS
    # That nothing can be written where there is nothing, pyarrow says of every array.
    less |= {"read-only"} if not view.nbytes and theirs.get("read-only") else set()
    less |= {"ptr", "byte strides", "elem strides", "read-only"} if is_copy else set()
    less |= {"read-only"} if "read-only" in (dropped or "") else set()
    less |= {"NumPy's dtype"} if "fields" in (dropped or "") else set()
    less |= {"shape", "byte strides", "elem strides", "NumPy's dtype"} if "lanes" in (dropped or "") else set()
    less |= {"nbytes", "byte strides", "NumPy's dtype"} if "64-bit" in (dropped or "") else set()
    for field in (theirs.keys() & ours.keys()) - less:
        own, other = ours[field], theirs[field]
        if "strides" in field and distribution not in KEEP_STRIDES:
            own, other = steps(view.shape, own), steps(view.shape, other)
        # By identity: None equals float64 to NumPy's dtypes.
        if own is not None and other is not None and own != other:
            yield f"{field} is {own} of the view, and {other} of the consumer's array"


def unread(theirs: Said, dropped: str) -> Iterator[str]:
    """The fields that cuda.core refuses to state, and `explain` tells otherwise."""
    for fields, words in ((("shape", "elem strides"), "shape and strides"), (("NumPy's dtype",), "types that NumPy")):
        for field in fields:
            if (field in theirs) == (words in dropped):
                yield f"{field} of the consumer's array: {theirs.get(field, 'refused')}; told as dropped: {dropped}"


def steps(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> list[int] | None:
    """The strides that lead anywhere: those of axes of more than one element."""
    if strides is None:
        return None
    return [stride for extent, stride in zip(shape, strides, strict=True) if extent > 1]
