"""What each library that runs here makes of the read-only flag: what the table of partners and `explain` tell.

The other libraries are looked at by the matrix (`conformance/matrix/access.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import ml_dtypes
import numba.cuda
import numpy as np
import pytest
import tvm_ffi
from cai_conformance import abi
from cai_dlpack import _core
from cuda.core.utils import StridedMemoryView
from mpi4py import MPI

from conformance.tests.simulated.machine import Machine

ROWS = {row["name"]: row for row in _core._partners()}

#: By the call as it stands in the table: on which memory, the call, and whether what it makes may be written.
CALLS: dict[str, tuple[str, Callable[[Any], Any], Callable[[Any], bool]]] = {
    "np.from_dlpack(v)": ("host", np.from_dlpack, lambda made: made.flags.writeable),
    "np.asarray(v)": ("host", np.asarray, lambda made: made.flags.writeable),
    "numba.cuda.as_cuda_array(v)": (
        "device",
        numba.cuda.as_cuda_array,
        lambda made: not made.__cuda_array_interface__["data"][1],
    ),
    "StridedMemoryView.from_dlpack(v, stream_ptr=s)": (
        "device",
        lambda v: StridedMemoryView.from_dlpack(v, stream_ptr=1),
        lambda made: not made.readonly,
    ),
    "StridedMemoryView.from_cuda_array_interface(v, stream_ptr=s)": (
        "device",
        lambda v: StridedMemoryView.from_cuda_array_interface(v, stream_ptr=1),
        lambda made: not made.readonly,
    ),
    "tvm_ffi.from_dlpack(v)": (
        "host",
        tvm_ffi.from_dlpack,
        lambda made: abi.read(made.__dlpack__(max_version=(1, 3))).flags == 0,
    ),
    "comm.Send(v, dest=1)": ("host", MPI.memory, lambda made: not made.readonly),
}
OWN = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float6_e2m3fn, ml_dtypes.float4_e2m1fn, ml_dtypes.int4]
HERE = ("numpy", "numba", "cuda.core", "tvm_ffi", "mpi4py")


def test_each_call_of_the_libraries_here_is_tried() -> None:
    codes = {call["code"] for name in HERE for call in ROWS[name]["calls"] if not call["copies"]}
    assert codes == set(CALLS)


@pytest.mark.parametrize("library", HERE)
@pytest.mark.parametrize("access", [True, False, None], ids=["read-only", "writable", "unknown"])
def test_the_flag(library: str, access: bool | None, machine: Machine) -> None:
    for call in ROWS[library]["calls"]:
        if call["copies"]:
            continue
        memory, hand_over, may_write = CALLS[call["code"]]
        where = {"device": (abi.CUDA, 0), "data": machine.device_memory(64)} if memory == "device" else {}
        keywords = {} if access is None else {"read_only": access}
        view = cd.view(abi.make(versioned=False, **where).capsule(), **keywords)  # type: ignore[arg-type]
        assert view.read_only is access
        may = may_write(hand_over(view))
        assert may == (access is False or "the read-only flag" in call["drops"]), call["code"]
        told = cd.explain(view, to=library)
        if told.call == call["code"]:
            assert (told.dropped is not None) == (may and access is not False)


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (3, 0), (0,)], ids=str)
@pytest.mark.parametrize("dtype", ["f4", "?", "c8", ">f4", "M8[s]", "S3", "V8", [("x", "<f4")], *OWN], ids=str)
@pytest.mark.parametrize("read_only", [True, False], ids=["read-only", "writable"])
def test_asarray_keeps_the_flag(read_only: bool, dtype: Any, shape: tuple[int, ...]) -> None:
    """By any protocol, and without elements too: NumPy would let write the memory that it makes for address 0."""
    array = np.zeros(shape, dtype)
    array.flags.writeable = not read_only
    view = cd.view(array)
    assert view.read_only is read_only
    for made in (np.asarray(view), view.__array__(), np.array(view, copy=None)):
        assert (made.flags.writeable, made.shape, made.dtype) == (not read_only, shape, array.dtype)


def test_what_is_dropped_is_named_in_the_text() -> None:
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    told = cd.explain(frozen, to="tvm_ffi")
    assert told.refused is None
    assert told.dropped is not None
    assert told.dropped in str(told)
    assert cd.explain(frozen).dropped is None
    assert cd.explain(np.zeros(3), to="tvm_ffi").dropped is None
