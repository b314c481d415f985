"""Puts each defect that this library has had back, alone, and looks whether its machine finds it.

    python -m conformance.soak.found_again                  every defect
    python -m conformance.soak.found_again graph surrogate  those whose names have one of these words

Works in a copy of the commit that is checked out, below the target folder. Before that each machine must find nothing
in the copy as it is. A row for each goes to conformance/results/found-again.tsv. Exits with 1 if a defect is not found,
or without its sign: by the compiler, or as another fault. Needs a nightly compiler with Miri.

A program of conformance/rust/uncompilable is a counter-example that runs: it does not compile as long as the fix is in,
and does harm if it does.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from conformance.provenance import commit, today
from conformance.soak.defects import DEFECTS, Defect

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute() / "found-again"
TREE = TARGET / "tree"
PROGRAM = TARGET / "program"
RESULTS = ROOT / "conformance" / "results" / "found-again.tsv"
SECONDS = 1500
#: The exit code of what has taken longer.
NOT_ENDED = -1

FEATURES = "cudarc,half,ndarray,num-complex"
#: A crate of one program, on the library in the tree.
MANIFEST = """\
[package]
name = "program"
version = "0.0.0"
edition = "2024"
[workspace]
[dependencies]
cai-dlpack = {{ path = "../tree", features = [{features}] }}
cudarc = {{ version = "0.19.5", default-features = false, features = [
    "std", "driver", "fallback-dynamic-loading", "cuda-12020",
] }}
dlpark = {{ version = "0.10", default-features = false }}
"""


def make(target: str, *variables: str) -> list[str]:
    return ["make", target, f"TARGET={TARGET / 'make'}", *variables]


def module(file: str) -> str:
    """Returns the module of a file of tests: of the library, or of conformance/rust."""
    return "::".join(Path(file).with_suffix("").parts[1 if file.startswith("src/") else 2 :]) + "::"


def rust(file: str) -> list[str]:
    of = ["--locked", "--package", "cai-dlpack", "--features", FEATURES, "--test", "rust"]
    of += ["--target-dir", f"{TARGET}/rust"]
    return ["cargo", "test", "--quiet", *of, "--", module(file)]


def miri(file: str) -> list[str]:
    of = ["--locked", "--package", "cai-dlpack", "--lib", "--target-dir", f"{TARGET}/miri"]
    return ["cargo", "+nightly", "miri", "test", "--quiet", *of, "--", module(file)]


def program(file: str, features: str = "") -> None:
    (PROGRAM / "src").mkdir(parents=True, exist_ok=True)
    (PROGRAM / "Cargo.toml").write_text(MANIFEST.format(features=features))
    (PROGRAM / "src" / "main.rs").write_text((TREE / file).read_text())
    (PROGRAM / "Cargo.lock").write_text((TREE / "Cargo.lock").read_text())


def simulated(file: str) -> list[str]:
    program(file, '"cudarc"')
    run = ["cargo", "run", "--quiet", "--manifest-path", f"{PROGRAM}/Cargo.toml"]
    run += ["--target-dir", f"{TARGET}/program-built"]
    return [sys.executable, "-m", "cai_conformance", "simulate", "--schedule", "lazy", "--", *run]


def miri_program(file: str) -> list[str]:
    program(file)
    of = ["--manifest-path", f"{PROGRAM}/Cargo.toml", "--target-dir", f"{TARGET}/miri"]
    return ["cargo", "+nightly", "miri", "run", "--quiet", *of]


def source(file: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]


#: Each returns the command that runs a machine.
COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "fuzz": lambda _: make("fuzz", "MINUTES=2"),
    "fuzz-stable": lambda _: make("fuzz-stable"),
    "miri": miri,
    "miri-program": miri_program,
    "rust": rust,
    "simulated": simulated,
    "source": source,
}
#: Their programs must not compile.
OF_PROGRAMS = ("miri-program", "simulated")


def run(machine: str, what: str) -> tuple[int, str]:
    """Returns the exit code, or `NOT_ENDED`, and the output."""
    kit = str(ROOT / "conformance" / "kit" / "src")
    changes = {"PYTHONPATH": kit, "MIRIFLAGS": "-Zmiri-permissive-provenance"}
    try:
        ended = subprocess.run(
            COMMANDS[machine](what),
            cwd=TREE,
            env={**os.environ, **changes},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return NOT_ENDED, str(error.stdout)
    (TARGET / "output.txt").write_text(ended.stdout)
    return ended.returncode, ended.stdout


def fresh_tree() -> None:
    """Checks out the commit in the copy, and lends it the environment."""
    if TREE.exists():
        git("-C", str(TREE), "checkout", "--quiet", "--force", "--detach", head())
    else:
        TARGET.mkdir(parents=True, exist_ok=True)
        git("-C", str(ROOT), "worktree", "prune")
        git("-C", str(ROOT), "worktree", "add", "--quiet", "--force", "--detach", str(TREE), head())
    if not (TREE / ".venv").exists():
        (TREE / ".venv").symlink_to(ROOT / ".venv")


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True)


def head() -> str:
    asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def put_back(defect: Defect) -> None:
    for edit in defect.edits:
        file = TREE / edit.file
        text = file.read_text()
        if text.count(edit.old) != 1:
            raise LookupError(f"{edit.file} has the text {text.count(edit.old)} times, of: {defect.name}")
        file.write_text(text.replace(edit.old, edit.new))


def tried(defect: Defect) -> tuple[bool, str]:
    """Puts a defect back, and runs its machine: whether that finds it, and the line that says so or why not."""
    fresh_tree()
    try:
        put_back(defect)
        code, output = run(defect.machine, defect.what)
    finally:
        fresh_tree()
    line = next((line for line in output.splitlines() if re.search(defect.sign, line)), None)
    if code in (0, NOT_ENDED) or line is None:
        print(output[-6000:])
        return False, f"NOT FOUND: exit code {code}"
    return True, line.replace(f"{TREE}/", "").strip()


def is_quiet(machine: str, what: str) -> bool:
    """Whether a machine finds nothing in the tree as it is; of a program, whether the compiler refuses it."""
    fresh_tree()
    code, output = run(machine, what)
    quiet = bool(re.search(r"^error(\[E\d+\])?: ", output, re.MULTILINE)) and "panicked" not in output
    return (code != 0 and quiet and "Undefined" not in output) if machine in OF_PROGRAMS else code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    words = parser.parse_args().words
    chosen = [defect for defect in DEFECTS if not words or any(word in defect.name for word in words)]
    when, of, is_right = today(), commit(), True
    for machine, what in dict.fromkeys((defect.machine, defect.what) for defect in chosen):
        if not is_quiet(machine, what):
            print(f"{machine} {what} finds something in the tree as it is, or does not run")
            is_right = False
    results = kept()
    for defect in chosen:
        begun = time.monotonic()
        is_found, line = tried(defect)
        is_right &= is_found
        row = [defect.name, when, of, defect.found_by(), f"{time.monotonic() - begun:.0f} s", line[:120]]
        results[defect.name] = row
        print(*row, sep="\t", flush=True)
    RESULTS.write_text("".join("\t".join(results[each.name]) + "\n" for each in DEFECTS if each.name in results))
    return 0 if is_right else 1


def kept() -> dict[str, list[str]]:
    rows = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {row.split("\t")[0]: row.split("\t") for row in rows}


if __name__ == "__main__":
    sys.exit(main())
