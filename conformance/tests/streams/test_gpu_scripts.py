"""Runs the scripts for a GPU on the simulator: they find missing order, and are not mistaken for a GPU's."""

from __future__ import annotations

import subprocess
import sys

from conformance.tests.interpreter.process import ROOT


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def races(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "conformance.soak.gpu_races", *arguments)


def test_the_races_of_a_gpu_run_on_the_simulator() -> None:
    done = races("--simulated", "--trials", "20", "--unordered", "20")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    wrong = [int(row[-4]) for row in rows]
    unordered = [(int(row[-3]), int(row[-2])) for row in rows]
    assert set(wrong) == {0}
    assert {trials for trials, _ in unordered} == {0, 20}
    assert all(missed > 0 for trials, missed in unordered if trials)


def test_the_simulator_is_not_taken_for_a_gpu() -> None:
    done = races("--trials", "1")
    assert done.returncode == 2
    assert "say --simulated" in done.stderr


def test_the_times_of_a_gpu_are_taken_on_the_simulator() -> None:
    done = run(sys.executable, "benches/gpu.py", "--simulated")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| view: one pointer query |" in done.stdout
    assert "| cupy.asarray | not run | ModuleNotFoundError" in done.stdout


def test_nothing_of_the_simulator_is_kept_as_a_gpus() -> None:
    kept = sorted((ROOT / "conformance" / "results").iterdir())
    done = run("bash", "conformance/gpu.sh", sys.executable)
    assert done.returncode == 2
    assert "a GPU is needed; here: simulated driver" in done.stderr
    assert sorted((ROOT / "conformance" / "results").iterdir()) == kept
