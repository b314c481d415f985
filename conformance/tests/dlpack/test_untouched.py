"""A refused import leaves its capsule alone: its name, its pointer, its tensor; and it can be imported afterwards.

One case for each rule that the import of a capsule can raise, by each door that raises it. The page of rules is the
list: a rule that is neither a case nor in `NOT_OF_A_CAPSULE` fails `test_every_rule_has_a_case` by its name.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cai_dlpack as cd
import cai_example_peer as peer
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import FAKE_POINTER, Dlpack, StreamObject
from conformance.tests.expectations.refusal import nothing_changes
from conformance.tests.interpreter.process import ROOT
from conformance.tests.simulated.capture import Captures
from conformance.tests.simulated.machine import Machine
from conformance.tests.test_malformed_dlpack import TENSOR_ROWS

Door = Callable[[Any], object]
#: What is made, and the door that refuses it.
Case = tuple[dict[str, Any], Door]

LOOSE: Any = cd  # called with what its annotations forbid
DOORS: dict[str, Door] = {
    "view": cd.view,
    "from_dlpack": cd.from_dlpack,
    "to_dlpack": cd.to_dlpack,
    "join": lambda capsule: cd.join([capsule], on=1),
    "an-argument": peer.view_of,
    "a-typed-argument": peer.extract,
}
#: The doors with the keywords of an import.
WITH_KEYWORDS = ("view", "from_dlpack", "to_dlpack")

ON_CUDA = {"device": (abi.CUDA, 0), "data": FAKE_POINTER}
ON_ROCM = {"device": (abi.ROCM, 0), "data": FAKE_POINTER}
BYTES = {"dtype": (abi.UINT, 8, 1), "shape": (24,)}
FLOAT4 = {"dtype": (abi.FLOAT4_E2M1FN, 4, 1), "shape": (8,)}
DOUBLES: dict[str, Any] = {"dtype": (abi.FLOAT, 64, 1), "shape": (3,)}

#: By rule: keywords that every function of an import refuses, and the tensor.
KEYWORDS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("argument-unexpected", {}, {"devce_id": 0}),
    ("argument-type", {}, {"read_only": 3}),
    ("argument-value", {}, {"check": "soon"}),
    ("stream-type", {}, {"producer_stream": "1"}),
    ("stream-zero", {}, {"producer_stream": 0}),
    ("stream-range", {}, {"producer_stream": -2}),
    ("stream-object", {}, {"producer_stream": type("Stream", (), {"__cuda_stream__": 5})()}),
    ("dtype-argument", {}, {"dtype": "float31"}),
    ("dtype-argument-type", {}, {"dtype": 42}),
    ("dtype-override", {}, {"dtype": "int32"}),
    ("shape-override", {}, {"shape": (7,)}),
    ("shape-extent", {}, {"shape": (-6,)}),
    ("shape-range", {}, {"shape": (2**63,)}),
    ("ndim-limit", {}, {"shape": (1,) * 65}),
    ("count-overflow", {}, {"shape": (2**40, 2**40)}),
    ("size-overflow", {}, {"shape": (2**61,)}),
    ("data-alignment", {**BYTES, **ON_CUDA, "byte_offset": 1}, {"dtype": "float32", "shape": (6,)}),
    ("data-alignment", {**ON_CUDA, "byte_offset": 1, **BYTES, "shape": (4, 1)}, {"dtype": "float32", "shape": (1,)}),
    ("stream-cpu", {}, {"producer_stream": 1}),
    ("device-id-range", ON_CUDA, {"device_id": -1}),
    ("pointer-device", ON_CUDA, {"device_id": 1}),
    ("pointer-unknown", ON_CUDA, {"check": "bounds"}),
]

#: What only one function refuses.
ITS_OWN: list[tuple[str, dict[str, Any], Door]] = [
    ("argument-count", {}, lambda capsule: LOOSE.view(capsule, 0)),
    ("copied-unasked", {"flags": abi.IS_COPIED}, partial(cd.from_dlpack, copy=False)),
    ("copy-needed", {}, partial(cd.from_dlpack, device=(2, 0), copy=False)),
    ("device-unknown", {}, partial(cd.from_dlpack, device=(99, 0))),
    ("device-id", {}, partial(cd.from_dlpack, device=(2, -1))),
    ("stream-cpu", {}, partial(cd.from_dlpack, stream=1)),
    ("stream-cpu", {}, partial(cd.to_dlpack, stream=1)),
    ("stream-rocm", ON_ROCM, partial(cd.to_dlpack, stream=1)),
    ("rocm-order", ON_ROCM, partial(cd.to_dlpack, stream=7)),
    ("max-version", {}, partial(LOOSE.to_dlpack, max_version=(1,))),
    ("max-version-type", {}, partial(LOOSE.to_dlpack, max_version=1)),
    ("dl-device", {}, partial(LOOSE.to_dlpack, dl_device=(2,))),
    ("dl-device-type", {}, partial(LOOSE.to_dlpack, dl_device=2)),
    ("transfer-refused", {}, partial(cd.to_dlpack, dl_device=(3, 0))),
    ("transfer-refused", {}, partial(cd.from_dlpack, device=(3, 0))),
    ("transfer-refused", {}, partial(cd.from_dlpack, device=(3, 0), copy=True)),
    ("transfer-refused", {}, partial(cd.from_dlpack, device=(3, 0), copy=False)),
    ("stream-type", {}, lambda capsule: cd.join([capsule], on=LOOSE.join)),
    ("stream-type", {}, lambda capsule: LOOSE.join([capsule, b"neither"], on=1)),
    ("device-mismatch", {}, lambda capsule: cd.join([capsule, Dlpack(abi.make(), device=(abi.CUDA, 0))], on=1)),
    ("capsule-used", {}, lambda capsule: cd.join([capsule, capsule], on=1)),
    ("copy-type", {}, partial(LOOSE.to_dlpack, copy=1)),
    ("copy-needed", ON_CUDA, partial(cd.to_dlpack, dl_device=(1, 0), copy=False)),
    ("copy-refused", {**FLOAT4}, partial(cd.to_dlpack, copy=True, dl_device=(1, 0))),
    ("copy-refused", ON_ROCM, partial(cd.to_dlpack, copy=True)),
    ("pointer-unknown", ON_CUDA, partial(cd.to_dlpack, copy=True)),
    ("read-only-legacy", {"flags": abi.READ_ONLY}, cd.to_dlpack),
    ("padded-legacy", {**FLOAT4, "flags": abi.SUBBYTE_PADDED}, cd.to_dlpack),
    ("packed-legacy", FLOAT4, partial(cd.to_dlpack, max_version=(1, 0))),
    ("view-dtype", DOUBLES, peer.extract),
    ("view-ndim", {"shape": (6,)}, peer.extract),
    ("data-alignment", {"byte_offset": 1}, peer.extract),
    ("read-only-writer", {**DOUBLES, "flags": abi.READ_ONLY}, peer.double),
    ("overlap", {**DOUBLES, "strides": (0,)}, peer.double),
]


def cases() -> Iterator[Any]:
    """Every case as a parameter: rule, tensor, door."""
    for row in TENSOR_ROWS:
        for name, door in DOORS.items():
            yield pytest.param(row.rule, row.changes, door, id=f"{row.id}-{name}")
    for name, door in DOORS.items():
        at_the_end = {"data": 2**64 - 16, "device": (abi.CUDA, 0)}
        yield pytest.param("address-range", at_the_end, door, id=f"address-range-{name}")
        yield pytest.param("dlpack-major", {"version": (2, 0)}, door, id=f"dlpack-major-{name}")
    for rule, changes, keywords in KEYWORDS:
        for name in WITH_KEYWORDS:
            yield pytest.param(rule, changes, partial(DOORS[name], **keywords), id=f"{rule}-{name}")
    for rule, changes, door in ITS_OWN:
        yield pytest.param(rule, changes, door, id=f"{rule}-its-own")


def check_untouched(made: abi.Made, rule: str, refuse: Door) -> None:
    """The door refuses by the rule; the capsule is as it was, and still owns its tensor, which it ends once."""
    before = bytes((ctypes.c_char * ctypes.sizeof(made.managed)).from_address(made.address))
    capsule = made.capsule()
    name = abi.name(capsule)
    with nothing_changes(capsule):
        assert rule_of(partial(refuse, capsule)) == rule
    assert (abi.name(capsule), abi.pointer(capsule), made.released) == (name, made.address, 0)
    assert bytes((ctypes.c_char * len(before)).from_address(made.address)) == before
    with contextlib.suppress(TypeError, ValueError, BufferError):
        cd.from_dlpack(capsule)
        assert abi.name(capsule) != name, "accepted, and not consumed"
    del capsule
    gc.collect()
    assert made.released == 1


def rule_of(call: Callable[[], object]) -> object:
    try:
        call()
    except (TypeError, ValueError, BufferError) as error:
        return getattr(error, "rule", error)
    raise AssertionError("accepted")


@pytest.mark.parametrize(("rule", "changes", "door"), list(cases()))
def test_refused_so_untouched(rule: str, changes: dict[str, Any], door: Door) -> None:
    check_untouched(abi.make(**changes), rule, door)


@pytest.mark.parametrize("door", WITH_KEYWORDS)
def test_out_of_bounds(door: str, machine: Machine) -> None:
    made = abi.make((1 << 20,), device=(abi.CUDA, 0), data=machine.device_memory(64))
    bounded: Any = DOORS[door]
    check_untouched(made, "out-of-bounds", partial(bounded, check="bounds"))


def test_view_in_use() -> None:
    """The capsule is the second argument, and its memory is the first one's."""
    ones = np.ones(3)
    made = abi.make(data=ones.ctypes.data, **DOUBLES)
    check_untouched(made, "view-in-use", partial(peer.borrow_both, ones))


