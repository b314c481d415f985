"""Runs one input: an evil array through some calls. Raises AssertionError if a promise is broken.

The first byte has the grammar (`calls` if its highest bit is set), and what collects garbage.
"""

from __future__ import annotations

import contextvars
import ctypes
import gc
import re
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import cai_dlpack as cd
import numpy as np
from cai_conformance import Sim, abi

from conformance.fuzz import calls, foreign
from conformance.fuzz.evil import EVILS, MOST_ASKED, Bytes, Case, Evil, an_array, an_int

#: What a call may raise. Neither SystemError nor a panic is among them.
ALLOWED = (TypeError, ValueError, BufferError, AttributeError, OverflowError, RuntimeError, RecursionError, Evil)
#: What a call of the second grammar may raise besides: a library is not installed, a coroutine ends, a copy is
#: too large.
ALLOWED_TOO = (*ALLOWED, ImportError, StopIteration, KeyError, MemoryError)
RULES = re.findall(r"^### (\S+)$", (Path(__file__).parents[2] / "docs" / "rules.md").read_text(), re.MULTILINE)

_buffer = ctypes.pythonapi.PyObject_GetBuffer
_buffer.argtypes, _buffer.restype = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int], ctypes.c_int
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes, _release.restype = [ctypes.c_void_p], None

ND, STRIDES = 8, 16 | 8


_occurred = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyErr_Occurred", ctypes.pythonapi))


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


