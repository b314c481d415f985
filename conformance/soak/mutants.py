"""Runs the tests against the mutants of `protocol/`, `driver/` and `view/` that cargo-mutants lists.

    python -m conformance.soak.mutants                              all of them
    python -m conformance.soak.mutants --sample 300 --seed 1        a random sample, with the interval of its rate
    python -m conformance.soak.mutants --survivors                  those that survived the run before

cargo-mutants builds once for each mutant, which is days for all. Here hundreds are in one build, in a copy of the tree:
a function `f` becomes `if is(17) { return BODY WITH THE CHANGE } BODY`, and a file that the process maps chooses. What
does not compile so is left out and counted: a mutant that no build admits, or one outside a function.

Each test is run once by itself, without a mutant, and notes which ones it reaches (`reached.py`). A mutant is given to
the Rust tests that reach it, the shortest first, and one that these leave alive to the Python tests that do, for as
long as `LONGEST` allows. A test that fails twice kills it, or the end of the process, or a time-out.

Why a survivor is left alive stands in conformance/soak/mutants.tsv, by its name without the place: mutants that are
the same program, and those that only what no test has would notice. The result counts both.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Protocol

from conformance.provenance import commit, today
from conformance.soak import reached
from conformance.soak.reached import Record, Switch

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute() / "mutants"
TREE = TARGET / "tree"
RESULTS = ROOT / "conformance" / "results" / "mutants.txt"
FOLDERS = ("protocol", "driver", "view")
#: What the copy of the tree needs to build.
SOURCES = ("Cargo.toml", "Cargo.lock", "build.rs", "README.md", "src", "bindings", "conformance/simulator",
           "conformance/rust", "docs")  # fmt: skip
PACKAGE = TARGET / "package"
#: The names of those that earlier builds have left out, so that the next one is right at once.
NOT_COMPILING = TARGET / "not-compiling.txt"
REASONS = ROOT / "conformance" / "soak" / "mutants.tsv"
REACHED = TARGET / "reached"
#: Not about the mutants: what must not compile, and a page that is compared with the tree.
NOT = ("--skip", "uncompilable", "--skip", "partners::page")
PYTEST = [sys.executable, "-m", "cai_conformance", "simulate", "--", sys.executable, "-m", "pytest", "-q",
          "-p", "no:cacheprovider"]  # fmt: skip
#: How many mutants one build has: of all of them the compiler needs more memory than there is.
TOGETHER = 400
#: How many Rust tests one process runs, and for how many seconds the Python tests of a mutant may take.
MANY = 40
LONGEST = 40.0
#: How the reason of a mutant begins that no test could notice.
EQUIVALENT = "equivalent: "
#: The extensions: what the library of each crate is called in the package.
CRATES = {"cai-dlpack-python": "cai_dlpack/_core", "cai-example": "cai_example", "cai-example-peer": "cai_example_peer"}
FEATURES = "pyo3,cudarc,half,ndarray,num-complex,cudarc/cuda-12020"
#: The place in a mutant's name.
PLACE = re.compile(r":\d+:\d+: ")
#: A function, below its documentation and attributes.
HEAD = re.compile(
    r"""^[ \t]*(?:pub(?:\([^)]*\))? +)?(?:const +|unsafe +|extern "C(?:-unwind)?" +)*fn\s""", re.MULTILINE
)
#: The tests are run some hundred times.
SETTINGS = {
    "RUSTC_BOOTSTRAP": "1",
    "RUSTFLAGS": "--cap-lints allow",
    "CARGO_PROFILE_DEV_DEBUG": "0",
    "CARGO_PROFILE_DEV_OPT_LEVEL": "0",
    "CARGO_INCREMENTAL": "0",
}
#: Files and functions that only tests have.
FOR_TESTS = re.compile(r"/tests\.rs$|_tests\.rs$|/programs/|/(programs|script|simulated|simulator|loom|orders)\.rs$")

FEATURE_GATES = "#![feature(core_intrinsics, const_eval_select)]\n#![allow(internal_features)]\n"
#: Chooses the mutant, in constant functions too: never at compile time. The file is that of `reached.py`.
SWITCH = f"""
/// Chooses the mutant, and notes which ones are reached.
pub(crate) mod mutant {{
    use core::ffi::c_void;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{{AtomicPtr, AtomicU32, AtomicU8, Ordering}};
    static FILE: AtomicPtr<AtomicU8> = AtomicPtr::new(core::ptr::null_mut());
    unsafe extern "C" {{
        fn mmap(at: *mut c_void, size: usize, access: i32, flags: i32, file: i32, from: i64) -> *mut c_void;
    }}
    pub(crate) const fn is(number: u32) -> bool {{
        core::intrinsics::const_eval_select((number,), never, chosen)
    }}
    const fn never(_: u32) -> bool {{
        false
    }}
    fn chosen(number: u32) -> bool {{
        let mut file = FILE.load(Ordering::Acquire);
        if file.is_null() {{
            file = opened();
            FILE.store(file, Ordering::Release);
        }}
        unsafe {{
            (*file.add(4 + number as usize)).store(1, Ordering::Relaxed);
            (*file.cast::<AtomicU32>()).load(Ordering::Relaxed) == number
        }}
    }}
    fn opened() -> *mut AtomicU8 {{
        let mut options = std::fs::OpenOptions::new();
        let file = std::env::var_os("{reached.VARIABLE}").and_then(|at| options.read(true).write(true).open(at).ok());
        let (flags, number) = file.as_ref().map_or((0x22, -1), |file| (1, file.as_raw_fd()));
        unsafe {{ mmap(core::ptr::null_mut(), {reached.SIZE}, 3, flags, number, 0).cast() }}
    }}
}}
"""


@dataclass(frozen=True)
class Mutant:
    """A change of cargo-mutants: the text from `start` to `end` of a file becomes `replacement`, in a function."""

    number: int
    name: str
    file: str
    start: int
    end: int
    replacement: str
    body: tuple[int, int]

    @property
    def key(self) -> str:
        """The name without line and column, which move."""
        return PLACE.sub(": ", self.name)

    @property
    def folder(self) -> str:
        return self.file.split("/")[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--survivors", action="store_true", help="only those that the kept result lists")
    parser.add_argument("--under", default="src/", help="only mutants of files whose path begins so")
    asked = parser.parse_args()

    provenance = f"{today()}, commit {commit()}"
    listed = mutants()
    chosen = [mutant for mutant in listed if mutant.file.startswith(asked.under)]
    if asked.survivors:
        before = {PLACE.sub(": ", line.strip()) for line in RESULTS.read_text().splitlines()}
        chosen = [mutant for mutant in chosen if mutant.key in before]
    if asked.sample:
        chosen = random.Random(asked.seed).sample(chosen, min(asked.sample, len(chosen)))
    verdicts: dict[Mutant, Verdict] = {}

    def keep() -> None:  # after each build: a run that is ended keeps what it has found
        RESULTS.write_text("\n".join(report(provenance, asked, len(chosen), verdicts)) + "\n")

    for at in range(0, len(chosen), TOGETHER):
        verdicts |= given(Rust(chosen[at : at + TOGETHER]))
        keep()
    alive = [mutant for mutant, verdict in verdicts.items() if verdict.killer is None]
    for at in range(0, len(alive), TOGETHER):
        # A mutant that does not compile with Python's features stays alive.
        for mutant, verdict in given(Python(alive[at : at + TOGETHER])).items():
            verdicts[mutant] = Verdict(verdict.killer, f"{verdicts[mutant].reach}, {verdict.reach}")
        keep()
    print(RESULTS.read_text())
    return 0


@dataclass(frozen=True)
class Verdict:
    """The test that has killed a mutant, if one has, and how many reach it."""

    killer: str | None
    reach: str


def given(tests: Tests) -> dict[Mutant, Verdict]:
    """Gives the mutants of a build to its tests."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        verdicts = {}
        for mutant, failed in zip(tests.mutants, pool.map(tests.killer, tests.mutants), strict=True):
            killer = f"killed by a {tests.kind} test ({failed})" if failed else None
            verdicts[mutant] = Verdict(killer, tests.count(mutant))
            print(f"{killer or 'alive'}: {mutant.name}", flush=True)
    return verdicts


