"""Draws the cases of `explained.py`: what is imported, how, for whom, and in which state of the process."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cai_dlpack as cd

from conformance.matrix.calls import PARTNERS
from conformance.matrix.cells import DTYPES, LAYOUTS

# The keywords of an import, each with values that are drawn. STREAM stands for a stream of the machine.
STREAM = "a stream"
KEYWORDS: list[tuple[str, list[Any]]] = [
    ("producer_stream", [STREAM, 1, 2, None, ...]),
    ("dtype", ["float32", "uint8", "int64", "bfloat16", "int32", "float4_e2m1fn"]),
    ("shape", [(12,), (2, 6), (5,), (6,), (0,)]),
    ("read_only", [True, False]),
    ("owner", [object()]),
    ("device_id", [0, 1, 3]),
    ("check", ["device", "bounds"]),
    ("strict", [True]),
]
# Values that no import takes.
WRONG: list[tuple[str, Any]] = [
    ("producer_stream", -7),
    ("producer_stream", "a"),
    ("dtype", "zz"),
    ("dtype", 3),
    ("shape", (-1,)),
    ("shape", (2, -3)),
    ("shape", (2**62, 8)),
    ("shape", (1,) * 65),
    ("shape", 12),
    ("read_only", 3),
    ("device_id", -1),
    ("device_id", "x"),
    ("check", "q"),
    ("strict", "yes"),
]


def errors_but_ignored() -> None:
    warnings.simplefilter("error")
    warnings.simplefilter("ignore")


# Filters that make errors of warnings, by what they look at.
FILTERS: dict[str, Callable[[], None]] = {
    "everything": lambda: warnings.simplefilter("error"),
    "streams": lambda: warnings.filterwarnings("error", category=cd.StreamWarning),
    "versions": lambda: warnings.filterwarnings("error", category=cd.VersionWarning),
    "a text": lambda: warnings.filterwarnings("error", message=r".*version"),
    "these modules": lambda: warnings.filterwarnings(
        "error", module=r"(__main__|conformance\.matrix\.(explained|doors))$"
    ),
    "another module": lambda: warnings.filterwarnings("error", module="elsewhere"),
    "another line": lambda: warnings.filterwarnings("error", lineno=1),
    "unless ignored": errors_but_ignored,
}
# Whose stream is being captured, and in which mode: global, of this thread, relaxed.
CAPTURED, MODES = ["ready", "consumer", "another", "both"], [0, 1, 2]


@dataclass(frozen=True)
class Case:
    """One array, and what is done with it."""

    producer: str
    dtype: str
    layout: str
    keywords: tuple[tuple[str, Any], ...]
    consumer: str | None
    sync: str | None
    # The consumer's stream: none is named, a default stream, the one that the data is ready on, or another.
    stream: str | None
    in_block: bool
    # The name that the consumer is given; None for that of its row.
    name: str | None = None
    filters: str | None = None
    capture: tuple[str, int] | None = None
    # The values that an odd array is drawn from.
    draw: int = 0
    # Another door of the library, of `doors.py`.
    door: str | None = None

    def __str__(self) -> str:
        array = f"{self.producer} {self.draw}" if self.draw else f"{self.producer} {self.dtype} {self.layout}"
        told = [array, f"view({dict(self.keywords)})" if self.keywords else ""]
        told += [
            f"to {self.name or self.consumer}" if self.consumer else "",
            f"on {self.stream}" if self.stream else "",
        ]
        told += [f"sync={self.sync}" if self.sync else "", "in use_stream" if self.in_block else ""]
        told += [f"errors: {self.filters}" if self.filters else "", f"captured: {self.capture}" if self.capture else ""]
        told += [f"by {self.door}" if self.door else ""]
        return ", ".join(part for part in told if part)


def drawn(
    chosen: random.Random, producers: list[str], odd: list[str], consumers: list[str | None], doors: list[str]
) -> Case:
    """A case by chance: most have few keywords, so that most arrays reach the consumer."""
    keywords = {}
    for _ in range(chosen.choice([0, 0, 1, 1, 2, 3])):
        name, values = chosen.choice(KEYWORDS)
        keywords[name] = chosen.choice(values)
    if chosen.random() < 0.05:
        name, value = chosen.choice(WRONG)
        keywords[name] = value
    is_odd = chosen.random() < 0.5
    producer, consumer = chosen.choice(odd if is_odd else producers), chosen.choice(consumers)
    # A false device, and an address of nothing, are the caller's word: consumers go by it.
    if keywords.get("device_id", 0) != 0 or producer == "unknown memory":
        consumer = None
    return Case(
        producer=producer,
        dtype=chosen.choice(["float32", chosen.choice(DTYPES)]),
        layout=chosen.choice(["vector", "rows", chosen.choice(LAYOUTS)]),
        keywords=tuple(keywords.items()),
        consumer=consumer,
        sync=chosen.choice([None, None, None, "event", "host", "none"]),
        stream=chosen.choice([None, None, "legacy", "own", "ready"]),
        in_block=chosen.random() < 0.2,
        name=typed(chosen, consumer) if consumer and chosen.random() < 0.3 else None,
        filters=chosen.choice(list(FILTERS)) if chosen.random() < 0.2 else None,
        capture=(chosen.choice(CAPTURED), chosen.choice(MODES)) if chosen.random() < 0.2 else None,
        draw=chosen.randrange(1, 1 << 30) if is_odd else 0,
        door=chosen.choice(doors) if doors and chosen.random() < 0.5 else None,
    )


def names(row: dict[str, Any]) -> list[str]:
    """Every name of a library, with `*` for the digits of a version."""
    return [row["name"], row["title"], row["distribution"], *row["aliases"], *row["distributions"]]


def typed(chosen: random.Random, consumer: str) -> str:
    """A library's name as people type it."""
    name: str = chosen.choice(names(PARTNERS[consumer]))
    name = name.replace("*", chosen.choice(["11", "12", "13", "120", "130"]))
    return chosen.choice([name, name.upper(), name.replace("-", "_"), name.replace("_", "-"), f" {name}"])
