"""An id of the kit that is a heading of docs/rules.md means the same there, or is listed with what it means instead."""

from __future__ import annotations

import re
from typing import Any

import cai_dlpack as cd
import pytest
from cai_conformance.checks import CHECKS
from cai_conformance.judge import steps
from cai_conformance.judge.check import Broken, Check
from cai_conformance.judge.consumed import Consumer

from conformance.tests.interpreter.process import ROOT

HEADINGS = set(re.findall(r"^### (\S+)$", (ROOT / "docs" / "rules.md").read_text(), re.MULTILINE))
SHARED = {check.id: check for check in CHECKS if check.rule in HEADINGS}
REFUSALS = [check for check in SHARED.values() if check.says.startswith("refuses ")]

#: Ids of checks that stand for something else than the heading does.
OTHERWISE = {
    "cai-consumer.field-unknown": "entries of the dict; the rule is of a struct's fields",
    "cai-consumer.stream-none": "no needless wait; the rule is of an argument that must name a stream",
    "cai-consumer.typestr-byte-order": "read as such or refused; the rule refuses what DLPack has no field for",
    "cai-producer.field-unknown": "entries of the dict; the rule is of a struct's fields",
    "cai-producer.typestr-byte-order": "one of <, > and |; the rule refuses what DLPack has no field for",
    "dlpack-producer.byte-offset": "advises 0; the rule refuses what leaves the address space",
    "dlpack-producer.capsule-name": "the name without `max_version`; the rule is of a name that no capsule has",
    "dlpack-producer.capsule-used": "what the end of a consumed capsule does; the rule refuses one",
    "dlpack-producer.copied-unasked": "the flag without a copy; the rule refuses a copy in spite of `copy=False`",
    "dlpack-producer.dl-device": "a device that the producer does not have; the rule is of what is no pair",
    "dlpack-producer.max-version": "that there is such a keyword; the rule is of its value",
    "dlpack-producer.stream-none": "that None is taken; the rule is of an argument that must name a stream",
    "exchange-producer.exchange-allocator": "that it is there; the rule is of the devices that ours serves",
}
#: The rules by which `view` refuses what a check offers, if not by that of its id: it takes either protocol, and has a
#: rule for a pair and one for what is in it.
BY_OTHERS = {
    "cai-consumer.cai-missing": {"protocol-missing"},
    "dlpack-consumer.dlpack-missing": {"protocol-missing"},
    "dlpack-consumer.device-pair": {"device-pair", "device-item-type"},
}
#: Offers that it takes, as docs/rules.md says.
TAKEN = {"cai-consumer.version-missing", "cai-consumer.stream-zero"}


def test_those_that_mean_something_else_are_ids_of_headings() -> None:
    assert set(OTHERWISE) <= set(SHARED)


@pytest.mark.usefixtures("sim")
@pytest.mark.parametrize("check", REFUSALS, ids=lambda check: check.id)
def test_what_a_check_has_refused_this_library_refuses_by_the_rule_of_that_name(check: Check) -> None:
    rules: dict[str, str] = {}

    def take(obj: Any) -> Any:
        try:
            return cd.view(obj)
        except Exception as error:
            rules[steps.last("offer", steps.STEPS)] = getattr(error, "rule", type(error).__name__)
            raise

    steps.begin()
    try:
        check.run(Consumer(take))
    except Broken:
        assert check.id in TAKEN
        return
    assert set(rules.values()) == BY_OTHERS.get(check.id, {check.rule}), rules


def test_an_id_of_a_heading_is_a_refusal_a_demand_on_producers_or_something_else() -> None:
    """The sides of one rule: who must not make it, and who must not take it. What is neither is listed."""
    demands = {key for key, check in SHARED.items() if check.profile.endswith("producer")} - set(OTHERWISE)
    refusals = {check.id for check in REFUSALS}
    naming = {"dlpack-consumer.stream-zero", "dlpack-consumer.stream-range", "dlpack-consumer.stream-rocm"}
    assert set(SHARED) - demands - refusals - naming == set(OTHERWISE)
