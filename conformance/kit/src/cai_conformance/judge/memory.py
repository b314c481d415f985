"""Reads elements where a description says that they are, in host memory or through the driver."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from cai_conformance.cuda import driver

Array = np.ndarray[Any, Any]


def span(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """The bytes that an array covers, from its first element on: start (0 or less) and end. Strides are in bytes."""
    if 0 in shape:
        return 0, 0
    steps = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + itemsize


def compact(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """The strides of C order, in bytes."""
    strides: list[int] = []
    step = itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def values(
    address: int,
    shape: Sequence[int],
    strides: Sequence[int] | None,
    dtype: np.dtype[Any],
    *,
    host: bool,
    after: int | None = None,
) -> Array:
    """A copy of the elements. `strides` are in bytes; None stands for C order.

    Memory of a device is read once all work of the context is done, or that of the stream `after` alone.
    """
    shape = tuple(map(int, shape))
    steps = compact(shape, dtype.itemsize) if strides is None else tuple(map(int, strides))
    start, end = span(shape, steps, dtype.itemsize)
    if start == end:
        return np.empty(shape, dtype)
    if host:
        data = ctypes.string_at(address + start, end - start)
    elif after is None:
        data = driver().read(address + start, end - start)
    else:
        data = driver().read_after(after, address + start, end - start)
    return np.ndarray(shape, dtype, buffer=bytearray(data), offset=-start, strides=steps).copy()


def same(left: Array, right: Array) -> bool:
    """Whether two arrays have the same dtype, shape and elements; NaN equals NaN."""
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
