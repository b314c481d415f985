"""Our own table, called as a C consumer calls it: by function pointers, with nothing of Python between."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
import tvm_ffi
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import cai
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.interpreter.threads import THREADS_INHERIT
from conformance.tests.ownership.subprocesses import run
from conformance.tests.ownership.waiting import until
from conformance.tests.simulated.capture import Captures
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
    assert seen == [mine if THREADS_INHERIT else 0]


@pytest.mark.parametrize("stream", [None, 1])
def test_nothing_is_called_where_nothing_is_to_be_waited_for(stream: int | None, machine: Machine) -> None:
    view = device_view(machine, stream=stream)
    machine.clear_own()
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
        machine.clear_own()
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


def test_a_tensor_that_is_not_aligned_is_left() -> None:
    """Its deleter cannot be read."""
    made, out = abi.make(), ctypes.c_void_p()
    found = refuse(lambda: to_object(abi.moved(made, 4), ctypes.byref(out)), ValueError)
    check_refusal(found, "tensor-alignment", "__dlpack_c_exchange_api__", value="0x")
    assert (made.released, out.value) == (0, None)


# --- the allocator -----------------------------------------------------------------------------------------------


def allocate(
    *, device: tuple[int, int], shape: tuple[int, ...] = (2, 3), dtype: tuple[int, int, int] = (abi.FLOAT, 32, 1)
) -> Any:
    """What the allocator makes; the exception's name and text if it refuses."""
    said: list[tuple[int, bytes, bytes]] = []
    record = exchange.SetError(lambda context, kind, text: said.append((context, kind, text)))
    made = abi.make(device=device, shape=shape, dtype=dtype, data=0, null_strides=True)
    out = ctypes.c_void_p(0xBAD)
    code = allocator(ctypes.addressof(made.tensor), ctypes.byref(out), 0x77, record)
    if code == 0:
        assert not said
        assert out.value
        return abi.read_at(out.value, versioned=True)
    ((context, kind, text),) = said
    assert (code, context, out.value) == (-1, 0x77, None)
    return kind.decode(), text.decode()


def test_the_allocator_makes_zeros_on_the_cpu() -> None:
    made = allocate(device=(abi.CPU, 0))
    assert (made.shape, made.strides, made.flags) == ((2, 3), (3, 1), 0)
    assert made.data % 256 == 0
    assert ctypes.string_at(made.data, 24) == bytes(24)
    live = cd.stats()["live"]
    abi.release(made)
    assert cd.stats()["live"] == live - 1


@pytest.mark.parametrize("ordinal", [0, 1])
@pytest.mark.parametrize("kind", ["device", "managed", "pinned"])
def test_the_allocator_makes_memory_of_the_kind_in_the_order_of_the_work_stream(
    kind: str, ordinal: int, machine: Machine
) -> None:
    call, device_type = {
        "device": ("cuMemAllocAsync", abi.CUDA),
        "managed": ("cuMemAllocManaged", abi.CUDA_MANAGED),
        "pinned": ("cuMemHostAlloc", abi.CUDA_HOST),
    }[kind]
    mine, before = machine.stream(ordinal), machine.control.live().allocations
    machine.set_current(ordinal)
    machine.clear()
    with cd.use_stream(mine):
        made = allocate(device=(device_type, ordinal if kind == "device" else 0))
    (allocation,) = (entry for entry in machine.control.calls() if entry.name.startswith("cuMem"))
    assert allocation.name == call
    if kind == "device":
        assert allocation.stream == mine
    assert (made.device, made.shape, made.flags) == ((device_type, ordinal if kind == "device" else 0), (2, 3), 0)
    assert not any("Synchronize" in entry.name for entry in machine.control.calls())
    gate = machine.control.gate(mine)
    abi.release(made)
    assert not until(lambda: machine.control.live().allocations == before, 0.1), "its stream still works on it"
    gate.open()
    assert until(lambda: machine.control.live().allocations == before, 5)


@pytest.mark.parametrize("kind", ["managed", "pinned"])
def test_the_allocator_hands_out_no_host_memory_that_a_stream_may_use(kind: str, machine: Machine) -> None:
    """While memory is short, a copy takes over a dropped one's, in the order of its stream; the host has no order."""
    made, call, device_type = {
        "managed": (machine.managed_memory, "cuMemAllocManaged", abi.CUDA_MANAGED),
        "pinned": (machine.pinned_memory, "cuMemHostAlloc", abi.CUDA_HOST),
    }[kind]
    mine, source = machine.stream(), cd.view(cai(shape=(24,), typestr="|u1", strides=None, data=(made(24), False)))
    dropped = abi.consume(source.__dlpack__(stream=mine, copy=True, max_version=(1, 3)))
    with machine.control.gate(mine), cd.use_stream(mine):
        machine.control.store(mine, dropped.data, bytes(24))
        abi.release(dropped)
        machine.control.fault(call, 2, by="this")
        result = allocate(device=(device_type, 0))
        assert result.data != dropped.data
        abi.release(result)


