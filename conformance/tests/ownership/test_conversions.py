"""Conversions leave nothing behind: no block, no reference, no owner; on success and on every refusal."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from functools import partial

import cai_dlpack as cd
import dlpack_abi as abi
import native
import pytest
from free_threaded import FREE_THREADED
from producers import Dlpack, Legacy, StreamOnly, cai, interface

# Of each path that succeeds, and of each refusal.
COUNT = native.figure(10_000, 1_000_000)
REFUSALS = native.figure(1_000, 1_000_000)


class Mallinfo2(ctypes.Structure):
    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


_libc = ctypes.CDLL(None)
_libc.mallinfo2.restype = Mallinfo2


def check_nothing_is_left(convert: Callable[[int], object], watched: list[object], count: int) -> None:
    """Has `convert` run so often and compares all that can be counted before and after.

    The heap is the whole process's, other threads and caches included: what it has grown by is looked at
    once more. A leak grows it every time.
    """
    for _ in range(3):
        heap = growth(convert, watched, count)
        if heap < 16384:
            return
    raise AssertionError(f"{heap} bytes")


def repeat(convert: Callable[[], object], count: int) -> None:
    for _ in range(count):
        convert()


def growth(convert: Callable[[int], object], watched: list[object], count: int) -> int:
    """The bytes by which the heap has grown after so many times; all else that can be counted is checked."""
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
    # Caches fill and empty by up to 200, however often this runs; a leak would be one each time.
    # Without the GIL some memory is given back late: it was 450 the first time, and 10 from then on.
    assert abs(blocks) < count // (2 if FREE_THREADED else 4), f"{blocks} blocks after {count} times"
    return int(heap)


def exported(view: cd.CaiView, max_version: tuple[int, int] | None, *, consumed: bool) -> None:
    capsule = view.__dlpack__(stream=-1, max_version=max_version)
    if consumed:
        cd.from_dlpack(capsule)


def successes() -> dict[str, tuple[Callable[[], object], list[object]]]:
    producer, plain = cai(), interface()
    versioned, legacy = abi.make(), abi.make(versioned=False)
    view = cd.view(producer, ordinal=0)
    everything: list[object] = [producer, producer.interface, plain, versioned, view, cd.CaiView]
    paths: dict[str, Callable[[], object]] = {
        "view of CAI": lambda: cd.view(producer, ordinal=0),
        "view with producer_stream": lambda: cd.view(producer, ordinal=0, producer_stream=7),
        "view with producer_stream=...": lambda: cd.view(producer, ordinal=0, producer_stream=...),
        "from_dlpack with producer_stream": lambda: cd.from_dlpack(Dlpack(versioned), producer_stream=None),
        "from_cai": lambda: cd.from_cai(producer, ordinal=0),
        "dict with owner": lambda: cd.from_cai(plain, owner=producer, ordinal=0),
        "object with owner": lambda: cd.view(producer, owner=versioned, ordinal=0),
        "from_dlpack": lambda: cd.from_dlpack(Dlpack(versioned)),
        "from_dlpack of a legacy producer": lambda: cd.from_dlpack(Legacy(legacy)),
        "from_dlpack of one that knows streams": lambda: cd.from_dlpack(StreamOnly(legacy)),
        "from_dlpack of a capsule": lambda: cd.from_dlpack(versioned.capsule()),
        "view of a capsule": lambda: cd.view(legacy.capsule()),
        "to_dlpack": lambda: cd.to_dlpack(Dlpack(versioned), max_version=(1, 3)),
        "to_dlpack consumed": lambda: cd.from_dlpack(cd.to_dlpack(Dlpack(versioned))),
        "view of DLPack": lambda: cd.view(Dlpack(versioned)),
        "view of a legacy producer": lambda: cd.view(Legacy(legacy)),
        "view of one that knows streams": lambda: cd.view(StreamOnly(legacy)),
        "to_dlpack of a legacy producer": lambda: cd.to_dlpack(Legacy(legacy)),
        "view of a view": lambda: cd.view(view),
        "dict": lambda: view.__cuda_array_interface__,
        "to_cai": view.to_cai,
        "attributes": lambda: (view.shape, view.byte_strides, view.owner, view.device, repr(view)),
    }
    for max_version in (None, (1, 3)):
        for consumed in (False, True):
            name = f"__dlpack__ {max_version} {'consumed' if consumed else 'dropped'}"
            paths[name] = lambda version=max_version, consumed=consumed: exported(  # type: ignore[misc]
                view, version, consumed=consumed
            )
    return {name: (path, everything) for name, path in paths.items()}


SUCCESSES = successes()


@pytest.mark.parametrize("name", SUCCESSES)
def test_a_success_leaves_nothing(name: str) -> None:
    convert, watched = SUCCESSES[name]
    check_nothing_is_left(partial(repeat, convert), watched, COUNT)
