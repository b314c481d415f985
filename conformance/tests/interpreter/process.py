"""A program in a process of its own, on the simulated driver, with these tests' modules at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
KIT = ROOT / "conformance" / "kit" / "src"


def on_the_simulator(
    text: str, *options: str, timeout: float = 60, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `text`; `options` are of `simulate`. A program that hangs is a TimeoutExpired."""
    paths = [str(ROOT), str(KIT), os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
        **environment,
    }
    simulate = [sys.executable, "-m", "cai_conformance", "simulate", *options, "--"]
    command = [*simulate, sys.executable, "-X", "faulthandler", "-c", text]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)
