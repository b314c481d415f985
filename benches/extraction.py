"""Instructions per argument of a Rust function, beside the protocol's own call made in C.

    python benches/extraction.py            the table; exit code 1 where an argument costs over its limit
    python benches/extraction.py --torch    tensors of torch, in an environment that has it

`make bench-instructions` and `make bench-torch` call it with the optimized example; the tests' own is not optimized.
The function is `extract(a: In<f32, 2>)` of bindings/example-peer: the import, the checks of type and
rank, the bounds and the borrow, until all of it is dropped; what PyO3 takes to call a function is
subtracted. The raw call is what it cannot do without: the
producer's functions, the tensor claimed and its deleter called (extraction.c), or for the CUDA Array
Interface the attribute read and parsed (floor/floor.c). The arrays are the host's, or have no elements, so
that no driver is called. How it counts: instructions.py.

The limit is for producers that exist. A table of C functions that only fill a block is there to show what
ours costs by itself: it has no limit.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import instructions

LIMIT = 1.5
#: The floor parses the dict in half of the instructions and asks for no bounds (docs/performance.md). Its count differs
#: by 19 with the addresses of its strings, by which CPython caches attributes.
LIMITS = {"cai": 2.2}

#: What is measured, by the name of the raw call.
PATHS = {
    "numpy": "NumPy, by __dlpack__",
    "cai": "a CAI object, dict made beforehand",
    "cuda.core": "cuda.core, C Exchange API",
    "least": "the least C type, C Exchange API",
}
TORCH = {
    "torch": "torch, C Exchange API and its questions",
    "bare": "torch, C Exchange API, nothing asked",
}
#: Compared, and held to no limit.
UNLIMITED = ("least", "bare")


def workloads(names: Iterable[str]) -> dict[str, tuple[Any, Any, Any]]:
    """Name -> (ours, raw, argument)."""
    import cai_example_peer as peer
    import extraction_raw as raw  # type: ignore[import-not-found]
    import floor  # type: ignore[import-not-found]
    import numpy as np

    matrix = np.zeros((3, 5), np.float32)

    def tensor() -> Any:
        import torch

        return torch.from_numpy(matrix)

    def view() -> Any:
        from cuda.core.utils import StridedMemoryView

        return StridedMemoryView.from_any_interface(matrix, stream_ptr=-1)

    makers = {
        "numpy": (raw.dlpack, lambda: matrix),
        "cai": (floor.view, lambda: instructions.Array((0, 5))),
        "cuda.core": (raw.exchange, view),
        "least": (raw.exchange, lambda: floor.host_view(instructions.Array((3, 5)))),
        "torch": (raw.torch, tensor),
        "bare": (raw.exchange, tensor),
    }
    return {name: (peer.extract, makers[name][0], makers[name][1]()) for name in names}


def measure(names: Iterable[str]) -> None:
    """Runs these workloads; callgrind writes one part of its output for each."""
    import cai_example_peer as peer
    import floor

    calls = {
        f"{who} {name}": (call, arguments[2])
        for name, arguments in workloads(names).items()
        for who, call in zip(("ours", "raw"), arguments[:2], strict=True)
    }
    calls["nothing"] = (floor.nothing, None)
    calls["ignore"] = (peer.ignore, None)
    for label, (call, argument) in calls.items():
        floor.loop(call, (argument,), None, instructions.WARM_UP, "warm-up", False)
        floor.loop(call, (argument,), None, instructions.CALLS, label, False)


def costs(path: str, counts: dict[str, float]) -> tuple[float, float]:
    """Instructions of an extraction, ours and the raw one, without the call."""
    return counts[f"ours {path}"] - counts["ignore"], counts[f"raw {path}"] - counts["nothing"]


def is_within(path: str, counts: dict[str, float]) -> bool:
    ours, raw = costs(path, counts)
    return path in UNLIMITED or ours <= LIMITS.get(path, LIMIT) * raw


def main() -> int:
    paths = TORCH if "--torch" in sys.argv else PATHS
    if "--measure" in sys.argv:
        measure(paths)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        instructions.build(folder, "WITH_CALLGRIND")
        command = [
            "cc",
            "-O3",
            "-DNDEBUG",
            "-Wall",
            "-Wextra",
            "-shared",
            "-fPIC",
            f"-I{sysconfig.get_path('include')}",
        ]
        raw = Path(__file__).with_suffix(".c")
        subprocess.run([*command, str(raw), "-o", str(folder / "extraction_raw.so")], check=True)
        counts = instructions.count(folder, Path(__file__), *sys.argv[1:])
        if not all(is_within(path, counts) for path in paths):
            # Another thread's turn on a busy machine only adds instructions.
            again = instructions.count(folder, Path(__file__), *sys.argv[1:])
            counts = {label: min(count, again[label]) for label, count in counts.items()}
    good = True
    print(f"{'argument In<f32, 2>':40} {'ours':>7} {'raw':>7} {'ratio':>6} {'limit':>6}")
    for path, text in paths.items():
        ours, raw_cost = costs(path, counts)
        good &= is_within(path, counts)
        limit = "none" if path in UNLIMITED else f"{LIMITS.get(path, LIMIT):.2f}"
        mark = "" if is_within(path, counts) else "  over"
        print(f"{text:40} {ours:7.0f} {raw_cost:7.0f} {ours / raw_cost:6.2f} {limit:>6}{mark}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
