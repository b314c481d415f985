"""Instructions of a whole hand-over: from a library's array to another library's array of the same memory.

    make bench-pairs

Counted by callgrind on the simulated driver, whose own instructions are included on every side, for each pair of
libraries that is installed: by `cd.to`; by a view and the call that docs/partners.md recommends, as a user writes it;
by the consumer's own import of the producer's array; and what the producer's attributes alone cost, which no consumer
avoids. Each is a Python function of the array, whose empty call is subtracted. The arrays are 2-d, ready, and of
float32. Exit code 1 if `cd.to` costs more than the line with a view, `NOISE` and what is known.

A warning of undeclared order is issued as usual: shown once, looked up at each import.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import instructions
from instructions import build, count

ROOT = Path(__file__).resolve().parent.parent
CALLS = instructions.CALLS = 500
#: So many times the line, as libraries that call the driver differ from call to call.
NOISE = 1.01
#: What `cd.to` costs above that, by consumer: to Numba, of data that is not ready, it reads Numba's setting, and asks
#: whether the wait of the host, which Numba makes, would break a capture.
KNOWN_TO = {"Numba": 11_500}

Way = Callable[[Any], object]


def producers() -> dict[str, tuple[Any, Way]]:
    """Name -> an array, and how its attributes are read."""
    import numpy as np
    import tvm_ffi
    from cai_conformance import Sim
    from cuda.core.utils import StridedMemoryView
    from numba import cuda

    sys.path.insert(0, str(ROOT))
    from conformance.tests.simulated.machine import Machine

    machine = Machine(Sim())
    machine.set_current(0)
    plain = instructions.Array((3, 5))
    plain.__cuda_array_interface__["data"] = (machine.device_memory(60), False)
    strided = StridedMemoryView.from_any_interface(plain, stream_ptr=-1)
    tensor = tvm_ffi.from_dlpack(strided)
    return {
        "CAI object": (plain, lambda a: a.__cuda_array_interface__),
        "Numba": (cuda.to_device(np.zeros((3, 5), "f4")), lambda a: a.__cuda_array_interface__),
        "tvm-ffi": (tensor, lambda a: (a.__dlpack_device__(), a.__dlpack__())),
        "NumPy": (np.zeros((3, 5), "f4"), lambda a: (a.__dlpack_device__(), a.__dlpack__(max_version=(1, 3)))),
    }


def consumers() -> dict[str, tuple[Way, Way, Way]]:
    """Name -> by `cd.to`, by a view, and the consumer's own import."""
    import cai_dlpack as cd
    import numpy as np
    import tvm_ffi
    from cuda.core.utils import StridedMemoryView
    from numba import cuda

    return {
        "cuda.core": (
            lambda a: cd.to(a, StridedMemoryView),
            lambda a: StridedMemoryView.from_dlpack(cd.view(a), stream_ptr=-1),
            lambda a: StridedMemoryView.from_any_interface(a, stream_ptr=-1),
        ),
        "tvm-ffi": (
            lambda a: cd.to(a, tvm_ffi),
            lambda a: tvm_ffi.from_dlpack(cd.view(a)),
            tvm_ffi.from_dlpack,
        ),
        "Numba": (
            lambda a: cd.to(a, "numba"),
            lambda a: cuda.as_cuda_array(cd.view(a)),
            cuda.as_cuda_array,
        ),
        "NumPy": (
            lambda a: cd.to(a, np),
            lambda a: np.from_dlpack(cd.view(a)),
            np.from_dlpack,
        ),
    }


def workloads() -> dict[str, tuple[Way, Any]]:
    """Label -> the function and its argument; what one of the libraries refuses is left out."""
    calls: dict[str, tuple[Way, Any]] = {"empty": (lambda a: a, None)}
    for producer, (array, attributes) in producers().items():
        calls[f"{producer}|attributes"] = (attributes, array)
        for consumer, ways in consumers().items():
            for way, call in zip(("to", "view", "own"), ways, strict=True):
                try:
                    call(array)
                except Exception as refused:  # of any library, in its own words
                    print(f"{producer} to {consumer}, {way}: {type(refused).__name__}", file=sys.stderr)
                else:
                    calls[f"{producer}|{consumer}|{way}"] = (call, array)
    return calls


def measure() -> None:
    import floor  # type: ignore[import-not-found]

    for label, (call, array) in workloads().items():
        floor.loop(call, (array,), None, 20, "warm-up", False)
        floor.loop(call, (array,), None, CALLS, label, False)


def main() -> int:
    if "--measure" in sys.argv:
        measure()
        return 0
    with tempfile.TemporaryDirectory() as name:
        build(Path(name), "WITH_CALLGRIND")
        counts = count(Path(name), Path(__file__))
    empty = counts["empty"]
    good = True
    print("| from | to | `cd.to` | by a view | its own import | the attributes |\n|---|---|---|---|---|---|")
    for pair in dict.fromkeys(label.rsplit("|", 1)[0] for label in counts if label.count("|") == 2):
        producer, consumer = pair.split("|")
        found = {way: counts.get(f"{pair}|{way}", 0) - empty for way in ("to", "view", "own")}
        cells = [f"{found[way]:.0f}" if found[way] > 0 else "refused" for way in found]
        attributes = counts[f"{producer}|attributes"] - empty
        print(f"| {producer} | {consumer} | {' | '.join(cells)} | {attributes:.0f} |")
        if found["to"] > 0:
            good &= found["to"] <= found["view"] * NOISE + KNOWN_TO.get(consumer, 0)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