def called(allowed: tuple[type[BaseException], ...], function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        result = function(*arguments)
    except allowed as error:
        result = None
        if isinstance(error, cd.Refusal) and not (error.rule in RULES and f"[{error.rule}]" in str(error)):
            raise AssertionError(f"no rule: {error!r}") from error
    assert is_ending or not Evil.alive, "a call has kept an exception, which keeps what its frames refer to"
    assert not _occurred(), "a call has left an exception"
    return result


def cache_of(array: Any) -> list[Any] | None:
    """The list of an array that keeps views of itself. It is not asked of the array, which may answer by a call."""
    try:
        found = object.__getattribute__(array, "__dict__").get("cache")
    except AttributeError:
        return None
    return found if isinstance(found, list) else None


def use(case: Case, array: Any, is_second: bool = False) -> None:
    """Makes a call with the array, and calls with the views that it returns."""
    source = case.source
    grammar: Any = calls if is_second else sys.modules[__name__]
    allowed = ALLOWED_TOO if is_second else ALLOWED
    result = called(allowed, source.one_of(grammar.OF_AN_ARRAY), case, array)
    views = [each for each in (result if isinstance(result, tuple) else (result,)) if isinstance(each, cd.CaiView)]
    assert not (case.is_lie and views), "a tensor was read by the layout of another"
    for view in views:
        for _ in range(source.byte() % 4):
            derived = called(allowed, source.one_of(grammar.OF_A_VIEW), case, view)
            if source.byte() % 2 and (cache := cache_of(array)) is not None and id(view) not in case.opaque:
                # A cycle; not through a DLPack tensor, which the collector cannot look into.
                is_opaque = isinstance(derived, OPAQUE) or id(derived) in case.opaque
                cache += [view] if is_opaque else [view, derived]
    del result, views


#: Whether the interpreter ends.
is_ending = False

#: The collections of a call at each of which `strikes` strikes in turn.
COLLECTIONS = 16
#: The bit of the first byte that says which grammar reads the others.
SECOND = 0x80


def strikes(data: bytes) -> Iterator[bytes]:
    """Yields the input with a strike after its first collection, after its second, and so on."""
    for collection in range(COLLECTIONS):
        yield bytes([bytes(data[:1] or b"\0")[0] & SECOND | 2 * collection + 1]) + data[1:]


#: Objects that no call may keep, or give up, a reference to for each time that it runs. The count of `None` drifts on
#: CPython 3.11, by calls of ctypes alone.
LASTING: list[Any] = [True, ..., (), cd.CaiView, cd.DType, np.ndarray, np, Evil, *foreign.LASTING]
#: The seconds in which what is on its way must have ended.
PATIENCE = 5
SIM = Sim()
before = SIM.live()
#: The streams that the library makes once for its copies, on each of the two devices.
OWN_STREAMS, OWN_EVENTS = 4, 64


def run(data: bytes) -> None:
    """Runs one input; and again, if references are left, to see whether they are left each time."""
    counts: list[list[int]] = [_counts()]
    while len(counts) < 5 and (len(counts) == 1 or counts[-1] != counts[-2]):
        run_once(data)
        counts.append(_counts())
    if len(counts) == 5:
        for at, kept in enumerate(LASTING):
            steps = {after[at] - before[at] for before, after in pairwise(counts[1:])}
            assert 0 in steps or min(steps) < 0 < max(steps), f"references to {kept!r}: {steps}"


def _counts() -> list[int]:
    return [sys.getrefcount(each) for each in LASTING]


def made(source: Bytes, is_second: bool) -> tuple[Case, Any]:
    """Returns a new case, which is the one at hand from now on, and its array."""
    case = Case(source)
    foreign.case_at_hand.append(case)
    if not is_second:
        return case, an_array(case)
    case.raised, case.stream = source.one_of(EVILS), source.one_of([0, 1, 2, calls.STREAM])
    return case, source.one_of(calls.ARRAYS)(case)


def run_once(data: bytes) -> None:
    """Runs one input, in a context of its own: a block that is never left is no other input's."""
    contextvars.copy_context().run(in_this_context, data)


def in_this_context(data: bytes) -> None:
    """Runs one input. Its first byte says after which collection of the call there is a strike, if it is odd."""
    source = Bytes(data)
    first = source.byte()
    collects, left, is_second = first % 2, first // 2 % COLLECTIONS + 1, bool(first & SECOND)
    limit = sys.getrecursionlimit()
    case, array = made(source, is_second)
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
        use(case, array, is_second)
    finally:
        gc.set_threshold(*thresholds)
        sys.setrecursionlimit(limit)
        if collects:
            gc.callbacks.remove(after)
    watched = None if type(array).__weakrefoffset__ == 0 or isinstance(array, type) else weakref.ref(array)
    of_type = weakref.ref(type(array)) if type(array).__name__ == "Fresh" else None
    case.containers.clear()
    case.keep.clear()
    for address in case.taken:
        abi.call_deleter(address, versioned=True)
    del array
    gc.collect()
    foreign.case_at_hand.pop()
    # Work on a device, and the end of what is shared, come on other threads.
    end = time.monotonic() + PATIENCE
    while (is_left() or (watched is not None and watched() is not None)) and time.monotonic() < end:
        time.sleep(0.001)
        gc.collect()
    assert watched is None or watched() is None, "the array is kept alive"
    assert of_type is None or of_type() is None, "the type is kept alive"
    assert case.asked <= MOST_ASKED, f"{case.asked} questions"
    assert not foreign.WRONG, foreign.WRONG
    for tensor in case.made:
        assert tensor.released <= 1, "the deleter is called twice"
        is_owed = tensor.managed.deleter and any(tensor is each for each in case.given)
        assert tensor.released == 1 or not is_owed, "the tensor of a table is kept"
        abi._alive.pop(tensor.address, None)
    assert not is_left(), (SIM.live(), before)
    assert cd.stats()["panics"] == 0, cd.stats()


def is_left() -> bool:
    """Whether the driver or the library has more than before."""
    now = SIM.live()
    return (
        cd.stats()["live"] != 0
        or now.allocations > before.allocations
        or now.streams > before.streams + OWN_STREAMS
        or now.events > before.events + OWN_EVENTS
    )


def run_at_the_end(data: bytes) -> None:
    """Runs one input while the interpreter ends: what a call drops is kept then, but nothing may panic."""
    global is_ending
    is_ending = True
    source = Bytes(data)
    is_second = bool(source.byte() & SECOND)
    use(*made(source, is_second), is_second)
    assert cd.stats()["panics"] == 0, cd.stats()
