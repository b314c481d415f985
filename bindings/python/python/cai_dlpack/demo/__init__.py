"""`python -m cai_dlpack demo`: hand-overs between real libraries, without the bridge and with it.

With a GPU they run on it. Without one they run on the simulated driver of `cai-conformance`, if that is installed, in
its lazy schedule: the work of a stream is done when somebody waits for it, and not before. What is read too early is
then wrong each time, where a GPU would hide it most of the time.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

SIMULATED = ["-m", "cai_conformance", "simulate", "--devices", "2", "--schedule", "lazy", "--", sys.executable]
INSTALL = """\
The libraries of the hand-overs:
    pip install numpy numba-cuda nvidia-cuda-runtime cuda-core apache-tvm-ffi mpi4py mpich
The simulated driver, where there is no GPU, from a checkout:
    pip install ./conformance/kit"""


def main(svg: Path | None = None) -> int:
    """Runs them, prints what came of each, and returns the exit code: 1 if one by the bridge was not right.

    It is 2 if none can run; what is to be installed is printed then.
    """
    if importlib.util.find_spec("numpy") is None:
        print(f"The values are NumPy's, which is not installed.\n{INSTALL}", file=sys.stderr)
        return 2

    from cai_dlpack.demo import gpu, run

    if not gpu.has_devices() and importlib.util.find_spec("cai_conformance"):
        os.execv(sys.executable, [sys.executable, *SIMULATED, "-m", "cai_dlpack", *sys.argv[1:]])
    code = run.main(svg)
    if code == run.NONE_RAN:
        print(INSTALL, file=sys.stderr)
    return code
