"""Pickles views by a copy of their elements, which a process has to ask for: `cai_dlpack.pickling.register()`.

Then `pickle`, `multiprocessing` and cloudpickle copy a view: its data is made ready, device memory is copied to the
host, and to the current device of the process that loads it, into memory of a library that is imported there, else of
the driver's pool; if there is no device, or no room, the array stays on the host. The logger `cai_dlpack` says so. By
protocol 5 with a `buffer_callback` host memory is not copied. What is loaded is an array of its own, in C order, with
the shape, the type and the read-only flag.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any

from cai_dlpack import CaiView
from cai_dlpack._wire import Header, ToDevice, of_bytes, receive_by, to_bytes


def register(to_device: ToDevice | None = None) -> None:
    """Lets this process pickle views by copy; without it `pickle` refuses them (rule `pickle`). May be called again.

    The process that loads one need not call it.

    Parameters
    ----------
    to_device : ToDevice | None, default None
        What this process calls to load what was on a device: takes a NumPy array of bytes (uint8), returns an array on
        its device, whose library then owns the memory, such as `cupy.asarray`, `numba.cuda.to_device` or
        `rmm.DeviceBuffer.to_device`. None: the memory of the first of rmm, cupy, numba.cuda, cuda.core and torch that
        this process has imported already and that has room, else the driver's pool of the current device; the logger
        `cai_dlpack` names it. The last call counts, for what Dask receives, too.
    """
    receive_by(to_device)
    copyreg.pickle(CaiView, _reduce)


def _reduce(view: CaiView) -> tuple[Callable[[Header, Any], CaiView], tuple[Header, Any]]:
    return of_bytes, to_bytes(view)
