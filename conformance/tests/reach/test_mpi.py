"""Two ranks of MPI that send each other views: mpi4py and MPICH as they are, and memory of the simulated driver.

Not run: device memory, for which MPI has to be built with CUDA; the wheel of MPICH is not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.tests.interpreter.process import ROOT


@pytest.mark.parametrize("what", ["view", "bare"])
def test_messages_between_two_ranks(what: str) -> None:
    """`bare` is the control, without the bridge: the other rank receives what was there before the stream wrote."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    command = [str(mpiexec), "-n", "2", sys.executable, "-m", "mpi4py", "-m", "conformance.tests.reach.ranks", what]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks: right" in done.stdout
