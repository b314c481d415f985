"""The version and the flags of a tensor."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from cai_conformance import abi
from cai_conformance.checks.dlpack_producer.base import DEVIATION, RECOMMENDATION, Tensors, check, overriding
from cai_conformance.judge import sources as say
from cai_conformance.judge.check import NotRun, broken, demand
from cai_conformance.judge.exported import Export
from cai_conformance.judge.memory import Array, span
from cai_conformance.reference.producers import DlpackArray, kept


@check(
    "dlpack-major",
    "the tensor's major version is 1",
    say.DL_VERSION,
    after=("capsule-name-known",),
    mutant=overriding(version=(2, 0)),
)
def _(t: Tensors) -> None:
    found = t.versioned().read.version
    demand(found and found[0] == 1, f"version={found}")


@check(
    "dlpack-minor",
    "the tensor's minor version exists: 0 to 3",
    say.DL_VERSION,
    after=("dlpack-major",),
    severity=DEVIATION,
    mutant=overriding(version=(1, 77)),
)
def _(t: Tensors) -> None:
    found = t.versioned().read.version
    demand(found and found[1] <= abi.NEWEST[1], f"version={found}")


@check(
    "flags-unknown",
    "no flag is set that has no meaning",
    say.DL_FLAGS,
    after=("capsule-name-known",),
    mutant=overriding(flags=lambda self, array, copied: DlpackArray.flags(self, array, copied) | 256),
)
def _(t: Tensors) -> None:
    found = t.versioned().flags
    demand(found & ~7 == 0, f"flags={found:#b}")


@check(
    "flags-padded",
    "the flag for padded items is set for types of less than a byte only",
    say.DL_FLAGS,
    after=("capsule-name-known",),
    severity=DEVIATION,
    mutant=overriding(flags=lambda self, array, copied: DlpackArray.flags(self, array, copied) | 4),
)
def _(t: Tensors) -> None:
    found = t.versioned()
    demand(not found.flags & abi.SUBBYTE_PADDED, f"flags={found.flags:#b} with items of {found.read.dtype[1]} bits")


@check(
    "read-only-flag",
    "an array that must not be written is flagged as read-only",
    say.DL_READ_ONLY,
    after=("capsule-name-known",),
    samples=("read-only",),
    mutant=overriding(flags=lambda self, array, copied: abi.IS_COPIED if copied else 0),
)
def _(t: Tensors) -> None:
    found = t.versioned()
    if found.address != t.produced.given.ctypes.data:
        raise NotRun("the producer made a copy, which may be written")
    demand(found.flags & abi.READ_ONLY, f"flags={found.flags:#b}")


@check(
    "writable-flag",
    "an array that may be written is not flagged as read-only",
    say.DL_READ_ONLY,
    after=("capsule-name-known",),
    severity=RECOMMENDATION,
    mutant=overriding(flags=lambda self, array, copied: abi.READ_ONLY | (abi.IS_COPIED if copied else 0)),
)
def _(t: Tensors) -> None:
    found = t.versioned()
    demand(not found.flags & abi.READ_ONLY, f"flags={found.flags:#b}")


@check(
    "read-only-legacy",
    "an array that must not be written is not exported in the older tensor, which cannot say so",
    say.AA_BUFFER_ERROR,
    after=("capsule-name-known",),
    samples=("read-only",),
    severity=DEVIATION,
    mutant=overriding(managed=lambda self, versioned, copied=False: unsafely(self, versioned, copied)),
)
def _(t: Tensors) -> None:
    try:
        found = Export(t.ask())
    except BufferError:
        return
    if found.address != t.produced.given.ctypes.data:
        raise NotRun("the producer made a copy, which may be written")
    broken("it was exported: a consumer will write to it")


def unsafely(self: Any, versioned: bool, copied: bool) -> Any:
    if versioned:
        return DlpackArray.managed(self, versioned, copied=copied)
    return DlpackArray(as_writable(self.array)).managed(versioned, copied=copied)


def as_writable(array: Array) -> Array:
    """The same memory as an array that may be written."""
    start, end = span(array.shape, array.strides, array.itemsize)
    memory = (ctypes.c_char * max(end - start, 1)).from_address(array.ctypes.data + start)
    kept(array)
    return np.ndarray(
        array.shape, array.dtype, buffer=memoryview(memory).cast("B"), offset=-start, strides=array.strides
    )


@check(
    "copied-unasked",
    "the flag for a copy is not set if the memory is the array's",
    say.DL_COPIED,
    after=("capsule-name-known",),
    mutant=overriding(flags=lambda self, array, copied: DlpackArray.flags(self, array, True)),
)
def _(t: Tensors) -> None:
    first, second = t.versioned(), t.versioned()
    if first.address != second.address:
        raise NotRun("each tensor has memory of its own")
    demand(not first.flags & abi.IS_COPIED, f"flags={first.flags:#b}, and two tensors at {first.address:#x}")
