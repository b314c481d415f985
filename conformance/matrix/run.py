"""The matrix: every installed producer to every installed consumer, each dtype, each layout.

    python -m cai_conformance simulate -- python -m conformance.matrix.run [--keep]

Prints a table and saves it as markdown and as json, under target/results; with `--keep` in
conformance/results, in place of what is kept there. A cell that is OK in the kept json and is not any more
makes the exit code 1, and then nothing is kept; so does a cell, an order or a case of `explained.py` in which `explain`
tells something else than what happens.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from conformance.matrix.cells import FAILED, LAYOUTS
from conformance.matrix.installed import LIBRARIES, driver, present, versions
from conformance.matrix.table import markdown, regressions, summary
from conformance.provenance import commit, today

NAMES = ("producer", "consumer", "bridge", "dtype", "layout", "reason")
ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "conformance" / "results"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))

PATIENCE = 600
#: So many lines of what a process has printed are kept, if it ended in a cell.
LINES = 15


def run(room: str, producer: str, consumers: list[str]) -> tuple[list[dict[str, Any]], str | None]:
    """All cells of one producer, and how its process ended where not well. One that dies in a cell is started
    again behind it."""
    cells: list[dict[str, Any]] = []
    skip = 0
    deadly: list[list[str]] = []
    while True:
        told = [room, producer, ",".join(consumers), str(skip), json.dumps(deadly)]
        ended = module("pair", *told)
        begun = None
        for line in ended.stdout.splitlines():
            if not line.startswith("{"):
                continue
            said = json.loads(line)
            begun = said.get("begun")
            if begun is None:
                cells.append({"room": room, "producer": producer, **said})
        if begun is None:
            failed = f"the process ended by {ending(ended.returncode)}: {last(ended.stderr)}"
            return cells, failed if ended.returncode else None
        reason = f"the process ended by {ending(ended.returncode)}: {last(ended.stderr)}"
        said = {"stderr": ended.stderr.splitlines()[-LINES:]}
        cells.append({"room": room, "producer": producer, **begun, "outcome": FAILED, "reason": reason, **said})
        skip = begun["number"] + 1
        deadly.append([begun["consumer"], begun["bridge"], begun["layout"]])


def module(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a module of the matrix in a process of its own."""
    command = [sys.executable, "-m", f"conformance.matrix.{name}", *arguments]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_ENABLE_X64": "1"}
    if not driver().startswith("NVIDIA"):
        environment["JAX_PLATFORMS"] = "cpu"
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT, env=environment)


def told_otherwise(room: str, consumers: list[str]) -> list[str]:
    """Cases in which `explain` tells something else than what happens, by the generator of `explained.py`."""
    print(f"{room}: explained ...", file=sys.stderr, flush=True)
    ended = module("explained", room, ",".join(consumers))
    if ended.returncode == 0:
        return []
    told = [line for line in ended.stdout.splitlines() if " x " in line or line.startswith("    ")]
    return told or [f"the process ended by {ending(ended.returncode)}: {last(ended.stderr)}"]


def orders(consumers: list[str]) -> dict[str, str]:
    """Returns how each consumer waits for the producer's stream, from the simulated driver's log."""
    ended = module("order", *consumers)
    told = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    return (
        json.loads(told[-1])
        if told
        else {"all": f"the process ended by {ending(ended.returncode)}: {last(ended.stderr)}"}
    )


def last(text: str) -> str:
    """Returns the line of an error output that has the reason, if there is one."""
    told = [line.strip() for line in text.splitlines() if "heck failed" in line or "Error: " in line]
    return (told or ["no words"])[-1][:160]


def ending(code: int) -> str:
    """An exit code, or the signal that it stands for."""
    return signal.Signals(-code).name if code < 0 else f"exit {code}"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--keep", action="store_true", help="replace the table that is kept")
    arguments.add_argument("--name", default=None, help="of the saved files; the driver's kind by default")
    arguments.add_argument("--target", default="conformance", help="of make, for the head of the table")
    arguments.add_argument("--only", default=None, help="libraries, separated by commas")
    arguments.add_argument("--room", choices=["host", "device"], default=None, help="one kind of memory alone")
    options = arguments.parse_args()

    here, absent = present(options.only.split(",") if options.only else None)
    for room, name in sorted(here):
        if options.room not in (None, room):
            here.remove((room, name))
            absent[f"{name} ({room})"] = "left out by --room"
    cells = []
    work = [
        (room, producer, [name for name in consumers if (room, name) in here])
        for room, producers, consumers in LIBRARIES
        for producer in producers
        if (room, producer) in here
    ]
    with ThreadPoolExecutor(os.cpu_count()) as together:
        for (room, producer, _), (found, failed) in zip(work, together.map(lambda one: run(*one), work), strict=True):
            print(f"{room}: {producer}", file=sys.stderr, flush=True)
            cells += found
            if failed:
                absent[f"{producer} ({room}), " + ("the end" if found else "all of it")] = failed
    head: dict[str, Any] = {
        "date": today(),
        "commit": commit(),
        "driver": driver(),
        "target": options.target,
        "versions": versions({name for _, name in here}),
        "not_run": absent,
        "layouts": LAYOUTS,
    }
    if ("device", "numba-cuda") in here and head["driver"] == "simulated driver":
        head["order"] = orders([name for room, name in here if room == "device"])
    if died := [cell for cell in cells if "stderr" in cell]:
        head["died"] = died
    for cell in died:
        print(f"died: {' '.join(str(cell[name]) for name in NAMES)}", file=sys.stderr)
        print(*(f"    {line}" for line in cell["stderr"]), sep="\n", file=sys.stderr)
    pairs = summary(cells)
    text = markdown(head, pairs)
    print(text)
    name = options.name or ("matrix-gpu" if head["driver"].startswith("NVIDIA") else "matrix-simulated")
    kept = KEPT / f"{name}.json"
    worse = regressions(json.loads(kept.read_text()) if kept.exists() else {}, pairs, head.get("order", {}))
    for line in worse:
        print(f"was OK: {line}", file=sys.stderr)
    otherwise = [
        f"{key}: {why}" for key, pair in pairs.items() for kind, why in pair["reasons"] if "explained as" in why
    ]
    otherwise += [f"{name}: {how}" for name, how in head.get("order", {}).items() if "explained as" in how]
    for room, _, consumers in LIBRARIES:
        takers = [name for name in consumers if (room, name) in here]
        if takers and head["driver"] == "simulated driver":
            otherwise += told_otherwise(room, takers)
    for line in otherwise:
        print(f"explained otherwise: {line}", file=sys.stderr)
    worse += otherwise
    saved = kept if options.keep and not worse else TARGET / "results" / kept.name
    saved.parent.mkdir(parents=True, exist_ok=True)
    saved.write_text(json.dumps({**head, "pairs": pairs}, indent=1, sort_keys=True) + "\n")
    saved.with_suffix(".md").write_text(text)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
