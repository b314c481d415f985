"""Attributes that no producer should have, classes in place of their instances, and arrays that NumPy has no type for.

Whatever of them is refused is refused by rule and field: an exception of the producer's own stays the cause.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import cai_dlpack as cd
import cai_example_peer as peer
import numpy as np
import pytest
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import FAKE_POINTER, Cai, Dlpack, StreamObject, cai, interface
from conformance.tests.interpreter.process import ROOT

LOOSE: Any = cd  # called with what its annotations forbid
RULES = (ROOT / "docs" / "rules.md").read_text()

DOORS: dict[str, Callable[[Any], Any]] = {
    "view": cd.view,
    "from_dlpack": cd.from_dlpack,
    "from_cai": cd.from_cai,
    "to_dlpack": cd.to_dlpack,
    "split_masked": cd.split_masked,
    "a Rust function": peer.view_of,
    "In": peer.extract,
}


class OfItsOwn(Exception):
    """The producer's own exception."""


def check(error: BaseException, about: object) -> str:
    """The error keeps the contract; returns its rule."""
    rule, field = getattr(error, "rule", None), getattr(error, "field", None)
    assert isinstance(rule, str), f"no rule: {about}: {error!r}"
    assert isinstance(field, str), f"no field: {about}: {error!r}"
    assert field in str(error), f"{field} is not named: {about}: {error}"
    assert str(error).endswith(f"[{rule}]"), f"{about}: {error}"
    assert f"\n### {rule}\n" in RULES, rule
    return rule


# --- attributes -----------------------------------------------------------------------------------------------


class Truthless:
    def __bool__(self) -> bool:
        raise OfItsOwn("neither")


class Anything:
    """A class that can be called as any method."""

    def __init__(self, *_: Any, **__: Any) -> None: ...


