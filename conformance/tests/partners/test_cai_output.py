"""The exported interface, rule by rule, against every consumer: real where it runs here, else a double."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import numba.cuda
import numpy as np
import pytest
from cai_conformance import abi
from cuda.core.utils import StridedMemoryView
from mpi4py import MPI

from conformance.tests.doubles.consumers import DOUBLES
from conformance.tests.doubles.producers import Cai, Dlpack, interface
from conformance.tests.expectations import oracle
from conformance.tests.interpreter import needs
from conformance.tests.simulated.machine import Machine

KEYS = {"shape", "typestr", "data", "strides", "stream", "version"}
VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def array(machine: Machine, **changes: Any) -> cd.CaiView:
    return cd.view(Cai(interface(**{"data": (machine.device_memory(4096), False), **changes})))


# What goes out: the dict that comes in, and who may refuse it, for a reason of its own.
OUTPUTS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "rows": ({}, set()),
    "one axis": ({"shape": (6,)}, set()),
    "one axis, strides said": ({"shape": (6,), "strides": (4,)}, set()),
    "contiguous, strides said": ({"strides": (12, 4)}, set()),
    "an extent of 1, odd strides": ({"shape": (1, 3), "strides": (999, 4)}, set()),
    "columns": ({"strides": (4, 8)}, {"dali", "pylibraft"}),
    "strided": ({"strides": (24, 8)}, {"dali", "jax", "pylibraft"}),
    "backwards": ({"strides": (12, -4)}, {"dali", "jax", "torch", "pylibraft"}),
    "broadcast": ({"shape": (4,), "strides": (0,)}, {"dali", "jax", "pylibraft"}),
    "scalar": ({"shape": ()}, {"cudf", "nvcv", "pybind11_cai", "warp"}),
    "empty": ({"shape": (0, 3)}, {"nvcv", "pybind11_cai"}),
    "empty, strides said": ({"shape": (0, 4), "strides": (32, 8)}, {"nvcv", "pybind11_cai"}),
    "stream 1": ({"stream": 1}, set()),
    "stream 2": ({"stream": 2}, set()),
    "read-only": ({"data": "read-only"}, {"torch"}),
    "bool": ({"typestr": "|b1"}, {"xgboost"}),
    "complex": ({"typestr": "<c8"}, {"xgboost"}),
    "version 0": ({"version": 0}, set()),
    "descr of the typestr": ({"descr": [("", "<f4")]}, set()),
    "mask of nothing": ({"mask": None}, set()),
}


def made(machine: Machine, name: str) -> cd.CaiView:
    changes = dict(OUTPUTS[name][0])
    if changes.get("data") == "read-only":
        changes["data"] = (machine.device_memory(4096), True)
    if name == "backwards":
        changes["data"] = (machine.device_memory(4096) + 64, False)
    return array(machine, **changes)


@pytest.mark.parametrize("consumer", DOUBLES)
@pytest.mark.parametrize("name", OUTPUTS)
def test_the_double_of(consumer: str, name: str, machine: Machine) -> None:
    view = made(machine, name)
    if consumer in OUTPUTS[name][1]:
        with pytest.raises((TypeError, ValueError, RuntimeError, IndexError, NotImplementedError)):
            DOUBLES[consumer](view)
    else:
        assert DOUBLES[consumer](view) == view.ptr


def by_numba(view: cd.CaiView) -> int:
    pointer: int = numba.cuda.as_cuda_array(view).__cuda_array_interface__["data"][0]
    return pointer


def by_cuda_core(view: cd.CaiView) -> int:
    pointer: int = StridedMemoryView.from_cuda_array_interface(view, stream_ptr=1).ptr
    return pointer


@pytest.mark.parametrize("consumer", [by_numba, by_cuda_core])
@pytest.mark.parametrize("name", OUTPUTS)
def test_the_real(consumer: Callable[[cd.CaiView], int], name: str, machine: Machine) -> None:
    view = made(machine, name)
    assert consumer(view) == view.ptr


# --- rule 1: a plain dict, fresh, behind a property that fails as properties do ---------------------------


@pytest.mark.parametrize("name", OUTPUTS)
def test_exact_types(name: str, machine: Machine) -> None:
    found = made(machine, name).__cuda_array_interface__
    assert type(found) is dict and set(found) == KEYS
    assert type(found["shape"]) is tuple and {type(each) for each in found["shape"]} <= {int}
    assert type(found["data"]) is tuple and [type(each) for each in found["data"]] == [int, bool]
    assert type(found["typestr"]) is str and len(found["typestr"]) in (3, 4)
    assert (type(found["version"]), found["version"]) == (int, 3)
    assert found["strides"] is None or {type(found["strides"])} == {tuple}
    assert {type(each) for each in found["strides"] or ()} <= {int}


def test_a_fresh_dict_each_time(machine: Machine) -> None:
    view = array(machine)
    first = view.__cuda_array_interface__
    first["typestr"] = "|t1"  # XGBoost rewrites what it gets
    first.clear()
    assert view.__cuda_array_interface__["typestr"] == "<f4"


def test_not_cuda_is_an_attribute_error() -> None:
    assert not hasattr(cd.view(VALUES), "__cuda_array_interface__")


# --- rules 2 and 3: strides, and nothing in it -------------------------------------------------------------


@needs.numba_cuda
def test_numba_types_a_contiguous_view_as_contiguous(machine: Machine) -> None:
    from numba.cuda.typing.typeof import typeof

    said = numba.cuda.as_cuda_array(made(machine, "contiguous, strides said"))
    assert typeof(said).layout == "C"
    assert typeof(numba.cuda.as_cuda_array(made(machine, "columns"))).layout == "F"


@pytest.mark.parametrize("name", ["rows", "contiguous, strides said", "scalar", "empty", "empty, strides said"])
def test_strides_are_none_where_they_say_nothing(name: str, machine: Machine) -> None:
    assert made(machine, name).__cuda_array_interface__["strides"] is None


@pytest.mark.parametrize("pointer", [0, 4096])
def test_size_0_has_pointer_0(pointer: int) -> None:
    view = cd.view(Cai(interface(shape=(0, 3), data=(pointer, True))), device_id=0)
    assert view.__cuda_array_interface__["data"] == (0, True)


# --- rule 4: the stream -----------------------------------------------------------------------------------


def test_stream_0_goes_out_as_1(machine: Machine) -> None:
    with pytest.warns(UserWarning, match="stream"):
        view = array(machine, stream=0)
    assert view.__cuda_array_interface__["stream"] == 1
    assert DOUBLES["jax"](view) == DOUBLES["xgboost"](view) == view.ptr


def test_consumers_that_ignore_streams_get_ready_data(machine: Machine) -> None:
    ready = machine.stream()
    view = array(machine, stream=ready)
    machine.clear()
    done = view.synchronize()
    assert machine.order() == [("cuStreamSynchronize", ready)]
    assert done.__cuda_array_interface__["stream"] is None


def test_the_stream_is_kept_as_long_as_what_names_it(machine: Machine) -> None:
    stream = numba.cuda.stream()
    owner = numba.cuda.to_device(VALUES, stream=stream)
    view = cd.view(owner)
    assert view.owner is owner
    assert view.__cuda_array_interface__["stream"] == int(stream)


# --- rule 5: no other keys --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OUTPUTS)
def test_json(name: str, machine: Machine) -> None:
    found = made(machine, name).__cuda_array_interface__
    again = json.loads(json.dumps(found))
    assert again["data"] == list(found["data"])


# --- rule 6: read-only ------------------------------------------------------------------------------------


def test_read_only_is_never_dropped_in_silence(machine: Machine) -> None:
    view = made(machine, "read-only")
    assert view.__cuda_array_interface__["data"][1] is True
    with pytest.raises(TypeError, match="read only"):
        DOUBLES["torch"](view)
    asserted = cd.view(view, read_only=False)
    assert asserted.__cuda_array_interface__["data"][1] is False
    assert DOUBLES["torch"](asserted) == view.ptr


def test_torchs_refusal_is_explained(machine: Machine) -> None:
    assert "read" in str(cd.explain(made(machine, "read-only"), to="torch"))


def test_mpi4py_honours_read_only(machine: Machine) -> None:
    memory = machine.managed_memory(64)
    view = cd.from_cai(Cai(interface(shape=(4,), data=(memory, True))))
    assert MPI.memory.frombuffer(view, readonly=True).readonly


# --- rule 7: typestr ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("typestr", oracle.DTYPES)
def test_canonical_typestrs(typestr: str, machine: Machine) -> None:
    for spelling in {typestr, typestr.replace("<", "=") if typestr[0] == "<" else "<" + typestr[1:]}:
        assert array(machine, shape=(2,), typestr=spelling).__cuda_array_interface__["typestr"] == typestr


@pytest.mark.parametrize(
    ("code", "bits", "lanes"),
    [(4, 16, 1), (10, 8, 1), (12, 8, 1), (17, 4, 1), (5, 32, 1), (2, 32, 4), (1, 4, 1)],
    ids=["bfloat16", "float8_e4m3fn", "float8_e5m2", "float4", "complex32", "lanes", "uint4"],
)
def test_no_typestr_no_interface(code: int, bits: int, lanes: int, machine: Machine) -> None:
    tensor = abi.make(device=(2, 0), data=machine.device_memory(64), dtype=(code, bits, lanes))
    view = cd.view(Dlpack(tensor), producer_stream=1)
    assert not hasattr(view, "__cuda_array_interface__")
    with pytest.raises(BufferError):
        view.to_cai()


# --- rule 8: both protocols on one object ------------------------------------------------------------------


def test_cuda_core_takes_either(machine: Machine) -> None:
    view = array(machine)
    assert StridedMemoryView.from_any_interface(view, stream_ptr=1).ptr == view.ptr
    assert StridedMemoryView.from_dlpack(view, stream_ptr=1).ptr == view.ptr


def test_mpi4py_takes_dlpack_first(machine: Machine) -> None:
    memory = machine.managed_memory(64)
    view = cd.from_cai(Cai(interface(shape=(4,), data=(memory, False))))
    assert MPI.memory.frombuffer(view).address == memory


# --- rule 9: byte_offset and NULL strides are resolved ------------------------------------------------------


def test_byte_offset_is_in_the_pointer(machine: Machine) -> None:
    memory = machine.device_memory(256)
    tensor = abi.make(device=(2, 0), data=memory, byte_offset=64)
    found = cd.view(Dlpack(tensor), producer_stream=1).__cuda_array_interface__
    assert found["data"][0] == memory + 64


def test_null_strides_are_c_order(machine: Machine) -> None:
    tensor = abi.make(device=(2, 0), data=machine.device_memory(64), null_strides=True)
    view = cd.view(Dlpack(tensor), producer_stream=1)
    assert view.elem_strides == abi.compact(view.shape)
    assert view.__cuda_array_interface__["strides"] is None
    assert cd.view(Dlpack(tensor), producer_stream=1).byte_strides == tuple(
        4 * each for each in abi.compact(view.shape)
    )
