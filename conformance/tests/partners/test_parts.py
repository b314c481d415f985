"""Fields of records and masks: what DLPack has no words for, taken apart."""

from __future__ import annotations

import ctypes
from typing import Any

import cai_dlpack as cd
import cai_example
import numba.cuda
import numpy as np
import pytest
import tvm_ffi
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import Cai, cai, interface
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.simulated.machine import Machine

RECORD = np.dtype([("x", "<f4"), ("id", "<i4"), ("rgba", "u1", (4,)), ("pos", [("a", "<f2"), ("b", "<f2")])])


OFFSETS = {"x": 0, "id": 4, "rgba": 8}


def put(machine: Machine, values: np.ndarray[Any, Any]) -> int:
    pointer = machine.device_memory(max(values.nbytes, 1))
    machine.write(pointer, values.tobytes())
    return pointer


def host_copy(view: Any) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = np.from_dlpack(view, device="cpu")
    return found


# --- fields ---------------------------------------------------------------------------------------------


@pytest.fixture
def records(machine: Machine) -> tuple[np.ndarray[Any, Any], Cai]:
    values = np.zeros((3, 5), RECORD)
    values["x"] = np.arange(15).reshape(3, 5)
    values["id"] = -values["x"]
    values["rgba"] = np.arange(60).reshape(3, 5, 4)
    values["pos"]["b"] = 0.5
    said = interface(shape=(3, 5), typestr="|V16", descr=RECORD.descr, data=(put(machine, values), False))
    return values, Cai(said)


@pytest.mark.parametrize("name", ["x", "id", "rgba"])
def test_a_field_is_a_strided_view(name: str, records: tuple[np.ndarray[Any, Any], Cai]) -> None:
    values, producer = records
    view = cd.view(producer).field(name)
    want = values[name]
    assert (view.shape, view.byte_strides, view.dtype.name) == (want.shape, want.strides, str(want.dtype))
    assert view.ptr == producer.interface["data"][0] + OFFSETS[name]
    assert view.owner is producer
    assert host_copy(view).tolist() == want.tolist()


def test_a_field_of_a_struct_within(records: tuple[np.ndarray[Any, Any], Cai]) -> None:
    values, producer = records
    within = cd.view(producer).field("pos")
    assert (within.fields, within.dtype.name, within.byte_strides) == (("a", "b"), "void32", (80, 16))
    assert host_copy(within.field("b")).tolist() == values["pos"]["b"].tolist()
    check_refusal(refuse(within.__dlpack__, BufferError), "descr-fields", "descr", value="'a', 'b'")


def test_fields_that_cannot_be(records: tuple[np.ndarray[Any, Any], Cai]) -> None:
    view = cd.view(records[1])
    found = refuse(lambda: view.field("y"), ValueError)
    check_refusal(found, "field-unknown", "name", value="'y'", hint="'x', 'id', 'rgba', 'pos'")
    check_refusal(refuse(lambda: cd.view(cai(), device_id=0).field("x"), BufferError), "field-none", "name")
    assert cd.view(cai(), device_id=0).fields == ()
    odd = cd.view(Cai(interface(shape=(2,), typestr="|V6", descr=[("a", "<f4"), ("b", "<i2")])), device_id=0)
    for part in (odd.field("a").__dlpack__, lambda: odd.field("a", dtype="float32")):
        check_refusal(refuse(part, BufferError), "field-stride", "descr", value="field 'a'")
    assert odd.field("a").to_cai()["strides"] == odd.field("a").byte_strides == (6,)
    assert odd.field("a").elem_strides is None
    swapped = cd.view(Cai(interface(shape=(2,), typestr="|V8", descr=[("a", ">f4"), ("b", "<f4")])), device_id=0)
    found = refuse(swapped.field("a").__dlpack__, BufferError)
    check_refusal(found, "typestr-byte-order", "descr", value="'>f4' of field 'a'")
    assert swapped.field("a").to_cai()["typestr"] == ">f4"
    assert swapped.field("b").byte_strides == (8,)
    huge = Cai(interface(shape=(2,), typestr="|V99999996", descr=[("a", "<f4"), ("b", "|u1", (99999992,))]))
    assert cd.view(huge, device_id=0).field("a").elem_strides == (24999999,)


