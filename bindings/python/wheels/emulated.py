"""Tries a wheel of another platform than this machine's.

Of aarch64 under qemu's user mode, on Debian's CPython for arm64; of musl on the CPython that musl.sh builds.

apt fetches the packages of arm64 into a folder, which they are unpacked into: nothing is installed, and the
machine's own lists of packages stay as they are. Host memory only: the simulated driver is built for this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

QEMU = "qemu-aarch64-static"
PACKAGES = (
    *("libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libexpat1", "libffi8", "libssl3", "libbz2-1.0", "liblzma5"),
    *("libuuid1", "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib"),
)


class Interpreter(NamedTuple):
    """A CPython on which wheels of a target are tried."""

    version: str
    #: The tag of the wheel of NumPy.
    numpy: str
    needs: tuple[str, ...]
    #: What it is run by, said after its version.
    by: str


INTERPRETERS = {
    # Debian 12's.
    "aarch64-unknown-linux-gnu": Interpreter(
        "3.11", "manylinux_2_28_aarch64", (QEMU, "apt-get", "dpkg-deb"), f"under {QEMU}"
    ),
    "x86_64-unknown-linux-musl": Interpreter("3.13", "musllinux_1_2_x86_64", (), "on musl 1.2.5"),
}


def of_musl(target: Path) -> Path:
    """The CPython of musl.sh, in Cargo's target folder."""
    return target / "musl" / "cpython" / "bin" / "python3.13"


def missing(target: str, versions: Sequence[str], folder: Path) -> str:
    """Returns why a wheel cannot be tried so; "" if it can."""
    python = INTERPRETERS.get(target)
    if python is None or os.uname().machine != "x86_64":
        return "another platform than this"
    if python.version not in versions:
        return f"another platform than this, on which CPython {python.version} is tried"
    if target.endswith("musl") and not of_musl(folder).exists():
        return "no CPython on musl here: bindings/python/wheels/musl.sh builds one"
    lack = [tool for tool in python.needs if shutil.which(tool) is None]
    return f"another platform than this, and no {', no '.join(lack)} here" if lack else ""


def unpacked(folder: Path, run: Callable[..., str]) -> Path:
    """Fetches the interpreter for arm64, once; returns the root of its files."""
    root = folder / "root"
    if (root / "usr" / "bin" / "python3.11").exists():
        return root
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("state/lists/partial", "cache/archives/partial", "debs"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
    }
    apt = ("apt-get", "-q", *(f"-o{name}={value}" for name, value in settings.items()))
    run(*apt, "update")
    run("env", "-C", folder / "debs", *apt, "download", *PACKAGES)
    for package in sorted((folder / "debs").iterdir()):
        run("dpkg-deb", "-x", package, root)
    return root


def try_in(target: str, file: Path, trial: Path, folder: Path, run: Callable[..., str]) -> str:
    """Unpacks a wheel beside NumPy, and runs the trial; returns what was done."""
    chosen, folder = INTERPRETERS[target], folder.resolve()
    command: tuple[object, ...] = (of_musl(folder),)
    if not target.endswith("musl"):
        root = unpacked(folder / "emulated", run)
        command = (shutil.which(QEMU), "-L", root, root / "usr" / "bin" / "python3.11")
    site = folder / "emulated-site"
    shutil.rmtree(site, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps")
    platform = ("--platform", chosen.numpy, "--python-version", chosen.version, "--only-binary", ":all:")
    run(*pip, *platform, "--dest", site / "wheels", "numpy")
    for wheel in (*(site / "wheels").iterdir(), file):
        zipfile.ZipFile(wheel).extractall(site)
    run(*command, trial, PYTHONPATH=str(site), TRIAL_PYTHON=json.dumps([str(word) for word in command]))
    told = run(*command, "-c", "import platform; print(platform.python_version())").strip()
    return f"tried on CPython {told} {chosen.by}, host memory"
