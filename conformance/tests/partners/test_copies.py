"""`copy=True` and `dl_device=(1, 0)`: real copies, on the right stream, the consumer's alone."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from collections.abc import Iterator
from typing import Any

import cai_dlpack as cd
import numba.cuda
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import cai
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.ownership.waiting import until
from conformance.tests.partners.copying import is_alive
from conformance.tests.simulated.machine import Machine

VALUES = np.arange(24, dtype=np.int32).reshape(4, 6)
HOST = (abi.CPU, 0)
GLOBAL, RELAXED = 0, 2  # modes of capture

LAYOUTS: dict[str, Any] = {
    "whole": np.s_[:],
    "a-row": np.s_[2],
    "a-scalar": np.s_[1, 1, ...],
    "every-second-row": np.s_[::2],
    "every-second-column": np.s_[:, ::2],
    "window": np.s_[1:3, 2:5],
    "backwards": np.s_[::-1, ::-1],
    "nothing": np.s_[4:],
}


def on_device(machine: Machine, values: np.ndarray[Any, Any] = VALUES, ordinal: int = 0) -> int:
    pointer = machine.device_memory(values.nbytes, ordinal)
    machine.write(pointer, values.tobytes())
    return pointer


def view_of(pointer: int, values: np.ndarray[Any, Any], **changes: Any) -> Any:
    """A view of `values`, a view of VALUES whose copy in device memory begins at `pointer`."""
    offset = values.ctypes.data - VALUES.ctypes.data if values.size else 0
    keys = {"shape": values.shape, "strides": values.strides, "typestr": values.dtype.str, **changes}
    return cd.view(cai(data=(pointer + offset, False), **keys), device_id=None if values.size else 0)


def device_values(machine: Machine, tensor: abi.Read) -> np.ndarray[Any, Any]:
    assert tensor.shape is not None
    size = int(np.prod(tensor.shape))
    raw = machine.read(tensor.data, size * 4) if size else b""
    return np.frombuffer(raw, np.int32).reshape(tensor.shape)


def host_values(tensor: abi.Read) -> np.ndarray[Any, Any]:
    assert tensor.shape is not None
    size = int(np.prod(tensor.shape))
    raw = ctypes.string_at(tensor.data, size * 4) if size else b""
    return np.frombuffer(raw, np.int32).reshape(tensor.shape)


@pytest.fixture(autouse=True)
def all_are_freed(machine: Machine) -> None:
    """Copies of the test before may still be freed, by a thread of their own: begins when none was for a while."""
    gc.collect()
    found, same = -1, 0
    while same < 3:
        now = machine.control.live().allocations
        found, same = now, same + 1 if now == found else 0
        time.sleep(0.01)


def settle(machine: Machine, allocations: int) -> int:
    """Waits for the thread that frees copies, and returns how many copies are left."""
    for _ in range(500):
        if machine.control.live().allocations <= allocations:
            break
        time.sleep(0.01)
    return machine.control.live().allocations


def end(machine: Machine, tensor: abi.Read) -> None:
    """Releases a copy, and waits until its memory is gone: later tests read the log of calls."""
    before = machine.control.live().allocations
    abi.release(tensor)
    is_freed_apart = tensor.device[0] != abi.CPU and tensor.data != 0
    assert settle(machine, before - is_freed_apart) == before - is_freed_apart


# --- on the device -------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", LAYOUTS.values(), ids=LAYOUTS)
def test_a_copy_on_the_device(index: Any, machine: Machine) -> None:
    pointer, want = on_device(machine), VALUES[index]
    before = machine.control.live().allocations
    view = view_of(pointer, want)
    tensor = abi.consume(view.__dlpack__(copy=True, max_version=(1, 3)))
    assert (tensor.device, tensor.flags, tensor.byte_offset) == ((2, 0), abi.IS_COPIED, 0)
    assert tensor.strides == abi.compact(want.shape)
    assert (tensor.data != view.ptr) or want.size == 0
    machine.driver.cuCtxSynchronize()
    assert device_values(machine, tensor).tolist() == want.tolist()
    end(machine, tensor)
    assert settle(machine, before) == before


def test_a_copy_on_the_second_device_leaves_the_current_context_alone(machine: Machine) -> None:
    view = view_of(on_device(machine, ordinal=1), VALUES)
    assert view.device == (2, 1)
    current = machine.current()
    tensor = abi.consume(view.__dlpack__(copy=True, max_version=(1, 3)))
    assert machine.current() == current == machine.context(0)
    assert tensor.device == (2, 1)
    machine.set_current(1)
    machine.driver.cuCtxSynchronize()
    assert device_values(machine, tensor).tolist() == VALUES.tolist()
    end(machine, tensor)


def test_the_copy_reads_after_the_producer_and_before_its_next_write(machine: Machine) -> None:
    """OLD or NEWEST in the copy would be a missing wait, on one side or on the other."""
    pointer, ready, mine = on_device(machine), machine.stream(), machine.stream()
    written, later = VALUES + 100, VALUES + 900
    gate = machine.control.gate(ready)
    machine.control.store(ready, pointer, written.tobytes())
    view = cd.view(cai(shape=(4, 6), typestr="<i4", data=(pointer, False), stream=ready))
    machine.clear()
    tensor = abi.consume(view.__dlpack__(stream=mine, copy=True, max_version=(1, 3)))
    assert "cuStreamSynchronize" not in machine.names(), "the host does not wait"
    machine.control.store(ready, pointer, later.tobytes())
    gate.open()
    machine.driver.cuCtxSynchronize()
    assert device_values(machine, tensor).tolist() == written.tolist()
    assert machine.read(pointer, 4) == later.tobytes()[:4]
    end(machine, tensor)


def test_nobody_waits_for_an_unknown_producer(machine: Machine) -> None:
    """The event is the one that its array is kept by."""
    pointer, mine = on_device(machine), machine.stream()
    view = cd.view(cai(shape=(4, 6), typestr="<i4", data=(pointer, False), version=2))
    assert view.producer_stream == "unknown"
    machine.clear()
    tensor = abi.consume(view.__dlpack__(stream=mine, copy=True, max_version=(1, 3)))
    assert machine.order() == [("cuEventRecord", mine)]
    machine.driver.cuCtxSynchronize()
    assert device_values(machine, tensor).tolist() == VALUES.tolist()
    end(machine, tensor)


def test_the_producers_own_stream_costs_no_wait(machine: Machine) -> None:
    pointer, ready = on_device(machine), machine.stream()
    view = cd.view(cai(shape=(4, 6), typestr="<i4", data=(pointer, False), stream=ready))
    machine.clear()
    tensor = abi.consume(view.__dlpack__(stream=ready, copy=True, max_version=(1, 3)))
    assert machine.order() == []
    assert {stream for name, stream in machine.calls() if name.startswith("cuMemcpy")} == {ready}
    end(machine, tensor)


def test_a_copy_for_no_stream_runs_on_one_of_the_librarys_own(machine: Machine) -> None:
    pointer, ready = on_device(machine), machine.stream()
    view = cd.view(cai(shape=(4, 6), typestr="<i4", data=(pointer, False), stream=ready))
    machine.clear()
    tensor = abi.consume(view.__dlpack__(stream=-1, copy=True, max_version=(1, 3)))
    (own,) = {stream for name, stream in machine.calls() if name.startswith("cuMemcpy")}
    assert own not in (0, 1, 2, ready)
    assert machine.order() == [("cuStreamSynchronize", ready), ("cuStreamSynchronize", own)]
    end(machine, tensor)


def test_a_copy_of_read_only_data_is_writable_and_goes_to_legacy_consumers(machine: Machine) -> None:
    view = cd.view(view_of(on_device(machine), VALUES), read_only=True)
    tensor = abi.consume(view.__dlpack__(copy=True, max_version=(1, 3)))
    assert tensor.flags == abi.IS_COPIED
    end(machine, tensor)
    tensor = abi.consume(view.__dlpack__(copy=True))
    assert not tensor.versioned
    end(machine, tensor)


def test_a_copy_outlives_its_source(machine: Machine) -> None:
    pointer = on_device(machine)
    tensor = abi.consume(view_of(pointer, VALUES).__dlpack__(copy=True, max_version=(1, 3)))
    gc.collect()
    machine.driver.cuCtxSynchronize()
    machine.free(pointer)
    assert device_values(machine, tensor).tolist() == VALUES.tolist()
    end(machine, tensor)


@contextlib.contextmanager
def capture(machine: Machine, stream: int, mode: int) -> Iterator[None]:
    """A capture that ends here, whatever comes of it; one that was disturbed ends with a failure."""
    machine._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), mode)
    graph, code = ctypes.c_void_p(), 0
    try:
        yield
    finally:
        code = machine.driver.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph))
    assert (code, bool(graph.value)) == (0, True)


def test_a_failed_copy_leaves_nothing(machine: Machine) -> None:
    view = view_of(on_device(machine), VALUES, stream=machine.stream())
    before, stats, current = machine.control.live().allocations, cd.stats()["live"], machine.current()
    for function in ("cuMemAllocAsync", "cuMemcpyAsync"):
        machine.control.fault(function, 1)
        with pytest.raises(cd.DriverError, match=function):
            view.__dlpack__(copy=True, stream=1, max_version=(1, 3))
        assert settle(machine, before) == before
    assert machine.control.pending_faults() == 0
    assert (cd.stats()["live"], machine.current()) == (stats, current)


def test_no_copy_into_a_capture(machine: Machine) -> None:
    mine = machine.stream()
    view = view_of(on_device(machine), VALUES)
    with capture(machine, mine, RELAXED):
        found = refuse(lambda: view.__dlpack__(copy=True, stream=mine, max_version=(1, 3)), BufferError)
    check_refusal(found, "capture-consumer", "copy", hint="before the capture")


# --- to memory of the same kind ---------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [None, 1, "mine"])
@pytest.mark.parametrize("kind", ["pinned", "managed"])
@pytest.mark.parametrize("index", LAYOUTS.values(), ids=LAYOUTS)
def test_a_copy_within_pinned_or_managed_memory(kind: str, stream: Any, index: Any, machine: Machine) -> None:
    view = source(kind, index, machine)
    mine = machine.stream() if stream == "mine" else stream
    tensor = abi.consume(view.__dlpack__(copy=True, stream=mine, max_version=(1, 3)))
    assert (tensor.device, tensor.flags) == (view.device, abi.IS_COPIED)
    assert tensor.strides == abi.compact(VALUES[index].shape)
    if stream is not None:
        machine.driver.cuCtxSynchronize()
    assert host_values(tensor).tolist() == VALUES[index].tolist()
    if VALUES[index].size:
        assert tensor.data != view.ptr
        assert cd.view(cai(shape=(1,), typestr="|u1", data=(tensor.data, False))).memory == kind
    end(machine, tensor)


@pytest.mark.parametrize("kind", ["pinned", "managed"])
def test_a_copy_that_the_host_reads_is_there(kind: str, machine: Machine) -> None:
    """No stream is named: NumPy reads at once, after the producer's stream and the copy."""
    ready = machine.stream()
    view = source(kind, np.s_[:], machine, stream=ready)
    machine.control.delay(ready, 0.05)
    machine.control.store(ready, view.ptr, (VALUES + 3).tobytes())
    array = np.from_dlpack(view, copy=True)
    at_once = array.tolist()
    machine.control.store(ready, view.ptr, (VALUES + 9).tobytes())
    machine.driver.cuCtxSynchronize()
    assert at_once == array.tolist() == (VALUES + 3).tolist()
    assert array.ctypes.data != view.ptr


