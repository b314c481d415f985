"""Provides the simulated driver to tests, and turns a skip without a listed reason into a failure."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator

import pytest
from cai_conformance import Sim as Control

from conformance.tests import hostile
from conformance.tests.simulated.machine import Machine


@pytest.fixture(scope="session")
def simulated() -> Machine:
    """The machine under the whole run. A real driver, or none, is a failure and not a skip."""
    return Machine(Control())


@pytest.fixture
def machine(simulated: Machine) -> Iterator[Machine]:
    """The simulated machine with device 0 current and an empty log."""
    gc.collect()  # what earlier tests have left: its end calls the driver
    simulated.set_current(0)
    simulated.set_capture_mode(0)  # GLOBAL: an earlier test may have left another one
    simulated.clear()
    yield simulated
    gc.enable()  # `clear_own` has disabled it
    simulated.end_captures()
    simulated.set_current(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--collect-always", action="store_true", help="collect at every allocation (conformance/tests/hostile.py)"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    if not item.config.getoption("--collect-always"):
        return (yield)
    with hostile.collecting_always():
        return (yield)


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """Freezes the objects that imports and the files before have left, so that a file's many collections are short."""
    gc.collect()
    gc.freeze()


# What may be skipped, and why: by the reason's beginning. Anything else that is skipped is a failure.
NOT_RUN = ("not run: ",)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
        if not reason.startswith(NOT_RUN):
            report.outcome = "failed"
            report.longrepr = f"skipped in silence: {reason}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists every test that was not run, with its reason, at any verbosity."""
    if hostile.collections:
        terminalreporter.line(f"{hostile.collections} collections, {hostile.finalised} hostile finalisers")
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section("not run")
        for report in skipped:
            terminalreporter.line(f"{report.nodeid}: {report.longrepr[2]}")
