"""The call log, as values."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(r"(?P<symbol>\w+)\((?P<arguments>.*)\) = (?P<result>\d+|…)")
_SUFFIX = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")


@dataclass(frozen=True)
class Call:
    """One call of the driver API."""

    symbol: str
    """The function as exported, such as `cuMemAlloc_v2`."""
    arguments: dict[str, int]
    """Arguments by name; pointers and handles as numbers."""
    result: int | None
    """The CUresult; None while the call runs."""

    @property
    def name(self) -> str:
        """The function without the suffix of its variant, such as `cuMemAlloc`."""
        return _SUFFIX.sub("", self.symbol)

    @property
    def stream(self) -> int | None:
        """The stream that the call was made on, for calls that take one."""
        return self.arguments.get("stream")


def parse(line: str) -> Call:
    """One line of the log."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"not a line of the call log: {line!r}")
    pairs = [pair.split("=") for pair in match["arguments"].split(", ") if pair]
    result = None if match["result"] == "…" else int(match["result"])
    return Call(match["symbol"], {name: int(value, 16) for name, value in pairs}, result)
