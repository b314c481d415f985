"""Judges a producer, a consumer, or a pair of them, each check where it can do no harm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from cai_conformance import exchange
from cai_conformance.checks import CHECKS
from cai_conformance.cuda import NoDriver, driver, is_started
from cai_conformance.judge import isolate
from cai_conformance.judge.check import Check
from cai_conformance.judge.consumed import Consumer
from cai_conformance.judge.elsewhere import judging
from cai_conformance.judge.run import (
    Outcome,
    Result,
    here,
    judge_consumer,
    judge_producer,
    takes_device_memory_alone,
)
from cai_conformance.judge.samples import SAMPLES
from cai_conformance.judge.target import Target, Usage
from cai_conformance.judge.text import text_of

#: The consumers that may be of the host's memory, or of a device's alone.
DLPACK = "dlpack-consumer"
_ATTRIBUTES = {
    "cai-producer": "__cuda_array_interface__",
    "dlpack-producer": "__dlpack__",
    "exchange-producer": exchange.ATTRIBUTE,
}


def elsewhere(function: Any) -> Any:
    """Returns what a function returns in a process of its own, so that this one does not start a driver."""
    if is_started():
        return function()
    try:
        (found,) = isolate.forked(lambda send: send(function()))
    except isolate.ChildEnded as why:
        raise Usage(f"nothing to judge: {why}") from None
    return found


def driver_name() -> str:
    """Which CUDA driver there is."""

    def ask() -> str:
        try:
            return "simulated" if driver().simulated else "a real one"
        except NoDriver:
            return "none"

    return str(elsewhere(ask))


def offers_it(made: Any, attribute: str) -> bool:
    """Whether an object has an attribute. One whose class raises something else than AttributeError has none."""
    try:
        return hasattr(made, attribute)
    except Exception:
        return False


def profiles_of_producer(make: Any) -> list[str]:
    """The profiles of what a producer makes.

    Raises:
        Usage: it makes nothing, or what it makes speaks no protocol.
    """

    def ask() -> tuple[list[str], str]:
        try:
            made = make(SAMPLES["matrix"].array())
        except (Exception, SystemExit) as error:
            return [], f"it raised {text_of(error)}"
        kinds = {"exchange-producer": type(made)}
        found = [name for name, attribute in _ATTRIBUTES.items() if offers_it(kinds.get(name, made), attribute)]
        return found, f"it made a {type(made).__name__}, which has none of {', '.join(_ATTRIBUTES.values())}"

    found, why = elsewhere(ask)
    if not found:
        raise Usage(f"nothing to judge: {why}")
    return list(found)


def profiles_of_consumer(take: Any) -> list[str]:
    """The profiles of consumers whose first check passes."""
    found = []
    reasons = []
    for profile in ("cai-consumer", "dlpack-consumer", "exchange-consumer"):
        first = CHECKS[f"{profile}.takes"]
        (result,) = judge_consumer(Consumer(take), [first], lambda check, code: "", isolate.one)
        is_taken = profile == DLPACK and takes_device_memory_alone(Consumer(take), first, isolate.one)
        if result.evidence and not is_taken:
            reasons.append(result.evidence)
        else:
            found.append(profile)
    if not found:
        raise Usage(f"nothing to judge: it took none of the arrays; {'; '.join(reasons)}")
    return found


def need_one(profile: str, results: list[Result]) -> None:
    """Raises Usage if there were checks, and none could be run: that is no verdict."""
    if results and all(result.outcome is Outcome.NOT_RUN for result in results):
        raise Usage(f"nothing to judge by {profile}: {results[0].evidence}")


def chosen(profile: str, upto: dict[str, str]) -> list[Check]:
    """The checks of a profile whose sentences hold in these versions of the specifications."""
    return [check for check in CHECKS.of(profile) if not is_later(check, upto)]


def is_later(check: Check, upto: dict[str, str]) -> bool:
    """Whether a check's sentence is newer than the version of its specification that is asked for."""
    limit = upto.get(check.source.spec)
    return limit is not None and _version(check.source.since) > _version(limit)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def producer(target: Target, make: Any, checks: Iterable[Check], *, in_process: bool = False) -> Iterator[Result]:
    """Judges a producer, with all checks of one profile in another process."""
    listed = list(checks)
    with judging(target):
        if in_process or is_started():
            yield from judge_producer(make, listed, target.producer_program)
            return
        yield from isolate.many(
            lambda left, before, fatal: judge_producer(make, left, target.producer_program, before, fatal),
            listed,
            target.producer_program,
        )


def consumer(
    target: Target, take: Any, read: Any, checks: Iterable[Check], *, in_process: bool = False
) -> Iterator[Result]:
    """Judges a consumer, with each check in a process of its own."""
    listed, apart = list(checks), here if in_process or is_started() else isolate.one
    with judging(target):
        found = Consumer(take, read)
        if any(check.profile == DLPACK for check in listed):
            alone = takes_device_memory_alone(found, CHECKS[f"{DLPACK}.takes"], apart)
            found = Consumer(take, read, of_device=alone)
        yield from judge_consumer(found, listed, target.consumer_program, apart)
