"""Runs the tests against the mutants of `protocol/`, `driver/` and `view/` that cargo-mutants lists.

    python -m conformance.soak.mutants                      the files that have no result as they are
    python -m conformance.soak.mutants --again              every file
    python -m conformance.soak.mutants --survivors          survivors of files that have a result, after new tests
    python -m conformance.soak.mutants --minutes 30         begins no other build after this long
    python -m conformance.soak.mutants --under src/view/    files whose path begins so

cargo-mutants builds once for each mutant, which is days for all. Here hundreds are in one build, in a copy of the tree:
a function `f` becomes `if is(17) { return BODY WITH THE CHANGE } BODY`, and a file that the process maps chooses. What
does not compile so is left out and counted: a mutant that no build admits, or one outside a function.

Each test is run once by itself, without a mutant, and notes which ones it reaches (`reached.py`). A mutant is given to
the Rust tests that reach it, the shortest first, and one that these leave alive to the Python tests that do, for as
long as `LONGEST` allows, first to those whose file is named like the mutant's. A test that fails twice, and passes
without the mutant, kills it, or the end of the process, or a time-out.

What is known of a file's mutants is kept in conformance/results/mutants.json when they have been given to the tests,
with a digest of the file: a run that was ended goes on where it stood. Why a survivor is left alive stands in
conformance/soak/mutants.tsv, by its name without the place: mutants that are the same program, and those that only what
no test has would notice. conformance/results/mutants.txt, the report, has both. Exits with 1 unless each file has a
result and `ENOUGH` are killed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Protocol

from conformance.provenance import commit, today
from conformance.soak import reached
from conformance.soak.miri import TESTS
from conformance.soak.reached import Record, Switch

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute() / "mutants"
TREE = TARGET / "tree"
RESULTS = ROOT / "conformance" / "results" / "mutants.json"
REPORT = RESULTS.with_suffix(".txt")
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
LONGEST = 60.0
#: Tests that are named otherwise than what they are of.
ALSO = {"keep": "copy"}
#: The part of the mutants that tests must kill, but for those that no test could notice.
ENOUGH = 0.9
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


#: Before any result is written, which would be a change.
COMMIT = commit()


def key(name: str) -> str:
    """Returns a mutant's name without line and column, which move."""
    return PLACE.sub(": ", name)


@dataclass
class Result:
    """What is known of the mutants of a file."""

    #: A digest of the file without its tests.
    sources: str
    date: str
    commit: str
    tried: int
    #: By the language of the tests.
    killed: dict[str, int]
    is_given_to_python: bool
    #: The name of each, and how many tests reach it.
    survivors: dict[str, str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--survivors", action="store_true")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--under", default="src/")
    asked = parser.parse_args()
    end = time.monotonic() + asked.minutes * 60

    by_file: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants():
        by_file[mutant.file].append(mutant)
    results = {file: result for file, result in kept().items() if file in by_file}
    files = [file for file in by_file if file.startswith(asked.under)]
    missing = [file for file in files if asked.again or not is_right(file, results.get(file))]
    for build in builds({file: by_file[file] for file in missing}):
        if time.monotonic() > end:
            break
        for file, verdicts in given(Rust(build), build):
            results[file] = of_rust(file, verdicts)
            keep(results, by_file)
    alive = {file: survivors(results[file], by_file[file]) for file in files if is_right(file, results.get(file))}
    again = {file: those for file, those in alive.items() if file not in missing} if asked.survivors else {}
    for build in builds(again):
        if time.monotonic() > end:
            break
        for file, verdicts in given(Rust(build), build):
            add_rust(results[file], verdicts)
            alive[file] = survivors(results[file], by_file[file])
            keep(results, by_file)
    for file, those in alive.items():
        results[file].is_given_to_python |= not those
    for build in builds({file: those for file, those in alive.items() if not results[file].is_given_to_python}):
        if time.monotonic() > end:
            break
        for file, verdicts in given(Python(build), build):
            add_python(results[file], verdicts)
            keep(results, by_file)
    print(REPORT.read_text())
    is_whole = all(is_right(file, results.get(file)) and results[file].is_given_to_python for file in by_file)
    return 0 if is_whole and share(results.values()) >= ENOUGH else 1


def builds(by_file: dict[str, list[Mutant]]) -> Iterator[list[Mutant]]:
    """Parts the mutants into builds of about `TOGETHER`, each with all of its files."""
    build: list[Mutant] = []
    for those in by_file.values():
        if build and len(build) + len(those) > TOGETHER:
            yield build
            build = []
        build = build + those
    if build:
        yield build


