"""A reference producer with the C Exchange API, whose functions are ctypes callbacks.

A callback of ctypes cannot set an exception for its caller: what these refuse they refuse with -1 alone.
"""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

import numpy as np

from cai_conformance import abi, exchange
from cai_conformance.judge.memory import Array, values
from cai_conformance.reference.producers import DlpackArray, dtype_of


def as_object(address: int) -> Any:
    """The object at an address."""
    return ctypes.cast(address, ctypes.py_object).value


class ExchangeArray(DlpackArray):
    """An array in host memory with the exchange table of its type."""

    table: ClassVar[Any]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.install()

    @classmethod
    def install(cls) -> None:
        """Makes the table of this class, of its own functions. It lives as long as the process."""
        functions = {
            "allocator": exchange.Allocator(cls.allocate),
            "from_object": exchange.FromObject(cls.from_object),
            "to_object": exchange.ToObject(cls.to_object),
            "borrow": exchange.Borrow(cls.borrow),
            "work_stream": exchange.WorkStream(cls.work_stream),
        }
        table = exchange.Table()
        table.version = abi.DLPackVersion(*cls.version)
        for name, function in functions.items():
            setattr(table, name, exchange.address(function))
        cls.edit(table)
        cls.table = (table, functions)
        setattr(cls, exchange.ATTRIBUTE, cls.attribute(table))

    @classmethod
    def edit(cls, table: Any) -> None:
        """Changes the table before it is shown."""

    @classmethod
    def attribute(cls, table: Any) -> Any:
        return exchange.capsule(table)

    # --- the functions ---

    @staticmethod
    def from_object(obj: int, out: Any) -> int:
        try:
            tensor = as_object(obj).managed(True)
        except BufferError:
            return -1
        out[0] = ctypes.addressof(tensor)
        return 0

    @staticmethod
    def borrow(obj: int, out: Any) -> int:
        found = as_object(obj)
        found.lent = found.extents(found.array)
        found.fill(out[0], found.array, *found.lent)
        return 0

    @staticmethod
    def to_object(tensor: int, out: Any) -> int:
        made = ExchangeArray.taken(tensor)
        abi.incref(made)
        out[0] = id(made)
        return 0

    @classmethod
    def taken(cls, tensor: int) -> Any:
        return ExchangeArray(Owning.of(tensor))

    @staticmethod
    def work_stream(device_type: int, device_id: int, out: Any) -> int:
        out[0] = None
        return 0

    @staticmethod
    def allocate(prototype: int, out: Any, context: Any, set_error: Any) -> int:
        asked = abi.DLTensor.from_address(prototype)
        if asked.device.device_type != abi.CPU:
            set_error(context, b"BufferError", b"memory of the host only")
            return -1
        shape = tuple((ctypes.c_int64 * asked.ndim).from_address(asked.shape)) if asked.ndim else ()
        array = np.zeros(shape, dtype_of(asked.dtype.code, asked.dtype.bits))
        out[0] = ctypes.addressof(DlpackArray(array).managed(True))
        return 0


class Owning(np.ndarray):
    """The memory of a tensor that was taken, as a NumPy array: the deleter is called at its end."""

    tensor: Any = None

    @classmethod
    def of(cls, address: int) -> Array:
        read = abi.read_at(address, versioned=True)
        dtype = dtype_of(read.dtype[0], read.dtype[1])
        on_host = read.device[0] == abi.CPU
        found = values(read.data + read.byte_offset, read.shape or (), _in_bytes(read, dtype), dtype, host=on_host)
        made = found.view(cls)
        made.tensor = read
        return made

    def __del__(self) -> None:
        if self.tensor is not None:
            abi.release(self.tensor)


def _in_bytes(read: abi.Read, dtype: np.dtype[Any]) -> tuple[int, ...] | None:
    return None if read.strides is None else tuple(stride * dtype.itemsize for stride in read.strides)


ExchangeArray.install()
