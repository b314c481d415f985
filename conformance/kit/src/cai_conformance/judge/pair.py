"""A producer and a consumer together: what a user of both sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cai_conformance.judge import isolate
from cai_conformance.judge import sources as say
from cai_conformance.judge.check import Broken, Check, NotRun, Severity, Source, broken
from cai_conformance.judge.consumed import Consumer
from cai_conformance.judge.memory import same
from cai_conformance.judge.run import Outcome, Result
from cai_conformance.judge.samples import DTYPES, LAYOUTS, SAMPLES, SHAPES
from cai_conformance.judge.target import Target


def _values(make: Any, consumer: Consumer, name: str) -> None:
    given = SAMPLES[name].array()
    expected = np.array(given)
    try:
        made = make(given)
    except Exception as error:
        raise NotRun(f"the producer raised {type(error).__name__}: {error}") from None
    taken = consumer.take(made)
    seen = consumer.see(taken)
    if not same(seen.values.astype(expected.dtype, copy=False), expected):
        broken(f"{seen.values.tolist()} instead of {expected.tolist()}", Severity.VIOLATION)
    if name == "read-only" and seen.writable and seen.address == given.ctypes.data:
        broken("the array must not be written, and what was taken may be", Severity.VIOLATION)
    del taken


def _checks() -> Iterator[tuple[Check, str]]:
    names = tuple(dict.fromkeys((*SHAPES, *LAYOUTS, "read-only", *DTYPES)))
    for name in names:
        source: Source = say.DL_READ_ONLY if name == "read-only" else say.PY_VIEW

        def run(subject: tuple[Any, Consumer], name: str = name) -> None:
            _values(*subject, name)

        says = f"the array {name!r} arrives with its elements, or is refused"
        yield Check("pair", name, says, source, Severity.RECOMMENDATION, run), name


def judge(make: Target, take: Target, read: Any) -> Iterator[Result]:
    """Hands each sample from one to the other, each in a process of its own. A refusal is a recommendation."""
    subject = (make.load(), Consumer(take.load(), read))
    for check, name in _checks():

        def run(check: Check = check, name: str = name) -> Result:
            return _run(check, subject, lambda: program(make, take, name))

        yield isolate.one(run, check, program(make, take, name))


def program(make: Target, take: Target, name: str) -> str:
    """A program that shows what becomes of a sample."""
    code = SAMPLES[name].code
    lines = ["import numpy as np", f"import {make.module}", f"import {take.module}"]
    if "read_only(" in code:
        lines.append("from cai_conformance.judge.samples import read_only")
    return "\n".join([*lines, "", f"print({take.call}({make.call}({code})))"])


def _run(check: Check, subject: Any, text: Callable[[], str]) -> Result:
    try:
        check.run(subject)
    except NotRun as why:
        return Result(check, Outcome.NOT_RUN, str(why))
    except Broken as why:
        return Result(check, Outcome.FAILED, str(why), text(), why.severity or check.severity)
    except Exception as error:
        return Result(check, Outcome.FAILED, f"raised {type(error).__name__}: {error}", text(), check.severity)
    return Result(check, Outcome.PASSED, tried=1)
