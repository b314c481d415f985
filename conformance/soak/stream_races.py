"""Runs the races of `conformance/tests/streams` more often than a test run can.

    python -m cai_conformance simulate -- python -m conformance.soak.stream_races --trials 100000

prints a line for each combination and appends it, with date and commit, to
`conformance/results/stream-races.tsv`. Exits with 1 if a copy was wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from cai_conformance import Sim

from conformance.provenance import commit, today
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.race import Track
from conformance.tests.streams.trials import COMBINATIONS, wrong

CONFORMANCE = Path(__file__).resolve().parents[1]
RESULTS = CONFORMANCE / "results" / "stream-races.tsv"


HEAD = "# Of the simulated driver.\ndate\tcommit\tready\trequest\tpolicy\tface\tschedule\ttrials\twrong\tseconds\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--schedules", nargs="+", default=["threaded", "lazy"])
    asked = parser.parse_args()
    control = Sim()
    machine = Machine(control)
    machine.set_current(0)
    day, here, lost = today(), commit(), 0
    RESULTS.parent.mkdir(exist_ok=True)
    if not RESULTS.exists():
        RESULTS.write_text(HEAD, encoding="utf-8")
    for schedule in asked.schedules:
        control.schedule = schedule
        for pair, loan in COMBINATIONS:
            track, start = Track(machine), time.monotonic()
            bad = wrong(track, pair, loan, asked.trials)
            seconds = time.monotonic() - start
            track.close()
            face = "consume" if loan else "__dlpack__"
            row = [day, here, pair.ready, pair.request, pair.policy, face, schedule, asked.trials, bad]
            line = "\t".join([*map(str, row), f"{seconds:.1f}"])
            print(line, flush=True)
            with RESULTS.open("a", encoding="utf-8") as results:
                results.write(line + "\n")
            lost += bad
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
