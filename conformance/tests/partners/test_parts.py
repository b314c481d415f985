"""Fields of structs and masks: what DLPack has no words for, taken apart."""

from __future__ import annotations

from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from producers import Cai, cai, interface
from refusal import check_refusal, refuse
from simulator import Machine

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
    view = cd.field(producer, name)
    want = values[name]
    assert (view.shape, view.byte_strides, view.dtype) == (want.shape, want.strides, str(want.dtype))
    assert view.ptr == producer.interface["data"][0] + OFFSETS[name]
    assert view.owner is producer
    assert host_copy(view).tolist() == want.tolist()


def test_a_field_of_a_struct_within(records: tuple[np.ndarray[Any, Any], Cai]) -> None:
    values, producer = records
    assert host_copy(cd.field(producer, "pos", "b")).tolist() == values["pos"]["b"].tolist()
    check_refusal(refuse(lambda: cd.field(producer, "pos"), BufferError), "descr-fields", "descr", value="'a', 'b'")


def test_fields_that_cannot_be(records: tuple[np.ndarray[Any, Any], Cai]) -> None:
    _, producer = records
    found = refuse(lambda: cd.field(producer, "y"), ValueError)
    check_refusal(found, "field-unknown", "name", value="'y'", hint="'x', 'id', 'rgba', 'pos'")
    check_refusal(refuse(lambda: cd.field(cai(), "x"), BufferError), "field-none", "name")
    check_refusal(refuse(lambda: cd.field(np.zeros(3), "x"), TypeError), "cai-missing", "object")
    odd = interface(shape=(2,), typestr="|V6", descr=[("a", "<f4"), ("b", "<i2")])
    check_refusal(refuse(lambda: cd.field(Cai(odd), "a"), BufferError), "field-stride", "descr")


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
    assert (mask.dtype, mask.shape, mask.read_only) == ("bool", (100,), True)
    assert host_copy(cd.view(mask)).tolist() == VALID.tolist()


@pytest.mark.parametrize("bits", [BITS, PADDED], ids=["exact", "padded-to-64"])
@pytest.mark.parametrize("how", ["auto", "bit"])
def test_cudfs_mask_of_bits_is_labelled_as_bytes(bits: np.ndarray[Any, Any], how: Any, machine: Machine) -> None:
    values, mask = cd.split_masked(masked(machine, VALUES, bits, "|u1"), mask=how)
    assert mask is not None
    assert (values.shape, mask.dtype, mask.shape) == ((100,), "uint8", bits.shape)
    found = np.unpackbits(host_copy(mask), bitorder="little")[:100].astype(bool)
    assert found.tolist() == VALID.tolist()


def test_a_mask_of_the_bit_type(machine: Machine) -> None:
    inner = Cai(interface(shape=(100,), typestr="|t1", data=(put(machine, BITS), False)))
    said = interface(shape=(100,), typestr="<i4", data=(put(machine, VALUES), False), mask=inner)
    _, mask = cd.split_masked(Cai(said))
    assert mask is not None
    assert (mask.dtype, mask.shape, mask.owner) == ("uint8", (13,), inner)


def test_a_mask_that_broadcasts(machine: Machine) -> None:
    values = np.zeros((4, 6), np.float32)
    _, mask = cd.split_masked(masked(machine, values, np.ones((4, 1), np.uint8), "|u1"))
    assert mask is not None
    assert (mask.dtype, mask.shape) == ("bool", (4, 1))


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
