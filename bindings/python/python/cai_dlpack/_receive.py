"""Memory for what arrives: of the first library that is imported already and works, else of the driver's pool.

A library that has taken a GPU's memory for its own pool, as RMM does, leaves the driver's pool nothing. Nothing is
imported here. Each copy is enqueued on the stream that the memory was allocated on, and the array is ready there.

| library | allocated, copied and freed on | ready |
|---|---|---|
| rmm | the legacy default stream | there; it has been waited for |
| cupy | CuPy's current stream of this thread | there: its dict names it |
| numba.cuda | the legacy default stream | there |
| cuda.core | the legacy default stream | there; it has been waited for |
| torch | torch's current stream of this thread | there; it has been waited for |
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import cai_dlpack as cd

_LOG = logging.getLogger("cai_dlpack")


def to_current_device(flat: Any) -> Any:
    """Puts a NumPy array of bytes into memory of the current device; the logger `cai_dlpack` names whose (DEBUG)."""
    for name, put in LIBRARIES.items():
        if name not in sys.modules:
            continue
        try:
            found = put(sys.modules[name], flat)
        except Exception as error:  # Any library's: no room, no device, or another version of it.
            _LOG.info("%s has no memory for %d bytes: %s", name, flat.nbytes, error)
            continue
        _LOG.debug("%d bytes are in memory of %s", flat.nbytes, name)
        return found
    found = cd.from_dlpack(flat, device="cuda")
    _LOG.debug("%d bytes are in memory of the driver's pool", flat.nbytes)
    return found


def _of_rmm(rmm: Any, flat: Any) -> Any:
    # `rmm.DeviceBuffer` waits for a copy on a default stream; its dict names no stream, and it is freed on this one.
    stream = rmm.pylibrmm.stream.LEGACY_DEFAULT_STREAM
    buffer = rmm.DeviceBuffer.to_device(flat, stream)
    stream.synchronize()
    return _on_the_legacy_stream(buffer.ptr, flat.nbytes, buffer)


def _of_cupy(cupy: Any, flat: Any) -> Any:
    return cd.view(cupy.asarray(flat))


def _of_numba(cuda: Any, flat: Any) -> Any:
    array = cuda.to_device(flat)
    # A copy of pageable memory may still be on its way when the call returns, on the legacy default stream.
    return cd.view(array.__cuda_array_interface__, producer_stream=1, owner=_OfNumba(cuda.current_context(), array))


class _OfNumba:
    """Ends an array of Numba's in its context: on a thread without one Numba fails, and the memory stays."""

    def __init__(self, context: Any, array: Any) -> None:
        self.context, self.array = context, array

    def __del__(self) -> None:
        self.context.push()
        try:
            del self.array
        finally:
            self.context.pop()


def _of_cuda_core(core: Any, flat: Any) -> Any:
    stream = core.LEGACY_DEFAULT_STREAM
    buffer = core.Device().allocate(flat.nbytes, stream=stream)
    buffer.copy_from(core.Buffer.from_handle(flat.ctypes.data, flat.nbytes, owner=flat), stream=stream)
    stream.sync()
    return _on_the_legacy_stream(int(buffer.handle), flat.nbytes, buffer)


def _of_torch(torch: Any, flat: Any) -> Any:
    if not torch.cuda.is_initialized():
        raise RuntimeError("torch is imported, and has not used a device")
    # torch warns of arrays that may not be written; this one is read.
    alias = np.ctypeslib.as_array((ctypes.c_uint8 * flat.nbytes).from_address(flat.ctypes.data))
    return cd.view(torch.from_numpy(alias).to("cuda"))


def _on_the_legacy_stream(pointer: int, nbytes: int, owner: Any) -> Any:
    described = {"shape": (nbytes,), "typestr": "|u1", "data": (pointer, False), "stream": 1, "version": 3}
    return cd.view(described, owner=owner)


#: By the module that has to be imported, in the order in which they are tried.
LIBRARIES: dict[str, Callable[[Any, Any], Any]] = {
    "rmm": _of_rmm,
    "cupy": _of_cupy,
    "numba.cuda": _of_numba,
    "cuda.core": _of_cuda_core,
    "torch": _of_torch,
}
