"""Runs the parts of the soak, which take longer than `make test`, one after the other.

    python -m conformance.soak.run --minutes 30 [PART ...]

The minutes are shared by the parts that can run for any time. The others have a size that is fixed by what
they have to show. Each part keeps its own figures where the table below says, and a line with date, commit
and verdict goes to `conformance/results/soak.tsv`. Exits with 1 if any part went wrong.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from conformance.provenance import commit, today

ROOT = Path(__file__).resolve().parents[2]

RESULTS = ROOT / "conformance" / "results"
SIMULATED = [sys.executable, "-m", "cai_conformance", "simulate", "--"]
# Races of each pair that one second has time for, with 64 pairs and schedules, on two busy cores: 3700 in all.
RACES_A_SECOND = 50


@dataclass(frozen=True)
class Part:
    """A command, given the minutes that are its own, and where its figures are kept."""

    command: Callable[[float], list[str]]
    figures: str
    takes_minutes: bool = False


def ownership(part: str) -> Part:
    script = str(ROOT / "conformance" / "soak" / "ownership.sh")
    return Part(lambda _: [script, sys.executable, part], f"conformance/results/ownership-{part}.txt")


def checked(tool: str) -> Part:
    script = str(ROOT / "conformance" / "soak" / f"{tool}.sh")
    return Part(lambda _: [script], f"conformance/results/{tool}.txt")


def cpython(kind: str) -> Part:
    script = str(ROOT / "conformance" / "soak" / "cpython.sh")
    return Part(lambda _: [script, kind], f"conformance/results/cpython-{kind}.txt")


def races(minutes: float) -> list[str]:
    trials = max(100, int(minutes * 60 * RACES_A_SECOND))
    return [*SIMULATED, sys.executable, "-m", "conformance.soak.stream_races", "--trials", str(trials)]


def orders(minutes: float) -> list[str]:
    return [*SIMULATED, sys.executable, "-m", "conformance.soak.stream_orders", "--minutes", f"{minutes:.2f}"]


def simulator(minutes: float) -> list[str]:
    return [sys.executable, "-m", "conformance.soak.simulator", "--minutes", f"{minutes:.2f}"]


def shares(minutes: float) -> list[str]:
    return [*SIMULATED, sys.executable, "-m", "conformance.soak.shares", "--minutes", f"{minutes:.2f}"]


# The suites of the mode in which every allocation collects (conformance/tests/hostile.py).
COLLECTED = [
    "test_malformed_cai",
    "test_malformed_descr",
    "test_malformed_dlpack",
    "test_import",
    "test_export",
    "test_capsules",
    "partners",
]


def collecting(_: float) -> list[str]:
    tests = [ROOT / "conformance" / "tests" / name for name in COLLECTED]
    suites = [str(test if test.is_dir() else test.with_suffix(".py")) for test in tests]
    return ["env", "PYTHONMALLOC=debug", *SIMULATED, sys.executable, "-m", "pytest", "-q", "--collect-always", *suites]


PARTS = {
    "simulator": Part(simulator, "conformance/simulator/soak.tsv", takes_minutes=True),
    "races": Part(races, "conformance/results/stream-races.tsv", takes_minutes=True),
    "orders": Part(orders, "conformance/results/stream-orders.tsv", takes_minutes=True),
    "shares": Part(shares, "conformance/results/shares.tsv", takes_minutes=True),
    **{f"ownership-{part}": ownership(part) for part in ("figures", "refusals", "loom", "pythons", "asan", "valgrind")},
    **{tool: checked(tool) for tool in ("asan", "tsan", "readme")},
    "miri": Part(lambda _: [sys.executable, "-m", "conformance.soak.miri"], "conformance/results/miri.tsv"),
    "found-again": Part(
        lambda _: [sys.executable, "-m", "conformance.soak.found_again"], "conformance/results/found-again.tsv"
    ),
    "mutants": Part(lambda _: ["make", "mutants"], "conformance/results/mutants.txt"),
    "coverage": Part(lambda _: [sys.executable, "-m", "conformance.soak.coverage"], "conformance/results/coverage.txt"),
    **{f"cpython-{kind}": cpython(kind) for kind in ("gil", "debug", "3.15", "free-threaded", "tsan")},
    "collecting": Part(collecting, "conformance/results/soak.tsv"),
    "kit": Part(
        lambda _: [str(ROOT / "conformance" / "soak" / "kit.sh"), sys.executable], "conformance/results/soak.tsv"
    ),
}


def run(name: str, part: Part, minutes: float) -> bool:
    command = part.command(minutes)
    print(f"{name}: {' '.join(command)}", flush=True)
    start = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    note(name, time.monotonic() - start, code)
    print(f"{name}: {'right' if code == 0 else 'WRONG'}; figures: {part.figures}\n", flush=True)
    return code == 0


def note(name: str, seconds: float, code: int) -> None:
    verdict = "right" if code == 0 else f"WRONG, exit code {code}"
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "soak.tsv").open("a", encoding="utf-8") as results:
        results.write(f"{today()}\t{commit()}\t{name}\t{seconds:.0f} s\t{verdict}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=", ".join(PARTS))
    asked = parser.parse_args()
    chosen = {name: PARTS[name] for name in asked.parts or PARTS}
    sharing = sum(part.takes_minutes for part in chosen.values())
    os.environ.setdefault("CARGO_TARGET_DIR", str(ROOT / "target"))
    # Asked before the files of results change, which git tracks.
    os.environ.setdefault("COMMIT", commit())
    # Every part, also after one that failed.
    verdicts = [run(name, part, asked.minutes / max(1, sharing)) for name, part in chosen.items()]
    print(f"kept in {RESULTS.relative_to(ROOT)}/soak.tsv")
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
