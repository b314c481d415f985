"""Races over views that are the `owner=` of dicts: `owner_programs`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from conformance.tests.streams.moved_producers import KINDS
from conformance.tests.streams.owner_programs import TAKES, WHOSE, Bench, Program
from conformance.tests.streams.race import NBYTES, Track

QUICK, LONG = range(1000), range(1000, 8000)


@pytest.fixture
def bench(lazily: Track) -> Iterator[Bench]:
    machine, before = lazily.machine, lazily.data
    memory = {kind: getattr(machine, f"{kind}_memory")(NBYTES) for kind in KINDS}
    made = Bench(lazily, memory, [lazily.a, machine.stream(0), machine.stream(1)])
    machine.set_current(0)
    yield made
    machine.finish()
    lazily.data = before
    for stream in made.streams[1:]:
        machine.destroy_stream(stream)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seeds", [QUICK, pytest.param(LONG, marks=pytest.mark.long)], ids=["quick", "long"])
def test_both_edges_are_those_of_whom_the_dict_leaves_them_to(bench: Bench, seeds: range) -> None:
    programs = [Program(bench, seed) for seed in seeds]
    assert [f"{seed}: {program}" for seed, program in zip(seeds, programs, strict=True) if not program.is_right()] == []
    assert {(program.whose, program.take) for program in programs} == set(product(WHOSE, TAKES))
