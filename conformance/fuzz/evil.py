"""Makes evil arrays out of bytes: dicts that change while they are read, finalisers, surrogates, broken tensors."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import cai_dlpack as cd
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import FAKE_POINTER, host_memory, interface

T = TypeVar("T")


class Evil(Exception):
    """Raised by an evil object. A call passes it on, or drops it before it returns."""

    alive: ClassVar[weakref.WeakSet[Evil]] = weakref.WeakSet()

    def __init__(self) -> None:
        Evil.alive.add(self)


class EvilAttribute(Evil, AttributeError):
    """Reads as a missing attribute."""


class EvilKey(Evil, KeyError):
    """Reads as a missing key."""


class EvilType(Evil, TypeError):
    """Reads as a keyword that the function does not take."""


class EvilRuntime(Evil, RuntimeError):
    """Reads as a refusal of the library."""


EVILS = [Evil, EvilAttribute, EvilKey, EvilType, EvilRuntime]


class Bytes:
    """Reads a fuzzer's bytes; after the last one all are 0."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def one_of(self, values: list[T]) -> T:
        return values[self.byte() % len(values)]

    def made_by(self, makers: list[Callable[[], Any]]) -> Any:
        """Returns what one of the functions makes."""
        return self.one_of(makers)()

    def rarely(self) -> bool:
        return self.byte() % 8 == 7


EDGES = [0, 1, -1, 2, 3, 4, 7, 8, 255, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64, 2**100, -(2**100)]
TYPESTRS = ["<f4", "|u1", "<c8", "|V8", "|V16", ">f4", "<f5", "|t3", "f4", "<\ud800", "é4", "<f4\0", "\ud800"]


#: Our table's `current_work_stream`, which is called without the GIL. No arguments are declared: their conversion would
#: hide a RecursionError behind an error of ctypes.
WORK_STREAM = ctypes.CFUNCTYPE(ctypes.c_int)(exchange.table_of(cd.CaiView).work_stream)
WORK_STREAM_OUT = ctypes.byref(ctypes.c_void_p())

#: The most questions that one input may cost: a few at each level of the deepest recursion.
MOST_ASKED = 10_000


class Case:
    """What the objects of one input share: the containers that a finaliser changes."""

    def __init__(self, source: Bytes) -> None:
        self.source = source
        self.containers: list[Any] = []
        self.made: list[abi.Made] = []
        #: Those whose ownership was given away: each ends, once.
        self.given: list[abi.Made] = []
        #: The addresses of the tensors that a library has taken over.
        self.taken: list[int] = []
        self.keep: list[object] = []
        #: The ids of the views that were imported from a capsule: the collector cannot look into its tensor.
        self.opaque: set[int] = set()
        #: How often an object of the case was asked for something.
        self.asked = 0
        #: Whether the memory of the array is there, so that it may be copied.
        self.has_memory = False
        #: Whether the array is a tensor of another layout than its name tells, which nothing may be made of.
        self.is_lie = False
        #: What the functions of its exchange table do (`foreign`), and the stream that they name.
        self.exported = self.imported = self.stream = 0
        self.raised: type[Evil] = Evil

    def is_too_much(self) -> bool:
        """Counts a question; whether there have been more than any call needs, so that it is time to end.

        It is in the midst of a call: C code of others may let go of the GIL there, and ask for the stream to work on.
        """
        self.asked += 1
        WORK_STREAM(abi.CUDA, 0, WORK_STREAM_OUT)
        return self.asked > MOST_ASKED

    def strike(self) -> None:
        """Empties or refills what is being read."""
        for container in self.containers:
            if isinstance(container, list):
                container.clear()
            elif isinstance(container, dict):
                for key in list(container):
                    container[key] = "".join(["<", "f", "4"])
                container.clear()


def an_int(case: Case) -> Any:
    source = case.source
    number = source.one_of(EDGES) if source.byte() % 2 else source.byte() % 5

    class Index:
        def __index__(self) -> Any:
            case.strike()
            if what == 1:
                raise source.one_of(EVILS)
            return number

    what = source.byte() % 16
    if what in (0, 1):
        return Index()
    return {2: True, 3: 1.5, 4: str(number), 5: None}.get(what, number)


def ints(case: Case, most: int = 5) -> Any:
    values = [an_int(case) for _ in range(case.source.byte() % (most + 1))]
    if case.source.byte() % 4 == 3:
        case.containers.append(values)
        return values
    return tuple(values)


def a_typestr(case: Case) -> Any:
    text = case.source.one_of(TYPESTRS)
    # A new str: nothing else refers to it.
    return b"<f4" if case.source.byte() == 255 else "".join(list(text))


def a_descr(case: Case, depth: int = 0) -> Any:
    source = case.source
    fields: list[Any] = []
    if source.byte() % 4 == 3:  # as CuPy has it, but for the name
        fields.append((source.one_of(["", "", "\ud800"]), a_typestr(case)))
        case.containers.append(fields)
        return fields
    for _ in range(source.byte() % 4):
        name: Any = source.one_of(["x", "y", "", "\ud800", "é"])
        kind = a_descr(case, depth + 1) if depth < 3 and source.rarely() else a_typestr(case)
        field: Any = (name, kind, ints(case, 2)) if source.rarely() else (name, kind)
        fields.append(list(field) if source.rarely() else field)
    case.containers.append(fields)
    if source.byte() == 255:
        fields.append(fields)
    return fields


