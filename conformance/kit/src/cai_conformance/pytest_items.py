"""The checks as tests of pytest's: `--cai-conformance producer=MODULE:FUNCTION` is a test for each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pytest

from cai_conformance.judge import judge
from cai_conformance.judge.check import Check, Severity
from cai_conformance.judge.command import selected
from cai_conformance.judge.config import accepted
from cai_conformance.judge.run import Outcome, Result
from cai_conformance.judge.target import Target, Usage
from cai_conformance.report import terminal

KINDS = ("producer", "consumer")


class Judged(pytest.Collector):
    """One target: what is collected of it, and the results, which are had at once."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        kind, _, rest = self.name.partition("=")
        text, _, read = rest.partition(",read=")
        if kind not in KINDS or not text:
            raise pytest.UsageError(f"--cai-conformance {self.name}: write producer=MODULE:FUNCTION or consumer=...")
        self.kind = kind
        self.target = Target(text)
        try:
            self.function = self.target.load()
            self.read = Target(read).load() if read else None
            self.accepted = accepted(None, self.config.rootpath)
            profiles = judge.profiles_of_producer if kind == "producer" else judge.profiles_of_consumer
            self.profiles = profiles(self.function)
        except Usage as why:
            raise pytest.UsageError(f"--cai-conformance {self.name}: {why}") from None

    def collect(self) -> Iterator[CheckItem]:
        for profile in self.profiles:
            for check in judge.chosen(profile, {}):
                yield CheckItem.from_parent(self, name=check.id, check=check)

    @cached_property
    def results(self) -> dict[str, Result]:
        """The results of the tests that are run, and of those that they need, by id."""
        wanted = [item.name for item in self.session.items if item.parent is self]
        found: dict[str, Result] = {}
        for profile in self.profiles:
            checks = selected(judge.chosen(profile, {}), wanted)
            if self.kind == "producer":
                results = judge.producer(self.target, self.function, checks)
            else:
                results = judge.consumer(self.target, self.function, self.read, checks)
            found.update({result.check.id: result for result in results})
        return found


class Broken(Exception):
    """A check failed; its text is what the terminal's report says of it."""


class CheckItem(pytest.Item):
    """One check of one target. A deviation or a recommendation is an expected failure, and so is what is accepted."""

    def __init__(self, *, check: Check, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.check = check
        self.extra_keyword_matches.add(check.group)

    def runtest(self) -> None:
        judged = self.parent
        assert isinstance(judged, Judged)
        result = judged.results[self.check.id]
        if result.outcome is Outcome.NOT_RUN:
            pytest.skip(f"not run: {result.evidence}")
        reason = judged.accepted.get(self.check.id)
        if result.outcome is Outcome.PASSED:
            if reason is not None:
                raise Broken(f"{self.check.id} is accepted, and did not fail: take it out of cai-conformance.toml")
            return
        if reason is not None:
            pytest.xfail(f"accepted: {reason}")
        if result.severity is not Severity.VIOLATION:
            pytest.xfail(f"{result.severity.value}: {result.evidence}")
        raise Broken("\n".join(terminal.of(result)))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, Broken):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.config.rootpath, None, f"{self.parent.name if self.parent else ''} {self.check.id}"
