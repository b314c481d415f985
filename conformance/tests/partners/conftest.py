"""Names the simulated machine `sim` for these tests, and runs those of copies under both schedules."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance.tests.partners.copying import settled
from conformance.tests.simulated.machine import Machine


@pytest.fixture
def sim(machine: Machine) -> Machine:
    """The simulated machine with device 0 current and an empty log."""
    return machine


@pytest.fixture(params=["threaded", "lazy"])
def schedule(request: pytest.FixtureRequest, machine: Machine) -> Iterator[None]:
    """Each test runs with worker threads, and with work that runs only if it is waited for."""
    control = machine.control
    settled(machine)
    control.schedule = request.param
    yield
    control.open_gates()
    control.clear_faults()
    control.schedule = "threaded"
    settled(machine)


# The function that the library calls, which is found once in a process.
CALL: list[Callable[[Any], Any]] = []


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[Any], Any]]]:
    """A library that is not installed here, of which the last function of the list is the call."""
    names = ("pylibraft", "pylibraft.common")
    assert not any(name in sys.modules for name in names)
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["pylibraft.common"].cai_wrapper = lambda view: CALL[-1](view)  # type: ignore[attr-defined]
    yield CALL
    CALL.clear()
