"""Random programs of a view that is the `owner=` of a dict of its memory, on two devices.

A dict without a stream leaves its order to the view, as does a bare one that names the view's stream; any other one
names its own. The producer writes, the consumer reads, and the producer writes again, where it works by then.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import cai_dlpack as cd
import cai_example_peer as peer
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, Dlpack, interface
from conformance.tests.streams.moved_producers import KINDS, Moving
from conformance.tests.streams.race import LEGACY, NBYTES, PER_THREAD, Track

POLICIES: list[Literal["event", "host"]] = ["event", "event", "host"]
BEFORE, WRITTEN, LATER, NEXT = 0xEE, 0x11, 0x22, 0x33


def _exported(array: Any, **options: Any) -> cd.CaiView:
    """By a capsule, which is ready where it was asked for, and whose consumer knows no producer."""
    made = cd.to_dlpack(array, stream=PER_THREAD, max_version=(1, 3), **options)
    return cd.from_dlpack(made, stream=PER_THREAD)


TAKES: dict[str, Callable[..., cd.CaiView]] = {
    "view": cd.view,
    "from_cai": cd.from_cai,
    "to": lambda array, **options: cd.to(array, cd.CaiView, **options),
    "view of it": lambda array, **options: cd.view(cd.view(array, **options)),
    "passed": lambda array, **options: cd.view(peer.view_of(cd.view(array, **options))),
    "joined": lambda array, **options: cd.join([cd.view(array, **options)], on=LEGACY)[0],
    "exported": _exported,
    "on": lambda array, **options: cd.view(array, **options).on(PER_THREAD),
}
WHOSE: dict[str, Callable[[cd.CaiView], Any]] = {
    "own": lambda view: view,
    "another copy's": peer.view_of,
    "another copy's of another's": lambda view: peer.view_of(cd.view(peer.view_of(view))),
}


@dataclass(frozen=True)
class Queue:
    """A stream as its number, and the device in whose primary context the number means it."""

    device: int
    stream: int


@dataclass
class Bench:
    """The race, memory of each kind, and the streams of the library."""

    track: Track
    memory: dict[str, int]
    streams: list[int]


class Program:
    """A library's array, the view of it, the dict, and who takes it."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench, self.track, pick = bench, bench.track, random.Random(seed)
        self.pick, self.streams = pick, [*bench.streams, LEGACY, PER_THREAD]
        self.kind, self.policy = pick.choice([*KINDS]), pick.choice(POLICIES)
        self.whose, self.take = pick.choice([*WHOSE]), pick.choice([*TAKES])
        self.state = pick.choice(["as it was", "of this device", "on", "ready", "unknown", "named"])
        self.names = pick.choice(["none", "none", "the view's", "another"])
        self.is_bare, self.is_passed_before = pick.random() < 0.6, pick.random() < 0.5
        # The current devices of the view's import, and of the dict's.
        self.before, self.now = pick.choice([0, 0, 1]), pick.choice([0, 0, 1])
        if self.state == "of this device":
            self.before = 0  # that of the memory: the default streams of another one are refused

    def __str__(self) -> str:
        said = (self.kind, self.state, self.whose, self.take, self.names, self.policy, f"{self.before} then {self.now}")
        return f"{', '.join(said)}{', bare' * self.is_bare}{', passed before' * self.is_passed_before}"

    def is_right(self) -> bool:
        """Runs the race; returns whether the consumer has read the write of before it."""
        track, pick = self.track, self.pick
        track.data = self.bench.memory[self.kind]
        track.machine.clear()
        track.machine.write(track.data, bytes([BEFORE]) * NBYTES)
        self._make_current(self.before)
        first = self._queue(pick.choice(self.streams))
        with cd.policy(sync=self.policy):
            view, moving = self._view(first)
            owner = WHOSE[self.whose](view) if self.is_passed_before else None
            wanted, working = WRITTEN, first
            self._make_current(self.now)
            if moving and pick.random() < 0.7:
                later = working = self._queue(pick.choice(self.streams))
                moving.go(later.stream)
                if self.state in ("as it was", "of this device"):
                    # Of a view that is ready where the producer works: it is waited for.
                    wanted = self._write_again(later)
            owner = WHOSE[self.whose](view) if owner is None else owner
            dict_, named = self._dict(view)
            if named is not None and not self._is_the_view_s(view, named):
                working = self._queue(named)
                wanted = self._write_again(working)
            made = TAKES[self.take](dict_ if self.is_bare else Cai(dict_), owner=owner)
            with made.consume(track.b, strict=False) as lent:
                track.read(track.b)
                edge = lent.return_edge
        if edge == "unknown":
            # The consumer keeps the data until it has done with it.
            track.wait(track.b)
        self._write(working, NEXT)
        track.machine.finish()
        return track.seen() == wanted

    def _make_current(self, device: int) -> None:
        self.current = device
        self.track.machine.set_current(device)

    def _queue(self, stream: int) -> Queue:
        """The stream that a number means: memory of one device says whose its default streams are."""
        return Queue(0 if self.kind == "device" else self.current, stream)

    def _view(self, first: Queue) -> tuple[cd.CaiView, Moving | None]:
        """Writes, and makes a view of what is written."""
        track = self.track
        if self.state == "unknown":
            view = cd.view(Dlpack(abi.make(device=KINDS[self.kind], data=track.data)))
            self._write(self._queue(view.stream or LEGACY), WRITTEN)
            if view.stream is None:
                track.machine.finish()
                self._make_current(self.current)
            return view.on(track.a), None
        self._write(first, WRITTEN)
        moving = Moving.of(track.data, KINDS[self.kind], first.stream)
        view = cd.view(moving.array)
        states: dict[str, Callable[[], cd.CaiView]] = {
            "of this device": lambda: view.present_as("cuda"),
            "on": lambda: view.on(track.a),
            "ready": view.synchronize,
            "named": lambda: cd.view(view, producer_stream=first.stream),
        }
        made = states.get(self.state, lambda: view)()
        return made, None if self.state == "named" else moving

    def _write(self, queue: Queue, value: int) -> int:
        self.track.machine.set_current(queue.device)
        self.track.write(queue.stream, value)
        self.track.machine.set_current(self.current)
        return value

    def _write_again(self, queue: Queue) -> int:
        """The library's own order of its two writes is of its own making."""
        self.track.machine.finish()
        return self._write(queue, LATER)

    def _dict(self, view: cd.CaiView) -> tuple[dict[str, Any], int | None]:
        streams: dict[str, Callable[[], int | None]] = {
            "none": lambda: None,
            "the view's": lambda: view.stream,
            "another": partial(self.pick.choice, self.streams),
        }
        named = streams[self.names]()
        return interface(data=(self.track.data, False), stream=named), named

    def _is_the_view_s(self, view: cd.CaiView, named: int) -> bool:
        return self.is_bare and named == view.stream
