"""Computes what the specifications prescribe for a strided array, without any code of this project.

Written from the two texts: the array interface (typestr, byte strides, `None` for C order, size 0
has pointer 0) and dlpack.h (element strides, non-NULL for ndim > 0, data NULL for size 0).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

NATIVE = "<" if sys.byteorder == "little" else ">"

# typestr -> (name, DLPack code, bits). The codes: 0 int, 1 uint, 2 float, 5 complex, 6 bool.
DTYPES: dict[str, tuple[str, int, int]] = {
    "|b1": ("bool", 6, 8),
    "|i1": ("int8", 0, 8),
    NATIVE + "i2": ("int16", 0, 16),
    NATIVE + "i4": ("int32", 0, 32),
    NATIVE + "i8": ("int64", 0, 64),
    "|u1": ("uint8", 1, 8),
    NATIVE + "u2": ("uint16", 1, 16),
    NATIVE + "u4": ("uint32", 1, 32),
    NATIVE + "u8": ("uint64", 1, 64),
    NATIVE + "f2": ("float16", 2, 16),
    NATIVE + "f4": ("float32", 2, 32),
    NATIVE + "f8": ("float64", 2, 64),
    NATIVE + "c8": ("complex64", 5, 64),
    NATIVE + "c16": ("complex128", 5, 128),
}


@dataclass(frozen=True)
class Expected:
    """Holds either the rule of a refusal, or the layout that both protocols must have."""

    refused: str | None
    size: int
    byte_strides: tuple[int, ...]
    elem_strides: tuple[int, ...]
    # The axes whose stride means something: all but those of extent 1, and none at size 0.
    told: tuple[int, ...]
    c_contiguous: bool


def row_major(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Byte strides of the C order: the last axis is the fastest."""
    strides = [0] * len(shape)
    step = itemsize
    for axis in range(len(shape) - 1, -1, -1):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def expect(shape: Sequence[int], byte_strides: Sequence[int] | None, itemsize: int) -> Expected:
    """Returns what both protocols must have for this array."""
    size = 1
    for extent in shape:
        size *= extent
    told = tuple(axis for axis, extent in enumerate(shape) if extent > 1) if size else ()
    compact = row_major(shape, itemsize)
    given = compact if byte_strides is None else tuple(byte_strides)
    odd = [axis for axis in told if given[axis] % itemsize]
    return Expected(
        refused="strides-multiple" if odd else None,
        size=size,
        byte_strides=given,
        elem_strides=tuple(each // itemsize for each in given),
        told=told,
        c_contiguous=all(given[axis] == compact[axis] for axis in told),
    )
