"""The command line: exit codes, reports, what a crash is, and what a library may accept."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from cai_conformance.checks import CHECKS
from cai_conformance.judge.check import Severity
from cai_conformance.judge.report import SCHEMA, rules
from cai_conformance.judge.run import Outcome
from cai_conformance.testing import ConformanceError, check_cai_producer, check_dlpack_consumer, check_dlpack_producer

from conformance.tests.interpreter.process import ROOT

SUBJECTS = """
import ctypes, os, time
import numpy as np
from cai_conformance.reference.consumers import CaiConsumer, DlpackConsumer
from cai_conformance.reference.producers import CaiArray, DlpackArray

class Lists(CaiArray):
    def interface(self):
        return {**super().interface(), "shape": list(self.array.shape)}

class Zero(CaiArray):
    def interface(self):
        return {**super().interface(), "stream": 0}

def crashes(array):
    if array.dtype == np.complex128:
        ctypes.string_at(8)
    return DlpackArray(array)

def hangs_up(obj):
    if getattr(obj, "changes", {}).get("ndim") == -1:
        os._exit(3)
    return DlpackConsumer()(obj)

def hangs(array):
    time.sleep(60)

def nothing(array):
    return object()

def raises(obj):
    raise ValueError("not today")

def takes_vectors(obj):
    array = np.from_dlpack(obj)
    if array.ndim != 1:
        raise ValueError("one axis only")
    return array

def vectors(array):
    if array.ndim != 1:
        raise ValueError("one axis only")
    return array

take = CaiConsumer()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "subjects.py").write_text(SUBJECTS)
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cai_conformance", *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/conformance/kit/src:{folder}"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def report(folder: Path, *arguments: str) -> tuple[int, Any]:
    done = run(folder, *arguments, "--json", "out.json")
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode, json.loads((folder / "out.json").read_text())


def of(found: Any, key: str) -> Any:
    (row,) = [row for row in found["results"] if row["id"] == key]
    return row


def test_a_deviation_is_told_and_is_no_failure(folder: Path) -> None:
    code, found = report(folder, "producer", "subjects:Lists")
    row = of(found, "cai-producer.shape-type")
    assert code == 0 and found["schema"] == SCHEMA and found["driver"] == "simulated"
    assert (row["outcome"], row["severity"]) == ("failed", "deviation") and "list" in row["evidence"]
    assert "array = Lists(np.arange(6" in row["program"] and row["source"]["spec"] == "CAI"


def test_a_violation_is_a_failure_unless_it_is_accepted(folder: Path) -> None:
    code, _ = report(folder, "producer", "subjects:Zero")
    assert code == 1
    config = folder / "cai-conformance.toml"
    config.write_text('[accept]\n"cai-producer.stream-zero" = "documented since 1.0"\n')
    code, found = report(folder, "producer", "subjects:Zero")
    assert code == 0 and of(found, "cai-producer.stream-zero")["accepted"] == "documented since 1.0"
    code, found = report(folder, "producer", "subjects:Lists")
    assert found["needless"] == ["cai-producer.stream-zero"]


def test_the_json_has_the_keys_that_the_readme_tells(folder: Path) -> None:
    (folder / "cai-conformance.toml").write_text('[accept]\n"cai-producer.stream-zero" = "documented since 1.0"\n')
    _, found = report(folder, "producer", "subjects:Zero", "--only", "stream-zero", "--only", "stream-alive")
    rows = found["results"]
    readme = (ROOT / "conformance" / "kit" / "README.md").read_text()
    told = dict(re.findall(r"^\| `([a-z]+(?:\.[a-z]+)?)` \| (.*) \|$", readme.partition("| key |")[2], re.MULTILINE))
    assert set(told) == {*found, *(f"results.{key}" for row in rows for key in row)}
    always = {"id", "group", "says", "outcome", "severity", "source"}
    assert {frozenset(row) - always for row in rows} == {
        frozenset(),
        frozenset({"evidence"}),
        frozenset({"evidence", "program", "accepted"}),
    }
    assert all(always <= set(row) for row in rows) and told["schema"].endswith(f", {SCHEMA}")

    def named(key: str) -> list[str]:
        return re.findall("`([^`]+)`", told[key])

    assert named("counts") == list(found["counts"]) == list(found["profiles"]["cai-producer"])
    assert named("results.source") == list(rows[0]["source"])
    assert named("results.outcome") == [outcome.value for outcome in Outcome]
    assert named("results.severity") == [severity.value for severity in Severity]
    assert set(named("versions")) <= set(found["versions"])


def test_an_older_specification_has_fewer_checks(folder: Path) -> None:
    code, found = report(folder, "producer", "subjects:Zero", "--spec", "cai=2")
    assert code == 0 and not [row for row in found["results"] if row["source"]["since"] == "3"]


