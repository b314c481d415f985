"""On the host an element may have any address, in memory of CUDA an aligned one: by every door, and every way out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cai_dlpack as cd
import cai_example_peer as peer
import ml_dtypes
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import FAKE_POINTER, Dlpack, cai
from conformance.tests.test_doors import OF_DLPACK, OFFERS, Door, rule_of

# By name: NumPy's dtype and DLPack's.
DTYPES: dict[str, tuple[Any, tuple[int, int, int]]] = {
    "float32": (np.float32, (abi.FLOAT, 32, 1)),
    "int64": (np.int64, (abi.INT, 64, 1)),
    "uint16": (np.uint16, (abi.UINT, 16, 1)),
    "complex64": (np.complex64, (abi.COMPLEX, 64, 1)),
    "bfloat16": (ml_dtypes.bfloat16, (abi.BFLOAT, 16, 1)),
}
COUNT = 3


def array_of(dtype: str, offset: int) -> Any:
    """An array whose first element lies `offset` bytes past a multiple of 64."""
    kind = np.dtype(DTYPES[dtype][0])
    room = np.zeros(COUNT * kind.itemsize + 64 + offset, np.uint8)
    first = -room.ctypes.data % 64 + offset
    made = room[first : first + COUNT * kind.itemsize].view(kind)
    made[...] = np.arange(COUNT).astype(kind)
    return made


def raw(array: Any, kind: str) -> Any:
    return array.view(f"{kind}{array.itemsize}")


def record(array: Any) -> Any:
    return array.view([("x", array.dtype)])


def made(array: Any, dtype: str) -> abi.Made:
    made = abi.make((COUNT,), dtype=DTYPES[dtype][1], data=array.ctypes.data)
    made.kept = array  # type: ignore[attr-defined]
    return made


# How the elements are offered, and by which call they are viewed: each states type, shape and address.
IN: dict[str, Callable[[Any, str], Any]] = {
    "an array": lambda array, dtype: cd.view(array),
    "an array, by from_dlpack": lambda array, dtype: cd.from_dlpack(array),
    "an array, by Rust": lambda array, dtype: peer.view_of(array),
    "bytes": lambda array, dtype: cd.view(array.view(np.uint8), dtype=dtype, shape=(COUNT,)),
    "bytes, by from_dlpack": lambda array, dtype: cd.from_dlpack(array.view(np.uint8), dtype=dtype, shape=(COUNT,)),
    "raw items": lambda array, dtype: cd.view(raw(array, "V"), dtype=dtype),
    "raw items, by from_dlpack": lambda array, dtype: cd.from_dlpack(raw(array, "V"), dtype=dtype),
    "unsigned": lambda array, dtype: cd.view(raw(array, "u"), dtype=dtype),
    "a view of a view": lambda array, dtype: cd.view(cd.view(raw(array, "V")), dtype=dtype),
    "a field": lambda array, dtype: cd.view(record(array)).field("x"),
    "a field of a known type": lambda array, dtype: cd.view(raw(array, "V").view([("x", f"V{array.itemsize}")])).field(
        "x", dtype=dtype
    ),
    "a field of NumPy's": lambda array, dtype: cd.view(record(array)["x"]),
    "a mask's values": lambda array, dtype: cd.split_masked(array)[0],
}
DOORS: dict[str, Door] = {"view": cd.view, "from_dlpack": cd.from_dlpack, "Rust": peer.view_of}


def offered(offer: str, door: Door) -> Callable[[Any, str], Any]:
    return lambda array, dtype: door(OFFERS[offer](made(array, dtype)))


IN |= {f"{offer}, by {name}": offered(offer, door) for offer in OFFERS for name, door in DOORS.items()}
#: No dtype of these: a complex number is no integer, and bfloat16 has no typestr for a field to state.
LACKING = {"unsigned": {"complex64"}, "a field": {"bfloat16"}}


@pytest.mark.parametrize("way", IN)
def test_on_the_host_every_door_takes_any_address(way: str) -> None:
    taken = 0
    for dtype in DTYPES:
        if dtype in LACKING.get(way, ()):
            continue
        for offset in range(9):
            array = array_of(dtype, offset)
            view = IN[way](array, dtype)
            about = f"{way}: {dtype} at {offset}"
            assert (view.ptr, view.dtype, view.shape) == (array.ctypes.data, dtype, (COUNT,)), about
            tensor = abi.read(view.__dlpack__(max_version=(1, 3)))
            assert (tensor.data + tensor.byte_offset, tensor.dtype) == (view.ptr, DTYPES[dtype][1]), about
            assert cd.from_dlpack(view).ptr == view.ptr, about
            numpys = np.asarray(view)
            assert (numpys.ctypes.data, numpys.dtype) == (view.ptr, array.dtype), about
            assert numpys.tobytes() == array.tobytes(), about
            assert cd.explain(view, to="numpy").refused is None or dtype == "bfloat16", about
            taken += 1
    assert taken >= 9 * (len(DTYPES) - 1)


@pytest.mark.parametrize("device", [abi.CUDA, abi.CUDA_HOST, abi.CUDA_MANAGED])
@pytest.mark.parametrize("offer", OFFERS)
def test_in_memory_of_cuda_every_door_wants_an_aligned_one(offer: str, device: int) -> None:
    for _, code in DTYPES.values():
        tensor: dict[str, Any] = {"dtype": code, "shape": (COUNT,), "device": (device, 0), "data": FAKE_POINTER + 1}
        found = {name: rule_of(partial(door, OFFERS[offer](abi.make(**tensor)))) for name, door in OF_DLPACK.items()}
        assert set(found.values()) == {"data-alignment"}, found
    # Both sides of the interface can say it: refused by DLPack alone.
    view = cd.view(cai(data=(FAKE_POINTER + 1, False)), device_id=0)
    assert view.to_cai()["data"] == (FAKE_POINTER + 1, False)
    assert (
        rule_of(view.__dlpack__)
        == rule_of(lambda: cd.to_dlpack(cai(data=(FAKE_POINTER + 1, False))))
        == ("data-alignment")
    )


@pytest.mark.parametrize("device", [abi.ROCM, 11, 7])
def test_elsewhere_it_is_the_devices_affair(device: int) -> None:
    tensor: dict[str, Any] = {"device": (device, 0), "data": FAKE_POINTER + 1}
    for door in (cd.view, cd.from_dlpack, peer.view_of):
        assert door(Dlpack(abi.make(**tensor))).ptr == FAKE_POINTER + 1
        assert door(abi.make(**tensor).capsule()).ptr == FAKE_POINTER + 1
