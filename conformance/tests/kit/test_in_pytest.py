"""The kit in a library's own tests: `--cai-conformance`, and what `cai-conformance.toml` accepts."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from cai_conformance.judge.report import kit_version, rules
from cai_conformance.reference.producers import CaiArray
from cai_conformance.testing import ConformanceError, check_cai_producer

from conformance.tests.interpreter.process import ROOT
from conformance.tests.kit.test_command import SUBJECTS

ACCEPTED = '[accept]\n"cai-producer.stream-zero" = "documented since 1.0"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "subjects.py").write_text(SUBJECTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def pytest_in(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "cai_conformance.plugin", "-rA", "-k", "stream or shape", *options]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/conformance/kit/src:{folder}"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_each_check_is_a_test(folder: Path) -> None:
    done = pytest_in(
        folder, "--cai-conformance", "producer=subjects:Zero", "--cai-conformance", "consumer=subjects:take"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED producer=subjects:Zero::cai-producer.stream-zero" in done.stdout and "1 failed" in done.stdout
    assert "array = Zero(np.arange(6" in done.stdout and "disallowed as it would be ambiguous" in done.stdout
    assert "PASSED consumer=subjects:take::cai-consumer.stream-handle" in done.stdout


def test_header_and_junit_have_the_versions_of_the_kit_and_of_its_rules(folder: Path) -> None:
    done = pytest_in(folder, "--cai-conformance", "producer=subjects:Lists", "--junit-xml", "j.xml")
    assert f"cai-conformance {kit_version()}, rules {rules()}" in done.stdout
    (found,) = ET.parse(folder / "j.xml").getroot().iterfind("testsuite/properties")
    assert {each.get("name"): each.get("value") for each in found} == {
        "cai-conformance": kit_version(),
        "rules": rules(),
    }
    (folder / "test_else.py").write_text("def test_something_else_about_streams():\n    pass\n")
    done = pytest_in(folder, "--junit-xml", "j.xml")
    assert rules() not in done.stdout and "properties" not in (folder / "j.xml").read_text()


def test_a_deviation_is_an_expected_failure(folder: Path) -> None:
    done = pytest_in(folder, "--cai-conformance", "producer=subjects:Lists")
    assert done.returncode == 0 and "XFAIL producer=subjects:Lists::cai-producer.shape-type" in done.stdout
    done = pytest_in(folder, "--cai-conformance", "producer=subjects:Lists", "-k", "malformed")
    assert "cai-producer.shape-type" in done.stdout and "stream-order" not in done.stdout


def test_what_the_file_accepts_is_one_too_and_needless_if_it_passes(folder: Path) -> None:
    (folder / "cai-conformance.toml").write_text(ACCEPTED)
    done = pytest_in(folder, "--cai-conformance", "producer=subjects:Zero")
    assert done.returncode == 0 and "accepted: documented since 1.0" in done.stdout
    done = pytest_in(folder, "--cai-conformance", "producer=subjects:Lists")
    assert done.returncode == 1 and "take it out of cai-conformance.toml" in done.stdout


@pytest.mark.parametrize("text", ["numpy:asarray", "producer=", "producer=no_such_module:f", "consumer=math:sqrt"])
def test_wrong_usage_is_told(folder: Path, text: str) -> None:
    done = pytest_in(folder, "--cai-conformance", text)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR and "--cai-conformance" in done.stderr + done.stdout


@pytest.mark.usefixtures("sim")
def test_a_function_of_a_test_reads_the_file_unless_it_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Zero(CaiArray):
        def interface(self) -> Any:
            return {**super().interface(), "stream": 0}

    (folder / "cai-conformance.toml").write_text(ACCEPTED)
    monkeypatch.chdir(folder)
    assert check_cai_producer(Zero).counts["accepted"] == 1
    with pytest.raises(ConformanceError, match="stream-zero"):
        check_cai_producer(Zero, accept={})
