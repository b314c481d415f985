"""Every route without a driver, on an old one, and on drivers that lack one function each: the error names it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from conformance.tests.interpreter.process import environment

SOURCE = Path(__file__).with_name("lacking.c")


def test_every_route_on_drivers_that_lack_something(tmp_path: Path) -> None:
    preloaded = tmp_path / "lacking.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(preloaded), str(SOURCE), "-ldl"], check=True, timeout=60)
    for name in ("libcuda.so", "libcuda.so.1"):
        (tmp_path / name).touch()  # not a library: the search ends here
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "conformance.tests.faults.lacking"],
        env=environment(LD_LIBRARY_PATH=str(tmp_path), LD_PRELOAD=str(preloaded)),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    counted = re.search(r"(\d+) refused, 0 wrong", ended.stdout)
    assert counted and int(counted[1]) > 1000, ended.stdout
