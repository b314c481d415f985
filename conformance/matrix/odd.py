"""Arrays of kinds that few libraries make: tensors of any type, device and layout, records, dicts of any item.

A producer gets a source of chance, and returns an object for `view`.
"""

from __future__ import annotations

import ctypes
import functools
import random
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from cai_conformance import abi

from conformance.matrix.cells import NotMade
from conformance.tests.doubles.producers import Dlpack

Make = Callable[[random.Random], Any]

# (code, bits) of DLPack: usual ones first.
TYPES = [(2, 32), (0, 64), (1, 8), (2, 16), (2, 64), (5, 64), (5, 128), (6, 8), (4, 16), (5, 32), (18, 32)]
TYPES += [(code, 8) for code in range(7, 15)] + [(0, 4), (1, 4), (0, 2), (15, 6), (16, 6), (17, 4), (1, 1)]
# Types that cannot be exchanged.
TYPES += [(3, 64), (2, 128), (1, 24), (6, 32), (19, 8), (99, 8)]
# The CPU, opaque devices, pinned and managed memory, ROCm and what is new.
DEVICES = [(1, 0)] * 8 + [(1, 7), (1, 1), (4, 0), (7, 0), (7, 3), (8, 0), (11, 0), (14, 0), (15, 0), (16, 0)]
DEVICES += [(19, 0), (20, 0), (21, 0)]
SHAPES: list[tuple[int, ...]] = [(2, 3), (6,), (), (0, 3), (3, 0), (1,), (4, 4), (2, 1, 3), (1, 1, 1, 1, 1, 2)]
SHAPES += [(1,) * ndim for ndim in (5, 9, 10, 33, 64)]


def strides(shape: tuple[int, ...], chosen: random.Random) -> tuple[tuple[int, ...], int]:
    """Strides in elements, and the place of the first element."""
    compact = abi.compact(shape)
    kinds = ["compact", "compact", "compact", "columns", "gaps", "backwards", "partly", "repeated", "padded axes"]
    kind = chosen.choice(kinds)
    if kind == "columns":
        return tuple(reversed(abi.compact(shape[::-1]))), 0
    if kind == "gaps":
        return tuple(2 * stride for stride in compact), 0
    if kind in ("backwards", "partly"):
        signs = [-1 if kind == "backwards" else chosen.choice([-1, 1]) for _ in shape]
        axes = list(zip(shape, compact, signs, strict=True))
        reach = sum((extent - 1) * stride for extent, stride, sign in axes if extent and sign < 0)
        return tuple(sign * stride for _, stride, sign in axes), max(reach, 0)
    if kind == "repeated":
        return (0,) * len(shape), 0
    if kind == "padded axes":
        return tuple(77 if extent == 1 else stride for extent, stride in zip(shape, compact, strict=True)), 0
    return compact, 0


