"""Registers checks of consumers: offers that must be taken as they are, or refused."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from cai_conformance.judge import isolate, steps
from cai_conformance.judge.check import CHECKS, Broken, Check, NotRun, Severity, Source, demand
from cai_conformance.judge.consumed import Consumer, Seen
from cai_conformance.judge.limits import little_memory
from cai_conformance.judge.memory import same
from cai_conformance.judge.text import text_of

Run = Callable[[Consumer], None]

#: Ends of programs that show who lives.
REFUSED = """try:
    {take}(offer)
except Exception as error:
    print(error)
watch = weakref.ref(offer)
del offer
gc.collect()
print(watch())  # not None: something keeps it"""
GOES = """_ = np.asarray(taken)
watch = weakref.ref(offer)
del offer
gc.collect()
print(watch())  # None: it has gone before taken"""
GOES_TOO = "watch = weakref.ref(offer)\ndel offer, taken\ngc.collect()\nprint(watch())  # not None: something keeps it"


class Offer(Broken):
    """A failed check, with the offer that shows it."""

    def __init__(self, code: str, evidence: str, severity: Severity | None = None) -> None:
        super().__init__(f"{code}: {evidence}", severity)
        self.code = code


class Profile:
    """Registers the checks of one profile of consumers."""

    def __init__(self, name: str) -> None:
        self.name = name

    def check(
        self,
        rule: str,
        says: str,
        source: Source,
        *,
        mutant: Any,
        severity: Severity = Severity.VIOLATION,
        after: tuple[str, ...] = ("takes",),
        shows: str = "",
        forbidden: bool = False,
    ) -> Callable[[Run], Run]:
        """Registers a function as a check."""

        def register(run: Run) -> Run:
            CHECKS.add(
                Check(self.name, rule, says, source, severity, run, (), after, mutant, shows=shows, forbidden=forbidden)
            )
            return run

        return register

    def accepts(
        self,
        rule: str,
        says: str,
        source: Source,
        *codes: str,
        mutant: Any,
        severity: Severity = Severity.VIOLATION,
        refusal: Severity | None = None,
        after: tuple[str, ...] = ("takes",),
    ) -> None:
        """Each offer is taken with the elements that it has. `refusal` is the severity of a clear refusal."""

        def run(consumer: Consumer) -> None:
            for code in codes:
                take(consumer, code, severity if refusal is None else refusal)

        self.check(rule, says, source, severity=severity, after=after, mutant=mutant)(run)

    def refuses(
        self,
        rule: str,
        says: str,
        source: Source,
        *codes: str,
        mutant: Any,
        severity: Severity = Severity.DEVIATION,
        after: tuple[str, ...] = ("takes",),
    ) -> None:
        """Each offer raises an exception."""

        ended = Severity.VIOLATION if severity is Severity.VIOLATION else Severity.DEVIATION

        def run(consumer: Consumer) -> None:
            def case(code: str) -> None:
                refuse(consumer, code)

            each(codes, case, ended)

        says, shows = f"refuses {says}", 'print("accepted:", type(taken))'
        register = self.check(
            rule,
            says,
            source,
            severity=severity,
            after=after,
            mutant=mutant,
            shows=shows,
            forbidden=severity is not Severity.VIOLATION,
        )
        register(run)


#: The evidence and the severity of a case that failed; None if it did not.
Case = tuple[str, Severity | None] | None


def each(codes: tuple[str, ...], run: Callable[[str], None], ended: Severity = Severity.DEVIATION) -> None:
    """Runs a function for each offer, and fails with all that failed: a case that ends its process hides no other.

    Each has a process of its own, if the check has one. `ended` is the severity of a process that ended. Of offers that
    are not run nothing is said, unless it is all of them.
    """
    failed: list[tuple[str, str, Severity | None]] = []
    reasons: list[str] = []
    for code in codes:
        steps.tell("offer", code)
        try:
            case = partial(run, code)
            found = _apart(case, ended) if isolate.alone() else _case(case)
        except NotRun as why:
            reasons.append(str(why))
            continue
        if found is not None:
            evidence, severity = found
            failed.append((code, evidence.removeprefix(f"{code}: "), severity))
    if len(reasons) == len(codes):
        raise NotRun(reasons[0])
    if not failed:
        return
    steps.tell("offer", failed[0][0])  # which the program shows
    worst = next((severity for severity in Severity if severity in [found for _, _, found in failed]), None)
    first, *others = failed
    raise Offer(first[0], "; ".join([first[1], *(f"{code}: {evidence}" for code, evidence, _ in others)]), worst)


