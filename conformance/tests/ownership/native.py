"""native.c, built once a run with the C compiler; and the sizes of the figures."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from cai_conformance import abi

HERE = Path(__file__).parent
# `make soak` asks for the larger figures, and for fewer where each takes long (valgrind).
FIGURES = os.environ.get("CAI_DLPACK_FIGURES", "small")


def figure(small: int, large: int) -> int:
    """Returns how often to repeat: `small` in `make test`, `large` in `make soak`."""
    return {"small": small, "large": large, "few": max(1, small // 50)}[FIGURES]


@functools.cache
def path() -> Path:
    """The shared library; a compiler that is missing or fails is a failure and not a skip."""
    given = os.environ.get("CAI_DLPACK_NATIVE")
    if given:
        return Path(given)
    folder = Path(tempfile.mkdtemp(prefix="cai-dlpack-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "native.so"
    command = ["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread"]
    subprocess.run([*command, "-o", library, HERE / "native.c"], check=True, timeout=60)
    return library


@functools.cache
def with_gil() -> Any:
    """The library, called without letting go of the GIL."""
    return ctypes.PyDLL(str(path()))


@functools.cache
def without_gil() -> Any:
    """The library, called with the GIL let go."""
    return ctypes.CDLL(str(path()))


def storm(tensors: list[abi.Read], *, gil: bool, threads: int = 1) -> list[int]:
    """Deletes every tensor on native threads; nanoseconds of each call. With `gil` we keep it meanwhile."""
    count = len(tensors)
    deleters = (ctypes.c_void_p * count)(*(tensor.deleter for tensor in tensors))
    addresses = (ctypes.c_void_p * count)(*(tensor.address for tensor in tensors))
    took = (ctypes.c_int64 * count)()
    library = with_gil() if gil else without_gil()
    assert library.storm(deleters, addresses, took, ctypes.c_size_t(count), ctypes.c_size_t(threads)) == 0
    return list(took)
