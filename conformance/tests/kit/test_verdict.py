"""The page of verdicts is that of the kept results, in which nothing of ours is a violation."""

from __future__ import annotations

import json

from cai_conformance.judge.report import rules

from conformance.judged import run
from conformance.judged.targets import TARGETS
from conformance.tests.expectations.fences import blocks


def test_the_page_is_that_of_the_kept_results() -> None:
    reports = json.loads(run.KEPT.read_text())
    assert [report["target"] for report in reports] == [target.target for target in TARGETS]
    assert run.PAGE.read_text() == "\n".join(run.page(reports)) + "\n"


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


def test_a_known_issue_is_one_of_a_violation() -> None:
    found = {
        (report["library"].split()[0], row["id"])
        for report in json.loads(run.KEPT.read_text())
        for row in report["failed"]
        if row["severity"] == "violation"
    }
    known = {(library, check): link for library, links in run.KNOWN.items() for check, link in links.items()}
    assert set(known) <= found and all(link.startswith("https://github.com/") for link in known.values())


def test_what_is_not_judged_has_a_reason() -> None:
    assert all(run.not_judged().values()) and {"CuPy", "dlpark", "dlpack-rs"} <= set(run.not_judged())


def test_nothing_of_ours_is_a_violation() -> None:
    ours = [report for report in json.loads(run.KEPT.read_text()) if report["library"].startswith("cai-dlpack ")]
    assert len(ours) == 3
    for report in ours:
        assert report["counts"]["violations"] == 0 and report["counts"]["passed"] > 80, report["target"]