class Sized:
    """A sequence of two that is no tuple, of what is no int."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, at: int) -> object:
        return Truthless()


# What is no protocol: set as the attribute, and returned by it if it is a method.
VALUES: dict[str, Any] = {
    "None": None,
    "int": 3,
    "float": 1.5,
    "text": "cpu",
    "bytes": b"x",
    "empty": (),
    "pair": (1, 0),
    "texts": ("a", "b"),
    "nones": (None, None),
    "list": [1, 0],
    "dict": {},
    "another dict": {"a": 1},
    "object": object(),
    "truthless": Truthless(),
    "sized": Sized(),
    "array": np.arange(2),
    "not implemented": NotImplemented,
    "ellipsis": ...,
    "class": Anything,
    "huge": 2**70,
    "huge pair": (2**70, 2**70),
    "capsule": exchange.capsule(exchange.table(exchange.Producer())),
}
METHODS = {"__dlpack__", "__dlpack_device__"}
ATTRIBUTES = [*sorted(METHODS), "__cuda_array_interface__", "__dlpack_c_exchange_api__", "__array_interface__"]


def whole(**members: Any) -> Any:
    """A producer of DLPack on the CPU, but for the members."""
    made = abi.make()
    methods = {"__dlpack__": lambda self, **_: made.capsule(), "__dlpack_device__": lambda self: (1, 0)}
    return type("Whole", (), {**methods, **members})()


def bare(**members: Any) -> Any:
    return type("Bare", (), members)()


def of_instance(**members: Any) -> Any:
    found = bare()
    vars(found).update(members)
    return found


def ways(name: str, value: Any) -> dict[str, Any]:
    """How an attribute comes to have the value."""
    found = {
        "whole": whole(**{name: value}),
        "alone": bare(**{name: value}),
        "by a property": whole(**{name: property(lambda self: value)}),
        "of the instance": of_instance(**{name: value}),
    }
    if name in METHODS:
        found |= {
            "returned": whole(**{name: lambda self, **_: value}),
            "returned alone": bare(**{name: lambda self, **_: value}),
        }
    return found


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_of_any_value(name: str) -> None:
    refused = taken = 0
    for kind, value in VALUES.items():
        for way, door in itertools.product(ways(name, value), DOORS):
            about = (name, kind, way, door)
            offered = ways(name, value)[way]  # a double is used once, and lives while it is refused
            try:
                DOORS[door](offered)
                taken += 1
            except (TypeError, ValueError, BufferError) as error:
                check(error, about)
                refused += 1
            if door == "view":
                told = cd.explain(ways(name, value)[way]).refused
                assert told is None or told.endswith("]"), (about, told)
    assert refused > 100, (refused, taken)


def test_none_is_no_method() -> None:
    """As Python has it: a class says by None that it lacks what its base has."""
    for name, rule in (("__dlpack__", "dlpack-missing"), ("__dlpack_device__", "device-missing")):
        obj = whole(**{name: None})
        with pytest.raises(TypeError) as caught:
            cd.from_dlpack(obj)
        assert check(caught.value, name) == rule
    # What is left of the object is taken.
    kind = type("Both", (Cai,), {"__dlpack__": None, "__dlpack_device__": None})
    assert cd.view(kind(interface(version=2, stream=...)), device_id=0).shape == (2, 3)


@pytest.mark.parametrize("kind", VALUES)
def test_a_dict_with_any_entry(kind: str) -> None:
    for key, door in itertools.product(
        [*interface(), "descr", "mask"], ("view", "from_cai", "to_dlpack", "split_masked")
    ):
        for value in (VALUES[kind], (VALUES[kind], VALUES[kind]), (FAKE_POINTER, VALUES[kind]), [("x", VALUES[kind])]):
            try:
                LOOSE.__dict__[door](cai(**{key: value}), device_id=0)
            except (TypeError, ValueError, BufferError) as error:
                check(error, (key, door, value))
            except cd.DriverError as error:
                if key != "stream":  # the driver is asked about a handle
                    raise AssertionError((key, door, value)) from error


def test_the_cause_of_a_flag_that_is_neither() -> None:
    for flag, error in ((Truthless(), OfItsOwn), (np.arange(2), ValueError)):
        with pytest.raises(TypeError) as caught:
            cd.view(cai(data=(FAKE_POINTER, flag)), device_id=0)
        assert check(caught.value, flag) == "data-type"
        assert isinstance(caught.value.__cause__, error)


# --- classes in place of instances ----------------------------------------------------------------------------


def protocol_classes() -> list[type]:
    import tvm_ffi
    from cuda.core import Buffer
    from cuda.core.utils import StridedMemoryView
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    return [
        np.ndarray,
        np.ma.MaskedArray,
        cd.CaiView,
        Cai,
        Dlpack,
        tvm_ffi.Tensor,
        Buffer,
        StridedMemoryView,
        DeviceNDArray,
    ]


@pytest.mark.parametrize("kind", protocol_classes(), ids=lambda kind: kind.__name__)
def test_a_class_is_no_array(kind: type) -> None:
    for name, door in DOORS.items():
        with pytest.raises(TypeError) as caught:
            door(kind)
        assert check(caught.value, (kind, name)) == "class-not-instance"
        assert kind.__name__ in str(caught.value)
    assert (cd.explain(kind).refused or "").endswith("[class-not-instance]")
    with pytest.raises(TypeError) as caught:
        LOOSE.join([kind], on=1)
    check(caught.value, (kind, "join"))
    with pytest.raises((TypeError, BufferError)) as refused:
        cd.split_masked(cai(mask=kind), device_id=0)
    check(refused.value, (kind, "mask"))


def stream_classes() -> list[type]:
    from cuda.core import Stream

    return [StreamObject, Stream]


@pytest.mark.parametrize("kind", stream_classes(), ids=lambda kind: kind.__name__)
def test_a_class_is_no_stream(kind: type) -> None:
    view = cd.view(cai(), device_id=0)
    calls: list[Callable[[], object]] = [
        lambda: LOOSE.view(cai(), device_id=0, producer_stream=kind),
        lambda: LOOSE.from_dlpack(np.zeros(3), stream=kind),
        lambda: LOOSE.use_stream(kind, device_id=0),
        lambda: LOOSE.join([view], on=kind),
        partial(view.on, kind),  # type: ignore[arg-type]
        partial(view.consume, kind),  # type: ignore[arg-type]
        partial(view.__dlpack__, stream=kind),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(TypeError) as caught:
            call()
        check(caught.value, kind)


# --- layouts without strides ----------------------------------------------------------------------------------


class Layout:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


def sparse(layout: str, **members: Any) -> Any:
    """As a tensor of torch: its table takes every tensor for strided, and its methods raise."""

    def refuse(self: object, **_: Any) -> object:
        raise OfItsOwn("Can't export tensors with layout other than torch.strided")

    members = {"__dlpack__": refuse, "__cuda_array_interface__": property(refuse), **members}
    producer = exchange.Producer(abi.make())
    table = exchange.table(producer, from_object=exchange.FromObject(lambda _object, _out: -1))
    return exchange.make_type(exchange.capsule(table), producer, layout=Layout(layout), **members)()


SPARSE: dict[str, tuple[Callable[[], Any], str]] = {
    "csr": (lambda: sparse("torch.sparse_csr"), "torch.sparse_csr"),
    "coo": (lambda: sparse("torch.sparse_coo", is_sparse=True), "torch.sparse_coo"),
    "opaque": (lambda: sparse("torch._mkldnn"), "torch._mkldnn"),
    "nested": (lambda: sparse("torch.strided", is_nested=True), "nested"),
    "of a method": (lambda: sparse("", is_sparse=lambda self: True), "sparse"),
}


@pytest.mark.parametrize("kind", SPARSE)
def test_a_layout_without_strides(kind: str) -> None:
    make, layout = SPARSE[kind]
    for name, door in DOORS.items():
        with pytest.raises(BufferError) as caught:
            door(make())
        assert check(caught.value, (kind, name)) == "not-strided"
        assert layout in str(caught.value) and "obj.to_dense()" in str(caught.value)
        assert isinstance(caught.value.__cause__, OfItsOwn)
    assert (cd.explain(make()).refused or "").endswith("[not-strided]")


def test_a_strided_tensor_fails_in_its_own_words() -> None:
    for door in DOORS.values():
        with pytest.raises(OfItsOwn):
            door(sparse("torch.strided", is_sparse=False, is_nested=False))


# --- what NumPy has no type for -------------------------------------------------------------------------------

TYPES = [(abi.FLOAT, 32), (abi.INT, 8), (abi.BFLOAT, 16), (abi.COMPLEX, 32), (abi.BOOL, 8), (abi.INT, 4), (abi.INT, 1)]
TYPES += [(abi.FLOAT6_E2M3FN, 6), (abi.FLOAT4_E2M1FN, 4), (7, 8), (14, 8)]
READERS: dict[str, Callable[[Any], object]] = {
    "asarray": np.asarray,
    "array": partial(np.array, copy=True),
    "__array__": lambda view: view.__array__(),
    "memoryview": memoryview,
    "dtype": lambda view: np.dtype(view.dtype),
    "__numpy_dtype__": lambda view: view.__numpy_dtype__,
    "__array_interface__": lambda view: view.__array_interface__,
    "__cuda_array_interface__": lambda view: view.__cuda_array_interface__,
    "to_cai": lambda view: view.to_cai(),
}


@pytest.mark.parametrize("device", [1, 2, 7])
@pytest.mark.parametrize("reader", READERS)
def test_numpy_reads_a_view_or_is_refused_by_rule(reader: str, device: int) -> None:
    for (code, bits), lanes, flags in itertools.product(TYPES, (1, 2, 4), (0, abi.SUBBYTE_PADDED, abi.READ_ONLY)):
        made = abi.make((2,), dtype=(code, bits, lanes), device=(device, 0), flags=flags, data=None)
        view: Any = cd.view(made.capsule())
        try:
            READERS[reader](view)
        except (TypeError, BufferError, AttributeError) as error:
            check(error, (view.dtype, device))