def test_fields_without_a_name_are_named_by_their_place() -> None:
    descr: Any = [("", "<f4"), ("", "|V4"), ("", "<i2", (2,)), ("x", [("", "|u1"), ("y", "|u1")])]
    view = cd.view(Cai(interface(shape=(2,), typestr="|V14", descr=descr)), device_id=0)
    assert (view.fields, view.field("x").fields) == (("f0", "f2", "x"), ("f0", "y"))
    assert view.field("f2").shape == (2, 2)
    names = np.dtype(view.to_cai()["descr"]).names
    assert names == np.dtype(descr).names == ("f0", "f1", "f2", "x")
    one = cd.view(Cai(interface(shape=(2,), typestr="|V4", descr=[("", "<f4")])), device_id=0)
    assert (one.fields, one.field("f0").dtype.name) == (("f0",), "float32")
    for twice in ([("x", "<f4"), ("x", "<f4")], [("f1", "<f4"), ("", "<f4")], [("n", [("a", "<i4"), ("a", "<i4")])]):
        with pytest.raises(ValueError, match="more than once"):
            np.dtype(twice)
        found = refuse(lambda each=twice: cd.view(cai(typestr="|V8", descr=each), device_id=0), ValueError)  # type: ignore[misc]
        check_refusal(found, "descr-names", "descr")


def test_a_field_whose_type_the_caller_names(machine: Machine) -> None:
    said = interface(shape=(2,), typestr="|V16", descr=[("t", "<M8[ns]"), ("w", "<V2"), ("", "|V6")])
    view = cd.view(Cai(said), device_id=0)
    assert view.fields == ("t", "w")
    found = refuse(view.field("t").__dlpack__, BufferError)
    check_refusal(found, "typestr-datetime", "typestr", value="<M8[ns]", hint="dtype='int64'")
    assert view.field("t").to_cai()["typestr"] == "<M8[ns]"
    assert view.field("t", dtype="int64").dtype == "int64"
    assert (view.field("w", dtype="bfloat16").dtype.name, view.field("w", dtype="<u2").ptr) == (
        "bfloat16",
        view.ptr + 8,
    )


def test_the_whole_leaves_by_cai_alone(records: tuple[np.ndarray[Any, Any], Cai], machine: Machine) -> None:
    view = cd.view(records[1])
    assert (view.dtype.name, view.itemsize, view.nbytes, view.shape) == ("void128", 16, 240, (3, 5))
    table = exchange.table_of(cd.CaiView)
    owning, borrow = exchange.FromObject(table.from_object), exchange.Borrow(table.borrow)
    exports: list[Any] = [
        view.__dlpack__,
        lambda: view.__dlpack__(max_version=(1, 3), copy=True),
        lambda: view.__dlpack__(dl_device=(1, 0)),
        lambda: cd.to_dlpack(view),
        lambda: cd.to_dlpack(records[1]),
        lambda: tvm_ffi.from_dlpack(view),
        lambda: owning(id(view), ctypes.byref(ctypes.c_void_p())),
        lambda: borrow(id(view), ctypes.byref(abi.DLTensor())),
        lambda: np.from_dlpack(view, device="cpu"),
        cd.view(view).__dlpack__,
        view.on(machine.stream()).__dlpack__,
        view.synchronize().__dlpack__,
    ]
    for export in exports:
        found = refuse(export, BufferError)
        check_refusal(found, "descr-fields", "descr", value="fields 'x', 'id', 'rgba', 'pos'", hint=".field('name')")
    wanted = {**records[1].interface, "stream": None, "strides": None, "version": 3}
    assert view.__cuda_array_interface__ == view.to_cai() == wanted
    for derived in (cd.view(view), view.synchronize(), view.present_as("cuda")):
        assert derived.to_cai() == wanted
    with view.consume(machine.stream()) as lent:
        assert lent.to_cai()["descr"] == RECORD.descr
        check_refusal(refuse(lent.__dlpack__, BufferError), "descr-fields", "descr")
        part = lent.field("x")
    check_refusal(refuse(lambda: lent.field("x"), BufferError), "scope-ended", "object")
    check_refusal(refuse(part.__dlpack__, BufferError), "scope-ended", "object")
    for ended in (lent.to_cai, lambda: lent.__cuda_array_interface__, lent.__dlpack__):
        check_refusal(refuse(ended, BufferError), "scope-ended", "object")


def test_a_struct_that_the_host_reads_is_numpys(machine: Machine) -> None:
    said = interface(shape=(2,), typestr="|V8", descr=[("a", "<f4"), ("b", "<f4")])
    view: Any = cd.view(Cai({**said, "data": (machine.managed_memory(16), False)}))
    check_refusal(refuse(lambda: memoryview(view), TypeError), "buffer-items", "object", hint="view.field('name')")
    for array in (np.asarray(view), np.asarray(view.present_as("host")), view.__array__()):
        assert (array.dtype, array.ctypes.data) == (np.dtype(said["descr"]), view.ptr)
    objects = interface(shape=(2,), typestr="|V8", descr=[("a", "|O8")], data=(machine.managed_memory(16), False))
    check_refusal(refuse(lambda: cd.view(Cai(objects)), BufferError), "typestr-object", "descr", value="'a'")
    assert np.asarray(view.field("b")).shape == np.asarray(view.present_as("host").field("b")).shape == (2,)
    assert view.present_as("cuda").fields == ("a", "b")


