"""Calls every function of our exchange table with each of CPython's allocations failing in turn; prints what was wrong.

A program, for a process of its own on the simulated driver. What PyO3 does without memory is a panic, and the caller is
C, through which nothing may unwind: the process would end. ctypes is the caller, which may itself find no memory.
"""

from __future__ import annotations

import _testcapi  # type: ignore[import-not-found]
import ctypes
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import cai_dlpack as cd
import numpy as np
from cai_conformance import Sim, abi, exchange

from conformance.tests.expectations.refusal import builtin
from conformance.tests.faults.allocations import CPYTHONS, QUIET, wait_until
from conformance.tests.faults.world import Simulated

TABLE = exchange.table_of(cd.CaiView)
from_object = exchange.FromObject(TABLE.from_object)
to_object = exchange.ToObject(TABLE.to_object)
borrow = exchange.Borrow(TABLE.borrow)
work_stream = exchange.WorkStream(TABLE.work_stream)
# Without the GIL, and without a function that is told of a refusal.
allocator = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    TABLE.allocator
)
#: What the calls name by its address.
ALIVE: list[Any] = []
#: Of ctypes, which has found no memory for an argument.
NO_MEMORY = (MemoryError, ctypes.ArgumentError)


@dataclass
class Call:
    """A call of one function, with all arguments made: what it returns, and what it raises with memory."""

    name: str
    run: Callable[[], int]
    #: Ends what the call has made.
    end: Callable[[], None]
    expected: str


def calls(world: Simulated) -> list[Call]:
    owner = np.arange(6.0).reshape(2, 3)
    device = cd.view(abi_tensor(world))
    views = {"host": cd.view(owner), "device": device, "read-only": cd.view(np.broadcast_to(np.float32(1), (2, 3)))}
    out, tensor = ctypes.c_void_p(), abi.DLTensor()
    at, of = ctypes.pointer(out), ctypes.pointer(tensor)
    prototypes = {
        "host": abi.make(data=0),
        "device": abi.make(device=(abi.CUDA, 0), data=0),
        "refused": abi.make(device=(abi.ROCM, 0), data=0),
    }

    ALIVE.extend([owner, views, prototypes])

    def release() -> None:
        if out.value:
            abi.release(abi.read_at(out.value, versioned=True))
            out.value = None

    def drop() -> None:
        if out.value:
            ctypes.pythonapi.Py_DecRef(ctypes.cast(out, ctypes.py_object))
            out.value = None

    def given(**changes: Any) -> Callable[[], int]:
        made = [abi.make(**changes) for _ in range(400)]
        ALIVE.append(made)
        unused = iter([tensor.address for tensor in made])
        return lambda: to_object(next(unused), at)

    def keep() -> None:
        out.value = None

    found = [
        *(
            Call(f"from_object, {name}", partial(from_object, id(view), at), release, "0")
            for name, view in views.items()
        ),
        Call("from_object, no view", partial(from_object, id(owner), at), keep, "TypeError"),
        Call("from_object, NULL", partial(from_object, 0, at), keep, "TypeError"),
        *(Call(f"borrow, {name}", partial(borrow, id(view), of), keep, "0") for name, view in list(views.items())[:2]),
        Call("borrow, read-only", partial(borrow, id(views["read-only"]), of), keep, "BufferError"),
        Call("borrow, no view", partial(borrow, id(owner), of), keep, "TypeError"),
        Call("to_object, host", given(), drop, "0"),
        Call("to_object, device", given(device=(abi.CUDA, 0), data=world.address("device")), drop, "0"),
        Call("to_object, refused", given(shape=(-1, 3)), keep, "ValueError"),
        Call("to_object, NULL", partial(to_object, None, at), keep, "ValueError"),
        Call("work_stream, device", partial(work_stream, abi.CUDA, 0, at), keep, "0"),
        *(
            Call(
                f"allocator, {name}",
                partial(allocator, ctypes.addressof(made.tensor), ctypes.addressof(out), None, None),
                release,
                "-1" if name == "refused" else "0",
            )
            for name, made in prototypes.items()
        ),
    ]
    return found


def abi_tensor(world: Simulated) -> Any:
    return abi.make(device=(abi.CUDA, 0), data=world.address("device")).capsule()


def attempt(call: Call, nth: int) -> str:
    """Returns the code that the function returned, or the name of what it raised."""
    _testcapi.set_nomemory(nth, nth + 1)
    try:
        result: Any = call.run()
    except BaseException as error:  # a panic is no Exception
        result = error
    finally:
        _testcapi.remove_mem_hooks()
    if isinstance(result, NO_MEMORY) or (isinstance(result, SystemError) and str(result).endswith(CPYTHONS)):
        return "no memory"
    return builtin(result).__name__ if isinstance(result, BaseException) else str(result)


def check(call: Call) -> tuple[int, list[str]]:
    """Returns how many allocations failed, and what was wrong."""
    for _ in range(2):  # what is made once
        first = attempt(call, 1 << 30)
        call.end()
    found = [] if first == call.expected else [f"{call.name}: {first} for {call.expected}"]
    live = cd.stats()["live"]
    failed, quiet, nth = 0, 0, 0
    while quiet < QUIET:
        told = attempt(call, nth)
        call.end()
        is_refused = told != call.expected
        if is_refused and told not in ("no memory", "-1"):
            found.append(f"{call.name}: allocation {nth}: {told} for {call.expected}")
        if not wait_until(lambda: cd.stats()["live"] == live):
            found.append(f"{call.name}: allocation {nth}: {cd.stats()}")
            break
        failed, quiet, nth = failed + is_refused, 0 if is_refused else quiet + 1, nth + 1
    return failed, found


def main() -> int:
    world = Simulated(Sim().library)
    gc.disable()
    failed, wrong = 0, []
    for stream in (None, world.b):
        with cd.use_stream(stream) if stream else cd.policy(sync="event"):
            for call in calls(world):
                count, found = check(call)
                failed += count
                wrong += found
    if cd.stats()["panics"]:
        wrong.append(f"{cd.stats()}")
    print("\n".join(wrong))
    print(f"{failed} failed allocations, {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
