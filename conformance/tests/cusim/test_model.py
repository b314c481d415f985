"""The simulator's rules, in each of its modes: the same checks under both schedules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.tests.interpreter.process import simulate

pytestmark = pytest.mark.long

MODES = [
    ["--schedule", "threaded"],
    ["--schedule", "lazy"],
    ["--schedule", "threaded", "--protect", "--reuse"],
    ["--schedule", "lazy", "--protect", "--reuse"],
    ["--schedule", "lazy", "--devices", "3", "--queue", "8"],
]


def checks(options: list[str], folder: str) -> int:
    """Returns how many checks of a folder have passed; raises if one fails, is skipped, or none runs."""
    # The conftest.py files of the folders above are not for the checks.
    root = str(Path(__file__).parent / folder)
    where = ["--confcutdir", root, "-o", "python_files=check_*.py", root]
    done = simulate(options, ["-m", "pytest", "-q", "-p", "no:cacheprovider", *where])
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(r"^(\d+) passed in ", done.stdout, re.MULTILINE)
    assert counted, f"something was skipped, or nothing ran:\n{done.stdout}"
    return int(counted[1])


@pytest.mark.parametrize("options", MODES, ids=lambda options: " ".join(options))
def test_the_rules_hold(options: list[str]) -> None:
    assert checks(options, "model") > 90


@pytest.mark.parametrize("schedule", ["threaded", "lazy"])
def test_cuda_core_runs_unmodified(schedule: str) -> None:
    assert checks(["--schedule", schedule], "outsiders") > 15


def test_a_folder_whose_checks_do_not_all_pass_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no tests ran"):
        checks([], str(tmp_path))
    check = tmp_path / "check_it.py"
    check.write_text("def test_right(): pass\ndef test_wrong(): assert False\n")
    with pytest.raises(AssertionError, match="1 failed, 1 passed"):
        checks([], str(tmp_path))
    check.write_text("import pytest\ndef test_right(): pass\ndef test_absent(): pytest.skip('absent')\n")
    with pytest.raises(AssertionError, match="something was skipped"):
        checks([], str(tmp_path))
