"""DLPack, one defect at a time: class, field, value, rule, and who released what how often.

Each row starts from a tensor that is accepted (`test_the_fixture_is_valid`) and breaks one field.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import cai_dlpack as cd
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import FAKE_POINTER, Dlpack, cai
from conformance.tests.expectations.refusal import check_refusal, nothing_changes, refuse
from conformance.tests.ownership.growth import blocks_grown
from conformance.tests.simulated.machine import Machine

KINDS = pytest.mark.parametrize("versioned", [False, True], ids=["legacy", "versioned"])


@dataclass(frozen=True)
class Row:
    """One change to a valid tensor, and the refusal it gets."""

    id: str
    changes: dict[str, Any]
    raises: type[Exception]
    rule: str
    field: str
    found: str | None = None


def dtype(code: int, bits: int, lanes: int = 1) -> dict[str, Any]:
    return {"dtype": (code, bits, lanes)}


TENSOR_ROWS = [
    Row("D26-ndim-negative", {"ndim": -1}, ValueError, "ndim-negative", "ndim", "-1"),
    Row("D26-ndim-min", {"ndim": -(2**31)}, ValueError, "ndim-negative", "ndim"),
    Row("D27-ndim-65", {"shape": (1,) * 65}, ValueError, "ndim-limit", "ndim", "65"),
    Row("D27-ndim-huge", {"ndim": 2**31 - 1}, ValueError, "ndim-limit", "ndim", str(2**31 - 1)),
    Row("D29-shape-null", {"shape": None, "ndim": 1}, ValueError, "shape-null", "shape"),
    Row("shape-unaligned", {"shape_off": 4}, ValueError, "shape-alignment", "shape", "0x"),
    Row("shape-unaligned-5-axes", {"shape": (1,) * 5, "shape_off": 1}, ValueError, "shape-alignment", "shape"),
    Row("shape-unaligned-0-d", {"shape": (), "shape_off": 2}, ValueError, "shape-alignment", "shape"),
    Row("strides-unaligned", {"strides_off": 4}, ValueError, "shape-alignment", "strides", "0x"),
    Row("both-unaligned", {"shape_off": 4, "strides_off": 4}, ValueError, "shape-alignment", "shape", "0x"),
    Row("both-unaligned-0-d", {"shape": (), "shape_off": 1, "strides_off": 1}, ValueError, "shape-alignment", "shape"),
    Row("strides-unaligned-5-axes", {"shape": (1,) * 5, "strides_off": 7}, ValueError, "shape-alignment", "strides"),
    Row("D30-extent-negative", {"shape": (2, -1)}, ValueError, "shape-extent", "shape", "-1"),
    Row("D30-extent-min", {"shape": (-(2**63),)}, ValueError, "shape-extent", "shape"),
    Row("D31-count", {"shape": (2**40, 2**40)}, ValueError, "count-overflow", "shape"),
    Row(
        "data-misaligned",
        {"device": (abi.CUDA, 0), "data": FAKE_POINTER, "byte_offset": 2},
        BufferError,
        "data-alignment",
        "data",
        "aligned to 4 bytes",
    ),
    Row("D32-byte-size", {"shape": (2**62,)}, ValueError, "size-overflow", "shape"),
    Row("D33-data-null", {"data": 0}, ValueError, "data-pointer-null", "data"),
    Row("D33-data-null-offset", {"data": 0, "byte_offset": 64}, ValueError, "data-pointer-null", "data"),
    Row("D34-byte-offset", {"byte_offset": 2**63}, ValueError, "byte-offset", "byte_offset", hex(2**63)),
    Row("D34-byte-offset-max", {"byte_offset": 2**64 - 1}, ValueError, "byte-offset", "byte_offset"),
    Row(
        "D34-byte-offset-past-the-end",
        {"data": 2**64 - 256, "byte_offset": 2**62},
        ValueError,
        "byte-offset",
        "byte_offset",
    ),
    Row("D37-stride-span", {"strides": (2**62, 1)}, ValueError, "span-overflow", "strides"),
    Row("D37-stride-min", {"strides": (-(2**63), 1)}, ValueError, "span-overflow", "strides"),
    Row("D41-lanes-0", dtype(abi.FLOAT, 32, 0), ValueError, "dtype-lanes", "dtype"),
    Row("D43-bits-0", dtype(abi.FLOAT, 0), ValueError, "dtype-bits", "dtype", "0"),
    Row("D44-bits-13", dtype(abi.INT, 13), ValueError, "dtype-bits", "dtype", "13"),
    Row("D44-bits-13-float", dtype(abi.FLOAT, 13), ValueError, "dtype-bits", "dtype", "13"),
    Row("D45-code-99", dtype(99, 32), BufferError, "dtype-code", "dtype", "99"),
    Row("D45-code-255", dtype(255, 8), BufferError, "dtype-code", "dtype", "255"),
    Row("D46-opaque", dtype(abi.OPAQUE, 64), BufferError, "dtype-opaque", "dtype"),
    Row("D47-bool-of-1-bit", dtype(abi.BOOL, 1), BufferError, "dtype-bool", "dtype"),
    Row("D48-fp4-of-8-bits", dtype(abi.FLOAT4_E2M1FN, 8), BufferError, "dtype-sub-byte", "dtype"),
    Row("D48-fp6-of-8-bits", dtype(abi.FLOAT6_E2M3FN, 8), BufferError, "dtype-sub-byte", "dtype"),
    Row("D48-fp6-of-4-bits", dtype(abi.FLOAT6_E3M2FN, 4), BufferError, "dtype-sub-byte", "dtype"),
    Row("D49-id-negative", {"device": (abi.CUDA, -1)}, ValueError, "device-id", "device", "-1"),
    Row("D16-device-type-0", {"device": (0, 0)}, BufferError, "device-unknown", "device"),
    Row("D16-device-type-99", {"device": (99, 0)}, BufferError, "device-unknown", "device", "99"),
]

CARRIERS = ["capsule", "object"]


def test_the_fixture_is_valid() -> None:
    for versioned in (False, True):
        made = abi.make(versioned=versioned)
        view = cd.from_dlpack(made.capsule())
        assert (view.shape, view.dtype.name, view.device) == ((2, 3), "float32", (1, 0))
        assert view.ptr == made.tensor.data
        assert made.released == 0
        del view
        gc.collect()
        assert made.released == 1


@KINDS
@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("row", TENSOR_ROWS, ids=lambda row: row.id)
def test_tensor_refused(row: Row, carrier: str, versioned: bool) -> None:
    made = abi.make(versioned=versioned, **row.changes)
    if carrier == "capsule":
        capsule = made.capsule()
        with nothing_changes(capsule):
            found = refuse(partial(cd.from_dlpack, capsule), row.raises)
        del capsule
    else:
        producer = Dlpack(made)
        if row.field == "device":
            # The object announces a device that it could have; its tensor is the liar.
            producer.device = (abi.CPU, 0)
        with nothing_changes(producer):
            found = refuse(lambda: cd.from_dlpack(producer), row.raises)
    gc.collect()
    if not (carrier == "object" and row.field == "device"):
        check_refusal(found, row.rule, row.field, value=row.found)
    assert made.released == 1


@KINDS
def test_a_refused_tensor_can_be_refused_again(versioned: bool) -> None:
    """After a refusal the capsule is whole and unconsumed."""
    made = abi.make(versioned=versioned, shape=(2, -1))
    capsule = made.capsule()
    for _ in range(2):
        assert refuse(partial(cd.from_dlpack, capsule), ValueError).rule == "shape-extent"
        assert (abi.name(capsule), made.released) == (abi.VERSIONED if versioned else abi.LEGACY, 0)
    del capsule
    gc.collect()
    assert made.released == 1


# --- accepted ------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"null_strides": True}, {"byte_strides": (12, 4)}, id="D36-strides-null"),
        pytest.param({"strides": (-3, 1)}, {"elem_strides": (-3, 1)}, id="D38-stride-negative"),
        pytest.param({"strides": (0, 1)}, {"elem_strides": (0, 1)}, id="stride-zero"),
        pytest.param({"shape": (1, 3), "strides": (-77, 1)}, {"shape": (1, 3)}, id="D39-odd-stride-extent-1"),
        pytest.param({"shape": (1, 3), "strides": (2**63 - 1, 1)}, {"shape": (1, 3)}, id="D39-max-stride"),
        pytest.param({"shape": ()}, {"shape": (), "ndim": 0}, id="0-d"),
        pytest.param({"shape": None}, {"shape": (), "ndim": 0}, id="0-d-shape-null"),
        pytest.param({"shape": None, "null_strides": True}, {"shape": (), "ndim": 0}, id="0-d-both-null"),
        pytest.param({"shape": (0, 4), "data": 0}, {"nbytes": 0}, id="size-0-null"),
        pytest.param({"shape": (0, 4), "data": 0xDEAD}, {"nbytes": 0}, id="size-0-junk-pointer"),
        pytest.param({"shape": (0, 2**62, 2**62)}, {"nbytes": 0}, id="size-0-huge-extents"),
        pytest.param({"shape": (1,) * 64}, {"ndim": 64}, id="64-dimensions"),
        pytest.param(dtype(abi.BFLOAT, 16), {"dtype": "bfloat16"}, id="bfloat16"),
        pytest.param(dtype(abi.BOOL, 8), {"dtype": "bool"}, id="bool"),
        pytest.param(dtype(abi.COMPLEX, 64), {"dtype": "complex64", "itemsize": 8}, id="complex64"),
        pytest.param({"device": (abi.CUDA, 1)}, {"device": (2, 1)}, id="device-1"),
        pytest.param({"device": (abi.ROCM, 0)}, {"device": (10, 0)}, id="rocm"),
    ],
)
def test_accepted(changes: dict[str, Any], expected: dict[str, Any], versioned: bool) -> None:
    made = abi.make(versioned=versioned, **changes)
    view = cd.from_dlpack(made.capsule())
    assert {key: getattr(view, key) for key in expected} == expected
    del view
    gc.collect()
    assert made.released == 1


@KINDS
def test_a_null_deleter_is_accepted_and_not_called(versioned: bool) -> None:
    made = abi.make(versioned=versioned, deleter=False)
    view = cd.from_dlpack(made.capsule())
    assert view.shape == (2, 3)
    del view
    gc.collect()
    broken = abi.make(versioned=versioned, deleter=False, shape=(-1,))
    refuse(partial(cd.from_dlpack, broken.capsule()), ValueError)


def test_d22_unknown_flag_bits_are_accepted() -> None:
    made = abi.make(flags=0xFFFF_0000_0000_0F00)
    view = cd.from_dlpack(made.capsule())
    assert view.read_only is False


@pytest.mark.parametrize("minor", [0, 1, 2, 3, 4, 99, 2**32 - 1])
def test_any_minor_version_is_accepted(minor: int) -> None:
    made = abi.make(version=(1, minor))
    assert cd.from_dlpack(made.capsule()).shape == (2, 3)


# --- capsules ------------------------------------------------------------------------------------


class ThatAnswers:
    """Returns any given object from `__dlpack__`."""

    def __init__(self, answer: object, device: Any = (1, 0)) -> None:
        self.answer = answer
        self.device = device

    def __dlpack__(self, **keywords: Any) -> object:
        return self.answer

    def __dlpack_device__(self) -> Any:
        return self.device


@pytest.mark.parametrize("answer", [42, None, "dltensor", b"", [], object()], ids=lambda each: type(each).__name__)
def test_d1_d2_the_answer_is_no_capsule(answer: object) -> None:
    producer = ThatAnswers(answer)
    with nothing_changes(producer):
        found = refuse(lambda: cd.from_dlpack(producer), TypeError)
    check_refusal(found, "capsule-type", "__dlpack__")
    assert type(answer).__name__ in found.message or repr(answer) in found.message


@pytest.mark.parametrize("argument", [42, None, "dltensor", object()], ids=lambda each: type(each).__name__)
def test_d1_d2_the_argument_is_neither_capsule_nor_producer(argument: Any) -> None:
    found = refuse(lambda: cd.from_dlpack(argument), TypeError)
    check_refusal(found, "dlpack-missing", None)


@KINDS
@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        pytest.param(b"strange", "capsule-name", id="D3-strange"),
        pytest.param(b"", "capsule-name", id="D3-empty"),
        pytest.param(b"dltensor_v2", "capsule-name", id="D3-nearly"),
        pytest.param(b"\xff\xfe", "capsule-name", id="D3-not-utf-8"),
        pytest.param(abi.USED_LEGACY, "capsule-used", id="D4-used"),
        pytest.param(abi.USED_VERSIONED, "capsule-used", id="D5-used-versioned"),
    ],
)
def test_the_capsules_name(name: bytes, rule: str, carrier: str, versioned: bool) -> None:
    made = abi.make(versioned=versioned)
    capsule = made.capsule(name)
    given = capsule if carrier == "capsule" else ThatAnswers(capsule)
    with nothing_changes(capsule, given):
        found = refuse(partial(cd.from_dlpack, given), ValueError)
    check_refusal(found, rule, "capsule")
    if name.isascii():
        assert name.decode() in found.message
    assert abi.name(capsule) == name
    del capsule, given
    gc.collect()
    assert made.released == 0


def test_d3_a_capsule_without_a_name() -> None:
    made = abi.make()
    capsule = abi.new_nameless_capsule(made.address)
    found = refuse(partial(cd.from_dlpack, capsule), ValueError)
    check_refusal(found, "capsule-name", "capsule")


@KINDS
@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("off", [1, 2, 4])
def test_a_tensor_that_is_not_aligned(off: int, carrier: str, versioned: bool) -> None:
    """Nothing of it is read, and the capsule is left as it is."""
    made = abi.make(versioned=versioned)
    name = abi.VERSIONED if versioned else abi.LEGACY
    capsule = abi.new_capsule(abi.moved(made, off), name, destructor=False)
    given = capsule if carrier == "capsule" else ThatAnswers(capsule)
    for _ in range(2):
        with nothing_changes(capsule, given):
            found = refuse(partial(cd.from_dlpack, given), ValueError)
        check_refusal(found, "tensor-alignment", "capsule", value="0x")
        assert (abi.name(capsule), made.released) == (name, 0)
    aligned = cd.from_dlpack(abi.new_capsule(abi.moved(made, 8), name))
    assert aligned.ptr == made.tensor.data
    del aligned
    gc.collect()
    assert made.released == 1


@KINDS
def test_d7_consumed_twice(versioned: bool) -> None:
    made = abi.make(versioned=versioned)
    capsule = made.capsule()
    view = cd.from_dlpack(capsule)
    assert abi.name(capsule) == (abi.USED_VERSIONED if versioned else abi.USED_LEGACY)
    found = refuse(partial(cd.from_dlpack, capsule), ValueError)
    check_refusal(found, "capsule-used", "capsule")
    del capsule
    gc.collect()
    assert made.released == 0
    del view
    gc.collect()
    assert made.released == 1


def test_d8_two_imports_at_once_have_one_winner() -> None:
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            race_two_imports()
    finally:
        sys.setswitchinterval(switch)


def race_two_imports() -> None:
    made = abi.make()
    capsule = made.capsule()
    start = threading.Barrier(2)
    outcome: list[object] = []
    claims = [partial(cd.from_dlpack, capsule) for _ in range(2)]
    del capsule

    def attempt() -> None:
        claim = claims.pop()
        start.wait()
        try:
            outcome.append(claim())
        except ValueError as error:
            outcome.append(getattr(error, "rule", error))

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(each).__name__ for each in outcome) == ["CaiView", "str"], outcome
    assert "capsule-used" in outcome
    outcome.clear()
    gc.collect()
    assert made.released == 1


class Raises(ThatAnswers):
    """Raises a given exception from `__dlpack__`, and counts the calls."""

    def __init__(self, error: Exception) -> None:
        super().__init__(None)
        self.error = error
        self.calls = 0

    def __dlpack__(self, **keywords: Any) -> object:
        self.calls += 1
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(BufferError("cannot export a tensor that requires grad"), id="D9-buffer-error"),
        pytest.param(RuntimeError("out of memory"), id="D9-runtime-error"),
        pytest.param(TypeError("unhashable type: 'list'"), id="D11-type-error-from-inside"),
        pytest.param(KeyError("stream"), id="D9-key-error"),
    ],
)
def test_d9_d11_the_producers_own_error_passes_untouched(error: Exception) -> None:
    producer = Raises(error)
    with pytest.raises(type(error)) as caught:
        cd.from_dlpack(producer)
    assert caught.value is error
    assert producer.calls == 1


def test_d9_an_error_from_every_form_ends() -> None:
    """A producer whose error always names a keyword is called once per keyword, then its error is raised."""

    class Blames(Raises):
        def __dlpack__(self, **keywords: Any) -> object:
            self.calls += 1
            blamed = next(iter(keywords), "max_version")
            raise TypeError(f"__dlpack__() got an unexpected keyword argument '{blamed}'")

    producer = Blames(TypeError())
    with pytest.raises(TypeError, match="unexpected keyword"):
        cd.from_dlpack(producer)
    assert 1 <= producer.calls <= 6


def test_d10_no_dlpack_at_all() -> None:
    class OnlyTheDevice:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    found = refuse(lambda: cd.from_dlpack(cast(Any, OnlyTheDevice())), TypeError)
    check_refusal(found, "dlpack-missing", None)
    assert "__dlpack__" in found.message


# --- __dlpack_device__ ----------------------------------------------------------------------------


def test_d13_no_device_method() -> None:
    made = abi.make()

    class OnlyDlpack:
        def __dlpack__(self, **keywords: Any) -> object:
            return made.capsule()

    found = refuse(lambda: cd.from_dlpack(OnlyDlpack()), TypeError)
    check_refusal(found, "device-missing", None)
    assert "__dlpack_device__" in found.message


@pytest.mark.parametrize(
    ("device", "raises", "rule"),
    [
        pytest.param((1,), ValueError, "device-pair", id="D14-one-item"),
        pytest.param((1, 0, 0), ValueError, "device-pair", id="D14-three-items"),
        pytest.param((), ValueError, "device-pair", id="D14-empty"),
        pytest.param(("1", 0), TypeError, "device-item-type", id="D15-string"),
        pytest.param((1.0, 0), TypeError, "device-item-type", id="D15-float"),
        pytest.param((True, 0), TypeError, "device-item-type", id="D15-bool"),
        pytest.param((None, 0), TypeError, "device-item-type", id="D15-none-type"),
        pytest.param((1, "0"), TypeError, "device-item-type", id="D15-string-id"),
        pytest.param((2, None), TypeError, "device-item-type", id="D15-cuda-none"),
        pytest.param((0, 0), BufferError, "device-unknown", id="D16-type-0"),
        pytest.param((99, 0), BufferError, "device-unknown", id="D16-type-99"),
        pytest.param((2**40, 0), BufferError, "device-unknown", id="D16-type-huge"),
        pytest.param((2, -1), ValueError, "device-id", id="D49-id-negative"),
    ],
)
def test_device_refused(device: Any, raises: type[Exception], rule: str) -> None:
    made = abi.make()
    producer = Dlpack(made, device)
    producer.device = device
    with nothing_changes(producer):
        found = refuse(lambda: cd.from_dlpack(producer), raises)
    check_refusal(found, rule, "__dlpack_device__")
    gc.collect()
    assert made.released == len(producer.calls)


@pytest.mark.parametrize("device", [42, None], ids=["int", "none"])
def test_d14_the_device_is_no_sequence(device: object) -> None:
    """Row D14 has ValueError for a sequence that is not a pair; an object that is no sequence is a TypeError."""
    producer = Dlpack(abi.make())
    producer.device = device
    with pytest.raises((ValueError, TypeError)) as caught:
        cd.from_dlpack(producer)
    assert getattr(caught.value, "field", None) == "__dlpack_device__"


@pytest.mark.parametrize(
    ("announced", "real"),
    [
        pytest.param((3, 0), (1, 0), id="D17-pinned-torch"),
        pytest.param((13, 1), (13, 0), id="managed-ordinal"),
        pytest.param((13, 0), (13, 1), id="managed-ordinal-other-way"),
        pytest.param((1, None), (1, 0), id="D15-paddle-none"),
        pytest.param((3, None), (3, 0), id="paddle-pinned-none"),
    ],
)
def test_a_device_that_is_known_to_be_said_otherwise(announced: Any, real: tuple[int, int]) -> None:
    made = abi.make(device=real)
    assert cd.from_dlpack(Dlpack(made, announced)).shape == (2, 3)


@pytest.mark.parametrize(
    ("announced", "real"),
    [
        pytest.param((2, 0), (2, 1), id="device_id"),
        pytest.param((2, 0), (1, 0), id="cuda-sends-host"),
        pytest.param((1, 0), (2, 0), id="host-sends-cuda"),
        pytest.param((10, 0), (2, 0), id="rocm-sends-cuda"),
    ],
)
def test_d17_the_tensor_is_elsewhere(announced: tuple[int, int], real: tuple[int, int]) -> None:
    made = abi.make(device=real)
    found = refuse(lambda: cd.from_dlpack(Dlpack(made, announced)), BufferError)
    check_refusal(found, "device-mismatch", "device")
    gc.collect()
    assert made.released == 1


def test_d18_the_device_method_raises() -> None:
    error = LookupError("which device?")

    class Lost(Dlpack):
        def __dlpack_device__(self) -> Any:
            raise error

    with pytest.raises(LookupError) as caught:
        cd.from_dlpack(Lost(abi.make()))
    assert caught.value is error


# --- version and flags ----------------------------------------------------------------------------


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize(
    "major",
    [
        pytest.param(0, id="D19-major-0"),
        pytest.param(2, id="D20-major-2"),
        pytest.param(2**32 - 1, id="D21-major-max"),
    ],
)
def test_another_major_version(major: int, carrier: str) -> None:
    made = abi.make(version=(major, 0))
    capsule = made.capsule()
    given = capsule if carrier == "capsule" else ThatAnswers(capsule)
    found = refuse(partial(cd.from_dlpack, given), BufferError)
    check_refusal(found, "dlpack-major", "version", value=str(major))
    assert made.released == 0, "the capsule still owns it"
    assert abi.name(capsule) == abi.VERSIONED
    del capsule, given
    gc.collect()
    assert made.released == 1


def test_d23_read_only_to_a_writer() -> None:
    made = abi.make(flags=abi.READ_ONLY)
    view = cd.from_dlpack(made.capsule())
    assert view.read_only is True
    found = refuse(lambda: view.__dlpack__(), BufferError)
    check_refusal(found, "read-only-legacy", None)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_d24_copied_although_copy_false(carrier: str) -> None:
    made = abi.make(flags=abi.IS_COPIED)
    given: Any = made.capsule() if carrier == "capsule" else Dlpack(made)
    found = refuse(partial(cd.from_dlpack, given, copy=False), BufferError)
    check_refusal(found, "copied-unasked", None)
    del given
    gc.collect()
    assert made.released == 1


# --- what CAI cannot say ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        pytest.param(dtype(abi.FLOAT, 32, 2), "cai-lanes", id="D42-lanes-2"),
        pytest.param(dtype(abi.FLOAT4_E2M1FN, 4), "cai-sub-byte", id="D48-fp4"),
        pytest.param(dtype(abi.FLOAT6_E3M2FN, 6), "cai-sub-byte", id="D48-fp6"),
        pytest.param(dtype(abi.BFLOAT, 16), "cai-dtype", id="bfloat16"),
        pytest.param(dtype(abi.FLOAT8_E4M3FN, 8), "cai-dtype", id="fp8"),
        pytest.param(dtype(abi.COMPLEX, 32), "cai-dtype", id="complex32"),
        pytest.param({"device": (abi.CPU, 0)}, "cai-device", id="D52-cpu"),
        pytest.param({"device": (7, 0)}, "cai-device", id="vulkan"),
    ],
)
def test_to_cai_refused(changes: dict[str, Any], rule: str) -> None:
    made = abi.make(**{"device": (abi.CUDA, 0), **changes})
    view = cd.from_dlpack(made.capsule())
    with nothing_changes(view):
        found = refuse(view.to_cai, BufferError)
    check_refusal(found, rule, None)
    assert not hasattr(view, "__cuda_array_interface__")
    found = refuse(lambda: view.__cuda_array_interface__, AttributeError)
    assert rule in found.message
    assert made.released == 0


# --- rows that ask the driver ----------------------------------------------------------------------


def test_d50_a_device_that_this_machine_lacks(machine: Machine) -> None:
    made = abi.make(device=(abi.CUDA, 999), data=machine.device_memory(64))
    found = refuse(lambda: cd.view(Dlpack(made), check="bounds"), BufferError)
    assert found.rule == "pointer-device", found.message
    check_refusal(found, str(found.rule), "device", value="999")


def test_d51_a_cuda_tag_on_a_host_pointer(machine: Machine) -> None:
    made = abi.make(device=(abi.CUDA, 0))
    found = refuse(lambda: cd.view(Dlpack(made), check="bounds"), BufferError)
    assert found.rule in ("pointer-unknown", "pointer-device"), found.message
    check_refusal(found, str(found.rule), None)
    gc.collect()
    assert made.released == 1


def test_d51_a_cuda_tag_of_another_device(machine: Machine) -> None:
    made = abi.make(device=(abi.CUDA, 1), data=machine.device_memory(64, ordinal=0))
    found = refuse(lambda: cd.view(Dlpack(made), check="bounds"), BufferError)
    check_refusal(found, "pointer-device", None)


# --- arguments -------------------------------------------------------------------------------------


def on_cuda() -> Any:
    return cd.view(cai(), device_id=0)


def on_cpu() -> Any:
    return cd.from_dlpack(abi.make().capsule())


def on_rocm() -> Any:
    return cd.from_dlpack(abi.make(device=(abi.ROCM, 0), data=FAKE_POINTER).capsule())


@pytest.mark.parametrize(
    ("make", "stream", "raises", "rule"),
    [
        pytest.param(on_cuda, 0, ValueError, "stream-zero", id="D53-zero"),
        pytest.param(on_cuda, -2, ValueError, "stream-range", id="D53-minus-two"),
        pytest.param(on_cuda, True, TypeError, "stream-type", id="D53-true"),
        pytest.param(on_cuda, False, TypeError, "stream-type", id="D53-false"),
        pytest.param(on_cuda, "1", TypeError, "stream-type", id="D53-string"),
        pytest.param(on_cuda, 1.0, TypeError, "stream-type", id="D53-float"),
        pytest.param(on_cuda, object(), TypeError, "stream-type", id="D53-object"),
        pytest.param(on_cuda, 2**64, ValueError, "stream-range", id="D53-over-64-bit"),
        pytest.param(on_cuda, 2**200, ValueError, "stream-range", id="D53-far-over-64-bit"),
        pytest.param(on_cuda, -(2**200), ValueError, "stream-range", id="D53-far-below-64-bit"),
        pytest.param(on_rocm, 1, ValueError, "stream-rocm", id="D53-rocm-1"),
        pytest.param(on_rocm, 2, ValueError, "stream-rocm", id="D53-rocm-2"),
        pytest.param(on_cpu, 1, ValueError, "stream-cpu", id="D53-cpu-1"),
        pytest.param(on_cpu, 77, ValueError, "stream-cpu", id="D53-cpu-77"),
        pytest.param(on_cpu, 0, ValueError, "stream-cpu", id="D53-cpu-0"),
        pytest.param(on_cpu, -1, ValueError, "stream-cpu", id="D53-cpu-minus-one"),
    ],
)
def test_stream_argument(make: Callable[[], Any], stream: object, raises: type[Exception], rule: str) -> None:
    view = make()
    with nothing_changes(view, stream):
        found = refuse(lambda: view.__dlpack__(stream=stream, max_version=(1, 3)), raises)
    check_refusal(found, rule, "stream")
    assert repr(stream) in found.message or str(stream) in found.message or rule == "stream-type"


@pytest.mark.parametrize(
    ("answer", "raises"),
    [
        pytest.param(7, TypeError, id="int"),
        pytest.param((0,), TypeError, id="one-item"),
        pytest.param((0, "7"), TypeError, id="string-handle"),
        pytest.param((0, True), TypeError, id="bool-handle"),
        pytest.param(None, TypeError, id="none"),
    ],
)
def test_a_cuda_stream_method_that_answers_nonsense(answer: object, raises: type[Exception]) -> None:
    class Stream:
        def __cuda_stream__(self) -> object:
            return answer

    view = on_cuda()
    found = refuse(lambda: view.__dlpack__(stream=Stream(), max_version=(1, 3)), raises)
    check_refusal(found, "stream-object", "__cuda_stream__")


@pytest.mark.parametrize(
    ("max_version", "raises", "rule"),
    [
        pytest.param("1", TypeError, "max-version-type", id="D54-string"),
        pytest.param(1, TypeError, "max-version-type", id="D54-int"),
        pytest.param(("1", 0), TypeError, "max-version-type", id="D54-string-item"),
        pytest.param((1.0, 0), TypeError, "max-version-type", id="D54-float-item"),
        pytest.param((True, 0), TypeError, "max-version-type", id="D54-bool-item"),
        pytest.param([1, 0], TypeError, "max-version-type", id="D54-list"),
        pytest.param((1,), ValueError, "max-version", id="D54-one-item"),
        pytest.param((1, 0, 0), ValueError, "max-version", id="D54-three-items"),
        pytest.param((-1, 0), ValueError, "max-version", id="D54-negative"),
        pytest.param((1, -1), ValueError, "max-version", id="D54-negative-minor"),
    ],
)
def test_max_version_argument(max_version: object, raises: type[Exception], rule: str) -> None:
    view = on_cuda()
    with nothing_changes(view, max_version):
        found = refuse(lambda: view.__dlpack__(max_version=max_version), raises)
    check_refusal(found, rule, "max_version")


@pytest.mark.parametrize(
    ("keywords", "raises", "rule"),
    [
        pytest.param({"dl_device": 2}, TypeError, "dl-device-type", id="dl_device-int"),
        pytest.param({"dl_device": b"cuda"}, TypeError, "dl-device-type", id="dl_device-bytes"),
        pytest.param({"dl_device": "gpu"}, ValueError, "argument-value", id="dl_device-name"),
        pytest.param({"dl_device": (2, "0")}, TypeError, "dl-device-type", id="dl_device-item"),
        pytest.param({"dl_device": (2,)}, ValueError, "dl-device", id="dl_device-one-item"),
        pytest.param({"copy": 1}, TypeError, "copy-type", id="copy-int"),
        pytest.param({"copy": "no"}, TypeError, "copy-type", id="copy-string"),
    ],
)
def test_other_arguments(keywords: dict[str, Any], raises: type[Exception], rule: str) -> None:
    view = on_cuda()
    found = refuse(lambda: view.__dlpack__(max_version=(1, 3), **keywords), raises)
    check_refusal(found, rule, next(iter(keywords)))


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: cd.view(cai(), device_id=0, strict=None), id="view-strict"),  # type: ignore[arg-type]
        pytest.param(lambda: cd.from_cai(cai(), strict=None), id="from_cai-strict"),  # type: ignore[arg-type]
        pytest.param(lambda: cd.to_dlpack(cai(), writable=None), id="to_dlpack-writable"),  # type: ignore[arg-type]
    ],
)
def test_a_flag_that_has_no_none(call: Callable[[], object]) -> None:
    """None is a TypeError, with and without other keywords."""
    with pytest.raises(TypeError, match="bool"):
        call()


def test_an_unknown_keyword_is_pythons_own_type_error() -> None:
    with pytest.raises(TypeError, match="colour"):
        on_cuda().__dlpack__(colour="blue")


# --- deleters --------------------------------------------------------------------------------------


@KINDS
def test_a_deleter_that_reenters_us(versioned: bool) -> None:
    inner = abi.make(versioned=versioned)
    made = abi.make(versioned=versioned)
    seen: list[tuple[int, ...]] = []

    def reenter() -> None:
        view = cd.from_dlpack(inner.capsule())
        seen.append(view.shape)
        refuse(partial(cd.from_dlpack, abi.make(shape=(-1,)).capsule()), ValueError)

    made.on_release = reenter
    view = cd.from_dlpack(made.capsule())
    del view
    gc.collect()
    assert (seen, made.released, inner.released) == ([(2, 3)], 1, 1)


def test_a_deleter_that_raises_is_reported_and_survived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda hook: reported.append(hook.exc_value))
    made = abi.make()

    def fail() -> None:
        raise RuntimeError("from inside the deleter")

    made.on_release = fail
    view = cd.from_dlpack(made.capsule())
    del view
    gc.collect()
    assert made.released == 1
    assert [str(each) for each in reported] == ["from inside the deleter"]


def test_refusals_leak_nothing() -> None:
    """Every row 100 times: the interpreter holds as many blocks afterwards as before."""
    made = [(abi.make(**row.changes), row.raises) for row in TENSOR_ROWS]

    def every_row(times: int) -> None:
        for tensor, raises in made:
            for _ in range(times):
                capsule = tensor.capsule()
                with suppress(raises):
                    cd.from_dlpack(capsule)
                del capsule

    grown = blocks_grown(every_row, 100)
    assert grown < 200, f"{grown} blocks more after {100 * len(made)} refusals"
    assert [tensor.released for tensor, _ in made] == [120] * len(made)


assert ctypes.sizeof(ctypes.c_void_p) == 8, "the tables above are for 64-bit machines"
