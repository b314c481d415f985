"""NumPy's arrays that NumPy itself refuses to export: with the dtype that is meant, or refused with a remedy."""

from __future__ import annotations

import gc
import itertools
import sys
from functools import partial
from typing import Any, cast

import cai_dlpack as cd
import cai_example
import ml_dtypes
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.expectations import oracle
from conformance.tests.expectations.refusal import check_refusal, refuse

IS_SUBBYTE_PADDED = 4
EXTRA = [name for name in oracle.WITHOUT_TYPESTR if hasattr(ml_dtypes, name)]


def bytes_of(array: Any) -> bytes:
    return bytes(np.ascontiguousarray(array).view("u1").tobytes())


def filled(name: str) -> np.ndarray[Any, Any]:
    """2 x 3 elements of distinct bytes."""
    kind = np.dtype(getattr(ml_dtypes, name))
    zeros = np.zeros((2, 3), kind)
    ones = np.ones((2, 3), kind)
    return np.where(np.arange(6).reshape(2, 3) % 2 == 0, ones, zeros).astype(kind)


@pytest.mark.parametrize("name", EXTRA)
def test_a_type_of_ml_dtypes_comes_as_it_is(name: str) -> None:
    array = filled(name)
    with pytest.raises(BufferError):
        np.from_dlpack(array)
    for made in (array, array.T, array[:, ::2], array[::-1], array[:0], array[0, 0:1], array.reshape(2, 1, 3)):
        view = cd.view(made)
        assert (view.dtype.name, view.shape, view.device) == (name, made.shape, (1, 0))
        assert view.ptr == (made.ctypes.data if made.size else 0)
        assert (view.stream, view.producer_stream, view.read_only) == (None, None, False)
        assert view.owner is made
        tensor = abi.read(view.__dlpack__(max_version=(1, 3)))
        code, bits = oracle.WITHOUT_TYPESTR[name]
        assert tensor.dtype == (code, bits, 1)
        assert tensor.flags == (IS_SUBBYTE_PADDED if bits < 8 else 0)
        # Read back by NumPy, as the type that it was.
        again = np.asarray(view)
        assert (again.dtype, again.shape, bytes_of(again)) == (made.dtype, made.shape, bytes_of(made))
        if made.size:
            assert again.ctypes.data == made.ctypes.data
            assert again.strides == made.strides


