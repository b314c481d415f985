"""Many races, one after the other, with worker threads behind the streams: shared by tests and soak."""

from __future__ import annotations

import itertools

from conformance.tests.streams.race import Name, Pair, Policy, Track, by_dlpack, forward, pretended, there_and_back

_READY: tuple[Name, ...] = ("legacy", "per-thread", "A")
_REQUESTS: tuple[Name, ...] = ("omitted", "legacy", "per-thread", "B")
_POLICIES: tuple[Policy, ...] = ("event", "host")

# Every pair in which somebody has to wait.
PAIRS = [pair for pair in itertools.starmap(Pair, itertools.product(_READY, _REQUESTS, _POLICIES)) if pair.needs_order]
# As an export, and as a loan with its return edge.
COMBINATIONS = [(pair, loan) for pair in PAIRS for loan in (False, True) if not (loan and pair.request == "omitted")]


def wrong(track: Track, pair: Pair, loan: bool, trials: int, without: str | None = None) -> int:
    """Returns how many of `trials` copies are not of the write that they were ordered after.

    `without` names a call of the order that does nothing.
    """
    writer = track.handle(pair.ready)
    bad = 0
    for trial in range(trials):
        value = 1 + trial % 100
        track.busy(writer)
        if without is None:
            run(track, pair, loan, value)
        else:
            with pretended(track, without):
                run(track, pair, loan, value)
        bad += track.seen() != value
    track.machine.clear()
    return bad


def run(track: Track, pair: Pair, loan: bool, value: int) -> None:
    if loan:
        made, edges = there_and_back(track, pair, value), 2
    else:
        made, edges = forward(track, pair, by_dlpack, value), 1
    assert len(made) == edges * (2 if pair.policy == "event" else 1), made
