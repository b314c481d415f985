"""Imported by programs whose daemon threads run Python code as the interpreter ends; does something on 3.10 only.

There CPython's own `take_gil` crashes: a thread that has waited for the GIL since before the end wakes after 5 ms, is
to exit, and first writes to the interpreter's state (gh-96387), which may have been freed since (gh-110052). From 3.11
on that state is static. On 3.10.13 this alone, without another library, ends by SIGSEGV in 38 of 40 runs:

    import ctypes, threading, time
    libc = ctypes.PyDLL(None)
    libc.__cxa_atexit(libc.usleep, ctypes.c_void_p(50_000), None)
    def work():
        while True: pass
    for _ in range(6): threading.Thread(target=work, daemon=True).start()
    time.sleep(0.005)

Here the main thread keeps the GIL for ten such waits after the threads are to exit and before the state is freed, so
that each wakes in between.
"""

from __future__ import annotations

import ctypes
import sys


class Last:
    """Freed with the module `sys`, after each other module."""

    def __init__(self) -> None:
        self.sleep = ctypes.PyDLL(None).usleep

    def __del__(self) -> None:
        self.sleep(50_000)


if sys.version_info < (3, 11):
    sys.last = Last()  # type: ignore[attr-defined]
