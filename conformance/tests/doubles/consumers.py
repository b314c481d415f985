"""Doubles of consumers of the CUDA Array Interface: what each checks of the dict, and nothing else.

For libraries that cannot run without a GPU. Written from what the libraries' sources demand; each
raises the class of error that the library raises, and answers the pointer where it is content.
"""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from cai_conformance import abi

Interface = dict[str, Any]


def size_of(shape: tuple[int, ...]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


def cupy(array: Any) -> int:
    """`cupy.asarray`: C types for the dict and the shape; a pointer of 0 only without elements."""
    interface = array.__cuda_array_interface__
    if type(interface) is not dict or type(interface["shape"]) is not tuple:
        raise TypeError("expected dict and tuple")
    dtype = np.dtype(interface["typestr"])
    if interface["typestr"][0] == ">":
        raise ValueError("big-endian")
    if dtype.kind == "V" and "descr" in interface:
        raise ValueError("itemsize 0 of an unnamed field")
    if interface.get("mask") is not None:
        raise ValueError("mask")
    shape, strides = interface["shape"], interface.get("strides")
    nbytes = size_of(shape) * dtype.itemsize
    if strides is not None:
        nbytes = max((abs(extent * step) for extent, step in zip(shape, strides, strict=True)), default=0)
    pointer: int = interface["data"][0]
    if nbytes and pointer == 0:
        raise RuntimeError("explicit device ID for a null pointer")
    return pointer


def cuda_compute(array: Any) -> int:
    """`cuda.compute` (cuda-cccl 1.2.1, `_utils/protocols.py`): as torch and CuPy, else the dict's pointer."""
    for fast in ("data_ptr", "data"):
        assert not hasattr(array, fast)
    return contiguous(array)


def contiguous(array: Any) -> int:
    """`Array` of KvikIO 26.10.0 and UCXX 0.52.0 (`_lib/arr.pyx`): address and strides; it ignores the stream."""
    interface = array.__cuda_array_interface__
    if interface["strides"] is not None:
        size, one_way = np.dtype(interface["typestr"]).itemsize, []
        for axes in (range(len(interface["shape"])), reversed(range(len(interface["shape"])))):
            step, fits = size, True
            for axis in axes:
                fits = fits and interface["strides"][axis] == step
                step *= interface["shape"][axis]
            one_way.append(fits)
        if not any(one_way):
            raise ValueError("Array must be contiguous")
    pointer: int = interface["data"][0]
    return pointer


class Freed(Exception):
    """A kernel works on memory whose owner has ended."""


def without_order(array: Any, owner: weakref.ReferenceType[Any], kernel: Callable[[int], None]) -> Callable[[], None]:
    """cuTile 1.7.0 (`cext/tile_kernel.cpp`): stream -1, no version, on CUDA; the deleter runs before the launch.

    The launch keeps nothing. Returns the end of the kernel, at which the memory has to be there still.
    """

    def alive() -> None:
        gc.collect()
        if owner() is None:
            raise Freed

    capsule = array.__dlpack__(stream=-1)
    tensor = abi.read(capsule)
    if abi.name(capsule) != abi.LEGACY or tensor.device != (abi.CUDA, 0):
        raise ValueError("Input array is not on a CUDA device")
    address = tensor.data
    del array, capsule, tensor
    alive()
    kernel(address)
    return alive


def torch(array: Any) -> int:
    """`torch.as_tensor`: no stream, no version, no flag but one: read-only is refused."""
    interface = array.__cuda_array_interface__
    if type(interface) is not dict or type(interface["data"]) is not tuple or len(interface["data"]) != 2:
        raise TypeError("`data` needs to be a 2-tuple")
    if interface["data"][1]:
        raise TypeError("the read only flag is not supported, should always be False")
    dtype = np.dtype(interface["typestr"])
    if dtype.kind not in "biufc":
        raise TypeError(f"can't convert {dtype}")
    strides = interface.get("strides")
    if strides is not None:
        if len(strides) != len(interface["shape"]):
            raise TypeError("strides must be a sequence of the same length as shape")
        if any(step % dtype.itemsize for step in strides):
            raise ValueError("strides must be a multiple of the element size")
        if any(step < 0 for step in strides):
            raise ValueError("negative strides")
    return int(interface["data"][0])


def jax(array: Any) -> int:
    """`jnp.asarray`: stream 0 is an error; compact strides alone."""
    interface = array.__cuda_array_interface__
    if "version" not in interface or interface.get("stream") == 0:
        raise ValueError("version, or stream 0")
    dtype, shape = np.dtype(interface["typestr"]), interface["shape"]
    pointer: int = interface["data"][0]
    if pointer == 0 and 0 not in shape:
        raise ValueError("NULL")
    strides = interface.get("strides")
    if strides is not None:
        step = dtype.itemsize
        for axis in sorted(range(len(shape)), key=lambda axis: int(strides[axis])):
            if strides[axis] != step:
                raise NotImplementedError("only compact striding")
            step *= shape[axis]
    return pointer


def xgboost(array: Any) -> int:
    """XGBoost: the whole dict becomes JSON; stream 0 ends the process; two axes at most."""
    interface = json.loads(json.dumps(array.__cuda_array_interface__))
    if interface["version"] > 3 or interface.get("stream") == 0 or len(interface["shape"]) > 2:
        raise ValueError("fatal")
    if len(interface["typestr"]) not in (3, 4) or interface["typestr"][1] not in "fiu":
        raise ValueError("typestr")
    if interface["data"][0] == 0 and size_of(tuple(interface["shape"])):
        raise ValueError("fatal: empty pointer")
    return int(interface["data"][0])


def cudf(array: Any) -> int:
    """cuDF: `strides` is subscripted; one axis at least; DataFrame takes `len(descr)`."""
    interface = array.__cuda_array_interface__
    if type(interface["shape"]) is not tuple or not interface["shape"]:
        raise ValueError("shape must be a non-empty tuple")
    if "descr" in interface:
        len(interface["descr"])
    strides = interface["strides"]
    if strides is not None and len(strides) != len(interface["shape"]):
        raise ValueError("strides")
    if type(interface["data"][0]) is not int:
        raise TypeError("ptr must be an integer")
    return int(interface["data"][0])


def dali(array: Any) -> int:
    """DALI: PyTuple for shape and data; contiguous; no stream 0, no mask."""
    interface = array.__cuda_array_interface__
    if "version" not in interface or interface.get("mask") is not None or interface.get("stream") == 0:
        raise ValueError("version, mask or stream 0")
    if type(interface["shape"]) is not tuple or type(interface["data"]) is not tuple:
        raise TypeError("PyTuple")
    if interface.get("strides") is not None:
        raise ValueError("contiguous only")
    return int(interface["data"][0])


def pylibraft(array: Any) -> int:
    """pylibraft's wrapper: explicit strides of one axis are an IndexError."""
    interface = array.__cuda_array_interface__
    strides = interface["strides"]
    if strides is not None and strides[1] != np.dtype(interface["typestr"]).itemsize:
        raise ValueError("row major only")
    return int(interface["data"][0])


def warp(array: Any) -> int:
    """`wp.array(data=...)`: compares strides to a tuple; needs an axis."""
    interface = array.__cuda_array_interface__
    strides = interface.get("strides")
    if not interface["shape"]:
        raise RuntimeError("no axes")
    if strides is not None and type(strides) is not tuple:
        raise RuntimeError("not contiguous")
    return int(interface.get("data")[0])


def pybind11_cai(array: Any) -> int:
    """pybind11_cuda_array_interface: version 3 exactly; no empty and no 0-d arrays."""
    interface = array.__cuda_array_interface__
    if interface["version"] != 3 or not interface["shape"] or 0 in interface["shape"]:
        raise ValueError("version 3, and something in it")
    return int(interface["data"][0])


def nvcv(array: Any) -> int:
    """CV-CUDA: no NULL, no arrays without axes; strides that are multiples of the item."""
    interface = array.__cuda_array_interface__
    if interface["version"] < 2 or not interface["data"][0] or not interface["shape"]:
        raise RuntimeError("NULL, or no axes")
    for step in interface["strides"] or ():
        if step % np.dtype(interface["typestr"]).itemsize:
            raise RuntimeError("strides")
    return int(interface["data"][0])


def pycuda(array: Any) -> int:
    """A kernel's argument: a falsy dict is passed over, else the pointer alone."""
    interface = array.__cuda_array_interface__
    if not interface:
        raise TypeError("invalid type on parameter")
    return int(interface["data"][0])


DOUBLES: dict[str, Callable[[Any], int]] = {
    function.__name__: function
    for function in (cupy, torch, jax, xgboost, cudf, dali, pylibraft, warp, pybind11_cai, nvcv, pycuda)
}
