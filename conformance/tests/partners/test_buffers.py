"""The buffer protocol: every combination of flags for every layout, against memoryview and NumPy."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import operator
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.expectations.refusal import check_refusal, refuse

WRITABLE, FORMAT, ND, STRIDES = 0x1, 0x4, 0x8, 0x18
C_CONTIGUOUS, F_CONTIGUOUS, ANY_CONTIGUOUS, INDIRECT = 0x38, 0x58, 0x98, 0x118
ORDERS = (C_CONTIGUOUS | F_CONTIGUOUS | ANY_CONTIGUOUS) & ~STRIDES
FLAGS = [WRITABLE, FORMAT, ND, STRIDES, C_CONTIGUOUS, F_CONTIGUOUS, ANY_CONTIGUOUS, INDIRECT]
COMBINATIONS = sorted(
    {
        functools.reduce(operator.or_, chosen, 0)
        for count in range(len(FLAGS) + 1)
        for chosen in itertools.combinations(FLAGS, count)
    }
)

# Shape and strides, in elements of float32.
LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "scalar": ((), ()),
    "axis": ((5,), (1,)),
    "every-second": ((5,), (2,)),
    "backwards": ((5,), (-1,)),
    "repeated": ((5,), (0,)),
    "c": ((2, 3), (3, 1)),
    "f": ((2, 3), (1, 2)),
    "columns": ((2, 3), (6, 2)),
    "c-3": ((2, 3, 4), (12, 4, 1)),
    "f-3": ((2, 3, 4), (1, 2, 6)),
    "transposed-3": ((3, 2, 4), (4, 12, 1)),
    "row": ((1, 3), (3, 1)),
    "row-odd": ((1, 3), (77, 1)),
    "column-odd": ((3, 1), (1, 77)),
    "ones-odd": ((1, 1), (5, 7)),
    "empty": ((0,), (1,)),
    "empty-odd": ((0,), (9,)),
    "empty-c": ((0, 3), (3, 1)),
    "empty-f": ((3, 0), (1, 3)),
    "empty-both-odd": ((0, 3), (77, 5)),
    "empty-3-odd": ((2, 0, 3), (1, 7, 9)),
}


class PyBuffer(ctypes.Structure):
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
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    ]


def array_of(layout: str, read_only: bool) -> np.ndarray[Any, Any]:
    shape, strides = LAYOUTS[layout]
    values = np.arange(64, dtype=np.float32)
    array = np.ndarray(shape, np.float32, values, 32, [4 * stride for stride in strides])
    if read_only:
        array.flags.writeable = False
    return array


def view_of(layout: str, array: np.ndarray[Any, Any], read_only: bool) -> cd.CaiView:
    shape, strides = LAYOUTS[layout]
    made = abi.make(shape, strides=strides, data=array.ctypes.data)
    return cd.view(made.capsule(), owner=array, read_only=read_only)


def answer(exporter: object, flags: int) -> dict[str, Any] | None:
    """What the exporter fills in; None for a BufferError."""
    buffer = PyBuffer()
    try:
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(exporter), ctypes.byref(buffer), flags)
    except (BufferError, ValueError):  # NumPy refuses by ValueError
        assert not buffer.obj, "Py_buffer.obj must be NULL after a refusal"
        return None
    ndim = buffer.ndim
    try:
        return {
            "buf": buffer.buf,
            "len": buffer.len,
            "itemsize": buffer.itemsize,
            "readonly": buffer.readonly,
            "ndim": ndim,
            "format": buffer.format,
            "shape": buffer.shape[:ndim] if buffer.shape else None,
            "strides": buffer.strides[:ndim] if buffer.strides else None,
            "suboffsets": bool(buffer.suboffsets),
        }
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))


@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_combination_of_flags(layout: str, read_only: bool) -> None:
    array: Any = array_of(layout, read_only)
    view = view_of(layout, array, read_only)
    for flags in COMBINATIONS:
        ours, numpys, expected = (answer(each, flags) for each in (view, array, memoryview(array)))
        if expected is not None:
            assert numpys is not None
            # NumPy writes the strides of a contiguous array in the order that is asked for, else in C order;
            # memoryview those it has. An order that is not asked for changes nothing here.
            kept = flags & STRIDES == STRIDES and not flags & ORDERS
            strides = list(array.strides) if kept else numpys["strides"]
            expected["strides"] = strides if expected["ndim"] else None
            if not array.size:
                assert ours is not None
                expected["buf"] = ours["buf"]
                assert ours["buf"], "pyarrow aborts the process where Py_buffer.buf is NULL"
        elif numpys is not None:
            assert flags & (FORMAT | ND) == FORMAT, "memoryview alone refuses a format without a shape"
        assert ours == expected, hex(flags)


@pytest.mark.parametrize("layout", ["c", "c-3", "scalar", "empty-c", "row-odd"])
def test_a_buffer_of_bytes_can_be_wrapped(layout: str) -> None:
    array = array_of(layout, False)
    view, buffer = view_of(layout, array, False), PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    wrap = ctypes.pythonapi.PyMemoryView_FromBuffer
    wrap.restype = ctypes.py_object
    wrapped = wrap(ctypes.byref(buffer))
    assert (wrapped.ndim, wrapped.nbytes) == (1, array.nbytes)
    del wrapped
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    assert hashlib.md5(view).digest() == hashlib.md5(array.tobytes()).digest()
    assert bytes(view) == array.tobytes()


def test_a_format_without_a_shape_is_refused() -> None:
    view, buffer = cd.view(np.ones(3)), PyBuffer()
    get = functools.partial(ctypes.pythonapi.PyObject_GetBuffer, ctypes.py_object(view), ctypes.byref(buffer), FORMAT)
    check_refusal(refuse(get, BufferError), "buffer-format", "object", value="PyBUF_FORMAT")


def test_what_the_consumer_does_to_the_strides_is_not_freed() -> None:
    """Py_buffer.internal is the exporter's own."""
    view, buffer = cd.view(np.ones((2, 3))), PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), STRIDES)
    mine = (ctypes.c_ssize_t * 2)(24, 8)
    buffer.strides = ctypes.cast(mine, ctypes.POINTER(ctypes.c_ssize_t))
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    assert list(mine) == [24, 8]