#: Functions that have a stream wait for a capsule's data.
ORDERS: dict[str, Callable[[int], Door]] = {
    "to_dlpack": lambda stream: partial(cd.to_dlpack, stream=stream),
    "from_dlpack": lambda stream: partial(cd.from_dlpack, stream=stream, producer_stream=1),
    "from_dlpack, a copy": lambda stream: partial(cd.from_dlpack, stream=stream, producer_stream=1, copy=True),
    "to": lambda stream: lambda capsule: cd.to(capsule, cd.CaiView, stream=stream),
    "join": lambda stream: lambda capsule: cd.join([capsule], on=stream),
    "join, among others": lambda stream: lambda capsule: cd.join([np.ones(1).__dlpack__(), 1, capsule], on=stream),
}


@pytest.mark.parametrize("function", ORDERS)
@pytest.mark.parametrize("rule", ["capture-legacy", "capture-consumer"])
def test_no_order_can_be_made(rule: str, function: str, machine: Machine) -> None:
    """The data of a capsule is ready on the legacy default stream, which waits for every blocking stream."""
    captures, blocking = Captures(machine), ctypes.c_void_p()
    assert machine.driver.cuStreamCreate(ctypes.byref(blocking), 0) == 0
    captured = {"capture-consumer": machine.stream(), "capture-legacy": blocking.value or 0}[rule]
    asking = {"capture-consumer": captured, "capture-legacy": machine.stream()}[rule]
    made = abi.make(device=(abi.CUDA, 0), data=machine.device_memory(24))
    captures.begin(captured)
    try:
        check_untouched(made, rule, ORDERS[function](asking))
    finally:
        captures.close()


