"""Fuzzes whole calls for a time; exits with 1 if an input breaks a promise or ends the process.

    python -m conformance.fuzz.run --seconds 30 [--seed 1] [--keep] [INPUT ...]

Inputs are run by workers, on the simulated driver: the input at hand lies in a file, so that one that ends the process,
or does not end, is known. An input that reaches new code is run again with its containers emptied after each collection
in turn, goes on being changed, and is written to the corpus with --keep. Other workers have their inputs run by
finalisers and functions of `atexit` while the interpreter ends. An input given by name is run alone, and at the end of
an interpreter.
"""

from __future__ import annotations

import argparse
import atexit
import faulthandler
import gc
import mmap
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

#: One input a line, in hex.
CORPUS = Path(__file__).with_name("corpus.txt")
LONGEST = 256
#: The seconds after which an input is taken for one that never ends.
PATIENCE = 60
#: The inputs that one interpreter runs while it ends, and the part of the time that is for such.
AT_THE_END, PART = 60, 0.25


def mutated(rng: random.Random, pool: list[bytes]) -> bytes:
    data = bytearray(rng.choice(pool))
    if rng.random() < 0.1:
        data = data[: rng.randrange(len(data) + 1)] + rng.choice(pool)[rng.randrange(8) :]
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at:at] = rng.randbytes(1)
            case 1:
                del data[at : at + 1]
            case 2:
                data[at : at + 1] = bytes([rng.choice([0, 3, 7, 15, 255, rng.randrange(256)])])
            case _:
                data += rng.randbytes(8)
    return bytes(data[:LONGEST])


def work(given: list[bytes], seconds: float, seed: int, at_hand: Path, keep: bool) -> None:
    """Runs the inputs that are given, or those that are kept and others made of them; the one at hand is in a file."""
    import cai_dlpack._core as core

    from conformance.fuzz import target
    from conformance.fuzz.coverage import Counters

    sys.setrecursionlimit(400)
    try:
        counters: Counters | None = Counters(Path(core.__file__))
    except LookupError as error:
        counters = None
        print(f"without coverage: {error}", flush=True)
    gc.collect()
    gc.freeze()  # so that the many collections are short
    rng, pool = random.Random(seed), given or kept()
    queue, count, end = list(pool), 0, time.monotonic() + (0 if given else seconds)
    armed = end - seconds - PATIENCE
    with at_hand.open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:

        def run(data: bytes) -> bool:
            """Runs one input; returns whether it has reached new code."""
            nonlocal count, armed
            if time.monotonic() > armed + 1:
                armed = time.monotonic()
                faulthandler.dump_traceback_later(PATIENCE, exit=True)
            shared[:2] = len(data).to_bytes(2, "little")
            shared[2 : 2 + len(data)] = data
            if counters is not None:
                counters.clear()
            target.run(data)
            count += 1
            return counters is not None and counters.is_new()

        while queue or time.monotonic() < end:
            data = queue.pop() if queue else mutated(rng, pool)
            if run(data):
                if data not in pool:
                    pool.append(data)
                for struck in target.strikes(data):
                    run(struck)
    if keep:
        CORPUS.write_text("".join(f"{data.hex()}\n" for data in pool))
    reached = "" if counters is None else f", {counters.reached()} of {len(counters.seen)} counters reached"
    print(f"{count} inputs, {len(pool)} kept{reached}", flush=True)


class Last:
    """Runs an input at its end, whatever of the interpreter is left by then."""

    def __init__(self, target: Any, data: bytes, shared: mmap.mmap) -> None:
        self.target, self.data, self.shared = target, data, shared

    def __del__(self, os: Any = os, sys: Any = sys, suppress: Any = suppress) -> None:
        self.shared[: 2 + len(self.data)] = len(self.data).to_bytes(2, "little") + self.data
        try:
            with suppress(*self.target.ALLOWED_TOO, NameError):
                self.target.run_at_the_end(self.data)
        except BaseException as error:
            os.write(2, f"while the interpreter ends: {error!r}\n".encode())
            os._exit(1)


def end(inputs: list[bytes], at_hand: Path, seed: int = 0) -> None:
    """Leaves objects that run inputs when this interpreter ends: of a module, of a cycle, and of `atexit`.

    By an odd seed none is of `atexit`: what the library makes at its first call is made without an interpreter then.
    """
    from conformance.fuzz import target

    gc.disable()
    sys.setrecursionlimit(400)
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    shared = mmap.mmap(os.open(at_hand, os.O_RDWR), 0)
    for number, data in enumerate(inputs):
        last: Any = Last(target, data, shared)
        match number % (2 if seed % 2 else 3):
            case 0:
                sys.modules["__main__"].__dict__[f"last_{number}"] = last
            case 1:
                last.me = last
            case _:
                atexit.register(last.__del__)
        del last


def guarded(mode: str, *arguments: str) -> bytes | None:
    """Runs a worker on the simulated driver; returns the input that has ended it, if one has."""
    with tempfile.TemporaryDirectory() as folder:
        at_hand = Path(folder) / "input"
        at_hand.write_bytes(bytes(2 + LONGEST))
        simulated = [sys.executable, "-m", "cai_conformance", "simulate", "--"]
        command = [sys.executable, "-X", "faulthandler", "-m", "conformance.fuzz.run", mode, str(at_hand), *arguments]
        if subprocess.run([*simulated, *command], check=False).returncode == 0:
            return None
        found = at_hand.read_bytes()
        return found[2 : 2 + int.from_bytes(found[:2], "little")]


def inputs_for_the_end(seed: int) -> list[bytes]:
    rng, pool = random.Random(seed), kept()
    return [rng.choice(pool) if rng.random() < 0.5 else mutated(rng, pool) for _ in range(AT_THE_END)]


def kept() -> list[bytes]:
    return [bytes.fromhex(line) for line in CORPUS.read_text().splitlines()]


def searched(seconds: float, seed: int, keep: bool) -> bytes | None:
    """Runs workers for a time; returns an input that fails."""
    until = time.monotonic() + seconds
    arguments = ["--seconds", f"{seconds * (1 - PART):.1f}", "--seed", str(seed), *(["--keep"] if keep else [])]
    failing, ended = guarded("--worker", *arguments), 0
    while failing is None and (ended == 0 or time.monotonic() < until):
        failing = guarded("--end", "--seed", str(seed + ended))
        ended += 1
    print(f"{ended} interpreters have ended with {AT_THE_END} inputs each", flush=True)
    return failing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--end", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("inputs", nargs="*", type=Path)
    asked = parser.parse_args()
    given = [path.read_bytes() for path in asked.inputs]
    try:
        if asked.end is not None:
            end(given or inputs_for_the_end(asked.seed), asked.end, asked.seed)
            return 0
        if asked.worker is not None:
            work(given, asked.seconds, asked.seed, asked.worker, asked.keep)
            return 0
    except BaseException:
        traceback.print_exc()
        return 1
    if given:
        names = [str(path) for path in asked.inputs]
        return int(any(guarded(mode, *names) is not None for mode in ("--worker", "--end")))
    failing = searched(asked.seconds, asked.seed, asked.keep)
    if failing is None:
        return 0
    path = Path(tempfile.gettempdir()) / f"cai-dlpack-fuzz-{asked.seed}"
    path.write_bytes(failing)
    print(f"WRONG: {failing!r}\nrun it again: python -m conformance.fuzz.run {path}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
