"""Tests the spellings of an argument: devices by name, shapes as lists and with the rest, arrays to join."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import Dlpack, cai
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.simulated.machine import Machine, one_event

LOOSE: Any = cd


@dataclass
class TorchDevice:
    """Looks like a torch.device."""

    type: Any
    index: Any = None


# --- devices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "pair"),
    [
        ("cpu", (1, 0)),
        ("cpu:0", (1, 0)),
        ("cuda:1", (2, 1)),
        ("cuda:0", (2, 0)),
        (TorchDevice("cpu"), (1, 0)),
        (TorchDevice("cuda", 1), (2, 1)),
        ((13, 0), (13, 0)),
    ],
)
def test_a_device_by_any_name(device: Any, pair: tuple[int, int], machine: Machine) -> None:
    producer = Dlpack(abi.make(device=pair, data=machine.managed_memory(64)))
    assert cd.from_dlpack(producer, device=device).device == pair
    assert producer.calls[-1]["dl_device"] == pair
    view = cd.view(producer)
    stream = None if pair == (1, 0) else -1
    tensor = abi.consume(cd.to_dlpack(view, dl_device=device, max_version=(1, 3), stream=stream))
    assert tensor.device == pair
    abi.release(tensor)


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("device", ["cuda", TorchDevice("cuda")])
def test_cuda_is_the_current_device(device: Any, current: int, machine: Machine) -> None:
    producer = Dlpack(abi.make(device=(2, current), data=machine.device_memory(64, current)))
    machine.set_current(current)
    assert cd.from_dlpack(producer, device=device).device == (2, current)


WRONG = [
    "",
    "gpu",
    "cuda:",
    "cuda:-1",
    "cuda:+1",
    "cuda: 1",
    "cuda:x",
    "cpu:1",
    "CUDA",
    "cuda:99999999999",
    "meta",
    "\ud800",
]


@pytest.mark.parametrize("device", [*WRONG, *(TorchDevice(name) for name in ("", "meta", "\ud800"))], ids=repr)
def test_a_name_of_no_device(device: Any) -> None:
    for call, field in [
        (lambda: cd.from_dlpack(np.zeros(3), device=device), "device"),
        (lambda: cd.to_dlpack(np.zeros(3), dl_device=device), "dl_device"),
        (lambda: cd.view(np.zeros(3)).__dlpack__(dl_device=device), "dl_device"),
    ]:
        check_refusal(refuse(call, ValueError), "argument-value", field, hint="cuda:1")


# --- shapes -----------------------------------------------------------------------------------------------


SHAPES = [
    shape for axes in (1, 2, 3) for shape in itertools.product((-1, 0, 1, 2, 6), repeat=axes) if shape.count(-1) == 1
]


def exported(array: Any, **given: Any) -> cd.CaiView:
    return cd.view(cd.to_dlpack(array, **given))


@pytest.mark.parametrize("count", [0, 1, 6, 12])
@pytest.mark.parametrize("call", [cd.view, cd.from_dlpack, exported])
def test_the_rest_of_a_shape_is_numpys(call: Any, count: int) -> None:
    """Every shape of up to three extents, the rest among them, of arrays with elements and without."""
    array = np.arange(count, dtype="f4")
    for shape in SHAPES:
        try:
            expected = array.reshape(shape).shape
        except ValueError:
            refused = refuse(partial(call, array, shape=shape), BufferError)
            check_refusal(refused, "shape-override", "shape")
            continue
        assert call(array, shape=shape).shape == expected == call(array, shape=list(shape)).shape


@pytest.mark.parametrize(("dtype", "bits"), [("uint8", 8), ("float32", 32), ("complex64", 64), ("float4_e2m1fn", 4)])
def test_the_rest_is_in_elements_of_the_dtype(dtype: str, bits: int, machine: Machine) -> None:
    raw = np.zeros(48, np.uint8)
    assert cd.view(raw, dtype=dtype, shape=(2, -1)).shape == (2, 48 * 8 // bits // 2)
    given = cai(data=(machine.device_memory(64), False), shape=(24,), typestr="|u1")
    assert cd.view(given, dtype=dtype, shape=[-1]).shape == (24 * 8 // bits,)
    assert math.prod(cd.view(raw, dtype=dtype, shape=[-1]).shape) * bits == 48 * 8


@pytest.mark.parametrize(
    ("shape", "raises", "rule"),
    [
        ((-1, -1), ValueError, "shape-extent"),
        ((-2,), ValueError, "shape-extent"),
        ((4, -1), BufferError, "shape-override"),
        ((0, -1), BufferError, "shape-override"),
        ({6}, TypeError, "argument-type"),
        (6, TypeError, "argument-type"),
        ([2.0], TypeError, "argument-type"),
    ],
)
def test_a_shape_that_is_none(shape: Any, raises: type[Exception], rule: str) -> None:
    for call in (LOOSE.view, LOOSE.to_dlpack, LOOSE.from_dlpack):
        check_refusal(refuse(partial(call, np.zeros(6, "f4"), shape=shape), raises), rule, "shape")


def test_a_list_that_changes_while_it_is_read() -> None:
    class Empties:
        def __index__(self) -> int:
            shape.clear()
            return 2

    shape: list[Any] = [Empties(), 3]
    assert cd.view(np.zeros(6), shape=shape).shape == (2, 3)


# --- join ---------------------------------------------------------------------------------------------------


def test_arrays_are_joined_as_their_views_are(machine: Machine) -> None:
    """The same events, and a ready view for each array, in order."""
    a, b, on = (machine.stream() for _ in range(3))
    arrays = [cai(data=(machine.device_memory(64), False), stream=stream) for stream in (a, b, a)]
    machine.clear()
    from_views = cd.join([cd.view(array) for array in arrays], on=on)
    expected = machine.order()
    machine.clear()
    joined = cd.join([arrays[0], b, *arrays[1:]], on=on)
    assert sorted(machine.order()) == sorted(expected) == sorted([*one_event(a, on), *one_event(b, on)])
    for view, of_view, array in zip(joined, from_views, arrays, strict=True):
        assert (view.ptr, view.stream, view.owner) == (of_view.ptr, on, array)


def test_an_item_that_is_refused_leaves_every_stream(machine: Machine) -> None:
    stream = machine.stream()
    pending = cai(data=(machine.device_memory(64), False), stream=stream)
    machine.clear()
    for wrong in ("x", cai(typestr="zz"), None, np.ma.masked_array([1], [True])):
        with pytest.raises(cd.Refusal):
            LOOSE.join([pending, cd.view(pending), wrong], on=2)
    assert machine.order() == []
