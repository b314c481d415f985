"""The host's side: buffers, the array interface, and memory presented under its other name."""

from __future__ import annotations

import ctypes
import gc
import pickle
import weakref
from functools import partial
from typing import Any

import cai_dlpack as cd
import numba.cuda
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import cai
from conformance.tests.expectations import oracle
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.simulated.machine import Machine

VALUES = np.arange(24, dtype=np.int32).reshape(4, 6)
HOST_KINDS = ["pinned", "managed", "host"]


def view_in(kind: str, machine: Machine, index: Any = np.s_[:], **changes: Any) -> Any:
    part = VALUES[index]
    if kind == "host":
        return cd.view(part)
    allocate = {"device": machine.device_memory, "pinned": machine.pinned_memory, "managed": machine.managed_memory}
    pointer = allocate[kind](VALUES.nbytes)
    machine.write(pointer, VALUES.tobytes())
    keys = {"shape": part.shape, "strides": part.strides, "typestr": part.dtype.str, **changes}
    return cd.view(cai(data=(pointer + part.ctypes.data - VALUES.ctypes.data, False), **keys))


# --- buffers and the array interface ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HOST_KINDS)
@pytest.mark.parametrize("index", [np.s_[:], np.s_[::2, 1:4], np.s_[::-1], np.s_[:, 2]], ids=str)
def test_numpy_sees_host_memory_without_dlpack(kind: str, index: Any, machine: Machine) -> None:
    view = view_in(kind, machine, index)
    for array in (np.asarray(buffer_of(view)), np.asarray(view), np.asarray(_Only(view))):
        assert array.ctypes.data == view.ptr
        assert array.strides == VALUES[index].strides
        assert array.tolist() == VALUES[index].tolist()
        assert array.flags.writeable


def buffer_of(view: Any) -> memoryview:
    """Returns the object as a buffer, which type checkers cannot express before Python 3.12."""
    return memoryview(view)


class _Only:
    """Shows nothing but the array interface."""

    def __init__(self, view: Any) -> None:
        self.__array_interface__ = view.__array_interface__
        self.view = view


@pytest.mark.parametrize("typestr", oracle.DTYPES)
def test_every_type_has_its_format(typestr: str) -> None:
    source = np.zeros((2, 3), typestr)
    seen = np.asarray(buffer_of(cd.view(source)))
    assert (seen.dtype, seen.shape, seen.ctypes.data) == (source.dtype, source.shape, source.ctypes.data)
    assert cd.view(source).__array_interface__["typestr"] == typestr


def test_what_the_host_cannot_wait_for_is_pickled_by_dlpack() -> None:
    """The host waits for no stream of ROCm, so that `numpy.asarray` refuses the view."""
    view = cd.view(abi.make((3,), device=(11, 0)).capsule())
    message = refuse(lambda: pickle.dumps(view), TypeError).message
    assert "pickle numpy.from_dlpack(view)" in message
    assert np.from_dlpack(view).shape == (3,)


@pytest.mark.parametrize("kind", ["pinned", "managed"])
@pytest.mark.parametrize("read", [memoryview, lambda view: view.__array_interface__], ids=["buffer", "interface"])
def test_the_host_waits_before_it_reads(kind: str, read: Any, machine: Machine) -> None:
    ready = machine.stream()
    view = view_in(kind, machine, stream=ready)
    machine.control.store(ready, view.ptr, (VALUES + 1).tobytes())
    machine.clear()
    with machine.control.gil_watch("*"):
        read(view)
    assert any("Synchronize" in name for name, _ in machine.order())
    assert np.asarray(view).tolist() == (VALUES + 1).tolist()


def test_a_buffer_keeps_the_memory(machine: Machine) -> None:
    source = numba.cuda.managed_array((3,), np.float64)
    source[:] = 7
    alive = weakref.ref(source)
    buffer = buffer_of(cd.from_cai(source))
    del source
    gc.collect()
    assert alive() is not None
    assert buffer.tolist() == [7.0, 7.0, 7.0]
    buffer.release()
    gc.collect()
    assert alive() is None


WRITABLE, STRIDES, C_CONTIGUOUS, F_CONTIGUOUS, ANY_CONTIGUOUS = 0x1, 0x18, 0x38, 0x58, 0x98


def ask(view: Any, flags: int) -> None:
    """A consumer's request for a buffer, which must be refused: nothing here releases one."""
    room = (ctypes.c_void_p * 16)(*[0xBAD] * 16)
    try:
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), room, flags)
    finally:
        assert not room[1], "Py_buffer.obj must be NULL after a refusal"


def test_read_only_stays_read_only() -> None:
    view = cd.view(VALUES.copy(), read_only=True)
    assert buffer_of(view).readonly
    assert not np.asarray(view).flags.writeable
    assert view.__array_interface__["data"][1] is True
    check_refusal(refuse(lambda: ask(view, WRITABLE | STRIDES), BufferError), "read-only-writer", "object")


def test_a_scalar_and_an_empty_array() -> None:
    assert np.asarray(buffer_of(cd.view(np.full((), 5, np.int16)))) == 5
    empty = buffer_of(cd.view(np.zeros((0, 3), np.int16)))
    assert (empty.shape, empty.nbytes) == ((0, 3), 0)
    room = (ctypes.c_void_p * 16)()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(cd.view(np.zeros((0, 3), np.int16))), room, STRIDES)
    assert room[0], "pyarrow aborts the process where Py_buffer.buf is NULL"
    ctypes.pythonapi.PyBuffer_Release(room)


