"""Looks for a case in which `explain` tells something else than what happens.

The generator is the matrix's own (`conformance/matrix/explained.py`), over the libraries of this environment;
`make conformance` runs it over all others.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import cai_dlpack as cd
import pytest

from conformance.matrix.explained import Bench, Case, drawn
from conformance.tests.simulated.machine import Machine

CASES = {"host": 5000, "device": 4000}


@pytest.mark.parametrize("room", CASES)
def test_what_is_told_is_what_happens(room: str, machine: Machine) -> None:
    bench, chosen = Bench(machine.control, room), random.Random(1)
    producers, consumers = sorted(bench.producers), bench.consumers()
    wrong: dict[str, Case] = {}
    for _ in range(CASES[room]):
        case = drawn(chosen, producers, consumers)
        for line in bench.wrong(case):
            wrong.setdefault(line, case)
    assert not wrong, "\n".join(f"{case}: {line}" for line, case in wrong.items())
    for consumer in consumers:
        for outcome in ("taken", "refused"):
            assert bench.reached[consumer, outcome] > 3, f"{consumer} has {outcome} nearly nothing"
    assert bench.reached[None, "unknown"] > 10


PLAIN = Case("numpy", "float32", "rows", (), None, None, None, False)


@pytest.mark.parametrize(
    ("told", "case"),
    [
        ({"refused": "too round"}, PLAIN),
        ({"route": "cai"}, PLAIN),
        ({"route": None}, PLAIN),
        ({"ready": "on stream 0x5000"}, PLAIN),
        ({"warnings": ("beware",)}, PLAIN),
        ({"driver_calls": ("cuStreamSynchronize",)}, PLAIN),
        ({"refused": None}, replace(PLAIN, dtype="bfloat16", consumer="numpy")),
        ({"remedies": ("np.from_dlpack(v)",)}, replace(PLAIN, dtype="bfloat16", consumer="numpy")),
        ({"call": "np.load(v)"}, replace(PLAIN, consumer="numpy")),
        ({"refused": "another"}, replace(PLAIN, producer="text")),
        ({"route": "cai"}, replace(PLAIN, producer="text")),
    ],
    ids=str,
)
def test_a_false_answer_is_noticed(
    told: dict[str, Any], case: Case, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(machine.control, "host")
    assert bench.wrong(case) == []

    class False_:
        def __init__(self, true: Any) -> None:
            self.true = true

        def __getattr__(self, name: str) -> Any:
            return told[name] if name in told else getattr(self.true, name)

    explain = cd.explain
    monkeypatch.setattr(cd, "explain", lambda *given, **named: False_(explain(*given, **named)))
    assert bench.wrong(case) != []
