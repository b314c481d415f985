"""The threads of this process: what a new one inherits, and what Linux lists under /proc."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

#: Whether a new thread begins with a copy of its starter's context: by default without the GIL, from 3.14 on.
THREADS_INHERIT = bool(getattr(sys.flags, "thread_inherit_context", False))


def blocked_signals(name: str) -> list[int]:
    """Returns the mask of blocked signals of each thread of this name; bit 0 is signal 1."""
    masks = []
    for status in Path("/proc/self/task").glob("*/status"):
        lines = status.read_text().splitlines()
        if f"Name:\t{name}" in lines:
            masks += [int(line.split()[1], 16) for line in lines if line.startswith("SigBlk")]
    return masks


def on_stack_of(size: int, run: Callable[[], object]) -> None:
    """Runs something on a thread whose stack has so many bytes; 0: as many as usual."""
    before = threading.stack_size(size)
    try:
        thread = threading.Thread(target=run)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
