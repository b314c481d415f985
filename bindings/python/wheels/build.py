"""Builds the wheels of package and kit and the source distribution, and tries what can run here in a clean environment.

    python build.py OUT                      everything of `ITEMS`
    python build.py OUT --only 'cp312|abi3'  the wheels whose names match
    python build.py OUT --twice              builds each again, elsewhere, and compares the bytes

zig links against the oldest C library of the platform's tag, whatever the machine has. Exit code 1 if anything fails
that was tried; what was not tried is listed with its reason.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import address
import emulated
import kit

HERE = Path(__file__).resolve().parent
BINDINGS = HERE.parent
REPOSITORY = BINDINGS.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "wheels-build"


class Platform(NamedTuple):
    """A target of Rust's, and the tag of its wheels."""

    target: str
    tag: str


PLATFORMS = (
    Platform("x86_64-unknown-linux-gnu", "manylinux_2_17"),
    Platform("aarch64-unknown-linux-gnu", "manylinux_2_17"),
    Platform("x86_64-unknown-linux-musl", "musllinux_1_2"),
    Platform("aarch64-unknown-linux-musl", "musllinux_1_2"),
)
#: "abi3" is for the versions that have no wheel of their own.
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.14t", "abi3")
#: The oldest CPython that takes the stable ABI's wheel (the feature `abi3`).
OLDEST_ABI3 = "3.12"


class Wheel(NamedTuple):
    """One wheel to build."""

    platform: Platform
    version: str

    @property
    def name(self) -> str:
        """What `--only` matches."""
        tag = self.version if self.version == "abi3" else "cp" + self.version.replace(".", "")
        return f"{tag}-{self.platform.target}"

    @property
    def interpreters(self) -> tuple[str, ...]:
        """The versions on which it is tried."""
        return (OLDEST_ABI3, "3.13") if self.version == "abi3" else (self.version,)


def interpreter(version: str) -> str | None:
    """Returns a Python of this version that runs here: one on PATH, or pyenv's."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python{version}"), *map(str, root.glob(f"versions/*/bin/python{version}"))]
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    return None


def run(*command: object, **environment: str) -> str:
    """Returns what a command prints.

    Raises:
        SystemExit: it fails; what it printed is shown.
    """
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def surroundings(target: Path) -> dict[str, str]:
    """The environment of a build whose bytes do not depend on where and when it is made."""
    cargo = os.environ.get("CARGO_HOME", str(Path.home() / ".cargo"))
    places = {REPOSITORY: "/cai-dlpack", cargo: "/cargo", target: "/target"}
    return {
        # maturin calls zig as a module of the first Python.
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CARGO_TARGET_DIR": str(target),
        "RUSTFLAGS": " ".join(f"--remap-path-prefix={place}={name}" for place, name in places.items()),
        "SOURCE_DATE_EPOCH": run("git", "-C", REPOSITORY, "log", "-1", "--format=%ct").strip(),
    }


def maturin(*arguments: object, target: Path) -> None:
    """Runs maturin, for whatever interpreter it is told of: not for that of an environment."""
    for name in ("PYO3_PYTHON", "PYO3_BUILD_EXTENSION_MODULE"):
        os.environ.pop(name, None)
    with address.published(REPOSITORY, BINDINGS):
        run(Path(sys.executable).with_name("maturin"), *arguments, **surroundings(target))


def build(wheel: Wheel, out: Path, target: Path) -> Path:
    """Builds a wheel; returns the file."""
    chosen = ["--features", "abi3"] if wheel.version == "abi3" else []
    if wheel.version != "abi3":
        chosen = ["--interpreter", interpreter(wheel.version) or f"python{wheel.version}"]
    platform = ("--zig", "--target", wheel.platform.target, "--compatibility", wheel.platform.tag)
    with tempfile.TemporaryDirectory() as name:
        manifest = ("--manifest-path", BINDINGS / "Cargo.toml")
        maturin("build", "--release", "--locked", *manifest, *platform, *chosen, "--out", name, target=target)
        (made,) = Path(name).glob("*.whl")
        return Path(shutil.move(made, out / made.name))


def sdist(out: Path, target: Path) -> Path:
    """Makes the source distribution; returns the file."""
    maturin("sdist", "--manifest-path", BINDINGS / "Cargo.toml", "--out", out, target=target)
    (file,) = out.glob("*.tar.gz")
    return file


def try_in(file: Path, python: str, folder: Path) -> None:
    """Installs a file in a fresh environment, and runs the trial there on the simulated driver."""
    venv_python = folder / "bin" / "python"
    run(python, "-m", "venv", "--clear", folder)
    pip = (venv_python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
    run(*pip, "numpy")
    run(*pip, file)
    kit = str(REPOSITORY / "conformance/kit/src")
    simulated = (venv_python, "-m", "cai_conformance", "simulate", "--", venv_python)
    run(*simulated, HERE / "trial.py", "--device", PYTHONPATH=kit)


def trials(wheel: Wheel, file: Path, folder: Path) -> list[str]:
    """Tries a wheel on each interpreter that can; returns what was done, and why something was not."""
    if not wheel.platform.target.startswith(f"{os.uname().machine}-unknown-linux-gnu"):
        reason = emulated.missing(wheel.platform.target, wheel.interpreters, TARGET.parent)
        if reason:
            return [f"not tried: {reason}"]
        return [emulated.try_in(wheel.platform.target, file, HERE / "trial.py", TARGET.parent, run)]
    done = []
    for version in wheel.interpreters:
        python = interpreter(version)
        if python is None:
            done.append(f"not tried: no CPython {version} here")
        else:
            try_in(file, python, folder)
            done.append(f"tried on CPython {version}")
    return done


def digest(file: Path) -> str:
    """SHA-256."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def least_platform(wheel: Wheel, file: Path, folder: Path) -> str:
    """What auditwheel finds the wheel to need: the platform, or for musl the libraries.

    Those must not be looked for on this machine, whose libc.so is another file. zig links against musl by that name,
    which musl's loader takes for itself; auditwheel knows Alpine's name only.
    """
    show = (sys.executable, "-m", "auditwheel", "show")
    if wheel.platform.target.endswith("musl"):
        folder.mkdir(exist_ok=True)
        _, _, listed = run(*show, "--ldpaths", folder, file).partition("libraries are required by the wheel:")
        needed = re.findall(r'"([^"]+)": null', listed)
        return f"needs {', '.join(needed) or 'no library'}"
    return auditwheel(file)


