"""Compares what `explain` tells with what the import and the consumer's call then do.

    ... python -m conformance.matrix.explained host|device [CONSUMER,...] [--cases N] [--seed N]

A case is a producer's array x dtype x layout x keywords x policy x consumer x stream, drawn at random. `explain` is
called first, then `view`, then the consumer's own call, with the real library; a line is printed for each difference.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cai_dlpack as cd
from cai_conformance import Sim

from conformance.matrix import arrays, host
from conformance.matrix.calls import PARTNERS
from conformance.matrix.cells import DTYPES, LAYOUTS, NotMade, sample
from conformance.matrix.installed import version

# The driver's calls that make a stream, or the host, wait.
ORDER = {"cuEventRecord", "cuStreamWaitEvent", "cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"}
# The keywords of an import, each with values that are drawn. STREAM stands for a stream of the machine.
STREAM = "a stream"
KEYWORDS: list[tuple[str, list[Any]]] = [
    ("producer_stream", [STREAM, 1, 2, None, ...]),
    ("dtype", ["float32", "uint8", "int64", "bfloat16"]),
    ("shape", [(12,), (2, 6), (5,)]),
    ("read_only", [True, False]),
    ("owner", [object()]),
    ("device_id", [0, 1]),
    ("check", ["device", "bounds"]),
    ("strict", [True]),
]
# Calls that need more than the view, or that another case cannot undo: why they are not made.
NOT_MADE = {
    "kernel(v, block=(1, 1, 1))": "PyCUDA takes the address alone, of anything (conformance/matrix/device.py)",
}


@dataclass(frozen=True)
class Case:
    """One array, and what is done with it."""

    producer: str
    dtype: str
    layout: str
    keywords: tuple[tuple[str, Any], ...]
    consumer: str | None
    sync: str | None
    # The consumer's stream: none is named, a default stream, the one that the data is ready on, or another.
    stream: str | None
    in_block: bool

    def __str__(self) -> str:
        told = [f"{self.producer} {self.dtype} {self.layout}", f"view({dict(self.keywords)})" if self.keywords else ""]
        told += [f"to {self.consumer}" if self.consumer else "", f"on {self.stream}" if self.stream else ""]
        told += [f"sync={self.sync}" if self.sync else "", "in use_stream" if self.in_block else ""]
        return ", ".join(part for part in told if part)


def drawn(chosen: random.Random, producers: list[str], consumers: list[str | None]) -> Case:
    """A case by chance: most have few keywords, so that most arrays reach the consumer."""
    keywords = {}
    for _ in range(chosen.choice([0, 0, 1, 1, 2, 3])):
        name, values = chosen.choice(KEYWORDS)
        keywords[name] = chosen.choice(values)
    producer, consumer = chosen.choice(producers), chosen.choice(consumers)
    # A false device, and an address of nothing, are the caller's word: consumers go by it.
    if keywords.get("device_id") == 1 or producer == "unknown memory":
        consumer = None
    return Case(
        producer=producer,
        dtype=chosen.choice(["float32", chosen.choice(DTYPES)]),
        layout=chosen.choice(["vector", "rows", chosen.choice(LAYOUTS)]),
        keywords=tuple(keywords.items()),
        consumer=consumer,
        sync=chosen.choice([None, None, None, "event", "host", "none"]),
        stream=chosen.choice([None, None, "legacy", "own", "ready"]),
        in_block=chosen.random() < 0.2,
    )


def is_unasked(told: Any) -> bool:
    """Whether the producer was not asked, as that would have made a stream wait."""
    return told.unknown is not None and "__dlpack__" in told.unknown


class Bench:
    """Runs cases, and counts what they have reached."""

    def __init__(self, sim: Sim, room: str) -> None:
        self.sim, self.room = sim, room
        if room == "host":
            host.prepare()
        self.streams = arrays.streams() if room == "device" else [1, 1, 1]
        self.producers = arrays.producers(room, self.streams[0])
        self.reached: Counter[tuple[str | None, str]] = Counter()

    def consumers(self, only: list[str] | None = None) -> list[str | None]:
        """The distributions whose calls are made here, and None for the import alone."""
        readers = arrays.readers(self.room)
        named = [name for name in readers if version(name) and (only is None or name in only)]
        made = [name for name in named if PARTNERS[name]["calls"][0]["code"] not in NOT_MADE]
        return [None, *sorted(made)]

    def wrong(self, case: Case) -> list[str]:
        """The differences between what is told of a case and what happens."""
        with contextlib.suppress(NotMade), self.around(case):
            return list(self.differences(case, self.producers[case.producer]))
        return []

    @contextlib.contextmanager
    def around(self, case: Case) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if case.sync:
                stack.enter_context(cd.policy(sync=case.sync))  # type: ignore[arg-type]
            if case.in_block and self.room == "device":
                stack.enter_context(cd.use_stream(self.streams[1], device_id=0))
            yield

    def differences(self, case: Case, make: Callable[[Any], Any]) -> Iterator[str]:
        try:
            array = sample(case.dtype, case.layout)
            obj = make(array)
        except NotMade:
            raise
        except Exception as error:
            raise NotMade(str(error)) from error
        keywords: dict[str, Any] = {
            name: self.streams[0] if value is STREAM else value for name, value in case.keywords
        }
        stream = self.stream_of(case, obj, keywords)
        row = PARTNERS[case.consumer] if case.consumer else None
        asked: dict[str, Any] = {
            **keywords,
            **({"stream": stream} if stream else {}),
            **({"to": row["name"]} if row else {}),
        }
        self.sim.clear()
        lived = cd.stats()["live"]
        told = cd.explain(obj, **asked)
        if calls := self.calls():
            yield f"explain itself has called {calls}"
        if cd.stats()["live"] > lived:
            yield "explain has kept the array"

        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            try:
                view = cd.view(obj, **keywords)
            except Exception as error:
                yield from self.refused(case, told, error)
                return
        self.reached[None, "taken"] += 1
        ours = [str(each.message) for each in given if issubclass(each.category, cd.InterchangeWarning)]
        if is_unasked(told):
            self.reached[None, "unknown"] += 1
            if (told.route, told.order, told.driver_calls) != ("dlpack", None, None) or view.owner is not None:
                yield f"unknown, and yet {told.route}, {told.order}"
        else:
            yield from self.taken(told, view, obj, keywords, ours)
        if row is None:
            yield from self.exported(told, view, stream)
            return
        yield from self.handed_over(case, told, view, row, stream)

    def refused(self, case: Case, told: Any, error: Exception) -> Iterator[str]:
        self.reached[None, "refused"] += 1
        first = (str(error).splitlines() or [""])[0] or type(error).__name__
        if is_unasked(told):
            return
        if told.route is not None or told.order is not None or told.ready is not None:
            yield f"view refuses ({first}), and the route is told as {told.route}, {told.ready}, {told.order}"
        if told.refused != first:
            yield f"view refuses by {first!r}, told as {told.refused!r}"

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
        said = told.ready or ""
        names = {None: "now", 1: "(1)", 2: "(2)"}.get(stream, f"{stream or 0:#x}")
        if not said.endswith(names):
            yield f"ready on {stream}, told as {said}"
        if told.route != "view" and not arrays.is_capsule(obj):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    cd.view(obj, **{**keywords, "strict": True})
                undeclared = False
            except Exception as error:
                undeclared = getattr(error, "rule", None) == "stream-undeclared"
            if undeclared != said.startswith("undeclared"):
                yield f"undeclared: {undeclared}, told as {said}"

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
        names = {"cd": cd, "v": view, "s": stream or 1, **arrays.given(self.room, row["distribution"])}
        exec(call["import"], names)
        self.sim.clear()
        error = None
        try:
            eval(call["code"], names)
        except Exception as raised:
            error = raised
        calls = self.calls()
        outcome = "refused" if error else "taken"
        self.reached[case.consumer, outcome] += 1
        if is_unasked(told) and told.refused is None:
            return
        if (told.refused is not None) != (error is not None):
            yield f"{outcome} ({error!r:.150}), told as {told.refused or 'taken'}"
        if error is None and not is_unasked(told):
            yield from self.ordered(told, calls)
        for remedy in told.remedies if error else ():
            self.reached[case.consumer, "remedy"] += 1
            try:
                eval(remedy, names)
            except Exception as raised:
                yield f"the remedy {remedy} is refused: {raised!r:.150}"

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
        """The consumer's stream, where there are streams."""
        if self.room == "host" or case.stream is None:
            return None
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

    def calls(self) -> list[tuple[str, int]]:
        found = self.sim.calls()
        return [(call.name, call.arguments.get("stream", 0)) for call in found if call.name in ORDER]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("room", choices=["host", "device"])
    parser.add_argument("consumers", nargs="?", default=None)
    parser.add_argument("--cases", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    bench = Bench(Sim(), options.room)
    chosen = random.Random(options.seed)
    only = options.consumers.split(",") if options.consumers else None
    producers, consumers = sorted(bench.producers), bench.consumers(only)
    wrong: dict[str, list[Case]] = {}
    for number in range(options.cases):
        case = drawn(chosen, producers, consumers)
        for line in bench.wrong(case):
            wrong.setdefault(f"{case.consumer}: {line}", []).append(case)
        if number % 500 == 0:
            gc.collect()
    for line, cases in sorted(wrong.items()):
        print(f"{len(cases)} x {line}\n    {cases[0]}")
    print(dict(bench.reached))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
