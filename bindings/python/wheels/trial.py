"""Tries an installed wheel, in an environment that has it and NumPy only.

python trial.py            the import, and host memory both ways
python trial.py --device   device memory too: on a driver, or the simulated one
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
from typing import Any, ClassVar

import cai_dlpack as cd
import numpy as np


def host() -> None:
    """NumPy's array by DLPack, and back: the same memory, and read-only as it was."""
    for writable in (True, False):
        array = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
        array.flags.writeable = writable
        back = np.from_dlpack(cd.view(array))
        assert back.__array_interface__["data"][0] == array.__array_interface__["data"][0]
        assert (back == array).all() and back.strides == array.strides
        assert back.flags.writeable is writable
        assert cd.to(array, "numpy").ctypes.data == array.ctypes.data
    with contextlib.suppress(TypeError):
        cd.view(object())  # type: ignore[arg-type]
        raise SystemExit("an object without a protocol was taken")


def device() -> None:
    """A dict of device memory to a capsule and back, ordered between two streams."""
    driver = ctypes.CDLL("nvcuda" if sys.platform == "win32" else "libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        code = getattr(driver, name)(*arguments)
        assert code == 0, (name, code)

    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    streams = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(64))
    for stream in streams:
        call("cuStreamCreate", ctypes.byref(stream), 1)

    class Array:
        __cuda_array_interface__: ClassVar = {
            "shape": (4, 4),
            "typestr": "<f4",
            "data": (pointer.value, True),
            "strides": None,
            "version": 3,
            "stream": streams[0].value,
        }

    view = cd.from_dlpack(cd.view(Array()), stream=streams[1].value)
    told = view.__cuda_array_interface__
    assert told["data"] == (pointer.value, True) and told["shape"] == (4, 4), told
    assert view.__dlpack_device__() == (2, 0)
    call("cuStreamSynchronize", streams[1])
    del view


def commands() -> None:
    """What `python -m cai_dlpack` does without other libraries."""

    def ask(*arguments: str) -> str:
        # An emulated interpreter is no program of this machine's.
        python = json.loads(os.environ.get("TRIAL_PYTHON", "null")) or [sys.executable]
        command = [*python, "-m", "cai_dlpack", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert json.loads(ask("doctor", "--json"))
    assert "numpy" in ask("explain", "numpy:zeros(3)", "--to", "numpy")


def main() -> None:
    host()
    commands()
    if "--device" in sys.argv:
        device()
    print("tried", sys.implementation.name, sys.version.split()[0])


if __name__ == "__main__":
    main()
