"""Whether an array may be written: read-only, writable, or not known, on every way in and every way out.

A legacy tensor has no read-only flag. Its silence passes to those who are as silent, and is a warning to all others.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import cai_example_peer as peer
import numpy as np
import pytest
import tvm_ffi
from cai_conformance import abi, exchange
from cai_dlpack import _core
from cuda.core.utils import StridedMemoryView
from mpi4py import MPI

from conformance.tests.doubles.producers import Cai, Dlpack, interface
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.simulated.machine import Machine

FLOAT64 = (abi.FLOAT, 64, 1)
PARTNERS = _core._partners()


def host(**changes: Any) -> abi.Made:
    """Three float64 of the host."""
    return abi.make((3,), dtype=FLOAT64, **changes)


STATES: dict[str, tuple[dict[str, Any], bool | None]] = {
    "writable": ({}, False),
    "read-only": ({"flags": abi.READ_ONLY}, True),
    "legacy": ({"versioned": False}, None),
}
states = pytest.mark.parametrize(("changes", "read_only"), STATES.values(), ids=STATES)


def by_table(made: abi.Made) -> cd.CaiView:
    producer = exchange.Producer(made)
    return cd.view(exchange.make_type(exchange.capsule(exchange.table(producer)), producer)())


def from_the_table(made: abi.Made) -> Any:
    out = ctypes.c_void_p()
    to_object = exchange.ToObject(exchange.table_of(cd.CaiView).to_object)
    assert to_object(made.address, ctypes.byref(out)) == 0
    assert out.value
    taken = ctypes.cast(out, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(taken))
    return taken


INWARDS: dict[str, Callable[[abi.Made], Any]] = {
    "view": lambda made: cd.view(Dlpack(made)),
    "from_dlpack": lambda made: cd.from_dlpack(Dlpack(made)),
    "capsule": lambda made: cd.view(made.capsule()),
    "capsule-from_dlpack": lambda made: cd.from_dlpack(made.capsule()),
    "rust": lambda made: peer.view_of(Dlpack(made)),
    "table": by_table,
    "to-object": from_the_table,
}


def capsule_of(view: Any, **keywords: Any) -> abi.Read:
    return abi.read(view.__dlpack__(stream=None, **keywords))


def owning(view: Any) -> bool:
    out = ctypes.c_void_p()
    export = exchange.FromObject(exchange.table_of(cd.CaiView).from_object)
    assert export(id(view), ctypes.byref(out)) == 0
    assert out.value
    tensor = abi.read_at(out.value, versioned=True)
    abi.release(tensor)
    return bool(tensor.flags)


def writes(view: Any) -> bool:
    """Whether a Rust function may write to it."""
    try:
        peer.double(view)
    except BufferError as error:
        return bool(error.rule != "read-only-writer")  # type: ignore[attr-defined]
    return True


def receives_nothing(view: Any) -> bool:
    """Whether MPI refuses to receive into it."""
    try:
        return bool(MPI.memory.frombuffer(view, readonly=False).readonly)
    except BufferError:
        return True


# Whether each consumer of a view is told not to write: all of these can be told.
OUTWARDS: dict[str, Callable[[Any], bool]] = {
    "versioned": lambda view: bool(capsule_of(view, max_version=(1, 3)).flags),
    "np.from_dlpack": lambda view: not np.from_dlpack(view).flags.writeable,
    "np.asarray": lambda view: not np.asarray(view).flags.writeable,
    "array interface": lambda view: bool(view.__array_interface__["data"][1]),
    "buffer": lambda view: memoryview(view).readonly,
    "mpi4py": receives_nothing,
    "cuda.core": lambda view: bool(StridedMemoryView.from_dlpack(view, stream_ptr=-1).readonly),
    "table": owning,
    "InOut": lambda view: not writes(view),
    "another view": lambda view: bool(cd.view(cd.to_dlpack(view, max_version=(1, 3))).read_only),
}


# --- the states ------------------------------------------------------------------------------------------------


@states
@pytest.mark.parametrize("way", INWARDS)
def test_what_comes_in_is_what_the_view_says(way: str, changes: dict[str, Any], read_only: bool | None) -> None:
    if way in ("table", "to-object") and read_only is None:
        changes = {"version": (1, 0)}  # the table's tensors are versioned
        read_only = False
    view = INWARDS[way](host(**changes))
    assert view.read_only is read_only
    marks = {True: " read-only>", None: " perhaps read-only>", False: "None>"}
    assert repr(view).endswith(marks[read_only])


@states
@pytest.mark.parametrize("way", OUTWARDS)
def test_a_consumer_that_can_be_told_is_told(way: str, changes: dict[str, Any], read_only: bool | None) -> None:
    assert OUTWARDS[way](cd.view(Dlpack(host(**changes)))) is (read_only is not False)


@pytest.mark.parametrize("way", OUTWARDS)
@pytest.mark.parametrize("asserted", [True, False])
@states
def test_the_callers_assertion_replaces_it(
    way: str, asserted: bool, changes: dict[str, Any], read_only: bool | None
) -> None:
    view = cd.view(Dlpack(host(**changes)), read_only=asserted)
    assert view.read_only is asserted
    assert OUTWARDS[way](view) is asserted
    assert cd.view(cd.view(Dlpack(host(**changes))), read_only=asserted).read_only is asserted


@states
def test_a_legacy_tensor_is_as_silent_as_it_came(changes: dict[str, Any], read_only: bool | None) -> None:
    view = cd.view(Dlpack(host(**changes)))
    if read_only:
        check_refusal(refuse(view.__dlpack__, BufferError), "read-only-legacy", None)
        check_refusal(refuse(lambda: cd.to_dlpack(view), BufferError), "read-only-legacy", None)
    else:
        assert capsule_of(view).versioned is False
        assert cd.view(view.__dlpack__()).read_only is None
        assert cd.view(cd.to_dlpack(view)).read_only is None
    assert capsule_of(cd.view(cd.to_dlpack(view, writable=True)), max_version=(1, 3)).flags == abi.READ_ONLY
    assert abi.read(cd.to_dlpack(view, max_version=(1, 3), writable=True)).flags == 0


@states
def test_a_loan_is_as_silent(changes: dict[str, Any], read_only: bool | None) -> None:
    view = cd.view(Dlpack(host(**changes)))
    tensor = abi.DLTensor()
    lend = exchange.Borrow(exchange.table_of(cd.CaiView).borrow)
    if read_only:
        check_refusal(refuse(lambda: lend(id(view), ctypes.byref(tensor)), BufferError), "read-only-writer", None)
    else:
        assert lend(id(view), ctypes.byref(tensor)) == 0
        assert tensor.data == view.ptr


@states
def test_a_dict_states_it_too(changes: dict[str, Any], read_only: bool | None, machine: Machine) -> None:
    view = cd.view(Dlpack(abi.make(device=(abi.CUDA, 0), data=machine.device_memory(64), **changes)))
    assert view.__cuda_array_interface__["data"] == (view.ptr, read_only is not False)
    seen = StridedMemoryView.from_cuda_array_interface(view, stream_ptr=-1)
    assert seen.readonly is (read_only is not False)


@pytest.mark.parametrize(
    "derive",
    [
        cd.view,
        lambda view: cd.view(view, shape=(3, 1)),
        lambda view: view.on(1),
        lambda view: view.present_as("host"),
        lambda view: view.synchronize(),
        lambda view: cd.view(view, read_only=view.read_only),
    ],
)
def test_a_view_of_a_view_is_as_unsure(derive: Callable[[Any], Any]) -> None:
    assert derive(cd.view(Dlpack(host(versioned=False)))).read_only is None


def test_a_copy_may_be_written() -> None:
    view = cd.view(Dlpack(host(versioned=False)))
    assert cd.from_dlpack(view, copy=True).read_only is False
    assert cd.view(cd.to_dlpack(view, copy=True, max_version=(1, 3))).read_only is False


def test_a_writer_is_told_what_to_do() -> None:
    array = Dlpack(host(versioned=False))
    found = refuse(lambda: peer.double(array), BufferError)
    check_refusal(
        found, "read-only-writer", "object", value="perhaps read-only float64", hint="read_only=False asserts"
    )
    peer.double(cd.view(Dlpack(host(versioned=False)), read_only=False))


def test_another_copy_of_this_library_is_told_as_any_consumer() -> None:
    assert peer.view_of(cd.view(Dlpack(host(versioned=False)))).read_only is True


# --- the table of partners -----------------------------------------------------------------------------------


@pytest.mark.parametrize("row", PARTNERS, ids=lambda row: row["name"])
@pytest.mark.parametrize("door", [cd.view, cd.from_dlpack], ids=["view", "from_dlpack"])
def test_only_the_table_makes_a_silent_tensor_writable(row: dict[str, Any], door: Callable[[Any], Any]) -> None:
    for module in row["modules"]:
        kind = type("Tensor", (Dlpack,), {"__module__": f"{module}.inner"})
        known = False if row["untold"] == "mutable" else None
        assert door(kind(host(versioned=False))).read_only is known
        # A flag is the array's own statement, and comes before the table.
        assert door(kind(host(flags=abi.READ_ONLY))).read_only is True
        assert door(kind(host())).read_only is False


def test_the_mutable_ones() -> None:
    assert {row["name"] for row in PARTNERS if row["untold"] == "mutable"} == {
        "tvm_ffi", "warp", "paddle", "torch", "cupy",
    }  # fmt: skip


# --- a dict and a tensor of one array --------------------------------------------------------------------------


class Both(Cai, Dlpack):
    """A dict of version 2, which names no stream, and `__dlpack__`, which is preferred to it."""

    def __init__(self, flag: bool, made: abi.Made) -> None:
        Cai.__init__(self, interface(data=(made.tensor.data, flag), version=2, typestr="<f4"))
        Dlpack.__init__(self, made)


@pytest.mark.parametrize("flag", [True, False])
@states
@pytest.mark.parametrize("door", ["view", "to_dlpack"])
def test_a_dict_that_is_left_keeps_its_flag(
    door: str, flag: bool, changes: dict[str, Any], read_only: bool | None, machine: Machine
) -> None:
    array = Both(flag, abi.make(device=(abi.CUDA, 0), data=machine.device_memory(64), **changes))
    merged = flag or read_only is True
    if door == "view":
        assert cd.view(array).read_only is merged
    else:
        assert bool(abi.read(cd.to_dlpack(array, max_version=(1, 3))).flags) is merged
    assert len(array.calls) == 1, "it came by __dlpack__"


def test_the_dict_of_the_original_is_not_the_copys(machine: Machine) -> None:
    copied = abi.make(device=(abi.CUDA, 0), data=machine.device_memory(64), flags=abi.IS_COPIED)
    assert cd.view(Both(True, copied)).read_only is False


# --- real libraries that run here ---------------------------------------------------------------------------------


class OldDLPack(np.ndarray[Any, Any]):
    """NumPy's own double (numpy/_core/tests/test_dlpack.py): has the old protocol alone."""

    def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
        return super().__dlpack__(stream=None)


