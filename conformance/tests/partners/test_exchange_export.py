"""Our own table, called as a C consumer calls it: by function pointers, with nothing of Python between."""

from __future__ import annotations

import ctypes
import gc
import sys
import textwrap
import threading
import weakref
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
import tvm_ffi

from conformance.tests.dlpack import abi, exchange
from conformance.tests.doubles.producers import cai
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.ownership.subprocesses import run
from conformance.tests.simulated.machine import Machine, one_event

TABLE = exchange.table_of(cd.CaiView)
from_object = exchange.FromObject(TABLE.from_object)
to_object = exchange.ToObject(TABLE.to_object)
borrow = exchange.Borrow(TABLE.borrow)
work_stream = exchange.WorkStream(TABLE.work_stream)
allocator = exchange.Allocator(TABLE.allocator)


def take(view: object) -> abi.Read:
    """The owning tensor of a view; what the callback raises comes out as itself."""
    out = ctypes.c_void_p()
    code = from_object(id(view), ctypes.byref(out))
    assert code == 0
    assert out.value
    return abi.read_at(out.value, versioned=True)


def lend(view: object) -> abi.DLTensor:
    tensor = abi.DLTensor()
    assert borrow(id(view), ctypes.byref(tensor)) == 0
    return tensor


def stream_now(device_type: int = abi.CUDA, ordinal: int = 0) -> int:
    out = ctypes.c_void_p(0xBAD)
    assert work_stream(device_type, ordinal, ctypes.byref(out)) == 0
    return out.value or 0


def device_view(machine: Machine, **changes: Any) -> Any:
    return cd.view(cai(data=(machine.device_memory(64), False), **changes))


# --- the table ---------------------------------------------------------------------------------------------


def test_the_table_is_complete() -> None:
    assert (TABLE.version.major, TABLE.version.minor) == (1, 3)
    assert not TABLE.prev_api
    functions = (TABLE.allocator, TABLE.from_object, TABLE.to_object, TABLE.borrow, TABLE.work_stream)
    assert all(functions)
    assert len(set(functions)) == 5


def test_it_stands_on_the_type_and_is_the_same_each_time() -> None:
    capsule = getattr(cd.CaiView, exchange.ATTRIBUTE)
    assert abi.name(capsule) == b"dlpack_exchange_api"
    assert abi.pointer(capsule) == abi.pointer(getattr(cd.CaiView, exchange.ATTRIBUTE))
    del capsule
    gc.collect()
    assert exchange.table_of(cd.CaiView).version.major == 1


# --- the owning tensor -----------------------------------------------------------------------------------------


def test_the_owning_tensor_says_what_the_view_says(machine: Machine) -> None:
    view = device_view(machine, shape=(4, 3), strides=(16, 4))
    tensor = take(view)
    assert (tensor.version, tensor.flags) == ((1, 3), 0)
    assert (tensor.data, tensor.shape, tensor.strides) == (view.ptr, (4, 3), (4, 1))
    assert (tensor.device, tensor.dtype, tensor.byte_offset) == ((2, 0), (abi.FLOAT, 32, 1), 0)
    abi.release(tensor)


def test_the_owning_tensor_keeps_the_owner(machine: Machine) -> None:
    producer = cai(data=(machine.device_memory(64), False))
    alive = weakref.ref(producer)
    tensor = take(cd.view(producer))
    del producer
    gc.collect()
    assert alive() is not None
    abi.release(tensor)
    gc.collect()
    assert alive() is None


def test_read_only_is_in_the_flags(machine: Machine) -> None:
    tensor = take(cd.view(device_view(machine), read_only=True))
    assert tensor.flags == abi.READ_ONLY
    abi.release(tensor)


def test_a_host_tensor_and_an_empty_one(machine: Machine) -> None:
    host = np.arange(6, dtype=np.int16)
    tensor = take(cd.view(host))
    assert (tensor.device, tensor.data) == ((1, 0), host.ctypes.data)
    abi.release(tensor)
    tensor = take(cd.view(cai(shape=(0, 3), data=(0, False)), device_id=1))
    assert (tensor.device, tensor.data, tensor.shape) == ((2, 1), 0, (0, 3))
    abi.release(tensor)