# --- beside a capture -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["device", "pinned", "managed"])
def test_a_capture_is_not_disturbed(kind: str, machine: Machine) -> None:
    """In the strictest mode a capture forbids every thread to allocate and to free."""
    captured, mine = machine.stream(), machine.stream()
    view = source(kind, np.s_[:], machine)
    before = machine.control.live().allocations
    with capture(machine, captured, GLOBAL):
        tensor = abi.consume(view.__dlpack__(copy=True, stream=mine, max_version=(1, 3)))
        end(machine, tensor)
    assert machine.control.live().allocations == before


def test_the_work_of_a_consumer_that_is_gone_is_waited_for(machine: Machine) -> None:
    """On the stream that the copy was made for: the memory is there until that has done what reads it."""
    pointer, other = on_device(machine), machine.stream()
    target = machine.device_memory(VALUES.nbytes)
    tensor = abi.consume(view_of(pointer, VALUES).__dlpack__(stream=other, copy=True, max_version=(1, 3)))
    machine.driver.cuCtxSynchronize()
    before = machine.control.live().allocations
    with machine.control.gate(other):
        addresses = (ctypes.c_uint64(target), ctypes.c_uint64(tensor.data), ctypes.c_size_t(VALUES.nbytes))
        machine._call("cuMemcpyAsync", *addresses, ctypes.c_void_p(other))
        abi.release(tensor)
        time.sleep(0.05)
        assert is_alive(machine, tensor)
    assert settle(machine, before - 1) == before - 1
    assert machine.read(target, VALUES.nbytes) == VALUES.tobytes()


