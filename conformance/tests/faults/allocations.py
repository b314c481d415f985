"""Takes every route with each of CPython's allocations failing in turn; prints what came out wrong.

A program, for a process of its own on the simulated driver: `_testcapi.set_nomemory` is the process's, and what goes
wrong may end it.
"""

from __future__ import annotations

import _testcapi  # type: ignore[import-not-found]
import gc
import sys
import time
from typing import Any

import cai_dlpack as cd
from cai_conformance import Sim

from conformance.tests.faults import routes
from conformance.tests.faults.routes import ROUTES, Route
from conformance.tests.faults.world import Simulated
from conformance.tests.interpreter.needs import DEBUG

#: Doubles in ctypes, which swallows a MemoryError in a callback and turns one in an argument into an ArgumentError.
BY_CTYPES = ("tensor", "table", "exchange")
#: NumPy's dicts: without memory for a value it sets one that is NULL (`array_interface_get`), at which CPython ends the
#: process. Which of its allocations is CPython's free list's depends on what was freed before.
BY_NUMPY = ("NumPy",)
#: NumPy's hash of a type that was made anew, for which Numba asks: without memory it returns a number and leaves the
#: exception set, at which a debug build of CPython ends the process.
BY_HASH = ("device, structs / to: numba.cuda",) if DEBUG else ()
#: tvm_ffi's own: a tensor for which it finds no object is never released (`make_tensor_from_chandle`).
BY_TVM_FFI = ("tvm_ffi",)
#: cuda.core's own: its table returns -1 and sets no exception.
CUDA_CORES = "an exchange table failed without an exception"
#: CPython 3.11's own: a Python function that raises ValueError does the same.
CPYTHONS = ("error return without exception set", "returned NULL without setting an exception")
#: PyO3's own: it notes in the error of an argument whose it is, by a string that it takes for made
#: (`argument_extraction_error`).
PYO3S = "PyObject pointer is null"
#: NumPy's, for a dict of fields whose names it could not look up.
NUMPYS = "entry not a 2- or 3- tuple"
#: How many runs in a row must succeed for the last allocation to be over.
QUIET = 4


def attempt(route: Route, world: Simulated, array: Any, nth: int) -> Any:
    _testcapi.set_nomemory(nth, nth + 1)
    try:
        return route.take(world, array)
    except BaseException as error:  # a panic is no Exception
        return error.with_traceback(None)
    finally:
        _testcapi.remove_mem_hooks()


def is_right(route: Route, result: object, expected: object) -> bool:
    if isinstance(result, MemoryError):
        return True
    if isinstance(result, SystemError):
        return str(result).endswith(CPYTHONS) or (str(result) == CUDA_CORES and route.use == "to: cuda.core")
    if isinstance(result, BaseException):
        return route.use == "Rust argument" and str(result) == PYO3S
    # Of a type whose name could not be made the description has none.
    told = str(routes.told(result)).replace("of type ?", "of type object")
    return told == str(expected) or told.endswith(NUMPYS)


def wait_until(is_so: Any) -> bool:
    end = time.monotonic() + 2
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.0002)
    return True


def check(route: Route, world: Simulated, reported: list[str]) -> tuple[int, list[str]]:
    """Returns how many allocations failed, and what was wrong; `reported` has the errors that reach no caller."""
    for _ in range(2):  # what is made once
        expected = route.run(world, route.make(world))
    found, failed, quiet, nth = [], 0, 0, 0
    while quiet < QUIET:
        array = route.make(world)
        references = sys.getrefcount(array)
        # A thread that ends owners must not allocate while the allocators are exchanged.
        wait_until(lambda: cd.stats()["live"] == route.held)
        result = attempt(route, world, array, nth)
        if not is_right(route, result, expected):
            found.append(f"{route}: allocation {nth}: {result!r} for {expected}")
        # What the trace lacked memory for is reported, and not raised.
        is_error = isinstance(result, BaseException) or bool(reported)
        if set(reported) - {"MemoryError"}:
            found.append(f"{route}: allocation {nth}: reported {reported}")
        reported.clear()
        failed, quiet = failed + is_error, 0 if is_error else quiet + 1
        del result
        if not wait_until(lambda: sys.getrefcount(array) == references and cd.stats()["live"] == route.held):  # noqa: B023
            found.append(f"{route}: allocation {nth}: {sys.getrefcount(array)} references for {references}")
        nth += 1
    if route.run(world, route.make(world)) != expected:
        found.append(f"{route}: another result after it")
    return failed, found


def main() -> int:
    world = Simulated(Sim().library)
    routes.quiet()
    gc.disable()
    reported: list[str] = []
    sys.unraisablehook = lambda error: reported.append(error.exc_type.__name__)
    failed, wrong = 0, []
    for route in ROUTES:
        if not any(word in str(route) for word in BY_CTYPES + BY_NUMPY + BY_HASH + BY_TVM_FFI):
            count, found = check(route, world, reported)
            failed += count
            wrong += found
    if cd.stats()["panics"]:
        wrong.append(f"{cd.stats()}")
    print("\n".join(wrong))
    print(f"{failed} failed allocations, {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
