"""Pickles views by a copy of their elements, which a process has to ask for: `cai_dlpack.pickling.register()`.

Then `pickle`, `multiprocessing`, joblib and cloudpickle copy a view: its data is made ready, device memory is copied to
the host, and to the current device of the process that loads it; where that has none, or no room, the array stays on
the host, and the logger `cai_dlpack.pickling` says so. By protocol 5 with a `buffer_callback` host memory is not
copied. What is loaded is an array of its own, in C order, with the shape, the type and the read-only flag.
"""

from __future__ import annotations

import copyreg
import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from cai_dlpack import CaiView
from cai_dlpack._wire import Header, of_bytes, to_bytes, to_current_device


def register() -> None:
    """Lets this process pickle views by copy; without it `pickle` refuses them (rule `pickle`).

    The process that loads one need not call it.
    """
    copyreg.pickle(CaiView, _reduce)


def _reduce(view: CaiView) -> tuple[Callable[[Header, Any], CaiView], tuple[Header, Any]]:
    header, data = to_bytes(view)
    # NumPy's array: it pickles itself by each protocol, by the fifth without a copy where its caller takes buffers.
    return _load, (header, np.frombuffer(data, np.uint8))


def _load(header: Header, data: Any) -> CaiView:
    return of_bytes(header, data, to_current_device(logging.getLogger(__name__)))
