"""Arrays to hand to a consumer, by what is odd about them: the programs of a report use these two functions.

from cai_conformance.offers import cai, tensor
take(cai(shape=(-1,)))
"""

from __future__ import annotations

import ctypes
import enum
from functools import cache
from typing import Any

import numpy as np

from cai_conformance import abi
from cai_conformance.cuda import driver
from cai_conformance.reference.producers import CODES, DeviceMemory, Exported, delete, for_ever


def _aligned(array: Any) -> Any:
    """A copy at a multiple of 256 bytes, as DLPack asks: some consumers copy what is aligned less."""
    room = np.zeros(array.nbytes + 256, np.uint8)
    start = -room.ctypes.data % 256
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


#: The array that is offered unless another one is named.
USUAL = _aligned(np.arange(6, dtype=np.float32).reshape(2, 3))


@cache
def a_stream() -> int:
    """A stream that exists as long as the process."""
    return driver().stream()


class Cai:
    """Shows a dict, and counts how often it is read."""

    def __init__(self, array: Any, changes: dict[str, Any]) -> None:
        self.memory = DeviceMemory(array)
        driver().synchronize()  # by `stream=None` the elements are there
        self.reads = 0
        inside = changes.pop("inside", 0)
        self.array = array[inside:] if inside else array
        address = self.memory.address + inside * array.itemsize
        self.address = address
        array = self.array
        whole: dict[str, Any] = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (address if array.size else 0, not array.flags.writeable),
            "strides": None if array.flags.c_contiguous else array.strides,
            "stream": None,
            "version": 3,
        }
        for key, value in changes.items():
            whole[key] = value(whole[key]) if callable(value) else value
        self.interface: Any = {key: value for key, value in whole.items() if value is not ...}

    @property
    def __cuda_array_interface__(self) -> Any:
        self.reads += 1
        return self.interface


def cai(array: Any = USUAL, /, **changes: Any) -> Cai:
    """An array in device memory, of version 3, with entries changed: to a value, or by a function; `...` leaves it out.

    With `inside` the pointer is that of a later element, and the array begins there.
    """
    return Cai(array, changes)


class Showing:
    """Has `__cuda_array_interface__` as it is given, or raises it if it is an exception."""

    def __init__(self, attribute: Any) -> None:
        self.attribute = attribute

    @property
    def __cuda_array_interface__(self) -> Any:
        if isinstance(self.attribute, Exception):
            raise self.attribute
        return self.attribute


