"""Runs numba-cuda's own driver tests from the installed package; prints what became of each.

A program of its own, started on the simulator by `test_numba.py`, because the driver has to be
chosen before Numba is imported. One line for each test: outcome, name, reason.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cuda.bindings import driver as binding

# `numba.cuda.testing` imports FileCheck, which compares compiled code: none of these tests uses it.
FILECHECK = {
    "filecheck.matcher": ["Matcher"],
    "filecheck.options": ["Options"],
    "filecheck.parser": ["Parser", "pattern_for_opts"],
    "filecheck.finput": ["FInput"],
}

MODULES = [
    "cudadrv.test_events",
    "cudadrv.test_cuda_memory",
    "cudadrv.test_host_alloc",
    "cudadrv.test_array_attr",
    "cudadrv.test_pinned",
    "cudadrv.test_select_device",
    "cudadrv.test_reset_device",
    "cudadrv.test_context_stack",
    "cudadrv.test_managed_alloc",
    "cudadrv.test_cuda_ndarray",
    "cudadrv.test_cuda_array_slicing",
    "cudadrv.test_deallocations",
    "cudadrv.test_detect",
    "cudadrv.test_emm_plugins",
    "cudadrv.test_streams",
    "cudapy.test_cuda_array_interface",
    "cudapy.test_ipc",
]
PACKAGE = "numba.cuda.tests."
#: Numba waits 4 seconds for what another process returns, which on a busy machine go by while that process imports it.
#: A process that never returns anything fails after this time, too.
IPC_SECONDS = 60


def give_handles_their_bytes() -> None:
    """`CUipcMemHandle.reserved`, which Numba reads and cuda-bindings has no more since 13.4. Done when this file is
    imported, so that the processes that multiprocessing starts have it too."""

    class Handle(binding.CUipcMemHandle):  # type: ignore[misc]
        __slots__ = ()

        @property
        def reserved(self) -> bytes:
            return ctypes.string_at(self.getPtr(), 64)

        @reserved.setter
        def reserved(self, data: bytes) -> None:
            ctypes.memmove(self.getPtr(), bytes(data), 64)

    def get(address: Any) -> tuple[Any, Any]:
        code, plain = get_plain(address)
        handle = Handle()
        if plain is not None:
            handle.reserved = ctypes.string_at(plain.getPtr(), 64)
        return code, handle

    get_plain = binding.cuIpcGetMemHandle
    binding.CUipcMemHandle, binding.cuIpcGetMemHandle = Handle, get


if not hasattr(binding.CUipcMemHandle, "reserved"):
    give_handles_their_bytes()


class Report(unittest.TestResult):
    """Prints instead of collecting."""

    def _line(self, outcome: str, test: unittest.TestCase, reason: str = "") -> None:
        print(outcome, test.id().removeprefix(PACKAGE), reason, sep="\t", flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._line("passed", test)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._line("failed", test, _reason(err))

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._line("failed", test, _reason(err))

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._line("skipped", test, reason)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self._line("failed", test, _reason(err))


def _reason(err: Any) -> str:
    """Returns the exception's class and the first line of its message."""
    kind, value, _ = err
    return f"{kind.__name__}: {str(value).strip().partition(chr(10))[0]}"


def stand_in_for_filecheck(folder: Path) -> None:
    """Modules of nothing, so that the import succeeds without the package; here and in processes that
    multiprocessing starts, which get the path from this one."""
    for name, members in FILECHECK.items():
        file = folder.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{member} = None\n" for member in members))
    sys.path.insert(0, str(folder))


def wait_longer_for_processes() -> None:
    tests: Any = importlib.import_module(PACKAGE + "cudapy.test_ipc")
    if not hasattr(tests, "FUTURE_TIMEOUT"):
        raise LookupError("test_ipc has its limit elsewhere now")
    tests.FUTURE_TIMEOUT = IPC_SECONDS


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        stand_in_for_filecheck(Path(temporary))
        wait_longer_for_processes()
        names = [PACKAGE + module for module in sys.argv[1:] or MODULES]
        unittest.TestLoader().loadTestsFromNames(names).run(Report())
