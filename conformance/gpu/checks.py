"""Checks what the library promises at its edges: captures, copies, contexts, readers on the host.

    python -m conformance.gpu.checks [PART ...]         on a GPU
    python -m cai_conformance simulate -- python -m conformance.gpu.checks --simulated

Each check has a process of its own. A line for each says `ok`, `WRONG` with what was found, or `not run` with the
reason; and what the control found: the same check with producers that declare no stream, so that nothing is ordered.
There a check of an order must fail (`lost`): else its race cannot be lost, and it proves nothing. Exits with 1 where a
check is wrong, or its control is not lost.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback

from conformance.gpu.child import answer
from conformance.gpu.facts import begin
from conformance.gpu.machine import SlowTrack, machine
from conformance.gpu.registry import CHECKS, Check, NotRun

TRIES = 5
PARTS = ("captures", "copies", "contexts", "host_readers", "processes")


def outcome(check: Check, declares: bool) -> str:
    try:
        track = SlowTrack(machine())
        track.seconds, track.declares = 0.1, declares
        track.load()
        check(track)
    except NotRun as reason:
        return f"not run: {reason}"
    except Exception as error:  # whatever a driver or the library says
        where = traceback.extract_tb(error.__traceback__)[-1]
        found = " ".join(str(error).split())
        return f"WRONG: {type(error).__name__}: {found} ({where.name}, line {where.lineno})"
    return "ok"


def can_be_lost(check: Check) -> bool:
    """Whether one of a few tries without an order fails: on a busy machine a slow write may be over in time."""
    return any(answer(lambda: outcome(check, False)) != "ok" for _ in range(TRIES))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--simulated", action="store_true", help="on the simulator")
    asked = parser.parse_args()
    begin(parser, asked.simulated)
    failed = False
    print("part\tcheck\toutcome\tcontrol", flush=True)
    for part in asked.parts or PARTS:
        importlib.import_module(f"conformance.gpu.{part}")
        for name, (check, orders) in CHECKS.pop(part).items():
            found = answer(lambda check=check: outcome(check, True))  # type: ignore[misc]
            control = "no order"
            if orders and found == "ok":
                control = "lost" if can_be_lost(check) else "NOT LOST"
            print(part, name, found, control, sep="\t", flush=True)
            failed |= not found.startswith(("ok", "not run: ")) or control == "NOT LOST"
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
