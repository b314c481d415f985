"""The simulated driver for every test that asks for it, and no silent skip."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import simulator
from simulator import Sim

# Before any test module is imported: the libraries under test look for the driver once.
_loaded: Sim | AssertionError
try:
    _loaded = simulator.load()
except AssertionError as error:
    _loaded = error


@pytest.fixture(scope="session")
def driver() -> Sim:
    """The simulated driver; a real one, or none, is a failure and not a skip."""
    if isinstance(_loaded, AssertionError):
        pytest.fail(str(_loaded))
    return _loaded


@pytest.fixture
def sim(driver: Sim) -> Iterator[Sim]:
    """The simulated driver with device 0 current and an empty log."""
    driver.set_current(0)
    driver.clear()
    yield driver
    driver.set_current(0)


def pytest_collection_finish() -> None:
    """What the imports left behind lives on: the many collections of these tests need not look at it."""
    gc.collect()
    gc.freeze()


# What may be skipped, and why: by the reason's beginning. Anything else that is skipped is a failure.
NOT_RUN = ("not run: ",)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
        if not reason.startswith(NOT_RUN):
            report.outcome = "failed"
            report.longrepr = f"skipped in silence: {reason}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Everything that was not run, with its reason, whatever the verbosity."""
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section("not run")
        for report in skipped:
            terminalreporter.line(f"{report.nodeid}: {report.longrepr[2]}")
