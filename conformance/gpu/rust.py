"""Runs the Rust tests that reach a driver, from programs that were built elsewhere (`make gpu-rust`) and carried in.

    python -m conformance.gpu.rust [--folder FOLDER] [WORD ...]        on a GPU
    python -m cai_conformance simulate -- python -m conformance.gpu.rust --simulated

Each test has a process of its own, and a minute. A line for each, in the order in which they end, says
`ok`, `WRONG` with what was found, or `not run` with the reason. WORD chooses the tests whose name has it. A test that
needs more of the driver than a GPU's can do (the simulator's log of calls, faults, counts of objects) says so itself:
see `Steered` in conformance/rust/simulator.rs. A race has its control within the test, which fails if the same without
an order is not lost. Exits with 1 if a test is wrong.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from conformance.gpu.facts import begin

FOLDER = Path("target/gpu-rust")
SECONDS = 60
#: What is worth most comes first, should the time of the machine end early; the other programs come after this one.
FIRST = "rust"
RACES = ("cudarc_orders", "cudarc_processes")
ORDER = (
    *("copies", "copies_of_all", "cudarc_guard", "cudarc_graph", "cudarc_captures", "cudarc_edges", "cudarc_readers"),
    *("cudarc_uses", "cudarc_live", "cudarc_cached"),
)
#: So many tests at once: most of a test is the start of a process. In a race time matters.
AT_ONCE = 4
RACES_AT_ONCE = 1 if "--simulated" in sys.argv else 2
#: The driver's queues, so that a stream that is held up does not hold up another one.
QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
ENVIRONMENT = {"CAI_DLPACK_GPU": "1", "RUST_BACKTRACE": "0", **QUEUES}
#: Where a toolkit or wheels have the libraries that candle and cubecl load; searched last.
TOOLKITS = ("/usr/local/cuda/lib64", f"{sysconfig.get_path('platlib')}/nvidia/*/lib")
#: Where the simulator has stand-ins for them (conformance/gpu/rust.sh).
STAND_INS = "target/candle-gpu/stand-ins"

#: Modules of the tests that no GPU can add to.
LEFT_OUT = {
    "uncompilable": "it runs the compiler",
}
#: Modules that need no steering of a driver: one line for each.
WHOLE = ("arrays", "fields", "guide", "neighbours", "parts", "shown", "typed")

SECOND_DEVICE = re.compile(r"CUDA_ERROR_INVALID_DEVICE")
NO_LIBRARY = re.compile(r"error while loading shared libraries: (\S+):")
NOT_RUN = re.compile(r"not run on a GPU: (.*)")
#: The rows of the same programs on the simulator, by `make gpu-rust`: the tests that need it say so there, and are not
#: begun on a GPU, where the start of a process takes seconds.
SIMULATED = "simulated.tsv"
STEERED = re.compile(r"(\S+)\t(\S+)\t(not run: .*, which the simulator alone has)")
NO_COMPILER = "these tests need a C compiler"
FOUND = re.compile(r"panicked at ([^\n]*):\n([^\n]*(?:\n +(?:left|right): [^\n]*)*)")


def call(program: Path, *arguments: str) -> tuple[int | None, str]:
    """Runs a program; its exit code, or None if it had to be stopped, and all that it printed."""
    patterns = (STAND_INS,) if "--simulated" in sys.argv else TOOLKITS
    found = [os.path.abspath(folder) for pattern in patterns for folder in sorted(glob.glob(pattern))]
    paths = [path for path in (os.environ.get("LD_LIBRARY_PATH"), *found) if path]
    environment = {**os.environ, **ENVIRONMENT, "LD_LIBRARY_PATH": ":".join(paths)}
    process = subprocess.Popen(
        # It ends by itself, too, if this process is stopped.
        ["timeout", "--signal=KILL", str(SECONDS + 5), program.resolve(), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said = process.communicate(timeout=SECONDS)[0]
        return process.returncode, said
    except subprocess.TimeoutExpired:
        where = threads(process.pid)
        # With the processes that it has started.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, where


def threads(session: int) -> str:
    """What the kernel tells of the threads of a session: the name of each, and where it waits."""
    found = []
    for task in map(Path, glob.glob("/proc/[0-9]*/task/[0-9]*")):
        try:
            # The name, in parentheses, may have any character.
            facts = (task / "stat").read_text().rpartition(")")[2].split()
            if int(facts[3]) == session:
                found.append(f"{(task / 'comm').read_text().strip()} {facts[0]} {(task / 'wchan').read_text()}")
        except OSError:  # It has ended.
            continue
    return ", ".join(found)


def outcome(code: int | None, said: str) -> str:
    if code is None:
        return f"WRONG: not over in {SECONDS} s: {said}"
    if code == 0:
        return "WRONG: no such test" if " 0 passed" in said else "ok"
    missing = NO_LIBRARY.search(said)
    if missing:
        return f"not run: there is no {missing[1]}"
    why = NOT_RUN.search(said)
    if why:
        return f"not run: {why[1]}"
    found = [" ".join(message.split()) for _, message in FOUND.findall(said)]
    where = [place.rpartition("/")[2] for place, _ in FOUND.findall(said)]
    if found and all(NO_COMPILER in message for message in found):
        return "not run: there is no C compiler that CC names"
    if found and SECOND_DEVICE.search(found[0]):
        return "not run: it needs a second device"
    ending = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    told = f"{found[0]} ({where[0]})" if found else " ".join(said.split())[-300:]
    return f"WRONG: {told}; {ending}"


def tests(program: Path) -> dict[str, bool]:
    """The names of a program's tests, and whether each is ignored."""
    _, said = call(program, "--list", "--format", "terse")
    _, ignored = call(program, "--list", "--format", "terse", "--ignored")
    names = [line.removesuffix(": test") for line in said.splitlines() if line.endswith(": test")]
    return {name: f"{name}: test" in ignored.splitlines() for name in names}


