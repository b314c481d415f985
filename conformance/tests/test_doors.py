"""Tests that each way into the library refuses the same tensor by the same rule: functions, capsule, table, Rust."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import cai_dlpack as cd
import cai_example_peer as peer
import numpy as np
import pytest
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import FAKE_POINTER, Cai, Dlpack, cai, interface
from conformance.tests.ownership import native
from conformance.tests.test_malformed_cai import CAI_ONLY_ROWS
from conformance.tests.test_malformed_cai import ROWS as CAI_ROWS
from conformance.tests.test_malformed_dlpack import TENSOR_ROWS

Door = Callable[[Any], object]


def rule_of(call: Callable[[], object]) -> str:
    """The rule of the refusal, or what was accepted."""
    try:
        answer = call()
    except (TypeError, ValueError, BufferError) as error:
        return str(getattr(error, "rule", f"no rule: {error}"))
    return f"accepted: {answer!r}"


def tabled(made: abi.Made, **members: Any) -> object:
    """An object whose type exports the tensor by a table, and by `__dlpack__` as well."""
    producer = exchange.Producer(made)
    return exchange.make_type(exchange.capsule(exchange.table(producer)), producer, **members)()


# Into the library, for any object that has a protocol.
OF_OBJECTS: dict[str, Door] = {
    "view": cd.view,
    "to_dlpack": cd.to_dlpack,
    "a Rust function": peer.view_of,
    "In": peer.extract,
    "an option": partial(cd.view, read_only=True),
}
OF_DLPACK: dict[str, Door] = {**OF_OBJECTS, "from_dlpack": cd.from_dlpack}
OF_CAI: dict[str, Door] = {**OF_OBJECTS, "from_cai": cd.from_cai}

# How a tensor is offered.
OFFERS: dict[str, Callable[[abi.Made], object]] = {
    "an object": Dlpack,
    "a capsule": lambda made: made.capsule(),
    "a table": tabled,
}


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("row", TENSOR_ROWS, ids=lambda row: row.id)
def test_a_malformed_tensor(row: Any, offer: str) -> None:
    found = {}
    for versioned in (True, False):
        if offer == "a table" and not versioned:
            continue
        for name, door in OF_DLPACK.items():
            made = abi.make(versioned=versioned, **row.changes)
            # Ends when nothing is raised any more, as the double of a capsule must.
            offered = OFFERS[offer](made)
            found[name, versioned] = rule_of(partial(door, offered))
            del offered
            gc.collect()
            # A device that is refused when it is announced is not exported at all.
            assert made.released == 1 or (row.field == "device" and offer != "a capsule")
    assert set(found.values()) == {row.rule}, found


@pytest.mark.parametrize("row", CAI_ROWS, ids=lambda row: row.id)
def test_a_malformed_interface(row: Any) -> None:
    changes = {row.key: row.value}
    found = {name: rule_of(partial(door, cai(**changes))) for name, door in OF_CAI.items()}
    bare = interface(**changes)
    found["view of a dict"] = rule_of(lambda: cd.view(bare, owner=row))
    found["from_cai of a dict"] = rule_of(lambda: cd.from_cai(bare, owner=row))
    if row.key != "mask":
        found["split_masked"] = rule_of(lambda: cd.split_masked(cai(**changes)))
    explained = cd.explain(cai(**changes)).refused or ""
    if row.key != "mask":
        found["explain"] = row.rule if explained.endswith(f"[{row.rule}]") else explained
    assert set(found.values()) == {row.rule}, found


def by_table(view: object) -> object:
    owning = exchange.FromObject(exchange.table_of(cd.CaiView).from_object)
    return owning(id(view), ctypes.byref(ctypes.c_void_p()))


def borrowed(view: object) -> object:
    borrow = exchange.Borrow(exchange.table_of(cd.CaiView).borrow)
    return borrow(id(view), ctypes.byref(abi.DLTensor()))


# Out of the library by DLPack, and to the elements.
OUT: dict[str, Door] = {
    "__dlpack__": lambda view: view.__dlpack__(),
    "a copy": lambda view: view.__dlpack__(copy=True, max_version=(1, 3)),
    "a copy on the host": lambda view: view.__dlpack__(dl_device=(1, 0)),
    "without order": lambda view: view.__dlpack__(stream=-1),
    "the table": by_table,
    "the table, borrowed": borrowed,
    "from_dlpack": cd.from_dlpack,
    "to_dlpack": cd.to_dlpack,
    "a Rust function": peer.view_of,
    "In": peer.extract,
    "a view of it": lambda view: cd.view(view).__dlpack__(),
    "another stream": lambda view: view.on(7).__dlpack__(),
}


@pytest.mark.parametrize("row", CAI_ONLY_ROWS, ids=lambda row: row.id)
def test_what_cai_alone_can_say(row: Any) -> None:
    changes = {row.key: row.value}
    into = {name: OF_CAI[name] for name in ("to_dlpack", "a Rust function", "In")}
    found = {name: rule_of(partial(door, cai(**changes))) for name, door in into.items()}
    for door in (cd.view, cd.from_cai, lambda obj, **_: cd.split_masked(obj, device_id=0)[0]):
        view: Any = door(cai(**changes), device_id=0)
        for name, out in OUT.items():
            found[name] = rule_of(partial(out, view))
        assert view.to_cai()["shape"] == (2, 3)
    for what in (view, cai(**changes)):
        explained = cd.explain(what, device_id=0, to="torch").refused or ""
        found["explain to torch"] = row.rule if f"[{row.rule}]" in explained else explained
        assert set(found.values()) == {row.rule}, found
        # A reader of the interface takes it if NumPy has the type, and the import itself refuses nothing.
        by_numba = cd.explain(what, device_id=0, to="numba").refused
        assert by_numba is None or by_numba == "numba refuses types that NumPy lacks"
        plain = cd.explain(what, device_id=0)
        assert plain.refused is None and f"[{row.rule}]" in str(plain)


@pytest.mark.parametrize("row", CAI_ONLY_ROWS, ids=lambda row: row.id)
def test_what_no_assertion_remedies_is_refused_first(row: Any) -> None:
    view: Any = cd.view(cai(**{row.key: row.value}), device_id=0, read_only=True)
    found = {name: rule_of(partial(out, view)) for name, out in OUT.items()}
    assert set(found.values()) == {row.rule}, found


# --- values that an operation is still pending on ---------------------------------------------------------------


#: The flags of torch, each a method or a property.
PENDING: dict[str, dict[str, Any]] = {
    f"{flag}{kind}": {flag: value}
    for flag in ("is_neg", "is_conj")
    for kind, value in (("()", lambda self: True), ("", True))
}
COMPLEX: dict[str, Any] = {"dtype": (abi.COMPLEX, 64, 1)}


def on_cuda() -> abi.Made:
    return abi.make(device=(abi.CUDA, 0), data=FAKE_POINTER, **COMPLEX)


def lazily(base: type, pending: dict[str, Any], *made: object, **members: Any) -> Any:
    return type("Lazy", (base,), {**pending, **members})(*made)


def complexes(**changes: Any) -> dict[str, Any]:
    return interface(typestr="<c8", **changes)


def both(pending: dict[str, Any], **changes: Any) -> Any:
    """Has an interface beside its tensor."""
    return lazily(Dlpack, pending, on_cuda(), __cuda_array_interface__=complexes(**changes))


def tabled_both(pending: dict[str, Any]) -> object:
    return tabled(on_cuda(), **pending, __cuda_array_interface__=complexes(version=2, stream=...))


def explained(obj: object, **keywords: Any) -> object:
    """Raises what `explain` tells, so that it is a door."""
    refused = cd.explain(obj, **keywords).refused
    if refused is None:
        return "nothing refused"
    error: Any = BufferError(refused)
    error.rule = refused[refused.rindex("[") + 1 : -1] if refused.endswith("]") else refused
    raise error


WITH_A_STREAM: dict[str, Door] = {
    f"{door.__name__} with {stream}": partial(door, producer_stream=stream)
    for stream in (None, 1, 0x5550)
    for door in (cd.view, cd.from_dlpack, cd.to_dlpack, explained)
}
WITHOUT_DLPACK = {name: door for name, door in WITH_A_STREAM.items() if "from_dlpack" not in name}
SPLIT: dict[str, Door] = {"split_masked": cd.split_masked, "explain": explained}
#: How pending values are offered, and by which doors they come.
LAZY: dict[str, tuple[Callable[[dict[str, Any]], object], dict[str, Door]]] = {
    "by a table": (lambda pending: tabled(abi.make(**COMPLEX), **pending), {**OF_DLPACK, **SPLIT}),
    "by a table on a device": (tabled_both, {**OF_DLPACK, **OF_CAI, **WITH_A_STREAM, **SPLIT}),
    "by __dlpack__": (lambda pending: lazily(Dlpack, pending, abi.make(**COMPLEX)), {**OF_DLPACK, **SPLIT}),
    "on a device by __dlpack__": (lambda pending: lazily(Dlpack, pending, on_cuda()), {**OF_DLPACK, **WITH_A_STREAM}),
    "by the interface": (lambda pending: lazily(Cai, pending, complexes()), {**OF_CAI, **WITHOUT_DLPACK, **SPLIT}),
    "by both": (partial(both, version=2, stream=...), {**OF_DLPACK, **OF_CAI, **WITH_A_STREAM, **SPLIT}),
    "by both, ready": (both, {**OF_DLPACK, **OF_CAI, **WITH_A_STREAM, **SPLIT}),
}


@pytest.mark.parametrize("pending", PENDING)
@pytest.mark.parametrize("offer", LAZY)
def test_pending_values(offer: str, pending: str) -> None:
    make, doors = LAZY[offer]
    found = {name: rule_of(partial(door, make(PENDING[pending]))) for name, door in doors.items()}
    assert set(found.values()) == {"values-lazy"}, found


@pytest.mark.parametrize("pending", PENDING)
def test_pending_values_are_not_exported_before_they_are_refused(pending: str) -> None:
    producer = lazily(Dlpack, PENDING[pending], abi.make(**COMPLEX))
    for door in OF_DLPACK.values():
        rule_of(partial(door, producer))
    assert producer.calls == []


# --- objects that stand for another -----------------------------------------------------------------------------


class Wrapper:
    """Has the attributes of another object."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)


