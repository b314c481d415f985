"""Builds the wheels of the conformance kit: with the simulated driver for a platform, and without it for any."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
KIT = REPOSITORY / "conformance" / "kit"
#: What `--only` matches: the target of the driver, or none.
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "any")
#: The oldest glibc that the driver is linked against.
GLIBC = (2, 17)


def tag(target: str) -> str:
    """The tag of the platform."""
    machine = target.partition("-")[0]
    return "any" if target == "any" else f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"


def build(target: str, out: Path, folder: Path, run: Callable[..., str], surroundings: dict[str, str]) -> Path:
    """Builds a wheel, with the driver that Cargo links by zig; returns the file."""
    chosen = {"CAI_CONFORMANCE_SIM": "0"}
    options: tuple[str, ...] = ()
    if target != "any":
        zig = ("cargo", "zigbuild", "--release", "--locked", "--package", "cusim", "--lib")
        run("env", "-C", REPOSITORY, *zig, "--target", f"{target}.{GLIBC[0]}.{GLIBC[1]}", **surroundings)
        driver = folder / target / "release" / "libcusim.so"
        chosen = {"CAI_CONFORMANCE_SIM": "1", "CAI_CONFORMANCE_DRIVER": str(driver)}
        options = (f"--config-settings=--build-option=--plat-name={tag(target)}",)
    # setuptools keeps there what the wheel before had.
    shutil.rmtree(KIT / "build", ignore_errors=True)
    made = folder / "kit"
    shutil.rmtree(made, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "wheel", "--no-deps")
    run(*pip, *options, "--wheel-dir", made, KIT, **{**surroundings, **chosen})
    shutil.rmtree(KIT / "build", ignore_errors=True)
    (wheel,) = made.glob("*.whl")
    return Path(shutil.move(wheel, out / wheel.name))


def try_in(file: Path, python: Path, run: Callable[..., str]) -> str:
    """Judges NumPy by a wheel that is installed there, on its driver if it has one; returns what was done."""
    command = python.with_name("cai-conformance")
    judged = (command, "producer", "numpy:asarray")
    run(*judged)
    if file.name.endswith("-any.whl"):
        run("sh", "-c", '! "$@"', "sh", command, "simulate", "--", *judged)
        return "tried, without a driver"
    run(command, "simulate", "--", *judged)
    return "tried, on its driver and without"
