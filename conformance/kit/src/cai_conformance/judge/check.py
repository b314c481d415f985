"""A check: one sentence of a specification, and a function that looks for an array that breaks it."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from cai_conformance.judge.groups import GROUP_OF

#: From least to most, as reports count them.
PROFILES = (
    "cai-producer",
    "cai-consumer",
    "dlpack-producer",
    "dlpack-consumer",
    "exchange-producer",
    "exchange-consumer",
    "pair",
)


class Severity(enum.Enum):
    """How bad it is that a check fails."""

    VIOLATION = "violation"
    """The specification demands otherwise, or the process ended on what it allows. Only these make the exit code 1."""
    DEVIATION = "deviation"
    """The specification demands otherwise, and others are known to tolerate it; or what it forbids was taken, or ended
    the process."""
    RECOMMENDATION = "recommendation"
    """The specification advises otherwise, or says nothing."""


@dataclass(frozen=True)
class Source:
    """A sentence of a specification."""

    spec: str
    """`CAI`, `DLPack`, or `array API`."""
    since: str
    """The version of `spec` from which it holds."""
    sentence: str
    url: str
    """Of a version that has the sentence."""
    until: str = ""
    """The last version that has it, if a later one says it otherwise."""

    def __str__(self) -> str:
        return f"{self.spec} {self.since}: “{self.sentence}”"


class Broken(Exception):
    """Raised by a check that finds the sentence broken; its text is the evidence."""

    def __init__(self, evidence: str, severity: Severity | None = None) -> None:
        super().__init__(evidence)
        self.severity = severity


class NotRun(Exception):
    """Raised by a check that cannot be run here; its text is the reason."""


def broken(evidence: str, severity: Severity | None = None) -> NoReturn:
    """Ends a check: it failed."""
    raise Broken(evidence, severity)


def demand(holds: object, evidence: str) -> None:
    """Ends a check as failed unless `holds`."""
    if not holds:
        raise Broken(evidence)


@dataclass(frozen=True)
class Check:
    """One check of one profile."""

    profile: str
    rule: str
    says: str
    """The claim that holds if it passes, as in "`shape` is a tuple"; for consumers without its subject."""
    source: Source
    severity: Severity
    run: Callable[[Any], None]
    """Is given what its profile judges (`Produced`, `Consumer` or `Pair`). Raises Broken or NotRun, or returns."""
    samples: tuple[str, ...] = ()
    """For producers and pairs: the names of the arrays that it is tried with."""
    after: tuple[str, ...] = ()
    """Rules of the same profile without which this check says nothing: it is not run if one of them failed."""
    mutant: Any = None
    """A reference implementation that breaks this sentence and no other."""
    shows: str = ""
    """The end of the program that shows a failure, if the usual one does not: after `array = ...`, or after
    `offer = ...` and `taken = ...`. `{array}` makes another array, `{call}` is the
    producer's function; with the consumer's function, `{take}`, it takes the
    offer itself."""
    forbidden: bool = False
    """For consumers: they are given what the specification forbids, and it demands nothing of them then."""

    @property
    def id(self) -> str:
        """`cai-producer.shape-type`."""
        return f"{self.profile}.{self.rule}"

    @property
    def group(self) -> str:
        """What it is about, in a word of `groups.GROUPS`."""
        return GROUP_OF[self.rule]

    @property
    def ended(self) -> Severity:
        """How bad it is that the process ends."""
        return Severity.DEVIATION if self.forbidden else Severity.VIOLATION


class Registry:
    """The checks of all profiles, in the order in which they are run."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}

    def add(self, check: Check) -> None:
        if check.id in self._checks:
            raise ValueError(f"two checks have the id {check.id}")
        if check.profile not in PROFILES:
            raise ValueError(f"{check.id}: no such profile")
        if check.rule not in GROUP_OF:
            raise ValueError(f"{check.id}: no group has the rule")
        for rule in check.after:
            if f"{check.profile}.{rule}" not in self._checks:
                raise ValueError(f"{check.id}: no check {rule!r} before it")
        self._checks[check.id] = check

    def of(self, profile: str) -> list[Check]:
        """The checks of a profile, each after those that it needs."""
        return [check for check in self._checks.values() if check.profile == profile]

    def __iter__(self) -> Any:
        return iter(self._checks.values())

    def __getitem__(self, key: str) -> Check:
        return self._checks[key]

    def __len__(self) -> int:
        return len(self._checks)


CHECKS = Registry()
