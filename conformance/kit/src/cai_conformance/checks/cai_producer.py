"""Checks of producers of the CUDA Array Interface, versions 0 to 3."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from cai_conformance.checks.producing import registering
from cai_conformance.cuda import NoDriver, driver
from cai_conformance.judge import sources as say
from cai_conformance.judge import trials
from cai_conformance.judge.check import NotRun, Severity, broken, demand
from cai_conformance.judge.memory import compact, same, span, values
from cai_conformance.judge.produced import Produced
from cai_conformance.judge.samples import DTYPES, FULL, LAYOUTS, SHAPES
from cai_conformance.reference.producers import CaiArray, DeviceMemory, kept, own_stream

DEVIATION, RECOMMENDATION = Severity.DEVIATION, Severity.RECOMMENDATION
MISSING = object()

_TYPESTR = re.compile(r"([<>|=])([tbiufcmMOSUV])(\d+)(\[.*\])?")
_ITEMS = frozenset({"shape", "typestr", "data", "version", "strides", "descr", "mask", "stream"})

check = registering("cai-producer")


def edited(**changes: Any) -> Any:
    """A producer whose dict has entries changed: each by a function of the entry as it was, or left out (MISSING)."""

    class Edited(CaiArray):
        def interface(self) -> Any:
            whole = super().interface()
            for key, change in changes.items():
                if change is MISSING:
                    whole.pop(key, None)
                else:
                    whole[key] = change(whole.get(key))
            return whole

    return Edited


def overriding(**members: Any) -> Any:
    """A producer with methods or properties of its own."""
    return type("Overriding", (CaiArray,), members)


def only_if(condition: Callable[[CaiArray], bool], mutant: Any) -> Any:
    """The mutant where the condition holds, else the reference."""

    class Sometimes(mutant):  # type: ignore[misc]
        def interface(self) -> Any:
            return super().interface() if condition(self) else CaiArray.interface(self)

    return Sometimes


def need_driver() -> None:
    try:
        driver()
    except NoDriver as why:
        raise NotRun(str(why)) from None


def strides_of(p: Produced) -> tuple[int, ...]:
    """The strides in bytes, also where the interface leaves them out."""
    found = p.interface.get("strides")
    return compact(p.interface["shape"], np.dtype(p.interface["typestr"]).itemsize) if found is None else tuple(found)


#: Ends of programs.
TWICE = "print(array.__cuda_array_interface__)\ngc.collect()\nprint(array.__cuda_array_interface__)"
SHOWN = "interface = array.__cuda_array_interface__\nprint(interface)\n"
ELEMENTS = """from cai_conformance.judge.memory import values
found = array.__cuda_array_interface__
print(found)
print(values(found["data"][0], found["shape"], found.get("strides"), np.dtype(found["typestr"]), host=False))"""


# --- the attribute ---


@check(
    "cai-method",
    "`__cuda_array_interface__` is an attribute or a property, and not a method",
    say.CAI_DICT,
    mutant=overriding(__cuda_array_interface__=lambda self: self.interface()),
)
def _(p: Produced) -> None:
    demand(not callable(p.interface), "the attribute is a method: it has to be called to get the dict")


@check(
    "cai-none",
    "`__cuda_array_interface__` is not None",
    say.CAI_DICT,
    after=("cai-method",),
    mutant=overriding(interface=lambda self: None),
)
def _(p: Produced) -> None:
    demand(p.interface is not None, "the attribute is None")


@check(
    "cai-type",
    "the interface is a dict",
    say.CAI_DICT,
    after=("cai-none",),
    mutant=overriding(interface=lambda self: list(CaiArray.interface(self).items())),
)
def _(p: Produced) -> None:
    demand(isinstance(p.interface, dict), f"it is a {type(p.interface).__name__}")


@check(
    "cai-again",
    "reading the attribute twice gives the same description",
    say.CAI_LIFETIME,
    after=("cai-type",),
    samples=SHAPES,
    mutant=overriding(
        interface=lambda self: {**CaiArray.interface(self), "descr": [("", self.array.dtype.str)] * self.first()},
        first=lambda self: 0 if self.__dict__.setdefault("reads", []) else self.reads.append(1) or 1,
    ),
    severity=RECOMMENDATION,
    shows=TWICE,
)
def _(p: Produced) -> None:
    first, second = (
        {key: value for key, value in found.items() if key not in ("mask", "stream")}
        for found in (p.interface, p.object.__cuda_array_interface__)
    )
    demand(first == second, f"first {first}, then {second}")


@check(
    "cai-own-dict",
    "a change of the returned dict does not change the array",
    say.CAI_LIFETIME,
    after=("cai-type",),
    severity=RECOMMENDATION,
    mutant=overriding(
        interface=lambda self: self.__dict__.setdefault("kept", CaiArray.interface(self)),
    ),
    shows="array.__cuda_array_interface__['added'] = True\nprint(array.__cuda_array_interface__)",
)
def _(p: Produced) -> None:
    array = p.again()
    array.__cuda_array_interface__["added by a consumer"] = True
    demand(
        "added by a consumer" not in array.__cuda_array_interface__,
        "an entry added by a reader is there at the next read",
    )


@check(
    "field-unknown",
    "the interface has no entries but those of the specification",
    say.CAI_DICT,
    after=("cai-type",),
    severity=RECOMMENDATION,
    samples=SHAPES,
    mutant=edited(device=lambda _: 0),
)
def _(p: Produced) -> None:
    found = sorted(map(str, set(p.interface) - _ITEMS))
    demand(not found, f"unknown entries: {', '.join(found)}")


# --- version ---


@check(
    "version-missing",
    "`version` is there",
    say.CAI_VERSION,
    after=("cai-type",),
    samples=SHAPES,
    mutant=edited(version=MISSING),
)
def _(p: Produced) -> None:
    demand("version" in p.interface, f"entries: {sorted(p.interface)}")


@check(
    "version-type",
    "`version` is an int",
    say.CAI_VERSION,
    after=("version-missing",),
    mutant=edited(version=str),
)
def _(p: Produced) -> None:
    found = p.interface["version"]
    demand(type(found) is int, f"version={found!r}, a {type(found).__name__}")


@check(
    "version-range",
    "`version` is one that exists: 0, 1, 2 or 3",
    say.CAI_VERSION,
    after=("version-type",),
    mutant=edited(version=lambda _: 4),
)
def _(p: Produced) -> None:
    demand(0 <= p.interface["version"] <= 3, f"version={p.interface['version']}")


# --- shape ---


@check(
    "shape-missing",
    "`shape` is there",
    say.CAI_SHAPE,
    after=("cai-type",),
    samples=SHAPES,
    mutant=edited(shape=MISSING),
)
def _(p: Produced) -> None:
    demand("shape" in p.interface, f"entries: {sorted(p.interface)}")


@check(
    "shape-type",
    "`shape` is a tuple",
    say.CAI_SHAPE,
    after=("shape-missing",),
    samples=SHAPES,
    severity=DEVIATION,
    mutant=edited(shape=list),
)
def _(p: Produced) -> None:
    found = p.interface["shape"]
    demand(isinstance(found, tuple), f"shape={found!r}, a {type(found).__name__}")


def are_ints(items: Any) -> bool:
    return all(type(item) is int for item in items)


@check(
    "shape-item-type",
    "each extent is an int, and not a bool or a NumPy integer",
    say.CAI_SHAPE,
    after=("shape-missing",),
    samples=SHAPES,
    severity=DEVIATION,
    mutant=edited(shape=lambda shape: tuple(map(np.int64, shape))),
)
def _(p: Produced) -> None:
    found = p.interface["shape"]
    demand(are_ints(found), f"shape has {', '.join(type(item).__name__ for item in found)}")


@check(
    "shape-extent",
    "no extent is negative",
    say.CAI_SHAPE,
    after=("shape-missing",),
    samples=SHAPES,
    mutant=only_if(lambda a: a.array.size == 0, edited(shape=lambda shape: (-1, *shape[1:]))),
)
def _(p: Produced) -> None:
    found = p.interface["shape"]
    demand(all(extent >= 0 for extent in found), f"shape={found}")


@check(
    "shape-value",
    "`shape` is the shape of the array",
    say.CAI_SHAPE,
    after=("shape-extent",),
    samples=(*SHAPES, *LAYOUTS),
    mutant=only_if(lambda a: a.array.shape == (1, 3), edited(shape=lambda shape: shape[1:])),
)
def _(p: Produced) -> None:
    demand(tuple(p.interface["shape"]) == p.expected.shape, f"shape={p.interface['shape']}, made of {p.expected.shape}")


# --- typestr ---


@check(
    "typestr-missing",
    "`typestr` is there",
    say.CAI_TYPESTR,
    after=("cai-type",),
    samples=SHAPES,
    mutant=edited(typestr=MISSING),
)
def _(p: Produced) -> None:
    demand("typestr" in p.interface, f"entries: {sorted(p.interface)}")


@check(
    "typestr-type",
    "`typestr` is a str",
    say.CAI_TYPESTR,
    after=("typestr-missing",),
    samples=DTYPES,
    mutant=edited(typestr=np.dtype),
)
def _(p: Produced) -> None:
    found = p.interface["typestr"]
    demand(type(found) is str, f"typestr={found!r}, a {type(found).__name__}")


@check(
    "typestr-syntax",
    "`typestr` is a byte order, a kind and a size",
    say.NUMPY_TYPESTR,
    after=("typestr-type",),
    samples=DTYPES,
    mutant=edited(typestr=lambda text: text[1:]),
)
def _(p: Produced) -> None:
    demand(_TYPESTR.fullmatch(p.interface["typestr"]), f"typestr={p.interface['typestr']!r}")


@check(
    "typestr-byte-order",
    "the byte order is <, > or |",
    say.NUMPY_ORDER,
    after=("typestr-syntax",),
    samples=DTYPES,
    severity=DEVIATION,
    mutant=edited(typestr=lambda text: "=" + text[1:]),
)
def _(p: Produced) -> None:
    demand(p.interface["typestr"][0] in "<>|", f"typestr={p.interface['typestr']!r}")


@check(
    "typestr-byte-order-said",
    "the byte order of items of more than one byte is given",
    say.NUMPY_ORDER,
    after=("typestr-byte-order",),
    samples=DTYPES,
    mutant=only_if(lambda a: a.array.itemsize > 1, edited(typestr=lambda text: "|" + text[1:])),
)
def _(p: Produced) -> None:
    found = _TYPESTR.fullmatch(p.interface["typestr"])
    demand(found and (found[1] != "|" or found[3] == "1" or found[2] in "SUVO"), f"typestr={p.interface['typestr']!r}")


@check(
    "typestr-byte-order-one",
    "the byte order of items of one byte is |, not relevant",
    say.NUMPY_ORDER,
    after=("typestr-byte-order",),
    samples=DTYPES,
    severity=RECOMMENDATION,
    mutant=only_if(lambda a: a.array.itemsize == 1, edited(typestr=lambda text: "<" + text[1:])),
)
def _(p: Produced) -> None:
    found = _TYPESTR.fullmatch(p.interface["typestr"])
    demand(found and (found[3] != "1" or found[1] == "|"), f"typestr={p.interface['typestr']!r}")


@check(
    "typestr-size",
    "the size is that of the array's items",
    say.NUMPY_SIZE,
    after=("typestr-syntax",),
    samples=DTYPES,
    mutant=only_if(lambda a: a.array.dtype == np.int32, edited(typestr=lambda text: text[:2] + "2")),
)
def _(p: Produced) -> None:
    found = _TYPESTR.fullmatch(p.interface["typestr"])
    demand(
        found and int(found[3]) == p.expected.itemsize,
        f"typestr={p.interface['typestr']!r}, made of {p.expected.dtype.str!r}",
    )


@check(
    "typestr-kind",
    "the kind is that of the array's items",
    say.NUMPY_KIND,
    after=("typestr-syntax",),
    samples=DTYPES,
    mutant=only_if(lambda a: a.array.dtype == np.uint16, edited(typestr=lambda text: text[0] + "i" + text[2:])),
)
def _(p: Produced) -> None:
    demand(
        p.interface["typestr"][1] == p.expected.dtype.str[1],
        f"typestr={p.interface['typestr']!r}, made of {p.expected.dtype.str!r}",
    )


# --- data ---


@check(
    "data-missing", "`data` is there", say.CAI_DATA, after=("cai-type",), samples=SHAPES, mutant=edited(data=MISSING)
)
def _(p: Produced) -> None:
    demand("data" in p.interface, f"entries: {sorted(p.interface)}")


@check(
    "data-type",
    "`data` is a tuple",
    say.CAI_DATA,
    after=("data-missing",),
    samples=SHAPES,
    severity=DEVIATION,
    mutant=edited(data=list),
)
def _(p: Produced) -> None:
    found = p.interface["data"]
    demand(isinstance(found, tuple), f"data is a {type(found).__name__}")


@check(
    "data-length",
    "`data` has two items",
    say.CAI_DATA,
    after=("data-missing",),
    samples=SHAPES,
    mutant=edited(data=lambda data: (*data, 0)),
)
def _(p: Produced) -> None:
    demand(len(p.interface["data"]) == 2, f"data has {len(p.interface['data'])} items")


@check(
    "data-pointer-type",
    "the pointer is an int",
    say.CAI_POINTER,
    after=("data-length",),
    samples=SHAPES,
    mutant=edited(data=lambda data: (np.uint64(data[0]), data[1])),
)
def _(p: Produced) -> None:
    found = p.interface["data"][0]
    demand(type(found) is int, f"the pointer is a {type(found).__name__}")


@check(
    "data-pointer-range",
    "the pointer is an unsigned 64-bit address",
    say.CAI_POINTER,
    after=("data-pointer-type",),
    samples=SHAPES,
    mutant=only_if(lambda a: a.array.size > 0, edited(data=lambda data: (data[0] - 2**64, data[1]))),
)
def _(p: Produced) -> None:
    demand(0 <= p.interface["data"][0] < 2**64, f"the pointer is {p.interface['data'][0]}")


@check(
    "data-pointer-null",
    "the pointer of an array with elements is not 0",
    say.CAI_ACCESSIBLE,
    after=("data-pointer-range",),
    samples=FULL,
    mutant=only_if(lambda a: a.array.ndim == 0, edited(data=lambda data: (0, data[1]))),
)
def _(p: Produced) -> None:
    demand(p.interface["data"][0], "the pointer is 0")


@check(
    "data-zero-size",
    "the pointer of an array without elements is 0",
    say.CAI_ZERO_SIZE,
    after=("data-pointer-range",),
    samples=("empty",),
    severity=DEVIATION,
    mutant=only_if(lambda a: a.array.size == 0, edited(data=lambda data: (256, data[1]))),
)
def _(p: Produced) -> None:
    if p.version < 2:
        raise NotRun("before version 2 nothing is said of arrays without elements")
    demand(p.interface["data"][0] == 0, f"the pointer is {p.interface['data'][0]:#x}")


@check(
    "data-read-only-type",
    "the read-only flag is a bool",
    say.CAI_READ_ONLY,
    after=("data-length",),
    samples=SHAPES,
    severity=DEVIATION,
    mutant=edited(data=lambda data: (data[0], int(data[1]))),
)
def _(p: Produced) -> None:
    found = p.interface["data"][1]
    demand(type(found) is bool, f"the flag is a {type(found).__name__}")


@check(
    "data-writable",
    "an array that may be written is not flagged as read-only",
    say.CAI_READ_ONLY,
    after=("data-length",),
    severity=RECOMMENDATION,
    mutant=only_if(lambda a: a.array.flags.writeable, edited(data=lambda data: (data[0], True))),
)
def _(p: Produced) -> None:
    demand(not p.interface["data"][1], "the flag is set, though the array was made of one that may be written")


# --- strides ---


@check(
    "strides-type",
    "`strides` is None or a tuple",
    say.CAI_STRIDES,
    after=("cai-type",),
    samples=(*SHAPES, *LAYOUTS),
    severity=DEVIATION,
    mutant=edited(strides=lambda strides: strides if strides is None else list(strides)),
)
def _(p: Produced) -> None:
    found = p.key("strides")
    demand(found is None or isinstance(found, tuple), f"strides={found!r}, a {type(found).__name__}")


@check(
    "strides-item-type",
    "each stride is an int, and not a bool or a NumPy integer",
    say.CAI_STRIDES,
    after=("cai-type",),
    samples=(*SHAPES, *LAYOUTS),
    severity=DEVIATION,
    mutant=edited(strides=lambda strides: strides and tuple(map(np.int64, strides))),
)
def _(p: Produced) -> None:
    found = p.key("strides") or ()
    demand(are_ints(found), f"strides has {', '.join(type(item).__name__ for item in found)}")


@check(
    "strides-length",
    "`strides` has one item for each extent",
    say.CAI_STRIDES,
    after=("shape-missing",),
    samples=(*SHAPES, *LAYOUTS),
    mutant=edited(strides=lambda strides: strides and (*strides, 4)),
)
def _(p: Produced) -> None:
    found = p.key("strides")
    demand(found is None or len(found) == len(p.interface["shape"]), f"strides={found}, shape={p.interface['shape']}")


@check(
    "strides-none",
    "`strides` of an array in C order is None or left out",
    say.CAI_STRIDES_NONE,
    after=("strides-length", "typestr-syntax"),
    samples=SHAPES,
    severity=RECOMMENDATION,
    mutant=only_if(lambda a: a.array.ndim == 3, edited(strides=lambda _: (96, 32, 8))),
)
def _(p: Produced) -> None:
    found = p.key("strides")
    if found is None or 0 in p.interface["shape"]:
        return
    itemsize = np.dtype(p.interface["typestr"]).itemsize
    demand(tuple(found) != compact(p.interface["shape"], itemsize), f"strides={found} are those of C order")


# --- descr and mask ---


def has_descr(text: Callable[[Any], Any]) -> Any:
    class Described(CaiArray):
        def interface(self) -> Any:
            return {**super().interface(), "descr": text(self.array.dtype)}

    return Described


@check(
    "descr-type",
    "`descr` is a list of tuples",
    say.NUMPY_DESCR,
    after=("cai-type",),
    samples=DTYPES,
    mutant=has_descr(lambda dtype: dtype.str),
)
def _(p: Produced) -> None:
    found = p.key("descr")
    demand(isinstance(found, list) and all(isinstance(item, tuple) for item in found), f"descr={found!r}")


@check(
    "descr-syntax",
    "each item of `descr` is a name, a type and, if there is one, a shape",
    say.NUMPY_DESCR,
    after=("descr-type",),
    samples=DTYPES,
    mutant=has_descr(lambda dtype: [(dtype.str,)]),
)
def _(p: Produced) -> None:
    for item in p.key("descr"):
        named = len(item) in (2, 3) and isinstance(item[0], str | tuple) and isinstance(item[1], str | list)
        demand(named and (len(item) == 2 or isinstance(item[2], tuple)), f"descr has {item!r}")


@check(
    "descr-size",
    "the types of `descr` fill the item",
    say.NUMPY_DESCR,
    after=("descr-syntax", "typestr-size"),
    samples=DTYPES,
    mutant=has_descr(lambda dtype: [("", dtype.str), ("more", "|u1")]),
)
def _(p: Produced) -> None:
    found = np.dtype(p.key("descr")).itemsize
    demand(
        found == np.dtype(p.interface["typestr"]).itemsize,
        f"descr has {found} bytes, typestr={p.interface['typestr']!r}",
    )


class Masked(CaiArray):
    """Has a mask, which says that everything is valid."""

    mask_shape: Any = None
    offers: Any = CaiArray

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        self.mask = self.offers(np.ones(array.shape if self.mask_shape is None else self.mask_shape, dtype=np.bool_))

    def interface(self) -> Any:
        return {**super().interface(), "mask": self.mask}


@check(
    "mask-type",
    "`mask` is None or an object with `__cuda_array_interface__`",
    say.CAI_MASK,
    after=("cai-type",),
    samples=SHAPES,
    mutant=type("PlainMask", (Masked,), {"offers": staticmethod(lambda mask: bytes(mask))}),
)
def _(p: Produced) -> None:
    found = p.key("mask")
    demand(found is None or hasattr(found, "__cuda_array_interface__"), f"mask is a {type(found).__name__}")


@check(
    "mask-shape",
    "the mask can be broadcast to the array",
    say.NUMPY_MASK,
    after=("mask-type", "shape-missing"),
    samples=SHAPES,
    mutant=type("WideMask", (Masked,), {"mask_shape": (7,)}),
)
def _(p: Produced) -> None:
    found = p.key("mask")
    if found is None:
        return
    shape = found.__cuda_array_interface__["shape"]
    try:
        together = np.broadcast_shapes(shape, p.interface["shape"])
    except ValueError:
        together = ()
    demand(together == tuple(p.interface["shape"]), f"mask of shape {shape} beside {p.interface['shape']}")


@check(
    "mask-present",
    "an array without missing values has no mask",
    say.CAI_MASK,
    after=("mask-shape",),
    severity=RECOMMENDATION,
    mutant=Masked,
)
def _(p: Produced) -> None:
    demand(p.key("mask") is None, "there is a mask, which many consumers refuse")


# --- stream ---


class Unsaid(CaiArray):
    """Is ready, and has no entry `stream`."""

    def memory_of(self, array: Any) -> Any:
        memory = super().memory_of(array)
        driver().synchronize()
        return memory

    def interface(self) -> Any:
        whole = super().interface()
        del whole["stream"]
        return whole


@check(
    "stream-version",
    "`stream` is there from version 3 on only",
    say.CAI_STREAM,
    after=("version-type",),
    severity=DEVIATION,
    mutant=edited(version=lambda _: 2),
)
def _(p: Produced) -> None:
    demand("stream" not in p.interface or p.version >= 3, f"version={p.version} with a stream")


@check(
    "stream-said",
    "`stream` is there, if only as None",
    say.CAI_STREAM,
    after=("version-type",),
    severity=RECOMMENDATION,
    mutant=Unsaid,
)
def _(p: Produced) -> None:
    demand(
        p.version < 3 or "stream" in p.interface, "consumers that do not know version 3 of it cannot tell what holds"
    )


@check(
    "stream-type",
    "`stream` is None or an int",
    say.CAI_STREAM,
    after=("cai-type",),
    samples=SHAPES,
    mutant=edited(stream=lambda _: "1"),
)
def _(p: Produced) -> None:
    found = p.key("stream")
    demand(found is None or type(found) is int, f"stream={found!r}, a {type(found).__name__}")


@check(
    "stream-zero",
    "`stream` is not 0",
    say.CAI_STREAM_ZERO,
    after=("stream-type",),
    samples=SHAPES,
    mutant=edited(stream=lambda _: 0),
)
def _(p: Produced) -> None:
    demand(p.key("stream") != 0, "stream=0")


@check(
    "stream-range",
    "`stream` is not negative, and an address",
    say.CAI_STREAM_HANDLE,
    after=("stream-type",),
    samples=SHAPES,
    mutant=edited(stream=lambda _: -1),
)
def _(p: Produced) -> None:
    found = p.key("stream")
    demand(found is None or 0 <= found < 2**64, f"stream={found}")


@check(
    "stream-alive",
    "the stream exists while the array does",
    say.CAI_STREAM_LIFE,
    after=("stream-zero", "stream-range"),
    mutant=edited(stream=lambda _: 0x7F00_0000_1000),
    shows=SHOWN + "print(driver().knows_stream(interface['stream']))",
)
def _(p: Produced) -> None:
    need_driver()
    found = p.key("stream")
    if found is None or found < 3:
        raise NotRun("the array names no stream of its own")
    if not driver().simulated:
        raise NotRun("a GPU's driver cannot be asked whether a stream exists")
    demand(driver().knows_stream(found), f"the driver has no stream {found:#x}")


# --- memory ---


class Pending(CaiArray):
    """Is ready once its own stream has done the copy, and says that it is ready now."""

    def memory_of(self, array: Any) -> Any:
        memory = DeviceMemory(array)
        low, high = span(array.shape, array.strides, array.itemsize)
        kept(data := ctypes.string_at(array.ctypes.data + low, high - low))
        driver().write(memory.start, bytes(high - low))
        driver().synchronize()
        driver().write_in(own_stream(), memory.start, data)
        return memory

    def interface(self) -> Any:
        return {**super().interface(), "stream": None}


class Odd:
    """Device memory whose address is odd."""

    def __init__(self, array: Any) -> None:
        low, high = span(array.shape, array.strides, array.itemsize)
        self.start = driver().allocate(high - low + 1)
        driver().write(self.start + 1, ctypes.string_at(array.ctypes.data + low, high - low))
        self.address = self.start + 1 - low

    def __del__(self) -> None:
        driver().free(self.start)


@check(
    "pointer-unknown",
    "the driver knows the pointer",
    say.CAI_ACCESSIBLE,
    after=("data-pointer-null",),
    samples=FULL,
    mutant=only_if(lambda a: a.array.ndim == 3, edited(data=lambda data: (0x10_0000, data[1]))),
    shows=SHOWN + "print(driver().allocation(interface['data'][0]))",
)
def _(p: Produced) -> None:
    need_driver()
    pointer = p.interface["data"][0]
    demand(driver().allocation(pointer), f"the driver knows no memory at {pointer:#x}")


@check(
    "out-of-bounds",
    "the array lies in one allocation",
    say.CAI_ACCESSIBLE,
    after=("pointer-unknown", "shape-extent", "strides-length", "typestr-syntax"),
    samples=FULL,
    mutant=only_if(lambda a: a.array.shape == (5,), edited(strides=lambda _: (2**32,))),
    shows=SHOWN + "print(driver().allocation(interface['data'][0]))  # its start, and its bytes",
)
def _(p: Produced) -> None:
    pointer = p.interface["data"][0]
    low, high = span(p.interface["shape"], strides_of(p), np.dtype(p.interface["typestr"]).itemsize)
    start, size = driver().allocation(pointer) or (0, 0)
    demand(
        start <= pointer + low and pointer + high <= start + size,
        f"bytes {pointer + low - start} to {pointer + high - start} of an allocation of {size}",
    )


@check(
    "shape-huge",
    "an extent that 32 bits do not hold is the array's",
    say.CAI_SHAPE,
    after=("shape-value", "out-of-bounds"),
    samples=("huge",),
    mutant=edited(shape=lambda shape: tuple(extent & 0x7FFF_FFFF for extent in shape)),
)
def _(p: Produced) -> None:
    found = tuple(p.interface["shape"])
    demand(found == p.expected.shape, f"shape={found}, made of {p.expected.shape}")
    strides = p.interface.get("strides")
    if strides is None or 0 not in strides:
        _, size = driver().allocation(p.interface["data"][0]) or (0, 0)
        demand(size >= p.expected.nbytes, f"strides={strides} in an allocation of {size} bytes")


@check(
    "typestr-big-endian",
    "items of the other byte order are described as such",
    say.NUMPY_ORDER,
    after=("typestr-byte-order-said", "shape-missing", "pointer-unknown"),
    samples=("big-endian",),
    mutant=only_if(lambda a: not a.array.dtype.isnative, edited(typestr=lambda text: "<" + text[1:])),
    shows=ELEMENTS,
)
def _(p: Produced) -> None:
    need_driver()
    found = values(
        p.interface["data"][0],
        p.interface["shape"],
        p.interface.get("strides"),
        np.dtype(p.interface["typestr"]),
        host=False,
    )
    demand(
        found.tolist() == p.expected.tolist(), f"typestr={p.interface['typestr']!r}, made of {p.expected.dtype.str!r}"
    )


@check(
    "values",
    "the elements are where pointer, shape, strides and type say",
    say.CAI_STRIDES,
    after=("out-of-bounds", "shape-value", "typestr-size", "typestr-kind"),
    samples=tuple(dict.fromkeys((*FULL, *DTYPES))),
    mutant=only_if(lambda a: a.array.flags.f_contiguous and a.array.ndim == 2, edited(strides=lambda _: (4, 4))),
    shows=ELEMENTS,
)
def _(p: Produced) -> None:
    dtype = np.dtype(p.interface["typestr"])
    found = values(p.interface["data"][0], p.interface["shape"], p.interface.get("strides"), dtype, host=False)
    demand(same(found.astype(p.expected.dtype), p.expected), f"{found.tolist()} instead of {p.expected.tolist()}")


def in_order(array: Any) -> Any:
    """The elements, once the work is done that the dict's stream names, and no other; none if it is None."""
    interface = array.__cuda_array_interface__
    stream = interface.get("stream")
    return values(
        interface["data"][0],
        interface["shape"],
        interface.get("strides"),
        np.dtype(interface["typestr"]),
        host=False,
        after=trials.another_stream() if stream is None else stream,
    )


