"""The arrays that a producer is asked to make. Each is an expression, so that a report can show the program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Sample:
    """A NumPy array by the expression that makes it."""

    name: str
    code: str
    huge: bool = False
    """Whether a copy of it takes more memory than a check may."""

    def array(self) -> np.ndarray[Any, Any]:
        """A fresh array each time."""
        scope = {"np": np, "read_only": read_only}
        found: np.ndarray[Any, Any] = eval(self.code, scope)  # our own text, below
        return found


def read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array, no longer writable."""
    array.flags.writeable = False
    return array


_MATRIX = "np.arange(6, dtype=np.float32).reshape(2, 3)"
_SHAPES = {
    "matrix": _MATRIX,
    "vector": "np.arange(5, dtype=np.int64)",
    "scalar": "np.array(7, dtype=np.float32)",
    "cube": "np.arange(24, dtype=np.float64).reshape(2, 3, 4)",
    "empty": "np.zeros((0, 3), dtype=np.float32)",
    "one": "np.arange(3, dtype=np.float32).reshape(1, 3)",
    "fortran": f"np.asfortranarray({_MATRIX})",
    "every-second": "np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]",
    "offset": "np.arange(8, dtype=np.float32)[3:]",
    "reversed": "np.arange(6, dtype=np.float32)[::-1]",
    "repeated": "np.broadcast_to(np.arange(3, dtype=np.float32), (2, 3))",
    "read-only": f"read_only({_MATRIX})",
}
_DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "complex64",
    "complex128",
)

SAMPLES = {
    **{name: Sample(name, code) for name, code in _SHAPES.items()},
    **{name: Sample(name, f"np.array([0, 1, 1]).astype(np.{name})") for name in _DTYPES},
    "big-endian": Sample("big-endian", "np.arange(3).astype('>f4')"),
    "object": Sample("object", "np.array([None, 1], dtype=object)"),
    "huge": Sample("huge", "np.lib.stride_tricks.as_strided(np.zeros(1, dtype=np.int8), (2**33,), (0,))", huge=True),
}

#: Arrays whose description must be right.
PLAIN = ("matrix",)
SHAPES = ("matrix", "vector", "scalar", "cube", "one", "empty")
LAYOUTS = ("fortran", "every-second", "offset", "reversed", "repeated")
DTYPES = ("matrix", "vector", "cube", *_DTYPES)
FULL = ("matrix", "vector", "scalar", "cube", "one", *LAYOUTS)
