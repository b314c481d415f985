"""Dask: views travel between workers, in the families `cuda` and `dask` of distributed's serializers.

    dask worker --preload cai_dlpack.dask        a worker; `LocalCluster(preload="cai_dlpack.dask")` for all of them
    cai_dlpack.dask.register()                   the client's process

A communication that takes device memory (UCXX) is given the view's own: no copy, and none at the receiver. Any other is
given bytes: a view of device memory is copied to the host, and to the device of the receiver; where that has none, or
no room, the bytes stay on the host, and the logger `cai_dlpack.dask` says so. The data is ready before it leaves,
whatever stream writes it: nobody asks a frame for its stream.

What arrives is an array of its own, in C order, with the shape, the type and the read-only flag of the view.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from dask.sizeof import sizeof
from distributed.protocol import dask_deserialize, dask_serialize
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize

import cai_dlpack as cd
from cai_dlpack import CaiView

Header = dict[str, Any]
#: Returns an array on a device, of the bytes of a NumPy array.
ToDevice = Callable[[Any], Any]

_log = logging.getLogger("cai_dlpack.dask")
_HOST = 1


def register(to_device: ToDevice | None = None) -> None:
    """Registers `CaiView` with distributed's serializers, and with `dask.sizeof`. May be called again.

    Parameters
    ----------
    to_device : ToDevice | None, default None
        Called by a receiver of bytes that were on a device: takes a NumPy array of them (uint8), returns an array on
        its device, whose library then owns the memory, such as `cupy.asarray`, `numba.cuda.to_device` or
        `rmm.DeviceBuffer.to_device`. None: the driver's pool of the current device.
    """
    made = to_device or _to_current_device
    dask_serialize.register(CaiView)(_to_bytes)
    dask_deserialize.register(CaiView)(lambda header, frames: _of_bytes(header, frames, made))
    cuda_serialize.register(CaiView)(_to_device_frames)
    cuda_deserialize.register(CaiView)(_of_device_frames)
    sizeof.register(CaiView)(lambda view: view.nbytes)


def dask_setup(_server: object) -> None:
    """What `--preload` calls."""
    register()


def _to_bytes(view: CaiView) -> tuple[Header, list[memoryview]]:
    """A view as bytes on the host, which are its own memory if that is where it is."""
    flat, header = _packed(view)
    on_host: Any = cd.from_dlpack(flat, device="cpu") if flat.nbytes else b""
    return header, [memoryview(on_host)]


def _of_bytes(header: Header, frames: list[Any], to_device: ToDevice) -> CaiView:
    """The view of bytes, on the device if they were on one."""
    (frame,) = frames
    flat: Any = np.frombuffer(frame, np.uint8) if len(frame) else np.empty(0, np.uint8)
    if header["device"] != _HOST and len(frame):
        flat = to_device(flat)
    return _typed(flat, header)


def _to_device_frames(view: CaiView) -> tuple[Header, list[CaiView]]:
    """A view as device memory, which is its own if it is in C order.

    Raises:
        NotImplementedError: it is not on a device of CUDA: the next family takes it.
    """
    if view.device[0] == _HOST or not view.nbytes:
        raise NotImplementedError(f"memory on {view.device}")
    flat, header = _packed(view)
    return header, [flat.synchronize()]


def _of_device_frames(header: Header, frames: list[Any]) -> CaiView:
    """The view of received device memory, which was allocated by whoever received it."""
    (frame,) = frames
    return _typed(cd.view(frame, producer_stream=None), header)


def _packed(view: CaiView) -> tuple[CaiView, Header]:
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
    _typed(flat, header)
    return flat, header


def _flat(view: CaiView) -> CaiView:
    """The same memory as one axis of bytes, ready when the view is."""
    described = {
        "shape": (view.nbytes,),
        "typestr": "|u1",
        "data": (view.ptr, view.read_only is not False),
        "version": 3,
    }
    if view.device[0] == _HOST:
        return cd.view(np.asarray(_Described(described, view)))
    return cd.view(described, owner=view)


class _Described:
    """Host memory for NumPy, which keeps the view."""

    def __init__(self, described: Header, view: CaiView) -> None:
        self.__array_interface__ = described
        self.view = view


def _typed(flat: Any, header: Header) -> CaiView:
    """Bytes as what they are."""
    # What has been received is nobody else's: it may be presented as writable.
    return cd.view(flat, dtype=header["dtype"], shape=header["shape"], read_only=header["read_only"])


def _to_current_device(flat: Any) -> Any:
    """Bytes in the memory pool of the current device, or as they are where there is none, or no room."""
    try:
        return cd.from_dlpack(flat, device="cuda")
    except (BufferError, cd.DriverError) as error:
        # Not raised: what fails here is sent again, for ever.
        _log.warning("%d bytes that were on a device stay on the host: %s", flat.nbytes, error)
        return flat
