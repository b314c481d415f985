"""The subject of the checks of DLPack's producers, and the ways to make a mutant."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from cai_conformance import abi
from cai_conformance.checks.producing import registering
from cai_conformance.judge import steps
from cai_conformance.judge.check import Broken, NotRun, Severity
from cai_conformance.judge.exported import Export
from cai_conformance.judge.memory import Array
from cai_conformance.judge.produced import Produced
from cai_conformance.judge.text import text_of
from cai_conformance.reference.producers import DlpackArray

DEVIATION, RECOMMENDATION = Severity.DEVIATION, Severity.RECOMMENDATION


class Tensors:
    """An array, and the tensors that it exports."""

    def __init__(self, produced: Produced) -> None:
        self.produced = produced
        self.expected = produced.expected
        self.object = produced.object

    @property
    def device(self) -> Any:
        steps.tell("call", "array.__dlpack_device__()")
        return self.object.__dlpack_device__()

    @property
    def device_type(self) -> int:
        return operator.index(self.device[0])

    @property
    def usual(self) -> dict[str, Any]:
        """The keywords without which there is no tensor: none, unless the producer has ended the older one."""
        return {"max_version": abi.NEWEST} if self.produced.is_versioned_only else {}

    def ask(self, **keywords: Any) -> Any:
        """What `__dlpack__` returns."""
        text = ", ".join(f"{name}={_code(value)}" for name, value in keywords.items())
        steps.tell("call", f"array.__dlpack__({text})")
        return self.object.__dlpack__(**keywords)

    def older(self) -> Export:
        """A tensor for a consumer that says nothing of versions.

        Raises:
            NotRun: there is none, as the array API allows.
        """
        try:
            return Export(self.ask())
        except BufferError as error:
            raise NotRun(f"without max_version it raised {text_of(error)}") from None

    def export(self, **keywords: Any) -> Export:
        """A tensor, consumed; it is ended with the object that is returned.

        Raises:
            NotRun: the producer does not know one of the keywords.
        """
        try:
            return Export(self.ask(**{**self.usual, **keywords}))
        except TypeError as error:
            if keywords:
                raise NotRun(f"the producer takes no {', '.join(keywords)}: {error}") from None
            raise

    def any(self) -> Export:
        """A tensor as the producer exports it best: versioned if it can."""
        try:
            return Export(self.ask(max_version=abi.NEWEST))
        except TypeError:
            pass
        except BufferError as error:
            raise NotRun(f"the producer refuses it: {text_of(error)}") from None
        try:
            return self.export()
        except Broken:
            raise
        except Exception as error:
            raise NotRun(f"the producer refuses it: {text_of(error)}") from None

    def versioned(self) -> Export:
        """A versioned tensor.

        Raises:
            NotRun: the producer has only the older one.
        """
        found = self.any()
        if not found.versioned:
            raise NotRun("the producer exports the older tensor only")
        return found

    def again(self) -> Tensors:
        return Tensors(Produced(self.produced.make, self.produced.sample))


class Given:
    """An object in the place of an array that was made of a sample."""

    expected = None
    is_versioned_only = False

    def __init__(self, obj: Any) -> None:
        self.object = obj


def of(array: Any) -> Tensors:
    """An array that no sample was made into, for programs."""
    return Tensors(Given(array))  # type: ignore[arg-type]


def _code(value: Any) -> str:
    """A keyword's value as a program writes it: a stream of the driver by the call that makes one."""
    return "driver().stream()" if type(value) is int and value > 2 else repr(value)


check = registering("dlpack-producer", Tensors)


def overriding(**members: Any) -> Any:
    """A producer with methods of its own."""
    return type("Overriding", (DlpackArray,), members)


def filled(change: Callable[[Any, Array], None], when: Callable[[Array], bool] = lambda _: True) -> Any:
    """A producer that changes its tensor after it has filled it, for some arrays."""

    class Filled(DlpackArray):
        def fill(self, tensor: Any, array: Array, shape: Any, strides: Any) -> None:
            super().fill(tensor, array, shape, strides)
            if when(array):
                change(tensor, array)

    return Filled


def asked(change: Callable[[Any, dict[str, Any]], Any]) -> Any:
    """A producer whose `__dlpack__` is a function of the usual one and of its keywords."""

    class Asked(DlpackArray):
        def __dlpack__(self, **keywords: Any) -> Any:
            return change(super().__dlpack__, keywords)

    return Asked


def refusing(keyword: str, value: Any, error: type[Exception] = BufferError) -> Any:
    """A producer that refuses one value of a keyword; `...` stands for any but None."""

    def change(usual: Any, keywords: dict[str, Any]) -> Any:
        given = keywords.get(keyword)
        if keyword in keywords and (given == value or (value is ... and given is not None)):
            raise error("the mutant refuses")
        return usual(**keywords)

    return asked(change)


def put(struct: Any, **fields: Any) -> None:
    """Sets fields of a struct."""
    for name, value in fields.items():
        setattr(struct, name, value)


def on_host(self: Any, tensor: Any, *rest: Any) -> None:
    """Fills a tensor as the reference does, whatever `__dlpack_device__` says."""
    DlpackArray(self.array).fill(tensor, *rest)


def is_matrix(array: Array) -> bool:
    return array.shape == (2, 3) and bool(array.flags.c_contiguous)
