"""Tests `cd.to`: a library's own array, by the library's table or by its call, ready where the library works."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_dlpack import _core
from cuda.core.utils import StridedMemoryView

from conformance.tests.dlpack import abi, exchange
from conformance.tests.doubles.producers import Cai, StreamObject, interface
from conformance.tests.expectations.refusal import refuse
from conformance.tests.simulated.machine import Machine, one_event

HERE = {"numpy": np.ndarray, "cuda.core": StridedMemoryView, "tvm_ffi": None, "numba": None}
ROWS = {row["name"]: row for row in _core._partners()}


def on_device(machine: Machine, stream: int | None = None, **changes: Any) -> Cai:
    pointer = machine.device_memory(24)
    described: dict[str, Any] = {"shape": (2, 3), "typestr": "<f4", "data": (pointer, False), "stream": stream}
    return Cai(interface(**{**described, **changes}))


def ordered(machine: Machine, call: Callable[[], object]) -> list[tuple[str, int]]:
    machine.clear()
    kept = call()
    calls = machine.order()
    del kept
    return calls


@pytest.mark.parametrize("library", HERE)
def test_the_library_is_named_as_one_likes(library: str) -> None:
    import importlib

    row = ROWS[library]
    array: Any = np.arange(6, dtype="f4") if library != "numba" else Cai(interface())
    names: dict[str, Any] = {}
    exec(row["calls"][0]["import"], names)
    module = importlib.import_module(row["modules"][0])
    ways = [library, row["title"], *row["aliases"], module, *([HERE[library]] if HERE[library] else [])]
    keywords: dict[str, Any] = {} if library != "numba" else {"device_id": 0}
    found = {type(cd.to(array, way, **keywords)) for way in ways}
    called = eval(row["calls"][0]["code"], {**names, "v": cd.view(array, **keywords), "s": -1})
    assert found == {type(called)}


def test_a_name_is_looked_up_once_and_an_unknown_one_refused() -> None:
    array = np.arange(3)
    for wrong in ("nompy", "", "\ud800"):
        found = refuse(lambda wrong=wrong: cd.to(array, wrong), ValueError)  # type: ignore[misc]
        assert (found.rule, found.field) == ("argument-value", "library"), found.message
        assert "numpy, numba" in found.message
    for kind in (5, None, array, b"numpy"):
        found = refuse(lambda kind=kind: cd.to(array, kind), TypeError)  # type: ignore[misc]
        assert (found.rule, found.field) == ("argument-type", "library"), found.message
    found = refuse(lambda: cd.to(array, gc), ValueError)
    assert found.rule == "argument-value", found.message
    found = refuse(lambda: cd.to(array, int), ValueError)
    assert found.rule == "argument-value", found.message


def test_a_library_without_arrays_names_its_call() -> None:
    found = refuse(lambda: cd.to(np.arange(3), "mpi4py"), ValueError)
    assert found.rule == "argument-value"
    assert "comm.Send(v, dest=1)" in found.message


def test_a_library_that_is_not_installed() -> None:
    with pytest.raises(ImportError):
        cd.to(np.arange(3), "cudf")


@pytest.mark.parametrize("where", ["foreign", "view"])
def test_ready_on_the_stream_that_the_caller_names(where: str, machine: Machine) -> None:
    ready, consumer = machine.stream(), machine.stream()
    array: Any = on_device(machine, ready)
    array = array if where == "foreign" else cd.view(array)
    for library in ("cuda.core", StridedMemoryView, "tvm_ffi", "numba"):
        calls = ordered(machine, lambda library=library: cd.to(array, library, stream=consumer))  # type: ignore[misc]
        assert calls[:2] == one_event(ready, consumer), library


def test_ready_where_the_table_works(machine: Machine) -> None:
    ready, work, block = machine.stream(), machine.stream(), machine.stream()
    producer = exchange.Producer()
    taken: list[Any] = []

    def take(tensor: int, out: Any) -> int:
        taken.append(tensor)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(None))
        out[0] = id(None)
        return 0

    kind = exchange.make_type(exchange.capsule(exchange.table(producer, to_object=exchange.ToObject(take))), producer)
    array = on_device(machine, ready)
    producer.stream = work
    assert ordered(machine, lambda: cd.to(array, kind)) == one_event(ready, work)
    producer.stream = 0
    assert ordered(machine, lambda: cd.to(array, kind)) == one_event(ready, 1)
    with cd.use_stream(block, device_id=0):
        assert ordered(machine, lambda: cd.to(array, kind)) == one_event(ready, block)
    assert len(taken) == 3
    for tensor in taken:
        abi.call_deleter(tensor, versioned=True)


@pytest.mark.parametrize("deletes", [False, True])
def test_a_table_that_fails_leaves_nothing(deletes: bool, machine: Machine) -> None:
    """DLPack does not state who owns the tensor after a failure: it is released exactly once."""
    producer = exchange.Producer()

    def fail(tensor: int, _: Any) -> int:
        if deletes:
            abi.call_deleter(tensor, versioned=True)
        return -1

    kind = exchange.make_type(exchange.capsule(exchange.table(producer, to_object=exchange.ToObject(fail))), producer)
    before, array = cd.stats(), on_device(machine)
    with pytest.raises(SystemError, match="without an exception"):
        cd.to(array, kind)
    after = cd.stats()
    assert after["live"] == before["live"] and after["released"] == before["released"] + 1


def test_what_a_table_raises_passes_through(machine: Machine) -> None:
    """cuda.core's table, by a class that the table of partners does not know: it has no dtype of 4 bits."""
    producer = exchange.Producer()
    kind = exchange.make_type(getattr(StridedMemoryView, exchange.ATTRIBUTE), producer)
    before, array = cd.stats(), on_device(machine, shape=(12,), typestr="|u1")
    with pytest.raises(Exception, match="int4") as raised:
        cd.to(array, kind, dtype="int4", shape=(24,)).dtype  # noqa: B018
    assert not hasattr(raised.value, "rule")
    del raised
    gc.collect()
    after = cd.stats()
    assert after["live"] == before["live"] and after["released"] == before["released"] + 1


