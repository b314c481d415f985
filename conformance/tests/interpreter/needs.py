"""Marks tests that need a library which some interpreters cannot have."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import pytest
from cai_conformance.judge.check import Check

from conformance.tests.interpreter.free_threaded import FREE_THREADED

# Numba's own target, which numba-cuda replaces elsewhere, is there; it is older, and knows no `__cuda_stream__`.
numba_cuda = pytest.mark.skipif(
    FREE_THREADED or sys.version_info >= (3, 15),
    reason="not run: numba-cuda has no wheel for this interpreter, free-threaded or 3.15",
)


#: Has the memory that is freed overwritten.
DEBUG = hasattr(sys, "gettotalrefcount")


def each_check(checks: Iterable[Check]) -> list[Any]:
    """Checks of the kit as parameters; without those whose mutant does not show here, or ends the process."""
    home = pytest.mark.skipif(
        FREE_THREADED, reason="not run: free-threaded, an object ends on the thread that has made it"
    )
    freed = pytest.mark.skipif(DEBUG, reason="not run: in a debug build the memory that the mutant frees twice is gone")
    lost = pytest.mark.skipif(DEBUG, reason="not run: a debug build of Python ends where an exception is lost")
    marks = {
        "deleter-thread": home,
        "deleter-releases": home,
        "capsule-used": freed,
        "tensors-independent": freed,
        "capsule-in-flight": lost,
    }
    return [pytest.param(check, id=check.id, marks=marks.get(check.rule, ())) for check in checks]


dask = pytest.mark.skipif(
    FREE_THREADED or not (3, 11) <= sys.version_info < (3, 15),
    reason="not run: distributed is installed for CPython 3.11 to 3.14 with the GIL",
)
