"""Runs one input: an evil array through some calls. Raises AssertionError if a promise is broken."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import cai_dlpack as cd
import numpy as np
from cai_conformance import abi

from conformance.fuzz.evil import Bytes, Case, Evil, Exporter, Shown, an_array, an_int

#: What a call may raise. Neither SystemError nor a panic is among them.
ALLOWED = (TypeError, ValueError, BufferError, AttributeError, OverflowError, RuntimeError, RecursionError, Evil)

_buffer = ctypes.pythonapi.PyObject_GetBuffer
_buffer.argtypes, _buffer.restype = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int], ctypes.c_int
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes, _release.restype = [ctypes.c_void_p], None

ND, STRIDES = 8, 16 | 8


class Buffer(ctypes.Structure):
    """`Py_buffer`."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


def buffer(case: Case, view: Any) -> object:
    """The buffer protocol with any flags: what they do not ask for is not there."""
    flags = case.source.byte() | case.source.byte() << 8 & 0x1FF
    found = Buffer()
    _buffer(view, ctypes.addressof(found), flags)
    try:
        assert found.ndim == 0 or flags & ND or (found.ndim == 1 and not found.shape), f"flags {flags:#x}: {found.ndim}"
        assert bool(found.shape) == (flags & ND == ND and found.ndim > 0), f"flags {flags:#x}: shape"
        assert flags & STRIDES == STRIDES or not found.strides, f"flags {flags:#x}: strides"
        size = found.itemsize
        for axis in range(found.ndim if found.shape else 0):
            size *= found.shape[axis]
        assert not found.shape or size == found.len, f"flags {flags:#x}: {size} bytes, {found.len}"
    finally:
        _release(ctypes.addressof(found))
    return None


def consumed(case: Case, view: Any) -> object:
    capsule = view.__dlpack__(stream=-1, max_version=case.source.one_of([None, (1, 0), (1, 3), (0, 8)]))
    if case.source.byte() % 2:
        abi.release(abi.consume(capsule))
    return capsule


OF_A_VIEW: list[Callable[[Case, Any], object]] = [
    buffer,
    consumed,
    lambda case, view: view.__cuda_array_interface__,
    lambda case, view: view.__array_interface__,
    lambda case, view: view.__array__(),
    lambda case, view: memoryview(view),
    lambda case, view: view.present_as(case.source.one_of(["host", "cuda", "x"])),
    lambda case, view: view.field(case.source.one_of(["x", "y", "\ud800", ""])),
    lambda case, view: cd.view(view, shape=(an_int(case),)),
    lambda case, view: cd.view(view, dtype=case.source.one_of(["float32", "int8", "bfloat16", "|V8", "\ud800"])),
    lambda case, view: (
        repr(view),
        view.shape,
        view.byte_strides,
        view.elem_strides,
        view.nbytes,
        view.dtype,
        view.ptr,
    ),
    lambda case, view: view.consume(an_int(case)),
    lambda case, view: cd.explain(view, to="torch"),
]
OPAQUE = (np.ndarray, type(vars(cd.CaiView)["__dlpack_c_exchange_api__"]))
OF_AN_ARRAY: list[Callable[[Case, Any], Any]] = [
    lambda case, array: cd.view(array, device_id=0),
    lambda case, array: cd.view(array, device_id=0),
    lambda case, array: cd.from_cai(array, device_id=0, owner=case.source.one_of([None, array])),
    lambda case, array: cd.from_dlpack(array),
    lambda case, array: cd.view(array, device_id=an_int(case), producer_stream=an_int(case)),
    lambda case, array: cd.view(array, device_id=0, owner=array, read_only=True),
    lambda case, array: cd.to_dlpack(array, device_id=0, stream=-1),
    lambda case, array: cd.explain(array),
    lambda case, array: cd.split_masked(array, device_id=0),
]


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        result = function(*arguments)
    except ALLOWED:
        result = None
    assert not Evil.alive, "a call has kept an exception, which keeps what its frames refer to"
    return result


def use(case: Case, array: Any) -> None:
    source = case.source
    result = called(source.one_of(OF_AN_ARRAY), case, array)
    views = [each for each in (result if isinstance(result, tuple) else (result,)) if isinstance(each, cd.CaiView)]
    for view in views:
        for _ in range(source.byte() % 4):
            derived = called(source.one_of(OF_A_VIEW), case, view)
            if source.byte() % 2 and hasattr(array, "cache"):
                # A cycle; not through a DLPack tensor, which the collector cannot look into.
                array.cache += [view, *(each for each in [derived] if not isinstance(each, OPAQUE))]
    del result, views


#: The collections of a call at each of which `strikes` strikes in turn.
COLLECTIONS = 16


def strikes(data: bytes) -> Iterator[bytes]:
    """Yields the input with a strike after its first collection, after its second, and so on."""
    for collection in range(COLLECTIONS):
        yield bytes([2 * collection + 1]) + data[1:]


def run(data: bytes) -> None:
    """Runs one input. Its first byte says after which collection of the call there is a strike, if it is odd."""
    source = Bytes(data)
    first = source.byte()
    collects, left = first % 2, first // 2 % COLLECTIONS + 1
    case = Case(source)
    array = an_array(case)
    thresholds = gc.get_threshold()

    def after(phase: str, _: dict[str, int]) -> None:
        """Strikes after so many collections, as a finaliser does."""
        nonlocal left
        left -= phase == "stop"
        if not left:
            case.strike()

    if collects:
        gc.callbacks.append(after)
        gc.set_threshold(1, 1, 1)
    try:
        use(case, array)
    finally:
        gc.set_threshold(*thresholds)
        if collects:
            gc.callbacks.remove(after)
    is_ours = isinstance(array, (Shown, Exporter))
    watched = weakref.ref(array) if is_ours else None
    of_type = weakref.ref(type(array)) if type(array).__name__ == "Fresh" else None
    case.containers.clear()
    case.keep.clear()
    del array
    gc.collect()
    assert watched is None or watched() is None, "the array is kept alive"
    assert of_type is None or of_type() is None, "the type is kept alive"
    stats = cd.stats()
    assert (stats["live"], stats["panics"]) == (0, 0), stats
    for made in case.made:
        assert made.released <= 1, "the deleter is called twice"
        abi._alive.pop(made.address, None)
