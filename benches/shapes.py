"""Instructions for the arrays that libraries export, beside the plain one of the same route.

    python benches/shapes.py    the table; exit code 1 where a shape costs more than its limit

Plain is what the fastest way takes: a dict of version 3 with ints in tuples and no stream, and a type that declares its
order. Libraries export other shapes too, each of which may cost up to 1.3 times the plain one. The limit of those that
cost more is their known ratio, on the CPython on which it was counted.

The producer's attribute is subtracted, and its `__dlpack__` is not. No driver is called. How it counts:
instructions.py.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import instructions

LIMIT = 1.3
#: A known ratio may be exceeded by so much: another compiler builds CPython and this library a little differently.
SLACK = 1.05
#: The CPython on which the known ratios were counted.
KNOWN_ON = (3, 11)
#: The number of types of the row with types in turn.
TYPES = 16


class Shape(NamedTuple):
    """An array, the plain one, and the limit of their ratio."""

    name: str
    measured: str
    plain: str = "plain"
    #: What is known of a shape that costs more than `LIMIT`, on the CPython on which it was counted.
    known: float | None = None

    def limit(self) -> float:
        if self.known is None:
            return LIMIT
        return self.known * SLACK if sys.version_info[:2] == KNOWN_ON else math.inf


SHAPES = [
    Shape("a stream and a descr (CuPy)", "cupy"),
    Shape("a handle as the stream (Numba)", "handle"),
    Shape("version 0, no __dlpack__ (cuDF)", "version 0"),
    Shape("version 2, no __dlpack__", "version 2"),
    Shape("strides that are those of C order", "c order"),
    Shape(f"{TYPES} types in turn", "types in turn", "one type in turn"),
    Shape("order not declared, with __dlpack__ (cuda.core's Buffer)", "undeclared", "by __dlpack__", 1.5),
    Shape("order not declared, version 0, no __dlpack__ (RMM)", "undeclared dict", known=3.0),
    Shape("stream 0", "stream 0", known=3.05),
    Shape("version 4", "version 4", known=3.05),
    Shape("numpy.int64 in the shape", "numpy ints"),
    Shape("lists for tuples", "lists"),
    Shape("a view, without keywords", "view"),
    Shape("9 axes, beside 8", "9 axes", "8 axes"),
]


class Array:
    """A producer whose dict is made beforehand, of these items."""

    def __init__(self, **items: Any) -> None:
        plain = {"shape": (3, 5), "typestr": "<f4", "data": (0x7F0000000000, False), "strides": None}
        self.__cuda_array_interface__ = {**plain, "version": 3, "stream": None, **items}


def of_library(module: str, kind: type = Array) -> type[Any]:
    """Returns a subclass that is of this module."""
    return type("Buffer", (kind,), {"__module__": module})


def by_dlpack(view: Any, module: str) -> Any:
    """An array of a type of this module, which is exported by the view's `__dlpack__`."""

    class Exporter:
        def __dlpack__(self, **asked: Any) -> Any:
            return view.__dlpack__(**asked)

        def __dlpack_device__(self) -> tuple[int, int]:
            return view.__dlpack_device__()

    return of_library(module, Exporter)()


def in_turn(view: Callable[..., Any], arrays: list[Any]) -> Callable[[], None]:
    """Views them one after the other."""

    def call() -> None:
        for array in arrays:
            view(array, device_id=0)

    return call


def workloads() -> dict[str, tuple[Any, tuple[Any, ...], tuple[str, ...]]]:
    """Label -> (callable, arguments, names of the last of them)."""
    import cai_dlpack as cd
    import floor  # type: ignore[import-not-found]
    import numpy as np

    bytes_ = {"version": 0, "shape": (60,), "typestr": "|u1"}
    arrays = {
        "plain": Array(),
        "cupy": Array(stream=1, descr=[("", "<f4")]),
        "handle": Array(stream=0x5500_0000_0000),
        "version 0": of_library("cudf.core.buffer.buffer")(**bytes_),
        "undeclared dict": of_library("rmm.pylibrmm.device_buffer")(**bytes_),
        "version 2": Array(version=2),
        "c order": Array(strides=(20, 4)),
        "stream 0": Array(stream=0),
        "version 4": Array(version=4),
        "numpy ints": Array(shape=(np.int64(3), np.int64(5))),
        "lists": Array(shape=[3, 5], data=[0x7F0000000000, False]),
        "8 axes": Array(shape=(1,) * 8),
        "9 axes": Array(shape=(1,) * 9),
    }
    view = cd.view(arrays["plain"], device_id=0)
    # Made one after the other, they would lie at even distances.
    kinds = random.Random(3).sample([type("Array", (Array,), {}) for _ in range(400)], TYPES)
    calls: dict[str, tuple[Any, tuple[Any, ...], tuple[str, ...]]] = {
        label: (cd.view, (array, 0), ("device_id",)) for label, array in arrays.items()
    }
    return calls | {
        "nothing": (floor.nothing, (None,), ()),
        "attribute": (floor.attribute, (arrays["plain"],), ()),
        "view": (cd.view, (view,), ()),
        "by __dlpack__": (cd.view, (by_dlpack(view, "users.arrays"),), ()),
        "undeclared": (cd.view, (by_dlpack(view, "cuda.core._memory"),), ()),
        "types in turn": (in_turn(cd.view, [kind() for kind in kinds]), (), ()),
        "one type in turn": (in_turn(cd.view, [kinds[0]() for _ in kinds]), (), ()),
    }


def measure() -> None:
    """Runs every workload; callgrind writes one part of its output for each."""
    import floor

    for label, (call, arguments, names) in workloads().items():
        floor.loop(call, arguments, names or None, instructions.WARM_UP, "warm-up", False)
        floor.loop(call, arguments, names or None, instructions.CALLS, label, False)


def own(counts: dict[str, float], label: str) -> float:
    """The instructions of a workload without the call itself and the producer's attribute."""
    without_dict = ("by __dlpack__", "undeclared", "view")
    arrays = TYPES if label.endswith("in turn") else 1
    attribute = 0 if label in without_dict else counts["attribute"] - counts["nothing"]
    return counts[label] - counts["nothing"] - arrays * attribute


def main() -> int:
    if "--measure" in sys.argv:
        measure()
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        instructions.build(folder, "WITH_CALLGRIND")
        counts = instructions.count(folder, Path(__file__))
    good = True
    print(f"{'shape':58} {'ours':>7} {'plain':>7} {'ratio':>6} {'limit':>6}")
    for shape in SHAPES:
        measured, plain = own(counts, shape.measured), own(counts, shape.plain)
        is_over = measured > shape.limit() * plain
        good &= not is_over
        mark = "  over" if is_over else "" if shape.known is None else "  known"
        print(f"{shape.name:58} {measured:7.0f} {plain:7.0f} {measured / plain:6.2f} {shape.limit():6.2f}{mark}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
