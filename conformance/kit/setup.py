"""Builds the simulated driver with cargo and puts it into the wheel, if there are cargo and the driver's source.

Everything else is in pyproject.toml. The source is `conformance/simulator` of the same repository. Without it, without
cargo, or with CAI_CONFORMANCE_SIM=0 in the environment, the wheel is one for every platform and has no driver; with
CAI_CONFORMANCE_SIM=1 that is an error. CAI_CONFORMANCE_DRIVER names a driver that is built already, for whatever
platform.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

REPOSITORY = Path(__file__).resolve().parents[2]
CRATE = REPOSITORY / "conformance" / "simulator"
BUILT = os.environ.get("CAI_CONFORMANCE_DRIVER", "")
ASKED = os.environ.get("CAI_CONFORMANCE_SIM", "")
WITH_DRIVER = ASKED == "1" or (ASKED != "0" and (CRATE / "Cargo.toml").exists() and shutil.which("cargo") is not None)
#: Has the repository's address, and is not there in a copy of this folder alone.
ADDRESS = REPOSITORY / "bindings" / "python" / "wheels"


def build_driver() -> Path:
    """The path of the shared library, built for release."""
    if BUILT:
        return Path(BUILT)
    if not (CRATE / "Cargo.toml").exists():
        raise SystemExit(f"{CRATE}: not found; build cai-conformance from a clone of the repository")
    command = ["cargo", "build", "--release", "--locked", "--manifest-path", str(CRATE / "Cargo.toml")]
    built = subprocess.run(
        [*command, "--message-format=json-render-diagnostics"], check=True, stdout=subprocess.PIPE, text=True
    )
    artifacts = [json.loads(line) for line in built.stdout.splitlines()]
    for artifact in artifacts:
        target = artifact.get("target", {})
        if target.get("name") == "cusim" and "cdylib" in target["kind"] and "filenames" in artifact:
            return Path(artifact["filenames"][0])
    raise SystemExit("cargo built no cusim library")


class BuildWithDriver(build_py):
    """Copies the library beside the modules, under the names that the dynamic loader looks for."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # found in the target folder of the clone
        folder = Path(self.build_lib) / "cai_conformance" / "_lib"
        folder.mkdir(parents=True, exist_ok=True)
        driver = build_driver()
        for name in ("libcuda.so.1", "libcuda.so"):
            shutil.copy2(driver, folder / name)
        shutil.copy2(CRATE / "cusim.h", folder / "cusim.h")


class PlatformWheel(bdist_wheel):
    """For every Python 3 of this platform: the library does not link to Python."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(Distribution):
    """Marks the wheel as one with compiled code."""

    def has_ext_modules(self) -> bool:
        return True


os.chdir(Path(__file__).resolve().parent)
urls = {}
if (ADDRESS / "address.py").exists():
    sys.path.insert(0, str(ADDRESS))
    import address

    if where := address.repository(REPOSITORY):
        urls["Source Code"] = where
if WITH_DRIVER:
    commands = {"build_py": BuildWithDriver, "bdist_wheel": PlatformWheel}
    setup(cmdclass=commands, distclass=BinaryDistribution, project_urls=urls)
else:
    print("cai-conformance: without the simulated driver")
    setup(project_urls=urls)