def test_the_allocator_makes_an_array_without_elements_of_nothing() -> None:
    made = allocate(device=(abi.CUDA, 0), shape=(0, 3))
    assert (made.data, made.shape) == (0, (0, 3))
    abi.release(made)


@pytest.mark.parametrize(
    ("changes", "kind", "word"),
    [
        ({"device": (abi.ROCM, 0)}, "BufferError", "[exchange-allocator]"),
        ({"device": (abi.CUDA, 77)}, "RuntimeError", "cuDeviceGet"),
        ({"device": (abi.CPU, 0), "shape": (-1, 3)}, "ValueError", "[shape-extent]"),
        ({"device": (abi.CPU, 0), "dtype": (77, 8, 1)}, "BufferError", "[dtype-code]"),
        ({"device": (abi.CPU, 0), "shape": (1 << 44,)}, "MemoryError", "memory"),
        ({"device": (abi.CUDA, 0), "shape": (1 << 44,)}, "RuntimeError", "OUT_OF_MEMORY"),
    ],
)
def test_the_allocator_refuses_by_set_error(changes: dict[str, Any], kind: str, word: str, machine: Machine) -> None:
    live = cd.stats()["live"]
    said = allocate(**changes)
    assert said[0] == kind, said
    assert word in said[1], said
    assert cd.stats()["live"] <= live  # what earlier tests have left may end meanwhile


def test_the_allocator_refuses_a_captured_stream(machine: Machine) -> None:
    mine = machine.stream()
    captures = Captures(machine)
    captures.begin(mine)
    with cd.use_stream(mine):
        kind, text = allocate(device=(abi.CUDA, 0))
    captures.end(mine)
    assert (kind, "[capture-consumer]" in text) == ("BufferError", True)


def test_the_allocator_needs_no_gil_no_prototype_and_no_set_error() -> None:
    without_gil = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(TABLE.allocator)
    assert without_gil(None, None, None, None) == -1
    prototype, out = abi.make(device=(abi.CPU, 0), data=0), ctypes.c_void_p()
    assert without_gil(ctypes.addressof(prototype.tensor), ctypes.addressof(out), None, None) == 0
    assert out.value
    abi.release(abi.read_at(out.value, versioned=True))
    live = cd.stats()["live"]
    assert without_gil(ctypes.addressof(prototype.tensor), None, None, None) == 0
    assert cd.stats()["live"] == live


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


@pytest.fixture(scope="module")
def like(tmp_path_factory: pytest.TempPathFactory) -> Any:
    library = tmp_path_factory.mktemp("tvm-ffi") / "result.so"
    package = Path(tvm_ffi.__file__).parent
    flags = [f"-I{package / 'include'}", f"-L{package / 'lib'}", f"-Wl,-rpath,{package / 'lib'}", "-ltvm_ffi"]
    command = ["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*command, str(Path(__file__).parent / "result.c"), *flags], check=True, timeout=60)
    return tvm_ffi.load_module(str(library))["like"]


def test_a_tvm_ffi_function_makes_its_result(like: Any, machine: Machine) -> None:
    """tvm-ffi takes the allocator of the first argument's table, and returns what that table makes of the tensor."""
    mine, view = machine.stream(), device_view(machine)
    with cd.use_stream(mine):
        made = like(view)
    assert type(made) is cd.CaiView
    assert (made.shape, made.dtype, made.device, made.stream) == (view.shape, view.dtype, view.device, mine)
    assert made.ptr != view.ptr
    on_host = like(cd.view(np.ones((2, 3), np.float32)))
    assert np.asarray(on_host).tolist() == [[0, 0, 0], [0, 0, 0]]


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


def test_the_work_stream_is_told_as_a_thread_ends() -> None:
    """The thread's own storage is gone by then. A thread that Python does not know has no context of blocks."""
    exit_code, printed = run(
        [sys.executable],
        textwrap.dedent("""
            import ctypes
            import cai_dlpack as cd
            from cai_conformance import exchange
            from conformance.tests.ownership import native

            function = ctypes.c_void_p(exchange.table_of(cd.CaiView).work_stream)
            for library in native.without_gil(), native.with_gil():
                assert library.ask_as_a_thread_ends(function) == 0
                with cd.use_stream(1, device_id=0):
                    assert library.ask_as_a_thread_ends(function) == 0
            assert cd.stats()["panics"] == 0
        """),
    )
    assert exit_code == 0, printed
