"""Every allocation of CPython failing in turn on every route: MemoryError, nothing leaked, and the next call works."""

from __future__ import annotations

import importlib.util
import re

import pytest

from conformance.tests.interpreter import needs
from conformance.tests.interpreter.free_threaded import FREE_THREADED
from conformance.tests.interpreter.process import simulate

#: These run code in the midst of what lacks memory. Other builds make a SystemError of it.
NOT_BY_DEBUG = ("allocations", "blocks")
HAS_TESTCAPI = importlib.util.find_spec("_testcapi") is not None


@pytest.mark.skipif(not HAS_TESTCAPI, reason="not run: this CPython was installed without its module _testcapi")
@pytest.mark.skipif(FREE_THREADED, reason="not run: set_nomemory exchanges the allocators under running threads")
@pytest.mark.parametrize(
    ("program", "least"),
    [("allocations", 4000), ("exchange_functions", 150), ("capsules", 300), ("reaper", 10), ("blocks", 500)],
)
def test_every_allocation(program: str, least: int) -> None:
    """Of every route, of every function of our exchange table, which C calls, of all that takes a capsule, which is
    left alone, of the reaper's beginning, and of blocks, which are compared with a list."""
    if program in NOT_BY_DEBUG and needs.DEBUG:
        pytest.skip("not run: a debug build ends where CPython's own code lacks memory and raises nothing")
    ended = simulate([], ["-X", "faulthandler", "-m", f"conformance.tests.faults.{program}"], timeout=300)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    counted = re.search(r"(\d+) failed allocations, 0 wrong", ended.stdout)
    assert counted and int(counted[1]) > least, ended.stdout
