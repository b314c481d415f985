"""Names the simulated machine `sim` for these tests."""

from __future__ import annotations

import pytest

from conformance.tests.simulated.machine import Machine


@pytest.fixture
def sim(machine: Machine) -> Machine:
    """The simulated machine with device 0 current and an empty log."""
    return machine