@pytest.mark.parametrize("function", ORDERS)
def test_an_order_that_the_driver_refuses(function: str, machine: Machine) -> None:
    """Each call fails once before the tensor is taken, or after which it is put back."""
    machine.control.set("log", 2)
    stream, device = machine.stream(), machine.device_memory(24)
    door = ORDERS[function](stream)

    def offered() -> abi.Made:
        return abi.make(device=(abi.CUDA, 0), data=device)

    door(offered().capsule())
    machine.clear()
    door(offered().capsule())
    calls, refused = machine.names(), 0
    for at, name in enumerate(calls):
        made = offered()
        capsule = made.capsule()
        machine.control.fault(name, 2, calls[: at + 1].count(name))
        try:
            door(capsule)
        except cd.DriverError:
            refused += 1
            # A copy that was enqueued keeps the tensor.
            if "cuMemcpy" not in "".join(calls[:at]):
                assert (abi.name(capsule), made.released) == (abi.VERSIONED, 0), name
        machine.control.clear_faults()
        del capsule
        wait_until(partial(getattr, made, "released"))
    machine.control.set("log", 1)
    assert refused > 1, calls


COPIES: dict[str, Door] = {
    "on a stream": partial(cd.to_dlpack, copy=True, stream=1, max_version=(1, 3)),
    "for the host": partial(cd.to_dlpack, copy=True, stream="host", max_version=(1, 3)),
    "to the host": partial(cd.to_dlpack, dl_device=(1, 0)),
    "with an owner": lambda capsule: cd.to_dlpack(capsule, copy=True, stream=1, max_version=(1, 3), owner=object()),
    "of a view": partial(cd.from_dlpack, copy=True),
    "of a view on a stream": lambda capsule: cd.from_dlpack(capsule, copy=True, stream=2),
    "of a view on the host": partial(cd.from_dlpack, device="cpu"),
}


def lives_at_most(count: int) -> bool:
    return cd.stats()["live"] <= count


