"""Instructions per conversion, counted by callgrind, beside the C floor.

    python benches/instructions.py             the tables; exit code 1 where a ratio moved by over 5%: risen, or stale
    python benches/instructions.py --budgets   exit code 1 also where a budget is broken
    python benches/instructions.py --save      also the figures, as the ones to compare with

Instruction counts do not jitter: the same binary and interpreter give the same number, whatever
else the machine does. Every path runs in one process, called in a C loop through vectorcall.

What is compared is own cost. Subtracted from all three columns are the empty call and the producer's part: the
attribute of a CAI object; `__dlpack_device__`, `__dlpack__` and the end of what they made; the functions of the
exchange table. A capsule is consumed without a call, so the consumer has no part in it.

The floor answers the same call: the same keywords, given in the same way. `checked` is the floor built with the
checks that ours makes (floor/check.h): from the floor to it is what validation costs, from it to ours what everything
else does. Ratios are compared, since counts are another machine's, with its own build of CPython and its own libc.

The budgets are those of docs/performance.md.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
SAVED = HERE / "instructions.json"
CALLS = 2000
WARM_UP = 100
ALIVE = 7
#: A rise above this is a failure of the guard.
TOLERANCE = 1.05
#: Caches by the address of a type (CPython's of attributes, ours of traits) have it in the first place or in another:
#: of runs whose addresses differ by so many bytes the least counts.
PADDINGS = (0, 3000, 9001)
#: So much over a budget is not yet one: another compiler builds the floor a little differently.
SLACK = 1.02


#: Where instructions are spent, by how the file's name begins.
PLACES = {"bridge": ("_core.",), "CPython": ("libpython", "python"), "bench": ("floor.",)}
#: The two builds of floor.c: with and without the checks.
FLOORS = {"floor": 0, "floor_checked": 1}
#: An empty library of the name of CUDA's driver.
CUDA = "libcuda.so.empty"


class Conversion(NamedTuple):
    """One conversion, whose three workloads differ in the word before their label."""

    name: str
    #: The label of ours; with "floor " and "checked " before it, that of the floors.
    label: str
    #: Own cost as a multiple of the floor's: the most that CPython 3.10 to 3.13 counted, which all share it.
    budget: float
    #: The workload that is the producer's part; "nothing" where there is none.
    producer: str = "nothing"


CONVERSIONS = [
    Conversion("CAI object -> consumed, freed capsule", "to_dlpack", 1.73, "attribute"),
    Conversion("the same, 8 axes strided", "to_dlpack 8", 1.94, "attribute"),
    Conversion("view.__dlpack__ -> consumed, freed", "dlpack", 2.48),
    Conversion("CAI object -> view", "view", 2.28, "attribute"),
    Conversion("DLPack object -> view, by __dlpack__", "from_dlpack", 7.9, "ask"),
    Conversion("DLPack object -> view, C Exchange API", "from_exchange", 5.15, "ask_exchange"),
    Conversion("view.__cuda_array_interface__", "cai", 1.1, "getter"),
]


class HandOver(NamedTuple):
    """A whole hand-over by `cd.to`, beside the line that a user writes with a view."""

    name: str
    #: The workload of `cd.to`; with "line " before it, that of the line.
    label: str
    #: `cd.to` as a multiple of the line.
    budget: float


HAND_OVERS = [
    HandOver("NumPy array -> NumPy, by a call", "to numpy", 1.0),
    HandOver("NumPy array -> tvm-ffi, by a call", "to tvm-ffi", 1.01),
    HandOver("NumPy array -> cuda.core, by its table", "to cuda.core", 0.67),
]


class Array:
    """A producer whose dict is made beforehand: its attribute costs as little as it can."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "<f4",
            # An array without elements has no address, by the specification: no driver is asked about it.
            "data": (0 if 0 in shape else 0x7F0000000000, False),
            "strides": strides,
            "version": 3,
            "stream": None,
        }


class Workload(NamedTuple):
    """A call to count."""

    function: Any
    arguments: tuple[Any, ...]
    #: The names of the last arguments.
    names: tuple[str, ...] = ()
    #: The result is a capsule, whose tensor is taken and deleted.
    consume: bool = False

    def __call__(self) -> Any:
        split = len(self.arguments) - len(self.names)
        return self.function(*self.arguments[:split], **dict(zip(self.names, self.arguments[split:], strict=True)))


