"""The pytest plugin: `sim` for tests on the simulator, `gpu` for tests that must not run on it, `--cai-strict`, and
`--cai-conformance`, a test for each check of a producer or a consumer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from cai_conformance.library import NotSimulated, is_simulator, loaded
from cai_conformance.sim import Sim

STRICT = "CAI_DLPACK_STRICT"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cai-strict",
        action="store_true",
        help="cai_dlpack refuses arrays whose producer does not declare its stream (CAI_DLPACK_STRICT=1), "
        "in this process and those that the tests start",
    )
    parser.addoption(
        "--cai-conformance",
        action="append",
        default=[],
        metavar="KIND=MODULE:FUNCTION",
        help="a test for each check of producer=MODULE:FUNCTION or consumer=MODULE:FUNCTION, which may be followed by "
        ",read=MODULE:FUNCTION; what is accepted stands in cai-conformance.toml; may be given several times",
    )


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Adds the tests that `--cai-conformance` asks for."""
    for name in config.getoption("--cai-conformance"):
        from cai_conformance.pytest_items import Judged  # needs NumPy, which the rest does not

        items.extend(Judged.from_parent(session, name=name, nodeid=name).collect())


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Makes every import of the run strict, before a conftest.py can import the package, which reads the variable."""
    if not early_config.known_args_namespace.cai_strict or os.environ.get(STRICT) == "1":
        return
    if "cai_dlpack" in sys.modules:
        raise pytest.UsageError(f"--cai-strict comes too late: cai_dlpack is imported already; set {STRICT}=1")
    os.environ[STRICT] = "1"


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


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Prints the driver of the run in pytest's header, whether imports are strict, and by what arrays are judged."""
    strict = ["cai_dlpack: strict"] if os.environ.get(STRICT) == "1" else []
    judged = ", ".join(f"{name} {version}" for name, version in judged_by(config).items())
    return [f"CUDA driver: {driver()}", *strict, *([judged] if judged else [])]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Writes the versions of the kit and of its rules into the properties of JUnit's suite."""
    from _pytest.junitxml import xml_key  # the fixture for such properties is for tests alone

    xml = session.config.stash.get(xml_key, None)
    if xml is None:
        return
    for name, version in judged_by(session.config).items():
        xml.add_global_property(name, version)


def judged_by(config: pytest.Config) -> dict[str, str]:
    """Returns the versions of the kit and of its rules if `--cai-conformance` judges something."""
    if not config.getoption("--cai-conformance"):
        return {}
    from cai_conformance.judge.report import kit_version, rules  # needs NumPy, which the rest does not

    return {"cai-conformance": kit_version(), "rules": rules()}


def driver() -> str:
    library = loaded()
    if library is None:
        return "none"
    if not is_simulator(library):
        return "a real one"
    sim = Sim()
    return f"simulated, {sim.get('devices')} devices, {sim.schedule} schedule"
