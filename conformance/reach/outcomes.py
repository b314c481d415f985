"""A plugin of pytest, which `make reach` names: keeps the outcomes in `conformance/results/reach-cpu.tsv`."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

import pytest

from conformance.provenance import commit, today

RESULTS = Path(__file__).resolve().parents[1] / "results" / "reach-cpu.tsv"
#: The engine of each file, and its package.
ENGINES = {
    "test_nixl.py": ("NIXL", "nixl-cu12"),
    "test_ray.py": ("Ray", "ray"),
    "test_ray_shared.py": ("Ray", "ray"),
    "test_ucxx.py": ("UCXX", "ucxx-cu13"),
}
_outcomes: dict[str, str] = {}
_commit = commit()  # Before the file of results changes, which git tracks.


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Takes the outcome of the call, or of a fixture that fails or skips."""
    if report.when == "call" or not report.passed:
        _outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    packages = ["cai-dlpack", "numpy", *sorted({package for _, package in ENGINES.values()})]
    lines = [
        f"# date: {today()}",
        f"# commit: {_commit}",
        f"# host: {platform.platform()}, Python {platform.python_version()}; device memory is the simulated driver's",
        f"# versions: {', '.join(map(versioned, packages))}",
        "engine\ttest\toutcome",
    ]
    for nodeid, outcome in _outcomes.items():
        file, _, test = nodeid.rpartition("/")[2].partition("::")
        lines.append(f"{ENGINES[file][0]}\t{test}\t{outcome}")
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def versioned(package: str) -> str:
    return f"{package} {importlib.metadata.version(package)}"
