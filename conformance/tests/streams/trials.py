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


def wrong(track: Track, pair: Pair, loan: bool, trials: int) -> int:
    """Returns how many of `trials` copies are not of the write that they were ordered after."""
    writer = track.handle(pair.ready)
    bad = 0
    for trial in range(trials):
        value = 1 + trial % 100
        track.busy(writer)
        run(track, pair, loan, value)
        bad += track.seen() != value
    track.machine.clear()
    return bad


def is_lost(track: Track, pair: Pair, without: str) -> bool:
    """Returns whether some copy comes before its write, if a call of the order does nothing.

    The write is later each time: on a busy machine the copy is late as well.
    """
    for trial in range(12):
        track.control.delay(track.handle(pair.ready), 1e-4 * 2**trial)
        with pretended(track, without):
            run(track, pair, False, 1 + trial)
        if track.seen() != 1 + trial:
            return True
    return False


def run(track: Track, pair: Pair, loan: bool, value: int) -> None:
    if loan:
        made, edges = there_and_back(track, pair, value), 2
    else:
        made, edges = forward(track, pair, by_dlpack, value), 1
    assert len(made) == edges * (2 if pair.policy == "event" else 1), made