@pytest.mark.parametrize("thing", [None, 5, object(), cd.CaiView], ids=["None", "int", "object", "the-class"])
@pytest.mark.parametrize("function", [take, lend], ids=["owning", "borrowed"])
def test_what_is_no_view_is_refused(function: Any, thing: object) -> None:
    with pytest.raises(TypeError, match="CaiView"):
        function(thing)


# --- order -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [take, lend], ids=["owning", "borrowed"])
def test_the_work_stream_waits_for_the_view(function: Any, machine: Machine) -> None:
    ready = machine.stream()
    view = device_view(machine, stream=ready)
    machine.clear()
    taken = function(view)
    assert machine.order() == one_event(ready, 1)
    assert stream_now() == 0, "the driver's name of the legacy default stream"
    if function is take:
        abi.release(taken)


@pytest.mark.parametrize("function", [take, lend], ids=["owning", "borrowed"])
def test_use_stream_names_the_work_stream(function: Any, machine: Machine) -> None:
    ready, mine = machine.stream(), machine.stream()
    view = device_view(machine, stream=ready)
    machine.clear()
    with cd.use_stream(mine):
        taken = function(view)
        assert stream_now() == mine
        assert stream_now(abi.CUDA_MANAGED) == mine
        assert stream_now(ordinal=1) == 0
        assert stream_now(abi.CPU) == 0
    assert stream_now() == 0
    assert machine.order() == one_event(ready, mine)
    if function is take:
        abi.release(taken)


def test_the_work_stream_is_the_threads_own(machine: Machine) -> None:
    mine, seen = machine.stream(), []
    with cd.use_stream(mine):
        thread = threading.Thread(target=lambda: seen.append(stream_now()))
        thread.start()
        thread.join()
    assert seen == [0]


@pytest.mark.parametrize("stream", [None, 1])
def test_nothing_is_called_where_nothing_is_to_be_waited_for(stream: int | None, machine: Machine) -> None:
    view = device_view(machine, stream=stream)
    machine.clear()
    lend(view)
    abi.release(take(view))
    assert machine.calls() == []


def test_the_drivers_refusal_is_an_exception_and_shares_nothing(machine: Machine) -> None:
    view = device_view(machine, stream=machine.stream())
    live = cd.stats()["live"]
    machine.control.fault("cuEventRecord", 2)
    with pytest.raises(cd.DriverError, match="cuEventRecord"):
        take(view)
    assert cd.stats()["live"] == live


# --- the borrowed view ------------------------------------------------------------------------------------------


def test_the_borrowed_view_points_into_the_view(machine: Machine) -> None:
    view = device_view(machine, shape=(4, 3), strides=(16, 4))
    tensor, again = lend(view), lend(view)
    assert (tensor.data, tensor.ndim, tensor.byte_offset) == (view.ptr, 2, 0)
    assert (tensor.shape, tensor.strides) == (again.shape, again.strides), "no memory of its own"
    gc.collect()
    shape = (ctypes.c_int64 * 2).from_address(tensor.shape)
    strides = (ctypes.c_int64 * 2).from_address(tensor.strides)
    assert (tuple(shape), tuple(strides)) == ((4, 3), (4, 1))


def test_the_borrowed_view_takes_no_reference(machine: Machine) -> None:
    producer = cai(data=(machine.device_memory(64), False))
    alive = weakref.ref(producer)
    view = cd.view(producer)
    lend(view)
    del producer, view
    gc.collect()
    assert alive() is None


def test_read_only_data_is_not_lent_where_the_flag_cannot_be_said(machine: Machine) -> None:
    view = cd.view(device_view(machine), read_only=True)
    check_refusal(
        refuse(lambda: lend(view), BufferError), "read-only-writer", "__dlpack_c_exchange_api__", hint="read_only=False"
    )
    assert lend(cd.view(view, read_only=False)).data == view.ptr


# --- the way back ---------------------------------------------------------------------------------------------


def give(made: abi.Made | None) -> Any:
    out = ctypes.c_void_p()
    code = to_object(None if made is None else made.address, ctypes.byref(out))
    assert code == 0
    assert out.value
    found = ctypes.cast(out, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(found))
    return found


