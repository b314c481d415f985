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
