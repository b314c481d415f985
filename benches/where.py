"""Where the instructions of our own cost go: each one by the source file that it is of.

    python benches/where.py                    the table, by what the instructions are for
    python benches/where.py --files            also by file
    python benches/where.py --without NAME     counts a build without a part (`REMOVALS`), and what the part costs

The package is built anew with its symbols, from the files that git tracks, in Cargo's target folder. An instruction of
an inlined function counts for the innermost frame that is of this library, so that what the standard library does is
counted for the file that calls it. How it counts: instructions.py.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import instructions
from instructions import CALLS, CONVERSIONS

REPOSITORY = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "where"

#: What the code is for, by how its path under `src` begins; the first that fits.
PURPOSES = {
    "the call": ("python/cpython/fastcall", "python/functions", "python/methods", "python/call", "python/derived"),
    "numbers, names": ("python/cpython/compact_int", "python/cpython/int", "python/cpython/t", "python/cpython/names"),
    "the dict": ("python/import/cai_dict", "python/export/cai_dict"),
    "checks": ("protocol/",),
    "streams": ("view/streams", "view/order", "python/import/undeclared"),
    "ownership": (
        "view/payload",
        "view/owner",
        "view/stats",
        "process/",
        "python/cpython/release",
        "python/cpython/gil",
        "python/cpython/reaper",
        "python/cpython/thread_exit",
        "view/kinds",
    ),
    "tensor, capsule": (
        "view/block",
        "view/ticket",
        "view/import",
        "view/export",
        "python/capsule",
        "python/export/dlpack",
        "python/exchange_table",
    ),
    "the object": ("python/class", "view/"),
    "the route": ("python/",),
}
REST = "other"


class Removal(NamedTuple):
    """A part of the library, taken out by replacing text in its sources."""

    #: File -> (what stands there, what stands there instead).
    edits: dict[str, list[tuple[str, str]]]


#: What keeps wrong arrays out: built without, the library takes them.
REMOVALS = {
    # Overflow, span, alignment, null and element types, for a dict and for a tensor.
    "checks": Removal(
        {
            "src/protocol/layout/check_fast.rs": [
                ("        self.rest |= stride & 1_i64.wrapping_shl(shift).wrapping_sub(1);\n", ""),
                ("        self.least = self.least.min(extent);\n", ""),
                ("        self.reach.whole = self.reach.whole.wrapping_add(far);\n", ""),
                ("        self.reach.whole = self.step;\n", ""),
                ("        self.all |= extent | size | self.reach.whole | self.step;", ""),
                ("        self.all |= extent.cast_unsigned() | self.step;\n", ""),
                (
                    "        if self.step == 0 || self.all >> 32 != 0 || self.rest != 0 || hides_order {\n"
                    "            return None;\n        }\n",
                    "        let _ = hides_order;\n",
                ),
                (
                    "    data >= reach.below.wrapping_mul(itemsize) && data.checked_add(above).is_some()\n",
                    "    let _ = (above, data);\n    true\n",
                ),
            ],
            "src/protocol/convert.rs": [
                (
                    "        if !is_plain || self.data == 0 || misaligned != 0 {\n"
                    "            return None;\n        }\n",
                    "        let _ = (is_plain, misaligned);\n",
                ),
            ],
            "src/protocol/descriptor.rs": [
                (
                    "        if raw.device.is_opaque() || dtype.is_sub_byte() || is_negative {\n"
                    "            return None;\n        }\n",
                    "        let _ = is_negative;\n",
                ),
                (
                    "        let data = raw.data.checked_add(raw.byte_offset)?;\n",
                    "        let data = raw.data.wrapping_add(raw.byte_offset);\n",
                ),
                (
                    "        if raw.data == 0 || misaligned != 0 "
                    "|| !layout::is_within_memory(data, reach, itemsize) {\n"
                    "            return None;\n        }\n",
                    "        let _ = (misaligned, reach);\n",
                ),
            ],
        }
    ),
    # The question whether conversions are traced, while none is.
    "trace": Removal(
        {
            "src/python/cpython/tracing.rs": [
                ("    REASONS.load(Ordering::Relaxed) != 0\n", "    false\n"),
            ],
        }
    ),
    # Fork, thread exit, the chain of ends, and the thread that an end must be on.
    "safe ends": Removal(
        {
            "src/view/payload.rs": [
                ("        self.generation != generation() && !self.vtable.survives_fork\n", "        false\n"),
                ("    if cfg!(all(loom, test)) {\n", "    if true {\n"),
            ],
            "src/python/cpython/gil.rs": [
                ("    INTERPRETER.get().is_some_and(Interpreter::is_held)\n", "    true\n"),
            ],
        }
    ),
}


def build(removal: Removal | None) -> Path:
    """Builds the package with symbols, and returns the folder to import it from."""
    tree = REPOSITORY
    if removal:
        tree = TARGET / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (REPOSITORY / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(REPOSITORY / name, tree / name)
        for name, edits in removal.edits.items():
            text = (tree / name).read_text()
            for before, after in edits:
                if text.count(before) != 1:
                    raise SystemExit(f"{name} has not exactly once: {before}")
                text = text.replace(before, after)
            (tree / name).write_text(text)
    environment = {
        **os.environ,
        "CARGO_PROFILE_RELEASE_STRIP": "none",
        "PYO3_PYTHON": sys.executable,
        "PYO3_BUILD_EXTENSION_MODULE": "1",
        "RUSTFLAGS": "-Awarnings",
    }
    command = ["cargo", "build", "--quiet", "--release", "--locked", "--package", "cai-dlpack-python"]
    subprocess.run([*command, "--target-dir", str(TARGET)], cwd=tree, env=environment, check=True)
    package = TARGET / "package"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(REPOSITORY / "bindings/python/python/cai_dlpack", package / "cai_dlpack")
    shutil.copy(TARGET / "release" / "lib_core.so", package / "cai_dlpack" / "_core.so")
    return package


def profiles(package: Path) -> dict[str, str]:
    """Callgrind's output for each workload of instructions.py, with addresses."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        instructions.build(folder, "WITH_CALLGRIND")
        return instructions.profiles(folder, options=["--dump-instr=yes"])


