"""The subject of a consumer's check: the function that takes an array, and how to look at what it returns."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cai_conformance import abi, exchanged, offers
from cai_conformance.cuda import NoDriver, driver
from cai_conformance.judge import steps
from cai_conformance.judge.check import NotRun
from cai_conformance.judge.exported import Export
from cai_conformance.judge.memory import Array, values

Take = Callable[[Any], Any]


@dataclass(frozen=True)
class Seen:
    """A consumer's array, as another consumer would see it."""

    values: Array
    address: int | None
    """Of the first element; None if nothing tells."""
    writable: bool | None
    stream: int | None = None
    typed: bool = True
    """Whether the type of the values is the library's own, and not what NumPy makes of numbers."""


#: What changes a tensor so that it is the host's.
_OF_THE_HOST = ("data=", "announced=", "offsets(")
#: An offer of a tensor of the host's: not one that says to be of another device. Evidence begins with an offer, or has
#: more than one.
_TENSOR = re.compile(r"(?:^|(?<=; ))tensor\((?!device=)")


class Consumer:
    """A function that takes somebody's array and returns its own, and perhaps one that reads that as a NumPy array.

    One that takes tensors of a device alone is offered those."""

    def __init__(self, take: Take, read: Callable[[Any], Array] | None = None, *, of_device: bool = False) -> None:
        self.take = take
        self.read = read
        self.of_device = of_device

    def code(self, code: str) -> str:
        """An offer as this consumer can take it.

        Raises:
            NotRun: it is of the host's memory.
        """
        found = self.said(code)
        if found != code and any(change in code for change in _OF_THE_HOST):
            raise NotRun(f"it takes memory of a device alone, and this is of the host's: {code}")
        return found

    def said(self, text: str) -> str:
        """A text about offers, with those that this consumer was made."""
        return _TENSOR.sub("device_tensor(", text) if self.of_device else text

    def offered(self, code: str) -> Any:
        """The object that an expression of `cai_conformance.offers` or `exchanged` makes."""
        code = self.code(code)
        steps.tell("offer", code)
        try:
            return eval(code, {**vars(offers), **vars(exchanged), "np": np, "abi": abi})  # our own text, in the checks
        except NoDriver as why:
            raise NotRun(str(why)) from None

    def see(self, taken: Any) -> Seen:
        """Reads the consumer's array.

        Raises:
            NotRun: nothing shows it.
        """
        try:
            interface = taken.__cuda_array_interface__
        except AttributeError:
            interface = None
        if interface is not None:
            dtype = np.dtype(interface["typestr"])
            pointer, read_only = interface["data"]
            shape, strides = interface["shape"], interface.get("strides")
            try:
                found = values(pointer, shape, strides, dtype, host=False)
            except RuntimeError as error:
                raise RuntimeError(f"{error}, with shape={shape}, strides={strides}") from None
            return Seen(found, pointer, not read_only, interface.get("stream"))
        if self.read is not None:
            driver_is_idle()
            return Seen(np.array(self.read(taken)), None, None)
        if hasattr(taken, "__array_interface__"):
            array = np.asarray(taken)
            return Seen(array.copy(), array.ctypes.data, array.flags.writeable)
        if hasattr(taken, "__dlpack__"):
            return self._exported(taken)
        try:
            return Seen(np.array(taken), None, None, typed=hasattr(taken, "__array__"))
        except Exception as error:
            raise NotRun(f"what it returned cannot be read ({error}): name a function that reads it (--read)") from None

    def layout(self, taken: Any) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """The shape of the consumer's array, and its strides in bytes if anything tells them; no element is read.

        Raises:
            NotRun: nothing tells the shape.
        """
        for name in ("__cuda_array_interface__", "__array_interface__"):
            found = getattr(taken, name, None)
            if found is not None:
                strides = found.get("strides")
                return tuple(map(int, found["shape"])), None if strides is None else tuple(map(int, strides))
        shape: Any = getattr(taken, "shape", None)
        if shape is None and hasattr(taken, "__dlpack__"):
            shape = Export(taken.__dlpack__()).read.shape
        try:
            return tuple(map(int, shape)), None
        except TypeError:
            raise NotRun("nothing tells the shape of what it returned") from None

    def _exported(self, taken: Any) -> Seen:
        try:
            export = Export(taken.__dlpack__(max_version=abi.NEWEST))
        except TypeError:
            export = Export(taken.__dlpack__())
        writable = None if not export.versioned else not export.flags & abi.READ_ONLY
        return Seen(export.values(), export.address, writable)


class Pair(NamedTuple):
    """The subject of a pair's check: a producer's function, and a consumer."""

    make: Any
    consumer: Consumer


def driver_is_idle() -> None:
    """Waits for all work, so that what is read is there."""
    try:
        driver().synchronize()
    except NoDriver:
        return