class Below:
    """The same, by the method below `__getattr__`."""

    def __init__(self, array: Any) -> None:
        object.__setattr__(self, "_array", array)

    def __getattribute__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_array"), name)


def copied(array: Any) -> object:
    names = ("__dlpack__", "__dlpack_device__", "__cuda_array_interface__", "is_neg", "is_conj")
    return SimpleNamespace(**{name: getattr(array, name) for name in names if hasattr(array, name)})


STAND_INS: dict[str, Callable[[Any], Any]] = {
    "weakref.proxy": weakref.proxy,
    "__getattr__": Wrapper,
    "__getattribute__": Below,
    "own attributes": copied,
}
ALL_DOORS: dict[str, Door] = {
    **OF_DLPACK,
    "split_masked": cd.split_masked,
    "to": lambda obj: cd.to(obj, "numpy"),
    "explain": explained,
}


@pytest.mark.parametrize("stand_in", STAND_INS)
def test_an_object_whose_type_has_no_dlpack_is_refused_by_every_door(stand_in: str) -> None:
    """Its type is what tells masks, pending values and the streams that a library ignores."""
    masked = np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False])
    pending = lazily(Dlpack, PENDING["is_neg()"], abi.make(**COMPLEX))
    for array in (np.zeros(3), masked, Dlpack(abi.make()), pending):
        found = {name: rule_of(partial(door, STAND_INS[stand_in](array))) for name, door in ALL_DOORS.items()}
        assert found.pop("from_dlpack") == "dlpack-missing"
        assert set(found.values()) == {"protocol-missing"}, found
    for door in (cd.view, cd.from_dlpack):
        with pytest.raises(TypeError, match="pass the array that it stands for"):
            door(STAND_INS[stand_in](masked))


