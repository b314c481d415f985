"""The report as JUnit's XML: a check is a case; deviations and recommendations are skipped, and say what was found."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from cai_conformance.judge.check import Severity
from cai_conformance.judge.report import Report
from cai_conformance.judge.run import Outcome


def text(report: Report) -> str:
    """The XML."""
    suite = ET.Element("testsuite", name=f"{report.kind} {report.target}", tests=str(len(report.results)))
    properties = ET.SubElement(suite, "properties")
    for name, value in {**report.versions, "driver": report.driver, "date": report.date}.items():
        ET.SubElement(properties, "property", name=name, value=printable(value))
    skipped = 0
    for result in report.results:
        case = ET.SubElement(suite, "testcase", classname=result.check.profile, name=result.check.rule)
        ET.SubElement(ET.SubElement(case, "properties"), "property", name="group", value=result.check.group)
        failed = result.outcome is Outcome.FAILED
        if failed and result.severity is Severity.VIOLATION and not report.is_accepted(result):
            found = ET.SubElement(case, "failure", message=printable(result.check.says), type=result.severity.value)
            found.text = printable(f"{result.evidence}\n{result.check.source}\n\n{result.program}")
        elif failed or result.outcome is Outcome.NOT_RUN:
            skipped += 1
            word = result.severity.value if failed else result.outcome.value
            ET.SubElement(case, "skipped", message=printable(f"{word}: {result.evidence}"))
    suite.set("failures", str(len(report.failed(Severity.VIOLATION))))
    suite.set("skipped", str(skipped))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def printable(text: str) -> str:
    """The text without characters that XML forbids."""
    return "".join(c if c in "\n\t" or c.isprintable() else "?" for c in text)