class Tensor:
    """Exports one tensor by `__dlpack__`. Counts the calls and the deleter's."""

    def __init__(self, array: Any, **changes: Any) -> None:
        self.array = array
        self.address: int = array.ctypes.data
        self.calls: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.deleted = 0
        self.capsules: list[Any] = []
        self.name: bytes | None = changes.pop("name", None)
        self.device: Any = changes.pop("device", (abi.CPU, 0))
        self.announced: Any = changes.pop("announced", self.device)
        self.raises: Exception | None = changes.pop("raises", None)
        self.older: bool = changes.pop("older", False)
        self.keywords: tuple[str, ...] = changes.pop("keywords", ("stream", "max_version", "dl_device", "copy"))
        self.used: bool = changes.pop("used", False)
        self.once: bool = changes.pop("once", False)
        self.hosted: bool = changes.pop("hosted", False)
        self.changes = changes

    def __dlpack_device__(self) -> Any:
        self.asked.append("__dlpack_device__")
        return self.announced

    def __dlpack__(self, **keywords: Any) -> Any:
        self.asked.append("__dlpack__")
        self.calls.append(keywords)
        unknown = set(keywords) - set(self.keywords)
        if unknown:
            raise TypeError(f"__dlpack__() got an unexpected keyword argument '{min(unknown)}'")
        if self.raises is not None:
            raise self.raises
        asked = keywords.get("max_version")
        versioned = not self.older and asked is not None and asked[0] >= 1
        if self.once and self.capsules:
            return self.capsules[0]
        tensor = self.chosen(keywords).managed(versioned)
        usual = abi.VERSIONED if versioned else abi.LEGACY
        # Without a destructor: one of Python's, which a consumer runs that drops the capsule because of an error, would
        # lose that error.
        name = usual if self.name is None else self.name
        capsule = abi.new_capsule(ctypes.addressof(tensor), name, destructor=False)
        if self.used:
            abi.rename(capsule, abi.USED_VERSIONED if versioned else abi.USED_LEGACY)
        if self.once:
            self.capsules.append(capsule)
        return capsule

    def chosen(self, keywords: dict[str, Any]) -> Tensor:
        """This array, or a copy if one is asked for. Only what is `hosted` goes to the host by a copy."""
        device, copy = keywords.get("dl_device"), keywords.get("copy")
        to_host = self.hosted and device is not None and tuple(map(int, device)) == (abi.CPU, 0)
        if to_host and copy is False:
            raise BufferError("copy=False: the host cannot read this memory")
        if not to_host and (copy is not True or self.device[0] != abi.CPU):
            return self
        flags = self.changes.get("flags", 0) | abi.IS_COPIED
        self.copied = Tensor(_aligned(self.array), **{**self.changes, "flags": flags})
        return self.copied

    def managed(self, versioned: bool) -> Any:
        """A managed tensor with the changes."""
        array, given = self.array, self.changes
        if not versioned and (given.get("flags", 0) & abi.READ_ONLY or not array.flags.writeable):
            raise BufferError("a tensor before DLPack 1.0 cannot say that it is read-only")
        tensor: Any = (abi.DLManagedTensorVersioned if versioned else abi.DLManagedTensor)()
        if versioned:
            tensor.version = abi.DLPackVersion(*given.get("version", abi.NEWEST))
            tensor.flags = given.get("flags", 0 if array.flags.writeable else abi.READ_ONLY)
        shape = given.get("shape", array.shape)
        strides = given.get("strides", tuple(stride // array.itemsize for stride in array.strides))
        c_shape = None if shape is None else (ctypes.c_int64 * len(shape))(*shape)
        c_strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        inner = tensor.dl_tensor
        inner.byte_offset = given.get("byte_offset", 0)
        data = given.get("data", array.ctypes.data if array.size else 0)
        inner.data = data(inner.byte_offset) if callable(data) else data
        inner.device = abi.DLDevice(*self.device)
        inner.ndim = given.get("ndim", len(shape or ()))
        inner.dtype = abi.DLDataType(*given.get("dtype", dtype_of(array.dtype)))
        inner.shape = ctypes.addressof(c_shape) if c_shape is not None and len(c_shape) else None
        inner.strides = ctypes.addressof(c_strides) if c_strides is not None and len(c_strides) else None
        tensor.manager_ctx = given.get("context", ctypes.addressof(tensor))
        deleter = given.get("deleter", ...)
        tensor.deleter = ctypes.cast(_DELETE, ctypes.c_void_p) if deleter is ... else deleter
        CALLED.pop(ctypes.addressof(tensor), None)
        Exported(tensor, (self, array, c_shape, c_strides))
        return tensor


class DeviceTensor(Tensor):
    """A copy of an array in memory of a CUDA device, which is ready on `a_stream()`."""

    def __init__(self, array: Any, **changes: Any) -> None:
        self.number: int = changes.pop("number", 0)
        self.memory = DeviceMemory(array, self.number)
        driver().synchronize(self.number)
        address = self.memory.address
        usual = {"device": (abi.CUDA, self.number), "data": address if array.size else 0}
        super().__init__(array, **{**usual, **changes})
        self.address = address

    def chosen(self, keywords: dict[str, Any]) -> Tensor:
        device = keywords.get("dl_device")
        if keywords.get("copy") is not True or (device is not None and tuple(map(int, device)) != self.device):
            return super().chosen(keywords)
        flags = self.changes.get("flags", 0) | abi.IS_COPIED
        changes = {name: value for name, value in self.changes.items() if name not in ("data", "flags")}
        self.copied = DeviceTensor(self.array, number=self.number, flags=flags, **changes)
        return self.copied

    def __dlpack__(self, **keywords: Any) -> Any:
        capsule = super().__dlpack__(**keywords)
        self.order(keywords.get("stream"))
        return capsule

    def order(self, stream: Any) -> None:
        """Makes the consumer's stream wait for `a_stream()`: the legacy default stream if it names none. If what it
        names is no stream, the host waits, so that this is all that is wrong."""
        stream = 1 if stream is None else stream
        if stream == -1:
            return
        if self.number == 0 and isinstance(stream, int) and stream > 0 and self.exists(stream):
            driver().make_wait(stream, a_stream())
        else:
            driver().wait(a_stream())

    def exists(self, stream: int) -> bool:
        """Whether it is safe to use."""
        return stream < 3 or not driver().simulated or driver().knows_stream(stream)


def dtype_of(dtype: Any) -> tuple[int, int, int]:
    """DLPack's type code, bits and lanes of a NumPy dtype."""
    return CODES[dtype.kind], dtype.itemsize * 8, 1


def _delete(address: int) -> None:
    # If an exception is set, nothing after this line works: ctypes calls functions of Python as if there were none.
    try:
        CALLED[address] = True
    except NameError:
        return  # the interpreter ends, and this module has
    found = Exported.alive.get(address)
    if found is None:
        TWICE.append(address)
        return
    found.keep[0].deleted += 1
    delete(address)


_DELETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(abi.NOTHING if abi.ALONE else _delete)
for_ever(_DELETE)

#: Addresses of tensors whose deleter was called, by whomever and with whatever exception set.
CALLED: dict[int, bool] = {}

#: Tensors whose deleter was called again.
TWICE: list[int] = []


def offsets(nbytes: int, array: Any = USUAL) -> int:
    """An address this many bytes before the elements of an array."""
    return int(array.ctypes.data) - nbytes


class Type(enum.IntEnum):
    """A device type as some producers return it."""

    CPU = 1


class NoCapsule:
    """Returns None where a capsule is expected."""

    def __dlpack_device__(self) -> Any:
        return (abi.CPU, 0)

    def __dlpack__(self, **keywords: Any) -> Any:
        return None


def tensor(array: Any = USUAL, /, **changes: Any) -> Tensor:
    """An array in memory of the host, as DLPack, with something changed.

    Of the struct: shape, strides, dtype, ndim, data, byte_offset, device, version, flags; context and deleter, which
    None makes NULL, and which may be the address of a function (`abi.NOTHING`).
    Of the protocol: name of the capsule, announced device, older (no versioned tensor), keywords that are known, used,
    once (one capsule for all calls), raises, hosted (the host gets a copy, if `dl_device` asks for one).
    """
    return Tensor(array, **changes)


def device_tensor(array: Any = USUAL, /, **changes: Any) -> DeviceTensor:
    """A copy of an array in memory of a CUDA device, as DLPack, with something changed as by `tensor`; number of the
    device. It makes the stream that it is asked for wait for `a_stream()`."""
    return DeviceTensor(array, **changes)
