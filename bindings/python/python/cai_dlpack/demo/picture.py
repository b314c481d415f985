"""Draws the streams of one hand-over, without the bridge and with it, from the calls that the simulated driver logged.

The order is the log's, and what each stream reads is what it read; lengths mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import atan2, degrees

from cai_dlpack.demo.outcome import Outcome

# What the calls of a hand-over are named in the picture, by the lane that they are for.
STEPS = {
    "cuMemcpyHtoDAsync": ("writer", "write"),
    "cuEventRecord": ("writer", "record"),
    "cuStreamWaitEvent": ("reader", "wait"),
    "cuMemcpyDtoHAsync": ("reader", "read"),
}
LANES = {"host": 42, "writer": 92, "reader": 142}
PANEL, WIDTH, LEFT, STEP, BLOCK = 190, 760, 110, 90, 150
COLOURS = {"write": "#9ec5fe", "right": "#a3cfbb", "WRONG": "#f1aeb5", "wait": "#e9ecef", "host": "#fff3cd"}


def drawing(title: str, sides: Sequence[tuple[str, Outcome]]) -> str:
    """An SVG of a panel for each line and what came of it."""
    parts = [label(16, 26, title, weight="bold", size=16)]
    for at, (line, outcome) in enumerate(sides):
        panel = "\n".join(_panel(line, outcome))
        parts.append(f'<g transform="translate(0 {40 + at * PANEL})">\n{panel}\n</g>')
    return svg(title, WIDTH, 40 + PANEL * len(sides), parts)


def svg(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    """An SVG on a white ground."""
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"',
        ' font-family="system-ui, sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    return "\n".join([*head, *parts, "</svg>\n"])


def _panel(line: str, outcome: Outcome) -> list[str]:
    steps = [(call, *STEPS[call.name]) for call in outcome.calls if call.name in STEPS]
    made = {step: LEFT + STEP * at for at, (_, _, step) in enumerate(steps)}
    parts = [label(16, 18, line, family="ui-monospace, monospace")]
    for lane, y in LANES.items():
        parts.append(label(16, y + 5, lane))
        parts.append(f'<line x1="{LEFT - 30}" y1="{y}" x2="{WIDTH - 16}" y2="{y}" stroke="#adb5bd"/>')
    for step, x in made.items():
        parts.append(block(x, LANES["host"], 64, step, COLOURS["host"]))
    # The write is long: it ends after all calls have been made.
    begun = made["write"] + 40
    written = LEFT + STEP * len(steps) + 20
    parts.append(block(begun, LANES["writer"], written - begun, "writes 1 2 3 4", COLOURS["write"]))
    shown = f"reads {outcome.text.partition(';')[0].partition(',')[0]}"
    reads = made["read"] + 40
    if "wait" in made:
        waits = made["wait"] + 40
        parts.append(block(waits, LANES["reader"], written + 14 - waits, "waits", COLOURS["wait"]))
        reads = written + 22
        parts.append(f'<circle cx="{written + 8}" cy="{LANES["writer"]}" r="5" fill="#0d6efd"/>')
        parts.append(arrow(written + 10, LANES["writer"] + 6, reads - 2, LANES["reader"] - 14))
        parts.append(label(written + 18, LANES["writer"] - 6, "event"))
    parts.append(block(reads, LANES["reader"], BLOCK, f"{shown}: {outcome.verdict}", COLOURS[outcome.verdict]))
    return parts


def label(x: float, y: float, text: str, *, weight: str = "normal", size: int = 13, family: str = "") -> str:
    """A text."""
    font = f' font-family="{family}"' if family else ""
    return f'<text x="{x}" y="{y}" font-weight="{weight}" font-size="{size}"{font}>{escape(text)}</text>'


def block(x: float, y: float, width: float, text: str, colour: str) -> str:
    """A box with a text, on the line at `y`."""
    return (
        f'<rect x="{x}" y="{y - 13}" width="{width}" height="26" rx="4" fill="{colour}" stroke="#6c757d"/>'
        f'<text x="{x + width / 2}" y="{y + 5}" text-anchor="middle">{escape(text)}</text>'
    )


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """An arrow, in any direction."""
    turn = degrees(atan2(to_y - y, to_x - x))
    head = f'<path d="M0 0 l-9 -4 v8 z" transform="translate({to_x} {to_y}) rotate({turn:.1f})" fill="#0d6efd"/>'
    return f'<path d="M{x} {y} L{to_x} {to_y}" stroke="#0d6efd" fill="none"/>{head}'
