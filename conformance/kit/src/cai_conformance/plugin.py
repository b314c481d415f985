"""The pytest plugin: `sim` for tests on the simulator, `gpu` for tests that must not run on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cai_conformance.library import NotSimulated, is_simulator, loaded
from cai_conformance.sim import Sim


@pytest.fixture(scope="session")
def simulator() -> Sim:
    """The simulator, for the whole run. A real driver, or none, is a failure and not a skip."""
    return Sim()


@pytest.fixture
def sim(simulator: Sim) -> Iterator[Sim]:
    """The simulator with an empty log; gates that a test leaves closed are opened, and faults
    that it leaves behind are forgotten."""
    simulator.clear()
    yield simulator
    simulator.open_gates()
    simulator.clear_faults()


@pytest.fixture(scope="session")
def gpu() -> None:
    """For tests of real hardware: fails on the simulator, and where there is no driver."""
    library = loaded()
    if library is None:
        raise NotSimulated("no CUDA driver: this test needs a GPU")
    if is_simulator(library):
        raise NotSimulated("this test needs a GPU and runs on the simulated driver")


def pytest_report_header() -> str:
    """Prints the driver of the run in pytest's header."""
    library = loaded()
    if library is None:
        return "CUDA driver: none"
    if not is_simulator(library):
        return "CUDA driver: a real one"
    sim = Sim()
    return f"CUDA driver: simulated, {sim.get('devices')} devices, {sim.schedule} schedule"
