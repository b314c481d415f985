"""Runs numba-cuda's own driver tests from the installed package; prints what became of each.

A program of its own, started on the simulator by `test_numba.py`, because the driver has to be
chosen before Numba is imported. One line for each test: outcome, name, reason.
"""

from __future__ import annotations

import sys
import types
import unittest
from typing import Any

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
]
PACKAGE = "numba.cuda.tests."


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


def stand_in_for_filecheck() -> None:
    """Empty modules, so that the import succeeds without the package."""
    sys.modules["filecheck"] = types.ModuleType("filecheck")
    for name, members in FILECHECK.items():
        module = types.ModuleType(name)
        for member in members:
            setattr(module, member, None)
        sys.modules[name] = module


if __name__ == "__main__":
    stand_in_for_filecheck()
    names = [PACKAGE + module for module in sys.argv[1:] or MODULES]
    unittest.TestLoader().loadTestsFromNames(names).run(Report())
