"""Finds the simulated driver, and checks whether this process runs on it."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

SONAME = "libcuda.so.1"

# Programs ask for either name, cudarc for the second one first.
_NAMES = (SONAME, "libcuda.so")

# The version of the `sim_*` interface that this package speaks.
ABI = 1


class NotSimulated(AssertionError):
    """The process does not run on the simulated driver, but something relies on it."""


def library_path() -> Path:
    """The simulated driver: `CUSIM_LIBRARY`, else the package's own, else the clone's newest build."""
    named = os.environ.get("CUSIM_LIBRARY")
    if named:
        return Path(named)
    packaged = Path(__file__).parent / "_lib" / SONAME
    if packaged.exists():
        return packaged
    built = [path for path in _build_outputs() if path.exists()]
    if not built:
        raise FileNotFoundError(
            "this installation has no simulated driver: build one in a clone (cargo build --release --package cusim), "
            "and name it in CUSIM_LIBRARY"
        )
    return max(built, key=lambda path: path.stat().st_mtime)


def _build_outputs() -> list[Path]:
    root = Path(__file__).resolve().parents[4]
    target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    return [target / profile / "libcusim.so" for profile in ("release", "debug")]


def library_folder() -> Path:
    """Returns a folder in which the simulated driver has the names that programs load."""
    path = library_path().resolve()
    if all((path.parent / name).exists() for name in _NAMES):
        return path.parent
    folder = path.parent / "cusim"
    folder.mkdir(exist_ok=True)
    for name in _NAMES:
        link = folder / name
        if not link.exists() or link.resolve() != path:
            fresh = folder / f".{name}.{os.getpid()}"
            fresh.symlink_to(path)
            fresh.replace(link)  # whoever looks meanwhile finds the old one or the new one
    return folder


def loaded() -> ctypes.CDLL | None:
    """The driver that this process uses, or would use: None where there is none."""
    try:
        return ctypes.CDLL(SONAME)
    except OSError:
        return None


def is_simulator(library: ctypes.CDLL) -> bool:
    """Returns whether a loaded libcuda is the simulator: a real driver has no `sim_abi`."""
    return hasattr(library, "sim_abi")


def is_simulated() -> bool:
    """Returns whether this process's CUDA driver is the simulator."""
    library = loaded()
    return library is not None and is_simulator(library)


def require_simulator() -> ctypes.CDLL:
    """The simulator that this process runs on; NotSimulated on a real driver, and on none."""
    library = loaded()
    if library is None:
        raise NotSimulated(f"no {SONAME}: start with `python -m cai_conformance simulate -- COMMAND`")
    if not is_simulator(library):
        raise NotSimulated(f"{SONAME} is a real CUDA driver, and this test must not run on one")
    found = library.sim_abi()
    if found != ABI:
        raise NotSimulated(f"the simulator speaks version {found} of its interface, this package {ABI}")
    return library
