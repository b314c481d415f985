"""The script that races on a GPU, on the simulator: it runs, sees what is unordered, and knows where it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "soak" / "gpu_races.py"


def races(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


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
