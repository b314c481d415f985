"""Modules in C++, as authors of bindings write them, compiled for the tests."""

from __future__ import annotations

import importlib.util
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from conformance.tests.interpreter.free_threaded import FREE_THREADED

HERE = Path(__file__).parent
FLAGS = ["-std=c++17", "-O0", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-Wall", "-Werror"]
# Without it the import of a module of nanobind's turns the GIL on.
FLAGS += ["-DNB_FREE_THREADED"] if FREE_THREADED else []


def compiled(name: str, room: Path, *, include: list[str], other: list[Path]) -> Any:
    """Compiles the module of this folder with what it needs beside, and imports it."""
    sources = [HERE / f"{name}.cpp", *other]
    include = [*include, sysconfig.get_path("include")]
    library = room / f"{name}.so"
    command = ["c++", *FLAGS, "-shared", "-o", str(library), *(f"-isystem{each}" for each in include)]
    subprocess.run([*command, *map(str, sources)], check=True, timeout=240)
    return imported(name, room)


def imported(name: str, room: Path) -> Any:
    """Imports a module that was compiled before."""
    library = room / f"{name}.so"
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
