"""Tries an aarch64 wheel under qemu's user mode, on Debian's CPython for arm64.

apt fetches the interpreter's packages into a folder, which they are unpacked into: nothing is installed, and the
machine's own lists of packages stay as they are. Host memory only: the simulated driver is built for this machine.
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

TARGET = "aarch64-unknown-linux-gnu"
QEMU = "qemu-aarch64-static"
#: Debian 12's CPython.
VERSION = "3.11"
PACKAGES = (
    *("libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libexpat1", "libffi8", "libssl3", "libbz2-1.0", "liblzma5"),
    *("libuuid1", f"python{VERSION}-minimal", f"libpython{VERSION}-minimal", f"libpython{VERSION}-stdlib"),
)


def missing(target: str, versions: Sequence[str]) -> str:
    """Returns why a wheel cannot be tried so; "" if it can."""
    if target.endswith("musl"):
        return "no CPython on musl here: Debian has none"
    if target != TARGET or os.uname().machine != "x86_64":
        return "another platform than this"
    if VERSION not in versions:
        return f"another platform than this, on which Debian has CPython {VERSION}"
    lack = [tool for tool in (QEMU, "apt-get", "dpkg-deb") if shutil.which(tool) is None]
    return f"another platform than this, and no {', no '.join(lack)} here" if lack else ""


def interpreter(folder: Path, run: Callable[..., str]) -> Path:
    """Fetches the interpreter, once; returns the root of its files."""
    root = folder / "root"
    python = root / "usr" / "bin" / f"python{VERSION}"
    if python.exists():
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


def try_in(file: Path, trial: Path, folder: Path, run: Callable[..., str]) -> str:
    """Unpacks a wheel beside NumPy, and runs the trial; returns what was done."""
    root, site = interpreter(folder.resolve(), run), folder.resolve() / "site"
    shutil.rmtree(site, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps")
    platform = ("--platform", "manylinux_2_28_aarch64", "--python-version", VERSION, "--only-binary", ":all:")
    run(*pip, *platform, "--dest", site / "wheels", "numpy")
    for wheel in (*(site / "wheels").iterdir(), file):
        zipfile.ZipFile(wheel).extractall(site)
    python = root / "usr" / "bin" / f"python{VERSION}"
    run(QEMU, "-L", root, python, trial, PYTHONPATH=str(site))
    told = run(QEMU, "-L", root, python, "-c", "import platform; print(platform.python_version())").strip()
    return f"tried on CPython {told} under {QEMU}, host memory"