@pytest.mark.parametrize("found", [KeyError, RuntimeError, None])
def test_code_that_finds_attributes_is_asked_for_no_state(found: type[Exception] | None) -> None:
    """It may raise anything, return anything, or call another process."""

    class Anything(Dlpack):
        asked: ClassVar[set[str]] = set()

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            Anything.asked.add(name)
            if found is not None:
                raise found(name)
            return lambda argument: argument

    class WithInterface(Anything):
        __cuda_array_interface__ = interface()

    for door in (cd.view, cd.from_dlpack, cd.to_dlpack):
        assert rule_of(partial(door, Anything(abi.make()))).startswith("accepted")
    for door in (cd.view, cd.from_cai, cd.to_dlpack):
        assert rule_of(partial(door, WithInterface(abi.make()), device_id=0)).startswith("accepted")
    assert not Anything.asked & {"is_neg", "is_conj"}


# --- a table that fails ----------------------------------------------------------------------------------------


class NoMemory(BufferError):
    """The producer's own exception."""


def failing(function: Any) -> tuple[object, exchange.Producer]:
    """An object whose table fails and whose `__dlpack__` raises `NoMemory`, as torch does on `meta`."""
    producer = exchange.Producer()

    def refuse(self: object, **_: Any) -> object:
        producer.fallbacks.append({})
        raise NoMemory("Cannot pack tensors on meta")

    table = exchange.table(producer, from_object=function)
    return exchange.make_type(exchange.capsule(table), producer, __dlpack__=refuse)(), producer


