"""Every refusal leaves nothing behind: no block, no reference, no owner; and every rule is among them."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import cai_dlpack as cd
import cai_example_peer as peer
import numpy as np
import pytest
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import Cai, cai, interface
from conformance.tests.interpreter.process import ROOT
from conformance.tests.ownership import native
from conformance.tests.ownership.growth import check_nothing_is_left, growth, repeat
from conformance.tests.reach import handles
from conformance.tests.simulated.capture import Captures
from conformance.tests.simulated.machine import Machine
from conformance.tests.test_hostile_attributes import sparse
from conformance.tests.test_malformed_cai import CAI_ONLY_ROWS, Method, OnTheCpu, nested_descr
from conformance.tests.test_malformed_cai import ROWS as CAI_ROWS
from conformance.tests.test_malformed_dlpack import TENSOR_ROWS

# Of each.
REFUSALS = native.figure(1_000, 1_000_000)


def check_a_refusal_leaves_nothing(call: Callable[[], object], watched: list[object]) -> None:
    check_nothing_is_left(in_c(call), watched, REFUSALS)


def in_c(call: Callable[[], object]) -> Callable[[int], None]:
    """A refusal counted in a loop of C, which costs nothing beside it."""
    often = native.with_gil().refused
    often.restype = ctypes.c_size_t

    def refuse_often(count: int) -> None:
        assert often(ctypes.py_object(call), ctypes.c_size_t(count)) == count, "accepted"

    return refuse_often


@pytest.mark.parametrize("row", CAI_ROWS, ids=lambda row: row.id)
def test_a_refused_dict_leaves_nothing(row: Any) -> None:
    producer = Cai(interface(**{row.key: row.value}))
    check_a_refusal_leaves_nothing(partial(cd.view, producer, device_id=0), [producer])


@pytest.mark.parametrize("row", CAI_ONLY_ROWS, ids=lambda row: row.id)
def test_a_refused_export_leaves_nothing(row: Any) -> None:
    producer = Cai(interface(**{row.key: row.value}))
    check_a_refusal_leaves_nothing(partial(cd.to_dlpack, producer, device_id=0), [producer])
    check_a_refusal_leaves_nothing(cd.view(producer, device_id=0).__dlpack__, [producer])


class Offers:
    """Exports a tensor by `__dlpack__`, and records nothing."""

    def __init__(self, made: abi.Made, device: object = (abi.CPU, 0)) -> None:
        self.made = made
        self.device = device

    def __dlpack__(self, **_: object) -> object:
        return self.made.capsule()

    def __dlpack_device__(self) -> object:
        return self.device


@pytest.mark.parametrize("versioned", [False, True], ids=["legacy", "versioned"])
@pytest.mark.parametrize("row", TENSOR_ROWS, ids=lambda row: row.id)
def test_a_refused_tensor_leaves_nothing_and_is_released_by_its_capsule(row: Any, versioned: bool) -> None:
    made = abi.make(versioned=versioned, **row.changes)
    producer = Offers(made)
    check_a_refusal_leaves_nothing(partial(cd.from_dlpack, producer), [producer, made])
    assert made.released % (100 + REFUSALS) == 0


def refused(call: Callable[[], object]) -> None:
    with contextlib.suppress(TypeError, ValueError, BufferError):
        call()
        raise AssertionError("accepted")


def offer(made: abi.Made, name: bytes) -> None:
    """A capsule that is refused; it ends when nothing is raised any more, as our double of it must."""
    capsule = made.capsule(name)
    refused(lambda: cd.from_dlpack(capsule))


@pytest.mark.parametrize("name", [b"strange", abi.USED_VERSIONED, abi.USED_LEGACY])
def test_a_refused_capsule_leaves_nothing(name: bytes) -> None:
    made = abi.make()
    check_nothing_is_left(partial(repeat, lambda: offer(made, name)), [made], REFUSALS)
    assert made.released == 0


def test_another_major_version_leaves_nothing() -> None:
    made = abi.make(version=(2, 0))
    check_nothing_is_left(partial(repeat, lambda: offer(made, abi.VERSIONED)), [made], REFUSALS)
    assert made.released % (100 + REFUSALS) == 0


def test_a_tensor_that_is_not_aligned_leaves_nothing() -> None:
    made = abi.make()
    capsule = abi.new_capsule(abi.moved(made, 4), abi.VERSIONED, destructor=False)
    call = partial(cd.from_dlpack, capsule)
    assert raised_by(call) == "tensor-alignment"
    check_a_refusal_leaves_nothing(call, [])
    assert made.released == 0


# --- and one of every other rule ---------------------------------------------------------------------------

ONES = np.ones(3)
MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)
FLOAT4 = (abi.FLOAT4_E2M1FN, 4, 1)
Call = Callable[[], object]


def tensor(**changes: Any) -> cd.CaiView:
    return cd.from_dlpack(abi.make(**changes).capsule())


def said(**changes: Any) -> Call:
    """A view of a dict with these changes."""
    return partial(cd.view, cai(**changes), device_id=0)


def record(**changes: Any) -> cd.CaiView:
    return cd.view(cai(typestr="|V8", descr=[("x", "<f4"), ("y", ">f4")], **changes), device_id=0)


class Without:
    """A producer without `__dlpack_device__`."""

    def __dlpack__(self, **_: object) -> object:
        raise AssertionError


def fortran(view: cd.CaiView, flags: int = 0x40 | 0x18) -> object:
    """Requests a buffer by PyObject_GetBuffer: in Fortran's order."""
    buffer = ctypes.create_string_buffer(256)
    return ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), buffer, flags)


