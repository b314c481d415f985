"""Names the simulated machine `sim` for these tests, and runs those of copies under both schedules."""

from __future__ import annotations

from collections.abc import Iterator

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
