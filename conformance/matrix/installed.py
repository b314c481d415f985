"""Lists the libraries of the matrix, those installed, their versions, and the driver."""

from __future__ import annotations

import ctypes
from importlib import metadata

from cai_conformance.library import is_simulator, loaded

from conformance.matrix import device, host, silent
from conformance.matrix.calls import PARTNERS

LIBRARIES = [
    ("host", list(host.PRODUCERS), sorted({name for name, _ in host.CONSUMERS})),
    ("device", list(device.PRODUCERS), sorted({name for name, _ in device.CONSUMERS})),
]

# On device memory these run on a GPU alone: they reach the driver through a static CUDA runtime.
GPU_ONLY = {name for name, row in PARTNERS.items() if row["checked"] not in ("matrix", "test")}

# Why these are not installed by `make conformance`.
ABSENT = {
    "pycuda": "has no wheel: `make pycuda` builds it from source",
    "torch": "its CPU side has a target of its own, `make torch`; its CUDA side needs a GPU",
    **dict.fromkeys(silent.NAMES, "its pairs have a target of their own, `make readers`"),
    "cupy-cuda13x": "needs a GPU: its runtime asks the driver for private tables",
}

NEEDS = {"nvidia-cupynumeric": "needs the runtime of Legate"}

# Partners without a case: nothing that they do was run.
CASES = {name for _, producers, consumers in LIBRARIES for name in [*producers, *consumers]}
ELSEWHERE = {
    name: "tests of its own call it" if row["checked"] == "test" else NEEDS.get(name, "needs a GPU")
    for name, row in PARTNERS.items()
    if name not in CASES
}


def version(name: str) -> str | None:
    """Of a distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def present(only: list[str] | None) -> tuple[set[tuple[str, str]], dict[str, str]]:
    """Returns the (room, library) pairs that run, and a reason for each that does not."""
    here: set[tuple[str, str]] = set()
    absent = dict(ELSEWHERE)
    for room, producers, consumers in LIBRARIES:
        for name in {*producers, *consumers}:
            if only is not None and name not in only:
                absent[f"{name} ({room})"] = "left out by --only"
            elif version(name) is None:
                absent[f"{name} ({room})"] = ABSENT.get(name, "not installed here")
            elif room == "device" and name in GPU_ONLY and not driver().startswith("NVIDIA"):
                absent[f"{name} ({room})"] = "needs a GPU: it reaches the driver through a static CUDA runtime"
            else:
                here.add((room, name))
    return here, dict(sorted(absent.items()))


def versions(names: set[str]) -> dict[str, str]:
    """Of the libraries that take part, and of this one."""
    return {name: version(name) or "" for name in sorted({*names, "cai-dlpack", "ml_dtypes"})}


def driver() -> str:
    """`simulated driver`, `no driver`, or the GPU's name and the driver's version."""
    library = loaded()
    if library is None:
        return "no driver"
    if is_simulator(library):
        return "simulated driver"
    number, name = ctypes.c_int(), ctypes.create_string_buffer(100)
    library.cuInit(0)
    library.cuDriverGetVersion(ctypes.byref(number))
    library.cuDeviceGetName(name, 100, 0)
    return f"NVIDIA: {name.value.decode()}, driver for CUDA {number.value // 1000}.{number.value % 1000 // 10}"
