"""The simulated driver for every test that asks for it, and no silent skip."""

from __future__ import annotations

import pytest
from simulator import Sim, load


@pytest.fixture(scope="session")
def driver() -> Sim:
    """The process's driver; a real one, or none, is a failure and not a skip."""
    return load()


@pytest.fixture
def sim(driver: Sim) -> Sim:
    """The simulated driver with device 0 current and an empty log."""
    driver.set_current(0)
    driver.clear()
    return driver
