"""Each check passes on the reference, and fails on its mutant, which no other check finds wrong."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import pytest
from cai_conformance.checks import CHECKS
from cai_conformance.judge import groups
from cai_conformance.judge.check import PROFILES, Check
from cai_conformance.judge.consumed import Consumer, Pair
from cai_conformance.judge.elsewhere import judging
from cai_conformance.judge.groups import GROUP_OF, GROUPS
from cai_conformance.judge.run import Outcome, Result, here, judge_consumer, judge_producer
from cai_conformance.judge.target import Target
from cai_conformance.reference.consumers import take_cai, take_dlpack
from cai_conformance.reference.exchange_consumer import ExchangeConsumer, ExchangeEcho
from cai_conformance.reference.exchanger import ExchangeArray
from cai_conformance.reference.in_numpy import NumpyArray
from cai_conformance.reference.producers import CaiArray, DlpackArray, DlpackDeviceArray

from conformance.tests.interpreter import needs
from conformance.tests.interpreter.process import ROOT

#: The references of each profile; two where one has no streams, or gives nothing back.
REFERENCES: dict[str, list[Any]] = {
    "cai-producer": [CaiArray],
    "dlpack-producer": [DlpackArray, DlpackDeviceArray, NumpyArray],
    "exchange-producer": [ExchangeArray],
    "cai-consumer": [take_cai],
    "dlpack-consumer": [take_dlpack],
    "exchange-consumer": [ExchangeConsumer(), ExchangeEcho()],
    "pair": [Pair(DlpackArray, Consumer(take_dlpack)), Pair(CaiArray, Consumer(take_cai))],
}

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("sim")]


def judged(profile: str, subject: Any) -> list[Result]:
    checks = CHECKS.of(profile)
    with judging(Target.of(subject)):
        if profile.endswith("producer"):
            return list(judge_producer(subject, checks, lambda check, done: ""))
        consumer = subject if profile == "pair" else Consumer(subject)
        return list(judge_consumer(consumer, checks, lambda check, done: "", here))


def rules(results: Iterable[Result], outcome: Outcome) -> set[str]:
    return {result.check.rule for result in results if result.outcome is outcome}


@pytest.mark.parametrize("profile", PROFILES)
def test_every_check_passes_on_a_reference(profile: str) -> None:
    passed: set[str] = set()
    for reference in REFERENCES[profile]:
        results = judged(profile, reference)
        failed = [f"{result.check.id}: {result.evidence}" for result in results if result.outcome is Outcome.FAILED]
        assert not failed, reference
        passed |= rules(results, Outcome.PASSED)
    assert passed == {check.rule for check in CHECKS.of(profile)}


@pytest.mark.parametrize("check", needs.each_check(CHECKS))
def test_every_check_finds_its_mutant_and_no_other_does(check: Check) -> None:
    results = judged(check.profile, check.mutant)
    found = {result.check.rule: result.evidence for result in results if result.outcome is Outcome.FAILED}
    assert set(found) == {check.rule}, found


def test_what_another_library_makes_of_ctypes_functions_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # Numba gives `ctypes.pythonapi.Py_DecRef`, of which a process has one, argument types of its own.
    monkeypatch.setattr(ctypes.pythonapi.Py_IncRef, "argtypes", [ctypes.c_char_p])
    monkeypatch.setattr(ctypes.pythonapi.Py_DecRef, "argtypes", [ctypes.c_char_p])
    cycle = CHECKS["cai-consumer.cycle-released"]
    assert rules(judged(cycle.profile, cycle.mutant), Outcome.FAILED) == {cycle.rule}
    for reference in (ExchangeConsumer(), ExchangeEcho()):
        assert not rules(judged("exchange-consumer", reference), Outcome.FAILED)
    assert not rules(judged("exchange-producer", ExchangeArray), Outcome.FAILED)


def test_each_check_is_of_a_group_and_each_rule_of_a_group_has_a_check() -> None:
    assert {check.group for check in CHECKS} == set(GROUPS)
    assert set(GROUP_OF) == {check.rule for check in CHECKS}
    assert len(GROUP_OF) == sum(len(rules.split()) for rules in groups._RULES.values())
    readme = (ROOT / "conformance" / "kit" / "README.md").read_text()
    assert all(f"| `{name}` | {what} |" in readme for name, what in GROUPS.items())
    streams = {check.id for check in CHECKS if "stream" in check.id}
    assert streams == {check.id for check in CHECKS if check.group == "streams"}
    refused = {check.group for check in CHECKS if check.says.startswith("refuses ")}
    assert refused == {"malformed", "streams", "ownership"}


def test_there_are_checks_enough_and_each_quotes_a_sentence() -> None:
    assert len(CHECKS) >= 200
    for check in CHECKS:
        assert check.says[0] in "`abcdefghijklmnopqrstuvwxyz" and not check.says.endswith("."), check.id
        assert len(check.source.sentence) > 10 and check.source.url.startswith("https://"), check.id
