"""Runs the random programs of `conformance/tests/streams` for longer than a test run can.

    python -m cai_conformance simulate -- python -m conformance.soak.stream_orders --minutes 5

prints a line for each schedule and appends it, with date and commit, to `conformance/results/stream-orders.tsv`.
A program is one of orders and one of tasks, of the same seed. Exits with 1 if a copy or a task's setting was wrong; the
seeds of such programs are printed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

from cai_conformance import Sim

from conformance.provenance import commit, today
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.race import Track
from conformance.tests.streams.random_orders import Program
from conformance.tests.streams.task_programs import Programs

RESULTS = Path(__file__).resolve().parents[1] / "results" / "stream-orders.tsv"
HEAD = "# Of the simulated driver.\ndate\tcommit\tschedule\tprograms\twrong\tseconds\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--schedules", nargs="+", default=["threaded", "lazy"])
    asked = parser.parse_args()
    program = Program(Machine(Sim()))
    tasks = Programs(Track(program.machine))
    if not RESULTS.exists():
        RESULTS.write_text(HEAD, encoding="utf-8")
    lost = 0
    for schedule in asked.schedules:
        program.machine.control.schedule = schedule
        start, wrong, programs = time.monotonic(), 0, 0
        for seed in itertools.count():
            if time.monotonic() - start > asked.minutes * 60 / len(asked.schedules):
                break
            programs += 1
            if not program.is_right(seed) or tasks.wrongs(seed):
                wrong += 1
                print(f"wrong: seed {seed}, {schedule}", flush=True)
            program.machine.clear()
        row = [today(), commit(), schedule, programs, wrong, f"{time.monotonic() - start:.0f}"]
        print(*row, sep="\t", flush=True)
        with RESULTS.open("a", encoding="utf-8") as results:
            print(*row, sep="\t", file=results)
        lost += wrong
    program.close()
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
