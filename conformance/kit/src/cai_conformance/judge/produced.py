"""The subject of a producer's check: one array that the producer made."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from cai_conformance import abi
from cai_conformance.judge.check import NotRun
from cai_conformance.judge.memory import Array
from cai_conformance.judge.samples import Sample

Make = Callable[[Any], Any]


class Converted(Exception):
    """The producer's array is of another type or shape than the sample, by its own account."""


class Produced:
    """The array that a producer made of a sample, and the sample."""

    def __init__(self, make: Make, sample: Sample) -> None:
        self.make = make
        self.sample = sample
        self.given = sample.array()
        self.expected: Array = self.given if sample.huge else self.given.copy()
        self.object = make(self.given)
        self.check_kind()

    def check_kind(self) -> None:
        """Whether the library has made an array of the same type and shape, as far as its own attributes say.

        Raises:
            Converted: it has none such, and made another one.
        """
        dtype = self._attribute("dtype")
        name = str(getattr(dtype, "name", dtype)).rpartition(".")[2].lower()
        wanted = self.expected.dtype.name
        if dtype is not None and name.isidentifier() and name != wanted:
            raise Converted(f"the library makes {name} of {wanted}")
        shape = self._attribute("shape")
        if isinstance(shape, tuple | list) and tuple(shape) != self.expected.shape:
            raise Converted(f"the library makes shape {tuple(shape)} of {self.expected.shape}")

    def _attribute(self, name: str) -> Any:
        try:
            return getattr(self.object, name, None)
        except Exception:  # of a class of its own, which is not judged
            return None

    def again(self) -> Any:
        """Another array of the same sample, which no other check has touched."""
        return self.make(self.sample.array())

    @cached_property
    def interface(self) -> Any:
        """Returns `__cuda_array_interface__`, which is read once."""
        return self.object.__cuda_array_interface__

    @cached_property
    def is_versioned_only(self) -> bool:
        """Whether `__dlpack__` refuses a call without `max_version` and answers one with it."""
        try:
            self.object.__dlpack__()
        except BufferError:
            pass
        except Exception:
            return False
        else:
            return False
        try:
            self.object.__dlpack__(max_version=abi.NEWEST)
        except Exception:
            return False
        return True

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