def of_rust(file: str, verdicts: dict[Mutant, Verdict]) -> Result:
    survivors = {mutant.name: told.reach for mutant, told in verdicts.items() if told.killer is None}
    killed = {Rust.kind: len(verdicts) - len(survivors)}
    return Result(digest(file), today(), COMMIT, len(verdicts), killed, not survivors, survivors)


def add_rust(result: Result, verdicts: dict[Mutant, Verdict]) -> None:
    """Takes out what the Rust tests kill now. Python's are asked again about the others."""
    for mutant, told in verdicts.items():
        if told.killer is None:
            result.survivors[mutant.name] = told.reach
        else:
            del result.survivors[mutant.name]
            result.killed[Rust.kind] += 1
    result.date, result.commit, result.is_given_to_python = today(), COMMIT, False


def add_python(result: Result, verdicts: dict[Mutant, Verdict]) -> None:
    """Adds what the Python tests say. A mutant that does not compile with Python's features stays alive."""
    for mutant, told in verdicts.items():
        reach = result.survivors.pop(mutant.name)
        if told.killer is None:
            result.survivors[mutant.name] = f"{reach}, {told.reach}"
        else:
            result.killed[Python.kind] = result.killed.get(Python.kind, 0) + 1
    result.is_given_to_python = True


def survivors(result: Result, listed: list[Mutant]) -> list[Mutant]:
    """Returns those that a test could notice."""
    alive = result.survivors.keys() - same_program([result])
    return [mutant for mutant in listed if mutant.name in alive]


def is_right(file: str, result: Result | None) -> bool:
    return result is not None and result.sources == digest(file)


def digest(file: str) -> str:
    """Returns a digest of a file without the tests at its end."""
    return hashlib.sha256(TESTS.sub(b"", (ROOT / file).read_bytes()).rstrip()).hexdigest()[:12]


def kept() -> dict[str, Result]:
    text = RESULTS.read_text() if RESULTS.exists() else "{}"
    return {file: Result(**result) for file, result in json.loads(text).items()}


def keep(results: dict[str, Result], by_file: dict[str, list[Mutant]]) -> None:
    found = {file: asdict(results[file]) for file in sorted(results)}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    REPORT.write_text("\n".join(report(results, by_file)) + "\n")


@dataclass(frozen=True)
class Verdict:
    """The test that has killed a mutant, if one has, and how many reach it."""

    killer: str | None
    reach: str


def given(tests: Tests, build: list[Mutant]) -> Iterator[tuple[str, dict[Mutant, Verdict]]]:
    """Gives the mutants of a build to its tests: more at a time than there are processors, as most of them wait. Yields
    each file of the build when its own are done; the tests have none of those that do not compile."""
    files = {mutant.file: dict[Mutant, Verdict]() for mutant in build}
    left = Counter(mutant.file for mutant in tests.mutants)
    yield from ((file, files[file]) for file in files if not left[file])
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        for mutant, failed in zip(tests.mutants, pool.map(tests.killer, tests.mutants), strict=True):
            killer = f"killed by a {tests.kind} test ({failed})" if failed else None
            files[mutant.file][mutant] = Verdict(killer, tests.count(mutant))
            print(f"{killer or 'alive'}: {mutant.name}", flush=True)
            left[mutant.file] -= 1
            if not left[mutant.file]:
                yield mutant.file, files[mutant.file]


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
        command = [*PYTEST, "-p", "conformance.soak.reached", "--dist", "loadfile"]
        with ExitStack() as stack:
            for worker in range(os.cpu_count() or 1):
                switch = stack.enter_context(Switch.made(REACHED / f"by-{worker}"))
                command += ["--tx", f"popen//env:{reached.VARIABLE}={switch.path}"]
            subprocess.run(command, cwd=ROOT, env=environment(), check=False)
        self._records = [record for file in REACHED.glob(f"*{reached.RECORDS}") for record in reached.read(file)]

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
        """Returns tests that reach a mutant, as long as `LONGEST` allows: those of the files that are named like its
        own, then the others, the shortest first."""
        own = words(Path(mutant.file).stem) | words(Path(mutant.file).parent.name)
        own |= {ALSO[word] for word in own & ALSO.keys()}
        reaching = reached.by(self._records, mutant.number)
        reaching.sort(key=lambda record: not words(record.test.partition("::")[0]) & own)
        sums = accumulate(record.seconds for record in reaching)
        return [record for record, seconds in zip(reaching, sums, strict=True) if seconds < LONGEST]

    def count(self, mutant: Mutant) -> str:
        reaching = len(reached.by(self._records, mutant.number))
        return f"{reaching} Python tests, of which it was given to {len(self._chosen(mutant))}"