def auditwheel(file: Path) -> str:
    """The platform that auditwheel finds the wheel to need."""
    shown = run(sys.executable, "-m", "auditwheel", "show", file)
    found = re.search(r'following platform tag:\s*"([^"]+)"', shown)
    return found[1] if found else "not known"


class Item(NamedTuple):
    """A file to build: `build` is given where it goes and Cargo's folder, `told` what was built and an empty folder."""

    name: str
    build: Callable[[Path, Path], Path]
    told: Callable[[Path, Path], list[str]]


def of_wheel(wheel: Wheel) -> Item:
    """A wheel of the package."""

    def told(file: Path, folder: Path) -> list[str]:
        return [least_platform(wheel, file, folder / "nothing"), *trials(wheel, file, folder / "environment")]

    return Item(wheel.name, lambda out, target: build(wheel, out, target), told)


def of_kit(target: str) -> Item:
    """A wheel of the conformance kit."""

    def told(file: Path, folder: Path) -> list[str]:
        lines = [] if target == "any" else [auditwheel(file)]
        if not target.startswith((os.uname().machine, "any")):
            return [*lines, "not tried: another platform than this"]
        run(sys.executable, "-m", "venv", "--clear", folder / "environment")
        python = folder / "environment" / "bin" / "python"
        run(python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "numpy", file)
        return [*lines, kit.try_in(file, python, run)]

    return Item(f"kit-{target}", lambda out, folder: kit.build(target, out, folder, run, surroundings(folder)), told)


def of_source() -> Item:
    """The source distribution of the package."""

    def told(file: Path, folder: Path) -> list[str]:
        try_in(file, sys.executable, folder / "environment")
        return ["built and tried on this CPython"]

    return Item("sdist", lambda out, target: sdist(out, target), told)


ITEMS = (
    *(of_wheel(Wheel(platform, version)) for platform in PLATFORMS for version in VERSIONS),
    of_source(),
    *map(of_kit, kit.TARGETS),
)


def main() -> int:
    """Builds, tries and lists."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="a regular expression: names of wheels, `kit-`, `sdist`")
    parser.add_argument("--twice", action="store_true", help="compare the bytes of two builds")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    is_same = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for item in ITEMS:
            if not re.search(options.only, item.name):
                continue
            file = item.build(options.out, TARGET)
            told = item.told(file, folder)
            if options.twice:
                (folder / "again").mkdir(exist_ok=True)
                again = item.build(folder / "again", folder / "target")
                is_equal = digest(again) == digest(file)
                told.append("the same bytes twice" if is_equal else "OTHER BYTES the second time")
                is_same &= is_equal
            size = f"{file.stat().st_size >> 10} KiB"
            print(f"{file.name}  {size}  sha256 {digest(file)[:16]}", *told, sep="\n    ", flush=True)
    run(sys.executable, "-m", "twine", "check", "--strict", *options.out.iterdir())
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
