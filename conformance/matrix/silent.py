"""What KvikIO, UCXX, cuda.compute and CuTe DSL read of an argument, on the simulated driver.

They ask for no stream. Of cuda.compute and CuTe DSL it is the reading alone: their kernels are not compiled. UCXX has
no transport for the memory of a device without one, and what KvikIO writes is in conformance/readers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np


class Argument(NamedTuple):
    """An argument, as a library sees it."""

    ptr: int
    shape: tuple[int, ...]
    #: In bytes; None for C order.
    strides: tuple[int, ...] | None
    typestr: str
    itemsize: int


def compute(view: Any) -> Argument:
    protocols = importlib.import_module("cuda.compute._utils.protocols")
    if not protocols.is_contiguous(view):
        raise ValueError("cuda.compute: not contiguous")
    interface = view.__cuda_array_interface__
    dtype = protocols.get_dtype(view)
    read = protocols.get_data_pointer(view), protocols.get_shape(view)
    return Argument(*read, interface["strides"], dtype.str, dtype.itemsize)


def array_of(module: str, view: Any) -> Argument:
    """What KvikIO and UCXX read, by the same class: the interface, or a buffer of what has none, whose types they do
    not look at. UCXX does not look whether elements lie side by side."""
    found = importlib.import_module(f"{module}._lib.arr").Array(view)
    interface = getattr(view, "__cuda_array_interface__", None)
    assert found.cuda == (interface is not None)
    if not (found.c_contiguous or found.f_contiguous):
        raise ValueError(f"{module}: not contiguous")
    if interface is None:
        return Argument(found.ptr, found.shape, found.strides, f"|V{found.itemsize}", found.itemsize)
    return Argument(found.ptr, found.shape, interface["strides"], interface["typestr"], found.itemsize)


def cute(tensor: Any, itemsize: int) -> Argument:
    """What CuTe DSL's `from_dlpack` returns; its types are not NumPy's, and told by their size."""
    strides = tuple(step * itemsize for step in tensor.stride)
    return Argument(tensor.data_ptr, tuple(tensor.shape), strides, f"|V{itemsize}", itemsize)


#: What their calls of the table of partners need beside the view, by distribution.
GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "cuda-cccl": lambda: {"algorithm": lambda view, out, stream: compute(view), "out": None, "s": 1},
    "kvikio-cu13": lambda: {"file": SimpleNamespace(write=lambda view: array_of("kvikio", view))},
    "ucxx-cu13": lambda: {"endpoint": SimpleNamespace(send=lambda view: array_of("ucxx", view))},
}
NAMES = (*GIVEN, "nvidia-cutlass-dsl")


def read_cute(tensor: Any) -> Argument:
    """What CuTe DSL's `from_dlpack` has made of a tensor whose items are told by its own type."""
    return cute(tensor, -(-tensor.element_type.width // 8))


def name_of(argument: Argument) -> str | None:
    """NumPy's name of the items; None for what has no type."""
    typestr = argument.typestr
    return np.dtype(typestr).name if typestr[1] in "biufc" and typestr[2:] != "1" else None