def tensor(chosen: random.Random, devices: list[tuple[int, int]], data: Callable[[int], int | None]) -> abi.Made:
    """A tensor of any type, device, layout and flags; `data` has memory for each device type."""
    device = chosen.choice(devices)
    code, bits = chosen.choice([*TYPES[:4], chosen.choice(TYPES)])
    shape = chosen.choice(SHAPES)
    steps, first = strides(shape, chosen)
    at = data(device[0])
    itemsize = max(bits // 8, 1)
    # Whole elements alone: what is aligned to less is refused.
    offset = chosen.choice([0, 0, 0, 64, 1]) + first * itemsize
    flags = chosen.choice([0, 0, 0, abi.READ_ONLY, abi.IS_COPIED])
    # Of whole bytes the flag states nothing.
    flags |= chosen.choice([0, abi.SUBBYTE_PADDED] if bits % 8 else [0, 0, 0, abi.SUBBYTE_PADDED])
    return abi.make(
        shape,
        strides=steps,
        dtype=(code, bits, chosen.choice([1, 1, 1, 1, 2, 4])),
        device=device,
        data=at,
        byte_offset=offset,
        versioned=chosen.random() < 0.8,
        flags=flags,
    )


def exported(made: abi.Made, chosen: random.Random) -> Any:
    return Dlpack(made) if chosen.random() < 0.7 else made.capsule()


def fresh(_: int) -> None:
    """Fresh bytes of the host, for every device."""


# --- what NumPy's own export refuses ----------------------------------------------------------------------------

RECORDS: list[Any] = [
    [("x", "<f4")],
    [("x", "<f4"), ("y", ml_dtypes.float8_e5m2)],
    [("x", ml_dtypes.float8_e4m3fn, (2,))],
    [("in", [("y", ml_dtypes.float8_e4m3), ("z", "<i4")])],
    [("x", ml_dtypes.bfloat16)],
    [("x", ml_dtypes.int4), ("y", "<f4")],
    [("x", "<f4", (2, 3))],
    [("a", [("b", "<i2"), ("c", "<f8")])],
    [("o", object), ("x", "<f4")],
    [("s", "S3"), ("u", "U2")],
    [("m", "<M8[s]")],
    {"names": ["x"], "formats": ["f4"], "offsets": [4], "itemsize": 12},
    {"names": ["x", "y"], "formats": ["f4", "i2"], "offsets": [0, 2], "itemsize": 4},
    [(("a title", "x"), "<f4")],
    [("x", ">f4")],
    [("x", np.longdouble)],
    [("v", "V3")],
    [("é", "<f4")],
    [("z", "S0"), ("x", "<f4")],
]
ITEMS: list[Any] = ["<M8[s]", "<m8[ns]", ">f4", ">i8", "S3", "U2", "V5", np.longdouble, "<c8", "<f4", "?", "<u2"]


def records(chosen: random.Random) -> Any:
    shape: Any = chosen.choice([3, (2, 3), (), 0])
    return varied(np.zeros(shape, np.dtype(chosen.choice(RECORDS))), chosen)


def items(chosen: random.Random) -> Any:
    shape: Any = chosen.choice([3, (2, 3), (), 0])
    return varied(np.zeros(shape, np.dtype(chosen.choice(ITEMS))), chosen)


def uneven(chosen: random.Random) -> Any:
    """Strides that are no whole number of elements."""
    dtype = np.dtype(chosen.choice(["<f4", "<i8", "<c8", "<u2", ">f4"]))
    step = dtype.itemsize + chosen.choice([1, 2, 3])
    room = np.zeros(200, np.uint8)
    return varied(np.ndarray((3, 2), dtype, room, 0, (2 * step, step)), chosen)


def unaligned(chosen: random.Random) -> Any:
    """An address that is no multiple of the element's size."""
    dtype = np.dtype(chosen.choice(["<f4", "<i8", "<c8", "<u2", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ">f4"]))
    room = np.zeros(200, np.uint8)
    return varied(np.ndarray((2, 3), dtype, room, chosen.choice([1, 2, 3, 5])), chosen)


def varied(array: Any, chosen: random.Random) -> Any:
    if array.ndim and chosen.random() < 0.3:
        array = array[::-1] if chosen.random() < 0.5 else array[::2]
    if chosen.random() < 0.3:
        array.flags.writeable = False
    return array


HOST: dict[str, Make] = {
    "any tensor": lambda chosen: exported(tensor(chosen, DEVICES, fresh), chosen),
    "any record": records,
    "any item": items,
    "uneven strides": uneven,
    "any address": unaligned,
}


# --- on the device ----------------------------------------------------------------------------------------------


@functools.cache
def memory(kind: int) -> int:
    """Memory of the simulated machine of a device type, for good."""
    calls: dict[int, tuple[str, list[int]]] = {3: ("cuMemHostAlloc", [0]), 13: ("cuMemAllocManaged", [1])}
    function, more = calls.get(kind, ("cuMemAlloc_v2", []))
    found = ctypes.c_void_p()
    assert getattr(ctypes.CDLL("libcuda.so.1"), function)(ctypes.byref(found), ctypes.c_size_t(1 << 16), *more) == 0
    return found.value or 0


TYPESTRS = ["<f4", "<f4", "<f4", ">f4", "|V4", "<c4", "|S4", "<U2", "<M8[s]", "<m8[ns]", "<M8", "<f16", "|t4", "|f1"]
TYPESTRS += ["|b1", "<i8", "<c8", "|O8", "<f3", "|V0"]
DESCRS: list[tuple[str, list[Any]]] = [
    ("|V4", [("x", "<f4")]),
    ("|V5", [("x", "<f4"), ("y", "|f1")]),
    ("|V5", [("x", "<f4"), ("y", "|u1")]),
    ("|V12", [("x", "<f4", (3,))]),
    ("|V8", [("x", "<f4"), ("", "|V4")]),
    ("|V1", [("x", "|t1")]),
    ("|V8", [("x", [("a", "<f4"), ("b", "<f4")])]),
    ("|V8", [("x", "|O8")]),
    ("|V4", [(("a title", "x"), "<f4")]),
    ("|V4", [("x", "<f4"), ("x", "|V0")]),
    ("<f4", [("", "<f4")]),
    ("|V16", [("x", "<f16")]),
]


class Cai:
    def __init__(self, entries: dict[str, Any]) -> None:
        self.__cuda_array_interface__ = entries


def interface(chosen: random.Random, streams: list[int]) -> Any:
    """A dict of any items, strides, address and stream."""
    typestr, descr = chosen.choice(TYPESTRS), None
    if chosen.random() < 0.4:
        typestr, descr = chosen.choice(DESCRS)
    size = int("".join(letter for letter in typestr.partition("[")[0] if letter.isdigit()) or 8)
    size *= 4 if "U" in typestr else 1
    shape = chosen.choice([(3,), (2, 3), (), (0, 3), (4, 1), (1,) * 5, (1,) * 33])
    steps, first = strides(shape, chosen)
    uneven = chosen.choice([0, 0, 0, 1, 2])
    entries: dict[str, Any] = {
        "shape": shape,
        "typestr": typestr,
        "strides": tuple(step * (size + uneven) for step in steps) if chosen.random() < 0.7 else None,
        "data": (
            memory(chosen.choice([2, 2, 3, 13])) + first * (size + uneven) + chosen.choice([0, 0, 0, 1]),
            chosen.random() < 0.3,
        ),
        "version": chosen.choice([3, 3, 3, 2, 9]),
    }
    if chosen.random() < 0.7:
        entries["stream"] = chosen.choice([None, 1, 2, streams[0]])
    if descr is not None:
        entries["descr"] = descr
    return Cai(entries) if chosen.random() < 0.9 else entries


def on_device(streams: list[int]) -> dict[str, Make]:
    # The address of device memory is the driver's: another device's number would be a lie.
    devices = [(2, 0), (2, 0), (3, 0), (13, 0), (10, 0), (11, 0)]

    def any_tensor(chosen: random.Random) -> Any:
        return exported(tensor(chosen, devices, lambda kind: memory(kind)), chosen)

    def on_ours(chosen: random.Random) -> Any:
        made = tensor(chosen, [(2, 0)], lambda kind: memory(kind))
        if not made.versioned:
            raise NotMade("drawn elsewhere")
        return made.capsule()

    return {
        "any tensor": any_tensor,
        "any capsule": on_ours,
        "any interface": lambda chosen: interface(chosen, streams),
    }