def steered(program: Path) -> dict[str, str]:
    """The tests of a program that need the simulator, and what they say."""
    kept = program.with_name(SIMULATED)
    if "--simulated" in sys.argv or not kept.is_file():
        return {}
    rows = map(STEERED.fullmatch, kept.read_text(encoding="utf-8").splitlines())
    return {row[2]: row[3] for row in rows if row and row[1] == program.name}


def run_tests(program: Path, words: list[str]) -> bool:
    """Runs a test program's tests; whether all are right."""
    all_right = True

    def line(name: str, found: str) -> None:
        nonlocal all_right
        all_right &= found.startswith(("ok", "not run: "))
        print(program.name, name, found, sep="\t", flush=True)

    code, said = call(program, "--list")
    if code != 0:
        line("its tests", outcome(code, said))
        return all_right
    every = tests(program)
    chosen = {name: is_ignored for name, is_ignored in every.items() if any(word in name for word in words or [""])}
    told = steered(program)
    by_module: dict[str, list[str]] = {}
    for name in chosen:
        if name in told:
            line(name, told[name])
            continue
        by_module.setdefault(name.split("::")[0], []).append(name)

    def one(name: str) -> str:
        return outcome(*call(program, name, "--exact", "--test-threads=1"))

    def run(modules: Iterable[str], at_once: int) -> None:
        names = [name for module in modules for name in by_module.pop(module, ()) if not chosen[name]]
        with ThreadPoolExecutor(at_once) as pool:
            running = {pool.submit(one, name): name for name in names}
            for done in as_completed(running):
                line(running[done], done.result())

    for module, reason in LEFT_OUT.items():
        if module in by_module:
            line(f"{module} ({len(by_module.pop(module))} tests)", f"not run: {reason}")
    run(RACES, RACES_AT_ONCE)
    run([*ORDER, *(module for module in by_module if module not in (*ORDER, *WHOLE))], AT_ONCE)
    for module in WHOLE:
        if module in by_module:
            count = len(by_module.pop(module))
            line(f"{module} ({count} tests)", outcome(*call(program, f"{module}::", "--test-threads=1")))
    return all_right


def run_example(program: Path) -> bool:
    """Runs a program that is no test: it ends well or it does not."""
    found = outcome(*call(program))
    print(program.name, "runs to its end", found, sep="\t", flush=True)
    return found == "ok"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="part of a test's name")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the programs are")
    parser.add_argument("--simulated", action="store_true", help="on the simulator")
    asked = parser.parse_args()
    begin(parser, asked.simulated)
    print("program\tcheck\toutcome", flush=True)
    programs = [path for path in asked.folder.glob("*") if path.is_file() and os.access(path, os.X_OK)]
    programs.sort(key=lambda path: (path.name != FIRST, path.name))
    if not programs:
        parser.error(f"no programs in {asked.folder}: make gpu-rust builds them, on a machine with Rust")
    right = [
        run_example(program) if program.name.startswith("example-") else run_tests(program, asked.words)
        for program in programs
    ]
    return int(not all(right))


if __name__ == "__main__":
    sys.exit(main())
