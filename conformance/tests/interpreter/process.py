"""Starts Python in a process of its own, which finds this repository's packages by their full names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
KIT = ROOT / "conformance" / "kit" / "src"


def environment(behind: str | None = None, **changes: str) -> dict[str, str]:
    """Returns this process's environment with the repository and the kit first on PYTHONPATH.

    `behind` follows them; by default it is the PYTHONPATH of this process. A pytest in the new process loads no
    plugin by entry point, so that an installed kit makes no difference.
    """
    if behind is None:
        behind = os.environ.get("PYTHONPATH", "")
    paths = os.pathsep.join(filter(None, [str(ROOT), str(KIT), behind]))
    fixed = {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return {**os.environ, **fixed, **changes}


def simulate(
    options: list[str], arguments: list[str], timeout: float = 110, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Runs `python ARGUMENTS` on the simulator, which has its modes from `options`. Any exit code is returned.

    The simulator reads its modes when it is loaded, so that each mode needs another process. A process that hangs
    raises TimeoutExpired.
    """
    command = [sys.executable, "-m", "cai_conformance", "simulate", *options, "--", sys.executable, *arguments]
    return subprocess.run(
        command, env=environment(**changes), capture_output=True, text=True, timeout=timeout, check=False
    )


def on_the_simulator(
    text: str, *options: str, timeout: float = 110, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program given as text on the simulator."""
    return simulate([*options], ["-X", "faulthandler", "-c", text], timeout, **changes)
