"""For tests of a library: functions that raise if it breaks a specification, in the manner of `numpy.testing`.

    from cai_conformance.testing import check_cai_producer

    def test_our_arrays():
        check_cai_producer(ourlib.asarray, accept={"cai-producer.shape-type": "lists, for callers of version 1"})

Deviations and recommendations are not raised unless `strict` is set. The checks of a producer run in one process beside
the test's, those of a consumer in one each; `in_process` runs them in the test's own, for a debugger. They run there
anyway if that process has used CUDA already, which no copy of it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cai_conformance.checks import CHECKS
from cai_conformance.judge import judge
from cai_conformance.judge.check import Severity
from cai_conformance.judge.config import accepted
from cai_conformance.judge.report import Report
from cai_conformance.judge.run import Result
from cai_conformance.judge.target import Target, Usage
from cai_conformance.judge.versions import limits
from cai_conformance.report import terminal

__all__ = [
    "ConformanceError",
    "check_cai_consumer",
    "check_cai_producer",
    "check_dlpack_consumer",
    "check_dlpack_producer",
    "check_exchange_consumer",
    "check_exchange_producer",
]

_NONE: Mapping[str, str] = {}


class ConformanceError(AssertionError):
    """A specification is broken; `report` has every result."""

    def __init__(self, report: Report) -> None:
        super().__init__("\n".join(["", *terminal.lines(report)]))
        self.report = report


def _raise(
    kind: str, target: Target, results: Iterable[Result], accept: Mapping[str, str] | None, strict: bool
) -> Report:
    found = list(results)
    try:
        judge.need_one(kind, found)
        accept = accepted(None) if accept is None else accept
    except Usage as why:
        raise AssertionError(str(why)) from None
    report = Report(kind, target.text, found, judge.driver_name(), accept)
    if unknown := sorted(set(accept) - {check.id for check in CHECKS}):
        raise ValueError(f"accept: no check {unknown[0]!r}; `cai-conformance checks` lists them")
    wrong = [severity for severity in Severity if report.failed(severity)]
    if Severity.VIOLATION in wrong or (strict and wrong) or report.needless:
        raise ConformanceError(report)
    return report


def _producer(profile: str) -> Callable[..., Report]:
    def check(
        make: Callable[[Any], Any],
        *,
        accept: Mapping[str, str] | None = None,
        spec: Mapping[str, str] = _NONE,
        strict: bool = False,
        in_process: bool = False,
    ) -> Report:
        target = Target.of(make)
        checks = judge.chosen(profile, limits(spec))
        return _raise("producer", target, judge.producer(target, make, checks, in_process=in_process), accept, strict)

    check.__doc__ = f"""Checks a function that makes a library's array of a NumPy array, by the profile `{profile}`.

    `accept` has reasons for checks that may fail, by default those of `cai-conformance.toml` in the current folder;
    `spec` the versions up to which to check (`{{"CAI": "2"}}`).

    Raises:
        ConformanceError: a check failed with a violation, or with `strict` at all, or one was accepted that passes.
        ValueError: `accept` names no check, or `spec` no specification or no version of one.
    """
    return check


def _consumer(profile: str) -> Callable[..., Report]:
    def check(
        take: Callable[[Any], Any],
        *,
        read: Callable[[Any], Any] | None = None,
        accept: Mapping[str, str] | None = None,
        spec: Mapping[str, str] = _NONE,
        strict: bool = False,
        in_process: bool = False,
    ) -> Report:
        target = Target.of(take)
        checks = judge.chosen(profile, limits(spec))
        results = judge.consumer(target, take, read, checks, in_process=in_process)
        return _raise("consumer", target, results, accept, strict)

    check.__doc__ = f"""Checks a function that takes an array of somebody's, by the profile `{profile}`.

    `read` makes a NumPy array of what it returns, where neither protocol does. The rest is as for producers.

    Raises:
        ConformanceError: a check failed with a violation, or with `strict` at all, or one was accepted that passes.
        ValueError: `accept` names no check, or `spec` no specification or no version of one.
    """
    return check


check_cai_producer = _producer("cai-producer")
check_dlpack_producer = _producer("dlpack-producer")
check_exchange_producer = _producer("exchange-producer")
check_cai_consumer = _consumer("cai-consumer")
check_dlpack_consumer = _consumer("dlpack-consumer")
check_exchange_consumer = _consumer("exchange-consumer")