@check(
    "stream-order",
    "the elements are there once the work of `stream` is done, and at once if that is None",
    say.CAI_STREAM_NONE,
    after=(
        "out-of-bounds",  # as much memory as the dict spans is read
        "pointer-unknown",
        "shape-value",
        "strides-length",
        "typestr-kind",
        "typestr-size",
        "stream-type",
        "stream-zero",
        "stream-range",
        "stream-alive",
    ),
    samples=("matrix", "vector", "every-second"),
    mutant=Pending,
    shows="""from cai_conformance.checks.cai_producer import in_order
from cai_conformance.judge import trials
with trials.nothing_by_itself():  # no work is done before somebody waits for it
    other = {array}
    print(in_order(other))""",
)
def _(p: Produced) -> None:
    if p.version < 3:
        raise NotRun("before version 3 nothing is said of streams")
    if not driver().simulated:
        raise NotRun("a GPU's driver cannot be told to leave a producer's work for later")
    given = p.sample.array()
    given += 1  # not what freed memory may still have of the same sample
    expected = given.copy()
    with trials.nothing_by_itself():
        array = p.make(given)
        try:
            found = in_order(array).astype(expected.dtype)
        except RuntimeError as error:
            raise NotRun(f"the elements cannot be read: {error}") from None
        if same(found, expected):
            return
        driver().wait(1)
        after_legacy = same(in_order(array).astype(expected.dtype), expected)
        driver().synchronize()
        if not same(in_order(array).astype(expected.dtype), expected):
            raise NotRun("the elements are not where it says, whatever is waited for")
    stream = p.interface.get("stream")
    said = f"stream={stream if stream is None else hex(stream)}: {found.tolist()} instead of {expected.tolist()}"
    if after_legacy:
        broken(f"{said}, as work is pending in the legacy default stream", DEVIATION)
    broken(f"{said}, as work is pending in another stream")