class Answers:
    """A producer whose `__dlpack__` returns no capsule."""

    def __dlpack__(self, **_: object) -> object:
        return 5

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Deleted(Offers):
    """As a deleted array of JAX."""

    def __init__(self) -> None:
        super().__init__(abi.make())

    def is_deleted(self) -> bool:
        return True

    def __dlpack__(self, **_: object) -> object:
        raise RuntimeError("Array has been deleted")


def tracer() -> object:
    base = type("Tracer", (), {"__module__": "jax._src.core"})
    return type("JitTracer", (base,), {"__dlpack__": lambda self, **_: None})()


def strings() -> object:
    """As a tensor of strings of TensorFlow."""
    dtype = type("DType", (), {"name": "string"})()
    members = {"__module__": "tensorflow.python.framework.ops", "dtype": dtype}
    return type("EagerTensor", (Offers,), members)(abi.make())


def entered_twice() -> None:
    block = VIEW.consume(1)
    with block, block:
        pass


def masked(typestr: str, count: int) -> Cai:
    mask = cai(shape=(count,), typestr=typestr)
    return cai(shape=(count,), typestr="<i4", mask=mask)


def on_another_thread(make: Callable[[], cd.CaiView]) -> cd.CaiView:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(make).result()


def negated() -> object:
    producer = exchange.Producer()
    return exchange.make_type(exchange.capsule(exchange.table(producer)), producer, is_neg=lambda _: True)()


def left(view: cd.CaiView) -> cd.CaiView:
    with view.consume(1) as lent:
        pass
    return lent


