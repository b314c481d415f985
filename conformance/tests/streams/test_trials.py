"""Runs races for every pair of streams that needs an order. `make soak` runs 10^5 each."""

from __future__ import annotations

import pytest

from conformance.tests.streams.race import Pair, Track
from conformance.tests.streams.trials import COMBINATIONS, PAIRS, is_lost, wrong

pytestmark = pytest.mark.long

TRIALS = 150


@pytest.mark.parametrize(("pair", "loan"), COMBINATIONS, ids=str)
def test_no_race_is_lost(pair: Pair, loan: bool, track: Track) -> None:
    assert wrong(track, pair, loan, TRIALS) == 0


UNORDERED = [pair for pair in PAIRS if not pair.is_ordered_by_the_driver]


@pytest.mark.parametrize("pair", UNORDERED, ids=str)
def test_without_the_wait_races_are_lost(pair: Pair, track: Track) -> None:
    call = "cuStreamSynchronize" if pair.policy == "host" else "cuStreamWaitEvent"
    assert is_lost(track, pair, call)
