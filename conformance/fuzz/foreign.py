"""Makes what only C can lie about: exchange tables, and tensors of one layout under the name of the other."""

from __future__ import annotations

import ctypes
import gc
import mmap
import weakref
from contextlib import suppress
from typing import Any

import cai_dlpack as cd
from cai_conformance import abi, exchange

from conformance.fuzz.evil import Case, a_tensor

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_clear_weak_reference = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("_PyWeakref_ClearRef", ctypes.pythonapi))


class Guarded:
    """Memory whose last byte is followed by a page that ends the process if it is read."""

    def __init__(self) -> None:
        self._pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self.end = begin + mmap.PAGESIZE
        assert _libc.mprotect(self.end, mmap.PAGESIZE, 0) == 0

    def put(self, content: bytes) -> int:
        """Writes bytes to the end of what may be read; returns the address of the first."""
        ctypes.memmove(self.end - len(content), content, len(content))
        return self.end - len(content)


GUARDED = Guarded()


def under_the_other_name(case: Case) -> Any:
    """A capsule whose name tells of another layout than its struct has, or whose version is not known.

    A consumer reads the version, and must refuse before it reads what the struct may not have. A legacy struct shows
    its data's address as the version: its low half is the major one, which is 1 for none of the addresses here.
    """
    made = a_tensor(case)
    content = bytes(made.managed)
    if made.versioned and case.source.byte() % 2:
        # Of another version there is nothing to read but the version.
        content, name = bytes(abi.DLPackVersion(case.source.one_of([0, 2, 3, 2**32 - 1]), 3)), abi.VERSIONED
    else:
        name = abi.LEGACY if made.versioned else abi.VERSIONED
    case.is_lie = True
    return abi.new_capsule(GUARDED.put(content), name, destructor=False)


#: The case at hand: tables are static, and their functions belong to it.
case_at_hand: list[Case] = []
#: What no case may do to a table.
WRONG: list[str] = []


def _export(address: int, out: Any) -> int:
    case, array = case_at_hand[-1], ctypes.cast(address, ctypes.py_object).value
    if not isinstance(array, Exchanger):
        WRONG.append(f"the table of a class was called with an object of another: {type(array)}")
        return -1
    if case.is_too_much():
        return -1
    match case.exported:
        case 0:
            return -1
        case 1:
            return 0  # without a tensor
        case 2:
            case.strike()
        case 3:
            gc.collect()
    made = a_tensor(case, versioned=True)
    case.given.append(made)
    out[0] = made.address
    return 0


def _work_stream(_type: int, _id: int, out: Any) -> int:
    case = case_at_hand[-1]
    out[0] = case.stream
    return -1 if case.is_too_much() or case.exported == 4 else 0


def _import(tensor: int, out: Any) -> int:
    """Takes a tensor, or not; a table does not state who owns it after a failure."""
    case = case_at_hand[-1]
    is_ended = case.imported % 2 == 1
    if is_ended:
        abi.call_deleter(tensor, versioned=True)
    if case.imported < 4:
        if not is_ended:
            case.taken.append(tensor)
        abi.incref(Exchanger)
        out[0] = id(Exchanger)
        return 0
    return -1 if case.imported < 6 else 0


_functions = (exchange.FromObject(_export), exchange.ToObject(_import), exchange.WorkStream(_work_stream))


def _table(
    version: tuple[int, int] = (1, 3),
    prev: int | None = None,
    *,
    exports: Any = _functions[0],
    imports: Any = _functions[1],
    works: Any = _functions[2],
) -> exchange.Table:
    made = exchange.Table()
    made.version, made.prev_api = abi.DLPackVersion(*version), prev
    made.from_object, made.to_object = exchange.address(exports), exchange.address(imports)
    made.work_stream = exchange.address(works)
    return made


def _cycle() -> exchange.Table:
    made = _table((2, 0))
    made.prev_api = ctypes.addressof(made)
    return made


_first = _table()
_second = _table((2, 1), ctypes.addressof(_first))
#: Whole ones first, and of each of the others one thing is wrong.
TABLES = [
    _first,
    _first,
    _first,
    _table((3, 0), ctypes.addressof(_second)),
    _table((1, 0)),
    _table((2, 0)),
    _table((0, 0)),
    _cycle(),
    _table(exports=None),
    _table(works=None),
    _table(imports=None),
    # Of C: 1 without an exception, or -1 with the one of `__bool__`.
    _table(exports=ctypes.pythonapi.PyObject_IsTrue),
]
#: Of another version only the header can be read.
_header = Guarded()
_headers = bytes(abi.DLPackVersion(2, 0)) + bytes(8)
CAPSULES: list[Any] = [
    *(exchange.capsule(table) for table in TABLES),
    abi.new_capsule(_header.put(_headers), exchange.NAME, destructor=False),
    exchange.capsule(_first, b"other"),
    abi.new_nameless_capsule(ctypes.addressof(_first)),
    None,
    5,
]


class Exchanger:
    """An array of a class with a table, if `__dlpack__` is called all the same."""

    def __init__(self, case: Case) -> None:
        self.case, self.cache = case, []  # type: ignore[var-annotated]

    def __bool__(self) -> bool:
        raise self.case.raised

    def __dlpack__(self, **_: Any) -> Any:
        if self.case.is_too_much():
            raise self.case.raised
        return a_tensor(self.case).capsule()

    def __dlpack_device__(self) -> Any:
        return self.case.source.one_of([(1, 0), (2, 0), (3, 0), (13, 0), (2, 2**40)])


#: Classes that live for ever, so that a cache keeps them.
LASTING = [type("Exchanger", (Exchanger,), {exchange.ATTRIBUTE: capsule}) for capsule in CAPSULES]


def exchanger(case: Case) -> Any:
    source = case.source
    at = source.byte() % len(CAPSULES)
    case.exported, case.imported = source.byte() % 16, source.byte() % 8
    how = source.byte() % 4
    if how < 2:
        return LASTING[at](case)
    kind: Any = type("Fresh", (Exchanger,), {exchange.ATTRIBUTE: CAPSULES[at]})
    if how == 2:
        return kind(case)
    kind.__del__ = _back_in_the_cache
    return kind(case)


def _back_in_the_cache(array: Exchanger) -> None:
    """Brings the class back into the cache while it is collected, and ends the weak reference to it without a call, as
    CPython 3.14 does."""
    with suppress(Exception):
        cd.view(array)
    for reference in weakref.getweakrefs(type(array)):
        _clear_weak_reference(reference)
