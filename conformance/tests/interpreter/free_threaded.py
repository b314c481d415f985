"""Detects free-threaded CPython, and makes objects whose end does not depend on it. Needs nothing but Python."""

from __future__ import annotations

import sysconfig
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def elsewhere(make: Callable[[], T]) -> T:
    """Returns the result of `make`; it ends at once on whichever thread drops the last reference.

    Free-threaded CPython ends an object on the thread that made it, as soon as that runs Python again, and on
    another one only where that thread has ended. So there a thread makes it that ends.
    """
    if not FREE_THREADED:
        return make()
    made: list[T] = []
    thread = threading.Thread(target=lambda: made.append(make()))
    thread.start()
    thread.join()
    return made.pop()
