"""The calls of the table of partners (`src/partners/table.rs`), made as a user would make them.

A case of `host.py` or `device.py` is a producer, and a reader of what a call returns; the calls themselves,
and by which protocol each of them reads, are the table's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
from cai_dlpack import _core

# The first element's address, the elements, the dtype's name; None for what a consumer does not tell.
Seen = tuple[int | None, bytes, str | None]
# What a call returns, and what is seen of it.
Consume = Callable[[Any], tuple[Any, Seen]]
# (distribution, bridge): the bridge is what is handed over, and the protocol by which it is read.
Key = tuple[str, str]

COPIED_TO_HOST = "view, copied to the host"
TO = "cd.to"
LAUNCH = "kernel argument"
PARTNERS = {row["distribution"]: row for row in _core._partners()}


def bridges(call: dict[str, Any]) -> list[str]:
    """The names of a call's cells."""
    if call["copies"]:
        return [COPIED_TO_HOST]
    if call["reads"] == "capsule":
        return ["capsule"]
    return [f"view, {call['reads']}"] + ["capsule"] * call["takes_capsules"]


CALLS: dict[Key, dict[str, Any]] = {
    (name, bridge): call for name, row in PARTNERS.items() for call in row["calls"] for bridge in bridges(call)
}
# `cd.to` makes the preferred call, or takes the way of the library's exchange table.
CALLS |= {(name, TO): row["calls"][0] for name, row in PARTNERS.items() if row["calls"][0]["needs"] is None}
# A launch takes the view itself.
CALLS |= {(name, LAUNCH): row["launch"] for name, row in PARTNERS.items() if row["launch"]}
# The call that `explain` prefers.
PREFERRED: dict[Key, str] = {(name, bridges(row["calls"][0])[0]): row["name"] for name, row in PARTNERS.items()}


def consumers(
    device_type: int, readers: dict[str, Callable[[Any], Seen]], given: dict[str, Callable[[], dict[str, Any]]]
) -> dict[Key, Consume]:
    """Each call of the table that takes this memory, and has a reader.

    given: what a library needs beside the view, such as the stream `s`, and does before its first call.
    """
    return {
        (name, bridge): by_name(PARTNERS[name]["name"], readers[name])
        if bridge == TO
        else made(call, bridge, readers[name], given.get(name, dict))
        for (name, bridge), call in CALLS.items()
        if name in readers and device_type in (call["devices"] or [device_type])
    }


def by_name(library: str, read: Callable[[Any], Seen]) -> Consume:
    """`cd.to`, and the reader of its result."""

    def consume(array: Any) -> tuple[Any, Seen]:
        found = cd.to(array, library)
        try:
            return found, read(found)
        except Exception as error:
            raise Unreadable from error

    return consume


def made(
    call: dict[str, Any], bridge: str, read: Callable[[Any], Seen], given: Callable[[], dict[str, Any]]
) -> Consume:
    """A call of the table, as it stands there, and the reader of its result."""

    def consume(view: Any) -> tuple[Any, Seen]:
        is_bare = bridge == "capsule" and call["reads"] != "capsule"
        names = {"cd": cd, "v": cd.to_dlpack(view) if is_bare else view, **given()}
        exec(call["import"], names)
        found = eval(call["code"], names)
        try:
            return found, read(found)
        except Exception as error:
            raise Unreadable from error

    return consume


class Unreadable(Exception):
    """The library has taken the view, and its result cannot be read; the cause is why."""


def explained(consumer: str, bridge: str, view: Any) -> tuple[bool, str] | None:
    """Whether `explain` tells that this call takes the view, and what it tells; None if it tells nothing of the call.

    The first call of a library is what `explain` prefers; another one is told if that is refused: as a remedy, or not.
    """
    call = CALLS.get((consumer, bridge))
    if call is None or (bridge == "capsule" and call["reads"] != "capsule"):
        return None
    row = PARTNERS[consumer]
    told = cd.explain(view, to=row["name"])
    if bridge == LAUNCH:
        assert told.launch is not None
        return told.launch.refused is None, f"explained as {told.launch.refused or 'taken'}"
    if call is row["calls"][0]:
        return told.refused is None, f"explained as {told.refused or 'taken'}"
    if told.refused is None:
        return None
    is_taken = call["code"] in told.remedies
    return is_taken, f"explained as {'a remedy' if is_taken else 'no remedy'}: {told.refused}"