def test_a_contiguous_buffer_of_strided_data_is_refused() -> None:
    view = cd.view(VALUES[:, ::2])
    for flags in (0, C_CONTIGUOUS, F_CONTIGUOUS, ANY_CONTIGUOUS):
        check_refusal(refuse(partial(ask, view, flags), BufferError), "buffer-layout", "object")
    assert buffer_of(view).tobytes() == VALUES[:, ::2].tobytes()


def test_device_memory_has_neither(machine: Machine) -> None:
    """TypeError is what "no buffer" is called: JAX and Numba try the next protocol on nothing else."""
    view = view_in("device", machine)
    check_refusal(refuse(lambda: buffer_of(view), TypeError), "array-unreadable", "object", hint="device=(1, 0)")
    assert not hasattr(view, "__array_interface__")
    found = refuse(lambda: np.asarray(view), TypeError)
    check_refusal(found, "array-unreadable", "object", hint="cai_dlpack.from_dlpack(view, device=(1, 0))")
    assert np.asarray(cd.from_dlpack(view, device=(1, 0))).tolist() == VALUES.tolist()


def test_types_without_a_format(machine: Machine) -> None:
    view = cd.from_dlpack(abi.make((4,), dtype=(abi.BFLOAT, 16, 1)).capsule())
    check_refusal(refuse(lambda: buffer_of(view), TypeError), "buffer-items", "object", hint="dtype='uint16'")
    assert not hasattr(view, "__array_interface__")
    assert buffer_of(cd.view(view, dtype="uint16")).format == "H"


# --- present_as ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pinned", "managed"])
def test_presented_as_cuda(kind: str, machine: Machine) -> None:
    ready = machine.stream()
    view = view_in(kind, machine, stream=ready)
    shown = view.present_as("cuda")
    assert (shown.device, shown.memory, shown.ptr, shown.stream) == ((2, 0), "device", view.ptr, ready)
    assert abi.read(shown.__dlpack__(stream=ready, max_version=(1, 3))).device == (2, 0)
    assert view.memory == kind


@pytest.mark.parametrize("kind", ["pinned", "managed"])
def test_presented_as_host(kind: str, machine: Machine) -> None:
    ready = machine.stream()
    view = view_in(kind, machine, stream=ready)
    machine.control.store(ready, view.ptr, (VALUES + 3).tobytes())
    shown = view.present_as("host")
    assert (shown.device, shown.memory, shown.ptr, shown.stream) == ((1, 0), "host", view.ptr, None)
    assert np.from_dlpack(shown).tolist() == (VALUES + 3).tolist()
    assert not hasattr(shown, "__cuda_array_interface__")


def test_what_it_is_already(machine: Machine) -> None:
    assert view_in("device", machine).present_as("cuda").memory == "device"
    assert view_in("host", machine).present_as("host").memory == "host"


def test_registered_and_mapped_memory_are_pinned_to_the_driver(machine: Machine) -> None:
    source = np.zeros(4096, np.uint8)
    start = (source.ctypes.data + 63) & ~63
    machine._call("cuMemHostRegister_v2", ctypes.c_void_p(start), ctypes.c_size_t(2048), 0)
    try:
        for pointer in (start, machine.pinned_memory(64)):
            view = cd.view(cai(shape=(64,), typestr="|u1", data=(pointer, False)), check="bounds")
            assert (view.device, view.memory, view.ptr) == ((3, 0), "pinned", pointer)
            assert np.asarray(view).ctypes.data == pointer
        past = cai(shape=(2049,), typestr="|u1", data=(start, False))
        check_refusal(refuse(lambda: cd.view(past, check="bounds"), BufferError), "out-of-bounds", "data")
    finally:
        machine._call("cuMemHostUnregister", ctypes.c_void_p(start))


def test_registered_memory_of_the_cpu_is_reachable_from_the_device(machine: Machine) -> None:
    source = np.zeros(4096, np.uint8)
    start = (source.ctypes.data + 63) & ~63
    machine._call("cuMemHostRegister_v2", ctypes.c_void_p(start), ctypes.c_size_t(2048), 0)
    try:
        part = source[start - source.ctypes.data :][:64]
        shown = cd.view(part).present_as("cuda")
        assert (shown.device, shown.memory) == ((2, 0), "device")
        assert shown.__cuda_array_interface__["shape"] == (64,)
    finally:
        machine._call("cuMemHostUnregister", ctypes.c_void_p(start))


def test_presented_where_it_is_not(machine: Machine) -> None:
    device, host = view_in("device", machine), view_in("host", machine)
    check_refusal(refuse(lambda: device.present_as("host"), BufferError), "present-as", "kind", hint="from_dlpack")
    check_refusal(refuse(lambda: host.present_as("cuda"), BufferError), "present-as", "kind", hint="managed")
    check_refusal(refuse(lambda: device.present_as("gpu"), ValueError), "argument-value", "kind")
    assert refuse(lambda: device.present_as(2), TypeError)


def test_an_empty_array_is_anywhere(machine: Machine) -> None:
    empty = cd.view(np.zeros((0, 2), np.int8))
    assert empty.present_as("cuda").device == (2, 0)
    assert cd.view(cai(shape=(0,), data=(0, False)), device_id=1).present_as("host").device == (1, 0)


def test_read_only_and_layout_are_kept(machine: Machine) -> None:
    view = cd.view(view_in("managed", machine, np.s_[::2, 1:3]), read_only=True)
    shown = view.present_as("cuda")
    assert (shown.read_only, shown.byte_strides, shown.shape) == (True, view.byte_strides, view.shape)
