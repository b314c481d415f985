"""Times conversions on a GPU with its driver, beside other libraries, in nanoseconds.

    python benches/gpu.py               prints the tables and saves them under conformance/results/
    python benches/gpu.py --simulated   on the simulator, to see that it runs; saves nothing

The calls of a table take turns, round after round; minimum and median are over the rounds. A library that
is not installed, or fails, is listed with its reason.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "conformance" / "kit" / "src")]

import cai_dlpack as cd  # noqa: E402
from conformance.matrix.installed import driver, versions  # noqa: E402
from conformance.provenance import commit, today  # noqa: E402

Call = Callable[[], object]
ROUNDS, CALLS = 31, 300


class Array:
    """The interface of a device array and nothing else, ready on a stream."""

    def __init__(self, memory: Any, stream: int) -> None:
        pointer = int(memory.handle)
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": (32, 32), "typestr": "<f4", "data": (pointer, False), "strides": None, "version": 3,
            "stream": stream,
        }  # fmt: skip


def measure(calls: dict[str, Call]) -> dict[str, tuple[float, float]]:
    """Minimum and median nanoseconds of each, in turns."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for at in range(-2, ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            if at >= 0:
                spent[name].append((time.perf_counter_ns() - start) / CALLS)
    return {name: (min(times), statistics.median(times)) for name, times in spent.items()}


def usable(calls: dict[str, Callable[[], Call]]) -> tuple[dict[str, Call], dict[str, str]]:
    """Returns the calls that can be made once, and for each of the others the reason."""
    made: dict[str, Call] = {}
    absent: dict[str, str] = {}
    for name, make in calls.items():
        try:
            call = make()
            call()
        except Exception as error:  # whatever a foreign library says
            absent[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        else:
            made[name] = call
    return made, absent


def driver_calls(array: Array, a: int, b: int) -> dict[str, Callable[[], Call]]:
    """Returns one conversion with more and more driver calls, and an empty call for the loop itself."""
    view = cd.view(array, device_id=0)
    return {
        "an empty call": lambda: lambda: None,
        "view, device_id=0: no driver call": lambda: lambda: cd.view(array, device_id=0),
        "view: one pointer query": lambda: lambda: cd.view(array),
        "view, check='bounds': one query with the range": lambda: lambda: cd.view(array, check="bounds"),
        "view.on(the same stream): no driver call": lambda: lambda: view.on(a),
        "view.on(another stream): one record, one wait": lambda: lambda: view.on(b),
        "view.__dlpack__(another stream): the same": lambda: lambda: view.__dlpack__(stream=b, max_version=(1, 3)),
    }


def imports(array: Array, b: int) -> dict[str, Callable[[], Call]]:
    """Returns imports of one object by each library directly, and through a view."""

    def cupy() -> Call:
        import cupy

        return lambda: cupy.asarray(array)

    def cupy_by_view() -> Call:
        import cupy

        return lambda: cupy.from_dlpack(cd.view(array, device_id=0))

    def torch() -> Call:
        import torch

        return lambda: torch.as_tensor(array, device="cuda")

    def torch_by_view() -> Call:
        import torch

        return lambda: torch.from_dlpack(cd.view(array, device_id=0))

    def numba() -> Call:
        import numba.cuda

        return lambda: numba.cuda.as_cuda_array(array, sync=False)

    def numba_by_view() -> Call:
        import numba.cuda

        return lambda: numba.cuda.as_cuda_array(cd.view(array, device_id=0), sync=False)

    def cuda_core() -> Call:
        from cuda.core.utils import StridedMemoryView

        return lambda: StridedMemoryView.from_cuda_array_interface(array, stream_ptr=b)

    return {
        "cai_dlpack.view": lambda: lambda: cd.view(array),
        "cai_dlpack.view, ready on another stream": lambda: lambda: cd.view(array).on(b),
        "cuda.core StridedMemoryView, for another stream": cuda_core,
        "numba.cuda.as_cuda_array": numba,
        "numba.cuda.as_cuda_array(cai_dlpack.view)": numba_by_view,
        "cupy.asarray": cupy,
        "cupy.from_dlpack(cai_dlpack.view)": cupy_by_view,
        "torch.as_tensor": torch,
        "torch.from_dlpack(cai_dlpack.view)": torch_by_view,
    }


def tensors() -> dict[str, Callable[[], Call]]:
    """A torch tensor on the GPU, taken by each library."""

    def tensor() -> Any:
        import torch

        return torch.zeros(32, 32, device="cuda")

    def by(take: Callable[[Any], object]) -> Callable[[], Call]:
        def make() -> Call:
            source = tensor()
            return lambda: take(source)

        return make

    def cupy(source: Any) -> object:
        import cupy

        return cupy.from_dlpack(source)

    def torch(source: Any) -> object:
        import torch

        return torch.from_dlpack(source)

    return {
        "cai_dlpack.view(tensor)": by(cd.view),
        "cai_dlpack.from_dlpack(tensor)": by(cd.from_dlpack),
        "torch.from_dlpack(tensor)": by(torch),
        "cupy.from_dlpack(tensor)": by(cupy),
    }


def table(title: str, calls: dict[str, Callable[[], Call]]) -> list[str]:
    made, absent = usable(calls)
    lines = [f"### {title}", "", "| call | min ns | median ns |", "|---|---|---|"]
    lines += [f"| {name} | {least:.0f} | {middle:.0f} |" for name, (least, middle) in measure(made).items()]
    lines += [f"| {name} | not run | {reason} |" for name, reason in absent.items()]
    return [*lines, ""]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", action="store_true")
    asked = parser.parse_args()
    machine = driver()
    if asked.simulated != (machine == "simulated driver"):
        parser.error(f"this is {machine}: --simulated is for the simulator, and only for it")
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    a, b = device.create_stream(), device.create_stream()
    array = Array(device.allocate(4096, stream=a), int(a.handle))
    a.sync()
    libraries = versions({"numpy", "cuda-core", "numba-cuda", "torch", "cupy-cuda12x", "cupy-cuda13x"})
    text = [
        "# Conversions on a GPU",
        "",
        f"{today()}, commit {commit()}, {machine}, Python {platform.python_version()}; "
        + ", ".join(f"{name} {version}" for name, version in libraries.items() if version),
        "",
        *table("What the driver's calls cost", driver_calls(array, int(a.handle), int(b.handle))),
        *table("An object with the interface, ready on a stream", imports(array, int(b.handle))),
        *table("A tensor of torch", tensors()),
    ]
    print("\n".join(text))
    if not asked.simulated:
        (ROOT / "conformance" / "results" / f"gpu-bench-{today()}.md").write_text("\n".join(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
