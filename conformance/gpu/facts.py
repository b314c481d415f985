"""Says what a result is of: hardware, driver, versions, date and commit; the simulator is named as such.

python -m conformance.gpu.facts     prints it, as comments at the head of a result
"""

from __future__ import annotations

import argparse
import ctypes
import platform

from cai_conformance.library import is_simulator, loaded

from conformance.gpu.child import answer
from conformance.matrix.installed import versions
from conformance.provenance import commit, today

LIBRARIES = {
    "numpy",
    "cuda-core",
    "cuda-bindings",
    "numba-cuda",
    "apache-tvm-ffi",
    "torch",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "jax",
}
SIMULATED = "SIMULATED: no GPU took part, and nothing here is about one"

# CUdevice_attribute: what the answers depend on.
ATTRIBUTES = {
    "compute capability, major": 75,
    "compute capability, minor": 76,
    "concurrent managed access": 89,
    "pageable memory access": 88,
    "by the host's page tables": 100,
    "direct managed access from the host": 101,
    "memory pools": 115,
}


def devices() -> str:
    """Returns each device with its attributes and the driver's version, in one line; the simulator's label."""
    driver = loaded()
    if driver is None:
        return "no driver"
    if is_simulator(driver):
        return SIMULATED
    code = driver.cuInit(0)
    if code:
        return f"no GPU: cuInit returns {code}"
    number, count = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(number))
    driver.cuDeviceGetCount(ctypes.byref(count))
    found = [device(driver, ordinal) for ordinal in range(count.value)]
    return f"CUDA {number.value // 1000}.{number.value % 1000 // 10}; " + "; ".join(found)


def device(driver: ctypes.CDLL, ordinal: int) -> str:
    name, value = ctypes.create_string_buffer(100), ctypes.c_int()
    driver.cuDeviceGetName(name, 100, ordinal)
    told = []
    for label, attribute in ATTRIBUTES.items():
        code = driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, ordinal)
        told.append(f"{label} {f'unknown ({code})' if code else value.value}")
    return f"device {ordinal}: NVIDIA: {name.value.decode()} ({', '.join(told)})"


def head() -> list[str]:
    """The lines at the head of a result."""
    present = {name: version for name, version in versions(LIBRARIES).items() if version}
    return [
        f"# date: {today()}",
        f"# commit: {commit()}",
        f"# hardware and driver: {answer(devices)}",
        f"# host: {platform.platform()}, Python {platform.python_version()}",
        "# versions: " + ", ".join(f"{name} {version}" for name, version in present.items()),
    ]


def begin(parser: argparse.ArgumentParser, simulated: bool) -> None:
    """Prints the head of a part's result; ends the process where the machine is not the one that was asked for."""
    lines = head()
    print("\n".join(lines), flush=True)
    found = answer(devices)
    if simulated != (found == SIMULATED):
        parser.error(f"this is {found}: --simulated is for the simulator, and only for it")
    if not simulated and "NVIDIA: " not in found:
        parser.error(f"a GPU is needed; here: {found}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", action="store_true")
    begin(parser, parser.parse_args().simulated)


if __name__ == "__main__":
    main()
