"""Producers that declare no stream, of every library of the table of partners whose silence means that."""

from __future__ import annotations

import functools
import random
import warnings
from dataclasses import dataclass, field
from typing import Any

import cai_dlpack as cd
from cai_conformance import abi
from cai_dlpack import _core

from conformance.tests.doubles.producers import Cai, Dlpack, Legacy, interface

PARTNERS = [row for row in _core._partners() if row["produces"]]
SILENT = [row for row in PARTNERS if row["silence"].startswith("undeclared")]
DEAF = [row for row in PARTNERS if "ignores `stream`" in row["quirks"]]
LEGACY_DEFAULT = 1


@functools.cache
def of_library(library: str, kind: type) -> Any:
    """A type of a library."""
    return type("Array", (kind,), {"__module__": library})


@functools.cache
def of_a_user(library: str, kind: type, mixed: str | None = None) -> Any:
    """A user's subclass of a library's type; with a class of another library before it, if one is given."""
    before = [] if mixed is None else [type("MixIn", (), {"__module__": mixed})]
    return type("Mine", (*before, of_library(library, kind)), {"__module__": "users.arrays"})


def of(choose: random.Random, library: str, kind: type) -> Any:
    """A type of a library, or a subclass of it."""
    return choose.choice(
        [of_library(library, kind), of_a_user(library, kind), of_a_user(library, kind, "numpy.lib.mixins")]
    )


@dataclass
class Produced:
    """An array, what its import is told, and what the table says of its silence."""

    array: Any
    is_declared: bool = True
    is_unknown: bool = False
    told: dict[str, Any] = field(default_factory=dict)

    def view(self, choose: random.Random, wrong: list[str]) -> cd.CaiView:
        """Imports it; before that, it may be imported strictly: what is undeclared is refused, unless told."""
        is_open = not self.is_declared and "producer_stream" not in self.told
        if choose.random() < 0.5 and self._is_refused(choose) != is_open:
            wrong.append(f"strict {'takes' if is_open else 'refuses'} {self}")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            view = cd.view(self.array, **self.told)
        if [each.category for each in seen] != [cd.StreamWarning] * (is_open and self.is_unknown):
            wrong.append(f"warned of {seen}: {self}")
        return view

    def _is_refused(self, choose: random.Random) -> bool:
        try:
            if choose.random() < 0.5:
                cd.view(self.array, strict=True, **self.told)
            else:
                with cd.policy(strict=True):
                    cd.view(self.array, **self.told)
        except BufferError as error:
            return bool(error.rule == "stream-undeclared")  # type: ignore[attr-defined]
        return False


def produced(choose: random.Random, address: int, device: tuple[int, int], ready: int, named: int | None) -> Produced:
    """An array that is ready on this stream, which its producer declares, or leaves out, or the caller names.

    `named` is the device that its import is told, for an array that does not say.
    """
    data, where = (address, False), {} if named is None else {"device_id": named}
    if choose.random() < 0.4:
        return Produced(Cai(interface(data=data, stream=ready)), told=where)
    form = choose.choice(["dict", "dict", "ignores the stream", "takes none"])
    # Whose type it is and by which object it comes changes no call: these draws leave the program's as they are.
    aside = random.Random(f"{address} {ready} {choose.getstate()[1][-1]}")
    told: dict[str, Any] = {}
    if ready != LEGACY_DEFAULT or choose.random() < 0.2:
        told["producer_stream"] = ready
    if form == "dict":
        row = choose.choice(SILENT)
        silent = interface(data=data, version=choose.choice([2, 3]), stream=choose.choice([None, ...]))
        array = of(aside, choose.choice(row["modules"]), Cai)(silent)
        if aside.random() < 0.3:
            told["owner"], array = array, silent
        return Produced(array, False, row["silence"].startswith("undeclared: unknown"), told | where)
    made = abi.make(device=device, data=address)
    if form == "takes none":
        return Produced(Legacy(made), False, True, told)
    library = choose.choice(choose.choice(DEAF)["modules"])
    return Produced(of(aside, library, Dlpack)(made), False, True, told)
