"""A producer and a consumer together: what a user of both sees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cai_conformance.judge import isolate
from cai_conformance.judge import sources as say
from cai_conformance.judge.check import Check, NotRun, Severity, Source, broken
from cai_conformance.judge.consumed import Consumer
from cai_conformance.judge.memory import same
from cai_conformance.judge.run import Outcome, Result, failed
from cai_conformance.judge.samples import DTYPES, LAYOUTS, PLAIN, SAMPLES, SHAPES
from cai_conformance.judge.target import Target
from cai_conformance.judge.text import printable, text_of


def _values(make: Any, consumer: Consumer, name: str) -> None:
    given = SAMPLES[name].array()
    expected = np.array(given)
    try:
        made = make(given)
    except Exception as error:
        raise NotRun(f"the producer raised {text_of(error)}") from None
    taken = consumer.take(made)
    seen = consumer.see(taken)
    if not same(seen.values.astype(expected.dtype, copy=False), expected):
        broken(f"{seen.values.tolist()} instead of {expected.tolist()}", Severity.VIOLATION)
    if name == "read-only" and seen.writable and seen.address == given.ctypes.data:
        broken("the array must not be written, and what was taken may be", Severity.DEVIATION)
    del taken


def _checks() -> Iterator[tuple[Check, str]]:
    names = tuple(dict.fromkeys((*SHAPES, *LAYOUTS, "read-only", *DTYPES)))
    for name in names:
        source: Source = say.DL_READ_ONLY if name == "read-only" else say.PY_VIEW

        def run(subject: tuple[Any, Consumer], name: str = name) -> None:
            _values(*subject, name)

        says = f"the array {name!r} arrives with its elements" + (", or is refused" if name != PLAIN[0] else "")
        severity = Severity.VIOLATION if name == PLAIN[0] else Severity.RECOMMENDATION
        yield Check("pair", name, says, source, severity, run), name


def judge(make: Target, take: Target, read: Any) -> Iterator[Result]:
    """Hands each sample from one to the other, each in a process of its own. Only the plainest must not be refused."""
    subject = (make.load(), Consumer(take.load(), read))
    for check, name in _checks():
        text = program(make, take, name)

        def run(check: Check = check, text: str = text) -> Result:
            try:
                check.run(subject)
            except NotRun as why:
                return Result(check, Outcome.NOT_RUN, printable(str(why)))
            except Exception as error:
                return failed(check, error, lambda check, done: text)
            return Result(check, Outcome.PASSED, tried=1)

        yield isolate.one(run, check, lambda check, done, text=text: text)  # type: ignore[misc]


def program(make: Target, take: Target, name: str) -> str:
    """A program that shows what becomes of a sample."""
    code = SAMPLES[name].code
    needed = ["from cai_conformance.judge.samples import read_only"] if "read_only(" in code else []
    lines = [*make.head(*needed), *take.head()[1:]]
    return "\n".join([*lines, f"print({take.call}({make.call}({code})))"])