# --- the mutants, and their builds ---


def mutants() -> list[Mutant]:
    """Returns those of functions, as cargo-mutants lists them."""
    files = [flag for folder in FOLDERS for flag in ("--file", f"src/{folder}/**")]
    command = ["cargo", "mutants", "--list", "--json", "--package", "cai-dlpack", *files]
    listed: list[dict[str, Any]] = json.loads(
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    )
    found = []
    for number, each in enumerate(listed, 1):
        if FOR_TESTS.search(each["file"]) or each["function"] is None:
            continue
        if "impl " in each["function"]["return_type"]:
            continue  # of one type, which both branches would have to return
        text = (ROOT / each["file"]).read_text()
        start, end = offset(text, each["span"]["start"]), offset(text, each["span"]["end"])
        function = each["function"]["span"]
        attributes = text.rfind("\n", 0, offset(text, function["start"])) + 1
        head = HEAD.search(text, attributes)
        assert head
        above = text[attributes : head.start()]
        if "run by the compiler" in above or "cfg(miri)" in above:
            continue  # where no variable chooses, or nothing is built
        body = opening(text, head.start()), offset(text, function["end"])
        if body[0] >= start:
            continue  # in the head: the length of an array
        found.append(Mutant(number, each["name"], each["file"], start, end, each["replacement"], body))
    return found


