"""NIXL: the rows of a view, for `nixl_agent.register_memory` and `get_xfer_descs`, which take no arrays but torch's.

    found = cai_dlpack.nixl.rows(view)
    agent.register_memory(found.rows, found.memory)

NIXL reads and writes addresses, and asks nobody for a stream: the data is ready when `rows` returns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import cai_dlpack as cd
from cai_dlpack import CaiView
from cai_dlpack._wire import is_known, is_on_device


class Rows(NamedTuple):
    """What NIXL takes; whoever registers it keeps it until the transfers are done."""

    #: uint64, one row for each piece: address, bytes, device.
    rows: np.ndarray[Any, np.dtype[np.uint64]]
    #: "VRAM" for device and managed memory, "DRAM" for the host's, page-locked or not.
    memory: str
    #: Keeps the memory.
    owner: CaiView


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
        Of memory of other devices, rule `copy-refused`, and of elements smaller than a byte that do not lie in one
        piece.
    ValueError
        If `length` does not divide the bytes that lie in one piece.
    """
    if not is_known(view):
        cd.from_dlpack(view, device=view.device, copy=True)  # refused by its rule
    ready = view.synchronize()
    offsets, run = _pieces(ready)
    if length is not None and run:
        if length <= 0 or run % length:
            raise ValueError(f"length = {length}: {run} bytes lie in one piece, and are no multiple of it")
        offsets = np.add.outer(offsets, np.arange(0, run, length, dtype=np.int64)).ravel()
        run = length
    found = np.empty((len(offsets), 3), np.uint64)
    # Modulo 2**64, so that negative strides lead back.
    found[:, 0] = offsets.astype(np.uint64) + np.uint64(ready.ptr)
    found[:, 1] = run
    found[:, 2] = ready.device[1] if is_on_device(ready) else 0
    return Rows(found, "VRAM" if is_on_device(ready) else "DRAM", ready)


def _pieces(view: CaiView) -> tuple[np.ndarray[Any, np.dtype[np.int64]], int]:
    """Where the pieces begin, in bytes from the first element, and the bytes of each."""
    if not view.size:
        return np.empty(0, np.int64), 0
    if view.is_c_contiguous:
        return np.zeros(1, np.int64), view.nbytes
    if view.byte_strides is None:
        view.to_cai()  # refused by its rule
    axes = [pair for pair in zip(view.shape, view.byte_strides or (), strict=True) if pair[0] != 1]
    run = view.itemsize or 1
    while axes and axes[-1][1] == run:
        run *= axes.pop()[0]
    offsets = np.zeros(1, np.int64)
    for extent, stride in axes:
        offsets = np.add.outer(offsets, np.arange(extent, dtype=np.int64) * stride).ravel()
    return offsets, run
