"""The program that a report shows for a check is one that shows it: run alone, it tells a mutant from the reference."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import types
from typing import Any

import numpy as np
import pytest
from cai_conformance import offers
from cai_conformance.checks import CHECKS
from cai_conformance.judge import pair
from cai_conformance.judge.check import Check
from cai_conformance.judge.consumed import Consumer, Pair
from cai_conformance.judge.elsewhere import judging
from cai_conformance.judge.run import Outcome, Result, here, judge_consumer, judge_producer
from cai_conformance.judge.target import Target

from conformance.tests.interpreter import needs
from conformance.tests.kit.test_checks import REFERENCES

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("sim")]


def subject(function: Any, name: str = "subject_of_a_program") -> Target:
    """A target that a program can import."""
    module = types.ModuleType(name)
    module.function = function  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    return Target(f"{module.__name__}:function")


def subjects(function: Pair) -> tuple[Target, Target]:
    """The targets of a pair."""
    return subject(function.make), subject(function.consumer.take, "consumer_of_a_program")


def result(check: Check, function: Any) -> Result:
    if check.profile == "pair":
        make, take = subjects(function)
        (one,) = judge_consumer(function, [check], lambda check, done: pair.program(make, take, None, check), here)
        return one
    target = subject(function)
    checks = CHECKS.of(check.profile)
    if check.profile.endswith("producer"):
        found = judge_producer(function, checks, target.producer_program)
    else:
        found = judge_consumer(Consumer(function), checks, target.consumer_program, here)
    return next(one for one in found if one.check is check)


def output(program: str) -> str:
    """What a program prints and raises, with a letter for each address."""
    out = io.StringIO()
    offers.TWICE.clear()
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(program, "program", "exec"), {"__name__": "__main__"})
        except (NameError, SyntaxError, ImportError):
            raise
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
    letters: dict[str, str] = {}
    return re.sub(
        r"0x[0-9a-f]{6,}|\b\d{7,}\b", lambda found: letters.setdefault(found[0], f"<{len(letters)}>"), out.getvalue()
    )


#: The reference's own capsules have a destructor of Python's, as the mutant's.
OTHERS = {"dlpack-producer.capsule-in-flight": (np.asarray,)}


#: The checks whose programs are run in a process of their own: they tell by how it ends.
ALONE = {"exit-alive", "deleter-late", "fork-dropped"}


@pytest.mark.parametrize("check", needs.each_check(check for check in CHECKS if check.rule not in ALONE))
def test_the_program_tells_the_mutant_from_the_reference(check: Check) -> None:
    failed = result(check, check.mutant)
    assert failed.outcome is Outcome.FAILED
    shown = output(failed.program)
    reference: Any
    for reference in OTHERS.get(check.id, REFERENCES[check.profile]):
        if check.profile == "pair":
            subjects(reference)
        else:
            subject(reference)
        assert output(failed.program) != shown, failed.program


@pytest.mark.parametrize("check", [check for check in CHECKS if check.rule in ALONE], ids=lambda check: check.id)
def test_a_program_that_is_run_alone_tells_them_apart(check: Check) -> None:
    for function, outcome in ((check.mutant, Outcome.FAILED), (REFERENCES[check.profile][0], Outcome.PASSED)):
        target = Target.of(function)
        with judging(target):
            checks = CHECKS.of(check.profile)
            if check.samples:
                found = judge_producer(function, checks, target.producer_program)
            else:
                found = judge_consumer(Consumer(function), checks, target.consumer_program, here)
            (one,) = [one for one in found if one.check is check]
        assert one.outcome is outcome, one.evidence
        if one.program:
            assert f"{target.module}.{target.name}(" in one.program
