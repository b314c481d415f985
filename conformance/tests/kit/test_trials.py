"""The race trials that take the place of the call log on a GPU, tried on the simulated driver with its delays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cai_conformance import Sim
from cai_conformance.checks import CHECKS
from cai_conformance.cuda import driver
from cai_conformance.judge import trials
from cai_conformance.judge.check import Check
from cai_conformance.judge.consumed import Consumer
from cai_conformance.judge.run import Outcome, Result, here, judge_consumer, judge_producer
from cai_conformance.offers import a_stream
from cai_conformance.reference.consumers import CaiConsumer, DlpackConsumer, TakenCai
from cai_conformance.reference.producers import DlpackDeviceArray

#: The checks that read the call log, where there is one.
BY_LOG = ["cai-consumer.stream-wait", "cai-consumer.stream-none", "dlpack-producer.stream-no-sync"]
#: And those that have nothing done by itself, on a machine that can be told so.
BY_TRIALS = [
    *BY_LOG,
    "dlpack-producer.stream-order",
    "dlpack-consumer.stream-order",
    "dlpack-consumer.stream-fallback",
    "dlpack-consumer.stream-passed-on",
]
LATE = [CHECKS[name] for name in BY_TRIALS]
#: The reference of each profile that has streams.
REFERENCES: dict[str, Any] = {
    "cai-consumer": CaiConsumer(),
    "dlpack-consumer": DlpackConsumer(),
    "dlpack-producer": DlpackDeviceArray,
}


@pytest.fixture(autouse=True)
def _without_a_log(sim: Sim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver(), "simulated", False)
    monkeypatch.setattr(trials, "TRIALS", 4)
    monkeypatch.setattr(trials, "SECONDS", 0.1)  # machines that run tests are busy


def judged(check: Check, subject: Any) -> Result:
    if check.profile.endswith("producer"):
        (result,) = judge_producer(subject, [check], lambda check, done: "")
    else:
        (result,) = judge_consumer(Consumer(subject), [check], lambda check, done: "", here)
    return result


@pytest.mark.parametrize("check", LATE, ids=BY_TRIALS)
def test_the_reference_passes_and_the_mutant_is_found(check: Check) -> None:
    assert judged(check, REFERENCES[check.profile]).outcome is Outcome.PASSED
    assert judged(check, check.mutant).outcome is Outcome.FAILED


class Ordered(CaiConsumer):
    """Waits for nothing, and says which stream its array is ready on."""

    def order(self, whole: dict[str, Any]) -> None:
        pass

    def seen(self, taken: dict[str, Any]) -> dict[str, Any]:
        return taken


def test_a_consumer_may_work_in_the_stream() -> None:
    assert judged(LATE[0], Ordered()).outcome is Outcome.PASSED


def test_a_function_that_reads_is_judged_by_what_it_reads() -> None:
    def read(taken: TakenCai) -> Any:

        stream = taken.interface["stream"] if waits else trials.another_stream()
        found = driver().read_after(stream, taken.interface["data"][0], 256)
        return np.frombuffer(found, np.uint8)

    waits = True
    late = LATE[0].run
    late(Consumer(Ordered(), read))
    waits = False
    with pytest.raises(Exception, match=r"trial \d: it read 0000000000000000, and 0\d was written in the stream"):
        late(Consumer(Ordered(), read))


def test_a_race_that_nobody_can_lose_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(address: int, value: int, nbytes: int, seconds: float, stream: int | None) -> None:
        driver().write(address, bytes([value]) * nbytes)
        driver().synchronize()

    monkeypatch.setattr(trials, "writes_late", at_once)
    result = judged(LATE[0], CaiConsumer())
    assert (result.outcome, result.evidence) == (
        Outcome.NOT_RUN,
        "in 4 trials nobody who waits for nothing read too early",
    )


def test_a_wait_is_told_from_none() -> None:
    stream, other = a_stream(), trials.another_stream()
    assert trials.waits(lambda: driver().wait(stream), stream)
    assert trials.waits(driver().synchronize, other, stream)
    assert not trials.waits(lambda: None, stream)
    assert not trials.waits(lambda: driver().wait(other), stream)
