"""Registers checks of producers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cai_conformance.judge.check import CHECKS, Check, Severity, Source
from cai_conformance.judge.produced import Produced
from cai_conformance.judge.samples import PLAIN

Run = Callable[[Any], None]
Registering = Callable[..., Callable[[Run], Run]]


def registering(profile: str, subject: Callable[[Produced], Any] = lambda produced: produced) -> Registering:
    """Returns the decorator of a profile's checks, which are given a `subject` of what the producer made."""

    def check(
        rule: str,
        says: str,
        source: Source,
        *,
        mutant: Any,
        severity: Severity = Severity.VIOLATION,
        samples: tuple[str, ...] = PLAIN,
        after: tuple[str, ...] = (),
        shows: str = "",
    ) -> Callable[[Run], Run]:
        def register(run: Run) -> Run:
            def on(produced: Produced) -> None:
                run(subject(produced))

            CHECKS.add(Check(profile, rule, says, source, severity, on, samples, after, mutant, shows))
            return run

        return register

    return check
