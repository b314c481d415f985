"""Runs the checks of a profile, and says of each what came out."""

from __future__ import annotations

import enum
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cai_conformance.judge.check import Broken, Check, NotRun, Severity
from cai_conformance.judge.consumed import Consumer
from cai_conformance.judge.produced import Converted, Make, Produced
from cai_conformance.judge.samples import SAMPLES


class Outcome(enum.Enum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Result:
    """The outcome of one check."""

    check: Check
    outcome: Outcome
    evidence: str = ""
    """If it failed: what was found. If it was not run: why."""
    program: str = ""
    """If it failed: the smallest program that shows it."""
    severity: Severity = field(default=Severity.VIOLATION)
    tried: int = 0
    """How many arrays it was tried with."""
    after: str = ""
    """The rule that failed before it, so that it was not run."""


#: Runs a check's function, and returns its result whatever becomes of the process that it runs in.
Isolate = Callable[[Callable[[], Result], Check], Result]


def judge_producer(
    make: Make,
    checks: Iterable[Check],
    program: Callable[[Check, str], str],
    before: dict[str, Result] | None = None,
) -> Iterator[Result]:
    """Runs checks of a producer.

    `make` takes a NumPy array and returns the producer's own; it may raise for arrays that it has nothing for. `before`
    has the results, by rule, of checks that were run already.
    """
    made: dict[str, Produced | Exception] = {}
    results: dict[str, Result] = dict(before or {})
    for check in checks:
        results[check.rule] = found = _judge(make, check, made, results, program)
        yield found


def _judge(
    make: Make, check: Check, made: dict[str, Produced | Exception], results: dict[str, Result], program: Any
) -> Result:
    if rule := fallen(check, results):
        return Result(check, Outcome.NOT_RUN, f"says nothing, as {rule} failed", after=rule)
    tried, reasons = 0, []
    for name in check.samples:
        if name not in made:
            made[name] = _make(make, name)
        found = made[name]
        if isinstance(found, Exception):
            said = "" if isinstance(found, Converted) else f"the producer raised {type(found).__name__}: "
            reasons.append(f"{name}: {said}{found}")
            continue
        try:
            check.run(found)
        except NotRun as why:
            reasons.append(f"{name}: {why}")
            continue
        except Broken as why:
            severity = why.severity or check.severity
            return Result(check, Outcome.FAILED, f"{name}: {why}", program(check, SAMPLES[name].code), severity, tried)
        except Exception as error:
            text = traceback.format_exception_only(error)[-1].strip()
            return Result(
                check,
                Outcome.FAILED,
                f"{name}: raised {text}",
                program(check, SAMPLES[name].code),
                check.severity,
                tried,
            )
        tried += 1
    if not tried:
        return Result(check, Outcome.NOT_RUN, "; ".join(reasons))
    return Result(check, Outcome.PASSED, tried=tried)


def judge_consumer(
    consumer: Consumer, checks: Iterable[Check], program: Callable[[Check, str], str], isolate: Isolate
) -> Iterator[Result]:
    """Runs checks of a consumer, each by `isolate`: here, or in a process of its own."""
    results: dict[str, Result] = {}
    for check in checks:
        if rule := fallen(check, results):
            found = Result(check, Outcome.NOT_RUN, f"says nothing, as {rule} failed", after=rule)
        else:
            found = isolate(lambda check=check: _consume(consumer, check, program), check)  # type: ignore[misc]
        results[check.rule] = found
        yield found


def here(run: Callable[[], Result], check: Check) -> Result:
    """Runs a check in this process."""
    del check
    return run()


def _consume(consumer: Consumer, check: Check, program: Callable[[Check, str], str]) -> Result:
    try:
        check.run(consumer)
    except NotRun as why:
        return Result(check, Outcome.NOT_RUN, str(why))
    except Broken as why:
        code = program(check, getattr(why, "code", ""))
        return Result(check, Outcome.FAILED, str(why), code, why.severity or check.severity)
    except Exception as error:
        text = traceback.format_exception_only(error)[-1].strip()
        return Result(check, Outcome.FAILED, f"raised {text}", program(check, ""), check.severity)
    return Result(check, Outcome.PASSED, tried=1)


def fallen(check: Check, results: dict[str, Result]) -> str:
    """The rule that failed, without which a check says nothing; "" if none did."""
    for rule in check.after:
        if rule in results and (results[rule].outcome is Outcome.FAILED or results[rule].after):
            return results[rule].after or rule
    return ""


def _make(make: Make, name: str) -> Produced | Exception:
    try:
        return Produced(make, SAMPLES[name])
    except Exception as error:
        return error
