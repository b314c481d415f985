"""A view as bytes and what they are, for what carries it out of the process, and back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

import cai_dlpack as cd
from cai_dlpack import CaiView

Header = dict[str, Any]
#: Returns an array on a device, of the bytes of a NumPy array.
ToDevice = Callable[[Any], Any]

HOST = 1


def to_bytes(view: CaiView) -> tuple[Header, memoryview]:
    """A view as bytes on the host, which are its own memory if that is where it is. The host waits for the data."""
    flat, header = packed(view)
    on_host: Any = cd.from_dlpack(flat, device="cpu") if flat.nbytes else b""
    return header, memoryview(on_host)


def of_bytes(header: Header, data: Any, to_device: ToDevice) -> CaiView:
    """The view of bytes, on the device if they were on one; of their own memory on the host, if that may be written."""
    flat: Any = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    if header["device"] != HOST and len(data):
        flat = to_device(flat)
    elif not (flat.flags.writeable or header["read_only"]):
        flat = flat.copy()  # Python shares bytes.
    return typed(flat, header)


def packed(view: CaiView) -> tuple[CaiView, Header]:
    """The bytes of a view, copied on its device if they are not in C order; and what they are.

    Raises:
        BufferError, ValueError: the type is none of DLPack's. The receiver's step is made here first.
    """
    header = {
        "device": view.device[0],
        "dtype": str(view.dtype),
        "shape": view.shape,
        "read_only": view.read_only is not False,
    }
    flat = _flat(view if view.is_c_contiguous else cd.from_dlpack(view, device=view.device, copy=True))
    typed(flat, header)
    return flat, header


def _flat(view: CaiView) -> CaiView:
    """The same memory as one axis of bytes, ready when the view is."""
    described = {
        "shape": (view.nbytes,),
        "typestr": "|u1",
        "data": (view.ptr, view.read_only is not False),
        "version": 3,
    }
    if view.device[0] == HOST:
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


def to_current_device(log: logging.Logger) -> ToDevice:
    """Puts bytes into the memory pool of the current device, or leaves them where there is none, or no room."""

    def to_device(flat: Any) -> Any:
        try:
            return cd.from_dlpack(flat, device="cuda")
        except (BufferError, cd.DriverError) as error:
            # Not raised: what fails as it is read is sent again by Dask, for ever.
            log.warning("%d bytes that were on a device stay on the host: %s", flat.nbytes, error)
            return flat

    return to_device