def test_what_goes_in_comes_out(machine: Machine) -> None:
    """Through a table: our own, whose view shows everything."""
    array = on_device(machine, strides=(4, 8), version=3)
    found = cd.to(array, cd.CaiView, read_only=True)
    assert found.byte_strides == (4, 8)
    assert found.shape == (2, 3) and found.dtype == "float32" and found.read_only
    assert found.ptr == array.interface["data"][0]
    del array
    gc.collect()
    assert cd.stats()["live"] > 0


def test_in_a_consume_block(machine: Machine) -> None:
    ready, consumer = machine.stream(), machine.stream()
    view = cd.view(on_device(machine, ready))
    with view.consume(consumer) as loan:
        assert ordered(machine, lambda: cd.to(loan, StridedMemoryView, stream=consumer)) == []
    found = refuse(lambda: cd.to(loan, StridedMemoryView, stream=consumer), BufferError)
    assert found.rule == "scope-ended", found.message


@pytest.mark.parametrize("library", ["cuda.core", "tvm_ffi"])
@pytest.mark.parametrize("where", ["foreign", "view"])
def test_a_stream_object_goes_with_what_was_made(where: str, library: str, machine: Machine) -> None:
    """Not before, and not at some later call."""
    stream = StreamObject(machine.stream())
    array: Any = on_device(machine)
    array = cd.view(array, producer_stream=stream) if where == "view" else array
    keywords: dict[str, Any] = {"producer_stream": stream} if where == "foreign" else {}
    gone = weakref.ref(stream)
    made = cd.to(array, library, stream=machine.stream(), **keywords)
    del stream, keywords, array
    gc.disable()
    try:
        del made
        assert gone() is None
    finally:
        gc.enable()