def workloads() -> dict[str, Workload]:
    """Label -> the call. All import the same producers: the floor's view, and objects with a ready dict."""
    import cai_dlpack as cd
    import floor  # type: ignore[import-not-found]
    import floor_checked  # type: ignore[import-not-found]

    array, deep = Array((3, 5)), Array((2,) * 8, tuple(4 * 3**axis for axis in range(8)))
    plain = floor.view(array)
    keywords = ("stream", "max_version")
    asked = (-1, (1, 3))
    calls = {
        "nothing": Workload(floor.nothing, (None,)),
        "attribute": Workload(floor.attribute, (array,)),
        "getter": Workload(floor.attribute, (floor.Silent(),)),
        "ask": Workload(floor.ask, (plain,)),
        "ask_exchange": Workload(floor.ask_exchange, (plain,)),
    }
    makers = {
        "": (cd, cd.view),
        "floor ": (floor, floor.from_exchange),
        "checked ": (floor_checked, floor_checked.from_exchange),
    }
    for before, (maker, from_exchange) in makers.items():
        view = maker.view(array, device_id=0)
        both = (*keywords, "device_id")
        calls |= {
            f"{before}to_dlpack": Workload(maker.to_dlpack, (array, *asked, 0), both, consume=True),
            f"{before}to_dlpack 8": Workload(maker.to_dlpack, (deep, *asked, 0), both, consume=True),
            f"{before}dlpack": Workload(view.__dlpack__, asked, keywords, consume=True),
            f"{before}view": Workload(maker.view, (array, 0), ("device_id",)),
            f"{before}from_dlpack": Workload(maker.from_dlpack, (plain,)),
            f"{before}from_exchange": Workload(from_exchange, (plain,)),
            f"{before}cai": Workload(floor.attribute, (view,)),
        }
    return calls


def hand_overs() -> dict[str, Workload]:
    """Label -> the call, a Python function of an array of NumPy's."""
    import cai_dlpack as cd
    import numpy as np
    import tvm_ffi
    from cuda.core.utils import StridedMemoryView

    functions = {
        "empty": lambda a: a,
        "to numpy": lambda a: cd.to(a, np),
        "line to numpy": lambda a: np.from_dlpack(cd.view(a)),
        "to tvm-ffi": lambda a: cd.to(a, tvm_ffi),
        "line to tvm-ffi": lambda a: tvm_ffi.from_dlpack(cd.view(a)),
        "to cuda.core": lambda a: cd.to(a, StridedMemoryView),
        "line to cuda.core": lambda a: StridedMemoryView.from_dlpack(cd.view(a), stream_ptr=-1),
    }
    array = np.zeros((3, 5), "f4")
    return {label: Workload(function, (array,)) for label, function in functions.items()}


def load_cuda() -> None:
    """Loads a library of the name of CUDA's driver, as processes with CUDA's arrays have: one without it looks for
    ROCm's at each number of a device."""
    import floor

    ctypes.CDLL(str(Path(floor.__file__).with_name(CUDA)))


def measure() -> None:
    """Runs every workload; callgrind writes one part of its output for each."""
    load_cuda()
    run(workloads())
    # After the others, so that these libraries are not in the process while those are counted.
    run(hand_overs())


def run(calls: dict[str, Workload]) -> None:
    import floor

    # With some of each kind alive, no conversion takes a pool from the allocator or gives one back.
    alive = [call() for call in calls.values() for _ in range(ALIVE)]
    for label, call in calls.items():
        arguments = (call.function, call.arguments, call.names or None)
        floor.loop(*arguments, WARM_UP, "warm-up", call.consume)
        floor.loop(*arguments, CALLS, label, call.consume)
    del alive


def build(folder: Path, *macros: str) -> None:
    """Compiles the floor as distributions compile their extensions."""
    source = HERE / "floor" / "floor.c"
    include = f"-I{sysconfig.get_path('include')}"
    # Without NDEBUG the macros of CPython's headers check their arguments.
    command = ["cc", "-O3", "-DNDEBUG", "-Wall", "-Wextra", "-shared", "-fPIC", include]
    command += [f"-D{macro}" for macro in macros]
    for name, checked in FLOORS.items():
        defined = [f"-DFLOOR={name}", f"-DCHECKED={checked}"]
        subprocess.run([*command, *defined, str(source), "-o", str(folder / f"{name}.so")], check=True)
    subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", str(folder / CUDA)], check=True)


def profiles(
    folder: Path, script: Path = Path(__file__), *arguments: str, options: Sequence[str] = ()
) -> dict[str, str]:
    """Callgrind's output by these options for each workload that `script --measure` runs, with these arguments too."""
    output = folder / "callgrind.out"
    command = ["valgrind", "--tool=callgrind", "--compress-strings=no", "--compress-pos=no", *options]
    command += [f"--callgrind-out-file={output}", sys.executable, str(script), "--measure", *arguments]
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    # A fixed hash seed: the layout of dicts is part of what is counted.
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path}
    texts = dict[str, str]()
    for padding in PADDINGS:
        subprocess.run(command, check=True, env={**environment, "PADDING": padding * "x"}, stderr=subprocess.DEVNULL)
        for part in folder.glob("callgrind.out*"):
            text = part.read_text(errors="replace")
            label = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE)
            if label and label[1] != "warm-up":
                texts[label[1]] = min(text, texts.get(label[1], text), key=total)
            part.unlink()
    return texts


def total(profile: str) -> float:
    """Instructions per call."""
    found = re.search(r"^(?:summary|totals): (\d+)", profile, re.MULTILINE)
    if not found:
        raise ValueError("callgrind wrote no total")
    return int(found[1]) / CALLS


def count(folder: Path, script: Path = Path(__file__), *arguments: str) -> dict[str, float]:
    """Instructions per call of each workload."""
    return {label: total(profile) for label, profile in profiles(folder, script, *arguments).items()}


