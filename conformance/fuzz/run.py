"""Fuzzes whole calls for a time; exits with 1 if an input breaks a promise or ends the process.

    python -m conformance.fuzz.run --seconds 30 [--seed 1] [--keep] [INPUT ...]

Inputs are run by workers: the input at hand lies in a file, so that one that ends the process is known. An input that
reaches new code is run again with its containers emptied after each collection in turn, goes on being changed, and is
written to the corpus with --keep. An input given by name is run alone.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import random
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

#: One input a line, in hex.
CORPUS = Path(__file__).with_name("corpus.txt")
LONGEST = 256


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


def work(seconds: float, seed: int, at_hand: Path, keep: bool) -> None:
    """Runs inputs in this process; the one at hand is in a file."""
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
    rng, pool = random.Random(seed), [bytes.fromhex(line) for line in CORPUS.read_text().splitlines()]
    queue, count, end = list(pool), 0, time.monotonic() + seconds
    at_hand.write_bytes(bytes(2 + LONGEST))
    with at_hand.open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:

        def run(data: bytes) -> bool:
            """Runs one input; returns whether it has reached new code."""
            nonlocal count
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


def guarded(seconds: float, seed: int, keep: bool) -> bytes | None:
    """Runs a worker; returns the input that has ended it, if one has."""
    with tempfile.TemporaryDirectory() as folder:
        at_hand = Path(folder) / "input"
        arguments = ["--worker", str(at_hand), "--seconds", f"{seconds:.1f}", "--seed", str(seed)]
        command = [sys.executable, "-X", "faulthandler", "-m", "conformance.fuzz.run", *arguments]
        ended = subprocess.run([*command, *(["--keep"] if keep else [])], check=False)
        if ended.returncode == 0:
            return None
        found = at_hand.read_bytes()
        return found[2 : 2 + int.from_bytes(found[:2], "little")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--worker", type=Path)
    parser.add_argument("inputs", nargs="*", type=Path)
    asked = parser.parse_args()
    if asked.inputs:
        from conformance.fuzz import target

        for path in asked.inputs:
            target.run(path.read_bytes())
        return 0
    if asked.worker is not None:
        try:
            work(asked.seconds, asked.seed, asked.worker, asked.keep)
        except BaseException:
            traceback.print_exc()
            return 1
        return 0
    failing = guarded(asked.seconds, asked.seed, asked.keep)
    if failing is None:
        return 0
    path = Path(tempfile.gettempdir()) / f"cai-dlpack-fuzz-{asked.seed}"
    path.write_bytes(failing)
    print(f"WRONG: {failing!r}\nrun it again: python -m conformance.fuzz.run {path}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
