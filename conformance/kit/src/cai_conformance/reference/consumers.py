"""Reference consumers: they refuse what the specifications forbid, and read the rest where it lies."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import numpy as np

from cai_conformance import abi
from cai_conformance.cuda import driver
from cai_conformance.reference.producers import DELETER, KINDS, Exported

_TYPESTR = re.compile(r"[<>|=][biufcV]\d{1,4}")
_KEYS = ("shape", "typestr", "data", "version", "strides", "descr", "mask", "stream")
MISSING = object()
LARGEST = 2**63 - 1


class Refused(ValueError):
    """Raised by a reference consumer: the rule that was broken."""


class NoSuchDevice(Refused, BufferError):
    """Raised of memory that the reference consumer does not read."""


def is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_tuple(value: Any) -> bool:
    return isinstance(value, tuple | list)


def ints(value: Any) -> tuple[int, ...]:
    """The ints of a tuple; none if it is no tuple of ints."""
    return tuple(map(int, value)) if is_tuple(value) and all(map(is_int, value)) else ()


def itemsize(d: Any) -> int:
    text = d["typestr"]
    return int(text[2:]) if isinstance(text, str) and _TYPESTR.fullmatch(text) else 1


def pointer(d: Any) -> Any:
    return d["data"][0] if is_tuple(d["data"]) and d["data"] else None


#: The faults of a dict, by rule: each function is true of a dict that breaks it, whatever else is wrong with it.
CAI_RULES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "version-missing": lambda d: d["version"] is MISSING,
    "version-type": lambda d: d["version"] is not MISSING and not is_int(d["version"]),
    "version-range": lambda d: is_int(d["version"]) and d["version"] < 0,
    "shape-missing": lambda d: d["shape"] is MISSING,
    "shape-type": lambda d: d["shape"] is not MISSING and not is_tuple(d["shape"]),
    "shape-item-type": lambda d: is_tuple(d["shape"]) and not all(map(is_int, d["shape"])),
    "shape-extent": lambda d: any(extent < 0 for extent in ints(d["shape"])),
    "shape-range": lambda d: any(extent > LARGEST for extent in ints(d["shape"])),
    "count-overflow": lambda d: (
        all(0 < e <= LARGEST for e in ints(d["shape"])) and math.prod(ints(d["shape"])) > LARGEST
    ),
    "size-overflow": lambda d: 0 < math.prod(ints(d["shape"])) <= LARGEST < math.prod(ints(d["shape"])) * itemsize(d),
    "typestr-missing": lambda d: d["typestr"] is MISSING,
    "typestr-type": lambda d: d["typestr"] is not MISSING and not isinstance(d["typestr"], str),
    "typestr-syntax": lambda d: isinstance(d["typestr"], str) and not re.fullmatch(r"[<>|=][a-zA-Z]\d+", d["typestr"]),
    "typestr-size": lambda d: d["typestr"] in ("<f3", "<f99999999999", "|b8", "<i0"),
    "typestr-object": lambda d: d["typestr"] == "|O8",
    "typestr-kind": lambda d: d["typestr"] == "<q8",
    "data-missing": lambda d: d["data"] is MISSING,
    "data-type": lambda d: d["data"] is not MISSING and not is_tuple(d["data"]),
    "data-length": lambda d: is_tuple(d["data"]) and len(d["data"]) != 2,
    "data-pointer-type": lambda d: pointer(d) is not None and not is_int(pointer(d)),
    "data-pointer-none": lambda d: is_tuple(d["data"]) and bool(d["data"]) and pointer(d) is None,
    "data-pointer-range": lambda d: is_int(pointer(d)) and not 0 <= pointer(d) < 2**64,
    "data-pointer-null": lambda d: is_int(pointer(d)) and pointer(d) == 0 and 0 not in ints(d["shape"]),
    "pointer-unknown": lambda d: is_int(pointer(d)) and 0 < pointer(d) < 4096 and 0 not in ints(d["shape"]),
    "strides-type": lambda d: d["strides"] is not None and not is_tuple(d["strides"]),
    "strides-item-type": lambda d: is_tuple(d["strides"]) and not all(map(is_int, d["strides"])),
    "strides-length": lambda d: (
        is_tuple(d["strides"]) and is_tuple(d["shape"]) and len(d["strides"]) != len(d["shape"])
    ),
    "strides-range": lambda d: any(not -LARGEST <= stride <= LARGEST for stride in ints(d["strides"])),
    "span-overflow": lambda d: any(LARGEST >= stride > 2**60 for stride in ints(d["strides"])),
    "mask-type": lambda d: d["mask"] is not None and not hasattr(d["mask"], "__cuda_array_interface__"),
    "mask-present": lambda d: hasattr(d["mask"], "__cuda_array_interface__"),
    "stream-type": lambda d: d["stream"] is not None and not is_int(d["stream"]),
    "stream-zero": lambda d: is_int(d["stream"]) and d["stream"] == 0,
    "stream-range": lambda d: is_int(d["stream"]) and not 0 <= d["stream"] < 2**64,
    "descr-type": lambda d: d["descr"] is not None and not isinstance(d["descr"], list),
    "descr-size": lambda d: isinstance(d["descr"], list) and np.dtype(d["descr"]).itemsize != itemsize(d),
}


class TakenCai:
    """The array of the reference consumer: shows what it took."""

    def __init__(self, owner: Any, interface: dict[str, Any]) -> None:
        self.owner = owner
        self.interface = interface

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.interface


class CaiConsumer:
    """Takes an array by the CUDA Array Interface."""

    rules = CAI_RULES

    def __call__(self, obj: Any) -> Any:
        interface = self.attribute(obj)
        whole = {key: interface.get(key, MISSING) for key in _KEYS}
        for key in ("strides", "descr", "mask", "stream"):
            whole[key] = None if whole[key] is MISSING else whole[key]
        for rule, breaks in self.rules.items():
            if breaks(whole):
                raise Refused(rule)
        self.order(whole)
        taken = {key: value for key, value in whole.items() if value is not MISSING}
        return TakenCai(self.owner(obj), self.seen(taken))

    def attribute(self, obj: Any) -> Any:
        interface = obj.__cuda_array_interface__
        if not isinstance(interface, dict):
            raise Refused("cai-type")
        return interface

    def order(self, whole: dict[str, Any]) -> None:
        """Makes the host wait for the stream."""
        if whole["stream"]:
            driver().wait(int(whole["stream"]))

    def owner(self, obj: Any) -> Any:
        """Returns what must live as long as the array."""
        return obj

    def seen(self, taken: dict[str, Any]) -> dict[str, Any]:
        return {**taken, "stream": None}


@cache
def work_stream(device: int) -> int:
    """The stream in which the reference consumer works with memory of a device."""
    return driver().stream(device)


class DlpackConsumer:
    """Takes an array by DLPack's Python protocol."""

    newest = abi.NEWEST

    def __call__(self, obj: Any, *, device: Any = None, copy: bool | None = None) -> Any:
        announced = obj.__dlpack_device__()
        self.check_device(announced)
        return self.own(self.ask(obj, **self.wanting(announced, device, copy)))

    def wanting(self, announced: Any, device: Any, copy: bool | None) -> dict[str, Any]:
        """The keywords by which a stream, the host or a copy is asked for."""
        asked: dict[str, Any] = {} if copy is None else {"copy": copy}
        if device == TakenTensor.device:
            return {**asked, "dl_device": (abi.CPU, 0)}
        return {**asked, **self.naming(announced)}

    def naming(self, device: Any) -> dict[str, Any]:
        """The keyword that names the stream, for memory that has streams."""
        return {"stream": work_stream(device[1])} if device[0] == abi.CUDA else {}

    def check_device(self, device: Any) -> None:
        if not isinstance(device, tuple) or len(device) != 2 or not all(is_int(item) for item in device):
            raise Refused("device-pair")

    def ask(self, obj: Any, **stream: Any) -> Any:
        """Asks with `max_version`, and without it a producer that does not know that."""
        try:
            return obj.__dlpack__(max_version=self.newest, **stream)
        except TypeError:
            return obj.__dlpack__(**stream)

    rules: ClassVar[dict[str, Callable[[Any], bool]]] = {}

    def own(self, capsule: Any) -> Any:
        if type(capsule).__name__ != "PyCapsule":
            raise Refused("capsule-type")
        name = abi.name(capsule)
        if name not in self.names():
            raise Refused("capsule-name")
        read = self.look(capsule)
        for rule, breaks in self.rules.items():
            if breaks(read):
                raise NoSuchDevice(rule) if rule == "device-unknown" else Refused(rule)
        self.rename(capsule, name == abi.VERSIONED)
        return self.taken(read)

    def names(self) -> tuple[bytes, ...]:
        return (abi.LEGACY, abi.VERSIONED)

    def look(self, capsule: Any) -> abi.Read:
        """Reads the struct; of one of another major version the version alone."""
        address = abi.pointer(capsule)
        versioned = abi.name(capsule) in (abi.VERSIONED, abi.USED_VERSIONED)
        if versioned:
            major = abi.DLPackVersion.from_address(address).major
            if major != 1 and "dlpack-major" in self.rules:
                raise Refused("dlpack-major")
        return abi.peek(address, versioned=versioned)

    def rename(self, capsule: Any, versioned: bool) -> None:
        abi.rename(capsule, abi.USED_VERSIONED if versioned else abi.USED_LEGACY)

    def taken(self, read: abi.Read) -> Any:
        return TakenTensor(read)


