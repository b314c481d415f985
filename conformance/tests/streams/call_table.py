"""The table of driver calls in docs/streams.md, read from the page, and which row an order is of."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "streams.md"
HEAD = ["ready", "consumer", "memory", "current context", "calls, in this order"]

# Ready, consumer, memory, current context.
Row = tuple[str, str, str, str]
HOST = 0


def table() -> dict[Row, list[str]]:
    """The calls of each row, one for each kind of memory."""
    found: dict[Row, list[str]] = {}
    is_inside = False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells == HEAD:
            is_inside = True
        elif is_inside and not line.startswith("|"):
            break
        elif is_inside and not line.startswith("|---"):
            ready, consumer, memories, current, calls = cells
            for memory in memories.split(", "):
                found[ready, consumer, memory, current] = re.findall(r"`(cu\w+)`", calls)
    return found


def names(ready: int, consumer: int) -> tuple[str, str]:
    """How the table names two streams; either default stream stands for the other one. `HOST` is the host."""
    first = "1" if ready <= 2 else "A"
    if consumer == HOST:
        return first, "host"
    if consumer > 2:
        return first, "A" if consumer == ready else "B"
    return first, "2" if first == "1" and consumer != ready else "1"
