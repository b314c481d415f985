"""The report as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from cai_conformance.judge.check import Severity
from cai_conformance.judge.report import Report
from cai_conformance.judge.run import Outcome, Result

_ORDER = (Severity.VIOLATION, Severity.DEVIATION, Severity.RECOMMENDATION)
_COLOURS = {Severity.VIOLATION: "1;31", Severity.DEVIATION: "33", Severity.RECOMMENDATION: "36"}


def lines(report: Report, *, colour: bool = False, programs: bool = True, width: int = 100) -> Iterator[str]:
    """The lines of a report: what failed, by severity, with its program and source; then the counts."""
    yield report.title
    for severity in _ORDER:
        for result in report.failed(severity):
            yield ""
            yield from _failed(result, colour, programs, width)
    for result in report.results:
        if report.is_accepted(result):
            yield ""
            yield f"accepted  {result.check.id}: {report.accepted[result.check.id]}"
    for key in report.needless:
        yield ""
        yield f"accepted  {key}, which did not fail: take it out of the configuration"
    yield ""
    by_profile = report.by_profile
    if len(by_profile) > 1:
        for profile, counts in by_profile.items():
            yield f"{profile}: {_counted(counts)}"
    yield _counted(report.counts)


def _counted(counts: dict[str, int]) -> str:
    parts = [f"{count} {name}" for name, count in counts.items() if count and name != "checks"]
    return f"{counts['checks']} checks: {', '.join(parts)}"


def of(result: Result) -> Iterator[str]:
    """The lines of one check that failed."""
    yield from _failed(result, False, True, 100)


def _failed(result: Result, colour: bool, programs: bool, width: int) -> Iterator[str]:
    word = result.severity.value
    if colour:
        word = f"\033[{_COLOURS[result.severity]}m{word}\033[0m"
    yield f"{word}  {result.check.id} ({result.check.group}): {result.check.says}"
    yield from textwrap.wrap(result.evidence, width, initial_indent="    found: ", subsequent_indent="           ")
    yield from textwrap.wrap(str(result.check.source), width, initial_indent="    ", subsequent_indent="    ")
    if programs and result.program:
        yield from textwrap.indent(result.program, "        ").splitlines()


def not_run(report: Report) -> Iterator[str]:
    """The checks that were not run, each with its reason."""
    for result in report.results:
        if result.outcome is Outcome.NOT_RUN:
            yield f"not run  {result.check.id}: {textwrap.shorten(result.evidence, 160)}"
