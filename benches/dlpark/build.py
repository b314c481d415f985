"""Builds the module `dlpark_path`, for the benches and for the conformance kit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def build(folder: Path) -> None:
    """Builds dlpark's own Python path for this interpreter, into a folder that is to be in `sys.path`."""
    target = HERE.parents[1] / "target" / "dlpark"
    environment = {**os.environ, "PYO3_PYTHON": sys.executable, "PYO3_BUILD_EXTENSION_MODULE": "1"}
    command = ["cargo", "build", "--quiet", "--release", "--locked", "--manifest-path", str(HERE / "Cargo.toml")]
    subprocess.run([*command, "--target-dir", str(target)], check=True, env=environment)
    shutil.copy(target / "release" / "libdlpark_path.so", folder / "dlpark_path.so")