def places(profile: str) -> dict[str, float]:
    """Instructions per call in each of `PLACES`; the rest is the C library's."""
    spent = dict.fromkeys([*PLACES, "C library"], 0.0)
    place, is_callees = "", False
    for line in profile.splitlines():
        if line.startswith("ob="):
            name = Path(line[3:]).name
            place = next((place for place, starts in PLACES.items() if name.startswith(starts)), "C library")
        elif line.startswith("calls="):
            is_callees = True
        elif re.match(r"\d+ \d+$", line):
            if not is_callees:
                spent[place] += int(line.split()[1]) / CALLS
            is_callees = False
    return spent


class Cost(NamedTuple):
    """Instructions of one conversion, without the producer's part."""

    producer: float
    ours: float
    checked: float
    floor: float

    @property
    def ratio(self) -> float:
        return self.ours / self.floor


def costs(counts: dict[str, float]) -> dict[Conversion, Cost]:
    """Own cost of each conversion."""
    found = {}
    for conversion in CONVERSIONS:
        producer, label = counts[conversion.producer], conversion.label
        own = [counts[before + label] - producer for before in ("", "checked ", "floor ")]
        found[conversion] = Cost(producer - counts["nothing"], *own)
    return found


def ratio_to_line(counts: dict[str, float], hand_over: HandOver) -> float:
    """`cd.to` as a multiple of the line, both without the empty function."""
    label, empty = hand_over.label, counts["empty"]
    return (counts[label] - empty) / (counts[f"line {label}"] - empty)


def ratios(counts: dict[str, float]) -> dict[str, float]:
    """What is compared with the saved figures."""
    found = {conversion.name: cost.ratio for conversion, cost in costs(counts).items()}
    return found | {hand_over.name: ratio_to_line(counts, hand_over) for hand_over in HAND_OVERS}


def table(counts: dict[str, float]) -> bool:
    """Prints the table; whether no budget is broken by more than the slack."""
    good = True
    print(f"{'own cost':40} {'producer':>8} {'ours':>6} {'checked':>7} {'floor':>6} {'ratio':>6} {'budget':>6}")
    for conversion, cost in costs(counts).items():
        name, budget = conversion.name, conversion.budget
        good &= cost.ratio <= budget * SLACK
        mark = "" if cost.ratio <= budget else "  over"
        columns = f"{cost.producer:8.0f} {cost.ours:6.0f} {cost.checked:7.0f} {cost.floor:6.0f}"
        print(f"{name:40} {columns} {cost.ratio:6.2f} {budget:6.2f}{mark}")
    print(f"\n{'`cd.to`, beside the line with a view':40} {'to':>8} {'line':>6} {'ratio':>6} {'budget':>6}")
    for hand_over in HAND_OVERS:
        name, label, budget = hand_over
        ratio, empty = ratio_to_line(counts, hand_over), counts["empty"]
        good &= ratio <= budget * SLACK
        mark = "" if ratio <= budget else "  over"
        columns = f"{counts[label] - empty:8.0f} {counts[f'line {label}'] - empty:6.0f}"
        print(f"{name:40} {columns} {ratio:6.2f} {budget:6.2f}{mark}")
    return good


def breakdown(texts: dict[str, str]) -> None:
    """Prints where our instructions are spent, the producer's and the loop's among them."""
    print(f"\n{'ours, with the producer':40} {'whole':>8}", *(f"{place:>9}" for place in places("")))
    for conversion in CONVERSIONS:
        profile = texts[conversion.label]
        spent = places(profile)
        print(f"{conversion.name:40} {total(profile):8.0f}", *(f"{part:9.0f}" for part in spent.values()))


def compare(counts: dict[str, float]) -> bool:
    """Compares with the saved figures; whether nothing rose by over 5%, and none is stale: lower by as much."""
    if not SAVED.exists():
        print("no saved figures to compare with")
        return True
    saved = json.loads(SAVED.read_text())
    if not counts.keys() <= saved["counts"].keys():
        print(f"stale, save anew: at commit {saved['commit']} other calls were counted")
        return False
    before, good = ratios(saved["counts"]), True
    for name, now in ratios(counts).items():
        was = before[name]
        is_stale = now * TOLERANCE < was and saved["python"] == platform.python_version()
        if is_stale or now > was * TOLERANCE:
            word = "stale, save anew" if is_stale else "risen"
            print(f"{word}: {name}: {was:.4g} at commit {saved['commit']} -> {now:.4g}")
            good = False
    return good


def commit() -> str:
    """Returns the commit of the tree, marked where files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    found = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


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
        texts = profiles(folder)
    counts = {label: total(profile) for label, profile in texts.items()}
    print(f"commit {commit()}, CPython {platform.python_version()}")
    in_budget = table(counts) or not arguments.budgets
    breakdown(texts)
    good = (arguments.save or compare(counts)) and in_budget
    if arguments.save:
        figures = {"python": platform.python_version(), "commit": commit(), "counts": dict(sorted(counts.items()))}
        SAVED.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