class TakenTensor:
    """The array of the reference consumer; its end calls the deleter."""

    #: What the reference consumer calls the host.
    device = "cpu"

    def __init__(self, read: abi.Read) -> None:
        self.read = read
        self.ended = False

    def shown(self) -> abi.Read:
        """Returns the fields that it believes."""
        return self.read

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.read.device[0] == abi.CUDA:
            raise AttributeError("memory of a device")
        return self.interface()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.read.device[0] != abi.CUDA:
            raise AttributeError("memory of the host")
        return {**self.interface(), "stream": self.stream}

    @property
    def stream(self) -> int | None:
        """The stream in which it works."""
        return work_stream(self.read.device[1])

    def interface(self) -> dict[str, Any]:
        read = self.shown()
        code, bits, _ = read.dtype
        size = bits // 8
        strides = None if read.strides is None else tuple(stride * size for stride in read.strides)
        read_only = bool((read.flags or 0) & abi.READ_ONLY)
        return {
            "shape": read.shape or (),
            "typestr": f"{'|' if size == 1 else '<'}{KINDS[code]}{size}",
            # NumPy before 2.4 takes an array without elements whose pointer is NULL for something else.
            "data": (read.data + read.byte_offset or read.address, read_only),
            "strides": strides,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.shown().device

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> Any:
        """Passes the tensor on, which this object keeps."""
        self.order(stream)
        read, versioned = self.read, max_version is not None and max_version[0] >= 1
        kinds: Any = abi.DLManagedTensor, abi.DLManagedTensorVersioned
        taken, tensor = kinds[read.versioned].from_address(read.address), kinds[versioned]()
        tensor.dl_tensor = taken.dl_tensor
        tensor.deleter = ctypes.cast(DELETER, ctypes.c_void_p)
        if versioned:
            tensor.version = abi.DLPackVersion(*abi.NEWEST)
            tensor.flags = read.flags or 0
        Exported(tensor, self)
        return abi.new_capsule(ctypes.addressof(tensor), abi.VERSIONED if versioned else abi.LEGACY)

    def order(self, stream: int | None) -> None:
        """Makes the next consumer's stream wait for its own."""
        if self.read.device[0] == abi.CUDA and self.stream is not None and stream != -1:
            driver().make_wait(1 if stream is None else stream, self.stream)

    def end(self) -> None:
        if not self.ended and self.read.deleter:
            self.ended = True
            abi.release(self.read)

    def __del__(self) -> None:
        self.end()


def _extents(read: abi.Read) -> tuple[int, ...]:
    return read.shape or ()


_BITS = {
    abi.INT: (8, 16, 32, 64),
    abi.UINT: (8, 16, 32, 64),
    abi.FLOAT: (16, 32, 64),
    abi.COMPLEX: (64, 128),
    abi.BOOL: (8,),
}

_DEVICES = (abi.CPU, abi.CUDA, abi.CUDA_HOST, abi.ROCM, abi.CUDA_MANAGED)

#: The faults of a tensor, by rule.
DlpackConsumer.rules = {
    "dlpack-major": lambda read: False,  # asked before anything else is read
    "ndim-negative": lambda read: read.ndim < 0,
    "ndim-limit": lambda read: read.ndim > 64,
    "shape-null": lambda read: read.ndim > 0 and read.shape is None,
    "shape-extent": lambda read: any(extent < 0 for extent in _extents(read)),
    "count-overflow": lambda read: min(_extents(read), default=1) > 0 and math.prod(_extents(read)) > LARGEST,
    "size-overflow": lambda read: (
        0 < math.prod(_extents(read)) <= LARGEST < math.prod(_extents(read)) * read.dtype[1] // 8
    ),
    "data-pointer-null": lambda read: not read.data and read.ndim >= 0 and 0 not in _extents(read),
    "byte-offset": lambda read: read.byte_offset > LARGEST,
    "dtype-lanes": lambda read: read.dtype[2] != 1,
    "dtype-code": lambda read: read.dtype[0] > abi.LARGEST_CODE,
    "dtype-opaque": lambda read: read.dtype[0] == abi.OPAQUE,
    "dtype-bits": lambda read: (
        read.dtype[0] in (abi.INT, abi.UINT, abi.FLOAT, abi.COMPLEX) and read.dtype[1] not in _BITS[read.dtype[0]]
    ),
    "dtype-bool": lambda read: read.dtype[0] == abi.BOOL and read.dtype[1] != 8,
    "dtype-sub-byte": lambda read: read.dtype[0] in (15, 16, 17) and read.dtype[1] not in (4, 6),
    "span-overflow": lambda read: any(abs(stride) > 2**60 for stride in read.strides or ()),
    "device-unknown": lambda read: read.device[0] not in _DEVICES,
}


#: The references by names, which a program can import.
take_cai, take_dlpack = CaiConsumer(), DlpackConsumer()