def test_a_tensor_becomes_a_view_on_the_work_stream(machine: Machine) -> None:
    made, mine = abi.make(device=(2, 0), data=machine.device_memory(64)), machine.stream()
    with cd.use_stream(mine):
        machine.clear()
        view = give(made)
    assert type(view) is cd.CaiView
    assert (view.ptr, view.stream, view.producer_stream) == (made.tensor.data, mine, mine)
    assert machine.calls() == [], "no synchronisation"
    del view
    gc.collect()
    assert made.released == 1


def test_a_host_tensor_is_ready() -> None:
    view = give(abi.make())
    assert (view.memory, view.stream, view.producer_stream) == ("host", None, None)


def test_ownership_is_taken_even_on_failure() -> None:
    made = abi.make(shape=(-1, 3))
    check_refusal(refuse(lambda: give(made), ValueError), "shape-extent", "shape")
    assert made.released == 1
    made = abi.make(version=(2, 0))
    check_refusal(refuse(lambda: give(made), BufferError), "dlpack-major", "version")
    assert made.released == 1
    check_refusal(refuse(lambda: give(None), ValueError), "capsule-null", "__dlpack_c_exchange_api__")


# --- the allocator -----------------------------------------------------------------------------------------------


def test_the_allocator_refuses_by_set_error() -> None:
    said: list[tuple[int, bytes, bytes]] = []
    record = exchange.SetError(lambda context, kind, text: said.append((context, kind, text)))
    out = ctypes.c_void_p(0xBAD)
    assert allocator(None, ctypes.byref(out), 0x77, record) == -1
    assert out.value is None
    ((context, kind, text),) = said
    assert (context, kind) == (0x77, b"BufferError")
    assert text.endswith(b"[exchange-allocator]")


def test_the_allocator_needs_no_gil_and_no_set_error() -> None:
    without_gil = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(TABLE.allocator)
    assert without_gil(None, None, None, None) == -1


# --- real consumers, and ourselves ------------------------------------------------------------------------------


def test_tvm_ffi_takes_a_view_by_the_table(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    view = device_view(machine, shape=(4, 3), strides=(16, 4), stream=machine.stream())
    machine.clear()
    tensor = tvm_ffi.from_dlpack(view)
    assert (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.strides)) == (view.ptr, (4, 3), (4, 1))
    # By the legacy `__dlpack__()` a read-only view would be refused: this came by the table.
    read_only = cd.view(view, read_only=True)
    assert tvm_ffi.from_dlpack(read_only).data_ptr() == view.ptr


def test_a_tvm_ffi_function_takes_views_on_our_work_stream(machine: Machine) -> None:
    """Its environment's stream becomes our work stream for the duration of the call."""
    ready, mine = machine.stream(), machine.stream()
    view = device_view(machine, stream=ready)
    seen: list[Any] = []
    echo = tvm_ffi.convert(lambda tensor: seen.append((tensor.data_ptr(), tuple(tensor.shape))))
    machine.clear()
    with cd.use_stream(mine):
        echo(view)
    assert seen == [(view.ptr, (2, 3))]
    assert machine.order() == one_event(ready, mine)


def test_many_passes_leave_nothing_behind(machine: Machine) -> None:
    view = device_view(machine)
    gc.collect()  # of a test that failed, views may be left
    before = cd.stats()["live"]
    out, tensor = ctypes.c_void_p(), abi.DLTensor()
    kind = abi.DLManagedTensorVersioned
    for _ in range(20_000):
        from_object(id(view), ctypes.byref(out))
        managed = kind.from_address(out.value or 0)
        ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)(out.value)
        borrow(id(view), ctypes.byref(tensor))
    assert cd.stats()["live"] == before


def test_a_panic_does_not_reach_the_consumer() -> None:
    """The thread's streams are gone while the thread ends: reading them panics."""
    exit_code, printed = run(
        [sys.executable],
        textwrap.dedent("""
            import ctypes
            import cai_dlpack as cd
            from conformance.tests.dlpack import exchange
            from conformance.tests.ownership import native

            function = ctypes.c_void_p(exchange.table_of(cd.CaiView).work_stream)
            assert native.without_gil().ask_as_a_thread_ends(function) == -1
            assert native.with_gil().ask_as_a_thread_ends(function) == -1
            assert cd.stats()["panics"] == 2
        """),
    )
    assert exit_code == 0, printed
