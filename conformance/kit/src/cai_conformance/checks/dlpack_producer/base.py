"""What the checks of producers of DLPack have in common: a tensor that was taken out of its capsule, and mutants."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from cai_conformance import abi
from cai_conformance.judge.check import CHECKS, Check, NotRun, Severity, Source, broken
from cai_conformance.judge.memory import Array, values
from cai_conformance.judge.produced import Produced
from cai_conformance.judge.samples import PLAIN
from cai_conformance.reference.producers import CODES, DlpackArray

DEVIATION, RECOMMENDATION = Severity.DEVIATION, Severity.RECOMMENDATION
KINDS = {code: kind for kind, code in CODES.items()}
NEWEST = (1, 3)
HOST = {abi.CPU, abi.CUDA_HOST, 11, abi.CUDA_MANAGED}
STREAMED = {abi.CUDA, abi.CUDA_MANAGED, abi.ROCM}
LARGEST_TYPE, LARGEST_CODE = 21, 18

Run = Callable[["Tensors"], None]


class Tensors:
    """What one array exports, each way once; each is ended with this object."""

    def __init__(self, produced: Produced) -> None:
        self.produced = produced
        self.expected = produced.expected
        self.object = produced.object

    @property
    def device(self) -> Any:
        return self.object.__dlpack_device__()

    @property
    def device_type(self) -> int:
        return operator.index(self.device[0])

    def export(self, **keywords: Any) -> Export:
        """A tensor, consumed; it is ended with the object that is returned.

        Raises:
            NotRun: the producer does not know one of the keywords.
        """
        try:
            return Export(self.object.__dlpack__(**keywords))
        except TypeError as error:
            if keywords:
                raise NotRun(f"the producer takes no {', '.join(keywords)}: {error}") from None
            raise

    def any(self) -> Export:
        """A tensor as the producer exports it best: versioned if it can."""
        try:
            return Export(self.object.__dlpack__(max_version=NEWEST))
        except TypeError:
            pass
        try:
            return self.export()
        except Exception as error:
            raise NotRun(f"the producer refuses it: {type(error).__name__}: {error}") from None

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


class Export:
    """A tensor that was taken out of its capsule."""

    def __init__(self, capsule: Any) -> None:
        self.ended = True
        self.name = abi.name(capsule)
        if self.name not in (abi.LEGACY, abi.VERSIONED):
            broken(f"the capsule is named {self.name!r}")
        found = abi.consume(capsule)
        self.capsule = capsule
        self.read = found
        self.ended = False

    @property
    def versioned(self) -> bool:
        return self.read.versioned

    @property
    def flags(self) -> int:
        return self.read.flags or 0

    @property
    def address(self) -> int:
        return self.read.data + self.read.byte_offset

    def end(self) -> None:
        if not self.ended and self.read.deleter:
            self.ended = True
            abi.release(self.read)

    def __del__(self) -> None:
        self.end()

    def values(self) -> Array:
        read = self.read
        if read.device[0] not in HOST and read.device[0] != abi.CUDA:
            raise NotRun(f"memory of device type {read.device[0]} cannot be read here")
        code, bits, lanes = read.dtype
        if code not in KINDS or lanes != 1:
            raise NotRun(f"NumPy has no type for {read.dtype}")
        dtype = np.dtype(f"{KINDS[code]}{bits // 8}")
        shape = read.shape or ()
        strides = None if read.strides is None else [stride * dtype.itemsize for stride in read.strides]
        return values(self.address, shape, strides, dtype, host=read.device[0] in HOST)


def check(
    rule: str,
    says: str,
    source: Source,
    *,
    mutant: Any,
    severity: Severity = Severity.VIOLATION,
    samples: tuple[str, ...] = PLAIN,
    after: tuple[str, ...] = (),
) -> Callable[[Run], Run]:
    """Registers a check of this profile."""

    def register(run: Run) -> Run:
        def on(produced: Produced) -> None:
            run(Tensors(produced))

        CHECKS.add(Check("dlpack-producer", rule, says, source, severity, on, samples, after, mutant))
        return run

    return register


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
