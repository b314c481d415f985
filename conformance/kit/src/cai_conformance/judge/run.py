"""Runs the checks of a profile, and says of each what came out."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from cai_conformance.cuda import NoDriver
from cai_conformance.judge import steps
from cai_conformance.judge.check import Broken, Check, NotRun, Severity
from cai_conformance.judge.consumed import Consumer, Pair
from cai_conformance.judge.limits import little_memory
from cai_conformance.judge.produced import Converted, Make, Produced
from cai_conformance.judge.samples import SAMPLES
from cai_conformance.judge.text import printable, text_of


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


#: Writes the program of a check that failed, of what was done.
Program = Callable[[Check, list[steps.Step]], str]

#: Runs a check's function, and returns its result whatever becomes of the process that it runs in.
Isolate = Callable[[Callable[[], Result], Check, Program], Result]


def judge_producer(
    make: Make,
    checks: Iterable[Check],
    program: Program,
    before: dict[str, Result] | None = None,
    fatal: dict[str, str] | None = None,
) -> Iterator[Result]:
    """Runs checks of a producer.

    `make` takes a NumPy array and returns the producer's own; it may raise for arrays that it has nothing for. `before`
    has the results, by rule, of checks that were run already; `fatal` the samples that must not be made, and why.
    """
    made: dict[str, Produced | str] = dict(fatal or {})
    results: dict[str, Result] = dict(before or {})
    for check in checks:
        results[check.rule] = found = _judge(make, check, made, results, program)
        yield found


def _judge(
    make: Make, check: Check, made: dict[str, Produced | str], results: dict[str, Result], program: Program
) -> Result:
    if rule := fallen(check, results):
        return Result(check, Outcome.NOT_RUN, f"says nothing, as {rule} failed", after=rule)
    steps.begin()
    tried, reasons = 0, []
    for name in check.samples:
        steps.tell("sample", name)
        if name not in made:
            made[name] = _make(make, name)
        found = made[name]
        if isinstance(found, str):
            reasons.append(f"{name}: {found}")
            continue
        huge = SAMPLES[name].huge
        try:
            with little_memory() if huge else nullcontext():
                check.run(found)
        except (NotRun, NoDriver) as why:
            reasons.append(f"{name}: {why}")
        except Exception as error:
            if huge and isinstance(error, MemoryError):
                reasons.append(f"{name}: the producer copies it: {text_of(error)}")
                continue
            return failed(check, error, program, f"{name}: ", tried)
        else:
            tried += 1
    if not tried:
        return Result(check, Outcome.NOT_RUN, printable("; ".join(reasons)))
    return Result(check, Outcome.PASSED, tried=tried)


def failed(check: Check, error: Exception, program: Program, where: str = "", tried: int = 0) -> Result:
    """The result of a check that raised something else than NotRun."""
    said = str(error) if isinstance(error, Broken) else f"raised {text_of(error)}"
    severity = (error.severity if isinstance(error, Broken) else None) or check.severity
    text = program(check, list(steps.STEPS))
    return Result(check, Outcome.FAILED, printable(where + said), text, severity, tried)


def judge_consumer(
    consumer: Consumer | Pair, checks: Iterable[Check], program: Program, isolate: Isolate
) -> Iterator[Result]:
    """Runs checks of a consumer, or of a pair, each by `isolate`: here, or in a process of its own."""
    results: dict[str, Result] = {}
    for check in checks:
        if rule := fallen(check, results):
            found = Result(check, Outcome.NOT_RUN, f"says nothing, as {rule} failed", after=rule)
        else:
            found = isolate(lambda check=check: _consume(consumer, check, program), check, program)  # type: ignore[misc]
        results[check.rule] = found
        yield found


def here(run: Callable[[], Result], check: Check, program: Program) -> Result:
    """Runs a check in this process."""
    del check, program
    return run()


def _consume(consumer: Consumer | Pair, check: Check, program: Program) -> Result:
    steps.begin()
    try:
        check.run(consumer)
    except (NotRun, NoDriver) as why:
        return Result(check, Outcome.NOT_RUN, printable(str(why)))
    except Exception as error:
        found = failed(check, error, program)
        said = consumer.said(found.evidence) if isinstance(consumer, Consumer) else found.evidence
        return replace(found, evidence=said)
    return Result(check, Outcome.PASSED, tried=1)


def takes_device_memory_alone(consumer: Consumer, first: Check, isolate: Isolate) -> bool:
    """Whether a consumer refuses the host's tensors by an exception, whatever is in them, and takes a device's.

    What else is wrong with the host's is a finding: to read it wrongly, to crash, to hang or to end the process."""

    def passes(run: Callable[[Consumer], None]) -> bool:
        check = replace(first, run=run)
        return isolate(lambda: _consume(consumer, check, lambda *_: ""), check, lambda *_: "").outcome is Outcome.PASSED

    return passes(_refuses_the_host) and passes(_takes_a_device)


_OFFERS = ("{}()", "{}(np.arange(5, dtype=np.uint8))", "{}(older=True)")


def _refuses_the_host(consumer: Consumer) -> None:
    for offer in _OFFERS:
        given = consumer.offered(offer.format("tensor"))
        try:
            consumer.take(given)
        except (SystemError, MemoryError):
            raise
        except Exception:
            continue
        raise Broken(f"{offer.format('tensor')}: was accepted")


def _takes_a_device(consumer: Consumer) -> None:
    consumer.take(consumer.offered(_OFFERS[0].format("device_tensor")))


def fallen(check: Check, results: dict[str, Result]) -> str:
    """The rule that failed, without which a check says nothing; "" if none did."""
    for rule in check.after:
        if rule in results and (results[rule].outcome is Outcome.FAILED or results[rule].after):
            return results[rule].after or rule
    return ""


def _make(make: Make, name: str) -> Produced | str:
    """What a producer makes of a sample, or why there is nothing."""
    steps.tell("make", name)
    sample = SAMPLES[name]
    try:
        with little_memory() if sample.huge else nullcontext():
            return Produced(make, sample)
    except Converted as why:
        return str(why)
    except Exception as error:
        return f"the producer raised {text_of(error)}"
    finally:
        steps.tell("made", name)
