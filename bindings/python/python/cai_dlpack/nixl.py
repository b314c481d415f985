"""NIXL: the rows of a view, for `nixl_agent.register_memory` and `get_xfer_descs`, which take no arrays but torch's.

    found = cai_dlpack.nixl.rows(view)
    agent.register_memory(found.rows, found.memory)

NIXL reads and writes addresses, and asks nobody for a stream: the data is ready when `rows` or `strided_rows` returns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import cai_dlpack as cd
from cai_dlpack import CaiView
from cai_dlpack._wire import is_known, is_on_device

#: A table of NIXL's.
Table = np.ndarray[Any, np.dtype[np.uint64]]
#: Extent, and stride in bytes.
Axis = tuple[int, int]


class Rows(NamedTuple):
    """What NIXL takes; whoever registers it keeps it until the transfers are done."""

    #: One row for each piece: address, bytes, device.
    rows: Table
    #: "VRAM" for device and managed memory, "DRAM" for the host's, page-locked or not.
    memory: str
    #: Keeps the memory.
    owner: CaiView


class StridedRows(NamedTuple):
    """What NIXL's `prep_xfer_dlist` takes, and the memory to register for it; as `Rows` otherwise."""

    #: One row for pieces at equal distances: address, bytes of a piece, device, distance, number of pieces.
    rows: Table
    memory: str
    owner: CaiView
    #: One row of three: all bytes from the first piece to the last, as NIXL finds a strided row in one registration.
    span: Table


def rows(view: CaiView, length: int | None = None) -> Rows:
    """Returns the pieces of memory that hold a view's elements, in C order; no element is copied. The host waits.

    Parameters
    ----------
    view : CaiView
        Of the host or of a device of CUDA.
    length : int | None, default None
        The bytes of each row, as both sides of a transfer need rows of the same lengths. None: as many as lie in one
        piece.

    Raises
    ------
    BufferError
        Of memory of other devices, rule `copy-refused`; of elements smaller than a byte that do not lie in one
        piece; and if `length` does not divide the bytes that lie in one piece, rule `shape-override`.
    ValueError
        If `length` is negative, rule `shape-extent`.
    """
    ready, axes, run = _pieces(view, length)
    found = _table(ready, _offsets(axes), run)
    return Rows(found, _memory(ready), ready)


def strided_rows(view: CaiView, length: int | None = None) -> StridedRows:
    """Returns the same pieces in fewer rows: those that lie at equal distances are one row. NIXL names each by its
    place in the order of `rows`.

    Distances shorter than a piece, none and negative ones are refused by NIXL 1.5.1, or not promised: each piece of
    such an axis is a row. Parameters and what is raised are those of `rows`.
    """
    ready, axes, run = _pieces(view, length)
    extent, stride = axes.pop() if axes and axes[-1][1] >= run > 0 else (1, run)
    offsets = _offsets(axes)
    found = np.empty((len(offsets), 5), np.uint64)
    found[:, :3] = _table(ready, offsets, run)
    found[:, 3:] = stride, extent
    span = _table(ready, offsets[:1], run)
    if len(offsets):
        last = offsets.max() + (extent - 1) * stride
        span = _table(ready, offsets.min(keepdims=True), int(last - offsets.min()) + run)
    return StridedRows(found, _memory(ready), ready, span)


def _memory(view: CaiView) -> str:
    return "VRAM" if is_on_device(view) else "DRAM"


def _table(view: CaiView, offsets: np.ndarray[Any, np.dtype[np.int64]], run: int) -> Table:
    """Address, bytes, device of the pieces at these offsets."""
    found = np.empty((len(offsets), 3), np.uint64)
    # Modulo 2**64, so that negative strides lead back.
    found[:, 0] = offsets.astype(np.uint64) + np.uint64(view.ptr)
    found[:, 1] = run
    found[:, 2] = view.device[1] if is_on_device(view) else 0
    return found


def _offsets(axes: list[Axis]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where the pieces begin, in bytes from the first element."""
    offsets = np.zeros(1, np.int64)
    for extent, stride in axes:
        offsets = np.add.outer(offsets, np.arange(extent, dtype=np.int64) * stride).ravel()
    return offsets


def _pieces(view: CaiView, length: int | None) -> tuple[CaiView, list[Axis], int]:
    """The view when it is ready, the axes on which its pieces lie, no two of which could be one, and the bytes of
    each piece."""
    if not is_known(view):
        cd.from_dlpack(view, device=view.device, copy=True)  # refused by its rule
    ready = view.synchronize()
    axes, run = _axes(ready)
    if length is not None and run and length != run:
        # Rows of a length are the last axis of the shape that fills a piece: refused by its rules if none does.
        number, _ = cd.view(np.empty(run, np.uint8), shape=(-1, length)).shape
        axes.append((number, length))
        run = length
    merged: list[Axis] = []
    for extent, stride in axes:
        if merged and merged[-1][1] == extent * stride:
            merged[-1] = (merged[-1][0] * extent, stride)
        else:
            merged.append((extent, stride))
    return ready, merged, run


def _axes(view: CaiView) -> tuple[list[Axis], int]:
    """The axes outside of what lies in one piece, and the bytes of that."""
    if not view.size:
        return [(0, 0)], 0
    if view.is_c_contiguous:
        return [], view.nbytes
    if view.byte_strides is None:
        view.to_cai()  # refused by its rule
    axes = [pair for pair in zip(view.shape, view.byte_strides or (), strict=True) if pair[0] != 1]
    run = view.itemsize or 1
    while axes and axes[-1][1] == run:
        run *= axes.pop()[0]
    return axes, run
