"""Passes a capsule to every function that takes one, with each of CPython's allocations failing in turn; prints each
refusal for want of memory that has not left the capsule alone.

A program, for a process of its own on the simulated driver, as `allocations` is.
"""

from __future__ import annotations

import _testcapi  # type: ignore[import-not-found]
import gc
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import cai_dlpack as cd
import numpy as np
from cai_conformance import Sim, abi

from conformance.tests.doubles.producers import Cai, StreamObject, interface
from conformance.tests.faults import routes
from conformance.tests.faults.allocations import QUIET, wait_until
from conformance.tests.faults.world import Simulated

Door = Callable[[Any], object]
VERSIONED: dict[str, Any] = {"max_version": (1, 3)}


#: It takes a tensor before it makes its own object, and keeps it for good if there is no memory for that.
LEAKING = "tvm_ffi"
#: It reads the address before it fails: as long as its exception keeps the view, it may have kept the address too.
READING = "numba"


class Elements(np.ndarray[Any, Any]):
    """Memory of the host whose end a weak reference tells."""


def host(world: Simulated) -> Any:
    return np.zeros((2, 3), "f4").view(Elements)


def device(world: Simulated) -> Any:
    return Cai(interface(data=(world.address("device"), False), stream=world.a))


def pinned(world: Simulated) -> Any:
    return Cai(interface(data=(world.address("pinned"), False), stream=world.a))


#: By name: the owner, and the capsule that keeps it. None is a double in ctypes, which swallows a MemoryError.
CAPSULES: dict[str, tuple[Callable[[Simulated], Any], Callable[[Any], Any]]] = {
    "NumPy's": (host, lambda array: array.__dlpack__(**VERSIONED)),
    "NumPy's, legacy": (host, lambda array: array.__dlpack__()),
    "ours, host": (host, partial(cd.to_dlpack, **VERSIONED)),
    "ours, device": (device, partial(cd.to_dlpack, stream=-1, **VERSIONED)),
    "ours, legacy": (device, partial(cd.to_dlpack, stream=-1)),
    "ours, pinned": (pinned, partial(cd.to_dlpack, stream=-1, **VERSIONED)),
}


def doors(world: Simulated) -> dict[str, Door]:
    options: dict[str, Any] = {"producer_stream": StreamObject(world.a), "owner": world}
    found: dict[str, Door] = {
        "split_masked": cd.split_masked,
        "to_dlpack, legacy": cd.to_dlpack,
        "to_dlpack, stream": partial(cd.to_dlpack, stream=-1, **VERSIONED),
        "to_dlpack, copy": partial(cd.to_dlpack, copy=True, **VERSIONED),
        "to_dlpack, host copy": partial(cd.to_dlpack, copy=True, dl_device=(1, 0), **VERSIONED),
        "from_dlpack, stream": partial(cd.from_dlpack, stream=-1),
    }
    for name, door in {"view": cd.view, "from_dlpack": cd.from_dlpack, "to_dlpack": cd.to_dlpack}.items():
        function: Any = door
        found |= {name: function, f"{name}, options": partial(function, **options, **kept(name))}
    for library in (cd.CaiView, "numpy", "tvm_ffi", "cuda.core", "numba"):
        found[f"to {library}"] = to(library)
        found[f"to {library}, options"] = to(library, **options)
        for stream in (-1, world.b, StreamObject(world.b)):
            found[f"to {library}, stream={type(stream).__name__}"] = to(library, stream=stream)
    return found


def to(library: Any, **given: Any) -> Door:
    return lambda capsule: cd.to(capsule, library, **given)


def kept(name: str) -> dict[str, Any]:
    return VERSIONED if name == "to_dlpack" else {}


def attempt(door: Door, capsule: Any, nth: int) -> Any:
    _testcapi.set_nomemory(nth, nth + 1)
    try:
        return door(capsule)
    except BaseException as error:  # a panic is no Exception
        return error
    finally:
        _testcapi.remove_mem_hooks()


def check(title: str, name: str, door: Door, world: Simulated) -> tuple[int, list[str]]:
    """Returns how many refusals there were for want of memory, and which of them took the tensor."""
    owner, offered = CAPSULES[name]
    for _ in range(2):  # what is made once
        made = attempt(door, offered(owner(world)), 1 << 30)
    is_taken = not isinstance(made, BaseException)
    del made
    found, failed, quiet, nth = [], 0, 0, 0
    while quiet < QUIET:
        array, live = owner(world), cd.stats()["live"]
        lives, capsule = weakref.ref(array), offered(array)
        before = (abi.name(capsule), abi.pointer(capsule))
        del array
        result = attempt(door, capsule, nth)
        is_refused, is_kept = is_taken and isinstance(result, BaseException), False
        if is_refused:
            is_untouched = abi.name(capsule) == before[0] and abi.pointer(capsule) == before[1]
            is_kept = LEAKING in title and not is_untouched and lives() is not None
            is_taken_by = READING in title and not is_untouched  # it ends with the exception, below
            is_raised = isinstance(result, Exception)  # a panic is none
            if not is_raised or lives() is None or not (is_untouched or is_kept or is_taken_by):
                found.append(
                    f"{title} of {name}: allocation {nth}: {result!r}, and the capsule is {abi.name(capsule)!r}"
                )
        failed, quiet = failed + is_refused, 0 if is_refused else quiet + 1
        del result, capsule
        if lives() is not None:  # Numba's arrays are in cycles
            gc.collect()
        if not is_kept and not wait_until(lambda: lives() is None and cd.stats()["live"] <= live):  # noqa: B023
            found.append(f"{title} of {name}: allocation {nth}: {cd.stats()} for {live}, alive: {lives() is not None}")
        nth += 1
    return failed, found


def main() -> int:
    world = Simulated(Sim().library)
    routes.quiet()
    gc.disable()
    failed, wrong = 0, list[str]()
    ways = doors(world)
    gc.freeze()  # what has been imported: a collection passes over it
    for title, door in ways.items():
        for name in CAPSULES:
            count, found = check(title, name, door, world)
            failed, wrong = failed + count, wrong + found
    print("\n".join(wrong))
    print(f"{failed} failed allocations, {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
