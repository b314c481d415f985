"""Runs cuda.core's own tests of memory between processes on the simulated driver, from a checkout of its repository.

    git clone --depth 1 --branch cuda-core-v1.2.2 https://github.com/NVIDIA/cuda-python CHECKOUT
    python -m conformance.soak.cuda_core_ipc CHECKOUT

The tag has to be that of the installed cuda-core: the tests are run against that, and none of the checkout's library is
used. A folder that is no whole checkout has a file `ORIGIN.txt`, which says what it is. That, the counts and the reason
of what has not passed go to `conformance/results/cuda-core-ipc.txt`. Exits with 1 if the tests could not be collected,
or fewer have passed than `LEAST`: what the simulator lacks is told, and no failure of this project.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from conformance.provenance import commit, today

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "conformance" / "results" / "cuda-core-ipc.txt"
TESTS = Path("cuda_core") / "tests" / "memory_ipc"
SECONDS = 1800
# CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED is of memory that is mapped by parts, which the
# simulator exports to nobody, and 0 there; the tests ask it before they make a pool, and would skip all.
POSIX_FILE_DESCRIPTOR = 103


# Some four pass without a driver that shares anything.
LEAST = 40
WRONG = ("failed", "error")


class Outcome(NamedTuple):
    test: str
    what: str
    reason: str = ""


def run(checkout: Path, report: Path) -> int:
    """Runs the tests in a process of the simulator's; their own helpers are found in the checkout."""
    helpers = [checkout / "cuda_core" / "tests", checkout / "cuda_python_test_helpers"]
    kept = os.environ.get("PYTHONPATH", "")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, helpers), kept])}
    command = [
        sys.executable,
        "-m",
        "cai_conformance",
        "simulate",
        "--devices",
        "2",
        "--attribute",
        f"{POSIX_FILE_DESCRIPTOR}=1",
        "--",
        sys.executable,
        "-m",
        "pytest",
    ]
    command += ["-q", "-p", "no:cacheprovider", f"--rootdir={checkout / TESTS.parent}", f"--junit-xml={report}"]
    command.append(str(checkout / TESTS))
    return subprocess.run(
        command, cwd=checkout / TESTS.parent, env=environment, timeout=SECONDS, check=False
    ).returncode


def outcomes(report: Path) -> Iterator[Outcome]:
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        found = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        if found is None:
            yield Outcome(name, "passed")
        else:
            reason = (found.get("message") or found.text or "").strip().splitlines() or ["no reason"]
            yield Outcome(name, {"failure": "failed"}.get(found.tag, found.tag), reason[0][:200])


def text(found: list[Outcome], version: str, origin: str = "") -> str:
    counts = Counter(outcome.what for outcome in found)
    told = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    lines = [f"{today()} {commit()}: cuda-core {version}, its tests/memory_ipc on the simulated driver: {told}."]
    lines += [origin.strip()] if origin else []
    others = Counter(f"{outcome.what}: {outcome.reason}" for outcome in found if outcome.what == "skipped")
    lines += [f"{count} {reason}" for reason, count in others.items()]
    lines += [f"{outcome.what}: {outcome.test}: {outcome.reason}" for outcome in found if outcome.what in WRONG]
    return "\n".join([*lines, ""])


def main() -> int:
    checkout = Path(sys.argv[1]).resolve()
    if not (checkout / TESTS).is_dir():
        print(f"{checkout} has no {TESTS}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        run(checkout, report)
        found = list(outcomes(report)) if report.exists() else []
    passed = sum(outcome.what == "passed" for outcome in found)
    if passed < LEAST:
        print(f"{passed} of {len(found)} have passed: is the checkout of the installed version?", file=sys.stderr)
        return 1
    origin = checkout / "ORIGIN.txt"
    told = origin.read_text(encoding="utf-8") if origin.exists() else ""
    RESULTS.write_text(text(found, importlib.metadata.version("cuda-core"), told), encoding="utf-8")
    print(RESULTS.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