# By rule: what is refused, and what must not be kept by it.
VIEW: Any = cd.view(cai(), device_id=0)
LEFT = handles.entered(cd.view(cai(shape=(0,), data=(0, False)), device_id=0))
LOOSE: Any = cd  # called with what its annotations forbid
OTHERS: dict[str, Call] = {
    "argument-count": partial(LOOSE.view, cai(), 0),
    "argument-missing": partial(LOOSE.join, []),
    "argument-unexpected": partial(LOOSE.view, cai(), colour="blue"),
    "argument-type": partial(LOOSE.policy, sync=5),
    "argument-value": partial(LOOSE.policy, sync="soon"),
    "array-deleted": partial(cd.view, Deleted()),
    "array-traced": partial(LOOSE.view, tracer()),
    "not-strided": partial(LOOSE.view, sparse("torch.sparse_csr")),
    "array-unreadable": VIEW.__array__,
    "buffer-items": partial(memoryview, tensor(dtype=(abi.BFLOAT, 16, 1))),  # type: ignore[arg-type]
    "buffer-layout": partial(fortran, cd.view(MATRIX)),
    "buffer-format": partial(fortran, cd.view(MATRIX), 0x4),
    "cai-device": tensor().to_cai,
    "cai-dtype": tensor(device=(2, 0), dtype=(abi.BFLOAT, 16, 1)).to_cai,
    "cai-empty": partial(cd.view, Cai({})),
    "cai-lanes": tensor(device=(2, 0), dtype=(abi.FLOAT, 32, 2)).to_cai,
    "cai-method": partial(cd.view, Method()),
    "cai-missing": partial(LOOSE.from_cai, 42),
    "cai-none": partial(cd.view, Cai(None)),
    "cai-sub-byte": tensor(device=(2, 0), dtype=FLOAT4).to_cai,
    "cai-type": partial(cd.view, Cai(7)),
    "cai-unavailable": partial(cd.view, OnTheCpu()),
    "capsule-type": partial(cd.from_dlpack, Answers()),
    "class-not-instance": partial(LOOSE.view, Cai),
    "consume-open": entered_twice,
    "copied-unasked": partial(cd.from_dlpack, Offers(abi.make(flags=abi.IS_COPIED)), copy=False),
    "copy-needed": partial(VIEW.__dlpack__, copy=False, dl_device=(1, 0)),
    "copy-refused": partial(tensor(dtype=FLOAT4, shape=(8,)).__dlpack__, copy=True, dl_device=(1, 0)),
    "copy-type": partial(VIEW.__dlpack__, copy=1),
    "deep-copy": partial(copy.deepcopy, VIEW),
    "descr-depth": said(typestr="|V4", descr=nested_descr(200)),
    "descr-fields": record().__dlpack__,
    "descr-names": said(typestr="|V8", descr=[("x", "<f4"), ("x", "<f4")]),
    "descr-syntax": said(typestr="|V4", descr=[("x",)]),
    "descr-typestr": said(descr=[("", "<i4")]),
    "descr-unsaid": partial(cd.view, np.zeros(2, {"names": ["x", "y"], "formats": ["<f4", "<f4"], "offsets": [0, 0]})),
    "device-item-type": partial(cd.from_dlpack, Offers(abi.make(), (1.0, 0))),
    "device-mismatch": partial(cd.from_dlpack, Offers(abi.make(), (2, 0))),
    "device-missing": partial(cd.from_dlpack, Without()),
    "device-pair": partial(cd.from_dlpack, Offers(abi.make(), "x")),
    "dl-device": partial(VIEW.__dlpack__, dl_device=(2,)),
    "dl-device-type": partial(VIEW.__dlpack__, dl_device=2),
    "dlpack-missing": partial(LOOSE.from_dlpack, 42),
    "dtype-argument": partial(cd.view, cai(), device_id=0, dtype="float31"),
    "dtype-argument-type": partial(LOOSE.view, cai(), device_id=0, dtype=42),
    "dtype-override": partial(cd.view, cai(), device_id=0, dtype="float64"),
    "field-none": partial(VIEW.field, "x"),
    "field-stride": cd.view(cai(typestr="|V6", descr=[("a", "<f4"), ("b", "<i2")]), device_id=0).field("a").__dlpack__,
    "field-unknown": partial(record().field, "z"),
    "mask-ambiguous": partial(cd.split_masked, masked("|u1", 64), device_id=0),
    "mask-dtype": partial(cd.split_masked, masked("<f4", 100), device_id=0),
    "max-version": partial(VIEW.__dlpack__, max_version=(1,)),
    "max-version-type": partial(VIEW.__dlpack__, max_version=1),
    "device-id-range": partial(cd.view, cai(), device_id=-1),
    "numpy-dtype": partial(getattr, tensor(dtype=(abi.FLOAT4_E2M1FN, 4, 2)).dtype, "__numpy_dtype__"),
    "overlap": partial(peer.double, np.lib.stride_tricks.as_strided(np.ones(1), (3,), (0,))),
    "owner-missing": partial(cd.view, interface()),
    "packed-legacy": partial(tensor(dtype=FLOAT4).__dlpack__, max_version=(1, 0)),
    "padded-legacy": tensor(dtype=FLOAT4, flags=abi.SUBBYTE_PADDED).__dlpack__,
    "pickle": VIEW.__reduce__,
    "producer-dtype": partial(LOOSE.view, strings()),
    "protocol-missing": partial(LOOSE.view, object()),
    "read-only-legacy": cd.view(cai(), device_id=0, read_only=True).__dlpack__,
    "read-only-writer": partial(peer.double, np.broadcast_to(np.ones(1), 3)),
    "rocm-order": partial(tensor(device=(10, 0)).on, 7),
    "scope-ended": left(cd.view(cai(), device_id=0)).__dlpack__,
    "shape-override": partial(cd.view, cai(), device_id=0, shape=(7,)),
    "share-ended": partial(cd.open, LEFT),
    "share-handle": partial(cd.open, LEFT, key=b"another"),
    "share-host": partial(cd.open, handles.changed(LEFT, handles.BOOT)),
    "share-memory": partial(handles.entered, ONES),
    "share-user": partial(cd.open, handles.changed(LEFT, handles.USER)),
    "stream-cpu": partial(tensor().__dlpack__, stream=1),
    "stream-none": partial(VIEW.on, None),
    "stream-object": partial(cd.use_stream, type("Stream", (), {"__cuda_stream__": 5})(), device_id=0),
    "stream-rocm": partial(tensor(device=(10, 0)).__dlpack__, stream=1),
    "stream-thread": partial(on_another_thread(partial(cd.view, cai(stream=2), device_id=0)).on, 7),
    "stream-undeclared": partial(cd.view, cai(version=2, stream=...), device_id=0, strict=True),
    "stream-unknown": partial(tensor(device=(2, 0)).consume, 7, strict=True),
    "stream-zero": partial(VIEW.__dlpack__, stream=0),
    "transfer-refused": partial(VIEW.__dlpack__, dl_device=(3, 0)),
    "values-lazy": partial(LOOSE.view, negated()),
    "version-missing": partial(cd.view, cai(version=...), device_id=0, strict=True),
    "view-contiguous": partial(peer.demand, MATRIX.T, "C"),
    "view-device": partial(peer.demand, MATRIX, "cuda"),
    "view-dtype": partial(peer.demand, MATRIX.astype("f8"), ""),
    "view-in-use": partial(peer.borrow_both, ONES, ONES),
    "view-ndim": partial(peer.demand, MATRIX[0], ""),
    "view-shape": partial(peer.demand, MATRIX.T, "(any, 3)"),
}


