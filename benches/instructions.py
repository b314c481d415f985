"""Instructions per conversion, counted by callgrind, beside the C floor.

    python benches/instructions.py             the table; exit code 1 where something rose by over 5%
    python benches/instructions.py --budgets   exit code 1 also where a budget is broken
    python benches/instructions.py --save      also the figures, as the ones to compare with

Instruction counts do not jitter: the same binary and interpreter give the same number, whatever
else the machine does. Every path runs in one process, called in a C loop through vectorcall; the
cost of an empty call is subtracted, and from the paths that read a producer's attribute that
attribute's cost (it is the producer's).

The floor answers the same call: the same keywords, given in the same way. Ratios to it are compared, since
counts are another machine's, with its own build of CPython and its own libc.

The budgets are those of docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
SAVED = HERE / "instructions.json"
CALLS = 2000
WARM_UP = 100
#: A rise above this is a failure of the guard.
TOLERANCE = 1.05
#: So much over a budget is not yet one: another compiler builds the floor a little differently.
SLACK = 1.02


class Path_(NamedTuple):
    """One conversion: ours, the floor's, and the budget as a multiple of the floor."""

    name: str
    ours: str
    floor: str
    budget: float
    #: What the producer's attribute costs is subtracted from both.
    reads_attribute: bool = False


PATHS = [
    Path_("CAI object -> consumed, freed capsule", "to_dlpack", "floor to_dlpack", 1.25, True),
    Path_("view.__dlpack__ -> consumed, freed", "dlpack", "floor dlpack", 1.5),
    Path_("DLPack object -> view, by __dlpack__", "from_dlpack", "floor from_dlpack", 1.6),
    Path_("view.__cuda_array_interface__", "cai", "floor cai", 1.1),
    Path_("CAI object -> view", "view", "floor view", 2.1, True),
    Path_("DLPack object -> view, C Exchange API", "from_exchange", "floor from_exchange", 2.0),
]


