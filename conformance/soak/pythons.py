"""Builds the extension for every CPython that is found, and runs the tests of ends on each.

    python -m conformance.soak.pythons FOLDER [pytest's arguments...]

A version that is not found, or cannot build, is listed with its reason; it is no failure, as a machine
with one interpreter must do. The tests run in this interpreter, and start the others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The last is free-threaded.
VERSIONS = ["3.10", "3.11", "3.12", "3.13", "3.14", "3.14t"]
ASK = """
import sys, sysconfig
kind = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print("%d.%d" % sys.version_info[:2] + kind, sys.implementation.name)
"""
NAMES = ["collections", "fork", "killed", "recursion", "shutdown", "soon", "subinterpreters"]
ENDS = [f"test_{name}.py" for name in NAMES]


def candidates(version: str) -> list[str]:
    """Returns the candidates for a version: on PATH, built by `cpython.sh`, or among pyenv's."""
    found = [shutil.which(f"python{version}")]
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    found += [str(each) for each in sorted(target.glob(f"cpython/*/bin/python{version}"))]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found += [str(each) for each in sorted(pyenv.glob(f"*/bin/python{version}"))]
    return [each for each in found if each]


def usable(version: str) -> str | None:
    """Returns an interpreter that runs and has the version of its name."""
    for each in candidates(version):
        answer = subprocess.run([each, "-c", ASK], capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.split() == [version, "cpython"]:
            return each
    return None


def build(python: str, folder: Path) -> str | None:
    """Builds and unpacks the wheel for an interpreter; why not, where it fails."""
    shutil.rmtree(folder, ignore_errors=True)
    wheels = folder / "wheel"
    maturin = [sys.executable, "-m", "maturin", "build", "--release", "--locked", "--quiet"]
    manifest = str(ROOT / "bindings" / "python" / "Cargo.toml")
    command = [*maturin, "--manifest-path", manifest, "--interpreter", python, "--out", str(wheels)]
    environment = {**os.environ, "PYO3_PYTHON": python}
    built = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        return (built.stderr.strip().splitlines() or ["no reason given"])[-1]
    for wheel in wheels.glob("*.whl"):
        shutil.unpack_archive(wheel, folder / "package", format="zip")
    return None


def main() -> int:
    target, arguments = Path(sys.argv[1]).resolve(), sys.argv[2:]
    ready = []
    for version in VERSIONS:
        python = usable(version)
        if python is None:
            print(f"not run: CPython {version}: not found on PATH or among pyenv's versions, nor built")
            continue
        reason = build(python, target / version)
        if reason is not None:
            print(f"not run: CPython {version}: {reason}")
            continue
        print(f"runs: CPython {version}")
        ready.append(f"{version}|{python}|{target / version / 'package'}")
    sys.stdout.flush()
    tests = [str(ROOT / "conformance" / "tests" / "ownership" / name) for name in ENDS]
    environment = {**os.environ, "CAI_DLPACK_PYTHONS": " ".join(ready)}
    command = [sys.executable, "-m", "pytest", "-q", *tests, *arguments]
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
