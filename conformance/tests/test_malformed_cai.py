"""The CUDA Array Interface, one defect at a time: class, field, value, rule, and nothing changed.

Each row starts from a dict that is accepted (`test_the_fixture_is_valid`) and breaks one key.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import FAKE_POINTER, Cai, cai, host_memory, interface
from conformance.tests.expectations.refusal import check_refusal, nothing_changes, refuse, refused_or_accepted
from conformance.tests.ownership.growth import blocks_grown
from conformance.tests.simulated.machine import Machine, one_event

ENTRIES: dict[str, Callable[[Any], object]] = {
    "view": lambda obj: cd.view(obj, device_id=0),
    "from_cai": lambda obj: cd.from_cai(obj, device_id=0),
    "to_dlpack": lambda obj: cd.to_dlpack(obj),
}


def repr_of_type(value: object) -> str:
    return type(value).__name__


every_entry = pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)


@dataclass(frozen=True)
class Row:
    """One key of a valid dict with a value that breaks it, and the refusal it gets."""

    id: str
    key: str
    value: Any
    raises: type[Exception]
    rule: str
    found: str | None = None
    hint: str | None = None


MISSING = ...

ROWS = [
    Row("C12-version-string", "version", "3", TypeError, "version-type", "'3'"),
    Row("C13-version-float", "version", 3.0, TypeError, "version-type", "3.0"),
    Row("C14-version-bool", "version", True, TypeError, "version-type", "True"),
    Row("C15-version-negative", "version", -1, ValueError, "version-range", "-1"),
    Row("C17-version-none", "version", None, TypeError, "version-type", "None"),
    Row("C18-shape-missing", "shape", MISSING, ValueError, "shape-missing"),
    Row("C19-shape-none", "shape", None, TypeError, "shape-type", "None"),
    Row("C20-shape-int", "shape", 3, TypeError, "shape-type", "3"),
    Row("C22-shape-negative", "shape", (-1,), ValueError, "shape-extent", "-1"),
    Row("C22-shape-negative-second", "shape", (2, -7), ValueError, "shape-extent", "-7"),
    Row("C22-shape-negative-beside-zero", "shape", (0, -1), ValueError, "shape-extent", "-1"),
    Row("C23-shape-float", "shape", (2.0,), TypeError, "shape-item-type", "2.0"),
    Row("C24-shape-bool", "shape", (True, 3), TypeError, "shape-item-type", "True"),
    Row("C25-shape-string-item", "shape", ("3",), TypeError, "shape-item-type", "'3'"),
    Row("C26-shape-over-64-bit", "shape", (2**63,), ValueError, "shape-range", str(2**63)),
    Row("C26-shape-far-over-64-bit", "shape", (2**200,), ValueError, "shape-range"),
    Row("C27-shape-product-overflow", "shape", (2**40, 2**40), ValueError, "count-overflow"),
    Row("C27-shape-byte-size-overflow", "shape", (2**62,), ValueError, "size-overflow"),
    Row("C28-shape-65-dimensions", "shape", (1,) * 65, ValueError, "ndim-limit", "65"),
    Row("C29-shape-string", "shape", "33", TypeError, "shape-type", "'33'"),
    Row("C29-shape-bytes", "shape", b"33", TypeError, "shape-type"),
    Row("C30-shape-dict", "shape", {2: 3}, TypeError, "shape-type"),
    Row("C31-shape-nested", "shape", ((2, 3),), TypeError, "shape-item-type"),
    Row("C32-typestr-missing", "typestr", MISSING, ValueError, "typestr-missing"),
    Row("C33-typestr-none", "typestr", None, TypeError, "typestr-type", "None"),
    Row("C34-typestr-bytes", "typestr", b"<f4", TypeError, "typestr-type", "<f4"),
    Row("C34-typestr-numpy-dtype", "typestr", np.dtype("f4"), TypeError, "typestr-type"),
    Row("C35-typestr-empty", "typestr", "", ValueError, "typestr-syntax"),
    Row("C36-typestr-no-byte-order", "typestr", "f4", ValueError, "typestr-syntax", "f4", "<f4"),
    Row("C37-typestr-no-size", "typestr", "|i", ValueError, "typestr-syntax", "|i"),
    Row("C38-typestr-size-of-no-float", "typestr", "<f3", ValueError, "typestr-size", "<f3"),
    Row("C39-typestr-negative-size", "typestr", "<f-4", ValueError, "typestr-syntax", "<f-4"),
    Row("C40-typestr-trailing", "typestr", "<f4x", ValueError, "typestr-syntax", "<f4x"),
    Row("C41-typestr-char-name", "typestr", "?", ValueError, "typestr-syntax", "?"),
    Row("C44-typestr-unknown-order", "typestr", "#f4", ValueError, "typestr-syntax", "#f4"),
    Row("C45-typestr-huge-size", "typestr", "<f99999999999", ValueError, "typestr-size", "<f99999999999"),
    Row("C45-typestr-endless-size", "typestr", "<f" + "9" * 400, ValueError, "typestr-size"),
    Row("C46-typestr-object", "typestr", "|O8", BufferError, "typestr-object", "|O8"),
    Row("C54-typestr-wide-bool", "typestr", "|b8", ValueError, "typestr-size", "|b8"),
    Row("C55-typestr-no-such-kind", "typestr", "<q8", ValueError, "typestr-syntax", "<q8"),
    Row("C55-typestr-nul-inside", "typestr", "<f\x004", ValueError, "typestr-syntax"),
    Row("C55-typestr-not-ascii", "typestr", "<f\N{SUPERSCRIPT FOUR}", ValueError, "typestr-syntax"),
    Row("C55-typestr-lone-surrogate", "typestr", "<f\ud800", ValueError, "typestr-syntax"),
    Row("C56-descr-int", "descr", 42, TypeError, "descr-type", "42"),
    Row("C57-descr-of-another-size", "descr", [("", "<f8")], ValueError, "descr-size"),
    Row("C60-data-missing", "data", MISSING, ValueError, "data-missing"),
    Row("C61-data-none", "data", None, TypeError, "data-type", "None"),
    Row("C62-data-int", "data", 5, TypeError, "data-type", "5"),
    Row("C64-data-three-items", "data", (FAKE_POINTER, False, 0), ValueError, "data-length", "3"),
    Row("C64-data-one-item", "data", (FAKE_POINTER,), ValueError, "data-length", "1"),
    Row("C65-data-none-with-elements", "data", (None, False), ValueError, "data-pointer-none", "None"),
    Row("C66-data-negative", "data", (-1, False), ValueError, "data-pointer-range", "-1"),
    Row("C67-data-over-64-bit", "data", (2**64, False), ValueError, "data-pointer-range", str(2**64)),
    Row("C67-data-end-over-64-bit", "data", (2**64 - 4, False), ValueError, "address-range"),
    Row("C68-data-string-pointer", "data", ("0x7f", False), TypeError, "data-pointer-type", "'0x7f'"),
    Row("C69-data-float-pointer", "data", (1.5, False), TypeError, "data-pointer-type", "1.5"),
    Row("C69-data-bool-pointer", "data", (True, False), TypeError, "data-pointer-type", "True"),
    Row("C70-data-null-with-elements", "data", (0, False), ValueError, "data-pointer-null", "0"),
    Row("C76-data-buffer", "data", bytearray(24), TypeError, "data-type"),
    Row("C76-data-bytes", "data", bytes(2), TypeError, "data-type"),
    Row("C76-data-string", "data", "xy", TypeError, "data-type"),
    Row("C77-strides-int", "strides", 4, TypeError, "strides-type", "4"),
    Row("C77-strides-string", "strides", "12", TypeError, "strides-type"),
    Row("C78-strides-too-few", "strides", (4,), ValueError, "strides-length", "1"),
    Row("C78-strides-too-many", "strides", (24, 12, 4), ValueError, "strides-length", "3"),
    Row("C78-strides-empty", "strides", (), ValueError, "strides-length"),
    Row("C81-strides-over-64-bit", "strides", (2**63, 4), ValueError, "strides-range", str(2**63)),
    Row("C81-strides-below-64-bit", "strides", (-(2**63) - 1, 4), ValueError, "strides-range"),
    Row("C81-strides-span-overflow", "strides", (2**62, 2**62), ValueError, "span-overflow"),
    Row("C82-strides-float", "strides", (4.0, 4), TypeError, "strides-item-type", "4.0"),
    Row("C82-strides-none-inside", "strides", (None, 4), TypeError, "strides-item-type", "None"),
    Row("C83-mask-no-array", "mask", 7, TypeError, "mask-type"),
    Row("C84-mask-of-another-shape", "mask", cai(shape=(5,), typestr="|b1"), ValueError, "mask-shape"),
    Row("C87-mask-valid", "mask", cai(typestr="|b1"), BufferError, "mask-present", None, "masked"),
    Row("C89-stream-negative", "stream", -1, ValueError, "stream-range", "-1"),
    Row("C89-stream-minus-two", "stream", -2, ValueError, "stream-range", "-2"),
    Row("C90-stream-string", "stream", "1", TypeError, "stream-type", "'1'"),
    Row("C91-stream-float", "stream", 1.0, TypeError, "stream-type", "1.0"),
    Row("C91-stream-bool", "stream", True, TypeError, "stream-type", "True"),
    Row("C92-stream-over-64-bit", "stream", 2**64, ValueError, "stream-range", str(2**64)),
]


#: What both sides of the interface can say, and DLPack cannot: DLPack's side refuses it.
CAI_ONLY_ROWS = [
    Row("C42-typestr-big-endian", "typestr", ">f4", BufferError, "typestr-byte-order", ">f4"),
    Row("C42-typestr-big-endian-int", "typestr", ">i8", BufferError, "typestr-byte-order", ">i8"),
    Row("C47-typestr-unicode", "typestr", "<U4", BufferError, "typestr-unicode", "<U4"),
    Row("C48-typestr-bytestring", "typestr", "|S4", BufferError, "typestr-bytes", "|S4"),
    Row("C49-typestr-datetime", "typestr", "<M8[ns]", BufferError, "typestr-datetime", "<M8[ns]", "dtype="),
    Row("C49-typestr-timedelta", "typestr", "<m8[us]", BufferError, "typestr-datetime", "<m8[us]", "dtype="),
    Row("C50-typestr-void", "typestr", "<V2", BufferError, "typestr-void", "<V2", "dtype="),
    Row("C51-typestr-record-without-descr", "typestr", "|V16", BufferError, "typestr-void", "|V16"),
    Row("C52-typestr-bit-field", "typestr", "|t1", BufferError, "typestr-bit", "|t1"),
    Row("C53-typestr-long-double", "typestr", "<f16", BufferError, "typestr-long-double", "<f16"),
    Row("C53-typestr-complex32", "typestr", "<c4", BufferError, "typestr-half-complex", "<c4"),
    Row("C75-data-misaligned", "data", (FAKE_POINTER + 2, False), BufferError, "data-alignment"),
    Row("C79-strides-odd-first-axis", "strides", (13, 4), BufferError, "strides-multiple", "13", "axis 0"),
    Row("C79-strides-odd-second-axis", "strides", (12, 6), BufferError, "strides-multiple", "6", "axis 1"),
    Row("C53-typestr-float8", "typestr", "<f1", BufferError, "typestr-float8", "<f1", "dtype="),
]

BY_DLPACK: dict[str, Callable[[Any], object]] = {
    "view": lambda obj: cd.view(obj, device_id=0).__dlpack__(stream=-1),
    "from_cai": lambda obj: cd.from_cai(obj, device_id=0).__dlpack__(stream=-1),
    "to_dlpack": lambda obj: cd.to_dlpack(obj),
}


def nested_descr(depth: int) -> Any:
    """A record that holds a record that holds a record, whose innermost field is one float32."""
    descr: Any = "<f4"
    for level in range(depth):
        descr = [(f"f{level}", descr)]
    return descr


def test_the_fixture_is_valid() -> None:
    view = cd.view(cai(), device_id=0)
    assert (view.shape, view.dtype.name, view.ptr) == ((2, 3), "float32", FAKE_POINTER)


@every_entry
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_refused(row: Row, entry: Callable[[object], object]) -> None:
    producer = cai(**{row.key: row.value})
    watched = [each for each in (row.value,) if isinstance(each, (list, bytearray, Cai))]
    with nothing_changes(producer, producer.interface, *watched):
        found = refuse(lambda: entry(producer), row.raises)
    check_refusal(found, row.rule, row.key, value=row.found, hint=row.hint)
    assert "__cuda_array_interface__" in found.message


@pytest.mark.parametrize("entry", BY_DLPACK.values(), ids=BY_DLPACK)
@pytest.mark.parametrize("row", CAI_ONLY_ROWS, ids=lambda row: row.id)
def test_refused_by_dlpack(row: Row, entry: Callable[[object], object]) -> None:
    producer = cai(**{row.key: row.value})
    with nothing_changes(producer, producer.interface):
        found = refuse(lambda: entry(producer), row.raises)
    check_refusal(found, row.rule, row.key, value=row.found, hint=row.hint)
    assert "__cuda_array_interface__" in found.message


def test_c57_c58_c59_descr() -> None:
    record = cai(typestr="|V8", descr=[("x", "<f4"), ("y", "<f4")])
    view = cd.view(record, device_id=0)  # chooses one by view.field(name); the whole leaves by CAI
    for export in (lambda: cd.to_dlpack(record), view.__dlpack__, lambda: cd.to_dlpack(view)):
        found = refuse(export, BufferError)
        check_refusal(found, "descr-fields", "descr", value="'x', 'y'", hint=".field('name')")

    short = cai(typestr="|V16", descr=[("x", "<f4"), ("y", "<f4")])
    found = refuse(lambda: cd.view(short, device_id=0), ValueError)
    check_refusal(found, "descr-size", "descr")

    twice = cai(typestr="|V8", descr=[("x", "<f4"), ("x", "<f4")])
    check_refusal(refuse(lambda: cd.view(twice, device_id=0), ValueError), "descr-names", "descr", value="'x'")
    titled = cai(typestr="|V8", descr=[(("y", "x"), "<f4"), ("y", "<f4")])
    check_refusal(refuse(lambda: cd.view(titled, device_id=0), ValueError), "descr-names", "descr", value="'y'")
    second = cd.view(cai(typestr="|V8", descr=[(("a title", "x"), "<f4"), ("y", "<f4")]), device_id=0)
    assert second.field("a title").ptr == second.field("x").ptr != second.field("y").ptr

    for name in ("\ud800", ("a title", "\ud800"), ("\ud800", "x")):
        surrogate = cai(typestr="|V4", descr=[(name, "<f4")])
        found = refuse(lambda each=surrogate: cd.view(each, device_id=0), ValueError)  # type: ignore[misc]
        check_refusal(found, "descr-syntax", "descr", hint="lone surrogate")
    check_refusal(
        refuse(lambda: cd.view(cai(typestr="|V4", descr=[((3, "x"), "<f4")])), TypeError), "descr-type", "descr"
    )
    # NumPy finds a field by its title too.
    for descr in ([(("x", "y"), "<f4"), ("x", "<f4")], [(("t", "x"), "<f4"), (("t", "y"), "<f4")]):
        titled = cai(typestr="|V8", descr=descr)
        check_refusal(refuse(lambda: cd.view(titled, device_id=0), ValueError), "descr-names", "descr")  # noqa: B023

    deep = cai(typestr="|V4", descr=nested_descr(10_000))
    found = refuse(lambda: cd.view(deep, device_id=0), ValueError)
    check_refusal(found, "descr-depth", "descr")


# --- the object ---------------------------------------------------------------------------------


class Nothing:
    """No protocol at all."""


class OnTheCpu:
    @property
    def __cuda_array_interface__(self) -> object:
        raise AttributeError("Can't get __cuda_array_interface__ on a tensor on the CPU")


class NeedsGrad:
    error = RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad")

    @property
    def __cuda_array_interface__(self) -> object:
        raise self.error


class Method:
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return interface()


class BadMapping(Mapping[str, Any]):
    error = LookupError("no such key today")

    def __getitem__(self, key: str) -> Any:
        raise self.error

    def __iter__(self) -> Iterator[str]:
        return iter(interface())

    def __len__(self) -> int:
        return 6


class GoodMapping(BadMapping):
    def __getitem__(self, key: str) -> Any:
        return interface()[key]


CAI = "__cuda_array_interface__"


@every_entry
@pytest.mark.parametrize(
    ("make", "raises", "rule", "field", "hint"),
    [
        pytest.param(OnTheCpu, TypeError, "cai-unavailable", CAI, "CPU", id="C2-attribute-error"),
        pytest.param(lambda: Cai(None), TypeError, "cai-none", CAI, "None", id="C4-none"),
        pytest.param(lambda: Cai(list(interface().items())), TypeError, "cai-type", CAI, "'typestr'", id="C5-list"),
        pytest.param(lambda: Cai(7), TypeError, "cai-type", CAI, "7", id="C5-int"),
        pytest.param(Method, TypeError, "cai-method", CAI, "method", id="C6-method"),
        pytest.param(lambda: Cai({}), ValueError, "cai-empty", CAI, None, id="C7-empty"),
        pytest.param(lambda: Cai, TypeError, "class-not-instance", None, "class", id="C8-class"),
        pytest.param(lambda: interface(), TypeError, "owner-missing", "owner", "owner", id="dict-without-owner"),
    ],
)
def test_object_refused(
    make: Callable[[], object],
    raises: type[Exception],
    rule: str,
    field: str | None,
    hint: str | None,
    entry: Callable[[object], object],
) -> None:
    producer = make()
    with nothing_changes(*([] if isinstance(producer, type) else [producer])):
        found = refuse(lambda: entry(producer), raises)
    check_refusal(found, rule, field, hint=hint)


@pytest.mark.parametrize("producer", [Nothing(), None, 42, "text"], ids=repr_of_type)
@pytest.mark.parametrize(
    ("name", "rule", "named"),
    [("view", "protocol-missing", CAI), ("from_cai", "cai-missing", CAI)],
    ids=["view", "from_cai"],
)
def test_c1_an_object_without_the_protocol(producer: object, name: str, rule: str, named: str) -> None:
    found = refuse(lambda: ENTRIES[name](producer), TypeError)
    check_refusal(found, rule, None)
    assert named in found.message


@every_entry
@pytest.mark.parametrize(
    ("producer", "error"),
    [
        pytest.param(NeedsGrad(), NeedsGrad.error, id="C3-property-raises"),
        pytest.param(Cai(BadMapping()), BadMapping.error, id="C10-mapping-raises"),
    ],
)
def test_the_producers_own_error_passes_untouched(
    producer: object, error: Exception, entry: Callable[[object], object]
) -> None:
    with pytest.raises(type(error)) as caught:
        entry(producer)
    assert caught.value is error


def test_an_item_whose_index_raises_passes_its_error() -> None:
    error = RuntimeError("no index today")

    class Item:
        def __index__(self) -> int:
            raise error

    for changes in ({"shape": (Item(), 3)}, {"data": (Item(), False)}, {"stream": Item()}):
        with pytest.raises(RuntimeError) as caught:
            cd.view(cai(**changes), device_id=0)
        assert caught.value is error


@pytest.mark.parametrize("error", [RuntimeError("neither true nor false"), KeyboardInterrupt()], ids=repr)
def test_a_read_only_flag_that_is_neither_true_nor_false(error: BaseException) -> None:
    class Flag:
        def __bool__(self) -> bool:
            raise error

    with pytest.raises((TypeError, KeyboardInterrupt)) as caught:
        cd.view(cai(data=(FAKE_POINTER, Flag())), device_id=0)
    if isinstance(error, Exception):
        found = refuse(lambda: cd.view(cai(data=(FAKE_POINTER, Flag())), device_id=0), TypeError)
        check_refusal(found, "data-type", "data", hint="must be a bool")
        assert caught.value.__cause__ is error
    else:
        assert caught.value is error


def test_a_flag_of_none_says_nothing() -> None:
    """It is none of the interface's two: the array is neither writable nor known to be read-only."""
    silent = cai(data=(FAKE_POINTER, None))
    for view in (
        cd.view(silent, device_id=0),
        cd.from_cai(silent, device_id=0),
        cd.split_masked(silent, device_id=0)[0],
    ):
        assert view.read_only is None
        assert view.to_cai()["data"][1] is True
    assert cd.view(silent, device_id=0, read_only=False).read_only is False
    assert cd.view(silent.interface, owner=silent, device_id=0).read_only is None
    assert abi.read(cd.to_dlpack(silent, device_id=0, stream=-1, max_version=(1, 3))).flags == abi.READ_ONLY