@pytest.mark.parametrize("rule", OTHERS)
def test_one_refusal_of_each_rule_leaves_nothing(rule: str) -> None:
    call = OTHERS[rule]
    assert raised_by(call) == rule
    check_a_refusal_leaves_nothing(call, [])


def captured(rule: str, machine: Machine) -> Iterator[Call]:
    """Orders that a capture forbids: of the ready stream, of the asking one, of two, on the legacy stream."""
    captures, ready, asking = Captures(machine), machine.stream(), machine.stream()
    producer = cai(data=(machine.device_memory(24), False), stream=ready)
    begun = {"capture-consumer": [asking], "capture-other": [ready, asking]}
    for stream in begun.get(rule, [ready]):
        captures.begin(stream)
    named: Any = {"capture-legacy": 1, "capture-host-wait": "host"}.get(rule, asking)
    try:
        yield partial(cd.to_dlpack, producer, device_id=0, stream=named)
    finally:
        captures.close()


def of_the_driver(rule: str, machine: Machine) -> Iterator[Call]:
    pointer = machine.device_memory(24, ordinal=1)
    producer = cai(data=(pointer, False), shape=(1 << 20,))
    yield {
        "pointer-unknown": partial(cd.view, cai(data=(0x7000, False))),
        "pointer-device": partial(cd.view, producer, device_id=0, check="bounds"),
        "out-of-bounds": partial(cd.view, producer, device_id=1, check="bounds"),
        "present-as": partial(tensor(device=(abi.CPU, 0)).present_as, "cuda"),
        "share-device": partial(cd.open, handles.changed(LEFT, handles.DEVICE, handles.STARTED)),
    }[rule]
    machine.free(pointer)


CAPTURED = ["capture-producer", "capture-consumer", "capture-other", "capture-host-wait", "capture-legacy"]
DRIVEN = ["pointer-unknown", "pointer-device", "out-of-bounds", "present-as", "share-device"]


@pytest.mark.parametrize("rule", [*CAPTURED, *DRIVEN])
def test_one_refusal_that_asks_the_driver_leaves_nothing(rule: str, machine: Machine) -> None:
    with contextlib.contextmanager(captured if rule in CAPTURED else of_the_driver)(rule, machine) as call:
        assert raised_by(call) == rule
        count = min(REFUSALS, 10_000)
        # The simulated driver keeps a log of its calls, which grows the heap.
        assert min(abs(growth(in_c(call), [], count)[1]) for _ in range(2)) < count // 4
        machine.clear()


def test_every_rule_is_counted() -> None:
    """Each rule is among the rows or the others, or is listed with a reason."""
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    rules = set(re.findall(r"^### ([a-z0-9-]+)$", text, re.MULTILINE))
    rows = {row.rule for row in (*CAI_ROWS, *CAI_ONLY_ROWS)} | {row.rule for row in TENSOR_ROWS}
    assert rules - rows - {*OTHERS, *CAPTURED, *DRIVEN, *ELSEWHERE} == set()


# Counted by other tests here; and not counted.
ELSEWHERE = {
    "capsule-name": "test_a_refused_capsule_leaves_nothing",
    "capsule-used": "test_a_refused_capsule_leaves_nothing",
    "dlpack-major": "test_another_major_version_leaves_nothing",
    "capsule-null": "not counted: NULL comes through a table of C",
    "tensor-alignment": "test_a_tensor_that_is_not_aligned_leaves_nothing",
    "exchange-allocator": "not counted: a table of C, which raises nothing",
    "capture-invalid": "not counted: the capture ends with the first try",
    "stream-context": "not counted: two contexts in one call; conformance/tests/streams/test_default_streams.py",
    "stream-device": "not counted: two devices in one call of an example",
    "rocm-device": "not counted: a process that has loaded ROCm; conformance/tests/test_rocm.py",
}


def raised_by(call: Call) -> object:
    try:
        call()
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        return getattr(error, "rule", None)
    raise AssertionError("accepted")
