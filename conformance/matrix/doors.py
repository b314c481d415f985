"""The doors of the library beside `view`, and what `explain` foretells of each.

| door | what `explain` tells of it |
|---|---|
| `from_dlpack` | the route, if that is `__dlpack__` or a capsule; its refusal, which is the import's or the export's |
| `from_cai` | the route, if that is the interface |
| `to_dlpack` | the order of the export, refused or not |
| `to_cai` | what a consumer of the interface is told |
| a bare capsule of the view | what it tells of the view, less what a capsule cannot say |
| `In`, `InOut`, `CaiView` of Rust | the import, and what DLPack cannot describe; the argument has demands of its own |
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cai_dlpack as cd
import numpy as np

# The demands of a typed argument, which depend on the Rust function: the rules of views, and of the driver's check.
DEMANDS = ("view-", "out-of-bounds", "pointer-", "read-only", "data-alignment")


# A view that comes by its own `__dlpack__` is ordered by it, on the stream of `use_stream`.
ORDERS = ("capture-", "stream-thread", "stream-context")


@dataclass(frozen=True)
class Door:
    """A way into or through the library."""

    # The call: of an array, the keywords of an import, and the consumer's stream.
    call: Callable[[Any, dict[str, Any], int | None], object]
    # Whether `explain` tells of this door, for an array and what was told.
    applies: Callable[[Any, Any], bool]
    # What is told of the refusal of an array that `view` takes.
    refusal: Callable[[Any], str | None]
    # Whether the call takes keywords.
    takes_keywords: bool = True
    # Rules that are the function's own.
    own: tuple[str, ...] = ()

    def is_same(self, one: str, other: str | None) -> bool:
        """Whether two sentences tell the same refusal; a Rust function reads a view as what it exports."""
        if self.takes_keywords or other is None:
            return one == other
        return one.rpartition(" [")[2] == other.rpartition(" [")[2]


def by_dlpack(obj: Any, told: Any) -> bool:
    """Whether `from_dlpack` and `view` ask the same of an array."""
    return told.route in ("dlpack", "capsule", "array_interface", "view")


def by_interface(obj: Any, told: Any) -> bool:
    return bool(told.route == "cai")


def always(obj: Any, told: Any) -> bool:
    return True


def of_export(told: Any) -> str | None:
    """Why the view's own export is refused."""
    order = told.order or ""
    return order.removeprefix("refused: ") if order.startswith("refused: ") else None


def of_items(told: Any) -> str | None:
    """Why DLPack cannot describe the array."""
    found = re.search(r"^by DLPack +refused: (.*)$", str(told), re.MULTILINE)
    return found[1] if found else None


def of_none(told: Any) -> str | None:
    return None


def capsule_of(obj: Any, keywords: dict[str, Any], stream: int | None) -> object:
    """Hands over a view as a bare capsule."""
    return cd.view(cd.to_dlpack(obj, stream=stream, max_version=(1, 1), **keywords))


DOORS: dict[str, Door] = {
    "from_dlpack": Door(lambda obj, keywords, stream: cd.from_dlpack(obj, **keywords), by_dlpack, of_items, own=ORDERS),
    "from_cai": Door(lambda obj, keywords, stream: cd.from_cai(obj, **keywords), by_interface, of_none),
    "to_dlpack": Door(
        lambda obj, keywords, stream: cd.to_dlpack(obj, stream=stream, max_version=(1, 1), **keywords),
        always,
        of_export,
    ),
    "a capsule": Door(capsule_of, always, of_export),
}
if importlib.util.find_spec("cai_example_peer"):
    import cai_example_peer as peer

    DOORS |= {
        "CaiView": Door(
            lambda obj, keywords, stream: peer.view_of(obj), always, of_items, takes_keywords=False, own=DEMANDS
        ),
        "In": Door(
            lambda obj, keywords, stream: peer.extract(obj), always, of_items, takes_keywords=False, own=DEMANDS
        ),
        "InOut": Door(
            lambda obj, keywords, stream: peer.borrow_both(np.zeros(3), obj),
            always,
            of_items,
            takes_keywords=False,
            own=DEMANDS,
        ),
    }