def by_address(profile: str) -> Counter[int]:
    """Instructions of the extension per call, by their address in the file."""
    spent: Counter[int] = Counter()
    is_ours = is_callees = False
    for line in profile.splitlines():
        if line.startswith("ob="):
            is_ours = Path(line[3:]).name == "_core.so"
        elif line.startswith("calls="):
            is_callees = True
        elif found := re.match(r"(0x[0-9a-f]+) \d+ (\d+)$", line):
            if is_ours and not is_callees:
                spent[int(found[1], 16)] += int(found[2])
            is_callees = False
    return spent


def files_of(library: Path, addresses: list[int]) -> dict[int, str]:
    """The innermost file of this library that the instruction at each address is of, under `src`."""
    command = ["addr2line", "-a", "-i", "-e", str(library)]
    text = "\n".join(hex(address) for address in addresses)
    found = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    files: dict[int, str] = {}
    address = 0
    for line in found.splitlines():
        if line.startswith("0x"):
            address = int(line, 16)
        elif address in files or re.search(r"/(?:registry|rustc|rustlib)/", line):
            continue
        elif inside := re.search(r"(?:^|/)src/([a-z_/0-9]+\.rs):", line):
            files[address] = inside[1]
    return files


def purpose(file: str) -> str:
    """What the code of a file is for."""
    return next((purpose for purpose, starts in PURPOSES.items() if file.startswith(starts)), REST)


def table(texts: dict[str, str], library: Path, is_by_file: bool) -> None:
    """Prints our own cost by purpose: the bridge's instructions, and what CPython and the C library do for it."""
    ours = {conversion: by_address(texts[conversion.label]) for conversion in CONVERSIONS}
    files = files_of(library, sorted(set().union(*ours.values())))
    columns = [*PURPOSES, REST]
    print(f"{'the bridge, instructions per call':40}", *(f"{column:>16}" for column in columns), f"{'called':>8}")
    for conversion, spent in ours.items():
        by_file: Counter[str] = Counter()
        for address, count in spent.items():
            by_file[files.get(address, "?")] += count / CALLS
        by_purpose: Counter[str] = Counter()
        for file, count in by_file.items():
            by_purpose[purpose(file)] += count
        producer = instructions.total(texts[conversion.producer])
        called = instructions.total(texts[conversion.label]) - producer - sum(by_purpose.values())
        print(f"{conversion.name:40}", *(f"{by_purpose[column]:16.0f}" for column in columns), f"{called:8.0f}")
        if is_by_file:
            for file, count in by_file.most_common():
                print(f"{'':8}{file:50}{count:8.0f}  {purpose(file)}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--without", choices=REMOVALS, action="append", default=[])
    arguments = parser.parse_args()
    package = build(None)
    texts = profiles(package)
    print(f"commit {instructions.commit()}, CPython {sys.version.split()[0]}")
    table(texts, package / "cai_dlpack" / "_core.so", arguments.files)
    whole = instructions.costs({label: instructions.total(text) for label, text in texts.items()})
    for name in arguments.without:
        fewer = {label: instructions.total(text) for label, text in profiles(build(REMOVALS[name])).items()}
        print(f"\n{f'own cost, without {name}':40} {'ours':>6} {'without':>8} {'floor':>6} {'ratio':>6} {'without':>8}")
        for conversion, cost in instructions.costs(fewer).items():
            with_all = whole[conversion]
            ratios = f"{with_all.ratio:6.2f} {cost.ratio:8.2f}"
            print(f"{conversion.name:40} {with_all.ours:6.0f} {cost.ours:8.0f} {cost.floor:6.0f} {ratios}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
