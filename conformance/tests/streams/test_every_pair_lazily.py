"""Every ready stream, request and policy, through every face, under every order of the queues."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from conformance.tests.streams.race import (
    Face,
    Name,
    Pair,
    Policy,
    Track,
    by_dlpack,
    by_join,
    by_on,
    by_to_dlpack,
    forward,
    pretended,
    there_and_back,
)

READY: tuple[Name, ...] = ("none", "legacy", "per-thread", "A")
REQUESTS: tuple[Name, ...] = ("omitted", "no-sync", "legacy", "per-thread", "A", "B")
STREAMS: tuple[Name, ...] = ("legacy", "per-thread", "A", "B")
POLICIES: tuple[Policy, ...] = get_args(Policy)

# `on` and `join` are explicit wishes, which the policy leaves alone.
ASKED = [
    *(
        (face, Pair(*pair))
        for face in (by_dlpack, by_to_dlpack)
        for pair in itertools.product(READY, REQUESTS, POLICIES)
    ),
    *((face, Pair(*pair)) for face in (by_on, by_join) for pair in itertools.product(READY, STREAMS)),
]
LOANS = [Pair(*pair) for pair in itertools.product(READY[1:], STREAMS, POLICIES)]


def name(value: object) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("face", "pair"), ASKED, ids=name)
def test_forward(face: Face, pair: Pair, track: Track) -> None:
    """Exactly these calls are made, and the outcome is certain exactly if there is an order."""
    outcomes = set()
    for _ in track.control.orders():
        track.machine.write(track.copy, bytes(24))
        track.machine.write(track.data, bytes(24))
        assert forward(track, pair, face) == pair.calls(track)
        outcomes.add(track.seen())
    certain = pair.needs_order or pair.is_ordered_by_the_driver
    assert outcomes == ({1} if certain else {0, 1})


@pytest.mark.parametrize("pair", LOANS, ids=name)
def test_there_and_back(pair: Pair, track: Track) -> None:
    """One event each way, and the consumer reads the first write under every order."""
    back = Pair(pair.request, pair.ready, pair.policy)
    outcomes = set()
    for _ in track.control.orders():
        track.machine.write(track.copy, bytes(24))
        track.machine.write(track.data, bytes(24))
        assert there_and_back(track, pair) == pair.calls(track) + back.calls(track)
        outcomes.add(track.seen())
    certain = pair.needs_order or pair.is_ordered_by_the_driver
    assert outcomes == ({1} if certain else {0, 1, 2})


WAITED = [(face, pair) for face, pair in ASKED if pair.needs_order and not pair.is_ordered_by_the_driver]


@pytest.mark.parametrize(("face", "pair"), WAITED, ids=name)
def test_without_the_wait_the_lazy_schedule_is_wrong_each_time(face: Face, pair: Pair, lazily: Track) -> None:
    """Shows that the tests above can fail: each half of the wait is taken away in turn."""
    halves = ["cuStreamSynchronize"] if pair.policy == "host" else ["cuEventRecord", "cuStreamWaitEvent"]
    for half in halves * 3:
        lazily.machine.write(lazily.data, bytes(24))
        with pretended(lazily, half):
            assert forward(lazily, pair, face) == pair.calls(lazily)
        assert lazily.seen() == 0, half


LENT = [pair for pair in LOANS if pair.needs_order and not pair.is_ordered_by_the_driver]


@pytest.mark.parametrize("pair", LENT, ids=name)
def test_without_an_edge_some_order_is_wrong(pair: Pair, track: Track) -> None:
    """The entry taken away: the consumer reads too early. The exit: the producer writes too early."""
    call = "cuStreamSynchronize" if pair.policy == "host" else "cuStreamWaitEvent"
    for edge, wrong in ((1, 0), (2, 2)):
        outcomes = set()
        for _ in track.control.orders():
            track.machine.write(track.data, bytes(24))
            with pretended(track, call, edge):
                there_and_back(track, pair)
            outcomes.add(track.seen())
        assert wrong in outcomes, f"edge {edge}"
