"""Instructions per argument of a Rust function, beside the protocol's own call made in C.

    python benches/extraction.py        the table; exit code 1 where an argument costs over 1.5 times the call

The function is `extract(a: In<f32, 2>)` of bindings/example-peer: the import, the checks of type and
rank, the bounds and the borrow, until all of it is dropped; what PyO3 takes to call a function is
subtracted. The raw call is what it cannot do without: the
producer's functions, the tensor claimed and its deleter called (extraction.c), or for the CUDA Array
Interface the attribute read and parsed (floor/floor.c). The arrays are the host's, or have no elements, so
that no driver is called. How it counts: instructions.py.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import instructions

LIMIT = 1.5

#: What is measured, by the name of the raw call.
PATHS = {
    "dlpack": "NumPy, by __dlpack__",
    "exchange": "a C type of the host, C Exchange API",
    "cai": "a CAI object, dict made beforehand",
}


def workloads() -> dict[str, tuple[Any, Any, Any]]:
    """Name -> (ours, raw, argument)."""
    import cai_example_peer as peer
    import extraction_raw as raw  # type: ignore[import-not-found]
    import floor  # type: ignore[import-not-found]
    import numpy as np

    matrix = np.zeros((3, 5), np.float32)
    return {
        "dlpack": (peer.extract, raw.dlpack, matrix),
        "exchange": (peer.extract, raw.exchange, floor.host_view(instructions.Array((3, 5)))),
        "cai": (peer.extract, floor.view, instructions.Array((0, 5))),
    }


def measure() -> None:
    """Runs every workload; callgrind writes one part of its output for each."""
    import cai_example_peer as peer
    import floor

    calls = {
        f"{who} {name}": (call, arguments[2])
        for name, arguments in workloads().items()
        for who, call in zip(("ours", "raw"), arguments[:2], strict=True)
    }
    calls["nothing"] = (floor.nothing, None)
    calls["ignore"] = (peer.ignore, None)
    for label, (call, argument) in calls.items():
        floor.loop(call, (argument,), None, instructions.WARM_UP, "warm-up", False)
        floor.loop(call, (argument,), None, instructions.CALLS, label, False)


def main() -> int:
    if sys.argv[1:] == ["--measure"]:
        measure()
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        instructions.build(folder, "WITH_CALLGRIND")
        command = ["cc", "-O3", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}"]
        raw = Path(__file__).with_suffix(".c")
        subprocess.run([*command, str(raw), "-o", str(folder / "extraction_raw.so")], check=True)
        counts = instructions.count(folder, Path(__file__))
    good = True
    print(f"{'argument In<f32, 2>':40} {'ours':>7} {'raw':>7} {'ratio':>6} {'limit':>6}")
    for path, text in PATHS.items():
        ours = counts[f"ours {path}"] - counts["ignore"]
        raw_cost = counts[f"raw {path}"] - counts["nothing"]
        good &= ours <= LIMIT * raw_cost
        mark = "" if ours <= LIMIT * raw_cost else "  over"
        print(f"{text:40} {ours:7.0f} {raw_cost:7.0f} {ours / raw_cost:6.2f} {LIMIT:6.2f}{mark}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
