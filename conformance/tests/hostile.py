"""The test mode in which every allocation collects: `pytest --collect-always`.

During each test the collector runs at every second allocation of an object that it watches (CPython before
3.12, which collects where it allocates) or between two byte codes (from 3.12 on). Each collection finds garbage
whose finaliser replaces every value of the dict that was read last by an equal, new one, so that whatever was
borrowed from it is freed; and converts arrays itself, of types that no cache has seen. What the tests expect does
not change by that. Run it with PYTHONMALLOC=debug, which overwrites what is freed.
"""

from __future__ import annotations

import gc
import operator
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cai_dlpack as cd

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.expectations import refusal

# The object whose dict was read last; only a weak reference, as tests count references.
_last: list[weakref.ref[Cai]] = []
_shown: Any = vars(Cai)["__cuda_array_interface__"]
collections = 0
finalised = 0


def _show(self: Cai) -> Any:
    _last[:] = [weakref.ref(self)]
    return _shown.fget(self)


def fresh(value: Any, depth: int = 0) -> Any:
    """Returns an equal value that nothing else refers to, where the type allows it. A list changes in place."""
    if type(value) is str:
        return "".join(list(value))
    if type(value) is int and abs(value) < 2**64:
        return int(str(value))
    # Some lists contain themselves.
    if type(value) in (tuple, list) and depth < 4:
        items = [fresh(item, depth + 1) for item in value]
        if type(value) is tuple:
            return tuple(items)
        value.clear()
        value.extend(items)
    return value


def freshen(shown: Any) -> None:
    """Replaces every value of a dict by an equal one."""
    if type(shown) is dict:
        for key in list(shown):
            shown[key] = fresh(shown[key])


class Garbage:
    """A cycle whose finaliser does what it may."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        global finalised
        finalised += 1
        last = _last[0]() if _last else None
        if last is not None:
            freshen(last.interface)
        kind = type("Unseen", (), {"__cuda_array_interface__": interface(stream=None)})
        cd.view(cd.view(kind(), device_id=0)).__dlpack__(stream=-1)


def _after(phase: str, _: dict[str, int]) -> None:
    global collections
    if phase == "stop":
        collections += 1
        Garbage()


@contextmanager
def collecting_always() -> Iterator[None]:
    """Collects at every allocation, with hostile finalisers, until the block ends."""
    before = gc.get_threshold()
    Cai.__cuda_array_interface__ = property(_show)  # type: ignore[assignment]
    refusal.same = operator.eq
    gc.callbacks.append(_after)
    Garbage()
    gc.set_threshold(1, 1, 1)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(_after)
        refusal.same = operator.is_
        Cai.__cuda_array_interface__ = _shown  # type: ignore[method-assign]
        gc.collect()
