"""A tensor that a producer of DLPack exported, taken out of its capsule."""

from __future__ import annotations

from typing import Any

from cai_conformance import abi
from cai_conformance.judge.check import NotRun, broken
from cai_conformance.judge.memory import Array, values
from cai_conformance.reference.producers import KINDS, dtype_of

#: The device types of memory that the host reads: 11 is ROCm's pinned memory.
HOST = {abi.CPU, abi.CUDA_HOST, 11, abi.CUDA_MANAGED}


class Export:
    """A tensor that was taken out of its capsule."""

    def __init__(self, capsule: Any) -> None:
        self.ended = True
        self.name = abi.name(capsule)
        if self.name not in (abi.LEGACY, abi.VERSIONED):
            broken(f"the capsule is named {self.name!r}")
        found = abi.consume(capsule)
        self.capsule = capsule
        self.read = found
        self.ended = False

    @property
    def versioned(self) -> bool:
        return self.read.versioned

    @property
    def flags(self) -> int:
        return self.read.flags or 0

    @property
    def address(self) -> int:
        return self.read.data + self.read.byte_offset

    def end(self) -> None:
        if not self.ended and self.read.deleter:
            self.ended = True
            abi.release(self.read)

    def __del__(self) -> None:
        self.end()

    def values(self) -> Array:
        read = self.read
        if read.device[0] not in HOST and read.device[0] != abi.CUDA:
            raise NotRun(f"memory of device type {read.device[0]} cannot be read here")
        code, bits, lanes = read.dtype
        if code not in KINDS or lanes != 1:
            raise NotRun(f"NumPy has no type for {read.dtype}")
        dtype = dtype_of(code, bits)
        shape = read.shape or ()
        strides = None if read.strides is None else [stride * dtype.itemsize for stride in read.strides]
        return values(self.address, shape, strides, dtype, host=read.device[0] in HOST)