@check(
    "data-alignment",
    "the pointer is aligned to the item",
    say.CAI_ACCESSIBLE,
    after=("data-pointer-null", "typestr-syntax"),
    samples=DTYPES,
    severity=RECOMMENDATION,
    mutant=type("Unaligned", (CaiArray,), {"memory_of": staticmethod(lambda array: Odd(array))}),
    shows=SHOWN + "print(interface['data'][0] % np.dtype(interface['typestr']).alignment)",
)
def _(p: Produced) -> None:
    dtype = np.dtype(p.interface["typestr"])
    demand(
        p.interface["data"][0] % dtype.alignment == 0,
        f"{p.interface['data'][0]:#x} with items of {dtype.alignment} bytes",
    )


# --- lifetime ---


class Watched(dict):  # type: ignore[type-arg]
    """A dict at whose end, if it is the last one, its array moves to other memory."""

    def __init__(self, entries: Any, array: Any) -> None:
        super().__init__(entries)
        self.array = array
        array.dicts += 1

    def __del__(self) -> None:
        self.array.dicts -= 1
        if not self.array.dicts:
            self.array.memory = DeviceMemory(self.array.array)


@check(
    "owner-kept",
    "the memory stays while the array lives, whatever becomes of the dict",
    say.CAI_LIFETIME,
    after=("values",),
    mutant=overriding(dicts=0, interface=lambda self: Watched(CaiArray.interface(self), self)),
    shows=TWICE,
)
def _(p: Produced) -> None:
    array = p.again()
    first = dict(array.__cuda_array_interface__)
    gc.collect()
    second = array.__cuda_array_interface__
    demand(
        first["data"][0] == second["data"][0], "the pointer differs at the second read, after the first dict has gone"
    )
    found = values(second["data"][0], second["shape"], second.get("strides"), np.dtype(second["typestr"]), host=False)
    demand(same(found.astype(p.expected.dtype), p.expected), "the elements have changed")


@check(
    "owner-freed",
    "the memory is freed with the array, and not kept by its dict",
    say.CAI_LIFETIME,
    after=("owner-kept",),
    severity=RECOMMENDATION,
    mutant=overriding(interface=lambda self: CaiArray.interface(kept(self))),
    shows="""from cai_conformance.sim import Sim
arrays = [{array} for _ in range(8)]
_ = [array.__cuda_array_interface__ for array in arrays]
print(Sim().live())
del arrays
print(Sim().live())""",
)
def _(p: Produced) -> None:
    if not driver().simulated:
        raise NotRun("only the simulated driver tells how many allocations live")
    from cai_conformance.sim import Sim

    sim = Sim()
    for _ in range(2):  # the first may fill a pool
        arrays = [p.again() for _ in range(8)]
        for array in arrays:
            _ = array.__cuda_array_interface__
        gc.collect()
        before = sim.live().allocations
        del arrays, array
        gc.collect()
        after = sim.live().allocations
    if before < 8:
        raise NotRun("the producer does not allocate for each array")
    demand(after <= before - 8, f"{before} allocations live before eight arrays end, and {after} after")
