"""Reads bfloat16 and float8 from the object's own `dtype` if its typestr is of unsigned ints; nothing is guessed."""

from __future__ import annotations

from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.simulated.machine import Machine


class Named:
    """A dtype object that is known by its text alone, as torch's and Paddle's are."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


class bfloat16:  # Warp's dtypes are classes of such names
    pass


def array(machine: Machine, library: str, typestr: str, dtype: Any) -> Any:
    class Array(Cai):
        pass

    Array.__module__ = library
    made = Array(interface(typestr=typestr, data=(machine.device_memory(64), False)))
    if dtype is not None:
        made.dtype = dtype  # type: ignore[attr-defined]
    return made


PROVEN = [
    pytest.param("cupy", "<V2", Named("bfloat16"), "bfloat16", id="cupy-V2"),
    pytest.param("torch", "<V2", Named("torch.bfloat16"), "bfloat16", id="torch-V2"),
    pytest.param("torch", "<f2", Named("torch.bfloat16"), "bfloat16", id="torch-2024-f2"),
    pytest.param("paddle", "<f2", Named("paddle.bfloat16"), "bfloat16", id="paddle-f2"),
    pytest.param("warp._src.types", "<u2", bfloat16, "bfloat16", id="warp-u2"),
    pytest.param("anyone", "|V1", Named("float8_e4m3fn"), "float8_e4m3fn", id="float8-V1"),
    pytest.param("anyone", "|f1", Named("float8_e5m2"), "float8_e5m2", id="float8-f1"),
]


@pytest.mark.parametrize(("library", "typestr", "dtype", "name"), PROVEN)
def test_the_objects_own_dtype_decides(library: str, typestr: str, dtype: Any, name: str, machine: Machine) -> None:
    source = array(machine, library, typestr, dtype)
    for view in (cd.view(source), cd.from_cai(source), cd.view(source, device_id=0)):
        assert view.dtype == name
    assert cd.view(source, dtype="uint16" if typestr[-1] == "2" and typestr[1] != "f" else name).dtype
    code = {"bfloat16": (abi.BFLOAT, 16, 1), "float8_e4m3fn": (10, 8, 1), "float8_e5m2": (12, 8, 1)}[name]
    assert abi.read(cd.to_dlpack(source, device_id=0, stream=-1, max_version=(1, 3))).dtype == code


PLAIN = [
    pytest.param("paddle", "<f2", Named("paddle.float16"), "float16", id="paddle-float16"),
    pytest.param("paddle", "<f2", None, "float16", id="no-dtype"),
    pytest.param("anyone", "<f2", Named("bfloat16"), "float16", id="another-library-means-f2"),
    pytest.param("warp", "<u2", Named("uint16"), "uint16", id="warp-uint16"),
    pytest.param("warp", "<f4", Named("bfloat16"), "float32", id="another-size"),
]


@pytest.mark.parametrize(("library", "typestr", "dtype", "name"), PLAIN)
def test_else_the_typestr_holds(library: str, typestr: str, dtype: Any, name: str, machine: Machine) -> None:
    assert cd.view(array(machine, library, typestr, dtype)).dtype == name


def test_a_library_that_speaks_dlpack_too_is_believed_no_less(machine: Machine) -> None:
    source = array(machine, "anyone", "<f2", Named("bfloat16"))
    type(source).__dlpack__ = lambda self, **_: pytest.fail("not asked")
    assert cd.view(source).dtype == "float16"


@pytest.mark.parametrize("dtype", [None, np.dtype("V2"), Named("int16"), Named("float8_e5m2"), Named("")])
def test_raw_bytes_without_a_proof_stay_raw_bytes(dtype: Any, machine: Machine) -> None:
    source = array(machine, "anyone", "<V2", dtype)
    view = cd.view(source)
    for door in (lambda: cd.to_dlpack(source), view.__dlpack__):
        check_refusal(refuse(door, BufferError), "typestr-void", "typestr", value="<V2", hint="dtype='bfloat16'")
    assert view.to_cai()["typestr"] == "|V2"