class Array:
    """A producer whose dict is made beforehand: its attribute costs as little as it can."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "<f4",
            "data": (0x7F0000000000, False),
            "strides": strides,
            "version": 3,
            "stream": None,
        }


def workloads() -> dict[str, tuple[Any, tuple[Any, ...], tuple[str, ...], bool]]:
    """Label -> (callable, arguments, names of the last of them, consume the result)."""
    import cai_dlpack as cd
    import floor  # type: ignore[import-not-found]

    array, deep = Array((3, 5)), Array((2,) * 8, tuple(4 * 3**axis for axis in range(8)))
    view, deep_view = cd.view(array, device_id=0), cd.view(deep, device_id=0)
    plain, deep_plain = floor.view(array), floor.view(deep)
    version = (1, 3)
    asked = (-1, version)
    names = ("stream", "max_version")
    get = cd.CaiView.__cuda_array_interface__.__get__
    plain_get = floor.View.__cuda_array_interface__.__get__
    return {
        "nothing": (floor.nothing, (None,), (), False),
        "attribute": (floor.attribute, (array,), (), False),
        "bare to_dlpack": (floor.to_dlpack_bare, (array,), (), True),
        "floor to_dlpack": (floor.to_dlpack, (array, *asked, 0), (*names, "device_id"), True),
        "floor to_dlpack 8": (floor.to_dlpack, (deep, *asked, 0), (*names, "device_id"), True),
        "to_dlpack": (cd.to_dlpack, (array, *asked, 0), (*names, "device_id"), True),
        "to_dlpack 8": (cd.to_dlpack, (deep, *asked, 0), (*names, "device_id"), True),
        "floor view": (floor.view, (array,), (), False),
        "view": (cd.view, (array, 0), ("device_id",), False),
        "view 8": (cd.view, (deep, 0), ("device_id",), False),
        "floor dlpack": (plain.__dlpack__, asked, names, True),
        "dlpack": (view.__dlpack__, asked, names, True),
        "floor dlpack 8": (deep_plain.__dlpack__, asked, names, True),
        "dlpack 8": (deep_view.__dlpack__, asked, names, True),
        "floor from_dlpack": (floor.from_dlpack, (plain,), (), False),
        "from_dlpack": (cd.from_dlpack, (plain,), (), False),
        "floor from_exchange": (floor.from_exchange, (plain,), (), False),
        "from_exchange": (cd.view, (plain,), (), False),
        "floor cai": (plain_get, (plain,), (), False),
        "cai": (get, (view,), (), False),
    }


def measure() -> None:
    """Runs every workload; callgrind writes one part of its output for each."""
    import floor

    for label, (call, arguments, names, consume) in workloads().items():
        floor.loop(call, arguments, names or None, WARM_UP, "warm-up", consume)
        floor.loop(call, arguments, names or None, CALLS, label, consume)


def build(folder: Path, *macros: str) -> None:
    """Compiles the floor as distributions compile their extensions."""
    source = HERE / "floor" / "floor.c"
    include = f"-I{sysconfig.get_path('include')}"
    command = ["cc", "-O3", *(f"-D{macro}" for macro in macros), "-shared", "-fPIC", include, str(source)]
    subprocess.run([*command, "-o", str(folder / "floor.so")], check=True)


def count(folder: Path, script: Path = Path(__file__), *arguments: str) -> dict[str, float]:
    """Instructions per call of each workload that `script --measure` runs, with these arguments too."""
    output = folder / "callgrind.out"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={output}", sys.executable, str(script)]
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    # A fixed hash seed: the layout of dicts is part of what is counted.
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path}
    command += ["--measure", *arguments]
    subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL)
    counts = {}
    for part in folder.glob("callgrind.out.*"):
        text = part.read_text(errors="replace")
        label = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE)
        total = re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)
        if label and total and label[1] != "warm-up":
            counts[label[1]] = int(total[1]) / CALLS
    return counts


def ratios(counts: dict[str, float]) -> dict[str, tuple[float, float, float]]:
    """Name -> (ours, the floor's, the budget as a multiple), the producer's part taken off."""
    empty = counts["nothing"]
    attribute = counts["attribute"] - empty
    rows = {}
    for path in PATHS:
        above = empty + (attribute if path.reads_attribute else 0)
        rows[path.name] = (counts[path.ours] - above, counts[path.floor] - above, path.budget)
    above = empty + attribute
    deep = "to_dlpack: ndim 8 strided, to ndim 2"
    rows[deep] = (counts["to_dlpack 8"] - above, counts["to_dlpack"] - above, 1.4)
    return rows


def table(counts: dict[str, float]) -> bool:
    """Prints the table; whether no budget is broken by more than the slack."""
    good = True
    print(f"{'path':40} {'ours':>7} {'floor':>7} {'ratio':>6} {'budget':>7}")
    for name, (ours, floor, budget) in ratios(counts).items():
        holds = ours <= floor * budget
        good &= ours <= floor * budget * SLACK
        mark = "" if holds else "  over"
        print(f"{name:40} {ours:7.0f} {floor:7.0f} {ours / floor:6.2f} {budget:7.2f}{mark}")
    return good


def compare(counts: dict[str, float]) -> bool:
    """Compares with the saved figures; whether nothing rose by over 5%."""
    if not SAVED.exists():
        print("no saved figures to compare with")
        return True
    saved = json.loads(SAVED.read_text())
    before = {name: ours / floor for name, (ours, floor, _) in ratios(saved["counts"]).items()}
    now = {name: ours / floor for name, (ours, floor, _) in ratios(counts).items()}
    risen = [name for name in before if now[name] > before[name] * TOLERANCE]
    for name in risen:
        print(f"risen: {name}: {before[name]:.4g} -> {now[name]:.4g}")
    return not risen


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--budgets", action="store_true", help="fail where a budget is broken")
    parser.add_argument("--save", action="store_true", help="keep the figures")
    arguments = parser.parse_args()
    if arguments.measure:
        measure()
        return 0
    if not shutil.which("valgrind"):
        print("not run: valgrind is not installed (Debian: apt install valgrind)")
        return 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder, "WITH_CALLGRIND")
        counts = count(folder)
    in_budget = table(counts) or not arguments.budgets
    good = compare(counts) and in_budget
    if arguments.save:
        figures = {"python": platform.python_version(), "counts": counts}
        SAVED.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
