"""Shares arrays between two processes for a while: what is read is right, and what either leaves is nothing.

    python -m cai_conformance simulate -- python -m conformance.soak.shares --minutes 5

Both kinds of memory: an allocation, and a buffer of a pool of cuda.core's. Half of the time goes to rounds of share,
open, read and close, by both schedules of the simulated driver, each beside a control: the same rounds without the
share's event, which must read wrongly. The other half kills one of two processes, without warning and at a random step
of its rounds; the other one goes on, and has lost nothing at the end. The outcomes name the steps at which processes
died. An importer whose exporter has died while it read may have a context that the driver has given up.
Each line goes, with date and commit, to `conformance/results/shares.tsv`. Exits with 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cai_dlpack as cd
import numpy as np
from cuda.bindings import driver

from conformance.provenance import commit, today
from conformance.tests.doubles.producers import interface
from conformance.tests.reach import other, pools
from conformance.tests.reach.peer import Other
from conformance.tests.simulated.machine import Machine

RESULTS = Path(__file__).resolve().parents[1] / "results" / "shares.tsv"
HEAD = "# Of the simulated driver.\ndate\tcommit\twhat\tschedule\trounds\twrong\toutcomes\tseconds\n"
SCHEDULES = ("lazy", "threaded")
#: What is shared, with the seconds that a stream takes before it writes: longer than it takes to open a handle.
DELAYS = {"an allocation": 0.0005, "a pool": 0.005}
#: What a killed process may have interrupted, in seconds from the order to begin.
MOMENT = 0.05
#: And what a step takes, about.
SHORT = 0.0001
NUMBERS = np.arange(8.0).tobytes()


class Line(NamedTuple):
    """What came of one part; `wrong` has to be 0, of a control more."""

    what: str
    schedule: str
    rounds: int
    wrong: int
    outcomes: str
    seconds: float

    @property
    def is_right(self) -> bool:
        return (self.wrong > 0) == self.what.startswith("control")


class Step:
    """What a process is at, in memory of a file that is there after its death."""

    NAMES = ("before", "share", "leave", "open", "read", "close")

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._at = mmap.mmap(file.fileno(), 1)

    def __call__(self, name: str) -> None:
        self._at[0] = self.NAMES.index(name)

    def name(self) -> str:
        return self.NAMES[self._at[0]]

    def wait(self, *names: str) -> None:
        """Returns at a random moment of one of these steps, which come again and again."""
        chosen, end = random.choice(names), time.monotonic() + 10
        time.sleep(random.random() * MOMENT)
        while self.name() != chosen and time.monotonic() < end:
            pass
        time.sleep(random.random() * SHORT)


# --- what is done over there ---


def prepared(schedule: str, memory: str) -> None:
    """Makes what the first share or import makes: what is killed is at a later one."""
    other.machine().control.schedule = schedule
    if memory == "a pool":
        shared("first", memory)
        other.left("first")


def shared(name: str, memory: str) -> cd.Handle:
    return pools.shared(name, NUMBERS) if memory == "a pool" else other.shared(name, 8)


def opens(handle: bytes, at: str, seconds: float) -> None:
    """Opens, reads and closes, until it is killed."""
    step, end = Step(at), time.monotonic() + seconds
    while time.monotonic() < end:
        step("open")
        other.opened("killed", handle)
        step("read")
        other.values("killed")
        step("close")
        other.closed("killed")


def shares(memory: str, at: str, seconds: float) -> None:
    """Shares arrays and ends them, until it is killed."""
    step, end = Step(at), time.monotonic() + seconds
    while time.monotonic() < end:
        step("share")
        shared("killed", memory)
        step("leave")
        other.left("killed")


def opens_until_refused(handle: bytes) -> dict[str, int]:
    """Opens and reads until the exporter has died; how often what came of it."""
    outcomes, end = Counter[str](), time.monotonic() + 30
    while time.monotonic() < end:
        found = of(lambda: cd.open(handle, stream=other.stream()))
        if isinstance(found, str):
            outcomes[found] += 1
            break
        read = of(lambda view=found: np.from_dlpack(view, device="cpu").tobytes())  # type: ignore[misc]
        outcomes["right bytes" if read == NUMBERS else read if isinstance(read, str) else "wrong bytes"] += 1
        del found
    return dict(outcomes)


def of(call: Callable[[], Any]) -> Any:
    """What a call returns, or the rule or the class of what it raises."""
    try:
        return call()
    except cd.Refusal as refused:
        return str(refused.rule)
    except cd.DriverError as error:
        return type(error).__name__


def kept() -> dict[str, int]:
    """What this process has of shares: files, owners, and the sockets and threads that give descriptors of pools."""
    gc.collect()
    links = [os.path.realpath(f"/proc/self/fd/{file}") for file in os.listdir("/proc/self/fd")]
    return {
        "files": sum("cai-dlpack-share" in link for link in links),
        "owners": int(cd.stats()["live"]),
        "sockets": sum("socket:" in link for link in links),
        "threads": threading.active_count(),
    }


# --- this side ---


def pending(machine: Machine, memory: str, stream: int, content: bytes) -> cd.CaiView:
    """An array that `stream` has still to write, after a delay."""
    delay = DELAYS[memory]
    if memory == "a pool":
        return pools.pending(machine, pools.allocated(pools.pool(), len(content)), stream, content, delay=delay)
    data = machine.device_memory(len(content))
    machine.write(data, b"\xee" * len(content))
    machine.control.delay(stream, delay)
    machine.control.store(stream, data, content)
    described = interface(shape=(len(content),), typestr="|u1", data=(data, False), stream=stream)
    return cd.view(described, owner=Freed(machine, data, stream))


class Freed:
    """Gives memory back when what is pending on its stream is done."""

    def __init__(self, machine: Machine, data: int, stream: int) -> None:
        self.machine, self.data, self.stream = machine, data, stream

    def __del__(self) -> None:
        self.machine.free(self.data)


def races(machine: Machine, there: Other, memory: str, schedule: str, seconds: float, *, ordered: bool) -> Line:
    """Rounds of share, open, read, close; `ordered` is without the event otherwise."""
    machine.control.schedule = schedule
    there(prepared, schedule, memory)
    chosen, stream = random.Random(f"{memory} {schedule} {ordered}"), machine.stream()
    rounds = wrong = 0
    start = time.monotonic()
    while time.monotonic() < start + seconds:
        content = chosen.randbytes(chosen.choice((8, 64, 4096, 1 << 16)))
        view = pending(machine, memory, stream, content)
        with cd.policy(sync="event" if ordered else "none"), cd.share(view) as handle:
            there(other.opened, "view", handle)
            wrong += there(other.values, "view") != content
            there(other.closed, "view")
        # What is pending is done before the memory is given back, whoever was ordered behind it.
        view.synchronize()
        del view
        rounds += 1
    other.owners(0)
    driver.cuStreamSynchronize(stream)  # A buffer of a pool is freed behind what is pending.
    what = f"races, {memory}" if ordered else f"control: races without the event, {memory}"
    return Line(what, schedule, rounds, wrong, "", time.monotonic() - start)


def importers_are_killed(machine: Machine, memory: str, schedule: str, seconds: float, at: str) -> Line:
    """Kills one importer after the other; this process, which shares, has afterwards what it had."""
    machine.control.schedule = schedule
    before, start, stream, rounds, wrong = kept(), time.monotonic(), machine.stream(), 0, 0
    step, steps = Step(at), Counter[str]()
    while time.monotonic() < start + seconds:
        view = pending(machine, memory, stream, NUMBERS)
        step("before")
        with Other() as there, cd.share(view) as handle:
            there(prepared, schedule, memory)
            there.send(opens, handle, at, 60.0)
            step.wait("open", "read", "close")
            there.kill()
        steps[f"at {step.name()}"] += 1
        view.synchronize()
        del view
        wrong += not has_become(before, kept)
        rounds += 1
    return Line(f"kill -9 of the importer, {memory}", schedule, rounds, wrong, told(steps), time.monotonic() - start)


def exporters_are_killed(memory: str, schedule: str, seconds: float, at: str) -> Line:
    """Kills one exporter after the other; an importer, another process, has afterwards what it had."""
    start, rounds, wrong, outcomes = time.monotonic(), 0, 0, Counter[str]()
    step, steps = Step(at), Counter[str]()
    importer: Other | None = None
    while time.monotonic() < start + seconds:
        if importer is None:
            importer = Other()
            importer(prepared, schedule, memory)
        step("before")
        with Other() as exporter:
            exporter(prepared, schedule, memory)
            handle, before = exporter(shared, "array", memory), importer(kept)
            exporter.send(shares, memory, at, 60.0)
            importer.send(opens_until_refused, handle)
            step.wait("share", "leave")
            exporter.kill()
            found = importer.receive()
        steps[f"at {step.name()}"] += 1
        outcomes.update(found)
        wrong += bool(found.keys() - {"right bytes", "share-ended", "DriverError"})
        wrong += not has_become(before, lambda there=importer: there(kept))  # type: ignore[misc]
        rounds += 1
        if "DriverError" in found:
            importer.kill()
            importer = None
    if importer:
        importer.kill()
    what = f"kill -9 of the exporter, {memory}"
    return Line(what, schedule, rounds, wrong, f"{told(steps)}: {told(outcomes)}", time.monotonic() - start)


def told(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def has_become(expected: dict[str, int], counted: Callable[[], dict[str, int]]) -> bool:
    """Whether a process has what it had, once it has had time for that."""
    end = time.monotonic() + 10
    while (found := counted()) != expected and time.monotonic() < end:
        time.sleep(0.01)
    if found != expected:
        print(f"left: {found}, before: {expected}", flush=True)
    return found == expected


def lines(machine: Machine, seconds: float, memory: str) -> Iterator[Line]:
    with Other() as there:
        for schedule in SCHEDULES:
            races(machine, there, memory, schedule, 0.5, ordered=True)  # What the first rounds make is there.
            before, theirs = other.live(), there(other.live)
            for ordered, part in ((True, 0.2), (False, 0.05)):
                found = races(machine, there, memory, schedule, seconds * part, ordered=ordered)
                gc.collect()
                is_as_before = has_become(before, other.live) and has_become(theirs, lambda: there(other.live))
                yield found if is_as_before else found._replace(wrong=found.wrong + 1, outcomes="not all is given back")
    with tempfile.NamedTemporaryFile() as at:
        at.write(b"\0")
        at.flush()
        for schedule in SCHEDULES:
            yield importers_are_killed(machine, memory, schedule, seconds / 8, at.name)
            yield exporters_are_killed(memory, schedule, seconds / 8, at.name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    asked = parser.parse_args()
    # cuda.core asks for the default method, and warns of one that CUDA does not support.
    multiprocessing.set_start_method("spawn")
    machine = other.machine()
    day, here, all_right = today(), commit(), True
    if not RESULTS.exists():
        RESULTS.write_text(HEAD, encoding="utf-8")
    seconds = asked.minutes * 60 / len(DELAYS)
    for line in (line for memory in DELAYS for line in lines(machine, seconds, memory)):
        row = [day, here, *line[:-1], f"{line.seconds:.1f}"]
        text = "\t".join(map(str, row))
        print(text if line.is_right else f"{text}\tWRONG", flush=True)
        with RESULTS.open("a", encoding="utf-8") as results:
            results.write(text + "\n")
        all_right &= line.is_right
    return int(not all_right)


if __name__ == "__main__":
    sys.exit(main())
