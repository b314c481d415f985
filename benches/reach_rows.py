"""Rows of the tables of messages: a view beside the engine's own array, in turns, so that both meet the same load."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

#: Arrays in a message, and bytes of an array: what grows while the other stays.
NUMBERS = (1, 10, 100, 1000)
SIZES = (4 << 10, 256 << 10, 4 << 20, 64 << 20)
#: Processes that receive.
WORKERS = (1, 2, 4)
ROUNDS = 15
COLUMNS = (
    "engine",
    "arrays",
    "KiB each",
    "receivers",
    "view, min",
    "view, median",
    "own, min",
    "view to own",
    "a second",
)
HEAD = "\n".join(["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"])


class Message(NamedTuple):
    """What one call carries."""

    engine: str
    number: int = 1
    nbytes: int = SIZES[0]
    receivers: int = 1


def loads() -> list[tuple[int, int]]:
    """Number and bytes of arrays: more of them, then larger ones."""
    return [*((number, SIZES[0]) for number in NUMBERS), *((1, nbytes) for nbytes in SIZES[1:])]


def row(message: Message, view: Callable[[], Any], own: Callable[[], Any] | None, repeats: int = 1) -> str:
    """Calls both in turns. A call may return the seconds that it took itself, else its time is taken here."""
    spent: dict[int, list[float]] = {0: [], 1: []}
    for at in range(-1, ROUNDS):
        for kind, call in enumerate([view, own] if own else [view]):
            start, told = time.perf_counter(), 0.0
            for _ in range(repeats):
                found = call()
                told += found if isinstance(found, float) else 0.0
            took = told or time.perf_counter() - start
            if at >= 0:
                spent[kind].append(took / repeats / message.number * 1e6)
    least, median = min(spent[0]), statistics.median(spent[0])
    beside = f"{min(spent[1]):.1f} | {least / min(spent[1]):.2f}" if own else " | "
    what = f"{message.engine} | {message.number} | {message.nbytes >> 10} | {message.receivers}"
    return f"| {what} | {least:.1f} | {median:.1f} | {beside} | {1e6 / least:,.0f} |"
