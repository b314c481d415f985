"""Compares what `explain` tells with what the import and the consumer's call then do.

    ... python -m conformance.matrix.explained host|device|both [CONSUMER,...] [--cases N] [--seed N] [--keep]

A case is an array x keywords x policy x filters of warnings x captures x consumer x its name x its stream x door,
drawn at random (`draws.py`). `explain` is called first, then `view`, then the consumer's own call, with the real
library, then each remedy that was told, and then the other door (`doors.py`); a line is printed for each difference,
with the smallest case that makes it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cai_dlpack as cd
from cai_conformance import Sim

from conformance.matrix import access, arrays, host, odd, said
from conformance.matrix.calls import PARTNERS
from conformance.matrix.cells import NotMade, sample
from conformance.matrix.doors import DOORS
from conformance.matrix.draws import FILTERS, STREAM, Case, drawn
from conformance.matrix.installed import GPU_ONLY, driver, version
from conformance.provenance import commit, today

KEPT = Path(__file__).resolve().parents[1] / "results" / "explained.txt"
# The driver's calls that make a stream, or the host, wait.
ORDER = {"cuEventRecord", "cuStreamWaitEvent", "cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"}
# Libraries of device memory that are handed host memory too.
ON_BOTH = ["cuda-core", "numba-cuda"]
# The rules that an import applies to its keywords and to the announced device, whatever is exported.
DEVICE_RULE = "[pointer-device]"
LATE_RULES = re.compile(r"\[(pointer-unknown|pointer-device|out-of-bounds|stream-undeclared)\]$")
KNOWABLE = {"shape-extent", "ndim-limit", "size-overflow", "pointer-device", "argument-type", "argument-value"}
# Calls that need more than the view, or that another case cannot undo: why they are not made.
NOT_MADE = {
    "kernel(v, block=(1, 1, 1))": "PyCUDA takes the address alone, of anything (conformance/matrix/device.py)",
}


def is_unasked(told: Any) -> bool:
    """Whether the producer was not asked, as that would have made a stream wait."""
    return told.unknown is not None and "__dlpack__" in told.unknown


def simplified(case: Case) -> Iterator[Case]:
    """The cases with one thing less."""
    for keyword in case.keywords:
        yield replace(case, keywords=tuple(other for other in case.keywords if other != keyword))
    less: dict[str, Any] = dict.fromkeys(("filters", "capture", "sync", "name", "stream", "door"))
    for name, value in {**less, "in_block": False}.items():
        if getattr(case, name) != value:
            yield replace(case, **{name: value})


def alike(one: str, other: str) -> bool:
    """Whether two lines tell the same difference, of arrays at other addresses."""
    return one.split("=")[0].split("0x")[0] == other.split("=")[0].split("0x")[0]


class Bench:
    """Runs cases, and counts what they have reached."""

    def __init__(self, sim: Sim, room: str) -> None:
        self.sim, self.room = sim, room
        if room == "host":
            host.prepare()
        self.streams = arrays.streams() if room == "device" else [1, 5, 5]
        self.producers = arrays.producers(room, self.streams[0])
        self.odd = odd.HOST if room == "host" else odd.on_device(self.streams)
        self.reached: Counter[tuple[str | None, str]] = Counter()

    def consumers(self, only: list[str] | None = None) -> list[str | None]:
        """The distributions whose calls are made here, and None for the import alone."""
        readers = [*arrays.readers(self.room), *ON_BOTH]
        named = [name for name in readers if version(name) and (only is None or name in only)]
        if only is None and self.room == "device":
            named = [name for name in named if name not in GPU_ONLY]
        made = [name for name in named if PARTNERS[name]["calls"][0]["code"] not in NOT_MADE]
        return [None, *sorted(set(made))]

    def drawn(self, chosen: random.Random, consumers: list[str | None]) -> Case:
        """A case by chance."""
        return drawn(chosen, sorted(self.producers), sorted(self.odd), consumers, list(DOORS))

    def shrunk(self, case: Case, line: str) -> Case:
        """The case with no more than what makes this difference."""
        simpler: list[Case] = [case]
        while simpler:
            case = simpler[0]
            simpler = [each for each in simplified(case) if any(alike(line, other) for other in self.wrong(each))]
        return case

    def wrong(self, case: Case) -> list[str]:
        """The differences between what is told of a case and what happens."""
        with contextlib.suppress(NotMade):
            obj = self.made(case)
            # Of its own: a capsule is consumed once, and nothing is made in a capture.
            again = self.made(case) if case.door else None
            with self.around(case):
                found = list(self.differences(case, obj))
                return [*found, *self.through(case, again)] if case.door else found
        return []

    def made(self, case: Case) -> Any:
        """The array of a case."""
        try:
            if case.draw:
                return self.odd[case.producer](random.Random(case.draw))
            return self.producers[case.producer](sample(case.dtype, case.layout))
        except NotMade:
            raise
        except Exception as error:
            raise NotMade(str(error)) from error

    @contextlib.contextmanager
    def around(self, case: Case) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if case.sync:
                stack.enter_context(cd.policy(sync=case.sync))  # type: ignore[arg-type]
            if case.in_block and self.room == "device":
                stack.enter_context(cd.use_stream(self.streams[1], device_id=0))
            if case.capture and self.room == "device":
                import numba.cuda

                # A capture of the thread forbids to free memory, which Numba does when it likes.
                stack.enter_context(numba.cuda.defer_cleanup())
                for stream in self.captured(case.capture[0]):
                    stack.enter_context(arrays.capturing(stream, case.capture[1]))
            yield

    def captured(self, whose: str) -> list[int]:
        ready, another, consumer = self.streams
        return {"ready": [ready], "consumer": [consumer], "another": [another], "both": [ready, consumer]}[whose]

    @contextlib.contextmanager
    def warned(self, case: Case) -> Iterator[list[warnings.WarningMessage]]:
        """The filters of a case; collects the warnings that they let through."""
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            if case.filters:
                FILTERS[case.filters]()
            yield given

    def keywords(self, case: Case) -> dict[str, Any]:
        """The keywords of the import."""
        return {name: self.streams[0] if value is STREAM else value for name, value in case.keywords}

    def differences(self, case: Case, obj: Any) -> Iterator[str]:
        keywords = self.keywords(case)
        stream = self.stream_of(case, obj, keywords)
        row = PARTNERS[case.consumer] if case.consumer else None
        asked: dict[str, Any] = {
            **keywords,
            **({"stream": stream} if stream else {}),
            **({"to": case.name or row["name"]} if row else {}),
        }
        self.sim.clear()
        lived = cd.stats()["live"]
        try:
            with self.warned(case) as given:
                told = cd.explain(obj, **asked)
        except Exception as error:
            yield from self.raised(case, error, obj, keywords)
            return
        if given:
            yield f"explain itself has warned: {given[0].message}"
        if calls := self.calls():
            yield f"explain itself has called {calls}"
        if cd.stats()["live"] > lived:
            yield "explain has kept the array"

        try:
            with self.warned(case) as given:
                view = cd.view(obj, **keywords)
        except Exception as error:
            yield from self.refused(case, told, error, obj, keywords)
            return
        self.reached[None, "taken"] += 1
        ours = [str(each.message) for each in given if issubclass(each.category, cd.InterchangeWarning)]
        if is_unasked(told):
            self.reached[None, "unknown"] += 1
            if (told.route, told.order, told.driver_calls) != ("dlpack", None, None) or view.owner is not None:
                yield f"unknown, and yet {told.route}, {told.order}"
        else:
            # What a filter hides is told all the same.
            is_hidden = case.filters == "unless ignored"
            yield from self.taken(told, view, obj, keywords, list(told.warnings) if is_hidden else ours)
        if row is None:
            yield from self.exported(told, view, stream)
            return
        yield from self.handed_over(case, told, view, row, stream)

    def raised(self, case: Case, error: Exception, obj: Any, keywords: dict[str, Any]) -> Iterator[str]:
        """Explain raises what `view` raises of the keywords alone."""
        self.reached[None, "raised"] += 1
        try:
            with self.warned(case):
                cd.view(obj, **keywords)
        except Exception as same:
            if (type(same), str(same)) == (type(error), str(error)):
                return
        yield f"explain raises {error!r:.150}"

    def refused(self, case: Case, told: Any, error: Exception, obj: Any, keywords: dict[str, Any]) -> Iterator[str]:
        self.reached[None, "refused"] += 1
        first = (str(error).splitlines() or [""])[0] or type(error).__name__
        if is_unasked(told):
            if getattr(error, "rule", None) in KNOWABLE:
                yield f"view refuses by {first!r}, told as {told.unknown}"
            return
        if told.route is not None or told.order is not None or told.ready is not None:
            yield f"view refuses ({first}), and the route is told as {told.route}, {told.ready}, {told.order}"
        if told.refused != first and not self.refused_anyway(told, first, obj, keywords):
            yield f"view refuses by {first!r}, told as {told.refused!r}"

    def refused_anyway(self, told: Any, first: str, obj: Any, keywords: dict[str, Any]) -> bool:
        """Whether the producer, or what it exports, is refused before its device is compared with the given one."""
        if DEVICE_RULE not in (told.refused or ""):
            return False
        try:
            cd.view(obj, **{name: value for name, value in keywords.items() if name != "device_id"})
        except Exception as error:
            return str(error).splitlines()[:1] == [first]
        return False

    def taken(self, told: Any, view: Any, obj: Any, keywords: dict[str, Any], ours: list[str]) -> Iterator[str]:
        """The import: its route as far as the view shows it, its stream and its warnings."""
        by_owner = (
            {"exchange", "dlpack", "capsule", "view"} if view.owner is None else {"cai", "array_interface", "view"}
        )
        if "owner" in keywords:
            by_owner = {"exchange", "dlpack", "capsule", "view", "cai", "array_interface"}
        if told.route not in by_owner:
            yield f"the view's owner is {view.owner!r:.40}, and the route is told as {told.route}"
        if list(told.warnings) != ours:
            yield f"view warns {ours}, told as {told.warnings}"
        stream = view.stream
        ready = told.ready or ""
        names = {None: "now", 1: "(1)", 2: "(2)"}.get(stream, f"{stream or 0:#x}")
        if not ready.endswith(names):
            yield f"ready on {stream}, told as {ready}"
        if told.route != "view" and not arrays.is_capsule(obj):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    cd.view(obj, **{**keywords, "strict": True})
                undeclared = False
            except Exception as error:
                undeclared = getattr(error, "rule", None) == "stream-undeclared"
            if undeclared != ready.startswith("undeclared"):
                yield f"undeclared: {undeclared}, told as {ready}"

    def through(self, case: Case, obj: Any) -> Iterator[str]:
        """What another door than `view` does with the array of a case."""
        door = DOORS[case.door or ""]
        keywords = self.keywords(case)
        # Another extension has classes of warnings of its own.
        if not door.takes_keywords and (keywords or case.filters):
            return
        stream = self.stream_of(case, obj, keywords) if case.door in ("to_dlpack", "a capsule") else None
        if case.door in ("to_dlpack", "a capsule") and (case.in_block or case.capture):
            # Without a stream the function means the legacy default one, and a view the block's, too.
            stream = stream or 1
        try:
            asked = {**keywords, "stream": stream} if stream else keywords
            with self.warned(case):
                told = cd.explain(obj, **asked)
        except Exception:
            return  # the keywords alone are wrong, which `raised` has compared
        if is_unasked(told) or (told.route is not None and not door.applies(obj, told)):
            return
        said = told.refused if told.route is None else door.refusal(told)
        if told.route is None and not self.has_protocol(case.door, obj):
            return
        try:
            with self.warned(case):
                door.call(obj, keywords, stream)
        except Exception as error:
            first = (str(error).splitlines() or [""])[0] or type(error).__name__
            self.reached[case.door, "refused"] += 1
            is_own = said is None and str(getattr(error, "rule", None)).startswith(door.own or ("-",))
            # An export by DLPack refuses what that cannot describe before the driver is asked.
            is_earlier = said is not None and LATE_RULES.search(said) is not None
            if not (
                is_own or is_earlier or door.is_same(first, said) or self.refused_anyway(told, first, obj, keywords)
            ):
                yield f"{case.door}: refused by {first!r}, told as {said!r}"
            return
        self.reached[case.door, "taken"] += 1
        if said is not None:
            yield f"{case.door}: taken, told as {said!r}"

    def has_protocol(self, door: str | None, obj: Any) -> bool:
        """Whether a door that reads one protocol is open to an array that `view` refuses."""
        has_interface = isinstance(obj, dict) or hasattr(type(obj), "__cuda_array_interface__")
        if door == "from_cai":
            return has_interface and not hasattr(type(obj), "__dlpack__")
        if door == "from_dlpack":
            return arrays.is_capsule(obj) or (hasattr(type(obj), "__dlpack__") and not has_interface)
        return True

    def exported(self, told: Any, view: Any, stream: int | None) -> Iterator[str]:
        """The view's own export: what is told without a consumer."""
        if is_unasked(told):
            return
        if stream is None and told.refused:
            yield f"view takes what is told as refused: {told.refused}"
        error = None
        self.sim.clear()
        try:
            view.__dlpack__(stream=stream, max_version=(1, 1))
        except Exception as raised:
            error = raised
        if error:
            if told.order != f"refused: {error}":
                yield f"the export is refused ({error}), the order told as {told.order}"
            if stream and told.refused != str(error):
                yield f"the export is refused ({error}), told as {told.refused}"
        elif not error:
            yield from self.ordered(told, self.calls())
            if told.refused:
                yield f"the export is made, told as refused: {told.refused}"

    def handed_over(self, case: Case, told: Any, view: Any, row: dict[str, Any], stream: int | None) -> Iterator[str]:
        """The consumer's call."""
        call = row["calls"][0]
        if told.call != call["code"]:
            yield f"told to call {told.call}"
        names = {
            "cd": cd,
            "v": view,
            "s": stream or (1 if self.room == "device" else -1),
            **arrays.given(self.room, row["distribution"]),
        }
        exec(call["import"], names)
        self.sim.clear()
        error = None
        found = None
        try:
            with self.as_to_calls(call):
                found = eval(call["code"], names)
        except Exception as raised:
            error = raised
        calls = self.calls()
        outcome = "refused" if error else "taken"
        self.reached[case.consumer, outcome] += 1
        if is_unasked(told) and told.refused is None:
            return
        if told.refused is None and error and case.capture and "a capture forbids" in (told.unknown or ""):
            return
        if (told.refused is not None) != (error is not None):
            yield f"{outcome} ({error!r:.150}), told as {told.refused or 'taken'}"
        if error is None and not is_unasked(told):
            yield from self.ordered(told, calls)
            if not call["copies"]:
                yield from self.kept(case, told, view, found)
            if not case.capture:
                yield from self.arrived(case, told, view, found, call["copies"])
        # A capture may forbid the order of a stream that is not named, or not known: a remedy's copy names none.
        is_forbidden = case.capture and (stream is None or is_unasked(told))
        for remedy in told.remedies if error and not is_forbidden else ():
            if case.capture and "from_dlpack(v, copy=True)" in remedy:
                continue
            self.reached[case.consumer, "remedy"] += 1
            try:
                eval(remedy, names)
            except Exception as raised:
                yield f"the remedy {remedy} is refused: {raised!r:.150}"
            if "from_dlpack(v, " in remedy:
                self.rest()

    def as_to_calls(self, call: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
        """Allows a wait of the host that the library makes beside a capture of another stream, as `cd.to` does."""
        is_wait = self.room == "device" and call["waits"] == "the host waits"
        return arrays.relaxed() if is_wait else contextlib.nullcontext()

    def kept(self, case: Case, told: Any, view: Any, found: Any) -> Iterator[str]:
        """The read-only flag, as the consumer's array has it."""
        can_write = access.written(found)
        if can_write is None or case.capture:
            return
        is_dropped = can_write and view.read_only is not False
        self.reached[case.consumer, "dropped"] += is_dropped
        if is_dropped != ("the read-only flag" in (told.dropped or "")):
            yield f"read_only={view.read_only}, and the consumer's can be written: {can_write}; told as {told.dropped}"

    def arrived(self, case: Case, told: Any, view: Any, found: Any, is_copy: bool) -> Iterator[str]:
        """All else that the consumer's array states of itself."""
        self.reached[case.consumer, "arrived"] += 1
        distribution = str(case.consumer)
        try:
            yield from said.differences(distribution, view, found, told.dropped, is_copy)
        except Exception as error:
            yield f"the consumer's array cannot be read: {error!r:.150}"

    def ordered(self, told: Any, calls: list[tuple[str, int]]) -> Iterator[str]:
        """Who waits, as it is told and as the simulated driver has logged it."""
        made = tuple(name for name, _ in calls)
        if told.driver_calls is None:
            one = ("cuStreamSynchronize",) if "the host waits" in told.order else ("cuEventRecord", "cuStreamWaitEvent")
            if made not in ((), one) or not told.unknown.startswith("who waits"):
                yield f"the order is made by {calls}, told as {told.order}"
        elif made != told.driver_calls:
            yield f"the order is made by {calls}, told as {told.driver_calls}: {told.order}"
        for _, number in calls:
            if number and told.driver_calls and all(name not in told.order for name in (f"{number:#x}", f"({number})")):
                yield f"{calls}, told as {told.order}"

    def stream_of(self, case: Case, obj: Any, keywords: dict[str, Any]) -> int | None:
        """The consumer's stream."""
        if case.stream is None:
            return None
        if self.room == "host":
            return {"legacy": 1, "own": 5}.get(case.stream)
        call = PARTNERS[case.consumer]["calls"][0] if case.consumer else None
        if call and call["waits"] == "its stream waits" and "=s" not in call["code"]:
            # It works on a stream of its own choice, of which the caller can tell the truth or nothing.
            own = arrays.OWN_STREAMS.get(case.consumer)
            return own() if own else None
        if case.stream == "legacy":
            return 1
        if case.stream == "own":
            return self.streams[2]
        if arrays.is_capsule(obj):
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return cd.view(obj, **keywords).stream
            except Exception:
                return None

    def rest(self) -> None:
        """Waits until a copy that was dropped has been freed, by another thread, whose calls belong to no case."""
        same, before = 0, -1
        while same < 5:
            time.sleep(0.002)
            now = len(self.sim.calls())
            same, before = same + 1 if now == before else 0, now

    def calls(self) -> list[tuple[str, int]]:
        found = self.sim.calls()
        return [(call.name, call.arguments.get("stream", 0)) for call in found if call.name in ORDER]


def run(room: str, only: list[str] | None, cases: int, seed: int) -> tuple[Bench, list[str]]:
    """Runs the cases of a room; returns what was reached, and a line for each difference, with its smallest case."""
    bench = Bench(Sim(), room)
    chosen = random.Random(seed)
    consumers = bench.consumers(only)
    wrong: dict[str, list[Case]] = {}
    for number in range(cases):
        case = bench.drawn(chosen, consumers)
        for line in bench.wrong(case):
            wrong.setdefault(f"{case.consumer}: {line}", []).append(case)
        if number % 500 == 0:
            gc.collect()
    found = []
    for line, of_line in sorted(wrong.items()):
        smallest = bench.shrunk(of_line[0], line.partition(": ")[2])
        found.append(f"{len(of_line)} x {line}\n    {smallest}")
    return bench, found


def summary(room: str, bench: Bench, wrong: list[str], cases: int, seed: int) -> list[str]:
    """The lines of a room in the kept result."""
    reached = bench.reached
    lines = [f"{room}: {cases} cases of seed {seed}, {len(wrong)} told otherwise than what happened"]
    for name in sorted({name for name, _ in reached if name}):
        counts = [f"{reached[name, what]} {what}" for what in ("taken", "refused", "remedy") if reached[name, what]]
        lines.append(f"{room}, {name}: " + ", ".join(counts))
    counts = [f"{reached[None, what]} {what}" for what in ("taken", "refused", "raised", "unknown")]
    return [*lines, f"{room}, view: " + ", ".join(counts), *wrong]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("room", choices=["host", "device", "both"])
    parser.add_argument("consumers", nargs="?", default=None)
    parser.add_argument("--cases", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="write conformance/results/explained.txt")
    options = parser.parse_args()
    only = options.consumers.split(",") if options.consumers else None
    rooms = ["host", "device"] if options.room == "both" else [options.room]
    lines = [f"explained, {today()}, sources of {commit()}, {driver()}"]
    is_wrong = False
    for room in rooms:
        bench, wrong = run(room, only, options.cases, options.seed)
        lines += summary(room, bench, wrong, options.cases, options.seed)
        is_wrong = is_wrong or bool(wrong)
    print("\n".join(lines))
    if options.keep:
        KEPT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
