"""From cells to what is printed, saved and compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conformance.matrix.cells import COPIED, DTYPES, FAILED, LAYOUTS, NO_SUCH, OK, REFUSED

Pair = dict[str, Any]


def summary(cells: list[dict[str, Any]]) -> dict[str, Pair]:
    """By pair: for each dtype a number for each layout, 0 for OK, n for the n-th of the pair's reasons."""
    pairs: dict[str, Pair] = {}
    for cell in cells:
        key = f"{cell['room']}: {cell['producer']} -> {cell['consumer']} ({cell['bridge']})"
        pair = pairs.setdefault(key, {"reasons": [], "rows": dict.fromkeys(DTYPES, "")})
        number = 0
        if cell["outcome"] != OK:
            reason = [cell["outcome"], cell["reason"]]
            if reason not in pair["reasons"]:
                pair["reasons"].append(reason)
            number = pair["reasons"].index(reason) + 1
        pair["rows"][cell["dtype"]] += f" {number}"
    return pairs


def numbers(row: str) -> list[tuple[str, int]]:
    """The layouts of a row, each with its number; all of them, as they are run in this order."""
    return list(zip(LAYOUTS, map(int, row.split()), strict=True))


def outcomes(pair: Pair) -> Iterator[tuple[str, str, str]]:
    """Each cell of a pair as (dtype, layout, outcome)."""
    for dtype, row in pair["rows"].items():
        for layout, number in numbers(row):
            yield dtype, layout, OK if number == 0 else pair["reasons"][number - 1][0]


def regressions(before: dict[str, Any], now: dict[str, Pair], order: dict[str, str]) -> list[str]:
    """The cells that were OK and are not any more, and orders that changed. What is not run is named elsewhere."""
    was = before.get("order", {})
    worse = [f"{name}: {was[name]}" for name, how in order.items() if was.get(name, how) != how]
    for key, old in before.get("pairs", {}).items():
        if key not in now:
            continue
        today = {(dtype, layout): outcome for dtype, layout, outcome in outcomes(now[key])}
        for dtype, layout, outcome in outcomes(old):
            if outcome == OK and today.get((dtype, layout)) != OK:
                worse.append(f"{key}: {dtype}, {layout}: {today.get((dtype, layout))}")
    return worse


def markdown(head: dict[str, Any], pairs: dict[str, Pair]) -> str:
    """The report: what ran, a line for each pair, every reason, and who was not there."""
    lines = [
        "# The matrix",
        "",
        f"{head['date']}, commit {head['commit']}, **{head['driver']}**.",
        "",
        f"Made by `make {head['target']}`. OK: the pointer is the producer's and every bit is equal. Copied: the data",
        "are equal, and lie elsewhere. Refused: an error, in the words below. Failed: a crash or wrong data.",
        "Not made: the producer has no such array.",
        "",
        "Versions: " + ", ".join(f"{name} {number}" for name, number in head["versions"].items()) + ".",
        "",
        "| from -> to (bridge) | OK | copied | refused | failed | not made |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for key, pair in sorted(pairs.items()):
        found = [outcome for _, _, outcome in outcomes(pair)]
        lines.append(
            f"| {key} | " + " | ".join(str(found.count(kind)) for kind in (OK, COPIED, REFUSED, FAILED, NO_SUCH)) + " |"
        )
    if "order" in head:
        lines += ["", "## Who waits, and how", "", "Data written on one stream, handed to:", ""]
        lines += [f"- {name}: {how}" for name, how in head["order"].items()]
    lines += [
        "",
        "## By dtype (in rows) and by layout (float32)",
        "",
        "Over all pairs: OK of those that were made.",
        "",
    ]
    lines += ["| dtype | OK | made |", "|---|---:|---:|"]
    for name in DTYPES:
        found = [
            outcome
            for pair in pairs.values()
            for dtype, layout, outcome in outcomes(pair)
            if (dtype, layout) == (name, "rows")
        ]
        lines.append(f"| {name} | {found.count(OK)} | {len(found) - found.count(NO_SUCH)} |")
    lines += ["", "| layout | OK | made |", "|---|---:|---:|"]
    for name in LAYOUTS:
        found = [
            outcome
            for pair in pairs.values()
            for dtype, layout, outcome in outcomes(pair)
            if (dtype, layout) == ("float32", name)
        ]
        lines.append(f"| {name} | {found.count(OK)} | {len(found) - found.count(NO_SUCH)} |")
    lines += ["", "## Reasons", ""]
    for kind in (FAILED, COPIED, REFUSED):
        lines += [f"### {kind.capitalize()}", ""]
        for reason, places in reasons(pairs, kind).items():
            lines.append(f"- {reason}: {len(places)} cells, such as {places[0]}")
        lines.append("")
    lines += ["## Not run", ""]
    lines += [f"- {name}: {reason}" for name, reason in head["not_run"].items()]
    return "\n".join(lines) + "\n"


def reasons(pairs: dict[str, Pair], kind: str) -> dict[str, list[str]]:
    """The reasons of one kind, each with the cells that it is given for."""
    found: dict[str, list[str]] = {}
    for key, pair in sorted(pairs.items()):
        for dtype, row in pair["rows"].items():
            for layout, number in numbers(row):
                if number and pair["reasons"][number - 1][0] == kind:
                    found.setdefault(pair["reasons"][number - 1][1], []).append(f"{key}: {dtype}, {layout}")
    return found
