"""Without a CUDA driver, as in most projects' CI, a check that needs one is not run, and is no finding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.tests.interpreter.process import ROOT

REFERENCES = "cai_conformance.reference"


def without_a_driver(folder: Path, *arguments: str) -> Any:
    """The kit's report in a process whose loader finds no simulated driver."""
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    environment["PYTHONPATH"] = f"{ROOT}/conformance/kit/src:{folder}"
    command = [sys.executable, "-m", "cai_conformance", *arguments, "--json", "out.json"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = json.loads((folder / "out.json").read_text())
    if found["driver"] == "a real one":
        pytest.skip("not run: this machine has a CUDA driver")
    return found


@pytest.mark.parametrize(
    ("kind", "target", "expected"),
    [
        ("producer", f"{REFERENCES}.producers:DlpackArray", set()),
        ("producer", f"{REFERENCES}.exchanger:ExchangeArray", set()),
        ("consumer", "subjects:dlpack", set()),
        ("consumer", "subjects:exchange", set()),
        ("producer", "numpy:asarray", {"dlpack-producer.data-zero-size"}),
    ],
)
def test_what_needs_a_driver_is_not_run(tmp_path: Path, kind: str, target: str, expected: set[str]) -> None:
    (tmp_path / "subjects.py").write_text(
        f"from {REFERENCES}.consumers import DlpackConsumer\n"
        f"from {REFERENCES}.exchange_consumer import ExchangeConsumer\n"
        "dlpack, exchange = DlpackConsumer(), ExchangeConsumer()\n"
    )
    found = without_a_driver(tmp_path, kind, target)
    failed = {row["id"]: row["evidence"] for row in found["results"] if row["outcome"] == "failed"}
    assert set(failed) <= expected and found["driver"] == "none", failed
    assert found["counts"]["not run"] > 0 and found["counts"]["passed"] > 15
