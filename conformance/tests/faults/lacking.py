"""Takes every route on drivers that lack a function each, and on none; prints what came out wrong.

A program, with `lacking.c` preloaded. The extension looks every function up once in a process, so that each driver is a
forked child's, which loads the simulator, makes its streams and memory, and then has `dlsym` find some names no more.
Before it forks nothing has loaded a driver.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import re
import sys
import traceback
from typing import Any

import cai_dlpack as cd
from cai_conformance.library import library_path

from conformance.tests.faults import routes
from conformance.tests.faults.routes import ROUTES
from conformance.tests.faults.world import Simulated, Without
from conformance.tests.interpreter.process import ROOT

#: A driver of CUDA 11.0: what came later, by the reference of the driver API.
CUDA_11_0 = ("cuStreamGetId", "cuCtxGetId", "cuMemAllocAsync", "cuStreamGetCaptureInfo_v2")


def functions() -> list[str]:
    """Returns the exported names that the extension looks up."""
    source = (ROOT / "src" / "driver" / "cuda.rs").read_text()
    declared = source.split("functions! {", 2)[1].split("\n}\n")[0]
    found = re.findall(r'^    \w+ "\w+" "(\w+)"', declared, re.MULTILINE)
    assert len(found) > 30, found
    return found


def result_of(route: routes.Route, world: Any) -> object:
    try:
        return route.run(world, route.make(world))
    except cd.DriverError as error:
        return error


def on(lacking: tuple[str, ...]) -> dict[str, object]:
    """Every route's result on a driver; a DriverError as its call, code and name."""
    world: Any = Without()
    if lacking != ABSENT:
        world = Simulated(ctypes.CDLL(str(library_path())))
        ctypes.CDLL(None).lack(",".join(lacking).encode())
    found: dict[str, object] = {}
    # Another library has a driver of its own, and its own words for what that lacks.
    for route in [route for route in ROUTES if not route.is_foreign]:
        result = result_of(route, world)
        if isinstance(result, cd.DriverError):
            result = ("DriverError", result.call, result.code, result.name)
        found[str(route)] = result
    assert cd.stats()["panics"] == 0
    return found


def in_a_child(lacking: tuple[str, ...]) -> dict[str, object] | str:
    """What `on` returns, from a forked process, or how that ended."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        answer: object
        try:
            answer = on(lacking)
        except BaseException:
            answer = traceback.format_exc()
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(content) if content and status == 0 else f"ended by {status}"


#: No driver at all.
ABSENT = ("libcuda",)


def is_right(route: str, result: object, expected: object, lacking: tuple[str, ...]) -> bool:
    if isinstance(result, tuple) and result[:1] == ("DriverError",):
        _, call, code, name = result
        if lacking == ABSENT:
            return (code, name) == (None, "NO_DRIVER_LIBRARY")
        is_lacking = any(full == call or re.fullmatch(rf"{call}_v\d", full) for full in lacking)
        return is_lacking and (code, name) == (None, "NO_DRIVER_FUNCTION")
    if lacking == ABSENT and route.endswith(", other device"):  # there is none
        return result == expected or str(result).startswith(("BufferRefusal: ", "TypeError: "))  # the producer's own
    if lacking == ABSENT:  # other addresses and handles
        is_of_the_host = route.startswith("NumPy") and not route.endswith("a dict, owner")
        return not is_of_the_host or result == expected
    return result == expected or "/ explain" in route


def main() -> int:
    routes.quiet()
    wrong, refused = [], 0
    whole = in_a_child(())
    assert isinstance(whole, dict), whole
    assert not any(isinstance(each, tuple) and each[:1] == ("DriverError",) for each in whole.values())
    for lacking in [ABSENT, CUDA_11_0, *((function,) for function in functions())]:
        found = in_a_child(lacking)
        if isinstance(found, str):
            wrong.append(f"without {lacking}: {found}")
            continue
        for route, result in found.items():
            refused += isinstance(result, tuple) and result[:1] == ("DriverError",)
            if not is_right(route, result, whole[route], lacking):
                wrong.append(f"without {lacking}: {route}: {result} for {whole[route]}")
    print("\n".join(wrong))
    print(f"{refused} refused, {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
