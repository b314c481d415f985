"""The page of verdicts is that of the kept results, in which nothing of ours is a violation."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from cai_conformance.judge.report import rules

from conformance.judged import run
from conformance.judged.targets import TARGETS
from conformance.tests.expectations.fences import blocks
from conformance.tests.interpreter.process import ROOT


def test_the_page_is_that_of_the_kept_results() -> None:
    reports = json.loads(run.KEPT.read_text())
    assert [report["target"] for report in reports] == [target.target for target in TARGETS]
    assert run.PAGE.read_text() == "\n".join(run.page(reports)) + "\n"


def test_the_page_lists_what_it_counts() -> None:
    """The rules of each library's deviations and recommendations, and not their number alone."""
    section = run.PAGE.read_text().partition("## Deviations and recommendations\n")[2]
    for report in json.loads(run.KEPT.read_text()):
        start = f"- {report['library']}, {report['kind']} `{report['target'].rpartition(':')[2]}`: "
        lines = [line for line in section.splitlines() if line.startswith(start)]
        told = [
            (severity, f"{profile}.{rule}")
            for line in lines
            for severity, profile, rules in re.findall(r"(\w+)s of `([\w-]+)`: ([^;]+)", line)
            for rule in re.findall(r"`([^`]+)`", rules)
        ]
        found = [(row["severity"], row["id"]) for row in report["failed"] if row["severity"] != "violation"]
        assert sorted(told) == sorted(found), start
        counts = report["counts"]
        assert len(found) == counts["deviations"] + counts["recommendations"]


def test_the_findings_are_those_of_the_kept_results() -> None:
    """Each block is the program that has shown the violation, and nothing else."""
    reports = json.loads(run.KEPT.read_text())
    found = {file.stem: file.read_text() for file in run.FINDINGS.glob("*.md")}
    assert found == run.findings_pages(reports)
    programs = [row.get("program", "# Any array.").strip() for each in reports for row in each["failed"]]
    shown = blocks(pages=sorted(run.FINDINGS.glob("*.md")))
    assert len(shown) > 20 and {block.label for block in shown} == {"python"}
    assert [block.name for block in shown if block.code.strip() not in programs] == []


def test_the_results_are_those_of_todays_rules() -> None:
    """After a change of a check: `make pycuda judged`, and `make judged-torch`."""
    stale = {r["target"]: r["versions"].get("rules") for r in json.loads(run.KEPT.read_text())}
    assert set(stale.values()) == {rules()}, stale


def test_of_each_violation_and_crash_it_is_known_whether_it_is_reported() -> None:
    found = {
        (report["library"].split()[0], row["id"])
        for report in json.loads(run.KEPT.read_text())
        for row in report["failed"]
        if row["severity"] == "violation" or run.crashed(row)
    }
    known = {(library, check): text for library, texts in run.KNOWN.items() for check, text in texts.items()}
    assert set(known) == found
    for text in known.values():
        assert re.fullmatch(
            r"https://github\.com/[^/]+/[^/]+/(issues|pull)/\d+|searched on \d{4}-\d\d-\d\d, none found", text
        )


def test_a_finding_can_be_sent() -> None:
    """Its program needs the library and the kit, and nothing of this repository. Crashes are there, too."""
    reports = json.loads(run.KEPT.read_text())
    for report in reports:
        file = run.FINDINGS / f"{report['library'].split()[0]}.md"
        for row in report["failed"]:
            if row["severity"] == "violation" or run.crashed(row):
                assert row["says"] in file.read_text(), row["id"]
    assert "SIGSEGV" in (run.FINDINGS / "numpy.md").read_text()
    for path in run.FINDINGS.glob("*.md"):
        assert "import conformance" not in path.read_text() and "from conformance" not in path.read_text(), path


@pytest.mark.usefixtures("sim")
@pytest.mark.parametrize(
    ("target", "check", "conclusion"),
    [
        (
            "conformance.judged.targets:Message",
            "cai-consumer.stream-wait",
            "waits for the stream, or works in it: False",
        ),
        ("tvm_ffi:from_dlpack", "exchange-consumer.table-major", "calls of functions of that table: 1"),
    ],
)
def test_a_finding_tells_its_conclusion(target: str, check: str, conclusion: str) -> None:
    """What a program prints is the finding: an empty line, or the array alone, shows nothing."""
    (report,) = [report for report in json.loads(run.KEPT.read_text()) if report["target"] == target]
    (row,) = [row for row in report["failed"] if row["id"] == check]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "conformance" / "kit" / "src")}
    done = subprocess.run([sys.executable, "-c", row["program"]], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == [conclusion], done.stderr


def test_what_is_not_judged_has_a_reason() -> None:
    assert all(run.not_judged().values()) and {"CuPy", "dlpark, producer", "dlpack-rs"} <= set(run.not_judged())


def test_a_crate_is_judged_by_what_it_imports_and_not_by_what_its_wrapper_does() -> None:
    """A wrapper that asks for `copy=False` refuses copies, and one that exports again refuses strides that are NULL."""
    (report,) = [report for report in json.loads(run.KEPT.read_text()) if report["library"].startswith("dlpark ")]
    assert report["library"].split()[1] == run.installed("dlpark")
    assert report["counts"]["passed"] > 80
    wrong = {row["id"].partition(".")[2] for row in report["failed"]}
    assert not wrong & {"copied-flag", "strides-null", "copy-true", "stream-explicit"}


def test_nothing_of_ours_is_a_violation() -> None:
    ours = [report for report in json.loads(run.KEPT.read_text()) if report["library"].startswith("cai-dlpack ")]
    assert len(ours) == 3
    for report in ours:
        assert report["counts"]["violations"] == 0 and report["counts"]["passed"] > 80, report["target"]
