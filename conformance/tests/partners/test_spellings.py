"""Every text that NumPy takes for a dtype: taken for the same type, or refused by a sentence that is true of it."""

from __future__ import annotations

import warnings
from typing import Any, cast

import cai_dlpack as cd
import numpy as np
import pytest

LETTERS = [chr(code) for code in range(33, 127)]
SIZES = ("1", "2", "4", "8", "16")
TEXTS = sorted(
    {name for name in np.sctypeDict if isinstance(name, str)}
    | set(LETTERS)
    | {order + letter + size for order in ("", "<", ">", "=", "|") for letter in LETTERS for size in SIZES}
    | {"intc", "uintc", "short", "ushort", "byte", "ubyte", "long", "ulong", "int_", "uint", "csingle", "cdouble"}
    | {"M8[ns]", "<m8[D]", ">M8[25us]", "S5", "U3", "V7", "f4,f4", "3f4", "(2,)f4", "object", "str", "datetime64[s]"}
)
DISPUTED = {"float", "int", "uint", "long", "ulong", "l", "L", "int_", "complex", "byte"}
#: NumPy's names of the types that DLPack has.
NAMES = {"bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
NAMES |= {"float16", "float32", "float64", "complex64", "complex128"}


def of_numpy(text: str) -> np.dtype[Any] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return np.dtype(text)
        except (TypeError, ValueError, SyntaxError):
            return None


def of_bridge(text: str) -> cd.DType | ValueError:
    try:
        return cd.DType(text)
    except ValueError as error:
        return error


def test_numpy_takes_many_of_them() -> None:
    assert sum(of_numpy(text) is not None for text in TEXTS) > 200


@pytest.mark.parametrize("text", TEXTS)
def test_a_spelling(text: str) -> None:
    wanted, found = of_numpy(text), of_bridge(text)
    if not isinstance(found, ValueError):
        assert wanted is None or np.dtype(found) == wanted, f"{text}: {found} is not {wanted}"
        assert found == text
        return
    assert getattr(found, "rule", None) == "dtype-argument"
    assert ("disagree" in str(found)) == (text in DISPUTED)
    if wanted is None or text in DISPUTED:
        return
    # "dtype must be the name of one type that DLPack has", which this one is not.
    assert wanted.name not in NAMES or not wanted.isnative, f"{text} is {wanted}, which DLPack has"
    assert wanted.isnative or "byte order" in str(found)


def test_an_object_of_no_known_name_whose_byte_order_raises() -> None:
    class Spelling:
        name = "no type"

        @property
        def isnative(self) -> bool:
            raise LookupError("byte order")

    with pytest.raises(LookupError, match="byte order"):
        cd.view(np.zeros(3, np.float32), dtype=cast("Any", Spelling()))