def offset(text: str, place: dict[str, int]) -> int:
    lines = text.splitlines(keepends=True)
    return sum(len(line) for line in lines[: place["line"] - 1]) + place["column"] - 1


def opening(text: str, at: int) -> int:
    """Returns the place of the brace that opens a body: the first that stands in no parentheses."""
    depth = 0
    while True:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(text[at], 0)
        if text[at] == "{" and not depth:
            return at
        at += 1


def built(mutants: list[Mutant], build: Callable[[], set[tuple[str, int]]]) -> list[Mutant]:
    """Builds those that compile, and returns them; each round leaves out what the compiler complained of."""
    known = set(NOT_COMPILING.read_text().splitlines()) if NOT_COMPILING.exists() else set()
    mutants = [each for each in mutants if each.name not in known]
    while True:
        places = written(mutants)  # as it was, if nothing is different: cargo looks at the time of a file
        errors = build()
        if not errors:
            return mutants
        bad = {number for file, line in errors if (number := blamed(places[file], line))}
        if not bad:
            raise SystemExit(f"does not compile, and not because of a mutant: {errors}")
        print(f"{len(bad)} of {len(mutants)} do not compile", flush=True)
        with NOT_COMPILING.open("a") as file:
            file.writelines(f"{each.name}\n" for each in mutants if each.number in bad)
        mutants = [each for each in mutants if each.number not in bad]


def blamed(lines: dict[int, range], line: int) -> int | None:
    """Returns the mutant that has the line, or the last before it, whose `return` the compiler may compare with it."""
    before = [(each.start, number) for number, each in lines.items() if each.start <= line]
    return next((number for number, each in lines.items() if line in each), max(before)[1] if before else None)


