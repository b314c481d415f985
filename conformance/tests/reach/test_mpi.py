"""Two ranks of MPI that send each other views: mpi4py and MPICH as they are, and memory of the simulated driver.

Device memory is the simulated driver's, which this MPI reads as the host's. Not run: an MPI that is built with CUDA,
which the wheel of MPICH is not; it would find the kind of memory by itself, and have the devices copy.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.tests.interpreter.process import ROOT


@pytest.mark.parametrize("what", ["view", "bare", "into"])
def test_messages_between_two_ranks(what: str) -> None:
    """`bare` and `into` are the controls, without the bridge at the one end or at the other: the other rank has what
    was there before the stream wrote, or what its own stream wrote over the message."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    command = [str(mpiexec), "-n", "2", sys.executable, "-m", "mpi4py", "-m", "conformance.tests.reach.ranks", what]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks: right" in done.stdout