def test_a_struct_is_presented_as_one_number(machine: Machine) -> None:
    said = interface(shape=(2,), typestr="|V8", descr=[("a", "<f4"), ("b", "<f4")])
    for view in (
        cd.view(Cai(said), device_id=0, dtype="uint64"),
        cd.view(cd.view(Cai(said), device_id=0), dtype="uint64"),
    ):
        assert (view.dtype.name, view.fields, view.to_cai()["typestr"]) == ("uint64", (), "<u8")


def test_a_field_keeps_stream_owner_and_flag(machine: Machine) -> None:
    ready = machine.stream()
    said = interface(shape=(2,), typestr="|V8", descr=[("a", "<f4"), ("b", "<f4")], stream=ready)
    source = Cai({**said, "data": (machine.device_memory(16), True)})
    field = cd.view(source, check="bounds").field("b")
    assert (field.stream, field.producer_stream, field.owner, field.read_only) == (ready, ready, source, True)
    short = Cai({**said, "data": (machine.device_memory(8), True)})
    check_refusal(refuse(lambda: cd.view(short, check="bounds"), BufferError), "out-of-bounds", "data")


def test_numbas_records(machine: Machine) -> None:
    """Their dict has no `descr`: the array's own dtype names the fields, padding and all."""
    record = np.dtype([("x", "<f4"), ("id", "u1"), ("pair", "<i4", (2,))], align=True)
    values = np.zeros(6, record)
    values["x"], values["pair"] = np.arange(6), np.arange(12).reshape(6, 2)
    array = numba.cuda.to_device(values)
    assert "descr" not in array.__cuda_array_interface__
    view = cd.view(array)
    assert (view.fields, view.itemsize) == (("x", "id", "pair"), record.itemsize)
    for name in view.fields:
        assert host_copy(view.field(name)).tolist() == values[name].tolist()
    taken = numba.cuda.as_cuda_array(view.field("x"))
    assert taken.copy_to_host().tolist() == values["x"].tolist()
    whole = numba.cuda.as_cuda_array(view)
    assert whole.device_ctypes_pointer.value == view.ptr
    assert (whole.copy_to_host().view(record) == values).all()
    assert tvm_ffi.from_dlpack(view.field("pair")).shape == (6, 2)
    assert host_copy(cd.view(array[::2]).field("x")).tolist() == [0, 2, 4]
    nested = numba.cuda.to_device(np.zeros(3, [("p", [("a", "<f8"), ("b", "<f8")])]))
    assert cd.view(nested).field("p").field("b").byte_strides == (16,)


def test_an_own_dtype_of_another_size_is_not_believed(machine: Machine) -> None:
    class Odd(Cai):
        dtype = np.dtype([("a", "<f4")])

    odd = Odd(interface(shape=(2,), typestr="|V8"))
    check_refusal(refuse(lambda: cd.view(odd, device_id=0), ValueError), "descr-size", "descr")


def test_explain_of_a_struct(records: tuple[np.ndarray[Any, Any], Cai]) -> None:
    for what in (records[1], cd.view(records[1])):
        told = cd.explain(what)
        assert told.refused is None and "[descr-fields]" in str(told)
        assert cd.explain(what, to="numba").refused is None
        told = cd.explain(what, to="torch")
        assert told.route in {"cai", "view"}
        assert told.refused is not None and "descr-fields" in told.refused and "'rgba'" in told.refused
        assert "void128" in str(told)


# --- masks ----------------------------------------------------------------------------------------------------


def masked(machine: Machine, values: np.ndarray[Any, Any], mask: np.ndarray[Any, Any], label: str) -> Cai:
    inner = Cai(interface(shape=mask.shape, typestr=label, data=(put(machine, mask), True)))
    return Cai(interface(shape=values.shape, typestr=values.dtype.str, data=(put(machine, values), False), mask=inner))


VALUES = np.arange(100, dtype=np.int32)
VALID = VALUES % 3 != 0
BITS = np.packbits(VALID, bitorder="little")
PADDED = np.concatenate([BITS, np.zeros(64 - BITS.size, np.uint8)])


