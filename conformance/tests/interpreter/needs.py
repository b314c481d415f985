"""Marks tests that need a library which some interpreters cannot have."""

from __future__ import annotations

import sys

import pytest

from conformance.tests.interpreter.free_threaded import FREE_THREADED

# Numba's own target, which numba-cuda replaces elsewhere, is there; it is older, and knows no `__cuda_stream__`.
numba_cuda = pytest.mark.skipif(
    FREE_THREADED or sys.version_info >= (3, 15),
    reason="not run: numba-cuda has no wheel for this interpreter, free-threaded or 3.15",
)

dask = pytest.mark.skipif(
    FREE_THREADED or not (3, 11) <= sys.version_info < (3, 15),
    reason="not run: distributed is installed for CPython 3.11 to 3.14 with the GIL",
)
