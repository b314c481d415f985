"""Counts blocks, references, owners and bytes of the heap before and after many conversions."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable

import cai_dlpack as cd

from conformance.tests.interpreter.free_threaded import FREE_THREADED


class Mallinfo2(ctypes.Structure):
    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


_libc = ctypes.CDLL(None)
_libc.mallinfo2.restype = Mallinfo2


def check_nothing_is_left(convert: Callable[[int], object], watched: list[object], count: int) -> None:
    """Runs `convert` `count` times and compares all that can be counted before and after.

    Blocks and heap are the whole process's, other threads and caches included: what they have grown by is looked at
    twice more. A leak grows them every time.
    """
    for _ in range(3):
        heap, blocks = growth(convert, watched, count)
        # Caches fill and empty by up to 200, however often this runs, and by 350 on a busy machine; a leak would be one
        # each time. Without the GIL some memory is given back late: it was 450 the first time, and 10 from then on.
        if heap < 16384 and abs(blocks) < count // (2 if FREE_THREADED else 4):
            return
    raise AssertionError(f"{heap} bytes and {blocks} blocks after {count} times")


def repeat(convert: Callable[[], object], count: int) -> None:
    for _ in range(count):
        convert()


def blocks_grown(convert: Callable[[int], object], count: int) -> int:
    """Returns how many more blocks the interpreter holds after so many times; what is made once is made before."""
    convert(20)
    gc.collect()
    before = sys.getallocatedblocks()
    convert(count)
    gc.collect()
    return sys.getallocatedblocks() - before


def growth(convert: Callable[[int], object], watched: list[object], count: int) -> tuple[int, int]:
    """The bytes and blocks by which the heap has grown after so many times; all else that can be counted is checked."""
    convert(100)
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        references = [sys.getrefcount(each) for each in watched]
        live = cd.stats()["live"]
        heap = _libc.mallinfo2().uordblks
        blocks = sys.getallocatedblocks()
        convert(count)
        if FREE_THREADED:
            gc.collect()  # a class is counted by each thread for itself until then, and some memory waits for it
        blocks = sys.getallocatedblocks() - blocks
        heap = _libc.mallinfo2().uordblks - heap
        assert cd.stats()["live"] == live
        assert [sys.getrefcount(each) for each in watched] == references
    finally:
        if was_enabled:
            gc.enable()
    return int(heap), blocks
