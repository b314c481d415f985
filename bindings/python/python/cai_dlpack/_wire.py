"""A view as bytes and what they are, for what carries it out of the process, and back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

import cai_dlpack as cd
from cai_dlpack import CaiView
from cai_dlpack._receive import to_current_device

Header = dict[str, Any]
#: Returns an array on a device, of the bytes of a NumPy array.
ToDevice = Callable[[Any], Any]

_LOG = logging.getLogger("cai_dlpack")
#: What the host reads: its own memory, and page-locked memory, which arrives as the host's.
_OF_HOST = (1, 3)
#: What a GPU holds: device memory, and managed memory, which arrives as device memory.
_OF_DEVICE = (2, 13)


_to_device: ToDevice = to_current_device


def receive_by(to_device: ToDevice | None) -> None:
    """Sets what this process does with bytes that were on a device."""
    global _to_device
    _to_device = to_device or to_current_device


def is_known(view: CaiView) -> bool:
    """Whether memory is the host's or of a device of CUDA."""
    return view.device[0] in _OF_HOST + _OF_DEVICE


def is_on_device(view: CaiView) -> bool:
    return view.device[0] in _OF_DEVICE


def to_bytes(view: CaiView) -> tuple[Header, Any]:
    """A view as a NumPy array of bytes on the host, its own memory if that is there. The host waits for the data."""
    flat, header = packed(view)
    on_host: Any = cd.from_dlpack(flat, device="cpu") if flat.nbytes else b""
    # NumPy's array: it is pickled by each protocol, by the fifth without a copy where its caller takes buffers.
    return header, np.frombuffer(memoryview(on_host), np.uint8)


def of_bytes(header: Header, data: Any) -> CaiView:
    """The view of bytes, on the device if they were on one; of their own memory on the host, if that may be written."""
    flat: Any = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    if header["on_device"] and len(data):
        try:
            return typed(_to_device(flat), header)
        except Exception as error:  # Any library's: what fails as it is read is sent again by Dask, for ever.
            _LOG.warning("%d bytes that were on a device stay on the host: %s", flat.nbytes, error)
    if not (flat.flags.writeable or header["read_only"]):
        flat = flat.copy()  # Python shares bytes.
    return typed(flat, header)


def packed(view: CaiView) -> tuple[CaiView, Header]:
    """The bytes of a view, copied on its device if they are not in C order; and what they are.

    Raises:
        BufferError: the memory is neither the host's nor of a device of CUDA, rule `copy-refused`.
        BufferError, ValueError: none of DLPack's types, or padded elements. The receiver's step is made here first.
    """
    header = {
        "on_device": is_on_device(view),
        "dtype": str(view.dtype),
        "shape": view.shape,
        "read_only": view.read_only is not False,
    }
    # Memory of other devices is not copied here: the copy refuses it by its rule, in C order or not.
    is_sent_as_is = is_known(view) and view.is_c_contiguous
    with cd.policy(sync="event"):  # The copy is read here, and its stream is the block's to choose.
        flat = _flat(view if is_sent_as_is else cd.from_dlpack(view, device=view.device, copy=True))
    if typed(flat, header).itemsize != view.itemsize:
        # One element or none takes as many bytes padded as packed, and the name of the type means packed ones.
        raise BufferError(f"padded elements of {view.dtype} are not sent: the receiver takes them for packed ones")
    return flat, header


def _flat(view: CaiView) -> CaiView:
    """The same memory as one axis of bytes, ready when the view is; memory of the host is ready."""
    is_on_host = view.device[0] == 1
    if is_on_host or not view.nbytes:
        # NumPy reads its address, or nothing does: the view itself knows that its block has ended, or that a device
        # has managed memory to itself.
        view = view.synchronize()
    described = {
        "shape": (view.nbytes,),
        "typestr": "|u1",
        "data": (view.ptr, view.read_only is not False),
        "version": 3,
    }
    if is_on_host:
        return cd.view(np.asarray(_Described(described, view)))
    return cd.view(described, owner=view)


class _Described:
    """Host memory for NumPy, which keeps the view."""

    def __init__(self, described: Header, view: CaiView) -> None:
        self.__array_interface__ = described
        self.view = view


def typed(flat: Any, header: Header) -> CaiView:
    """Bytes as what they are."""
    # What has been received is nobody else's: it may be presented as writable.
    return cd.view(flat, dtype=header["dtype"], shape=header["shape"], read_only=header["read_only"])
