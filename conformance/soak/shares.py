"""Shares arrays between two processes for a while: what is read is right, and what either leaves is nothing.

    python -m cai_conformance simulate -- python -m conformance.soak.shares --minutes 5

Half of the time goes to rounds of share, open, read and close, by both schedules of the simulated driver, each beside
a control: the same rounds without the share's event, which must read wrongly. The other half kills one of two
processes, without warning and at a random moment, while it shares or opens; the other one goes on, and has lost nothing
at the end. An importer whose exporter has died while it read may have a context that the driver has given up.
Each line goes, with date and commit, to `conformance/results/shares.tsv`. Exits with 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cai_dlpack as cd
import numpy as np

from conformance.provenance import commit, today
from conformance.tests.doubles.producers import interface
from conformance.tests.reach import other
from conformance.tests.reach.peer import Other
from conformance.tests.simulated.machine import Machine

RESULTS = Path(__file__).resolve().parents[1] / "results" / "shares.tsv"
HEAD = "# Of the simulated driver.\ndate\tcommit\twhat\tschedule\trounds\twrong\toutcomes\tseconds\n"
SCHEDULES = ("lazy", "threaded")
#: What a killed process may have interrupted, in seconds from the order to begin.
MOMENT = 0.05
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


# --- what is done over there ---


def scheduled(schedule: str) -> None:
    other.machine().control.schedule = schedule


def opens(handle: bytes, seconds: float) -> None:
    """Opens, reads and closes, until it is killed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        other.opened("killed", handle)
        other.values("killed")
        other.closed("killed")


def shares(seconds: float) -> None:
    """Shares arrays and ends them, until it is killed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        other.shared("killed", 8)
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
    """What this process has of shares: files and owners."""
    gc.collect()
    links = [os.path.realpath(f"/proc/self/fd/{file}") for file in os.listdir("/proc/self/fd")]
    return {"files": sum("cai-dlpack-share" in link for link in links), "owners": int(cd.stats()["live"])}


# --- this side ---


def pending(machine: Machine, stream: int, content: bytes) -> cd.CaiView:
    """An array that `stream` has still to write, which takes it half a millisecond."""
    data = machine.device_memory(len(content))
    machine.write(data, b"\xee" * len(content))
    machine.control.delay(stream, 0.0005)
    machine.control.store(stream, data, content)
    described = interface(shape=(len(content),), typestr="|u1", data=(data, False), stream=stream)
    return cd.view(described, owner=Freed(machine, data, stream))


class Freed:
    """Gives memory back when what is pending on its stream is done."""

    def __init__(self, machine: Machine, data: int, stream: int) -> None:
        self.machine, self.data, self.stream = machine, data, stream

    def __del__(self) -> None:
        self.machine.free(self.data)


def races(machine: Machine, there: Other, schedule: str, seconds: float, *, ordered: bool) -> Line:
    """Rounds of share, open, read, close; `ordered` is without the event otherwise."""
    machine.control.schedule = schedule
    there(scheduled, schedule)
    chosen, stream = random.Random(f"{schedule} {ordered}"), machine.stream()
    rounds = wrong = 0
    start = time.monotonic()
    while time.monotonic() < start + seconds:
        content = chosen.randbytes(chosen.choice((1, 64, 4096, 1 << 16)))
        view = pending(machine, stream, content)
        with cd.policy(sync="event" if ordered else "none"), cd.share(view) as handle:
            there(other.opened, "view", handle)
            wrong += there(other.values, "view") != content
            there(other.closed, "view")
        # What is pending is done before the memory is given back, whoever was ordered behind it.
        view.synchronize()
        del view
        rounds += 1
    what = "races" if ordered else "control: races without the event"
    return Line(what, schedule, rounds, wrong, "", time.monotonic() - start)


def importers_are_killed(machine: Machine, schedule: str, seconds: float) -> Line:
    """Kills one importer after the other; this process, which shares, has afterwards what it had."""
    machine.control.schedule = schedule
    before, start, stream, rounds, wrong = kept(), time.monotonic(), machine.stream(), 0, 0
    while time.monotonic() < start + seconds:
        view = pending(machine, stream, NUMBERS)
        with Other() as there, cd.share(view) as handle:
            there(scheduled, schedule)
            there.send(opens, handle, 60.0)
            time.sleep(random.random() * MOMENT)
            there.kill()
        view.synchronize()
        del view
        wrong += not has_become(before, kept)
        rounds += 1
    return Line("kill -9 of the importer", schedule, rounds, wrong, "", time.monotonic() - start)


def exporters_are_killed(schedule: str, seconds: float) -> Line:
    """Kills one exporter after the other; an importer, another process, has afterwards what it had."""
    start, rounds, wrong, outcomes = time.monotonic(), 0, 0, Counter[str]()
    importer: Other | None = None
    while time.monotonic() < start + seconds:
        if importer is None:
            importer = Other()
            importer(scheduled, schedule)
        with Other() as exporter:
            exporter(scheduled, schedule)
            handle, before = exporter(other.shared, "array", 8), importer(kept)
            exporter.send(shares, 60.0)
            importer.send(opens_until_refused, handle)
            time.sleep(random.random() * MOMENT)
            exporter.kill()
            found = importer.receive()
        outcomes.update(found)
        wrong += bool(found.keys() - {"right bytes", "share-ended", "DriverError"})
        wrong += not has_become(before, lambda there=importer: there(kept))  # type: ignore[misc]
        rounds += 1
        if "DriverError" in found:
            importer.kill()
            importer = None
    if importer:
        importer.kill()
    told = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
    return Line("kill -9 of the exporter", schedule, rounds, wrong, told, time.monotonic() - start)


def has_become(expected: dict[str, int], counted: Callable[[], dict[str, int]]) -> bool:
    """Whether a process has what it had, once it has had time for that."""
    end = time.monotonic() + 10
    while (found := counted()) != expected and time.monotonic() < end:
        time.sleep(0.01)
    if found != expected:
        print(f"left: {found}, before: {expected}", flush=True)
    return found == expected


def lines(machine: Machine, seconds: float) -> Iterator[Line]:
    with Other() as there:
        for schedule in SCHEDULES:
            races(machine, there, schedule, 0.5, ordered=True)  # What the first rounds make is there.
            before, theirs = other.live(), there(other.live)
            for ordered, part in ((True, 0.2), (False, 0.05)):
                found = races(machine, there, schedule, seconds * part, ordered=ordered)
                gc.collect()
                is_as_before = has_become(before, other.live) and has_become(theirs, lambda: there(other.live))
                yield found if is_as_before else found._replace(wrong=found.wrong + 1, outcomes="not all is given back")
    for schedule in SCHEDULES:
        yield importers_are_killed(machine, schedule, seconds / 8)
        yield exporters_are_killed(schedule, seconds / 8)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    asked = parser.parse_args()
    machine = other.machine()
    day, here, all_right = today(), commit(), True
    if not RESULTS.exists():
        RESULTS.write_text(HEAD, encoding="utf-8")
    for line in lines(machine, asked.minutes * 60):
        row = [day, here, *line[:-1], f"{line.seconds:.1f}"]
        text = "\t".join(map(str, row))
        print(text if line.is_right else f"{text}\tWRONG", flush=True)
        with RESULTS.open("a", encoding="utf-8") as results:
            results.write(text + "\n")
        all_right &= line.is_right
    return int(not all_right)


if __name__ == "__main__":
    sys.exit(main())
