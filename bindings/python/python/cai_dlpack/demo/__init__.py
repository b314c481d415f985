"""`python -m cai_dlpack demo`: hand-overs between real libraries, without the bridge and with it.

With a GPU they run on it. Without one they run on the simulated driver of `cai-conformance`, if that is installed, in
its lazy schedule: the work of a stream is done when somebody waits for it, and not before. What is read too early is
then wrong each time, where a GPU would hide it most of the time.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from pathlib import Path

SIMULATED = ["-m", "cai_conformance", "simulate", "--devices", "2", "--schedule", "lazy", "--", sys.executable]


def has_devices() -> bool:
    """Returns whether a CUDA driver, real or simulated, finds a device."""
    try:
        libcuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return libcuda.cuInit(0) == 0 and libcuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def main(svg: Path | None = None) -> int:
    """Runs them, prints what came of each, and returns the exit code: 1 if one by the bridge was not right."""
    if not has_devices():
        if importlib.util.find_spec("cai_conformance") is None:
            print("There is no GPU here, and no simulated driver: pip install cai-conformance", file=sys.stderr)
            return 2
        os.execv(sys.executable, [sys.executable, *SIMULATED, "-m", "cai_dlpack", *sys.argv[1:]])
    needed = [name for name in ("numpy", "cuda.core") if importlib.util.find_spec(name.partition(".")[0]) is None]
    if needed:
        print(f"The streams of the demo are of cuda.core: pip install {' '.join(needed)}", file=sys.stderr)
        return 2

    from cai_dlpack.demo import run

    return run.main(svg)
