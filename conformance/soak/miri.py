"""Runs the library's tests under Miri, by both models of aliasing, in shards that keep results of their own.

    python -m conformance.soak.miri                         the shards that have no result of these sources
    python -m conformance.soak.miri --again                 every shard
    python -m conformance.soak.miri --minutes 30            begins no other shard after this long
    python -m conformance.soak.miri --model tree view::load view::programs
                                                            these shards, whether they have a result or not

Miri checks provenance, uninitialised memory, leaks and data races; `view::programs` are random programs over the safe
functions. A shard is a module's tests; small ones run together, as Miri takes half a minute to begin. Its row in
conformance/results/miri.tsv is written when it ends, or when its time is over, with a digest of the library's sources
and of these tests: a run that was ended goes on where it stood. Exits with 1 unless each shard of both models has
passed on these sources.

Not run: tests on the simulator, which is a library in C, and on Python, neither of which is in a build without these
features; partners, which has no `unsafe` and reads files; and what the source marks as ignored under Miri: those are
in conformance/results/miri-ignored.tsv with their reasons. Needs a nightly compiler:
`rustup toolchain install nightly --component miri,rust-src`.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from functools import cache
from pathlib import Path

from conformance.provenance import commit, today

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute() / "miri"
RESULTS = ROOT / "conformance" / "results" / "miri.tsv"
IGNORED = ROOT / "conformance" / "results" / "miri-ignored.tsv"
#: A pointer that crosses C's borders as a number is made a pointer again by `with_exposed_provenance`: no warning.
MODELS = {"stacked": "-Zmiri-permissive-provenance", "tree": "-Zmiri-permissive-provenance -Zmiri-tree-borrows"}
FOLDERS = ("view", "share", "driver", "protocol", "interop")
#: What no other shard runs, or the build does not have.
LEFT_OUT = re.compile(
    r"/tests\.rs$|_tests\.rs$|/programs(/|\.rs$)|/simulat(ed|or)\.rs$|^src/(partners|python|interop/cudarc)(/|\.rs$)"
)
#: The module of tests of a file, which may be declared before its end.
TESTS = re.compile(rb"\s*#\[cfg\((?:all\()?test\b[^\n]*\nmod tests(?:;\s*|\s*\{.*)", re.DOTALL)
#: About this many tests run in one process, for at most so long.
TOGETHER = 60
SECONDS = 1800


@dataclass
class Result:
    model: str
    shard: str
    date: str
    commit: str
    sources: str
    passed: int
    ignored: int
    #: Of the process, which ran others too.
    seconds: int
    verdict: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("shards", nargs="*")
    asked = parser.parse_args()
    start = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    results, listed = kept(), shards()
    for model in [asked.model] if asked.model else MODELS:
        missing = asked.shards or [
            shard for shard in listed if asked.again or not is_right(results.get((model, shard)))
        ]
        for together in batches(missing, listed):
            if time.monotonic() - start > asked.minutes * 60:
                break
            for result in run(model, together, listed):
                results[model, result.shard] = result
                print(*astuple(result), sep="\t", flush=True)
            keep(results, listed)
    return told(results, listed)


def batches(shards: list[str], listed: Counter[str]) -> Iterator[list[str]]:
    """Parts shards into runs of about `TOGETHER` tests."""
    batch: list[str] = []
    for shard in shards:
        if batch and sum(listed[each] for each in [*batch, shard]) > TOGETHER:
            yield batch
            batch = []
        batch.append(shard)
    if batch:
        yield batch


def told(results: dict[tuple[str, str], Result], listed: Counter[str]) -> int:
    """Prints how far each model has come, and returns the exit code."""
    is_whole = True
    for model in MODELS:
        right = [result for (of, _), result in results.items() if of == model and is_right(result)]
        is_whole &= len(right) == len(listed)
        print(f"{model}: {len(right)} of {len(listed)} shards right, {sum(each.passed for each in right)} tests passed")
    return 0 if is_whole else 1


def is_right(result: Result | None) -> bool:
    return result is not None and result.verdict == "right" and result.sources == digest(result.shard)


@cache
def digest(shard: str) -> str:
    """Returns a digest of the library and of the shard's own tests."""
    asked = ["git", "ls-files", "-z", "src", "Cargo.toml", "Cargo.lock"]
    files = subprocess.run(asked, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split("\0")
    own = f"src/{shard.replace('::', '/')}"
    read = []
    for file in sorted(filter(None, files)):
        text = (ROOT / file).read_bytes()
        if file.startswith((f"{own}/", f"{own}.rs")):
            read.append(text)
        elif not LEFT_OUT.search(file):
            read.append(TESTS.sub(b"", text))
    return hashlib.sha256(b"\0".join(read)).hexdigest()[:12]


def command(*arguments: str) -> list[str]:
    build = ["cargo", "+nightly", "miri", "test", "--quiet", "--jobs", "1", "--locked", "--target-dir", str(TARGET)]
    features = "cai-dlpack/half,cai-dlpack/ndarray,cai-dlpack/num-complex,cai-dlpack/ipc"
    return [*build, "--package", "cai-dlpack", "--lib", "--features", features, "--", *arguments]


def shards() -> Counter[str]:
    """Builds the tests, and returns how many each module has: those with `unsafe` first."""
    asked = subprocess.run(
        command("--list", "--format", "terse"),
        cwd=ROOT,
        env={**os.environ, "MIRIFLAGS": MODELS["stacked"]},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    names = [line.split("::") for line in asked.stdout.splitlines() if line.endswith(": test")]
    modules = [f"{name[0]}::{name[1]}" for name in names if name[0] in FOLDERS]
    return Counter(sorted(modules, key=lambda module: (FOLDERS.index(module.split("::")[0]), module)))


def run(model: str, together: list[str], listed: Counter[str]) -> Iterator[Result]:
    """Runs shards in one process, and returns the results of those that it has come to."""
    begun = time.monotonic()
    when, of = today(), commit()
    with subprocess.Popen(
        command("--format", "pretty", *(f"{shard}::" for shard in together)),
        cwd=ROOT,
        env={**os.environ, "MIRIFLAGS": MODELS[model]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
        signal.alarm(SECONDS)
        try:
            output = process.communicate()[0]
        finally:  # also if this run is ended
            signal.alarm(0)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    seconds = round(time.monotonic() - begun)
    note_ignored(output)
    if process.returncode:
        print(output)
    all_ended = "test result: ok." in output
    for shard in together:
        lines = re.findall(rf"^test {shard}::.*$", output, re.MULTILINE)
        passed = sum(line.endswith("... ok") for line in lines)
        ignored = sum("... ignored" in line for line in lines)
        verdict = "right"
        if process.returncode and all_ended:
            # What leaks is told once the last test has ended, and not whose it is.
            verdict = f"WRONG: exit code {process.returncode}, after the last test of {', '.join(together)}"
        elif passed + ignored < listed[shard]:
            how = "not ended" if seconds >= SECONDS else f"exit code {process.returncode}"
            other = [line.split()[1] for line in lines if not re.search(r"\.\.\. (ok$|ignored)", line)]
            verdict = f"WRONG: {how}, at {', '.join(other) or 'no test'}"
        # Not one that an earlier shard's end has kept from beginning.
        if lines:
            yield Result(model, shard, when, of, digest(shard), passed, ignored, seconds, verdict)


def note_ignored(output: str) -> None:
    known = dict(line.split("\t") for line in IGNORED.read_text().splitlines()) if IGNORED.exists() else {}
    known |= dict(re.findall(r"^test (\S+) \.\.\. ignored, (.*)$", output, re.MULTILINE))
    if known:
        IGNORED.write_text("".join(f"{name}\t{why}\n" for name, why in sorted(known.items())))


def kept() -> dict[tuple[str, str], Result]:
    if not RESULTS.exists():
        return {}
    results = {}
    for line in RESULTS.read_text().splitlines()[1:]:
        model, shard, date, of, sources, passed, ignored, seconds, verdict = line.split("\t")
        counts = int(passed), int(ignored), int(seconds)
        results[model, shard] = Result(model, shard, date, of, sources, *counts, verdict)
    return results


def keep(results: dict[tuple[str, str], Result], listed: Counter[str]) -> None:
    """Writes the rows of the modules that there are."""
    head = "\t".join(field.name for field in fields(Result))
    rows = ["\t".join(map(str, astuple(each))) for _, each in sorted(results.items()) if each.shard in listed]
    RESULTS.write_text("\n".join([head, *rows]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
