"""Runs the races of `conformance/tests/streams` on a GPU, with a kernel that waits before it writes.

    PYTHONPATH=conformance/kit/src python -m conformance.gpu.races --trials 10000

Each pair of streams runs twice: as the library orders it, where no copy may be wrong, and with nobody
ordering (`cd.policy(sync="none")`), where copies must be wrong: else the race is too slow to be lost, and
proves nothing. A line is printed for each, after what it ran on. Exits with 1 where either is not so.

On the simulator it runs with `--simulated` only, to see that it runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time

from conformance.gpu.facts import begin
from conformance.gpu.machine import SlowTrack, machine
from conformance.tests.streams.race import Pair, Track, by_dlpack, forward, there_and_back
from conformance.tests.streams.trials import COMBINATIONS

COLUMNS = "ready\trequest\tpolicy\tface\ttrials\twrong\tunordered_trials\tunordered_wrong\tseconds"


def wrong(track: Track, pair: Pair, loan: bool, trials: int) -> int:
    """Returns how many of `trials` copies are not of the write that they were ordered after."""
    bad = 0
    for trial in range(trials):
        value = 1 + 2 * (trial % 80)  # the loan's second write has the even number after it; never 0xA5
        if loan:
            there_and_back(track, pair, value)
        else:
            forward(track, pair, by_dlpack, value)
        bad += track.seen() != value
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--unordered", type=int, default=100, help="trials in which nobody orders")
    parser.add_argument("--simulated", action="store_true", help="on the simulator")
    asked = parser.parse_args()
    begin(parser, asked.simulated)
    print(COLUMNS, flush=True)
    here = machine()
    lost = False
    for pair, loan in COMBINATIONS:
        track, start = SlowTrack(here), time.monotonic()
        nobody = dataclasses.replace(pair, policy="none")
        unordered = 0 if pair.is_ordered_by_the_driver else asked.unordered
        bad, missed = wrong(track, pair, loan, asked.trials), wrong(track, nobody, loan, unordered)
        seconds = time.monotonic() - start
        track.close()
        face = "consume" if loan else "__dlpack__"
        counts = [asked.trials, bad, unordered, missed]
        row = [pair.ready, pair.request, pair.policy, face, *map(str, counts), f"{seconds:.1f}"]
        print("\t".join(row), flush=True)
        lost |= bad > 0 or (unordered > 0 and missed == 0)
    return int(lost)


if __name__ == "__main__":
    sys.exit(main())
