"""What a producer's check is given: one array that the producer made."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from cai_conformance.judge.check import NotRun
from cai_conformance.judge.memory import Array
from cai_conformance.judge.samples import Sample

Make = Callable[[Any], Any]


class Produced:
    """The array that a producer made of a sample, and the sample."""

    def __init__(self, make: Make, sample: Sample) -> None:
        self.make = make
        self.sample = sample
        self.given = sample.array()
        self.expected: Array = self.given.copy()
        self.object = make(self.given)

    def again(self) -> Any:
        """Another array of the same sample, which no other check has touched."""
        return self.make(self.sample.array())

    @cached_property
    def interface(self) -> Any:
        """What `__cuda_array_interface__` returned."""
        return self.object.__cuda_array_interface__

    @property
    def version(self) -> int:
        """The version that the interface names, as far as it is one."""
        found = self.interface.get("version")
        return found if isinstance(found, int) else 0

    def key(self, name: str) -> Any:
        """An entry of the interface.

        Raises:
            NotRun: it has no such entry.
        """
        if name not in self.interface:
            raise NotRun(f"the interface has no {name!r}")
        return self.interface[name]
