"""Computes what the specifications prescribe for a strided array, without any code of this project.

Written from the two texts: the array interface (typestr, byte strides, `None` for C order, size 0
has pointer 0) and dlpack.h (element strides, non-NULL for ndim > 0, data NULL for size 0). The
element types are the rows of docs/mapping.md, so that a new type is tested without a change here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NATIVE = "<" if sys.byteorder == "little" else ">"

PAGE = next(folder / "docs/mapping.md" for folder in Path(__file__).parents if (folder / "docs/mapping.md").exists())
# A row of the table of element types: | `<f4` | 2 float | 32 | `float32` | ... |
ROW = re.compile(r"^\| (?:`\\?([^`]+)`|none) \| (\d+) \w+ \| (\d+) \| `(\w+)` \|", re.MULTILINE)
ROWS = [
    (typestr.replace("<", NATIVE), (name, int(code), int(bits)))
    for typestr, code, bits, name in ROW.findall(PAGE.read_text())
]

# typestr -> (name, DLPack code, bits). The codes: 0 int, 1 uint, 2 float, 5 complex, 6 bool.
DTYPES: dict[str, tuple[str, int, int]] = {typestr: row for typestr, row in ROWS if typestr}
# name -> (DLPack code, bits)
WITHOUT_TYPESTR: dict[str, tuple[int, int]] = {
    name: (code, bits) for typestr, (name, code, bits) in ROWS if not typestr
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