def a_dict(case: Case) -> dict[str, Any]:
    source = case.source
    changes: dict[str, Any] = {}
    if source.rarely():
        changes["shape"] = ints(case)
    if source.rarely():
        changes["strides"] = ints(case)
    if source.byte() % 4 == 3:
        changes["typestr"] = a_typestr(case)
    if source.byte() % 4 == 3:
        changes["descr"], changes["typestr"] = a_descr(case), source.one_of(["|V8", "|V16", "<f4"])
    if source.rarely():
        changes["data"] = source.one_of(
            [(FAKE_POINTER, False), (0, True), (an_int(case), an_int(case)), ints(case), None]
        )
    if source.rarely():
        changes["stream"] = an_int(case)
    if source.rarely():
        changes["version"] = an_int(case)
    if source.rarely():
        changes["mask"] = source.one_of([None, 5, Shown(a_dict(Case(Bytes(b""))))])
    if source.rarely():
        changes[source.one_of(["shape", "data", "typestr", "version"])] = ...
    made = interface(**changes)
    case.containers.append(made)
    return made


class Shown:
    """Shows a dict, and keeps what is made of it: a cycle that the collector must see."""

    def __init__(self, shown: Any, before: Callable[[], None] | None = None) -> None:
        self.shown, self.before, self.cache = shown, before, []  # type: ignore[var-annotated]

    @property
    def __cuda_array_interface__(self) -> Any:
        if self.before is not None:
            self.before()
        return self.shown


def shown(case: Case) -> Any:
    what = case.source.byte() % 8

    class Meta(type):
        @property
        def __dlpack_c_exchange_api__(cls) -> Any:
            if what == 3:
                raise evil
            raise AttributeError

    class Fresh(Shown, metaclass=Meta):
        """A type of its own, which no cache has seen."""

    def fails() -> None:
        raise evil

    evil = case.source.one_of(EVILS)
    before = {0: lambda: gc.collect(), 1: lambda: case.keep.append(case.strike), 2: fails}.get(what)
    kind = Fresh if what < 4 else Shown
    return kind(a_dict(case), before)  # type: ignore[arg-type]


class Exporter:
    """Exports a tensor once, and keeps what is made of it."""

    def __init__(self, made: abi.Made, evil: int, raised: type[Evil]) -> None:
        self.made, self.evil, self.raised, self.cache = made, evil, raised, []  # type: ignore[var-annotated]

    def __dlpack__(self, **keywords: Any) -> Any:
        if self.evil == 0:
            raise self.raised
        if self.evil == 1:
            return 5
        if self.evil == 2:
            return cd.from_dlpack(self).__dlpack__()  # recurses, through the extension
        name = {3: abi.LEGACY, 4: abi.VERSIONED, 5: b"other"}.get(self.evil)
        # A tensor of the wrong layout is a lie that no consumer can see: only an own one is offered so.
        return self.made.capsule(b"used_dltensor" if name == b"other" else None)

    @property
    def flags(self) -> Any:
        """Read for the read-only flag of a legacy tensor."""
        if self.evil == 8:
            raise self.raised
        return None

    def __dlpack_device__(self) -> Any:
        if self.evil == 7:
            raise self.raised
        device = self.made.tensor.device
        return (device.device_type, device.device_id) if self.evil != 6 else (2, 2**70)


def a_tensor(case: Case, *, versioned: bool = False) -> abi.Made:
    source = case.source
    shape = tuple(source.one_of([0, 1, 2, 3, -1, 2**40, 2**62]) for _ in range(source.byte() % 4))
    _, host = block = host_memory(256)
    case.keep.append(block)
    made = abi.make(
        shape if source.byte() % 8 else (2, 3),
        strides=tuple(source.one_of([0, 1, 2, 3, -1, 2**61]) for _ in shape) if source.rarely() else None,
        null_strides=source.rarely(),
        dtype=source.one_of(
            [(2, 32, 1), (1, 8, 1), (6, 8, 1), (4, 16, 1), (17, 4, 1), (2, 32, 4), (3, 64, 1), (0, 0, 0)]
        ),
        device=source.one_of([(1, 0), (2, 0), (2, 1), (3, 0), (13, 0), (10, 0), (7, 0), (-5, 3)]),
        data=host if source.byte() % 2 else source.one_of([FAKE_POINTER, 0, 2**64 - 8]),
        byte_offset=source.one_of([0, 0, 0, 4, 2**63]),
        versioned=source.byte() % 4 != 3 or versioned,
        version=source.one_of([(1, 3), (1, 0), (1, 2), (2, 0), (0, 0)]),
        flags=source.one_of([0, 1, 2, 4, 7, 255]),
        deleter=source.byte() != 255,
        shape_off=source.one_of([0, 0, 0, 1, 4]),
        strides_off=source.one_of([0, 0, 0, 2]),
    )
    case.made.append(made)
    return made


def exporter(case: Case) -> Any:
    made = a_tensor(case)
    if case.source.byte() % 4 == 0:
        return made.capsule()
    return Exporter(made, case.source.byte() % 16, case.source.one_of(EVILS))


def bare(case: Case) -> Any:
    return case.source.one_of([None, 5, {}, [], a_dict(case), object, "x", b"x", 1.5])


def an_array(case: Case) -> Any:
    return case.source.one_of([shown, shown, exporter, bare])(case)
