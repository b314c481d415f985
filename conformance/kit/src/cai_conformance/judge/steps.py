"""What a check does, told before it is done: of a check in which the process ended this is all that is known of it."""

from __future__ import annotations

from collections.abc import Callable

#: What was done: `make` a sample (and, when it is there, `made`), `offer` it an object, or `call` a method.
Step = tuple[str, str]

#: The steps of the check that runs in this process.
STEPS: list[Step] = []

_LISTENERS: list[Callable[[Step], None]] = []


def begin() -> None:
    """Forgets the steps of the check before."""
    STEPS.clear()


def tell(kind: str, text: str) -> None:
    """A step is done now."""
    STEPS.append((kind, text))
    for listener in _LISTENERS:
        listener((kind, text))


def listen(listener: Callable[[Step], None]) -> None:
    """From now on a function is told each step of this process."""
    _LISTENERS[:] = [listener]


def deaf() -> None:
    """From now on nobody is told."""
    _LISTENERS.clear()


def last(kind: str, steps: list[Step]) -> str:
    """The last text of a kind, or ""."""
    return next((text for found, text in reversed(steps) if found == kind), "")
