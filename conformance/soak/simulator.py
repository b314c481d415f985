"""Runs the simulator's stress, processes that share memory, and random programs of it, of copies and at the edges,
for longer than a test run.

    python -m conformance.soak.simulator --minutes 10

prints a line for each part, and appends it with date and commit to `conformance/simulator/soak.tsv`.
Exits with 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time

from conformance.provenance import commit, today
from conformance.tests.interpreter.process import ROOT, on_the_simulator, simulate

RESULTS = ROOT / "conformance" / "simulator" / "soak.tsv"
MODES = list(
    itertools.product(
        ["threaded", "lazy"],
        [[], ["--protect", "--reuse"], ["--queue", "2"], ["--attribute", "0:89=0"], ["--attribute", "1:89=0"]],
    )
)

RANDOM = """
import json, time
from cai_conformance import Sim
from conformance.tests.cusim.model.driver import Driver
from conformance.tests.cusim.model.random_programs import is_right
sim, cu = Sim(), Driver()
cu.set_current(cu.retain(0))
before, seed, wrong, end = sim.live(), {first}, [], time.monotonic() + {seconds}
while time.monotonic() < end:
    if not is_right(cu, sim, seed, steps=40)[0]:
        wrong.append(seed)
    seed += 1
assert sim.live() == before
print(json.dumps({{"programs": seed - {first}, "wrong": wrong}}))
"""

COPIES = """
import json, time
from cai_conformance import Sim
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.copy_programs import is_right
machine = Machine(Sim())
seed, wrong, end = {first}, [], time.monotonic() + {seconds}
while time.monotonic() < end:
    if not is_right(machine, seed):
        wrong.append(seed)
    seed += 1
print(json.dumps({{"programs": seed - {first}, "wrong": wrong}}))
"""

EDGES = """
import json, time
from collections import Counter
from cai_conformance import Sim
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.edge_machine import Bench
from conformance.tests.streams.edge_programs import Program
sim = Sim()
bench = Bench(Machine(sim))
Program(bench, 0).run()  # the library's first call starts the driver, with the GIL
seed, wrong, reached, end = {first}, [], Counter(), time.monotonic() + {seconds}
while time.monotonic() < end:
    program = Program(bench, seed)
    with sim.gil_watch("*"):
        if not program.run():
            wrong.append([seed, *program.wrong])
    reached += program.reached
    seed += 1
print(json.dumps({{"programs": seed - {first}, "wrong": wrong, "reached": reached}}))
"""


def stress(options: list[str], rounds: int) -> tuple[bool, str]:
    """Runs four threads on two devices, with the waits."""
    done = simulate(options, ["-m", "conformance.tests.cusim.stress", str(rounds), "1"], timeout=3600)
    counted = json.loads(done.stdout) if done.returncode == 0 else {"failed": done.stderr[-500:]}
    return counted.get("wrong") == 0, json.dumps(counted)


def twins(options: list[str], *arguments: str) -> tuple[bool, str]:
    """Runs two processes on shared memory and events."""
    done = simulate(options, ["-m", "conformance.tests.cusim.twins", *arguments], timeout=3600)
    counted = json.loads(done.stdout) if done.returncode == 0 else {"failed": done.stderr[-500:]}
    return counted.get("wrong") in (0, []), json.dumps(counted)


def random_programs(code: str, options: list[str], seconds: float) -> tuple[bool, str]:
    """Runs random programs for `seconds`, from a seed that differs each time."""
    first = int(time.time()) * 1000
    done = on_the_simulator(code.format(first=first, seconds=seconds), *options)
    counted = json.loads(done.stdout) if done.returncode == 0 else {"failed": done.stderr[-500:]}
    return counted.get("wrong") == [], json.dumps(counted | {"first_seed": first})


def note(made: list[str], part: str, options: list[str], right: bool, figures: str) -> None:
    """Prints the result, with the date and commit that it was made from, and keeps it."""
    verdict = "right" if right else "WRONG"
    line = "\t".join([*made, part, " ".join(options), verdict, figures])
    print(line, flush=True)
    with RESULTS.open("a", encoding="utf-8") as results:
        results.write(line + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    seconds = parser.parse_args().minutes * 60 / len(MODES) / 6
    made = [today(), commit()]  # asked before the file of results changes, which git tracks
    all_right = True
    for schedule, more in MODES:
        options = ["--schedule", schedule, *more]
        for part, (right, figures) in (
            # About a thousand rounds each second on two cores.
            ("stress", stress(options, max(100, int(seconds * 200)))),
            ("random programs", random_programs(RANDOM, options, min(seconds, 100))),
            ("random copies", random_programs(COPIES, options, min(seconds, 100))),
            ("two processes", twins(options, "race", str(max(100, int(seconds * 400))), "1")),
            ("killed processes", twins(options, "kills", str(seconds))),
            ("programs at the edges", random_programs(EDGES, options, min(seconds, 100))),
        ):
            note(made, part, options, right, figures)
            all_right &= right
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
