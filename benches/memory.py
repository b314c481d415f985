"""Memory: bytes of a live view and of a managed tensor, and no growth over ten million conversions.

    python benches/memory.py                    a million live views, a million conversions, and what the views cost
    python benches/memory.py --conversions 10000000

Exit code 1 where memory grows, or where a view is larger than its budget. Linux only: it reads
/proc/self/statm.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from instructions import Array

VIEWS = 1_000_000
#: Bytes of a live view above its owner.
BUDGET = 200
#: Growth that allocators may show without a leak: bytes per conversion, of ten million.
GROWTH = 0.1


def resident() -> int:
    """Bytes of resident memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def bytes_each(make: Callable[[], Any]) -> float:
    """Resident bytes of each of many live objects, the list's own pointer taken off."""
    keep: list[Any] = [None] * VIEWS
    gc.collect()
    before = resident()
    for at in range(VIEWS):
        keep[at] = make()
    grown = (resident() - before) / VIEWS
    del keep
    gc.collect()
    return grown


def growth(convert: Callable[[], Any], count: int) -> float:
    """Resident bytes that each of `count` conversions leaves behind."""
    for _ in range(10_000):
        convert()
    gc.collect()
    before = resident()
    for _ in range(count):
        convert()
    gc.collect()
    return (resident() - before) / count


def nanoseconds_each(make: Callable[[], Any], count: int) -> float:
    """CPU time of each of so many objects that live at once, made after one collection."""
    gc.collect()
    start = time.process_time_ns()
    keep = [make() for _ in range(count)]
    spent = time.process_time_ns() - start
    del keep
    return spent / count


def among_many(makers: dict[str, Callable[[], Any]]) -> None:
    """Prints what a million live objects cost, beside a thousand: the least of five rounds in turns."""
    least: dict[tuple[str, int], float] = {}
    for _ in range(5):
        for name, make in makers.items():
            for count, times in ((1000, 20), (VIEWS, 1)):
                now = min(nanoseconds_each(make, count) for _ in range(times))
                least[name, count] = min(now, least.get((name, count), now))
    for name in makers:
        few, many = least[name, 1000], least[name, VIEWS]
        print(f"{name:32} {few:8.0f} ns among 1000, {many:8.0f} among {VIEWS}: {many / few:.2f} times")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--conversions", type=int, default=1_000_000)
    arguments = parser.parse_args()
    import cai_dlpack as cd

    array = Array((3, 5))
    view = cd.view(array, device_id=0)
    of_view = bytes_each(lambda: cd.view(array, device_id=0))
    of_tensor = bytes_each(lambda: view.__dlpack__(stream=-1, max_version=(1, 3)))
    good = of_view <= BUDGET
    mark = "" if good else "  over"
    print(f"live view                        {of_view:8.1f} bytes above its owner, budget {BUDGET}{mark}")
    print(f"capsule with its managed tensor  {of_tensor:8.1f} bytes above the view")
    paths = {
        "CAI object -> view": lambda: cd.view(array, device_id=0),
        "view -> capsule": lambda: view.__dlpack__(stream=-1, max_version=(1, 3)),
        "CAI object -> capsule": lambda: cd.to_dlpack(array, stream=-1, max_version=(1, 3), device_id=0),
        "view -> view, by __dlpack__": lambda: cd.from_dlpack(view),
        "view -> dict": lambda: view.__cuda_array_interface__,
    }
    for name, convert in paths.items():
        left = growth(convert, arguments.conversions)
        good &= left * arguments.conversions <= max(GROWTH * 10_000_000, 1 << 20)
        print(f"{name:32} {left:8.3f} bytes left by each of {arguments.conversions}")
    dict_, memory = array.__cuda_array_interface__, bytearray(60)
    among_many(
        {
            "view of a Python object": lambda: cd.view(array, device_id=0),
            "view of a bytearray": lambda: cd.view(dict_, owner=memory, device_id=0, producer_stream=None),
            "view by __dlpack__": lambda: cd.from_dlpack(view),
            "list of the object": lambda: [array],
        }
    )
    stats = cd.stats()
    print(f"owners alive at the end          {stats['live']:8}")
    good &= stats["pending"] == 0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
