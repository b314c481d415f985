"""Reference producers: the CUDA Array Interface, and DLPack with the exchange table, in plain ctypes.

They are written for reading, not for speed. A check's mutant overrides one method.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any, ClassVar

import numpy as np

from cai_conformance import abi
from cai_conformance.cuda import driver
from cai_conformance.judge.memory import Array, span


class DeviceMemory:
    """The bytes that an array covers, copied to memory of a device, which is freed with this object."""

    def __init__(self, array: Array, device: int = 0) -> None:
        self.device = device
        start, end = span(array.shape, array.strides, array.itemsize)
        self.start = driver().allocate(end - start, device)
        driver().write(self.start, ctypes.string_at(array.ctypes.data + start, end - start), device)
        self.address = self.start - start
        """Of the element whose indices are all 0."""

    def __del__(self) -> None:
        if hasattr(self, "start"):
            driver().free(self.start, self.device)


@cache
def own_stream() -> int:
    """The stream on which the arrays of this producer are ready."""
    return driver().stream()


class CaiArray:
    """A copy of an array in device memory, with the same strides, as the CUDA Array Interface shows it."""

    def __init__(self, array: Array) -> None:
        if array.dtype.hasobject:
            raise TypeError("objects have no place in device memory")
        self.array = array
        self.memory: Any = self.memory_of(array)
        driver().make_wait(own_stream(), 1)  # the copy from the host runs in the legacy default stream
        self.stream: int | None = own_stream()

    def memory_of(self, array: Array) -> Any:
        return DeviceMemory(array)

    def interface(self) -> Any:
        """The dict, of version 3."""
        array = self.array
        return {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (self.memory.address if array.size else 0, not array.flags.writeable),
            "strides": None if array.flags.c_contiguous else array.strides,
            "descr": [("", array.dtype.str)],
            "mask": None,
            "stream": self.stream,
            "version": 3,
        }

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.interface()


#: Kept for ever, by mutants.
KEPT: list[Any] = []


def kept(value: Any) -> Any:
    """The value, which is never freed."""
    KEPT.append(value)
    return value


#: The type codes of DLPack for NumPy's kinds.
CODES = {"i": abi.INT, "u": abi.UINT, "f": abi.FLOAT, "c": abi.COMPLEX, "b": abi.BOOL}
KINDS = {code: kind for kind, code in CODES.items()}


def dtype_of(code: int, bits: int) -> np.dtype[Any]:
    """NumPy's type for a type of DLPack's with one lane."""
    return np.dtype(f"{KINDS[code]}{bits // 8}")


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Exported:
    """One managed tensor; kept in a table until its deleter is called."""

    alive: ClassVar[dict[int, Exported]] = {}
    lock = threading.Lock()

    def __init__(self, tensor: Any, keep: Any) -> None:
        self.tensor = tensor
        self.keep = keep
        with self.lock:
            self.alive[ctypes.addressof(tensor)] = self


def delete(address: int) -> None:
    try:
        table = Exported
    except NameError:
        return  # the interpreter ends, and this module has
    with table.lock:
        ended = table.alive.pop(address, None)
    del ended


def for_ever(function: Any) -> None:
    """Keeps a function of ctypes: tensors may end after the interpreter has ended its module."""
    abi.incref(function)


#: A prototype of ctypes takes the GIL, and gives back the exception that was set.
DELETER = _Deleter(abi.NOTHING if abi.ALONE else delete)
for_ever(DELETER)


class DlpackArray:
    """An array in host memory, without a copy, as DLPack shows it."""

    version = abi.NEWEST

    def __init__(self, array: Array) -> None:
        if array.dtype.kind not in CODES:
            raise TypeError(f"DLPack has no type for {array.dtype}")
        self.array = array

    # --- the Python protocol ---

    def __dlpack_device__(self) -> Any:
        return (abi.CPU, 0)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        self.check_stream(stream)
        self.check_device(dl_device)
        versioned = self.is_versioned(max_version)
        return self.capsule(self.managed(versioned, copied=self.is_copied(copy)), versioned)

    def check_stream(self, stream: Any) -> None:
        if stream is not None:
            raise ValueError(f"stream={stream!r}: memory of the host has no streams")

    def check_device(self, dl_device: Any) -> None:
        if dl_device is not None and tuple(map(int, dl_device)) != (abi.CPU, 0):
            raise BufferError(f"dl_device={dl_device!r}: the array is in host memory")

    def is_versioned(self, max_version: Any) -> bool:
        return max_version is not None and max_version[0] >= 1

    def is_copied(self, copy: Any) -> bool:
        return copy is True

    # --- the tensor ---

    def managed(self, versioned: bool, *, copied: bool = False) -> Any:
        """A managed tensor that owns a reference to the array, or to a copy of it."""
        array = self.array.copy() if copied else self.array
        if not array.dtype.isnative:
            raise BufferError(f"DLPack has no byte order, and {array.dtype.str} is not native")
        if not versioned and not array.flags.writeable:
            raise BufferError("a tensor before DLPack 1.0 cannot say that it is read-only")
        tensor: Any = (abi.DLManagedTensorVersioned if versioned else abi.DLManagedTensor)()
        if versioned:
            tensor.version = abi.DLPackVersion(*self.version)
            tensor.flags = self.flags(array, copied)
        shape, strides = self.extents(array)
        tensor.deleter = ctypes.cast(self.deleter(), ctypes.c_void_p)
        self.fill(tensor.dl_tensor, array, shape, strides)
        exported = Exported(tensor, (self.keep(array), shape, strides))
        return exported.tensor

    def keep(self, array: Array) -> Any:
        """Returns what must live until the deleter is called."""
        return array

    def deleter(self) -> Any:
        return DELETER

    def flags(self, array: Array, copied: bool) -> int:
        return (0 if array.flags.writeable else abi.READ_ONLY) | (abi.IS_COPIED if copied else 0)

    def extents(self, array: Array) -> tuple[Any, Any]:
        """The shape, and the strides in elements, as arrays of int64."""
        counts = [stride // array.itemsize for stride in array.strides]
        integers = ctypes.c_int64 * array.ndim
        return integers(*array.shape), integers(*counts)

    def fill(self, tensor: Any, array: Array, shape: Any, strides: Any) -> None:
        tensor.data = array.ctypes.data if array.size else None
        tensor.device = abi.DLDevice(*self.__dlpack_device__())
        tensor.ndim = array.ndim
        tensor.dtype = abi.DLDataType(CODES[array.dtype.kind], array.itemsize * 8, 1)
        tensor.shape = ctypes.addressof(shape) if array.ndim else None
        tensor.strides = ctypes.addressof(strides) if array.ndim else None

    def capsule(self, tensor: Any, versioned: bool) -> Any:
        return abi.new_capsule(ctypes.addressof(tensor), abi.VERSIONED if versioned else abi.LEGACY)


class DlpackDeviceArray(DlpackArray):
    """A copy of an array in device memory, as DLPack and the CUDA Array Interface show it: it is ready on a stream."""

    def __init__(self, array: Array) -> None:
        super().__init__(array)
        self.memory = DeviceMemory(array)
        driver().make_wait(own_stream(), 1)

    @property
    def __cuda_array_interface__(self) -> Any:
        shown = CaiArray.__new__(CaiArray)
        shown.array, shown.memory, shown.stream = self.array, self.memory, own_stream()
        return shown.interface()

    def __dlpack__(self, *, stream: Any = None, dl_device: Any = None, copy: Any = None, **keywords: Any) -> Any:
        if dl_device is not None and tuple(map(int, dl_device)) == (abi.CPU, 0):
            if copy is False:
                raise BufferError("copy=False: the host cannot read this memory")
            return DlpackArray(self.array).__dlpack__(stream=stream, copy=True, **keywords)
        capsule = super().__dlpack__(stream=stream, dl_device=dl_device, copy=copy, **keywords)
        self.order(stream)
        return capsule

    def order(self, stream: Any) -> None:
        """Makes the consumer's stream wait for its own."""
        if stream is None or (isinstance(stream, int) and stream >= 0):
            driver().make_wait(1 if stream is None else stream, own_stream())

    def __dlpack_device__(self) -> Any:
        return (abi.CUDA, 0)

    def check_stream(self, stream: Any) -> None:
        if stream is None:
            return
        if not isinstance(stream, int):
            raise TypeError(f"stream={stream!r}: an int, or None")
        if stream < -1 or stream == 0:
            raise ValueError(f"stream={stream}: -1, 1, 2 or the handle of a stream")

    def check_device(self, dl_device: Any) -> None:
        if dl_device is not None and tuple(map(int, dl_device)) != (abi.CUDA, 0):
            raise BufferError(f"dl_device={dl_device!r}: the array is in memory of device 0")

    def is_copied(self, copy: Any) -> bool:
        if copy is True:
            raise BufferError("copy=True: this producer makes no copies")
        return False

    def keep(self, array: Array) -> Any:
        return array, self.memory

    def fill(self, tensor: Any, array: Array, shape: Any, strides: Any) -> None:
        super().fill(tensor, array, shape, strides)
        tensor.data = self.memory.address if array.size else None
