"""Checks what the library promises at its edges, and between the libraries themselves.

    python -m conformance.gpu.checks [PART ...]         on a GPU
    python -m cai_conformance simulate -- python -m conformance.gpu.checks --simulated

Each check has a process of its own, but for `libraries`, which take long to start. A line for each says `ok`, `WRONG`
with what was found, or `not run` with the reason; and what the control found: the same check with producers that
declare no stream, so that nothing is ordered. There a check of an order must fail (`lost`): else its race cannot be
lost, and it proves nothing. Exits with 1 where a check is wrong, or its control is not lost.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator

from cai_conformance.library import loaded

from conformance.gpu.child import answer, answers
from conformance.gpu.facts import begin
from conformance.gpu.machine import SlowTrack, machine
from conformance.gpu.registry import CHECKS, Check, NotRun, Run

TRIES = 5
PARTS = ("captures", "copies", "contexts", "host_readers", "processes", "libraries")


def outcome(run: Run, declares: bool) -> str:
    try:
        track = SlowTrack(machine())
        track.seconds, track.declares = 0.1, declares
        track.load()
        run(track)
    except NotRun as reason:
        return f"not run: {' '.join(str(reason).split())}"
    except Exception as error:  # whatever a driver or the library says
        where = traceback.extract_tb(error.__traceback__)[-1]
        found = " ".join(str(error).split())
        return f"WRONG: {type(error).__name__}: {found} ({where.name}, line {where.lineno})"
    return "ok"


def in_a_process(run: Run, declares: bool) -> str:
    return answer(lambda: outcome(run, declares))


def tried(check: Check, ask: Callable[[Run, bool], str]) -> str:
    """Returns the outcome and that of the control, of which one of a few tries without an order must fail.

    On a busy machine a slow write may be over in time.
    """
    found, control = ask(check.run, True), "no order"
    if check.orders and found == "ok":
        control = "lost" if any(ask(check.run, False) != "ok" for _ in range(TRIES)) else "NOT LOST"
    return f"{found}\t{control}"


def has_context() -> bool:
    """Returns whether the context still works, once the device has done its work."""
    driver = loaded()
    return driver is not None and driver.cuCtxSynchronize() == 0


def lines(checks: Iterable[Check]) -> Iterator[str]:
    """Returns outcome and control of checks that run together, or of one that has processes of its own."""
    listed = list(checks)
    if listed[0].together is None:
        yield from (tried(check, in_a_process) for check in listed)
        return
    for found in answers([lambda check=check: tried(check, outcome) for check in listed], can_go_on=has_context):  # type: ignore[misc]
        yield found if "\t" in found else f"{found}\tno order"


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
        for _, group in itertools.groupby(CHECKS.pop(part).items(), lambda item: item[1].together):
            names, checks = zip(*group, strict=True)
            for name, line in zip(names, lines(checks), strict=True):
                print(part, name, line, sep="\t", flush=True)
                found, _, control = line.partition("\t")
                failed |= not found.startswith(("ok", "not run: ")) or control == "NOT LOST"
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
