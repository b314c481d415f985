"""Waits for a release that another thread has requested."""

from __future__ import annotations

import time
from collections.abc import Callable

from conformance.tests.ownership import native

# What the project promises, once the GIL is free; and what a busy machine is given on top. Under valgrind,
# which runs one thread at a time and thirty times as long, nothing is promised.
PROMISED = 5.0 if native.FIGURES == "few" else 0.050
PATIENCE = 20.0


def until(condition: Callable[[], bool], patience: float = PATIENCE) -> bool:
    """Returns whether the condition comes true in time. Sleeps, so that the GIL is free."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True
