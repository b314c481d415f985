"""Judges a producer and a consumer together: what a user of both sees."""

from __future__ import annotations

from collections.abc import Iterator

from cai_conformance.checks import CHECKS
from cai_conformance.judge import isolate
from cai_conformance.judge.check import Check
from cai_conformance.judge.consumed import Consumer, Pair
from cai_conformance.judge.run import Result, judge_consumer
from cai_conformance.judge.samples import SAMPLES
from cai_conformance.judge.target import Target


def judge(make: Target, take: Target, read: Target | None) -> Iterator[Result]:
    """Hands each sample from one to the other, each in a process of its own. Only the plainest must not be refused."""
    pair = Pair(make.load(), Consumer(take.load(), read.load() if read else None))
    yield from judge_consumer(
        pair, CHECKS.of("pair"), lambda check, done: program(make, take, read, check), isolate.one
    )


def program(make: Target, take: Target, read: Target | None, check: Check) -> str:
    """A program that shows what becomes of a sample: the elements, and whether they may be written."""
    code = SAMPLES[check.samples[0]].code
    needed = ["from cai_conformance.judge.consumed import Consumer"]
    if "read_only(" in code:
        needed.append("from cai_conformance.judge.samples import read_only")
    functions = f"{take.call}, {read.call}" if read else take.call
    return "\n".join(
        [
            *make.head(*needed),
            *take.head()[1:],
            *(read.head()[1:] if read else []),
            f"array = {make.call}({code})",
            f"consumer = Consumer({functions})",
            "print(consumer.see(consumer.take(array)))",
        ]
    )
