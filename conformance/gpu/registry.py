"""The checks, by part."""

from __future__ import annotations

from collections.abc import Callable

from conformance.gpu.machine import SlowTrack

Check = Callable[[SlowTrack], object]
CHECKS: dict[str, dict[str, tuple[Check, bool]]] = {}


class NotRun(Exception):
    """Why a check cannot be made on this machine."""


def check(part: str, name: str, orders: bool = True) -> Callable[[Check], Check]:
    """Adds a check: it raises if what it finds is wrong. One that `orders` must fail where nothing is ordered."""

    def add(function: Check) -> Check:
        CHECKS.setdefault(part, {})[name] = (function, orders)
        return function

    return add


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{found!r} instead of {wanted!r}")
