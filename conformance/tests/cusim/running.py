"""Starting programs on the simulated driver, each in a process of its own.

The modes of the driver are chosen when it is loaded, so every mode is another process; what runs
there is in `model/` and `outsiders/`, in files called `check_*.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
KIT = ROOT / "conformance" / "kit" / "src"


def start(options: list[str], command: list[str], timeout: float = 110) -> subprocess.CompletedProcess[str]:
    """Runs `python COMMAND` on the simulator; does not judge the result."""
    env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), str(KIT), env.get("PYTHONPATH", "")]))
    simulate = [sys.executable, "-m", "cai_conformance", "simulate", *options, "--", sys.executable, *command]
    return subprocess.run(simulate, env=env, capture_output=True, text=True, timeout=timeout, check=False)


def program(options: list[str], text: str) -> subprocess.CompletedProcess[str]:
    """Runs a program given as text, with this package at hand."""
    return start(options, ["-X", "faulthandler", "-c", text])


def checks(options: list[str], folder: str, *arguments: str) -> int:
    """Runs the checks of a folder and answers how many passed; fails when one fails, is skipped
    or none runs."""
    root = str(HERE / folder)
    # `pytest.ini` loads the kit's plugin; the conftest.py of the folders above is not for these checks.
    where = ["--confcutdir", root, "-o", "python_files=check_*.py", root]
    done = start(options, ["-m", "pytest", "-q", "-p", "no:cacheprovider", *where, *arguments])
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(r"^(\d+) passed in ", done.stdout, re.MULTILINE)
    assert counted, f"something was skipped, or nothing ran:\n{done.stdout}"
    return int(counted[1])
