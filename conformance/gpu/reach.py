"""Sends device memory by the engines of docs/reach.md, each as it is installed.

    python -m conformance.gpu.reach [ENGINE ...]        on a GPU
    python -m cai_conformance simulate -- python -m conformance.gpu.reach --simulated

Each check has a process of its own, and 45 seconds. A line for each says `ok`, `WRONG` with what was found, or `not
run` with the reason; what the control found, in which producers declare no stream; and what was seen beside that. A
control must lose its race (`lost`): memory is sent before its stream has written it. Exits with 1 where a check is
wrong, or its control is not lost.

On the simulator the engines' own transports for device memory are left out: page-locked memory takes its place, and a
double that of NCCL.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from conformance.gpu.facts import begin
from conformance.gpu.pending import UNDECLARED, Lost, track
from conformance.gpu.registry import CHECKS, NotRun
from conformance.matrix.installed import versions
from conformance.tests.interpreter.process import ROOT
from conformance.tests.reach.peer import Raised

SECONDS = 45
TRIES = 3
#: By module, in the order in which they run.
ENGINES = {
    "dask": "reach_dask",
    "ucxx": "reach_pointers",
    "nccl": "reach_pointers",
    "nixl": "reach_pointers",
    "mpi4py": "reach_pointers",
    "pickle": "reach_copies",
    "copies": "reach_copies",
    "share": "reach_share",
}
CARRIERS = {
    *("dask", "distributed", "ucxx-cu13", "libucx-cu13", "distributed-ucxx-cu13", "rmm-cu13", "nixl-cu13"),
    *("mpi4py", "mpich", "nvidia-nccl-cu13"),
}
ANSWER = "answer of the check:\t"


class Found(NamedTuple):
    outcome: str
    seen: str = ""


def load(engine: str) -> None:
    importlib.import_module(f"conformance.gpu.{ENGINES[engine]}")


def outcome(engine: str, name: str) -> Found:
    """Runs a check in this process."""
    try:
        seen = CHECKS[engine][name].run(track())
    except NotRun as reason:
        return Found(f"not run: {reason}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(("conformance", "cai_")):
            return wrong(error)
        return Found(f"not run: {error.name} is not installed")
    except Exception as error:  # whatever a driver, an engine or the library says
        traceback.print_exc()
        return wrong(error)
    return Found("ok", str(seen or ""))


def wrong(error: Exception) -> Found:
    if isinstance(error, Lost):
        return Found(f"WRONG: lost: {error}")
    if isinstance(error, Raised) and error.args[0] == Lost.__name__:
        return Found(f"WRONG: lost: {error.args[1].strip().rpartition(': ')[2]}")
    where = traceback.extract_tb(error.__traceback__)[-1]
    found = " ".join(str(error).split())[:600]
    return Found(f"WRONG: {type(error).__name__}: {found} ({where.name}, line {where.lineno})")


def apart(engine: str, name: str, declares: bool) -> Found:
    """Runs a check in a process of its own, and ends whatever processes that has left."""
    command = [sys.executable, "-m", "conformance.gpu.reach", "--one", engine, name]
    environment = os.environ if declares else {**os.environ, UNDECLARED: "1"}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        with suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS)
        code = process.poll()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.seek(0)
        lines = output.read().splitlines()
    answers = [line.removeprefix(ANSWER).split("\t") for line in lines if line.startswith(ANSWER)]
    ending = "" if code == 0 else f"the process ended by {code}" if code is not None else f"no end in {SECONDS} s"
    if not answers:
        found = Found(f"WRONG: {ending or 'the process has not answered'}")
    else:
        found = Found(*answers[-1])
        if ending:
            found = Found(found.outcome, "; ".join(filter(None, (found.seen, f"after its answer {ending}"))))
    if found.outcome.startswith("WRONG") and (declares or "lost" not in found.outcome):
        said = "\n".join(f"    {line}" for line in lines[-40:] if not line.startswith(ANSWER))
        print(f"-- {engine}: {name}{'' if declares else ' (control)'}: {found.outcome}\n{said}", file=sys.stderr)
    return found


def controlled(engine: str, name: str) -> str:
    """How the check ends with producers that declare no stream: `lost`, as it must, or what else it finds."""
    for _ in range(TRIES):
        found = apart(engine, name, False).outcome
        if found != "ok":
            return found.removeprefix("WRONG: ")
    return "NOT LOST"


def line(engine: str, name: str) -> list[str]:
    found = apart(engine, name, True)
    control = "no order"
    if CHECKS[engine][name].orders and found.outcome == "ok":
        control = controlled(engine, name)
    return [engine, name, found.outcome, control, found.seen]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=", ".join(ENGINES))
    parser.add_argument("--simulated", action="store_true", help="on the simulator")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="checks that run at once")
    parser.add_argument("--one", nargs=2, metavar=("ENGINE", "CHECK"), help="a check, in this process")
    asked = parser.parse_args()
    if asked.one:
        load(asked.one[0])
        print(ANSWER + "\t".join(outcome(*asked.one)), flush=True)
        return 0
    begin(parser, asked.simulated)
    carriers = [f"{name} {version}" for name, version in versions(CARRIERS).items() if version]
    print("# engines: " + ", ".join(carriers), flush=True)
    print("engine\tcheck\toutcome\tcontrol\tseen", flush=True)
    checks = []
    for engine in asked.engines or ENGINES:
        load(engine)
        checks += [(engine, name) for name in CHECKS[engine]]
    failed = False
    with ThreadPoolExecutor(asked.jobs) as pool:
        for found in pool.map(lambda each: line(*each), checks):
            print("\t".join(found), flush=True)
            failed |= not found[2].startswith(("ok", "not run: ")) or not found[3].startswith(("no order", "lost"))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