def _case(run: Callable[[], None]) -> Case:
    try:
        run()
    except Broken as found:
        return str(found), found.severity
    return None


def _apart(run: Callable[[], None], ended: Severity) -> Case:
    """Runs a case in a process of its own."""

    def body(send: isolate.Send) -> None:
        steps.deaf()
        try:
            send((_case(run), None))
        except NotRun as why:
            send((None, str(why)))

    try:
        ((found, reason),) = isolate.forked(body, isolate.LIMIT * 0.9)
    except isolate.ChildEnded as why:
        return str(why), ended
    if reason is not None:
        raise NotRun(reason)
    return found  # type: ignore[no-any-return]


def take(consumer: Consumer, code: str, refusal: Severity | None = None) -> tuple[Any, Any, Seen]:
    """Hands an offer over; its elements must be there. Returns the offer, the consumer's array, and what is in it."""
    offer = consumer.offered(code)
    try:
        taken = consumer.take(offer)
    except Exception as error:
        raise Offer(code, f"raised {text_of(error)}", refusal) from None
    try:
        seen = consumer.see(taken)
    except NotRun:
        raise
    except BufferError as error:
        raise NotRun(f"{code}: what it returned refuses to be read: {error}") from None
    except Exception as error:
        raise Offer(code, f"what it returned cannot be read: {text_of(error)}", Severity.VIOLATION) from None
    expected = offer.array
    found = seen.values.dtype  # of the same kind it may be smaller, if a library has no other
    if seen.typed and found.kind != expected.dtype.kind:
        raise Offer(code, f"items of type {found} instead of {expected.dtype}", Severity.VIOLATION)
    if not same(seen.values.astype(expected.dtype, copy=False).reshape(seen.values.shape), expected):
        raise Offer(code, f"{seen.values.tolist()} instead of {expected.tolist()}", Severity.VIOLATION)
    return offer, taken, seen


def refuse(consumer: Consumer, code: str) -> tuple[Any, Exception]:
    """Hands an offer over that must be refused. Returns the offer and the exception."""
    offer = consumer.offered(code)
    try:
        consumer.take(offer)
    except Exception as error:
        return offer, error
    raise Offer(code, "was accepted")


#: An extent that 32 bits do not hold.
HUGE = 2**33


def keeps_its_extent(consumer: Consumer, code: str) -> None:
    """An array of one byte that is repeated `HUGE` times keeps its shape, or is refused."""
    offer = consumer.offered(code)
    try:
        with little_memory():
            taken = consumer.take(offer)
    except Exception as error:
        raise NotRun(f"{code}: raised {text_of(error)}") from None
    shape, strides = consumer.layout(taken)
    if shape != (HUGE,):
        raise Offer(code, f"shape={shape} instead of {(HUGE,)}")
    if strides not in (None, (0,)):
        raise Offer(code, f"strides={strides} instead of (0,)")


def keeps_its_owner(consumer: Consumer, code: str) -> None:
    """The offered object lives as long as the consumer's array."""
    offer, taken, seen = take(consumer, code)
    if seen.address is not None and seen.address != offer.address:
        raise NotRun("the consumer copies, and so has no use for the object")
    watch = weakref.ref(offer)
    del offer
    gc.collect()
    if watch() is None and seen.address is None:
        raise NotRun("the object is gone, and nothing tells whether the consumer has copied the elements")
    if watch() is None:
        raise Offer(code, "the object was gone while the consumer's array was alive")
    del taken


def lets_its_owner_go(consumer: Consumer, code: str) -> None:
    """The offered object goes with the consumer's array."""
    offer, taken, _ = take(consumer, code)
    watch = weakref.ref(offer)
    del offer, taken
    gc.collect()
    demand(watch() is None, f"{code}: the object was still there after the consumer's array had gone")
