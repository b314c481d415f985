"""The threads of this process: what a new one inherits, and what Linux lists under /proc."""

from __future__ import annotations

import ctypes
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


def stack_size() -> int:
    """The bytes of this thread's stack."""
    libc = ctypes.CDLL(None)
    libc.pthread_self.restype = ctypes.c_ulong
    attributes, size = ctypes.create_string_buffer(64), ctypes.c_size_t()
    assert libc.pthread_getattr_np(ctypes.c_ulong(libc.pthread_self()), attributes) == 0
    assert libc.pthread_attr_getstacksize(attributes, ctypes.byref(size)) == 0
    assert libc.pthread_attr_destroy(attributes) == 0
    return size.value


def on_stack_of(size: int, run: Callable[[], object]) -> None:
    """Runs something on a thread whose stack has so many bytes; 0: as many as usual."""
    is_over, has_run = threading.Event(), False

    def run_if_so_large() -> None:
        nonlocal has_run
        if size and stack_size() > size + (size >> 3):
            is_found.set()
            is_over.wait()  # else a next thread would get this stack once more
        else:
            has_run = True
            is_found.set()
            run()

    threads: list[threading.Thread] = []
    before = threading.stack_size(size)
    try:
        while not has_run:  # glibc gives a new thread the stack of one that has ended, which may be four times as large
            is_found = threading.Event()
            threads.append(threading.Thread(target=run_if_so_large))
            threads[-1].start()
            is_found.wait()
    finally:
        threading.stack_size(before)
        is_over.set()
    for thread in threads:
        thread.join()
