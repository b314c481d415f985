"""One driver for the run; each test starts with device 0 current and must leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cai_conformance import Sim

from conformance.tests.cusim.model.driver import Driver


@pytest.fixture(scope="session")
def driver() -> Driver:
    found = Driver()
    found.retain(0)
    found.retain(1)
    return found


@pytest.fixture
def cu(driver: Driver, simulator: Sim) -> Iterator[Driver]:
    """The driver, with the primary context of device 0 current and its work done at the end."""
    context = driver.retain(0)
    driver("cuDevicePrimaryCtxRelease_v2", 0)
    driver.set_current(context)
    before = simulator.live()
    simulator.clear()
    yield driver
    simulator.open_gates()
    simulator.clear_faults()
    driver.set_current(context)
    driver.synchronize()
    assert simulator.live() == before, "the test left something behind"
    driver.set_current(0)
