"""Runs the tests against mutants of `protocol/`, `driver/` and `view/`: those that cargo-mutants lists.

    python -m conformance.soak.mutants --sample 300 --seed 1        a random sample, with the interval of its rate
    python -m conformance.soak.mutants --shard 3/8                  every eighth of all, from the third on

cargo-mutants builds once for each mutant, which is hours for a few hundred. Here all of a run are in one build, in a
copy of the tree: a function `f` becomes `if is(17) { return BODY WITH THE CHANGE } BODY`, and a variable of the
environment chooses. What does not compile so is left out and counted: a mutant that no build admits, or one outside a
function.

A mutant is given to the library tests of its own folder, then to all other library tests, then to the Rust tests from
outside, then to the Python tests that `PYTHON_TESTS` names for its file, on an extension with the same mutants; a
failure or a time-out kills it. A survivor of a file without a row there was not given to all that could notice it.

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
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.provenance import commit, today

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
PYTHON = ROOT / "conformance" / "tests"
#: The Python tests that are of the most use for a file, by its path's start; the first row that fits.
PYTHON_TESTS = {
    "src/view/copy/": ["partners/test_copies.py", "partners/test_copy_order.py", "partners/test_copy_edges.py",
                       "partners/test_copy_ends.py", "partners/test_copy_room.py", "streams/test_to_another_device.py"],
    "src/view/keep/": ["partners/test_copies.py", "partners/test_copy_order.py", "partners/test_copy_edges.py",
                       "partners/test_copy_ends.py", "partners/test_copy_room.py", "ownership/test_ends.py"],
    "src/view/block.rs": ["test_export.py", "test_capsules.py", "partners/test_exchange_export.py"],
    "src/view/borrow.rs": ["test_rust_extension.py"],
    "src/view/typed.rs": ["test_rust_extension.py"],
    "src/view/present.rs": ["partners/test_host.py", "streams/test_host_readers.py"],
    "src/view/memory.rs": ["test_malformed_cai.py", "partners/test_host.py", "test_no_driver.py"],
    "src/view/detach.rs": ["streams/test_gil.py"],
    "src/view/import.rs": ["test_malformed_dlpack.py", "test_capsules.py", "test_import.py",
                           "partners/test_exchange_import.py"],
    "src/view/consume": ["streams/test_consume.py", "streams/test_awaiting.py", "streams/test_awaiting_ends.py",
                         "streams/test_dropped_guards.py", "streams/test_moved_producers.py"],
    "src/view/": ["test_export.py", "test_import.py", "streams/test_consume.py", "streams/test_default_streams.py",
                  "streams/test_contexts.py", "ownership/test_owners.py", "ownership/test_ends.py",
                  "test_options.py", "test_capsules.py"],
    "src/driver/cuda/ipc.rs": ["reach/test_share.py", "reach/test_share_pools.py"],
    "src/driver/": ["streams/test_driver_calls.py", "streams/test_contexts.py", "streams/test_second_context.py",
                    "streams/test_join.py", "faults/test_every_driver_call.py", "faults/test_lacking_drivers.py"],
    "src/protocol/": ["test_malformed_cai.py", "test_malformed_dlpack.py", "test_import.py", "test_export.py",
                      "partners/test_records.py", "partners/test_own_dtype.py", "test_roundtrip_exhaustive.py"],
}  # fmt: skip
#: How the reason of a mutant begins that no test could notice.
EQUIVALENT = "equivalent: "
#: The extensions: what the library of each crate is called in the package.
CRATES = {"cai-dlpack-python": "cai_dlpack/_core", "cai-example": "cai_example", "cai-example-peer": "cai_example_peer"}
FEATURES = "pyo3,cudarc,half,ndarray,num-complex,cudarc/cuda-12020"
#: A function, below its documentation and attributes.
HEAD = re.compile(
    r"""^[ \t]*(?:pub(?:\([^)]*\))? +)?(?:const +|unsafe +|extern "C(?:-unwind)?" +)*fn\s""", re.MULTILINE
)
#: The tests are run some hundred times.
SETTINGS = {
    "RUSTC_BOOTSTRAP": "1",
    "RUSTFLAGS": "--cap-lints allow",
    "CARGO_PROFILE_DEV_DEBUG": "0",
    "CARGO_PROFILE_DEV_OPT_LEVEL": "1",
    "CARGO_INCREMENTAL": "0",
}
#: Files and functions that only tests have.
FOR_TESTS = re.compile(r"/tests\.rs$|_tests\.rs$|/programs/|/(programs|script|simulated|simulator|loom|orders)\.rs$")

FEATURE_GATES = "#![feature(core_intrinsics, const_eval_select)]\n#![allow(internal_features)]\n"
#: Chooses the mutant in constant functions too: never at compile time.
SWITCH = """
/// Chooses the mutant.
pub(crate) mod mutant {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static CHOSEN: AtomicU32 = AtomicU32::new(u32::MAX);
    pub(crate) const fn is(number: u32) -> bool {
        core::intrinsics::const_eval_select((number,), never, chosen)
    }
    const fn never(_: u32) -> bool {
        false
    }
    fn chosen(number: u32) -> bool {
        match CHOSEN.load(Relaxed) {
            u32::MAX => {
                let chosen = std::env::var("MUTANT").map_or(0, |text| text.parse().unwrap_or(0));
                CHOSEN.store(chosen, Relaxed);
                chosen == number
            }
            chosen => chosen == number,
        }
    }
}
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
        return re.sub(r":\d+:\d+: ", ": ", self.name)

    @property
    def folder(self) -> str:
        return self.file.split("/")[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shard", default="1/1", help="k/n: each n-th mutant, from the k-th on")
    parser.add_argument("--under", default="src/", help="only mutants of files whose path begins so")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begins no other mutant after this long")
    asked = parser.parse_args()

    start = time.monotonic()
    provenance = f"{today()}, commit {commit()}"
    listed = mutants()
    k, n = (int(part) for part in asked.shard.split("/"))
    chosen = [mutant for mutant in listed[k - 1 :: n] if mutant.file.startswith(asked.under)]
    if asked.sample:
        chosen = random.Random(asked.seed).sample(chosen, min(asked.sample, len(chosen)))
    tests = built(chosen)
    rust, python = Rust(tests), Python()
    rust.check()
    verdicts: dict[int, str | None] = {}
    for mutant in tests.mutants:
        if time.monotonic() - start > asked.minutes * 60:
            break
        verdicts[mutant.number] = rust.killed(mutant) or python.killed(mutant)
        print(f"{verdicts[mutant.number] or 'SURVIVED'}: {mutant.name}", flush=True)
        # After each one: a run that was ended keeps what it has found.
        told = report(provenance, asked, len(listed), len(chosen), tests, verdicts)
        RESULTS.write_text("\n".join(told) + "\n")
    print(RESULTS.read_text())
    return 0


# --- the mutants, and their one build ---


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


class Tests:
    """The build: which mutants are in it, and its test binaries."""

    def __init__(self, mutants: list[Mutant]) -> None:
        self.mutants = mutants
        self.binaries: dict[str, Path] = {}


def built(chosen: list[Mutant]) -> Tests:
    """Returns the build of those that compile; each round leaves out what the compiler complained of."""
    known = set(NOT_COMPILING.read_text().splitlines()) if NOT_COMPILING.exists() else set()
    tests = Tests([each for each in chosen if each.name not in known])
    while True:
        places = written(tests.mutants)  # as it was, if nothing is different: cargo looks at the time of a file
        errors = cargo(tests, "check") or cargo(tests, "test", "--no-run") or extensions()
        if not errors:
            return tests
        bad = {number for file, line in errors if (number := blamed(places[file], line))}
        if not bad:
            raise SystemExit(f"does not compile, and not because of a mutant: {errors}")
        print(f"{len(bad)} of {len(tests.mutants)} do not compile", flush=True)
        with NOT_COMPILING.open("a") as file:
            file.writelines(f"{each.name}\n" for each in tests.mutants if each.number in bad)
        tests.mutants = [each for each in tests.mutants if each.number not in bad]


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


def cargo(tests: Tests, *command: str) -> set[tuple[str, int]]:
    """Builds the tests, and returns where the compiler found errors."""
    scope = ["--tests"] if command == ("check",) else ["--lib", "--test", "rust"]
    told = compiled(*command, *scope, "--package", "cai-dlpack", "--features", FEATURES)
    for message in told:
        if message["reason"] == "compiler-artifact" and message["executable"]:
            tests.binaries[message["target"]["name"]] = Path(message["executable"])
    return errors_of(told)


def extensions() -> set[tuple[str, int]]:
    """Builds the package and the example extensions, and returns where the compiler found errors."""
    told = compiled("build", *(flag for crate in CRATES for flag in ("--package", crate)))
    if errors := errors_of(told):
        return errors
    shutil.rmtree(PACKAGE, ignore_errors=True)
    shutil.copytree(ROOT / "bindings" / "python" / "python" / "cai_dlpack", PACKAGE / "cai_dlpack")
    for name in CRATES.values():
        shutil.copy2(TARGET / "debug" / f"lib{name.rpartition('/')[2]}.so", PACKAGE / f"{name}.so")
    return set()


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


class Rust:
    """The library tests of the mutant's folder, all other library tests, and the tests from outside."""

    #: Not about the mutants: what must not compile, and a page that is compared with the tree.
    NOT = ("--skip", "uncompilable", "--skip", "partners::page")

    def __init__(self, tests: Tests) -> None:
        library, outside = tests.binaries["cai_dlpack"], tests.binaries["rust"]
        elsewhere = [flag for name in FOLDERS for flag in ("--skip", f"{name}::")]
        self.parts: dict[str, tuple[Path, list[str]]] = {
            **{f"tests of {name}": (library, [f"{name}::"]) for name in FOLDERS},
            "other library tests": (library, [*elsewhere, *self.NOT]),
            "tests from outside": (outside, [*self.NOT]),
        }
        self.seconds: dict[str, float] = {}

    def check(self) -> None:
        for how, (binary, arguments) in self.parts.items():
            begun = time.monotonic()
            if failed := ended(binary, arguments, 0, 900):
                raise SystemExit(f"{how}: {failed}, without a mutant")
            self.seconds[how] = time.monotonic() - begun
        print(self.seconds, flush=True)

    def killed(self, mutant: Mutant) -> str | None:
        own = f"tests of {mutant.folder}"
        for how in sorted(self.parts, key=lambda each: each != own):
            binary, arguments = self.parts[how]
            if failed := ended(binary, arguments, mutant.number, 30 + 6 * self.seconds[how]):
                return f"killed by {how} ({failed})"
        return None


class Python:
    """The Python tests of the mutant's file."""

    def __init__(self) -> None:
        #: How long the tests take without a mutant.
        self.seconds: dict[str, float] = {}

    def killed(self, mutant: Mutant) -> str | None:
        start, names = next((row for row in PYTHON_TESTS.items() if mutant.file.startswith(row[0])), ("", []))
        if not names:
            return None
        if start not in self.seconds:
            begun = time.monotonic()
            if failed := self.run(names, 0, 1800):
                raise SystemExit(f"{names}: {failed}, without a mutant")
            self.seconds[start] = time.monotonic() - begun
            print(f"Python tests of {start}: {self.seconds[start]:.0f} s", flush=True)
        failed = self.run(names, mutant.number, 60 + 4 * self.seconds[start])
        return f"killed by Python tests ({failed})" if failed else None

    def run(self, names: list[str], number: int, seconds: float) -> str | None:
        paths = f"{PACKAGE}:{ROOT / 'conformance' / 'kit' / 'src'}:{ROOT}"
        tests = [str(PYTHON / name) for name in names]
        arguments = ["-m", "cai_conformance", "simulate", "--", sys.executable, "-m", "pytest", "-q", "-x", *tests]
        return ended(Path(sys.executable), arguments, number, seconds, ROOT, {"PYTHONPATH": paths})


def ended(
    binary: Path,
    arguments: list[str],
    number: int,
    seconds: float,
    folder: Path = TREE,
    settings: dict[str, str] | None = None,
) -> str | None:
    """Runs tests up to the first failure, and returns that."""
    environment = {**os.environ, "MUTANT": str(number), "CARGO_MANIFEST_DIR": str(TREE), "RUST_BACKTRACE": "0"}
    command = [str(binary), *arguments]
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**environment, **(settings or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
        signal.alarm(math.ceil(seconds))
        begun = time.monotonic()
        failed = None
        assert process.stdout
        for line in process.stdout:
            if " FAILED" in line:
                failed = line.split(" ... ")[0].removeprefix("test ")
                break
            if line.startswith("FAILED "):
                failed = line.split(" - ")[0].split("/")[-1].strip()
        signal.alarm(0)
        if failed and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    if failed or not code:
        return failed
    return "time-out" if time.monotonic() - begun >= seconds - 1 else f"exit code {code}"


# --- what is kept ---


def interval(killed: int, tried: int) -> tuple[float, float]:
    """Returns Wilson's interval of 95%."""
    z = 1.96
    share = killed / tried
    middle = (share + z * z / (2 * tried)) / (1 + z * z / tried)
    half = z / (1 + z * z / tried) * math.sqrt(share * (1 - share) / tried + z * z / (4 * tried * tried))
    return middle - half, middle + half


def report(
    provenance: str, asked: argparse.Namespace, listed: int, chosen: int, tests: Tests, verdicts: dict[int, str | None]
) -> list[str]:
    tried = [each for each in tests.mutants if each.number in verdicts]
    survivors = [each for each in tried if verdicts[each.number] is None]
    reasons = dict(line.split("\t") for line in REASONS.read_text().splitlines() if not line.startswith("#"))
    same = [each for each in survivors if reasons.get(each.key, "").startswith(EQUIVALENT)]
    lines = [
        f"mutants, {provenance}, {listed} in functions of {', '.join(FOLDERS)}",
        f"under {asked.under}, shard {asked.shard}, sample {asked.sample or 'all'} of seed {asked.seed}: "
        f"{chosen} chosen, {chosen - len(tests.mutants)} do not compile, {len(tried)} tried",
    ]
    for folder in (*FOLDERS, "all"):
        those = [each for each in tried if folder in (each.folder, "all")]
        killed = sum(verdicts[each.number] is not None for each in those)
        if those:
            low, high = interval(killed, len(those))
            lines.append(
                f"{folder}: {killed} of {len(those)} killed, {killed / len(those):.1%} (95%: {low:.1%} to {high:.1%})"
            )
    how = Counter((verdicts[each.number] or "survived").split(" (")[0] for each in tried)
    lines += [f"{count} {name}" for name, count in how.most_common()]
    lines += [
        f"{len(same)} of the survivors are equivalent: without them {len(tried) - len(survivors)} of "
        f"{len(tried) - len(same)}, {(len(tried) - len(survivors)) / max(1, len(tried) - len(same)):.1%}"
    ]
    lines += ["", "survivors:"]
    lines += [f"  {each.name}\n      {reasons.get(each.key, 'no reason is known')}" for each in survivors]
    return lines


if __name__ == "__main__":
    sys.exit(main())
