"""Device 0 current, and a clean log, for each check."""

from __future__ import annotations

import pytest
from cai_conformance import Sim
from cuda.core import Device


@pytest.fixture
def device(sim: Sim) -> Device:
    found = Device(0)
    found.set_current()
    sim.clear()
    return found
