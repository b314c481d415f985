"""Runs both lines of each hand-over and tells what came of them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import cai_dlpack as cd
from cai_dlpack._terminal import printer, wrapped
from cai_dlpack.demo.cases import CASES, DRAWN, Case, is_installed, send
from cai_dlpack.demo.gpu import VALUES, Gpu, has_devices
from cai_dlpack.demo.outcome import Outcome
from cai_dlpack.demo.picture import drawing

WAITS = {
    "cuStreamWaitEvent": "the reading stream waits for one event",
    "cuStreamSynchronize": "the host waits for the writing stream",
    "cuEventSynchronize": "the host waits for an event",
    "cuCtxSynchronize": "the host waits for the device",
}


# The exit code if nothing that a hand-over needs is here.
NONE_RAN = 2
GPU = "a GPU"


class Log:
    """The simulated driver's log, if it is the driver; a real one keeps none."""

    def __init__(self) -> None:
        self.sim = None
        with suppress(ImportError):
            from cai_conformance import Sim, is_simulated

            self.sim = Sim() if is_simulated() else None
        if self.sim:
            # By any other schedule the work may be done before it is read, and what is wrong looks right.
            self.sim.schedule = "lazy"

    def take(self) -> list[Any]:
        """The calls since this was called last."""
        if self.sim is None:
            return []
        made = self.sim.calls()
        self.sim.clear()
        return made


def outcome(case: Case, line: str, gpu: Gpu | None, log: Log) -> Outcome:
    """Runs a line on a new array, and reads what the consumer got."""
    named = {"cd": cd, "np": np, "send": send}
    if gpu:
        named |= {"writer": gpu.writer, "reader": gpu.reader}
    exec(case.imports, named)
    log.take()
    array = case.make(gpu)
    writing = log.take()
    try:
        taken = eval(line, {**named, "array": array})
    except Exception as refusal:
        if gpu:
            gpu.settle()
        return Outcome("refused", f"{type(refusal).__name__}: {str(refusal).splitlines()[0]}")
    bridging = log.take()
    found = case.read(taken, gpu)
    calls = (*writing, *bridging, *log.take())
    if gpu:
        gpu.settle()
    values = " ".join(f"{value:g}" for value in found)
    if not np.array_equal(found, VALUES):
        return Outcome("WRONG", f"{values}, not {' '.join(f'{value:g}' for value in VALUES)}", calls)
    waits = dict.fromkeys(WAITS[call.name] for call in bridging if call.name in WAITS)
    return Outcome("right", "; ".join([values, *waits]), calls)


def lack(left: Collection[str]) -> str:
    """What is not here, devices apart from modules."""
    modules = [name for name in left if name != GPU]
    parts = [f"{GPU} is not here"] if GPU in left else []
    return "; ".join([*parts, *([f"not installed: {', '.join(modules)}"] if modules else [])])


def main(svg: Path | None = None) -> int:
    """Runs all and prints them; returns 1 if one by the bridge was not right, and `NONE_RAN` if none ran."""
    say, log = printer(), Log()
    gpu = Gpu() if has_devices() and is_installed("cuda") else None
    where = "host memory" if gpu is None else gpu.device.name
    say(
        f"cai-dlpack {cd.__version__} on {'a simulated CUDA driver: there is no GPU here' if log.sim else where}",
        "bold",
    )
    say(wrapped("On a device each array is written on one stream and read on another.", ""), "")
    came: dict[str, Counter[str]] = {"without": Counter(), "with": Counter()}
    left: dict[str, None] = {}
    for case in CASES:
        missing = [*([GPU] if case.is_on_a_device and gpu is None else []), *case.missing()]
        if missing:
            left |= dict.fromkeys(missing)
            continue
        say(f"\n{case.title}\n{wrapped(case.why, '   ')}", "bold")
        sides = []
        for side, line in (("without", case.without), ("with", case.bridge)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = outcome(case, line, gpu, log)
            came[side][found.verdict] += 1
            say(wrapped(line, " " * 16, f"   {side:8} "), "cyan")
            say(wrapped(f"{found.verdict}: {found.text}", " " * 12), found.style)
            sides.append((line, found))
        if svg and case is DRAWN:
            svg.write_text(drawing(case.title, sides), encoding="utf-8")
    right, ran = came["with"]["right"], came["with"].total()
    if not ran:
        say("\n" + wrapped(f"No hand-over ran: {lack(left)}.", ""), "bold red")
        return NONE_RAN
    without = ", ".join(f"{count} {verdict}" for verdict, count in came["without"].items()) or "none"
    all_right = right == ran
    say(f"\nWith the bridge {right} of {ran} right; without it {without}.", "bold green" if all_right else "bold red")
    if left:
        say(wrapped(f"Not all ran: {lack(left)}.", ""), "")
    return 0 if all_right else 1
