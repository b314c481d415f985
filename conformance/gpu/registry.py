"""The checks, by part."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from conformance.gpu.machine import SlowTrack

Run = Callable[[SlowTrack], object]


class Check(NamedTuple):
    """A check, which raises if what it finds is wrong."""

    run: Run
    #: Whether it must fail where nothing is ordered.
    orders: bool
    #: The checks of one name share a process, in which each has its control, too; without a name it has its own.
    together: str | None


CHECKS: dict[str, dict[str, Check]] = {}


class NotRun(Exception):
    """Why a check cannot be made on this machine."""


def check(part: str, name: str, orders: bool = True, together: str | None = None) -> Callable[[Run], Run]:
    """Adds a check: it raises if what it finds is wrong. One that `orders` must fail where nothing is ordered."""

    def add(function: Run) -> Run:
        CHECKS.setdefault(part, {})[name] = Check(function, orders, together)
        return function

    return add


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{found!r} instead of {wanted!r}")
