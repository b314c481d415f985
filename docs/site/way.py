"""Draws the way of one array of a GPU to another process, for docs/reach.md: by Dask over TCP, by UCXX, by CUDA IPC.

    python docs/site/way.py docs/way.svg

Lengths mean nothing; what stands to the right of something comes after it, if an arrow or its lane says so.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from cai_dlpack.demo.picture import COLOURS, arrow, block, label, svg

LANES = {"A: stream s": 46, "A: host": 96, "B: host": 146, "B: stream": 196}
WIDTH, LEFT, PANEL = 860, 120, 236
COPY = "#f7d6e6"


class Step(NamedTuple):
    """A block on a lane, from `begins` on; `after` is the lane, and where on it, that it waits for."""

    lane: str
    begins: int
    width: int
    said: str
    colour: str
    after: tuple[str, int] | None = None
    by: str = ""


WRITES = Step("A: stream s", 0, 200, "writes the array", COLOURS["write"])
WAITS = Step("A: host", 60, 140, "waits for s", COLOURS["wait"])


class Way(NamedTuple):
    title: str
    steps: tuple[Step, ...]


WAYS = (
    Way(
        "Dask over TCP, pickle: one copy at each end (Ray: one more, to its store)",
        (
            WRITES,
            WAITS,
            Step("A: host", 216, 120, "copy to the host", COPY, ("A: stream s", 200)),
            Step("B: host", 400, 70, "bytes", COLOURS["host"], ("A: host", 336), "TCP, a pipe, a store"),
            Step("B: stream", 490, 120, "copy to a device", COPY, ("B: host", 470)),
            Step("B: stream", 620, 90, "reads", COLOURS["right"]),
        ),
    ),
    Way(
        "Dask over UCXX, MPI, NIXL: the engine sends the memory itself, this package copies nothing",
        (
            WRITES,
            WAITS,
            Step("A: host", 216, 134, "names the address", COLOURS["host"], ("A: stream s", 200)),
            Step("B: host", 400, 120, "it has arrived", COLOURS["host"], ("A: host", 350), "from device to device"),
            Step("B: stream", 560, 90, "reads", COLOURS["right"], ("B: host", 520)),
        ),
    ),
    Way(
        "CUDA IPC, cd.share and cd.open: the same memory in both, no host waits for the data",
        (
            WRITES,
            Step("A: host", 0, 56, "share", COLOURS["host"]),
            Step("B: host", 100, 90, "open: maps", COLOURS["host"], ("A: host", 56), "the handle"),
            Step("B: stream", 196, 110, "waits", COLOURS["wait"]),
            Step("B: stream", 316, 90, "reads", COLOURS["right"], ("A: stream s", 200), "an event"),
        ),
    ),
)


def drawing() -> str:
    title = "The way of one array, from process A to process B"
    parts = [label(16, 26, title, weight="bold", size=16)]
    for at, way in enumerate(WAYS):
        parts.append(f'<g transform="translate(0 {40 + at * PANEL})">')
        parts.extend(panel(way))
        parts.append("</g>")
    return svg(title, WIDTH, 40 + PANEL * len(WAYS), parts)


def panel(way: Way) -> list[str]:
    parts = [label(16, 18, way.title, weight="bold")]
    for lane, y in LANES.items():
        parts.append(label(16, y + 5, lane))
        parts.append(f'<line x1="{LEFT - 10}" y1="{y}" x2="{WIDTH - 16}" y2="{y}" stroke="#adb5bd"/>')
    for step in way.steps:
        x, y = LEFT + step.begins, LANES[step.lane]
        if step.after:
            lane, where = step.after
            below = 15 if LANES[lane] < y else -15
            parts.append(arrow(LEFT + where, LANES[lane] + below, x + 8, y - below))
            if step.by:
                middle = (LEFT + where + x) / 2 + 16
                parts.append(label(x + 18 if y - LANES[lane] < 100 else middle, (LANES[lane] + y) / 2 + 5, step.by))
        parts.append(block(x, y, step.width, step.said, step.colour))
    return parts


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(drawing(), encoding="utf-8")