@pytest.mark.parametrize("label", ["|b1", "|u1", "|i1"])
@pytest.mark.parametrize("how", ["auto", "byte"])
def test_a_mask_of_bytes(label: str, how: Any, machine: Machine) -> None:
    values, mask = cd.split_masked(masked(machine, VALUES, VALID, label), mask=how)
    assert mask is not None
    assert host_copy(values).tolist() == VALUES.tolist()
    assert (mask.dtype.name, mask.shape, mask.read_only) == ("bool", (100,), True)
    assert host_copy(cd.view(mask)).tolist() == VALID.tolist()


@pytest.mark.parametrize("bits", [BITS, PADDED], ids=["exact", "padded-to-64"])
@pytest.mark.parametrize("how", ["auto", "bit"])
def test_cudfs_mask_of_bits_is_labelled_as_bytes(bits: np.ndarray[Any, Any], how: Any, machine: Machine) -> None:
    values, mask = cd.split_masked(masked(machine, VALUES, bits, "|u1"), mask=how)
    assert mask is not None
    assert (values.shape, mask.dtype.name, mask.shape) == ((100,), "uint8", bits.shape)
    found = np.unpackbits(host_copy(mask), bitorder="little")[:100].astype(bool)
    assert found.tolist() == VALID.tolist()


def test_a_mask_of_the_bit_type(machine: Machine) -> None:
    inner = Cai(interface(shape=(100,), typestr="|t1", data=(put(machine, BITS), False)))
    said = interface(shape=(100,), typestr="<i4", data=(put(machine, VALUES), False), mask=inner)
    _, mask = cd.split_masked(Cai(said))
    assert mask is not None
    assert (mask.dtype.name, mask.shape, mask.owner) == ("uint8", (13,), inner)


def test_a_mask_that_broadcasts(machine: Machine) -> None:
    values = np.zeros((4, 6), np.float32)
    _, mask = cd.split_masked(masked(machine, values, np.ones((4, 1), np.uint8), "|u1"))
    assert mask is not None
    assert (mask.dtype.name, mask.shape) == ("bool", (4, 1))


def test_no_mask(machine: Machine) -> None:
    source = cai(data=(machine.device_memory(64), False), mask=None)
    values, mask = cd.split_masked(source)
    assert (values.owner, mask) == (source, None)


@pytest.mark.parametrize("count", [1, 64], ids=["one-value", "64-values"])
def test_the_ambiguous_mask_is_refused(count: int, machine: Machine) -> None:
    source = masked(machine, np.zeros(count, np.int32), np.ones(count, np.uint8), "|u1")
    found = refuse(lambda: cd.split_masked(source), BufferError)
    check_refusal(found, "mask-ambiguous", "mask", value="|u1", hint='mask="bit"')
    pairs = cd.split_masked(source, mask="byte"), cd.split_masked(source, mask="bit")
    assert [mask and mask.dtype for _, mask in pairs] == ["bool", "uint8"]


def test_masks_that_do_not_fit(machine: Machine) -> None:
    source = masked(machine, VALUES, np.ones(7, np.uint8), "|u1")
    check_refusal(refuse(lambda: cd.split_masked(source), ValueError), "mask-shape", "mask")
    check_refusal(refuse(lambda: cd.split_masked(source, mask="bit"), ValueError), "mask-shape", "mask")
    check_refusal(refuse(lambda: cd.split_masked(source, mask="byte"), ValueError), "mask-shape", "mask")
    floats = masked(machine, VALUES, np.ones(100, np.float32), "<f4")
    check_refusal(refuse(lambda: cd.split_masked(floats), BufferError), "mask-dtype", "mask")
    said = interface(shape=(100,), mask=[1, 2])
    check_refusal(refuse(lambda: cd.split_masked(Cai(said)), TypeError), "mask-type", "mask")
    wrong: Any = "bits"
    check_refusal(refuse(lambda: cd.split_masked(source, mask=wrong), ValueError), "argument-value", "mask")
    check_refusal(refuse(lambda: cd.split_masked(said), TypeError), "owner-missing", "object")


def test_a_rust_function_takes_fields_and_no_struct(machine: Machine) -> None:
    said = interface(shape=(2,), typestr="|V8", descr=[("a", "<f4"), ("b", "<f4")])
    source = Cai({**said, "data": (machine.device_memory(16), False)})
    view = cd.view(source)
    for whole in (source, view):
        found = refuse(lambda each=whole: cai_example.stack(each, view.field("b")), BufferError)  # type: ignore[misc]
        check_refusal(found, "descr-fields", "descr", value="'a', 'b'")
    # A field is an array as any other, of which this function asks for more.
    assert refuse(lambda: cai_example.zero(view.field("a")), TypeError).rule == "view-contiguous"
