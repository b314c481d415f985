"""The report of a judgement: counts, accepted deviations, and where and when it was made."""

from __future__ import annotations

import datetime
import hashlib
import platform
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from typing import Any

from cai_conformance.judge.check import Severity
from cai_conformance.judge.run import Outcome, Result

#: The version of the JSON, which changes if an entry goes or gets another meaning.
SCHEMA = 1


@dataclass(frozen=True)
class Report:
    """The results for one target."""

    kind: str
    """`producer`, `consumer` or `pair`."""
    target: str
    results: Sequence[Result]
    driver: str
    """`a real one`, `simulated`, or `none`."""
    accepted: Mapping[str, str] = field(default_factory=dict)
    """Reasons for deviations that the target wants accepted, by check."""
    date: str = field(default_factory=lambda: datetime.datetime.now(datetime.timezone.utc).date().isoformat())

    def is_accepted(self, result: Result) -> bool:
        return result.outcome is Outcome.FAILED and result.check.id in self.accepted

    def failed(self, severity: Severity) -> list[Result]:
        """Returns the failed checks of a severity that are not accepted."""
        return [
            r
            for r in self.results
            if r.outcome is Outcome.FAILED and r.severity is severity and not self.is_accepted(r)
        ]

    @property
    def needless(self) -> list[str]:
        """Accepted checks that passed. Of one that was not run, or is of another profile, nothing is known."""
        passed = {result.check.id for result in self.results if result.outcome is Outcome.PASSED}
        return sorted(set(self.accepted) & passed)

    @property
    def exit_code(self) -> int:
        return 1 if self.failed(Severity.VIOLATION) else 0

    @property
    def counts(self) -> dict[str, int]:
        """How many checks passed, were not run, were accepted, and failed by severity."""
        found = Counter(result.outcome for result in self.results)
        return {
            "checks": len(self.results),
            "passed": found[Outcome.PASSED],
            "violations": len(self.failed(Severity.VIOLATION)),
            "deviations": len(self.failed(Severity.DEVIATION)),
            "recommendations": len(self.failed(Severity.RECOMMENDATION)),
            "accepted": sum(map(self.is_accepted, self.results)),
            "not run": found[Outcome.NOT_RUN],
        }

    @property
    def by_profile(self) -> dict[str, dict[str, int]]:
        """The counts of each profile."""
        profiles = dict.fromkeys(result.check.profile for result in self.results)
        return {
            profile: replace(self, results=[r for r in self.results if r.check.profile == profile]).counts
            for profile in profiles
        }

    @property
    def title(self) -> str:
        """What was judged, with which versions, and on which driver."""
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return f"{self.kind} {self.target} ({versions}; CUDA driver: {self.driver})"

    @property
    def versions(self) -> dict[str, str]:
        """The kit, the interpreter, and the libraries of the target."""
        libraries = tuple({part.partition(".")[0].partition(":")[0] for part in self.target.split()})
        found = {"cai-conformance": kit_version(), "rules": rules(self.kind), "python": platform.python_version()}
        for module, names in sorted(packages_distributions().items()):
            if module.startswith(libraries) and module in sys.modules:
                found.update({name: version(name) for name in names})
        return found

    def as_json(self) -> dict[str, Any]:
        """The report with plain values."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "target": self.target,
            "date": self.date,
            "driver": self.driver,
            "versions": self.versions,
            "counts": self.counts,
            "profiles": self.by_profile,
            "needless": self.needless,
            "results": [self._row(result) for result in self.results],
        }

    def _row(self, result: Result) -> dict[str, Any]:
        check, source = result.check, result.check.source
        row: dict[str, Any] = {
            "id": check.id,
            "group": check.group,
            "says": check.says,
            "outcome": result.outcome.value,
            "severity": result.severity.value if result.outcome is Outcome.FAILED else check.severity.value,
            "source": {"spec": source.spec, "since": source.since, "sentence": source.sentence, "url": source.url},
        }
        if result.evidence:
            row["evidence"] = result.evidence
        if result.program:
            row["program"] = result.program
        if self.is_accepted(result):
            row["accepted"] = self.accepted[check.id]
        return row


@cache
def rules(kind: str = "") -> str:
    """Returns the version of the rules: a hash of the checks' ids, claims, sentences and severities.

    The checks of a pair have a version of their own, as none of them judges a producer or a consumer alone.
    """
    from cai_conformance.checks import CHECKS

    lines = sorted(
        f"{check.id}\t{check.says}\t{check.source.spec} {check.source.since}\t{check.source.sentence}\t"
        f"{check.severity.value}\t{check.forbidden}\n"
        for check in CHECKS
        if (check.profile == "pair") == (kind == "pair")
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:12]


def kit_version() -> str:
    """The version of the kit."""
    try:
        return version("cai-conformance")
    except PackageNotFoundError:
        return "0.1.0 (not installed)"
