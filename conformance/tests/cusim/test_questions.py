"""Checks the simulator against `answers.tsv`, under both schedules, and against the answers of a GPU's driver."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.tests.interpreter.process import ROOT, simulate

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
ANSWERS = HERE / "answers.tsv"
# The differences that are meant, with the row of docs/cusim.md that gives the reason.
OTHERWISE = HERE / "otherwise.tsv"
# What `make gpu PARTS=questions` has kept of a driver.
DRIVERS = ROOT / "conformance" / "results" / "gpu"
TABLE = "### Where this driver answered otherwise"


def pairs(text: str) -> list[tuple[str, str]]:
    """The two columns of every line that is no remark."""
    lines = (line.partition("\t") for line in text.splitlines() if not line.startswith("# "))
    return [(first, second) for first, _, second in lines]


def asked(*options: str) -> str:
    done = simulate([*options], ["-m", "conformance.tests.cusim.questions"])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("schedule", ["threaded", "lazy"])
def test_the_answers_are_those_of_the_list(schedule: str) -> None:
    assert asked("--schedule", schedule) == ANSWERS.read_text(encoding="utf-8")


def test_a_drivers_answers_are_the_simulators_but_for_the_named_ones() -> None:
    """Simulates as many devices as that machine has: what one device cannot answer is asked of neither."""
    kept = [path.read_text(encoding="utf-8") for path in sorted(DRIVERS.glob("questions*.tsv"))]
    assert kept, DRIVERS
    (devices,) = {len(set(re.findall(r"\bdevice (\d+): ", text[: text.index("\n# host")]))) for text in kept}
    simulated = dict(pairs(asked("--devices", str(devices))))
    driver = dict(pair for text in kept for pair in pairs(text))
    different = {question: answer for question, answer in driver.items() if simulated.get(question) != answer}
    named = [question for _, question in pairs(OTHERWISE.read_text(encoding="utf-8"))]
    assert sorted(different) == sorted(named), {
        question: (simulated.get(question, "not asked"), driver.get(question)) for question in {*different} ^ {*named}
    }


def test_each_named_difference_has_its_reason_in_the_documentation() -> None:
    page = (ROOT / "docs" / "cusim.md").read_text(encoding="utf-8")
    section = page.partition(TABLE)[2].partition("\n##")[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")]
    reasons = [reason for reason, _ in pairs(OTHERWISE.read_text(encoding="utf-8"))]
    assert list(dict.fromkeys(reasons)) == rows[1:]


def test_every_function_of_the_library_is_asked_beside_a_capture() -> None:
    """In a process of its own: the answers' objects are made of a driver."""
    code = """
from conformance.tests.cusim.model.driver import Driver
from conformance.tests.cusim.questions.library import NOT_ASKED, library_calls
cu = Driver()
cu.set_current(cu.retain(0))
print(*sorted({*library_calls(cu), *NOT_ASKED}), sep="\\n")
"""
    done = simulate([], ["-c", code])
    source = (ROOT / "src" / "driver" / "cuda.rs").read_text(encoding="utf-8")
    named = re.findall(r'^    [a-z0-9_]+ "(cu\w+)" "cu\w+"', source, re.MULTILINE)
    assert len(named) > 40 and done.stdout.split() == sorted(set(named)), done.stderr
