"""Arrays that a stream has still to write, of this process: what the checks of `reach` send."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, NamedTuple

import cai_dlpack as cd
import numpy as np

from conformance.gpu.machine import Gpu, SlowTrack, machine
from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.streams.race import LEGACY

Array = np.ndarray[Any, np.dtype[np.float32]]
COUNT = 1 << 16
#: What memory holds before its stream writes, what that writes, and what another writes later.
BEFORE = np.full(COUNT, -1, np.float32)
VALUES = np.arange(1, COUNT + 1, dtype=np.float32)
LATER = np.full(COUNT, 99, np.float32)
#: Said in the environment, so that every process of a check knows it.
UNDECLARED = "CAI_DLPACK_REACH_UNDECLARED"


class Lost(AssertionError):
    """A race that was lost: what arrived is of another write. What a control has to find."""


class Pending(NamedTuple):
    view: cd.CaiView
    stream: int
    #: What it copies from: another write of the same stream.
    staging: int


@functools.cache
def track() -> SlowTrack:
    found = SlowTrack(machine())
    found.declares = UNDECLARED not in os.environ
    found.load()
    return found


def is_simulated() -> bool:
    return track().slow.is_simulated


def here() -> SlowTrack:
    """The machine, with its device current on this thread."""
    found = track()
    found.machine.set_current(0)
    return found


def filled(values: np.ndarray[Any, Any], memory: str = "device") -> int:
    """Memory of a kind that holds this, now."""
    at = here()
    at.use(memory, values.nbytes)
    at.put(values.tobytes())
    return at.data


def pending(values: Array = VALUES, seconds: float = 1.0, memory: str = "device", before: Array = BEFORE) -> Pending:
    """An array that its stream writes after so many seconds; `before` lies there until then.

    In the control its producer declares no stream."""
    at = here()
    data, staging = filled(before, memory), filled(values)
    stream = at.machine.stream()
    found = Pending(view_of(data, values.shape, stream), stream, staging)
    at.slow.busy(stream, seconds)
    copy(found, staging)
    return found


def ready(values: Array = VALUES, memory: str = "device") -> cd.CaiView:
    return view_of(filled(values, memory), values.shape, None)


def view_of(data: int, shape: tuple[int, ...], stream: int | None) -> cd.CaiView:
    declared = stream if here().declares else None
    return cd.view(Cai(interface(shape=shape, data=(data, False), stream=declared)))


def copy(target: Pending, source: int) -> None:
    """Enqueues a write of what lies there on the array's own stream."""
    at, nbytes = here(), target.view.nbytes
    arguments = ctypes.c_uint64(target.view.ptr), ctypes.c_uint64(source), ctypes.c_size_t(nbytes)
    at.call("cuMemcpyAsync", *arguments, ctypes.c_void_p(target.stream))


def now(view: cd.CaiView) -> Array:
    """What lies there now, whatever is pending on streams that do not wait for the legacy one."""
    content = Gpu.read(here().machine, view.ptr, view.nbytes)  # type: ignore[arg-type]
    here().wait(LEGACY)
    return np.frombuffer(content, np.float32)


def same(found: np.ndarray[Any, Any], wanted: Array = VALUES) -> None:
    """Raises if an array has other values; what it has instead is said."""
    if np.array_equal(found, wanted):
        return
    for name, other in (("before", BEFORE), ("later", LATER), ("the values", VALUES), ("zeros", 0 * VALUES)):
        if np.array_equal(found, other):
            raise Lost(f"what arrived is {name}")
    different = int(np.count_nonzero(found != wanted)) if found.shape == wanted.shape else -1
    raise Lost(f"{different} of {wanted.size} elements are of another write")
