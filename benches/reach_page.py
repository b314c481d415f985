"""Writes the tables of docs/reach.md from the newest kept run of `make bench-reach`.

    make bench-reach | tee benches/results/DATE-reach-pythonVERSION.md
    python benches/reach_page.py

A table for each direction in which a message grows: more arrays, larger ones, more receivers, more devices. A cell has
the microseconds for each array by a view, the least of the rounds, and how often the engine's own array's time that is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from reach_rows import HEAD, SIZES, WORKERS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reach.md"
RESULTS = ROOT / "benches" / "results"
BEGIN, END = "<!-- measured -->\n", "<!-- end -->"
#: `| engine | arrays | KiB each | receivers | view, min | view, median | own, min | view to own | a second |`
COUNT, TIME, IF_ANY = r"(\d+) \| ", r"([\d.]+) \| ", r"([\d.]*) ?\| "
ROW = re.compile(rf"\| ([^|]+) \| {COUNT}{COUNT}{COUNT}{TIME}{TIME}{IF_ANY}{IF_ANY}([\d,]+) \|")
DEVICES = re.compile(r", (\d+) devices$")
KIB = SIZES[0] >> 10


class Row(NamedTuple):
    engine: str
    arrays: int
    kib: int
    receivers: int
    devices: int
    least: float
    ratio: str
    a_second: int

    def cell(self) -> str:
        return f"{self.least:g} ({self.ratio})" if self.ratio else f"{self.least:g}"


def kept() -> Path | None:
    """Returns the newest run that has these columns."""
    found = [path for path in RESULTS.glob("*-reach-*.md") if HEAD in path.read_text(encoding="utf-8")]
    return max(found, default=None)


def rows(text: str) -> Iterator[Row]:
    """Reads the rows of a run; an engine that ran in two environments stands for its first."""
    seen = set()
    for found in filter(None, map(ROW.fullmatch, text.splitlines())):
        engine, arrays, kib, receivers, least, _, _, ratio, a_second = found.groups()
        devices = DEVICES.search(engine)
        name = DEVICES.sub("", engine)
        key = (name, int(arrays), int(kib), int(receivers), int(devices[1]) if devices else 1)
        if key not in seen:
            seen.add(key)
            yield Row(*key, float(least), ratio, int(a_second.replace(",", "")))


def table(title: str, names: Sequence[str], lines: dict[str, dict[str, Row]]) -> Iterator[str]:
    """A table with a line for each engine, whose last column is the most arrays that it has carried in a second."""
    yield f"| {title} | {' | '.join(names)} | a second, most |"
    yield "|---" * (len(names) + 2) + "|"
    for engine, cells in lines.items():
        told = (cells[name].cell() if name in cells else "" for name in names)
        most = max(row.a_second for row in cells.values())
        yield f"| {engine} | {' | '.join(told)} | {most:,} |"
    yield ""


def tables(found: Sequence[Row]) -> Iterator[str]:
    def grown(chosen: Sequence[Row], label: str) -> dict[str, dict[str, Row]]:
        lines: dict[str, dict[str, Row]] = {}
        for row in chosen:
            # Of several messages the first, and smallest.
            lines.setdefault(row.engine, {}).setdefault(str(getattr(row, label)), row)
        return {engine: cells for engine, cells in lines.items() if len(cells) > 1}

    alone = [row for row in found if row.receivers == row.devices == 1]
    # What grows in another direction has the same number and size of arrays all the time.
    directions = {
        "arrays in a message": ("arrays", [row for row in alone if row.kib == KIB]),
        "KiB of one array": ("kib", [row for row in alone if row.arrays == 1]),
        "receivers": ("receivers", constant(found, "receivers")),
        "devices": ("devices", constant(found, "devices")),
    }
    for title, (label, chosen) in directions.items():
        if lines := grown(chosen, label):
            names = sorted({name for cells in lines.values() for name in cells}, key=int)
            yield from table(title, names, lines)


def constant(found: Sequence[Row], label: str) -> list[Row]:
    """The rows of messages that were measured with more than one value of a column, all others being the same."""
    other = "devices" if label == "receivers" else "receivers"
    groups: dict[tuple[str, int, int], list[Row]] = {}
    for row in found:
        if getattr(row, other) == 1:
            groups.setdefault((row.engine, row.arrays, row.kib), []).append(row)
    return [row for group in groups.values() if len(group) > 1 for row in group if row.receivers <= max(WORKERS)]


def section(run: Path | None) -> str:
    if run is None:
        return "No run with these columns is kept yet.\n"
    text = run.read_text(encoding="utf-8")
    said = " ".join(dict.fromkeys(re.findall(r"^Commit .*$", text, re.MULTILINE)))
    head = f"Microseconds for each array by a view, and how often the own array's time ([results]({link(run)})). {said}"
    return "\n".join([head, "", *tables(list(rows(text)))]).rstrip("\n") + "\n"


def link(run: Path) -> str:
    return f"../benches/results/{run.name}"


def replaced(page: str, written: str) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"{PAGE.name} has no place for the tables"
    return f"{before}{begin}{written}{end}{after}"


def main() -> None:
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), section(kept())), encoding="utf-8")


if __name__ == "__main__":
    main()
