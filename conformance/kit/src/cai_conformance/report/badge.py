"""A badge, as shields.io's endpoint reads it."""

from __future__ import annotations

from typing import Any

from cai_conformance.judge.check import Severity
from cai_conformance.judge.report import Report


def of(report: Report) -> dict[str, Any]:
    """The badge: how many checks passed of those that were run, by which rules. shields.io takes no other entries."""
    counts = report.counts
    versions = report.versions
    ran = counts["checks"] - counts["not run"]
    colour = "red" if report.failed(Severity.VIOLATION) else "yellow" if report.failed(Severity.DEVIATION) else "green"
    return {
        "schemaVersion": 1,
        "label": f"CAI and DLPack {report.kind}",
        "message": f"{counts['passed']}/{ran} (kit {versions['cai-conformance']}, rules {versions['rules']})",
        "color": colour,
    }
