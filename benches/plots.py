"""Draws the kept figures of docs/performance.md.

    python benches/plots.py FOLDER    writes instructions.svg and nanoseconds.svg

The instructions are those of instructions.json, the nanoseconds those of the last table in results/.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from instructions import CONVERSIONS, SAVED, costs

HERE = Path(__file__).resolve().parent
WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 760, 290, 70, 16, 14, 64
COLOURS = {"C floor": "#adb5bd", "checked floor": "#6ea8fe", "ours": "#0a58ca", "others": "#ced4da"}
ROW = re.compile(r"^\| (?P<name>[^|]+) \| [\d.]+ \| [\d.]+ to [\d.]+ \| (?P<least>\d+) \| \d+ \|$")
#: The tables of results/ that are drawn, by the beginning of their titles.
TABLES = ("CAI object -> view", "view -> `__dlpack__`", "DLPack object -> view, by `__dlpack__`", "view -> dict")


class Bar(NamedTuple):
    """One bar: its kind chooses the colour."""

    name: str
    kind: str
    value: float
    mark: float | None = None


def text(x: float, y: float, said: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{more}>{escape(said)}</text>'


def chart(
    title: str, caption: str, groups: Sequence[tuple[str, Sequence[Bar]]], place: Callable[[float], float]
) -> str:
    """Draws bars in groups. `place` maps a value to 0 to 1 of the width."""
    width = WIDTH - LEFT - RIGHT
    parts, y = [], TOP
    for name, bars in groups:
        parts.append(text(16, y + 12, name, more=' font-weight="bold"'))
        y += BAR + 4
        for bar in bars:
            end = LEFT + width * place(bar.value)
            parts.append(text(LEFT - 8, y + 12, bar.name, "end"))
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{end - LEFT:.1f}" height="{BAR - 2}" fill="{COLOURS[bar.kind]}"/>'
            )
            if bar.mark is not None:
                at = LEFT + width * place(bar.mark)
                parts.append(f'<path d="M{at:.1f} {y - 2}v{BAR + 2}" stroke="#b02a37" stroke-width="2"/>')
                end = max(end, at)
            parts.append(text(end + 6, y + 12, f"{bar.value:,.0f}"))
            y += BAR
        y += GAP
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}"',
        ' font-family="system-ui, sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>',
        text(16, 26, title, more=' font-weight="bold" font-size="16"'),
        text(16, 46, caption, more=' fill="#495057"'),
    ]
    return "\n".join([*head, *parts, "</svg>\n"])


def instructions() -> str:
    """Own cost beside both floors, and the budget."""
    saved = json.loads(SAVED.read_text(encoding="utf-8"))
    found = costs(saved["counts"])
    groups = []
    for conversion in CONVERSIONS:
        cost = found[conversion]
        bars = [
            Bar("C floor", "C floor", cost.floor),
            Bar("checked floor", "checked floor", cost.checked),
            Bar("ours", "ours", cost.ours, conversion.budget * cost.floor),
        ]
        groups.append((conversion.name.replace("->", "\N{RIGHTWARDS ARROW}"), bars))
    most = max(value for _, bars in groups for bar in bars for value in (bar.value, bar.mark or 0))
    caption = f"CPython {saved['python']}, commit {saved['commit']}; the red line is the budget"
    return chart("Instructions of a conversion: own cost", caption, groups, lambda value: value / most)


def nanoseconds() -> str:
    """The least time of each path, beside other libraries. Logarithmic."""
    kept = max(path for path in HERE.glob("results/*.md") if not re.search("torch|reach", path.name))
    page = kept.read_text(encoding="utf-8")
    title, *sections = page.split("\n### ")
    groups = []
    for wanted in TABLES:
        section = next(each for each in sections if each.startswith(wanted))
        rows = [row for line in section.splitlines() if (row := ROW.match(line))]
        bars = []
        for row in rows:
            name = row["name"]
            kind = "ours" if name.startswith("ours") else "C floor" if name.startswith("C floor") else "others"
            bars.append(Bar(name, kind, float(row["least"])))
        heading = section.partition("\n")[0].replace("`", "").replace("->", "\N{RIGHTWARDS ARROW}")
        groups.append((heading, bars))
    values = [bar.value for _, bars in groups for bar in bars]
    low, high = math.log(min(values) / 2), math.log(max(values))
    caption = f"{title.partition(chr(10))[0].lstrip('# ')}; the least of ten runs, on the simulated driver; logarithmic"
    return chart("Nanoseconds of a conversion", caption, groups, lambda value: (math.log(value) - low) / (high - low))


def main() -> None:
    folder = Path(sys.argv[1])
    for draw in (instructions, nanoseconds):
        (folder / f"{draw.__name__}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
