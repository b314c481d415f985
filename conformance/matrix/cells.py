"""Lists the outcomes of one hand-over, and its dtypes and layouts."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

NUMPY = [
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip
# Not NumPy's own: arrays of these come from ml_dtypes.
EXTRA = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]
DTYPES = NUMPY + EXTRA

LAYOUTS = ["vector", "rows", "columns", "strided", "window", "backwards", "broadcast", "scalar", "empty", "read-only"]

Array = np.ndarray  # of any dtype and shape

OK, COPIED, REFUSED, FAILED, NO_SUCH = "OK", "copied", "refused", "failed", "not made"


@dataclass(frozen=True)
class Cell:
    """One hand-over: what came of it, and in whose words."""

    outcome: str
    reason: str = ""


class NotMade(Exception):
    """The producer has no array of this dtype or layout: there is nothing to hand over."""


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """NumPy's dtype, or that of ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name) if name in EXTRA else name)


def sample(dtype: str, layout: str) -> Array[tuple[int, ...], np.dtype[np.generic]]:
    """A host array of this dtype and layout, with values that differ where the dtype allows it."""
    values = aligned((np.arange(12) % 2 if dtype == "bool" else np.arange(12)).astype(numpy_dtype(dtype)))
    table = values.reshape(3, 4)
    constant = aligned(values)
    constant.flags.writeable = False
    return {
        "vector": values,
        "rows": table,
        "columns": aligned(values).reshape(4, 3).T,
        "strided": table[::2, ::2],
        "window": table[1:, 1:3],
        "backwards": values[::-1],
        "broadcast": repeated(values),
        "scalar": values[5:6].reshape(()),
        "empty": table[:0],
        "read-only": constant,
    }[layout]


def aligned(values: Array[tuple[int, ...], np.dtype[np.generic]]) -> Array[tuple[int, ...], np.dtype[np.generic]]:
    """Copies the values to a multiple of 64 bytes: JAX copies arrays with less alignment."""
    room = np.zeros(values.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + values.nbytes].view(values.dtype)
    copy[...] = values
    return copy


def repeated(values: Array[tuple[int, ...], np.dtype[np.generic]]) -> Array[tuple[int, ...], np.dtype[np.generic]]:
    """Returns one row three times, writable. It is made of bytes, as `as_strided` refuses some dtypes of ml_dtypes."""
    plain = values.view(f"V{values.itemsize}")
    return np.lib.stride_tricks.as_strided(plain, (3, 4), (0, values.itemsize)).view(values.dtype)


def raw(array: Array[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
    """The elements in C order, bit by bit."""
    return array.tobytes()


def in_memory_order(array: Array[tuple[int, ...], np.dtype[np.generic]], byte_strides: tuple[int, ...] | None) -> bytes:
    """The elements as they lie in memory of these strides, for consumers that see no axes.

    Some libraries lay a sample out anew, in C order.
    """
    is_by_columns, step = byte_strides is not None, array.itemsize
    for extent, stride in zip(array.shape, byte_strides or (), strict=False):
        is_by_columns &= extent == 1 or stride == step
        step *= extent
    return array.tobytes("F" if is_by_columns else "C")