@pytest.mark.parametrize("name", [*EXTRA, "M8[s]", "S3", "f4", [("x", "i4")]])
@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((1, 4, 4, 2), (1, 8, 2, 32)),
        ((3, 1), (1, 77)),
        ((1, 1), (5, 9)),
        ((1,), (7,)),
        ((0, 3), (77, 5)),
        ((2, 0), (3, 9)),
    ],
)
def test_strides_that_lead_nowhere_arrive(name: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """NumPy's dict has None for each of these that is contiguous, and `strides` as they are."""
    kind = np.dtype(getattr(ml_dtypes, name, name) if isinstance(name, str) else name)
    steps = [step * kind.itemsize for step in strides]
    array: Any = np.ndarray(shape, kind, bytearray(512 * kind.itemsize), 0, steps)
    view = cd.view(array)
    assert view.byte_strides == array.strides
    if array.size or name not in EXTRA:
        # Of those of ml_dtypes NumPy reads the bits by DLPack, and drops the strides of an array without elements.
        assert np.asarray(view).strides == array.strides
        assert np.asarray(cd.view(view)).strides == array.strides


@pytest.mark.parametrize("name", EXTRA)
def test_it_is_read_only_and_alive_as_the_array_is(name: str) -> None:
    array = filled(name)
    array.setflags(write=False)
    view = cd.view(array)
    assert view.read_only
    assert not np.asarray(view).flags.writeable
    del array
    gc.collect()
    assert view.owner.dtype.name == name
    owner = view.owner
    before = sys.getrefcount(owner)
    del view
    gc.collect()
    assert sys.getrefcount(owner) == before - 1
    assert not cd.view(owner, read_only=False).read_only


def test_the_keywords_hold_for_it_too() -> None:
    array = filled("bfloat16")
    bits = cd.view(array, dtype="uint16", shape=(6,))
    assert (np.from_dlpack(bits) == array.view("u2").ravel()).all()
    assert cd.view(array, dtype=ml_dtypes.bfloat16, shape=(3, 2)).shape == (3, 2)
    other = object()
    before = sys.getrefcount(other)
    view = cd.view(array, owner=other)
    assert sys.getrefcount(other) == before + 1
    del view
    gc.collect()
    assert sys.getrefcount(other) == before
    found = refuse(lambda: cd.view(array, dtype="float16"), BufferError)
    check_refusal(found, "dtype-override", "dtype", value="float16", hint="bfloat16")
    padded = cd.view(filled("int4"), dtype="uint8")
    assert np.from_dlpack(padded).tolist() == filled("int4").astype("u1").tolist()
    assert abi.read(padded.__dlpack__(max_version=(1, 3))).flags == 0


def test_every_door_takes_it() -> None:
    array = filled("bfloat16")
    capsule = abi.read(cd.to_dlpack(array, max_version=(1, 3)))
    assert (capsule.dtype, capsule.data) == ((abi.BFLOAT, 16, 1), array.ctypes.data)
    check_refusal(refuse(lambda: cai_example.zero(array), TypeError), "view-dtype", None, value="bfloat16")


@pytest.mark.parametrize("name", ["int4", "uint2", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "uint1"])
def test_packed_elements_come_from_bytes(name: str) -> None:
    code, bits = oracle.WITHOUT_TYPESTR[name]
    packed = np.arange(24, dtype="u1").reshape(4, 6)
    view = cd.view(packed, dtype=name, shape=(2, 96 // bits))
    tensor = abi.read(view.__dlpack__(max_version=(1, 3)))
    assert (tensor.dtype, tensor.shape, tensor.flags) == ((code, bits, 1), (2, 96 // bits), 0)
    assert (view.ptr, view.nbytes, view.itemsize) == (packed.ctypes.data, 24, None)
    back = cd.view(view, dtype="uint8", shape=(4, 6))
    assert np.from_dlpack(back).tolist() == packed.tolist()
    found = refuse(lambda: cd.view(packed, dtype=name), BufferError)
    check_refusal(found, "dtype-override", "dtype", value=name, hint="shape=")
    found = refuse(lambda: cd.view(packed[:, ::2], dtype=name, shape=(96 // bits,)), BufferError)
    check_refusal(found, "shape-override", "shape", hint="not contiguous")
    found = refuse(lambda: np.asarray(view), TypeError)
    check_refusal(found, "array-unreadable", "object", hint="dtype='uint8'")


# --- the other byte order -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in EXTRA if np.dtype(getattr(ml_dtypes, name)).itemsize == 1])
def test_one_byte_has_no_order(name: str) -> None:
    native = filled(name)
    for order in "<>=":
        array = native.astype(native.dtype.newbyteorder(order))
        view = cd.view(array)
        assert (view.dtype.name, view.ptr) == (name, array.ctypes.data)
        again = np.asarray(view)
        assert (again.dtype, bytes_of(again)) == (native.dtype, bytes_of(native))


WIDE = [name for name in EXTRA if np.dtype(getattr(ml_dtypes, name)).itemsize > 1]


@pytest.mark.parametrize("name", WIDE)
def test_swapped_bytes_of_ml_dtypes_are_not_read_as_the_type(name: str) -> None:
    """NumPy writes `>V2` for bfloat16 alone of its types, so that the order means something."""
    native = filled(name)
    array = native.astype(native.dtype.newbyteorder("S"))
    written = array.__array_interface__["typestr"]
    if written[1] != "V":
        assert refuse(lambda: cd.view(array), BufferError).rule == "producer-dtype"
        return
    for door in (cd.to_dlpack, cd.from_dlpack):
        check_refusal(refuse(lambda: door(array), BufferError), "typestr-byte-order", "typestr", value=written)  # noqa: B023
    for presented in (name, "uint16", ml_dtypes.bfloat16):
        found = refuse(lambda: cd.view(array, dtype=presented), BufferError)  # noqa: B023
        check_refusal(found, "typestr-byte-order", "typestr", value=written)
    view = cd.view(array)
    assert (str(view.dtype), view.__array_interface__["typestr"]) == (written, written)
    check_refusal(refuse(view.__dlpack__, BufferError), "typestr-byte-order", "typestr", value=written)
    assert "[typestr-byte-order]" in (cd.explain(array, to="numpy").refused or "")
    assert bytes_of(np.asarray(view)) == bytes_of(array)


# --- refused, with a remedy -----------------------------------------------------------------------------------

SWAPPED = np.dtype("f4").newbyteorder().str
REFUSED: list[Any] = [
    (np.zeros(3, "M8[ns]"), "typestr-datetime", "typestr", "<M8[ns]", "dtype='int64'"),
    (np.zeros(3, "m8[us]"), "typestr-datetime", "typestr", "<m8[us]", "dtype='int64'"),
    (np.zeros(3, SWAPPED), "typestr-byte-order", "typestr", SWAPPED, "native copy"),
    (np.zeros(3, "S4"), "typestr-bytes", "typestr", "|S4", "'|u1'"),
    (np.zeros(3, "U4"), "typestr-unicode", "typestr", "<U4", "'<u4'"),
    (np.zeros(3, "O"), "typestr-object", "typestr", "|O", "numbers"),
    (np.zeros(3, "V3"), "typestr-void", "typestr", "|V3", "dtype="),
    (np.zeros(3, "g"), "typestr-long-double", "typestr", "<f16", "float64"),
    (np.zeros(3, [("a", "i1"), ("b", "f4")])["b"], "strides-multiple", "strides", "5", None),
]


@pytest.mark.parametrize(("array", "rule", "field", "value", "hint"), REFUSED, ids=lambda each: str(each)[:18])
def test_refused_with_a_remedy(array: Any, rule: str, field: str, value: str, hint: str | None) -> None:
    for door in (
        lambda each: cd.view(each).__dlpack__(),
        cd.to_dlpack,
        cd.from_dlpack,
        lambda each: cd.split_masked(each)[0].__dlpack__(),
    ):
        found = refuse(lambda each=door: each(array), BufferError)  # type: ignore[misc]
        check_refusal(found, rule, field, value=value, hint=hint)
        assert f"__array_interface__['{field}']" in found.message
        assert "__cuda" not in found.message


@pytest.mark.parametrize(
    "array", [each[0] for each in REFUSED if each[1] != "typestr-object"], ids=lambda each: each.dtype.str
)
def test_they_leave_by_the_array_interface(array: Any) -> None:
    for whole in (array, array[::2], array[::-1], np.broadcast_to(array, (2, 3)), array[:0]):
        view = cd.view(whole)
        assert not hasattr(view, "__cuda_array_interface__")
        for back in (np.asarray(view), view.__array__(), np.array(view, copy=False)):
            assert (back.dtype, back.shape) == (whole.dtype, whole.shape)
            assert back.size == 0 or (back.ctypes.data, back.strides) == (whole.ctypes.data, whole.strides)
            assert back.flags.writeable == whole.flags.writeable
        assert np.dtype(view.dtype) == whole.dtype == view.dtype


def test_records_leave_by_the_array_interface() -> None:
    kind = np.dtype([("x", "<f4"), ("t", "M8[ns]"), ("s", "S3"), ("n", [("a", ">i2", (2,))])])
    records = np.zeros((2, 3), kind)
    records["x"] = np.arange(6).reshape(2, 3)
    back = np.asarray(cd.view(records))
    assert (back.dtype, back.ctypes.data, back["x"].tolist()) == (kind, records.ctypes.data, records["x"].tolist())
    back["x"][1, 1] = 7
    assert records["x"][1, 1] == 7
    records.flags.writeable = False
    assert not np.asarray(cd.view(records)).flags.writeable
    aligned = np.zeros(2, np.dtype([("a", "u1"), ("b", "<f8")], align=True))
    assert cd.view(aligned).__array__().dtype == aligned.dtype


def test_what_numpy_alone_knows_is_refused_by_rule_with_numpys_words() -> None:
    kind = np.dtypes.StringDType()
    with pytest.raises(BufferError, match="DLPack only supports") as refused:
        cd.view(np.zeros(3, kind))
    assert refused.value.rule == "producer-dtype"  # type: ignore[attr-defined]
    assert str(kind) in str(refused.value)
    assert isinstance(refused.value.__cause__, BufferError)


def test_complex_numbers_of_bfloat16_come_and_go() -> None:
    array = np.arange(6).astype(ml_dtypes.bcomplex32).reshape(2, 3)[:, ::2]
    view = cd.view(array)
    assert view.dtype == "bcomplex32" and (view.shape, view.ptr) == ((2, 2), array.ctypes.data)
    back = np.asarray(view)
    assert back.dtype == array.dtype and back.ctypes.data == array.ctypes.data and (back == array).all()


def test_the_remedy_is_accepted() -> None:
    dates = np.array(["2026-01-02", "2026-01-03"], "M8[ns]")
    ticks = cd.view(dates, dtype="int64")
    assert np.from_dlpack(ticks).tolist() == dates.view("i8").tolist()
    assert ticks.ptr == dates.ctypes.data
    raw = np.zeros(3, "V4")
    assert cd.view(raw, dtype="float32").dtype == np.float32


def test_records_have_fields() -> None:
    kind = np.dtype([("x", "<f4"), ("id", "<i8"), ("t", "M8[s]"), ("pad", "i4")], align=True)
    records = np.zeros((2, 3), kind)
    records["x"] = np.arange(6).reshape(2, 3)
    view = cd.view(records)
    assert (view.fields, view.shape, view.owner, view.device) == (("x", "id", "t", "pad"), (2, 3), records, (1, 0))
    found = np.from_dlpack(view.field("x"))
    assert found.tolist() == records["x"].tolist()
    assert (found.ctypes.data, found.strides) == (records["x"].ctypes.data, records["x"].strides)
    assert np.from_dlpack(view.field("t", dtype="int64")).shape == (2, 3)
    for door in (view.__dlpack__, lambda: cd.to_dlpack(records), lambda: cai_example.zero(records)):
        assert refuse(door, BufferError).rule == "descr-fields"
    assert cd.view(np.rec.array(records)).fields == view.fields
    assert cd.view(records[:0]).fields == view.fields


def test_a_refusal_by_another_producer_passes_through() -> None:
    """NumPy's arrays alone: the refusal of another producer may have a reason that its interface does not tell."""

    class Other:
        def __init__(self) -> None:
            self.array = np.zeros(3)
            self.__array_interface__ = self.array.__array_interface__

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **_: Any) -> object:
            raise BufferError("mine")

    with pytest.raises(BufferError, match="mine"):
        cd.view(Other())

    class Sub(np.ndarray):
        def __dlpack__(self, **_: Any) -> Any:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        cd.view(np.zeros(3).view(Sub))
    assert cd.view(filled("int4").view(type("Sub", (np.ndarray,), {}))).dtype == "int4"


# --- masks ----------------------------------------------------------------------------------------------------

MASKED = np.ma.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], mask=np.array([[0, 1, 0], [0, 0, 1]], bool))


@pytest.mark.parametrize("door", [cd.view, cd.to_dlpack, cd.from_dlpack, cai_example.zero])
def test_a_mask_is_not_dropped(door: Any) -> None:
    for array in (MASKED, MASKED.T, MASKED[:0], MASKED[0, 1:2], np.ma.array([1], mask=[False]), np.ma.masked):
        assert array.mask is not np.ma.nomask
        found = refuse(lambda each=array: door(each), BufferError)  # type: ignore[misc]
        check_refusal(found, "mask-present", "object", hint="cd.split_masked(obj)")
    assert "mask-present" in (cd.explain(MASKED).refused or "")


def test_without_a_mask_it_is_an_array() -> None:
    plain = np.ma.array([1.0, 2.0])
    assert plain.mask is np.ma.nomask
    assert cd.view(plain).ptr == cd.from_dlpack(plain).ptr == plain.ctypes.data
    assert cd.explain(plain).refused is None
    values, mask = cd.split_masked(plain)
    assert (values.ptr, mask) == (plain.ctypes.data, None)
    assert cd.view(np.ma.array([1.0, 2.0]).astype(ml_dtypes.bfloat16)).dtype == "bfloat16"


SPLIT: list[Any] = [
    *(MASKED, MASKED.T, MASKED[:, ::2], MASKED[:0], MASKED.astype("i2")),
    *(np.ma.masked, np.ma.array(np.ma.masked, mask=True)),
]


@pytest.mark.parametrize("array", SPLIT)
def test_split_masked_of_numpys_masked_array(array: Any) -> None:
    for form in ("auto", "byte"):
        values, mask = cd.split_masked(array, mask=form)
        assert mask is not None
        assert values.ptr == (array.data.ctypes.data if array.size else 0)
        assert values.dtype == array.dtype
        assert (mask.dtype.name, mask.shape) == ("bool", array.shape)
        assert (np.from_dlpack(values) == array.data).all()
        # Not 0 is valid, as in every other pair; NumPy's own mask says the opposite.
        assert (np.from_dlpack(mask) == ~np.ma.getmaskarray(array)).all()
        assert mask.read_only
    found = refuse(lambda: cd.split_masked(array, mask="bit"), TypeError)
    check_refusal(found, "mask-type", "mask", hint="of bytes")


def test_split_masked_of_types_that_numpy_does_not_export() -> None:
    array = np.ma.array(filled("bfloat16"), mask=np.array([[0, 1, 0], [1, 0, 0]], bool))
    values, mask = cd.split_masked(array)
    assert values.dtype == "bfloat16"
    assert mask is not None
    assert np.from_dlpack(mask).tolist() == [[True, False, True], [False, True, True]]


def test_masked_records_are_split_by_field() -> None:
    records = np.ma.array(
        np.zeros(2, [("x", "f4"), ("y", "f4")]), mask=np.array([(0, 1), (1, 0)], [("x", "?"), ("y", "?")])
    )
    found = refuse(lambda: cd.split_masked(records), BufferError)
    check_refusal(found, "mask-dtype", "object", hint="one field")
    values, mask = cd.split_masked(records["y"])
    assert mask is not None
    assert (values.byte_strides, np.from_dlpack(mask).tolist()) == ((8,), [False, True])


def test_split_masked_of_an_array_without_a_mask() -> None:
    array = np.arange(6.0).reshape(2, 3)
    values, mask = cd.split_masked(array)
    assert (values.ptr, values.shape, mask) == (array.ctypes.data, (2, 3), None)
    values, mask = cd.split_masked(cd.view(array))
    assert (values.ptr, mask) == (array.ctypes.data, None)
    check_refusal(refuse(lambda: cd.split_masked(cast(Any, [1, 2])), TypeError), "protocol-missing", "object")


def test_a_masked_array_is_refused_by_what_is_in_the_way() -> None:
    objects = np.ma.array(np.array([1, None], object), mask=[False, True])
    records = np.ma.array(np.zeros(2, [("x", "<f4"), ("y", "<f8")]), mask=[(False, True), (False, False)])
    doors: list[Any] = [cd.view, cd.from_dlpack]
    for door in doors:
        check_refusal(refuse(partial(door, objects), BufferError), "typestr-object", "dtype")
        found = refuse(partial(door, records), BufferError)
        check_refusal(found, "mask-present", "object", hint="cd.split_masked(obj['name'])")


@pytest.mark.parametrize("kind", ["<f8", "padded", "S0", "text", "strided"])
def test_asarray_converts_as_it_does_an_array_of_numpys(kind: str) -> None:
    """`dtype=` with each `copy=`: the same values, the same refusals, and memory of its own if NumPy's has."""
    padded = np.dtype({"names": ["a"], "formats": ["<f4"], "offsets": [0], "itemsize": 8})
    texts = np.dtype([("a", "<f4"), ("b", "S0")])
    array: Any = {
        "<f8": np.arange(3.0),
        "padded": np.ones(2, padded),
        "S0": np.ones(2, texts),
        "text": np.array(["ab", "c"]),
        "strided": np.arange(6.0)[::2],
    }[kind]
    wanted: list[Any] = [array.dtype, "<f4", np.dtype([("a", "<f8")]), "U4"]
    view = cd.view(array)
    assert np.dtype(view.dtype) == array.dtype == view.dtype
    for dtype, copy in itertools.product(
        wanted, [None, True, False] if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else [None]
    ):
        given = {} if copy is None else {"copy": copy}

        def made(source: Any, dtype: Any = dtype, given: Any = given) -> Any:
            try:
                return np.asarray(source, dtype=dtype, **given)
            except (TypeError, ValueError) as error:
                return type(error)

        theirs, ours = made(array), made(view)
        if isinstance(theirs, type):
            assert ours is theirs, (dtype, copy)
        else:
            assert ours.dtype == theirs.dtype and ours.tolist() == theirs.tolist(), (dtype, copy)
            assert np.shares_memory(ours, array) == np.shares_memory(theirs, array), (dtype, copy)
            direct = view.__array__(dtype, **given)
            assert direct.tolist() == theirs.tolist(), (dtype, copy)
