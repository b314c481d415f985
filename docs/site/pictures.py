"""Draws the pictures of docs/streams.md, from the calls that the simulated driver logs.

    python -m cai_conformance simulate -- python docs/site/pictures.py docs

The calls and their order are the log's. A call takes as long as any other, and the work that it enqueues begins when
its stream is free. The work is long, so that it can be seen who waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cai_dlpack as cd
import numba.cuda
import numpy as np
from cai_conformance import Sim
from cai_dlpack.demo.gpu import VALUES, Gpu
from cai_dlpack.demo.picture import COLOURS, arrow, block, label, svg
from cuda.core import Stream

# What the calls are named, and how long the work is that they enqueue.
CALLS = {
    "cuMemcpyHtoDAsync": "write",
    "cuMemcpyDtoHAsync": "read",
    "cuEventRecord": "record",
    "cuStreamWaitEvent": "wait",
    "cuStreamSynchronize": "wait",
}
WORK = {"write": 300, "read": 240}
LEFT, CALL, GAP, LANE, TOP, WIDTH = 90, 62, 12, 60, 78, 760


@dataclass
class Timeline:
    """Where each step lies: on the host's lane, and on those of the streams."""

    streams: dict[int, str]
    """The names of the streams, by their handles."""
    now: float = LEFT
    """When the host is done with its last call."""
    free: dict[int, float] = field(default_factory=dict)
    """When each stream is done with its work."""
    events: dict[int, tuple[int, float]] = field(default_factory=dict)
    """On which stream each event is recorded, and when that has got there."""
    parts: list[str] = field(default_factory=list)
    writes: int = 0

    def lane(self, stream: int | None = None) -> float:
        """The height of a stream's lane, or of the host's."""
        return TOP + LANE * (0 if stream is None else 1 + list(self.streams).index(stream))

    def add(self, call: Any) -> None:
        """Draws a call, and what it enqueues."""
        step, stream = CALLS[call.name], call.arguments["stream"]
        begin, self.now = self.now, self.now + CALL
        free = max(self.free.get(stream, LEFT), self.now)
        if call.name == "cuStreamSynchronize":
            self.now = free + GAP
            self._block(None, begin, self.now, "waits", "wait")
            self.parts.append(self._arrow(stream, free, None, self.now))
        else:
            self._block(None, begin, self.now, step, "host")
        if step in WORK:
            self._work(step, stream, free)
        elif call.name == "cuEventRecord":
            self.events[call.arguments["event"]] = (stream, free)
        elif call.name == "cuStreamWaitEvent":
            recorded_on, at = self.events[call.arguments["event"]]
            end = max(free, at) + GAP
            self._block(stream, free, end, "waits", "wait")
            self.parts.append(self._arrow(recorded_on, at, stream, end))
            self.free[stream] = end
        self.now += GAP

    def read_by_the_host(self, what: str) -> None:
        """Draws what the host reads by itself."""
        self._block(None, self.now, self.now + 130, what, "right")
        self.now += 130 + GAP

    def _work(self, step: str, stream: int, begin: float) -> None:
        text = "reads x" if step == "read" else "writes x again" if self.writes else "writes x"
        self.writes += step == "write"
        self.free[stream] = begin + WORK[step]
        self._block(stream, begin, self.free[stream], text, "right" if step == "read" else "write")

    def _block(self, stream: int | None, begin: float, end: float, text: str, colour: str) -> None:
        self.parts.append(block(begin, self.lane(stream), end - begin, text, COLOURS[colour]))

    def _arrow(self, of: int, at: float, to: int | None, until: float) -> str:
        dot = f'<circle cx="{at}" cy="{self.lane(of)}" r="5" fill="#0d6efd"/>'
        # To the edge of the box that waits.
        edge = 13 if self.lane(to) < self.lane(of) else -13
        return dot + arrow(at, self.lane(of), until, self.lane(to) + edge)

    def drawn(self, title: str, line: str) -> str:
        """The picture."""
        width = max(WIDTH, int(max(self.now, *self.free.values())) + 24)
        parts = [label(16, 26, title, weight="bold", size=16), label(16, 46, line, family="ui-monospace, monospace")]
        for name, y in [("host", self.lane()), *((name, self.lane(of)) for of, name in self.streams.items())]:
            parts.append(label(16, y + 5, name))
            parts.append(f'<line x1="{LEFT - 10}" y1="{y}" x2="{width - 12}" y2="{y}" stroke="#adb5bd"/>')
        return svg(title, width, int(TOP + LANE * len(self.streams)) + 24, [*parts, *self.parts])


def written(gpu: Gpu, address: int) -> Callable[[], None]:
    """Returns what enqueues a write."""
    copied = (address, VALUES.ctypes.data, VALUES.nbytes)
    return lambda: gpu._check(gpu.driver.cuMemcpyHtoDAsync(*copied, gpu.writer.handle))


def read(gpu: Gpu, address: int) -> Any:
    """Enqueues a read; returns where its values arrive."""
    found = np.zeros_like(VALUES)
    gpu._check(gpu.driver.cuMemcpyDtoHAsync(found.ctypes.data, address, found.nbytes, gpu.reader.handle))
    return found


def timeline(calls: Sequence[Any], a: Stream, b: Stream | None) -> Timeline:
    """What was logged, on a lane for each stream."""
    drawn = Timeline({int(a.handle): "A"} | ({int(b.handle): "B"} if b else {}))
    for call in calls:
        if call.name in CALLS:
            drawn.add(call)
    return drawn


def pictures() -> dict[str, str]:
    """Each picture by the name of its file."""
    sim, gpu = Sim(), Gpu()
    sim.schedule = "lazy"
    a, b = gpu.writer, gpu.reader
    drawn = {}

    buffer = gpu.buffer()
    gpu.settle()
    write = written(gpu, int(buffer.handle))
    view = cd.view(buffer, producer_stream=a)

    sim.clear()
    write()
    view.on(b)
    found = read(gpu, int(buffer.handle))
    calls = sim.calls()
    gpu.settle()
    assert (found == VALUES).all()
    title = "Forward: the consumer's stream waits, the host does not"
    drawn["streams-forward.svg"] = timeline(calls, a, b).drawn(title, "v.on(b), or a consumer that asks for b")

    sim.clear()
    write()
    with view.consume(b):
        read(gpu, int(buffer.handle))
    write()
    calls = sim.calls()
    gpu.settle()
    title = "The return edge: the producer's stream waits before it writes again"
    drawn["streams-return.svg"] = timeline(calls, a, b).drawn(title, "with v.consume(b): ...")

    managed = numba.cuda.managed_array(VALUES.shape, VALUES.dtype)
    write = written(gpu, managed.__cuda_array_interface__["data"][0])
    managed = cd.view(managed, producer_stream=a)
    sim.clear()
    write()
    host = np.from_dlpack(managed)
    calls = sim.calls()
    assert (host == VALUES).all()
    last = timeline(calls, a, None)
    last.read_by_the_host("NumPy reads x")
    title = "The host as a reader: the host waits, with the GIL released"
    drawn["streams-host.svg"] = last.drawn(title, "np.from_dlpack(v), of managed memory")
    return drawn


if __name__ == "__main__":
    for name, picture in pictures().items():
        (Path(sys.argv[1]) / name).write_text(picture, encoding="utf-8")