def written(chosen: list[Mutant]) -> dict[str, dict[int, range]]:
    """Copies what the build needs, with the mutants, and returns which lines of each file each has."""
    by_file: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in chosen:
        by_file[mutant.file].append(mutant)
    places: dict[str, dict[int, range]] = defaultdict(dict)
    asked = subprocess.run(["git", "ls-files", "-z", *SOURCES], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    for file in filter(None, asked.stdout.split("\0")):
        old, copy = (ROOT / file).read_bytes(), TREE / file
        new = old
        if file == "src/lib.rs":
            new = (FEATURE_GATES + old.decode() + SWITCH).encode()
        elif file in by_file:
            text = mutated(old.decode(), by_file[file])
            new = text.encode()
            for found in re.finditer(r"/\*mutant (\d+)\*/.*?/\*end \1\*/", text, re.DOTALL):
                first = text.count("\n", 0, found.start()) + 1
                places[file][int(found[1])] = range(first, text.count("\n", 0, found.end()) + 2)
        if not copy.exists() or copy.read_bytes() != new:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(new)
    return places


def mutated(text: str, mutants: list[Mutant]) -> str:
    """Returns a file with the mutants at the head of their functions; from the last on, as each moves what follows."""
    bodies: dict[int, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        bodies[mutant.body[0]].append(mutant)
    new = text
    for at in sorted(bodies, reverse=True):
        branches = "".join(branch(text, mutant) for mutant in bodies[at])
        new = f"{new[: at + 1]}{branches}{new[at + 1 :]}"
    return new


def branch(text: str, mutant: Mutant) -> str:
    first, last = mutant.body
    changed = f"{text[first : mutant.start]} {mutant.replacement} {text[mutant.end : last]}"
    number = mutant.number
    return f"\n/*mutant {number}*/ if crate::mutant::is({number}) {{ return {changed}; }} /*end {number}*/\n"


def compiled(*command: str) -> list[dict[str, Any]]:
    """Returns cargo's messages."""
    flags = ["--locked", "--target-dir", str(TARGET), "--message-format", "json"]
    environment = {**os.environ, **SETTINGS}
    answer = subprocess.run(["cargo", *command, *flags], cwd=TREE, env=environment, stdout=subprocess.PIPE, check=False)
    return [json.loads(line) for line in answer.stdout.splitlines()]


def errors_of(told: list[dict[str, Any]]) -> set[tuple[str, int]]:
    errors = set()
    for message in told:
        if message["reason"] == "compiler-message" and message["message"]["level"] == "error":
            spans = message["message"]["spans"]
            primary = [span for span in spans if span["is_primary"]] or spans
            errors |= {(span["file_name"], span["line_start"]) for span in primary}
    return errors


# --- their tests ---


class Tests(Protocol):
    """The tests of one language, in a build with mutants; each test is noted with the mutants that it reaches."""

    kind: str
    #: Those that the build has.
    mutants: list[Mutant]

    def killer(self, mutant: Mutant) -> str | None:
        """Gives a mutant to tests that reach it, and returns which one kills it."""

    def count(self, mutant: Mutant) -> str:
        """Says how many tests reach a mutant."""


class Rust(Tests):
    """The library tests, and those from outside."""

    kind = "Rust"

    def __init__(self, mutants: list[Mutant]) -> None:
        self._binaries: dict[str, str] = {}
        self.mutants = built(mutants, self._build)
        emptied(REACHED)
        self._records = {binary: self._recorded(binary) for binary in self._binaries.values()}

    def _build(self) -> set[tuple[str, int]]:
        """Builds the tests, and returns where the compiler found errors."""
        scope = ["--package", "cai-dlpack", "--features", FEATURES]
        if errors := errors_of(compiled("check", "--tests", *scope)):
            return errors
        told = compiled("test", "--no-run", "--lib", "--test", "rust", *scope)
        for message in told:
            if message["reason"] == "compiler-artifact" and message["executable"]:
                self._binaries[message["target"]["name"]] = message["executable"]
        return errors_of(told)

    def _recorded(self, binary: str) -> list[Record]:
        """Runs each test by itself, without a mutant. One that fails so is left out."""
        command = [binary, "--list", "--format", "terse", *NOT]
        listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()

        def record(name: str) -> Record | None:
            with Switch.made(REACHED / f"of-{Path(binary).name}-{name}") as switch:
                begun = time.monotonic()
                if failed := ended([binary, "--exact", name], switch, 600, TREE):
                    print(f"without a mutant {failed}", flush=True)
                    return None
                return Record(name, time.monotonic() - begun, switch.reached())

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return [each for each in pool.map(record, (line.removesuffix(": test") for line in listed)) if each]

    def killer(self, mutant: Mutant) -> str | None:
        for binary, records in self._records.items():
            found = reached.by(records, mutant.number)
            while found:
                some, found = found[:MANY], found[MANY:]
                if failed := failing([binary, "--exact"], some, mutant, TREE):
                    return failed
        return None

    def count(self, mutant: Mutant) -> str:
        return f"{sum(len(reached.by(records, mutant.number)) for records in self._records.values())} Rust tests"


class Python(Tests):
    """The tests of the package and the example extensions."""

    kind = "Python"

    def __init__(self, mutants: list[Mutant]) -> None:
        self.mutants = built(mutants, self._build)
        emptied(REACHED)
        command = [*PYTEST, "-p", "conformance.soak.reached"]
        command += ["--numprocesses", str(os.cpu_count()), "--dist", "loadfile"]
        subprocess.run(command, cwd=ROOT, env={**environment(), reached.FOLDER: str(REACHED)}, check=False)
        self._records = [record for file in REACHED.glob("*.records") for record in reached.read(file)]

    @staticmethod
    def _build() -> set[tuple[str, int]]:
        """Builds the package and the extensions, and returns where the compiler found errors."""
        told = compiled("build", *(flag for crate in CRATES for flag in ("--package", crate)))
        if errors := errors_of(told):
            return errors
        shutil.rmtree(PACKAGE, ignore_errors=True)
        shutil.copytree(ROOT / "bindings" / "python" / "python" / "cai_dlpack", PACKAGE / "cai_dlpack")
        for name in CRATES.values():
            shutil.copy2(TARGET / "debug" / f"lib{name.rpartition('/')[2]}.so", PACKAGE / f"{name}.so")
        return set()

    def killer(self, mutant: Mutant) -> str | None:
        some = self._chosen(mutant)
        return failing(PYTEST, some, mutant, ROOT) if some else None

    def _chosen(self, mutant: Mutant) -> list[Record]:
        """Returns tests that reach a mutant: the shortest of each file in turn, as long as `LONGEST` allows."""
        by_file: dict[str, list[Record]] = defaultdict(list)
        for record in reached.by(self._records, mutant.number):
            by_file[record.test.partition("::")[0]].append(record)
        turns = [each for turn in zip_longest(*by_file.values()) for each in turn if each]
        sums = accumulate(record.seconds for record in turns)
        return [record for record, seconds in zip(turns, sums, strict=True) if seconds < LONGEST]

    def count(self, mutant: Mutant) -> str:
        reaching = len(reached.by(self._records, mutant.number))
        return f"{reaching} Python tests, of which it was given to {len(self._chosen(mutant))}"


def emptied(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def failing(command: list[str], tests: list[Record], mutant: Mutant, folder: Path) -> str | None:
    """Runs tests with a mutant, and returns the first that fails twice, or how the process ended."""
    names = [each.test for each in tests]
    limit = 30 + 6 * sum(each.seconds for each in tests)
    with Switch.made(REACHED / f"of-{mutant.number}") as switch, NamedTemporaryFile("w", suffix=".txt") as listed:
        switch.choose(mutant.number)
        if command is PYTEST:
            listed.write("\n".join(names))
            listed.flush()
            asked = ["-x", f"@{listed.name}"]
        else:
            asked = names
        failed = ended([*command, *asked], switch, limit, folder)
        if failed in names:  # it may be the machine's load
            failed = ended([*command, failed], switch, limit, folder)
    return failed


def ended(command: list[str], switch: Switch, seconds: float, folder: Path) -> str | None:
    """Runs tests up to the first failure, and returns that."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**environment(), reached.VARIABLE: str(switch.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        killer = threading.Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))
        killer.start()
        begun = time.monotonic()
        failed = None
        assert process.stdout
        for line in process.stdout:
            if " FAILED" in line:  # of a Rust test
                failed = line.split(" ... ")[0].removeprefix("test ")
                os.killpg(process.pid, signal.SIGKILL)
                break
            if line.startswith(("FAILED ", "ERROR ")):
                failed = line.split(" - ")[0].partition(" ")[2].strip()
        code = process.wait()
        killer.cancel()
    if failed or not code:
        return failed
    return "a time-out" if time.monotonic() - begun >= seconds - 1 else f"exit code {code}"


def environment() -> dict[str, str]:
    paths = f"{PACKAGE}:{ROOT / 'conformance' / 'kit' / 'src'}:{ROOT}"
    return {**os.environ, "PYTHONPATH": paths, "CARGO_MANIFEST_DIR": str(TREE), "RUST_BACKTRACE": "0"}


# --- what is kept ---


def interval(killed: int, tried: int) -> tuple[float, float]:
    """Returns Wilson's interval of 95%."""
    z = 1.96
    share = killed / tried
    middle = (share + z * z / (2 * tried)) / (1 + z * z / tried)
    half = z / (1 + z * z / tried) * math.sqrt(share * (1 - share) / tried + z * z / (4 * tried * tried))
    return middle - half, middle + half


def report(provenance: str, asked: argparse.Namespace, chosen: int, verdicts: dict[Mutant, Verdict]) -> list[str]:
    tried = list(verdicts)
    survivors = [each for each in tried if verdicts[each].killer is None]
    reasons = dict(line.split("\t") for line in REASONS.read_text().splitlines() if not line.startswith("#"))
    same = [each for each in survivors if reasons.get(each.key, "").startswith(EQUIVALENT)]
    which = " that survived before" if asked.survivors else ""
    lines = [
        f"mutants, {provenance}, of functions under {asked.under}"
        + (f", a sample of seed {asked.seed}" if asked.sample else ""),
        f"{chosen} chosen{which}, {chosen - len(tried)} do not compile or were not tried, {len(tried)} tried",
    ]
    for folder in (*FOLDERS, "all"):
        those = [each for each in tried if folder in (each.folder, "all")]
        killed = sum(verdicts[each].killer is not None for each in those)
        if those:
            low, high = interval(killed, len(those))
            within = f" (95%: {low:.1%} to {high:.1%})" if asked.sample else ""
            lines.append(f"{folder}: {killed} of {len(those)} killed, {killed / len(those):.1%}{within}")
    how = Counter((verdicts[each].killer or "survived").split(" (")[0] for each in tried)
    lines += [f"{count} {name}" for name, count in how.most_common()]
    lines += [
        f"{len(same)} of the survivors are equivalent: without them {len(tried) - len(survivors)} of "
        f"{len(tried) - len(same)}, {(len(tried) - len(survivors)) / max(1, len(tried) - len(same)):.1%}"
    ]
    lines += ["", "survivors:"]
    for each in survivors:
        lines += [
            f"  {each.name}",
            f"      {reasons.get(each.key, 'no reason is known')}",
            f"      reached by {verdicts[each].reach}",
        ]
    return lines


if __name__ == "__main__":
    sys.exit(main())
