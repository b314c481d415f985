"""Finds what is to be judged, and writes the programs of a report."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from cai_conformance.judge.check import Check


class Usage(Exception):
    """The command was used wrongly: exit code 2."""


@dataclass(frozen=True)
class Target:
    """A function by its module and name: `numba.cuda:to_device`."""

    text: str

    @property
    def module(self) -> str:
        return self.text.partition(":")[0]

    @property
    def name(self) -> str:
        return self.text.partition(":")[2]

    def load(self) -> Any:
        """The function.

        Raises:
            Usage: there is none of this name.
        """
        if not self.module or not self.name:
            raise Usage(f"{self.text!r}: write MODULE:FUNCTION, such as numpy:from_dlpack")
        if "" not in sys.path:
            sys.path.insert(0, "")
        try:
            module = importlib.import_module(self.module)
        except ImportError as error:
            raise Usage(f"{self.text!r}: {error}") from None
        try:
            found = attrgetter(self.name)(module)
        except AttributeError as error:
            raise Usage(f"{self.text!r}: {error}") from None
        if not callable(found):
            raise Usage(f"{self.text!r} is a {type(found).__name__}, and not a function")
        return found

    @property
    def call(self) -> str:
        """The function as a program names it."""
        return f"{self.module}.{self.name}"

    def producer_program(self, check: Check, code: str) -> str:
        """A program that shows what a producer makes of a sample."""
        lines = ["import numpy as np", f"import {self.module}", ""]
        if "read_only(" in code:
            lines += ["from cai_conformance.judge.samples import read_only", ""]
        lines.append(f"array = {self.call}({code})")
        lines.append(_SHOW[check.profile])
        return "\n".join(lines)

    def consumer_program(self, check: Check, code: str) -> str:
        """A program that hands an offer to a consumer."""
        lines = ["import numpy as np", f"import {self.module}", "from cai_conformance.offers import *", ""]
        is_cai = check.profile.startswith("cai")
        if check.profile.startswith("exchange"):
            lines.insert(-1, "from cai_conformance.exchanged import exchanged")
        lines.append(f"taken = {self.call}({code or _OFFERS[check.profile]})")
        lines.append('print(getattr(taken, "__cuda_array_interface__", taken))' if is_cai else "print(taken)")
        return "\n".join(lines)


_OFFERS = {"cai-consumer": "cai()", "dlpack-consumer": "tensor()", "exchange-consumer": "exchanged()"}
_SHOW = {
    "cai-producer": "print(array.__cuda_array_interface__)",
    "dlpack-producer": "from cai_conformance import abi\nprint(abi.read(array.__dlpack__()))",
    "exchange-producer": "print(type(array).__dlpack_c_exchange_api__)",
}