def wait_until(condition: Callable[[], object]) -> None:
    """Waits for what another thread does; fails after five seconds."""
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end, condition
        time.sleep(0.01)


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("versioned", [True, False], ids=["versioned", "legacy"])
def test_a_copy_that_the_driver_refuses(copy: str, versioned: bool, machine: Machine) -> None:
    """Each call of the driver fails once: until the copy is enqueued the capsule is as it was, and afterwards it is
    taken only if the copy still reads the data."""
    device, door = machine.device_memory(24), COPIES[copy]

    def offered() -> tuple[abi.Made, Any]:
        made = abi.make(device=(abi.CUDA, 0), data=device, versioned=versioned)
        return made, made.capsule()

    door(offered()[1])  # What is made once, as a stream of the library's, is there from here on.
    machine.control.set("log", 2)  # The threads that end what copies have read call the driver, too.
    machine.clear()
    door(offered()[1])
    calls = machine.names()
    machine.control.set("log", 1)
    enqueued = max(at for at, name in enumerate(calls) if name.startswith("cuMemcpy"))
    refused_at = []
    for at, name in enumerate(calls):
        made, capsule = offered()
        own, stats = abi.name(capsule), cd.stats()["live"]
        machine.control.fault(name, 2, calls[: at + 1].count(name))
        try:
            door(capsule)
        except cd.DriverError:
            refused_at.append(name)
            assert at > enqueued or abi.name(capsule) == own, f"{name} is refused, and the capsule taken"
            if abi.name(capsule) == own:
                assert (abi.pointer(capsule), made.released) == (made.address, 0)
                # What a copy has kept ends on a thread of the library's: an earlier one's meanwhile, its own soon.
                wait_until(partial(lives_at_most, stats))
                view = cd.from_dlpack(capsule)
                assert (view.ptr, made.released) == (device, 0)
                del view
        machine.control.clear_faults()
        del capsule
        gc.collect()
        wait_until(partial(getattr, made, "released"))
        assert made.released == 1, f"{made.released} ends after {name}"
    assert any(name.startswith("cuMemcpy") for name in refused_at), refused_at
    assert len(refused_at) > 3, refused_at


def test_a_name_that_is_not_live() -> None:
    made = abi.make()
    for name, rule in ((b"strange", "capsule-name"), (abi.USED_VERSIONED, "capsule-used")):
        for door in DOORS.values():
            capsule = made.capsule(name)
            with nothing_changes(capsule):
                assert rule_of(partial(door, capsule)) == rule
            assert (abi.name(capsule), made.released) == (name, 0)


@pytest.mark.parametrize("door", DOORS)
def test_a_legacy_tensor_in_a_capsule_of_the_other_name(door: str) -> None:
    """Its pointer stands where the version would: another major version, of which nothing else is read or called."""
    made = abi.make(versioned=False)
    capsule = abi.new_capsule(made.address, abi.VERSIONED, destructor=False)
    assert rule_of(partial(DOORS[door], capsule)) == "dlpack-major"
    assert (abi.name(capsule), made.released) == (abi.VERSIONED, 0)


@pytest.mark.parametrize("door", DOORS)
def test_of_another_major_version_the_version_alone_is_read(door: str) -> None:
    """All but the version lies on a page that must not be read."""
    page = mmap.PAGESIZE
    block = mmap.mmap(-1, 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(block))
    address = start + page - ctypes.sizeof(abi.DLPackVersion)
    version = abi.DLPackVersion.from_address(address)
    version.major, version.minor = 2, 0
    protect = ctypes.CDLL(None).mprotect
    assert protect(ctypes.c_void_p(start + page), ctypes.c_size_t(page), 0) == 0
    capsule = abi.new_capsule(address, abi.VERSIONED, destructor=False)
    assert rule_of(partial(DOORS[door], capsule)) == "dlpack-major"
    assert abi.name(capsule) == abi.VERSIONED


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("versioned", [False, True], ids=["legacy", "versioned"])
def test_a_tensor_that_is_not_aligned_is_not_read(versioned: bool, door: str) -> None:
    made, name = abi.make(versioned=versioned), abi.VERSIONED if versioned else abi.LEGACY
    capsule = abi.new_capsule(abi.moved(made, 4), name)
    with nothing_changes(capsule):
        assert rule_of(partial(DOORS[door], capsule)) == "tensor-alignment"
    assert (abi.name(capsule), made.released) == (name, 0)