@pytest.mark.parametrize("name", [name for name in OF_DLPACK if name != "from_dlpack"])
def test_a_vague_failure_of_a_table_is_that_of_the_method(name: str) -> None:
    obj, producer = failing(native.with_gil().fail_vaguely)
    with pytest.raises(NoMemory) as found:
        OF_DLPACK[name](obj)
    assert str(found.value) == "Cannot pack tensors on meta"
    assert len(producer.fallbacks) == 1
    # SystemError, for anything but a list.
    obj, producer = failing(ctypes.pythonapi.PyList_Append)
    with pytest.raises(SystemError):
        OF_DLPACK[name](obj)
    assert producer.fallbacks == []


# --- what a producer does not say itself -------------------------------------------------------------------------


class Deleted(Dlpack):
    """As a deleted array of JAX."""

    def is_deleted(self) -> bool:
        return True

    def __dlpack_device__(self) -> Any:
        return len(None)  # type: ignore[arg-type]


class DeletedLate(Deleted):
    def __dlpack_device__(self) -> Any:
        return (1, 0)

    def __dlpack__(self, **_: Any) -> object:
        raise RuntimeError("Array has been deleted")


@pytest.mark.parametrize("kind", [Deleted, DeletedLate])
def test_a_deleted_array(kind: type[Dlpack]) -> None:
    for door in OF_DLPACK.values():
        with pytest.raises(BufferError, match="its producer raised") as found:
            door(kind(abi.make()))
        assert found.value.rule == "array-deleted"  # type: ignore[attr-defined]
        assert found.value.__cause__ is not None


class DeletedOnTheHost(DeletedLate):
    """As JAX's on the CPU, which have no interface, deleted or not."""

    @property
    def __cuda_array_interface__(self) -> Any:
        raise AttributeError("only defined for NVidia GPU buffers")


class SparseOnTheHost(DeletedOnTheHost):
    """As Paddle's."""

    def is_deleted(self) -> bool:
        return False

    def is_sparse(self) -> bool:
        return True


@pytest.mark.parametrize(("kind", "rule"), [(DeletedOnTheHost, "array-deleted"), (SparseOnTheHost, "not-strided")])
def test_from_cai_of_what_no_door_takes(kind: type[Dlpack], rule: str) -> None:
    found = {name: rule_of(partial(door, kind(abi.make()))) for name, door in {**OF_DLPACK, **OF_CAI}.items()}
    assert set(found.values()) == {rule}, found


def test_a_tracer() -> None:
    base = type("Tracer", (), {"__module__": "jax._src.core"})
    tracer = type("JitTracer", (base,), {"__dlpack__": lambda self, **_: None})()
    found = {name: rule_of(partial(door, tracer)) for name, door in {**OF_DLPACK, **OF_CAI}.items()}
    assert set(found.values()) == {"array-traced"}, found


class Text:
    name = "string"


def test_a_dtype_that_the_producer_aborts_on() -> None:
    """As a tensor of TensorFlow, whose `__dlpack__` ends the process for one of strings."""
    members = {"__module__": "tensorflow.python.framework.ops", "dtype": Text()}
    kind: Any = type("EagerTensor", (Dlpack,), members)
    producer: Any = kind(abi.make())
    found = {name: rule_of(partial(door, producer)) for name, door in OF_DLPACK.items()}
    assert set(found.values()) == {"producer-dtype"}, found
    assert producer.calls == []
    kind.dtype = type("Float", (), {"name": "float32"})()
    assert cd.view(producer).dtype == "float32"


def test_an_array_without_a_dtype_of_a_producer_that_aborts_on_some() -> None:
    kind: Any = type("EagerTensor", (Dlpack,), {"__module__": "tensorflow.python.framework.ops"})
    for dtype in (None, object()):
        producer: Any = kind(abi.make())
        if dtype is not None:
            producer.dtype = dtype
        assert cd.view(producer).dtype == "float32"
        assert len(producer.calls) == 1
