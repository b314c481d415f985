"""What came of one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What came of one line."""

    verdict: str
    """`right`, `WRONG` or `refused`."""
    text: str
    calls: tuple[Any, ...] = ()
    """The driver's calls of the line and of the read after it, on the simulated driver."""

    @property
    def style(self) -> str:
        return {"right": "green", "WRONG": "bold red", "refused": "yellow"}[self.verdict]