def test_numpys_own_test_of_writability_through_a_view() -> None:
    new, old = np.arange(5), np.arange(5).view(OldDLPack)
    for made in (cd.view, cd.from_dlpack):
        assert np.from_dlpack(made(new)).flags.writeable
        assert not np.from_dlpack(made(old)).flags.writeable
    # The class lives in numpy's tests there, which makes it NumPy's by name.
    OldDLPack.__module__ = "numpy._core.tests.test_dlpack"
    assert not np.from_dlpack(cd.view(type("Old", (OldDLPack,), {})(5))).flags.writeable


def test_the_flag_goes_round_by_every_library_that_shows_it() -> None:
    for writeable in (True, False):
        values = np.arange(6.0)
        values.flags.writeable = writeable
        view = cd.view(values)
        assert view.read_only is not writeable
        assert np.asarray(view).flags.writeable is writeable
        assert np.from_dlpack(view).flags.writeable is writeable
        memory = StridedMemoryView.from_dlpack(view, stream_ptr=-1)
        assert memory.readonly is not writeable
        assert cd.view(memory).read_only is not writeable
        assert np.from_dlpack(cd.view(memory)).flags.writeable is writeable


def test_tvm_ffis_tensors_can_be_written_by_any_door() -> None:
    tensor = tvm_ffi.from_dlpack(np.arange(6.0))
    for view in (cd.view(tensor), cd.from_dlpack(tensor)):
        assert view.read_only is False
        peer.double(view)
    assert np.asarray(cd.view(tensor)).tolist() == [0, 4, 8, 12, 16, 20]
