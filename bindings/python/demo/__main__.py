"""`make demo`: chooses the driver, then runs the hand-overs on it.

With a GPU the demo runs on it. Without one it starts itself again on the simulated driver, in its
lazy schedule: the work of a stream is done when somebody waits for it, and not before. A wait that
is missing then gives wrong values each time, where a real GPU would hide it most of the time.
"""

import ctypes
import os
import sys

SIMULATED = ["-m", "cai_conformance", "simulate", "--devices", "2", "--schedule", "lazy", "--", sys.executable]


def has_devices() -> bool:
    """Returns whether a CUDA driver, real or simulated, finds a device."""
    try:
        libcuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return libcuda.cuInit(0) == 0 and libcuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


if __name__ == "__main__":
    if not has_devices():
        os.execv(sys.executable, [sys.executable, *SIMULATED, *sys.argv])

    import hand_overs

    sys.exit(hand_overs.main())
