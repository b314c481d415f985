"""What the library adds to an extension module: seconds of a clean release build, crates, and bytes.

    python benches/build_cost.py                   by the profile that docs/rust.md asks for (lto = "fat")
    python benches/build_cost.py --profile cargo   by Cargo's own release profile

Each module has one function, which takes an array and returns it; one of them by PyO3 alone. CPU seconds are user and
system time of all compilers; on a machine that is busy with other things they differ less than wall time does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

PYO3 = """
use pyo3::prelude::*;

#[pyfunction]
fn same(a: Bound<'_, PyAny>) -> Bound<'_, PyAny> {
    a
}
"""
OURS = """
use cai_dlpack::{CaiView, python::In};
use pyo3::prelude::*;

#[pyfunction]
fn same(a: In<f32, 1>) -> CaiView {
    a.into_cai()
}
"""
MODULE = """
#[pymodule]
mod extension {
    #[pymodule_export]
    use super::same;
}
"""
#: Uses cudarc as each module with it does: one allocation on a new stream.
CUDARC = """
#[pyfunction]
fn allocate() -> usize {
    let context = cudarc::driver::CudaContext::new(0).expect("a device");
    context.new_stream().and_then(|stream| stream.alloc_zeros::<f32>(4)).expect("memory").len()
}
"""

PROFILES = {
    "fat": 'strip = "symbols"\nlto = "fat"\ncodegen-units = 1\n',
    "cargo": 'strip = "symbols"\n',
}


class Extension(NamedTuple):
    """A module, and the dependencies that it names."""

    name: str
    code: str
    dependencies: tuple[str, ...]


def extensions() -> list[Extension]:
    """The three that are compared, with this workspace's versions."""
    versions = dict(re.findall(r"^(\w+) = (\{ version.*\})$", (ROOT / "Cargo.toml").read_text(), re.MULTILINE))
    pyo3 = "pyo3 = " + versions["pyo3"].replace("default-features = false", 'features = ["macros"]')
    cudarc = "cudarc = " + versions["cudarc"].replace(" features = [", ' features = ["cuda-12020", ')
    ours = f'cai-dlpack = {{ path = "{ROOT}", features = %s }}'
    with_cudarc = CUDARC + MODULE.replace("same;", "{allocate, same};")
    return [
        Extension("pyo3, cudarc", PYO3 + with_cudarc, (pyo3, cudarc)),
        Extension("pyo3, cudarc, cai-dlpack", OURS + with_cudarc, (pyo3, cudarc, ours % '["pyo3", "cudarc"]')),
        Extension("pyo3, cai-dlpack", OURS + MODULE, (pyo3, ours % '["pyo3"]')),
    ]


class Cost(NamedTuple):
    """What one clean build takes and makes."""

    cpu: float
    wall: float
    crates: int
    nbytes: int


def build(extension: Extension, profile: str, folder: Path) -> Cost:
    """Builds an extension in an empty folder.

    Raises:
        SystemExit: it does not build.
    """
    (folder / "src").mkdir()
    (folder / "src" / "lib.rs").write_text(extension.code)
    dependencies = "\n".join(extension.dependencies)
    (folder / "Cargo.toml").write_text(
        '[package]\nname = "extension"\nversion = "0.1.0"\nedition = "2024"\n\n[lib]\ncrate-type = ["cdylib"]\n\n'
        f"[dependencies]\n{dependencies}\n\n[profile.release]\n{PROFILES[profile]}\n[workspace]\n"
    )
    shutil.copy(ROOT / "Cargo.lock", folder)
    command = ["cargo", "build", "--release", "--quiet", "--message-format=json-render-diagnostics"]
    environment = {"PYO3_PYTHON": sys.executable, "PYO3_BUILD_EXTENSION_MODULE": "1", "CARGO_INCREMENTAL": "0"}
    environment["CARGO_TARGET_DIR"] = str(folder / "target")
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=False
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{extension.name}: cargo build failed")
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    built = {message["package_id"] for message in messages if message["reason"] == "compiler-artifact"}
    (library,) = (folder / "target" / "release").glob("libextension.*so")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu, wall, len(built) - 1, library.stat().st_size)


def main() -> int:
    """Builds each, and prints the rows of docs/performance.md."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--profile", choices=PROFILES, default="fat")
    options = parser.parse_args()
    print("| extension | CPU seconds | seconds | crates | KiB |", "|---|---|---|---|---|", sep="\n", flush=True)
    for extension in extensions():
        with tempfile.TemporaryDirectory() as name:
            cost = build(extension, options.profile, Path(name))
        numbers = f"{cost.cpu:.0f} | {cost.wall:.0f} | {cost.crates} | {cost.nbytes / 1024:.0f}"
        print(f"| {extension.name} | {numbers} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
