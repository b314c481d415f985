"""Runs the library's tests under Miri, by both models of aliasing, in shards that keep results of their own.

    python -m conformance.soak.miri                         the shards that have no result of these sources
    python -m conformance.soak.miri --again                 every shard
    python -m conformance.soak.miri --minutes 30            begins no other shard after this long
    python -m conformance.soak.miri --model tree view::load view::programs
                                                            these shards, whether they have a result or not

Miri checks provenance, uninitialised memory, leaks and data races; `view::programs` are random programs over the safe
functions. A shard is a module's tests. Its row in conformance/results/miri.tsv is written when it ends, or when its
time is over, with a digest of the library's sources and of these tests: a run that was ended goes on where it stood.
Exits with 1 unless each shard of both models has passed on these sources.

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
#: Those with `unsafe` first.
FOLDERS = ("view", "driver", "protocol")
FOR_TESTS = re.compile(r"/tests\.rs$|_tests\.rs$|^src/(partners|python)/")
#: The module of tests at the end of a file.
TESTS = re.compile(rb"#\[cfg\((?:all\()?test\b[^\n]*\nmod tests.*", re.DOTALL)
#: One shard on two busy cores: the longest takes a quarter of it.
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
    results, listed = kept(), shards()
    chosen = [(shard, model) for shard in asked.shards or listed for model in MODELS if asked.model in (None, model)]
    for shard, model in chosen:
        known = results.get((model, shard))
        if known is not None and is_right(known) and not asked.again and not asked.shards:
            continue
        if time.monotonic() - start > asked.minutes * 60:
            break
        results[model, shard] = run(model, shard)
        keep(results, listed)
        print(*astuple(results[model, shard]), sep="\t", flush=True)
    return told(results, listed)


def told(results: dict[tuple[str, str], Result], listed: list[str]) -> int:
    """Prints how far each model has come, and returns the exit code."""
    is_whole = True
    for model in MODELS:
        right = [result for (of, _), result in results.items() if of == model and is_right(result)]
        is_whole &= len(right) == len(listed)
        print(f"{model}: {len(right)} of {len(listed)} shards right, {sum(each.passed for each in right)} tests passed")
    return 0 if is_whole else 1


def is_right(result: Result) -> bool:
    return result.verdict == "right" and result.sources == digest(result.shard)


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
        elif not FOR_TESTS.search(file):
            read.append(TESTS.sub(b"", text))
    return hashlib.sha256(b"\0".join(read)).hexdigest()[:12]


def command(*arguments: str) -> list[str]:
    build = ["cargo", "+nightly", "miri", "test", "--quiet", "--jobs", "1", "--locked", "--target-dir", str(TARGET)]
    return [*build, "--package", "cai-dlpack", "--lib", "--features", "cai-dlpack/half", "--", *arguments]


def shards() -> list[str]:
    """Builds the tests, and returns their modules."""
    asked = subprocess.run(
        command("--list", "--format", "terse"),
        cwd=ROOT,
        env={**os.environ, "MIRIFLAGS": MODELS["stacked"]},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    names = [line.split("::") for line in asked.stdout.splitlines() if line.endswith(": test")]
    modules = {f"{name[0]}::{name[1]}" for name in names if name[0] in FOLDERS}
    return sorted(modules, key=lambda module: (FOLDERS.index(module.split("::")[0]), module))


def run(model: str, shard: str) -> Result:
    begun = time.monotonic()
    when, of = today(), commit()
    with subprocess.Popen(
        command("--format", "pretty", f"{shard}::"),
        cwd=ROOT,
        env={**os.environ, "MIRIFLAGS": MODELS[model]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
        signal.alarm(SECONDS)
        output = process.communicate()[0]
        signal.alarm(0)
    seconds = round(time.monotonic() - begun)
    passed = len(re.findall(r"\.\.\. ok$", output, re.MULTILINE))
    ignored = len(re.findall(r"\.\.\. ignored", output))
    note_ignored(output)
    verdict = "right"
    if process.returncode:
        print(output)
        last = re.findall(r"^test (\S+)(?!.*\.\.\. ok$)", output, re.MULTILINE)[-1:]
        how = "not ended" if seconds >= SECONDS else f"exit code {process.returncode}"
        verdict = f"WRONG: {how}, at {''.join(last) or 'none'}"
    return Result(model, shard, when, of, digest(shard), passed, ignored, seconds, verdict)


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


def keep(results: dict[tuple[str, str], Result], listed: list[str]) -> None:
    """Writes the rows of the modules that there are."""
    head = "\t".join(field.name for field in fields(Result))
    rows = ["\t".join(map(str, astuple(each))) for _, each in sorted(results.items()) if each.shard in listed]
    RESULTS.write_text("\n".join([head, *rows]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