def words(path: str) -> set[str]:
    """Returns the words of a file's name that tell what it is about."""
    return set(re.findall(r"[a-z]+", Path(path).name)) - {"test", "py", "mod"}


def emptied(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def failing(command: list[str], tests: list[Record], mutant: Mutant, folder: Path) -> str | None:
    """Runs tests with a mutant, and returns the first that fails twice and not without it, or how the process ended."""
    names = [each.test for each in tests]
    # Rust tells of each test in a line, pytest of many.
    limit = 30 + 6 * (sum if command is PYTEST else max)(each.seconds for each in tests)
    with Switch.made(REACHED / f"of-{mutant.number}") as switch, NamedTemporaryFile("w", suffix=".txt") as listed:
        switch.choose(mutant.number)
        if command is PYTEST:
            listed.write("\n".join(names))
            listed.flush()
            asked = ["-x", f"@{listed.name}"]
        else:
            asked = names
        failed = ended([*command, *asked], switch, limit, folder)
        if failed not in names:
            return failed
        alone = [*command, failed]
        is_repeated = ended(alone, switch, limit, folder)  # it may be the machine's load
        switch.choose(0)
        if is_repeated and not ended(alone, switch, limit, folder):  # or a test that needs those before it
            return failed
    others = [each for each in tests if each.test != failed]
    return failing(command, others, mutant, folder) if others else None


def ended(command: list[str], switch: Switch, seconds: float, folder: Path) -> str | None:
    """Runs tests up to the first failure, or to a line that takes longer than `seconds`; returns how it ended."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**environment(), reached.VARIABLE: str(switch.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        begun, killer = since(process, seconds)
        failed = None
        assert process.stdout
        for line in process.stdout:
            killer.cancel()
            begun, killer = since(process, seconds)
            if line.startswith("test ") and " FAILED" in line:  # of a Rust test
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


def since(process: subprocess.Popen[str], seconds: float) -> tuple[float, threading.Timer]:
    """Returns the time, and what kills the process if it is not cancelled in time."""
    killer = threading.Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))
    killer.start()
    return time.monotonic(), killer


def environment() -> dict[str, str]:
    paths = f"{PACKAGE}:{ROOT / 'conformance' / 'kit' / 'src'}:{ROOT}"
    return {**os.environ, "PYTHONPATH": paths, "CARGO_MANIFEST_DIR": str(TREE), "RUST_BACKTRACE": "0"}


# --- what is kept ---


def same_program(results: Collection[Result]) -> list[str]:
    """Returns the survivors that no test could notice."""
    names = [name for result in results for name in result.survivors]
    return [name for name in names if reasons().get(key(name), "").startswith(EQUIVALENT)]


@cache
def reasons() -> dict[str, str]:
    lines = REASONS.read_text().splitlines()
    return dict(line.split("\t") for line in lines if not line.startswith("#"))


def share(results: Collection[Result]) -> float:
    """Returns the part of the mutants that is killed, but for those that no test could notice."""
    killed = sum(sum(result.killed.values()) for result in results)
    tried = sum(result.tried for result in results)
    return killed / max(1, tried - len(same_program(results)))


def report(results: dict[str, Result], by_file: dict[str, list[Mutant]]) -> list[str]:
    dates = sorted({f"{result.date}, commit {result.commit}" for result in results.values()})
    lines = [f"mutants of functions, {'; '.join(dates)}"]
    for folder in (*FOLDERS, ""):
        files = [file for file in by_file if file.startswith(f"src/{folder}")]
        told = [results[file] for file in files if is_right(file, results.get(file))]
        of_python = sum(result.is_given_to_python for result in told)
        tried, listed = sum(result.tried for result in told), sum(len(by_file[file]) for file in files)
        killed = Counter[str]()
        for result in told:
            killed.update(result.killed)
        ways = ", ".join(f"{count} by {kind} tests" for kind, count in killed.items())
        lines += [
            f"{folder or 'all'}: {share(told):.1%}",
            f"    {killed.total()} of {tried} killed ({ways}), {len(same_program(told))} of the others equivalent",
            f"    {listed} listed, of which some do not compile",
            f"    {len(told)} of {len(files)} files have a result as they are, {of_python} with Python's tests",
        ]
    lines += ["", "survivors:"]
    for file, result in results.items():
        stale = [] if is_right(file, result) else ["      of an earlier state of the file"]
        for name, reach in result.survivors.items():
            reason = reasons().get(key(name), "no reason is known")
            lines += [f"  {name}", *stale, f"      {reason}", f"      reached by {reach}"]
    return lines


if __name__ == "__main__":
    sys.exit(main())
