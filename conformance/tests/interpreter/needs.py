"""Marks tests that need a library which some interpreters cannot have."""

from __future__ import annotations

import pytest

from conformance.tests.interpreter.free_threaded import FREE_THREADED

# Numba's own target, which numba-cuda replaces elsewhere, is there; it is older, and knows no `__cuda_stream__`.
numba_cuda = pytest.mark.skipif(
    FREE_THREADED, reason="not run: numba-cuda has no wheel for a free-threaded interpreter"
)
