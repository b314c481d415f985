"""A hand-over: what was given, what arrived, whether the two are the same; and the table of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Values = NDArray[Any]


@dataclass(frozen=True)
class Array:
    """An array as a library describes it, in units that do not depend on the library."""

    pointer: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    byte_strides: tuple[int, ...]

    @classmethod
    def of(cls, pointer: int, dtype: DTypeLike, shape: Sequence[int], byte_strides: Sequence[int] | None) -> Array:
        """Strides of `None` are those of a C-contiguous array, as in both protocols."""
        kind, extents = np.dtype(dtype), tuple(shape)
        if byte_strides is None:
            byte_strides = [kind.itemsize * math.prod(extents[axis + 1 :]) for axis in range(len(extents))]
        return cls(int(pointer), kind, extents, tuple(byte_strides))

    @classmethod
    def of_elements(
        cls, pointer: int, dtype: DTypeLike, shape: Sequence[int], elem_strides: Sequence[int] | None
    ) -> Array:
        """Strides in elements, as DLPack counts them."""
        itemsize = np.dtype(dtype).itemsize
        return cls.of(pointer, dtype, shape, elem_strides and [stride * itemsize for stride in elem_strides])


@dataclass(frozen=True)
class HandOver:
    """One array on its way from a producer to a consumer."""

    route: str
    given: Array
    taken: Array
    values_given: Values
    values_taken: Values | None
    """What the consumer reads; `None` where it cannot."""
    stream_calls: list[str] | None
    """The driver calls that order or wait; `None` where nobody can see them."""
    microseconds: float

    def defects(self) -> list[str]:
        """Returns a line for each defect, none if the hand-over is right."""
        found = [
            f"{name} is {getattr(self.taken, name)}, not {getattr(self.given, name)}"
            for name in ("pointer", "dtype", "shape", "byte_strides")
            if getattr(self.taken, name) != getattr(self.given, name)
        ]
        if self.values_taken is None:
            found.append("the values cannot be read")
        elif not np.array_equal(self.values_given, self.values_taken):
            found.append(f"the values are\n{self.values_taken}\nand not\n{self.values_given}")
        return found

    def cells(self) -> list[str]:
        """The row of the table."""
        same = "equal" if self.given.pointer == self.taken.pointer else "DIFFERS"
        seen = "not observable" if self.stream_calls is None else "; ".join(self.stream_calls) or "none"
        return [
            self.route,
            f"{same} {self.taken.pointer:#x}",
            str(self.taken.dtype),
            str(self.taken.shape),
            str(self.taken.byte_strides),
            seen,
            f"{self.microseconds:.1f} us",
            "WRONG" if self.defects() else "ok",
        ]


HEAD = ["hand-over", "pointer", "dtype", "shape", "byte strides", "stream calls", "time", "verdict"]


def table(hand_overs: Sequence[HandOver]) -> str:
    """All of them, aligned."""
    rows = [HEAD, *(hand_over.cells() for hand_over in hand_overs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def clock(convert: Callable[[], object], settle: Callable[[], object], batches: int = 10, calls: int = 200) -> float:
    """Microseconds of one `convert()`: the mean of the best batch. `settle` empties the streams after each."""
    best = math.inf
    for _ in range(batches):
        start = time.perf_counter_ns()
        for _ in range(calls):
            convert()
        best = min(best, (time.perf_counter_ns() - start) / calls / 1000)
        settle()
    return best