def test_what_is_not_refused_is_taken() -> None:
    """Each door takes the tensor that the cases start from."""
    for name, door in DOORS.items():
        made = abi.make()
        capsule = made.capsule()
        kept = door(capsule)
        assert abi.name(capsule) == abi.USED_VERSIONED, name
        del capsule, kept
        gc.collect()
        assert made.released == 1, name
    made = abi.make(device=(abi.CUDA, 0), data=FAKE_POINTER)
    capsule = made.capsule()
    moved = cd.to_dlpack(capsule, stream=-1, max_version=(1, 3), producer_stream=StreamObject(7), owner=made)
    assert abi.read(moved).data == FAKE_POINTER


def test_one_of_two_takes_the_tensor_while_the_driver_is_asked(machine: Machine) -> None:
    """The GIL is free between the check and the claim, which looks again."""
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            made = abi.make(device=(abi.CUDA, 0), data=machine.device_memory(24))
            check_one_winner(made)
            machine.free(made.tensor.data)
    finally:
        sys.setswitchinterval(switch)
        machine.clear()


def check_one_winner(made: abi.Made) -> None:
    capsule = made.capsule()
    start = threading.Barrier(2)
    outcome: list[object] = []
    claims = [partial(cd.view, capsule, check="bounds") for _ in range(2)]
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
    assert made.released == 1


#: Rules of tests of their own, above.
BY_NAME = {"out-of-bounds", "view-in-use", "capture-legacy", "capture-consumer", "capsule-name", "capsule-used"}
BY_NAME |= {"tensor-alignment"}

#: Rules that no import of a capsule can raise, by the reason.
NOT_OF_A_CAPSULE = {
    "a capsule has no NULL": {"capsule-null"},
    "a rule of objects": {
        "protocol-missing",
        "cai-missing",
        "cai-unavailable",
        "cai-none",
        "cai-type",
        "cai-method",
        "cai-empty",
        "class-not-instance",
        "owner-missing",
        "dlpack-missing",
        "rocm-device",
        "capsule-type",
        "device-missing",
        "device-pair",
        "device-item-type",
        "values-lazy",
        "array-deleted",
        "array-traced",
        "not-strided",
        "producer-dtype",
    },
    "a rule of the CUDA Array Interface": {
        "version-missing",
        "version-type",
        "version-range",
        "shape-missing",
        "shape-type",
        "shape-item-type",
        "data-missing",
        "data-type",
        "data-length",
        "data-pointer-type",
        "data-pointer-none",
        "data-pointer-range",
        "strides-type",
        "strides-item-type",
        "strides-length",
        "strides-range",
        "strides-multiple",
    },
    "a rule of views, which have been made": {
        "cai-device",
        "cai-dtype",
        "cai-sub-byte",
        "cai-lanes",
        "present-as",
        "buffer-layout",
        "buffer-format",
        "buffer-items",
        "array-unreadable",
        "stream-unknown",
        "stream-device",
        "field-unknown",
        "field-stride",
        "field-none",
        "scope-ended",
        "pickle",
        "deep-copy",
        "numpy-dtype",
        "consume-open",
    },
    "a rule in the body of a function, which has its arguments": {"view-contiguous", "view-device", "view-shape"},
    "an order that is refused where those above are, of data that is ready elsewhere": {
        "stream-thread",
        "stream-context",
        "capture-host-wait",
        "capture-producer",
        "capture-other",
        "capture-invalid",
    },
    "a rule of functions that take no capsule": {"argument-missing", "stream-none"},
    "a rule of what another process has": {
        "share-memory",
        "share-handle",
        "share-ended",
        "share-host",
        "share-user",
        "share-device",
    },
    "a function of the table of C, which takes what it is given": {"exchange-allocator"},
    "a producer that declares no stream: a bare capsule is ready on the caller's": {"stream-undeclared"},
}
#: Whole families: of typestrs, descriptions of fields, and masks, which a tensor does not have.
NOT_OF_A_TENSOR = ("typestr-", "descr-", "mask-")


def test_every_rule_has_a_case() -> None:
    page = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    rules = set(re.findall(r"^### ([a-z0-9-]+)$", page, re.MULTILINE))
    covered = {str(case.values[0]) for case in cases()} | BY_NAME
    excused = {rule for rule in rules if rule.startswith(NOT_OF_A_TENSOR)}.union(*NOT_OF_A_CAPSULE.values())
    assert rules - covered - excused == set(), "rules without a case"
    assert covered & excused == set(), "rules that a capsule raises after all"
    assert covered | excused == rules, "rules that are gone"