def test_a_group_is_judged_with_what_its_checks_need(folder: Path) -> None:
    code, found = report(folder, "consumer", "subjects:take", "--group", "ownership", "--group", "streams")
    chosen = {row["id"] for row in found["results"] if row["group"] in ("ownership", "streams")}
    assert {"cai-consumer.owner-kept", "cai-consumer.stream-wait"} <= chosen and "cai-consumer.takes" not in chosen
    needed = {f"cai-consumer.{rule}" for key in chosen for rule in CHECKS[key].after}
    assert {row["id"] for row in found["results"]} == chosen | needed and code == 0
    listed = run(folder, "checks", "--group", "malformed").stdout
    assert "cai-consumer.shape-type  (deviation, malformed)" in listed and ".values" not in listed
    shown = run(folder, "producer", "subjects:Lists", "--only", "shape-type").stdout
    assert "deviation  cai-producer.shape-type (malformed): `shape` is a tuple" in shown


def test_a_crash_is_a_result_and_the_others_are_run(folder: Path) -> None:
    code, found = report(folder, "producer", "subjects:crashes", "--profile", "dlpack-producer")
    crashed = [row for row in found["results"] if "SIGSEGV" in row.get("evidence", "")]
    assert code == 1 and crashed and {row["severity"] for row in crashed} == {"violation"}
    assert found["counts"]["passed"] > 30 and of(found, "dlpack-producer.deleter-thread")["outcome"] == "passed"
    code, found = report(folder, "consumer", "subjects:hangs_up")
    assert "exit code 3" in of(found, "dlpack-consumer.ndim-negative")["evidence"] and code == 0


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("producer", "numpy"), "MODULE:FUNCTION"),
        (("producer", "no_such_module:make"), "No module named"),
        (("producer", "numpy:no_such_function"), "no_such_function"),
        (("producer", "subjects:nothing"), "__dlpack__"),
        (("producer", "subjects:Zero", "--profile", "cai-consumer"), "a profile of a producer"),
        (("producer", "subjects:Zero", "--spec", "cai"), "cai=VERSION"),
        (("producer", "subjects:Zero", "--spec", "dlpack=99"), "no version '99' of DLPack; there are 0.2,"),
        (("producer", "subjects:Zero", "--spec", "dlpack=0"), "no version '0' of DLPack"),
        (("producer", "subjects:Zero", "--spec", "opencl=1"), "no specification 'opencl'; there are cai, dlpack,"),
        (("consumer", "math:sqrt"), "it took none of the arrays"),
    ],
)
def test_wrong_usage_has_an_exit_code_of_its_own(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run(folder, *arguments)
    assert (done.returncode, done.stdout) == (2, "") and said in done.stderr


def test_a_configuration_is_checked(folder: Path) -> None:
    for text, said in (
        ('[accept]\n"no.such" = "x"', "no check 'no.such'"),
        ('[accept]\n"cai-producer.values" = ""', "a reason"),
    ):
        (folder / "own.toml").write_text(text)
        done = run(folder, "producer", "subjects:Zero", "--config", "own.toml")
        assert done.returncode == 2 and said in done.stderr


def test_the_other_reports(folder: Path) -> None:
    done = run(
        folder, "consumer", "subjects:take", "--junit", "j.xml", "--html", "h.html", "--badge", "b.json", "--verbose"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    suite = ET.parse(folder / "j.xml").getroot()
    names = {found.get("name"): found.get("value") for found in suite.iter("property")}
    badge = json.loads((folder / "b.json").read_text())
    assert names["rules"] == rules() and names["driver"] == "simulated" and rules() in badge["message"]
    assert suite.get("failures") == "0" and len(suite.findall("testcase")) == int(suite.get("tests") or 0) > 80
    cases = {case.get("name"): case.find("properties/property") for case in suite.findall("testcase")}
    assert all(each is not None and each.get("name") == "group" for each in cases.values())
    page = (folder / "h.html").read_text()
    assert (
        page.startswith("<!doctype html>") and "cai-consumer.takes" in page and "http" not in page.split("</style>")[0]
    )
    assert badge["color"] == "green"


def on_a_terminal(folder: Path, *arguments: str) -> str:
    """What the command prints to a person, by a pseudo-terminal."""
    command = shlex.join([sys.executable, "-m", "cai_conformance", *arguments])
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/conformance/kit/src:{folder}", "COLUMNS": "100"}
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)


@pytest.mark.skipif(shutil.which("script") is None, reason="not run: no program that makes a pseudo-terminal")
def test_rich_draws_a_table_if_it_is_there_and_somebody_looks(folder: Path) -> None:
    only = ("--only", "stream-zero", "--only", "shape-type")
    shown = on_a_terminal(folder, "producer", "subjects:Zero", *only)
    assert "│ cai-producer │" in shown and "\narray = Zero(np.arange(6" in shown
    assert "│" not in on_a_terminal(folder, "producer", "subjects:Zero", "--plain", *only)
    assert "│" not in run(folder, "producer", "subjects:Zero", *only).stdout


def test_each_profile_has_its_counts(folder: Path) -> None:
    _, found = report(folder, "consumer", "cai_dlpack:view", "--only", "takes")
    assert found["profiles"]["cai-consumer"]["passed"] == found["profiles"]["exchange-consumer"]["passed"] == 1
    assert "dlpack-consumer: 1 checks: 1 passed" in run(folder, "consumer", "cai_dlpack:view", "--only", "takes").stdout


def test_a_pair(folder: Path) -> None:
    code, found = report(folder, "pair", "subjects:Lists", "subjects:take")
    assert code == 0 and found["counts"]["passed"] == len(found["results"])


def test_a_pair_of_which_nothing_arrives_fails(folder: Path) -> None:
    code, found = report(folder, "pair", "numpy:asarray", "subjects:raises")
    assert code == 1 and of(found, "pair.matrix")["severity"] == "violation" and not found["counts"]["passed"]
    done = run(folder, "pair", "subjects:vectors", "subjects:raises")
    assert done.returncode == 2 and "no array arrived" in done.stderr


def test_a_pair_that_hangs_does_so_for_as_long_as_it_may(folder: Path) -> None:
    code, found = report(folder, "pair", "subjects:hangs", "subjects:take", "--timeout", "0.1")
    assert code == 1 and "hung" in of(found, "pair.matrix")["evidence"]


def test_what_becomes_of_a_pair_may_be_accepted(folder: Path) -> None:
    (folder / "own.toml").write_text('[accept]\n"pair.matrix" = "not before 2.0"\n')
    assert report(folder, "pair", "numpy:asarray", "subjects:takes_vectors")[0] == 1
    code, found = report(folder, "pair", "numpy:asarray", "subjects:takes_vectors", "--config", "own.toml")
    assert code == 0 and of(found, "pair.matrix")["accepted"] == "not before 2.0"
    assert found["versions"]["rules"] == rules("pair") != rules()


def test_the_checks_are_listed(folder: Path) -> None:
    assert "pair.read-only  (recommendation, fidelity)" in run(folder, "checks").stdout
    done = run(folder, "checks", "--profile", "cai-producer")
    assert "cai-producer.values  (violation, fidelity)" in done.stdout and "dlpack" not in done.stdout.split("://")[0]


# --- in a test ---


@pytest.mark.usefixtures("sim")
def test_where_cuda_is_used_the_checks_run_in_the_same_process() -> None:
    """A copy of the process could not go on with it: what it has seen of the arrays would be lost."""
    from cai_conformance.cuda import driver
    from cai_conformance.reference.producers import DlpackArray

    driver()
    made: list[Any] = []

    def make(array: Any) -> DlpackArray:
        made.append(array)
        return DlpackArray(array)

    check_dlpack_producer(make, in_process=False)
    assert made


@pytest.mark.parametrize("name", ["CAI", "cai"])
def test_a_function_of_a_test_is_told_the_specification_in_capitals_or_not(name: str) -> None:
    from cai_conformance.reference.producers import CaiArray

    found = check_cai_producer(CaiArray, spec={name: "2"})
    assert found.results and not [one for one in found.results if one.check.source.since == "3"]


@pytest.mark.parametrize("spec", [{"OpenCL": "1"}, {"CAI": "99"}, {"DLPack": "1"}, {"CAI": 2}])
def test_a_function_of_a_test_refuses_a_specification_that_does_not_exist(spec: Any) -> None:
    with pytest.raises(ValueError, match=r"no (specification|version) .*; there are"):
        check_dlpack_producer(lambda array: array, spec=spec)


def test_the_functions_of_a_test() -> None:
    from cai_conformance.reference.consumers import DlpackConsumer
    from cai_conformance.reference.producers import CaiArray, DlpackArray

    class Wrong(CaiArray):
        def interface(self) -> Any:
            return {**super().interface(), "stream": 0}

    assert check_dlpack_producer(DlpackArray).exit_code == 0
    assert check_dlpack_consumer(DlpackConsumer()).exit_code == 0
    with pytest.raises(ConformanceError, match=r"cai-producer\.stream-zero"):
        check_cai_producer(Wrong)
    check_cai_producer(Wrong, accept={"cai-producer.stream-zero": "documented"})
    with pytest.raises(ConformanceError, match="did not fail"):
        check_cai_producer(CaiArray, accept={"cai-producer.stream-zero": "documented"})
