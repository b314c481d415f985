"""Counts which lines of the library the Rust and the Python tests reach, and keeps the ones that none does.

    python -m conformance.soak.coverage                     builds and runs every test
    python -m conformance.soak.coverage --add TESTS         these Python tests, beside what the last runs reached
    python -m conformance.soak.coverage --read              reads the profiles of the last runs again

The Rust tests, the extension and the example extensions are built with `-Cinstrument-coverage`, so that each count is
in a file from the moment when it changes: what a killed process or a forked child reached is counted. The profiles are
read by LLVM's own tools, of the nightly compiler: `rustup component add llvm-tools --toolchain nightly`. Why a line is
not reached stands in conformance/soak/uncovered.tsv, by file and by what the line begins with; the result tells what
has no reason there, and which tests were run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from conformance.provenance import commit, today

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute() / "coverage"
PACKAGE = TARGET / "package"
PROFILES = TARGET / "profiles"
#: What the profiles are of.
RUNS = PROFILES / "runs.txt"
RESULTS = ROOT / "conformance" / "results" / "coverage.txt"
REASONS = ROOT / "conformance" / "soak" / "uncovered.tsv"
FOLDERS = ("protocol", "driver", "view", "share", "python")
LEAST = 0.97
FEATURES = "pyo3,cudarc,half,ndarray,num-complex,cudarc/cuda-12020"
#: The extensions, by crate. `src/python/argument` is generic: only the examples have its code.
EXTENSIONS = {
    "cai-dlpack-python": PACKAGE / "cai_dlpack" / "_core.so",
    "cai-example": PACKAGE / "cai_example" / "cai_example.so",
    "cai-example-peer": PACKAGE / "cai_example_peer" / "cai_example_peer.so",
}
#: Files that only tests have.
FOR_TESTS = re.compile(r"/tests\.rs$|_tests\.rs$|/(programs|script|simulated|simulator|loom|orders)\.rs$")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--read", action="store_true")
    parser.add_argument("--add", action="store_true")
    parser.add_argument("tests", nargs="*", help="the Python tests")
    asked = parser.parse_args()
    if not (asked.read or asked.add):
        shutil.rmtree(PROFILES, ignore_errors=True)
    PROFILES.mkdir(parents=True, exist_ok=True)
    provenance = f"{today()}, commit {commit()}"
    binaries = built()
    failed = 0
    if not asked.read:
        tests = asked.tests or ([] if asked.add else ["conformance/tests"])
        failed, summary = run([] if asked.add and tests else binaries, tests)
        with RUNS.open("a") as runs:
            rust = "" if asked.add and tests else "every Rust test; "
            runs.write(f"{provenance}: {rust}Python: {' '.join(tests)}: {summary}\n")
    return report(reached([*binaries, *EXTENSIONS.values()])) or failed


def built() -> list[Path]:
    """Builds the tests and the extensions, and returns the test binaries."""
    flags = "-Cinstrument-coverage -Cllvm-args=-runtime-counter-relocation"
    settings = {**os.environ, "RUSTFLAGS": flags, "LLVM_PROFILE_FILE": "/dev/null"}
    cargo = ["--locked", "--target-dir", str(TARGET)]
    tests = ["cargo", "test", "--no-run", "--package", "cai-dlpack", "--lib", "--test", "rust", "--features", FEATURES]
    told = subprocess.run([*tests, *cargo], cwd=ROOT, env=settings, check=True, stderr=subprocess.PIPE, text=True)
    shutil.rmtree(PACKAGE, ignore_errors=True)
    shutil.copytree(ROOT / "bindings" / "python" / "python" / "cai_dlpack", PACKAGE / "cai_dlpack")
    for crate, extension in EXTENSIONS.items():
        subprocess.run(["cargo", "build", "--package", crate, *cargo], cwd=ROOT, env=settings, check=True)
        if not extension.parent.exists():  # as its wheel has it
            installed = Path(sysconfig.get_path("platlib")) / extension.parent.name
            shutil.copytree(installed, extension.parent, ignore=shutil.ignore_patterns("*.so"))
        shutil.copy2(TARGET / "debug" / f"lib{extension.stem}.so", extension)
    return [ROOT / path for path in re.findall(r"Executable .*\((.*)\)", told.stderr)]


def run(binaries: list[Path], tests: list[str]) -> tuple[int, str]:
    """Runs all tests; returns the exit code of the Python ones, which counts after the report, and their summary."""
    # One file for all processes of a binary, which share it: thousands are started.
    settings = {**os.environ, "LLVM_PROFILE_FILE": str(PROFILES / "%c%m.profraw")}
    for binary in binaries:
        subprocess.run([str(binary), "-q", "--skip", "uncompilable"], cwd=ROOT, env=settings, check=True)
    if not tests:
        return 0, "none"
    kit = ROOT / "conformance" / "kit" / "src"
    # The tests that end interpreters choose their package themselves.
    interpreter = f"instrumented|{sys.executable}|{PACKAGE}"
    settings |= {"PYTHONPATH": f"{PACKAGE}:{kit}", "CAI_DLPACK_PYTHONS": interpreter}
    simulated = [sys.executable, "-m", "cai_conformance", "simulate", "--", sys.executable]
    pytest = ["-m", "pytest", "-q", "--numprocesses", "auto", "--dist", "loadfile", *tests]
    summary = "not ended"
    with subprocess.Popen([*simulated, *pytest], cwd=ROOT, env=settings, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            if re.search(r"\d+ (passed|failed|error).* in ", line):
                summary = line.strip("= \n")
    return process.returncode, summary


def llvm(tool: str, *arguments: str | Path) -> str:
    ask = ["rustc", "+nightly", "--print", "target-libdir"]
    library = subprocess.run(ask, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    command = [Path(library).parent / "bin" / tool, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def reached(objects: list[Path]) -> dict[str, dict[int, bool]]:
    """Returns the lines of each file that have code, and whether a test has reached them."""
    merged = TARGET / "all.profdata"
    llvm("llvm-profdata", "merge", "--sparse", "-o", merged, *sorted(PROFILES.glob("*.profraw")))
    others = [flag for each in objects[1:] for flag in ("--object", each)]
    lcov = llvm("llvm-cov", "export", "--format=lcov", f"--instr-profile={merged}", objects[0], *others)
    lines: dict[str, dict[int, bool]] = defaultdict(dict)
    file = ""
    for record in lcov.splitlines():
        kind, _, rest = record.partition(":")
        if kind == "SF":
            file = rest.removeprefix(f"{ROOT}/")
        elif kind == "DA":
            line, count = rest.split(",")[:2]
            lines[file][int(line)] = lines[file].get(int(line), False) or int(count) > 0
    return lines


def folder(file: str) -> str | None:
    parts = file.split("/")
    is_ours = parts[0] == "src" and len(parts) > 2 and parts[1] in FOLDERS and not FOR_TESTS.search(file)
    return parts[1] if is_ours else None


def report(lines: dict[str, dict[int, bool]]) -> int:
    counted: dict[str, list[int]] = {name: [0, 0] for name in FOLDERS}
    uncovered: list[str] = []
    reasons = [line.split("\t") for line in REASONS.read_text().splitlines() if not line.startswith("#")]
    unexplained = 0
    for file in sorted(lines):
        name = folder(file)
        if name is None:
            continue
        text = (ROOT / file).read_text().splitlines()
        counted[name][0] += sum(lines[file].values())
        counted[name][1] += len(lines[file])
        for first, last in ranges(sorted(line for line, is_reached in lines[file].items() if not is_reached)):
            code = text[first - 1].strip()
            why = next((why for known, start, why in reasons if known == file and code.startswith(start)), None)
            unexplained += why is None
            place = f"{file}:{first}" + (f"-{last}" if last > first else "")
            uncovered.append(f"  {place}: {code[:90]}" + (f"\n      {why}" if why else ""))
    told = ["coverage", *RUNS.read_text().splitlines()]
    for name, (covered, of) in counted.items():
        told.append(f"{name}: {covered} of {of} lines, {covered / max(of, 1):.2%}")
    told += [f"{len(uncovered)} places are not reached, {unexplained} of them without a reason:", *uncovered]
    RESULTS.write_text("\n".join(told) + "\n")
    print("\n".join(line for line in told if not line.startswith(" ")))
    return 0 if all(covered >= LEAST * of for covered, of in counted.values()) else 1


def ranges(lines: list[int]) -> Iterator[tuple[int, int]]:
    """Returns runs of lines, of which comments between do not part them."""
    while lines:
        end = 1
        while end < len(lines) and lines[end] - lines[end - 1] <= 1:
            end += 1
        yield lines[0], lines[end - 1]
        lines = lines[end:]


if __name__ == "__main__":
    sys.exit(main())