# --- to the CPU -----------------------------------------------------------------------------------------


KINDS = ["device", "pinned", "managed", "host"]


def source(kind: str, index: Any, machine: Machine, **changes: Any) -> Any:
    """A view of one part of VALUES in memory of a kind."""
    if kind == "host":
        return cd.view(VALUES[index])
    allocate = {"device": machine.device_memory, "pinned": machine.pinned_memory, "managed": machine.managed_memory}[
        kind
    ]
    pointer = allocate(VALUES.nbytes)
    machine.write(pointer, VALUES.tobytes())
    return view_of(pointer, VALUES[index], **changes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", LAYOUTS.values(), ids=LAYOUTS)
def test_a_copy_to_the_cpu(kind: str, index: Any, machine: Machine) -> None:
    view = source(kind, index, machine)
    tensor = abi.consume(view.__dlpack__(copy=True, dl_device=HOST, max_version=(1, 3)))
    assert (tensor.device, tensor.flags) == (HOST, abi.IS_COPIED)
    assert tensor.strides == abi.compact(VALUES[index].shape)
    assert host_values(tensor).tolist() == VALUES[index].tolist()
    if VALUES[index].size:
        assert tensor.data != view.ptr
    end(machine, tensor)


@pytest.mark.parametrize("copy", [None, True])
def test_numpy_asks_for_the_cpu(copy: bool | None, machine: Machine) -> None:
    ready = machine.stream()
    pointer = on_device(machine)
    gate = machine.control.gate(ready)
    machine.control.store(ready, pointer, (VALUES + 5).tobytes())
    view = cd.view(cai(shape=(4, 6), typestr="<i4", data=(pointer, False), stream=ready))
    gate.open()
    array = np.from_dlpack(view, device="cpu", copy=copy)
    assert array.tolist() == (VALUES + 5).tolist()
    assert array.flags.writeable
    del view
    gc.collect()
    assert array.sum() == (VALUES + 5).sum()


def test_many_small_pieces_are_fetched_at_once(machine: Machine) -> None:
    values = np.arange(2000, dtype=np.int32)
    pointer = on_device(machine, values)
    whole = {"shape": (2000,), "typestr": "<i4", "strides": (-4,), "data": (pointer + 1999 * 4, False)}
    view = cd.view(cai(**whole))
    machine.clear()
    assert np.from_dlpack(view, device="cpu").tolist() == values[::-1].tolist()
    assert sum(name.startswith("cuMemcpy") for name in machine.names()) == 1


@pytest.mark.parametrize("kind", ["pinned", "managed", "host"])
def test_what_the_host_reads_is_shared_unless_a_copy_is_asked_for(kind: str, machine: Machine) -> None:
    view = source(kind, np.s_[:], machine)
    for copy in (None, False):
        tensor = abi.read(view.__dlpack__(copy=copy, dl_device=HOST, max_version=(1, 3)))
        assert (tensor.data, tensor.device, tensor.flags) == (view.ptr, HOST, 0)


def test_a_needed_copy_that_is_forbidden(machine: Machine) -> None:
    view = source("device", np.s_[:], machine)
    ask = {"copy": False, "dl_device": HOST, "max_version": (1, 3)}
    check_refusal(refuse(lambda: view.__dlpack__(**ask), BufferError), "copy-needed", "copy")


def test_a_copy_to_the_cpu_takes_no_stream(machine: Machine) -> None:
    view = source("device", np.s_[:], machine)
    found = refuse(lambda: view.__dlpack__(dl_device=HOST, stream=1, max_version=(1, 3)), ValueError)
    check_refusal(found, "stream-cpu", "stream")


def test_a_copy_for_which_there_is_no_driver_call() -> None:
    view = cd.from_dlpack(abi.make((4,), device=(abi.ROCM, 0)).capsule())
    found = refuse(lambda: view.__dlpack__(copy=True, max_version=(1, 3)), BufferError)
    check_refusal(found, "copy-refused", "copy", hint="the library that owns it")


def test_packed_elements_are_not_copied() -> None:
    view = cd.from_dlpack(abi.make((8,), dtype=(abi.FLOAT4_E2M1FN, 4, 1)).capsule())
    found = refuse(lambda: view.__dlpack__(copy=True, max_version=(1, 3)), BufferError)
    check_refusal(found, "copy-refused", "copy")


def test_to_dlpack_copies_too(machine: Machine) -> None:
    array = numba.cuda.to_device(VALUES)
    tensor = abi.consume(cd.to_dlpack(array, copy=True, dl_device=HOST))
    assert host_values(tensor).tolist() == VALUES.tolist()
    end(machine, tensor)


def test_no_driver_call_holds_the_gil(machine: Machine) -> None:
    view = view_of(on_device(machine), VALUES[:, ::2], stream=machine.stream())
    with machine.control.gil_watch("*"):
        for ask in ({"stream": 1}, {"dl_device": HOST}):
            end(machine, abi.consume(view.__dlpack__(copy=True, max_version=(1, 3), **ask)))


@pytest.mark.parametrize("versioned", [True, False], ids=["versioned", "legacy"])
@pytest.mark.parametrize("copy", [True, None], ids=["a-copy", "if-needed"])
@pytest.mark.parametrize("to", [None, "cpu", "cuda:0", "cuda:1"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("source", ["cpu", "cuda:0"])
def test_a_capsule_is_copied_as_it_is_asked(
    source: str, layout: str, to: str | None, copy: bool | None, versioned: bool, machine: Machine
) -> None:
    """By `from_dlpack`: a copy if that is asked for or the device is another one, and else the memory itself. A copy is
    on the device that was asked for, writable, and keeps no tensor."""
    devices = {"cpu": HOST, "cuda:0": (abi.CUDA, 0), "cuda:1": (abi.CUDA, 1)}
    whole = VALUES.copy()
    values = whole[LAYOUTS[layout]]
    base = whole.ctypes.data if source == "cpu" else on_device(machine, whole)
    data = base + (values.ctypes.data - whole.ctypes.data if values.size else 0)
    strides = tuple(stride // values.itemsize for stride in values.strides)
    described: Any = {"dtype": (abi.INT, 32, 1), "strides": strides, "device": devices[source], "data": data}
    made = abi.make(values.shape, versioned=versioned, **described)
    taken = cd.from_dlpack(made.capsule(), device=to, copy=copy, producer_stream=None)
    is_copy = copy is True or to not in (None, source)
    assert taken.device == devices[to or source]
    assert not values.size or (taken.ptr == data) is not is_copy
    assert not is_copy or taken.read_only is False
    assert np.array_equal(np.asarray(cd.from_dlpack(taken, device="cpu")), values)
    until(lambda: made.released == int(is_copy))
    del taken
    until(lambda: made.released == 1)
