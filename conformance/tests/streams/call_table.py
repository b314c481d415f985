"""The tables of driver calls in docs/streams.md, read from the page, and which row an order is of."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "streams.md"
HEAD = ["ready", "consumer", "memory", "current context", "calls, in this order"]

# Ready, consumer, memory, current context.
Row = tuple[str, str, str, str]
HOST = 0


def _rows(head: list[str]) -> list[tuple[list[str], list[str], str]]:
    """The rows of the page's table with this head: the cells but the last, the calls that that one names, its text."""
    found = []
    is_inside = False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells == head:
            is_inside = True
        elif is_inside and not line.startswith("|"):
            break
        elif is_inside and not line.startswith("|---"):
            found.append((cells[:-1], re.findall(r"`(cu\w+)`", cells[-1]), cells[-1]))
    return found


def table() -> dict[Row, list[str]]:
    """The calls of each order, one for each kind of memory."""
    return {
        (ready, consumer, memory, current): calls
        for (ready, consumer, memories, current), calls, _ in _rows(HEAD)
        for memory in memories.split(", ")
    }


def routes() -> dict[tuple[str, str, str], list[str]]:
    """The calls of each route: of its name, the memory and the ready stream."""
    return {
        (route, memory, ready): calls
        for (route, memories, readies), calls, _ in _rows(["route", "memory", "ready", "calls, in this order"])
        for memory in memories.split(", ")
        for ready in readies.split(", ")
    }


def parts() -> dict[tuple[str, str, str], list[str]]:
    """The calls of each part of a copy: of its name, the consumer and the memory."""
    return {
        (part, consumer, memory): calls
        for (part, consumers, memories), calls, _ in _rows(
            ["part of a copy", "consumer", "memory", "calls, in this order"]
        )
        for consumer in consumers.split(", ")
        for memory in memories.split(", ")
    }


def copy_orders() -> dict[str, list[str]]:
    """The parts of a copy for each consumer."""
    return {
        consumer: re.findall(r"\*(\w+)\*", text)
        for (consumers,), _, text in _rows(["copy for", "its parts, in this order"])
        for consumer in consumers.split(", ")
    }


def names(ready: int, consumer: int) -> tuple[str, str]:
    """How the table names two streams; either default stream stands for the other one. `HOST` is the host."""
    first = "1" if ready <= 2 else "A"
    if consumer == HOST:
        return first, "host"
    if consumer > 2:
        return first, "A" if consumer == ready else "B"
    return first, "2" if first == "1" and consumer != ready else "1"
