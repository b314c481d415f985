"""Dask: views travel between workers, in the families `cuda` and `dask` of distributed's serializers.

    dask worker --preload cai_dlpack.dask        a worker; `LocalCluster(preload="cai_dlpack.dask")` for all of them
    cai_dlpack.dask.register()                   the client's process

A communication that takes device memory (UCXX) is given the view's own: no copy, and none at the receiver. Any other is
given bytes: a view of device memory is copied to the host, and to the device of the receiver; where that has none, or
no room, the bytes stay on the host, and the logger `cai_dlpack` says so. The data is ready before it leaves, whatever
stream writes it: nobody asks a frame for its stream.

What arrives is an array of its own, in C order, with the shape, the type and the read-only flag of the view.
"""

from __future__ import annotations

from typing import Any

from dask.sizeof import sizeof
from distributed.protocol import dask_deserialize, dask_serialize
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize

import cai_dlpack as cd
from cai_dlpack import CaiView, pickling
from cai_dlpack._wire import Header, ToDevice, is_on_device, of_bytes, packed, to_bytes, typed


def register(to_device: ToDevice | None = None) -> None:
    """Registers `CaiView` with distributed's serializers, with `dask.sizeof` and with `pickle`. May be called again.

    Dask pickles what stands in a task or beside other objects: arguments, constants, an item of a tuple.

    Parameters
    ----------
    to_device : ToDevice | None, default None
        As for `cai_dlpack.pickling.register`.
    """
    pickling.register(to_device)
    dask_serialize.register(CaiView)(_to_bytes)
    dask_deserialize.register(CaiView)(_of_bytes)
    cuda_serialize.register(CaiView)(_to_device_frames)
    cuda_deserialize.register(CaiView)(_of_device_frames)
    sizeof.register(CaiView)(lambda view: view.nbytes)


def dask_setup(_server: object) -> None:
    """What `--preload` calls."""
    register()


def _to_bytes(view: CaiView) -> tuple[Header, list[memoryview]]:
    """A view as bytes on the host."""
    header, data = to_bytes(view)
    return header, [memoryview(data)]


def _of_bytes(header: Header, frames: list[Any]) -> CaiView:
    (frame,) = frames
    return of_bytes(header, frame)


def _to_device_frames(view: CaiView) -> tuple[Header, list[CaiView]]:
    """A view as device memory, which is its own if it is in C order.

    Raises:
        NotImplementedError: it is not on a device of CUDA: the next family takes it.
    """
    if not (is_on_device(view) and view.nbytes):
        raise NotImplementedError(f"memory on {view.device}")
    flat, header = packed(view)
    return header, [flat.synchronize()]


def _of_device_frames(header: Header, frames: list[Any]) -> CaiView:
    """The view of received device memory, which was allocated by whoever received it."""
    (frame,) = frames
    return typed(cd.view(frame, producer_stream=None), header)