# --- accepted ------------------------------------------------------------------------------------


class Index:
    """An integer by `__index__` alone."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class LazyPair(Sequence[Any]):
    """A `data` that is a sequence and no tuple; each item may be read once only."""

    def __init__(self) -> None:
        self.reads: collections.Counter[int] = collections.Counter()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: Any) -> Any:
        if index not in (0, 1):
            raise IndexError(index)
        self.reads[index] += 1
        assert self.reads[index] == 1, f"item {index} was read twice"
        return (FAKE_POINTER, False)[index]


ACCEPTED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("C11-version-missing", {"version": MISSING}, {"shape": (2, 3)}),
    ("T2-version-0", {"version": 0}, {"shape": (2, 3)}),
    ("T2-version-1", {"version": 1}, {"shape": (2, 3)}),
    ("T2-version-2", {"version": 2, "stream": MISSING}, {"stream": None}),
    ("T2-version-2-stream-honoured", {"version": 2, "stream": 7}, {"stream": 7}),
    ("C21-shape-list", {"shape": [2, 3]}, {"shape": (2, 3)}),
    ("C21-shape-numpy-ints", {"shape": (np.int64(2), np.uint8(3))}, {"shape": (2, 3)}),
    ("C21-shape-index", {"shape": (Index(2), Index(3))}, {"shape": (2, 3)}),
    ("C28-shape-64-dimensions", {"shape": (1,) * 64}, {"ndim": 64}),
    ("C26-shape-zero-beside-huge", {"shape": (0, 2**62, 2**62)}, {"nbytes": 0}),
    ("T12-shape-0-d", {"shape": ()}, {"shape": (), "byte_strides": ()}),
    ("C42-typestr-big-endian-byte", {"typestr": ">i1"}, {"dtype": "int8"}),
    ("C43-typestr-native", {"typestr": "=f4"}, {"dtype": "float32"}),
    ("D10-typestr-no-order-byte", {"typestr": "|u1"}, {"dtype": "uint8"}),
    ("D10-typestr-little-byte", {"typestr": "<u1"}, {"dtype": "uint8"}),
    ("D10-typestr-no-order-wide", {"typestr": "|f4"}, {"dtype": "float32"}),
    ("D12-descr-one-unnamed", {"descr": [("", "<f4")]}, {"dtype": "float32"}),
    ("D12-descr-none", {"descr": None}, {"dtype": "float32"}),
    ("D11-mask-none", {"mask": None}, {"dtype": "float32"}),
    ("C65-data-none-size-0", {"shape": (0, 4), "data": (None, False)}, {"ptr": 0, "nbytes": 0}),
    ("C65-data-null-size-0", {"shape": (0, 4), "data": (0, False)}, {"ptr": 0, "nbytes": 0}),
    ("D6-data-real-size-0", {"shape": (4, 0)}, {"shape": (4, 0), "nbytes": 0}),
    ("C75-data-misaligned-size-0", {"shape": (0,), "data": (3, False)}, {"nbytes": 0}),
    (
        "C75-data-complex-half-aligned",
        {"typestr": "<c16", "data": (FAKE_POINTER + 8, False)},
        {"dtype": "complex128"},
    ),
    ("D5-data-list", {"data": [FAKE_POINTER, False]}, {"ptr": FAKE_POINTER}),
    ("D5-data-lazy", {"data": LazyPair()}, {"ptr": FAKE_POINTER, "read_only": False}),
    ("C71-flag-0", {"data": (FAKE_POINTER, 0)}, {"read_only": False}),
    ("C71-flag-1", {"data": (FAKE_POINTER, 1)}, {"read_only": True}),
    ("C71-flag-true", {"data": (FAKE_POINTER, True)}, {"read_only": True}),
    ("C71-flag-numpy", {"data": (FAKE_POINTER, np.bool_(True))}, {"read_only": True}),
    ("C67-data-numpy-int", {"data": (np.uint64(FAKE_POINTER), False)}, {"ptr": FAKE_POINTER}),
    ("D7-strides-missing", {"strides": MISSING}, {"byte_strides": (12, 4)}),
    ("C82-strides-list", {"strides": [12, 4]}, {"byte_strides": (12, 4)}),
    ("C82-strides-numpy", {"strides": (np.int64(24), 4)}, {"byte_strides": (24, 4)}),
    ("C80-strides-negative", {"strides": (-12, 4)}, {"elem_strides": (-3, 1)}),
    ("D8-strides-zero", {"strides": (0, 4)}, {"elem_strides": (0, 1)}),
    ("T13-strides-odd-extent-1", {"shape": (1, 3), "strides": (7, 4)}, {"shape": (1, 3)}),
    ("T13-strides-max-extent-1", {"shape": (1, 3), "strides": (2**63 - 1, 4)}, {"shape": (1, 3)}),
    ("D6-strides-odd-size-0", {"shape": (0, 3), "strides": (7, 1)}, {"nbytes": 0}),
    ("T12-strides-empty-0-d", {"shape": (), "strides": ()}, {"byte_strides": ()}),
    ("T3-stream-legacy", {"stream": 1}, {"stream": 1}),
    ("T3-stream-per-thread", {"stream": 2}, {"stream": 2}),
    ("T3-stream-handle", {"stream": 2**63 + 8}, {"stream": 2**63 + 8}),
    ("T3-stream-numpy", {"stream": np.int64(7)}, {"stream": 7}),
    ("T3-stream-missing", {"stream": MISSING}, {"stream": None}),
    ("D12-key-unknown", {"colour": "blue"}, {"shape": (2, 3)}),
]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [pytest.param(changes, expected, id=name) for name, changes, expected in ACCEPTED],
)
def test_accepted(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        view = cd.view(cai(**changes), device_id=0)
    assert {key: getattr(view, key) for key in expected} == expected


def with_fresh_keys(shown: dict[str, Any]) -> dict[str, Any]:
    """Returns the dict with keys that are equal to the literal ones but other objects, as from JSON."""
    return {"".join(list(key)): value for key, value in shown.items()}


FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "fresh-keys": with_fresh_keys,
    "reversed": lambda shown: dict(reversed(shown.items())),
    "subclass": collections.OrderedDict,
    "mapping": types.MappingProxyType,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_the_dict_gets_the_same_answer(form: Callable[[dict[str, Any]], Any]) -> None:
    """The fast path for usual dicts has the same rules as the general one."""
    changes = [{row.key: row.value} for row in ROWS] + [changes for _, changes, _ in ACCEPTED]
    for each in changes:
        shown = interface(**each)
        plain, other = outcome(shown), outcome(form(shown))
        assert plain == other, each


def outcome(shown: Any) -> Any:
    for value in shown.values():
        if isinstance(value, LazyPair):
            value.reads.clear()
    try:
        view = cd.view(Cai(shown), device_id=0)
    except Exception as error:
        return type(error), str(error)
    return view.to_cai()


def test_version_missing_is_refused_by_strict() -> None:
    found = refuse(lambda: cd.view(cai(version=MISSING), device_id=0, strict=True), ValueError)
    check_refusal(found, "version-missing", "version")


def test_c16_a_version_from_the_future_is_accepted_with_a_warning() -> None:
    with pytest.warns(cd.VersionWarning, match="99"):
        view = cd.view(cai(version=99), device_id=0)
    assert view.shape == (2, 3)


def test_c88_stream_0_is_taken_as_1_with_a_warning() -> None:
    class First(Cai):
        pass

    class Second(Cai):
        pass

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        streams = [cd.view(kind(interface(stream=0)), device_id=0).stream for kind in (First, First, Second)]
    assert streams == [1, 1, 1]
    assert [each.category for each in seen] == [cd.StreamWarning] * 3, "how often is for the filters"
    texts = [str(each.message) for each in seen]
    assert "First" in texts[0] and "First" in texts[1]
    assert "Second" in texts[2]
    found = refuse(lambda: cd.view(First(interface(stream=0)), device_id=0, strict=True), ValueError)
    check_refusal(found, "stream-zero", "stream", value="0")


def test_c88_the_warning_turned_into_an_error_is_raised_and_leaks_nothing() -> None:
    class Third(Cai):
        pass

    producer = Third(interface(stream=0))
    with nothing_changes(producer, producer.interface), warnings.catch_warnings():
        warnings.simplefilter("error")
        refuse(lambda: cd.view(producer, device_id=0), cd.StreamWarning)


def test_a_dict_is_accepted_with_its_owner() -> None:
    class Owner:
        pass

    owner = Owner()
    alive = weakref.ref(owner)
    view = cd.view(interface(), owner=owner, device_id=0)
    assert view.owner is owner
    del owner
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(GoodMapping(), id="mapping"),
        pytest.param(types.MappingProxyType(interface()), id="mapping-proxy"),
        pytest.param(collections.UserDict(interface()), id="user-dict"),
        pytest.param(collections.OrderedDict(interface()), id="dict-subclass"),
    ],
)
def test_c10_a_dictionary_like_answer_is_accepted(shown: object) -> None:
    assert cd.view(Cai(shown), device_id=0).shape == (2, 3)


def test_an_instance_attribute_is_as_good_as_a_property() -> None:
    producer = types.SimpleNamespace(__cuda_array_interface__=interface())
    assert cd.view(producer, device_id=0).shape == (2, 3)


@every_entry
def test_the_attribute_is_read_exactly_once(entry: Callable[[object], object], machine: Machine) -> None:
    producer = cai(data=(machine.device_memory(24), False))
    entry(producer)
    assert producer.reads == 1


def test_the_dict_is_a_snapshot() -> None:
    shown = interface()
    view = cd.view(Cai(shown), device_id=0)
    shown["shape"] = (9, 9)
    shown["data"] = (0, True)
    assert (view.shape, view.ptr, view.read_only) == ((2, 3), FAKE_POINTER, False)


def test_values_that_change_the_dict_while_it_is_read_do_no_harm() -> None:
    shown: dict[str, Any] = {}

    class Saboteur:
        def __index__(self) -> int:
            shown.clear()
            gc.collect()
            return 2

    shown.update(interface(shape=(Saboteur(), 3)))
    with refused_or_accepted():
        cd.view(Cai(shown), device_id=0)


def test_a_shape_that_shrinks_while_it_is_read_does_no_harm() -> None:
    shape: list[Any] = []

    class Saboteur:
        def __index__(self) -> int:
            shape.clear()
            return 2

    shape.extend([Saboteur(), Saboteur(), Saboteur()])
    for changes in ({"shape": shape}, {"shape": (2, 3), "strides": shape}):
        with refused_or_accepted():
            cd.view(cai(**changes), device_id=0)


def test_refusals_leak_nothing() -> None:
    """Every row 200 times: the interpreter holds as many blocks afterwards as before."""
    producers = [(cai(**{row.key: row.value}), row.raises) for row in ROWS]

    def every_row(times: int) -> None:
        for producer, raises in producers:
            for _ in range(times):
                with contextlib.suppress(raises):
                    cd.view(producer, device_id=0)

    grown = blocks_grown(every_row, 200)
    assert grown < 200, f"{grown} blocks more after {200 * len(producers)} refusals"


# --- rows that ask the driver --------------------------------------------------------------------


def test_c72_a_pointer_unknown_to_the_driver(machine: Machine) -> None:
    block, pointer = host_memory(64)
    producer = cai(data=(pointer, False))
    with nothing_changes(producer, producer.interface):
        found = refuse(lambda: cd.view(producer), BufferError)
    check_refusal(found, "pointer-unknown", "data")
    assert len(block) > 64


def test_c73_an_unmapped_pointer(machine: Machine) -> None:
    pointer = machine.device_memory(64)
    machine.free(pointer)
    found = refuse(lambda: cd.view(cai(data=(pointer, False))), BufferError)
    check_refusal(found, "pointer-unknown", "data")
    assert str(pointer) in found.message or hex(pointer) in found.message


def test_c74_the_extent_leaves_its_allocation(machine: Machine) -> None:
    pointer = machine.device_memory(24)
    assert cd.view(cai(data=(pointer, False)), check="bounds").ptr == pointer
    producer = cai(shape=(2, 4096), data=(pointer, False))
    assert cd.view(producer, check="device").ptr == pointer
    found = refuse(lambda: cd.view(producer, check="bounds"), BufferError)
    check_refusal(found, "out-of-bounds", "data")


def test_c80_a_negative_stride_below_the_start_of_the_allocation(machine: Machine) -> None:
    pointer = machine.device_memory(24)
    inside = cai(data=(pointer + 12, False), strides=(-12, 4))
    assert cd.view(inside, check="bounds").elem_strides == (-3, 1)
    outside = cai(data=(pointer, False), strides=(-12, 4))
    found = refuse(lambda: cd.view(outside, check="bounds"), BufferError)
    check_refusal(found, "out-of-bounds", "data")


def test_c93_a_destroyed_stream_is_a_driver_error(machine: Machine) -> None:
    stream, other = machine.stream(), machine.stream()
    view = cd.view(cai(data=(machine.device_memory(24), False), stream=stream))
    machine.destroy_stream(stream)
    with pytest.raises(cd.DriverError) as caught:
        view.__dlpack__(stream=other, max_version=(1, 3))
    error = caught.value
    assert isinstance(error, RuntimeError)
    assert error.call.startswith("cu")
    assert error.code == 400
    assert error.name == "CUDA_ERROR_INVALID_HANDLE"
    assert error.call in str(error)
    assert error.name in str(error)
    assert "400" in str(error)


def test_c94_a_ready_stream_of_another_device_is_accepted(machine: Machine) -> None:
    here, there = machine.stream(ordinal=0), machine.stream(ordinal=1)
    view = cd.view(cai(data=(machine.device_memory(24, ordinal=0), False), stream=there))
    assert view.device == (2, 0)
    machine.clear()
    view.__dlpack__(stream=here, max_version=(1, 3))
    assert machine.order() == one_event(there, here)


@pytest.mark.parametrize("field", [["", "<f4"], "<f", None, 7, ("",), ("", "<f4", (), ())], ids=repr)
def test_a_sole_field_that_is_no_tuple_of_two_or_three(field: Any) -> None:
    """Beside a type that is read fast, of which CuPy repeats the typestr by a field without a name."""
    error, rule = (ValueError, "descr-syntax") if isinstance(field, tuple) else (TypeError, "descr-type")
    check_refusal(refuse(lambda: cd.view(cai(descr=[field]), device_id=0), error), rule, "descr")
