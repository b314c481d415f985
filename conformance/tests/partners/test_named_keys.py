"""Tests that the key which an error names is one that the refused object has.

Records and items that DLPack cannot describe come by NumPy's array interface on the CPU, by CUDA's on a device, and
leave by the same: their errors name a key of that dict.
"""

from __future__ import annotations

import copy
import ctypes
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cai_dlpack as cd
import cai_example_peer as peer
import ml_dtypes
import numpy as np

from conformance.tests.doubles.producers import Cai
from conformance.tests.simulated.machine import Machine
from conformance.tests.test_doors import OUT, explained

RECORDS: list[Any] = [
    [("a", "i1"), ("x", "f4"), ("o", "O")],
    [("a", "i1"), ("p", "f4", (2, 3)), ("s", "S3"), ("n", [("q", "f4"), ("r", ">i2")]), ("t", "M8[s]")],
    {"names": ["a", "b"], "formats": ["u1", "f4"], "offsets": [0, 3], "itemsize": 9},
    {"names": ["a", "b"], "formats": ["u4", "u2"], "offsets": [0, 0]},
    [("a", ml_dtypes.bfloat16), ("b", "f4")],
    [("d", "V5"), ("e", "g"), ("l", "f2", (2,))],
]
ITEMS: list[Any] = ["S3", "U2", ">f4", "M8[s]", "m8[ns]", "O", "V16", "g", "G", *RECORDS]

Door = Callable[[Any], object]
INTO: dict[str, Door] = {
    "view": cd.view,
    "from_cai": cd.from_cai,
    "from_dlpack": cd.from_dlpack,
    "to_dlpack": cd.to_dlpack,
    "split_masked": cd.split_masked,
    "a Rust function": peer.view_of,
    "In": peer.extract,
    "explain": explained,
    "explain to torch": partial(explained, to="torch"),
    "to numpy": lambda array: cd.to(array, "numpy"),
    "to numba": lambda array: cd.to(array, "numba"),
    "as bytes": lambda array: cd.view(array, dtype="uint8"),
    "as bfloat16": lambda array: cd.view(array, dtype="bfloat16"),
    "as float32": lambda array: cd.view(array, dtype="float32"),
    "of a shape": lambda array: cd.view(array, shape=(7,)),
    "of a shape, as bytes": lambda array: cd.view(array, dtype="uint8", shape=(7,)),
}
OF_VIEW: dict[str, Door] = {
    # A stream of the number 7 is none of the driver's.
    **{name: door for name, door in OUT.items() if name != "another stream"},
    **INTO,
    "__cuda_array_interface__": lambda view: view.__cuda_array_interface__,
    "__array_interface__": lambda view: view.__array_interface__,
    "a buffer": memoryview,
    "np.asarray": np.asarray,
    "np.from_dlpack": np.from_dlpack,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "present_as host": lambda view: view.present_as("host"),
    "present_as cuda": lambda view: view.present_as("cuda"),
}
KEY = re.compile(r"^(__\w+__)\['(\w+)'\]")


def arrays() -> Iterator[np.ndarray[Any, Any]]:
    for items in ITEMS:
        array = np.zeros(4, np.dtype(items))
        frozen = array.copy()
        frozen.flags.writeable = False
        yield from (array, array[::2], array[::-1], np.zeros((), array.dtype), frozen)
        if not array.dtype.hasobject:
            yield np.zeros(2 * array.itemsize + 1, np.uint8)[1:].view(array.dtype)


def on_the_device(array: np.ndarray[Any, Any], pointer: int) -> Cai:
    said = array.__array_interface__
    # Elements lie on both sides of the address, if a stride is negative.
    data = (pointer + 2048, not array.flags.writeable)
    return Cai({**said, "data": data, "strides": array.strides, "version": 3, "stream": None})


def views(array: Any) -> Iterator[cd.CaiView]:
    """A view, its fields, and each as memory of the other side."""
    try:
        view = cd.view(array)
    except (BufferError, TypeError, ValueError):
        return
    found = [view]
    for name in view.fields or ():
        for options in ({}, {"dtype": "uint8"}, {"dtype": "float32"}):
            try:
                found.append(view.field(name, **options))
            except BufferError as error:
                check(error, view)
    for one in found:
        yield one
        for side in ("host", "cuda"):
            try:
                yield one.present_as(side)
            except BufferError as error:
                check(error, one)


def has_key(array: Any, interface: str, key: str) -> bool:
    """Whether the object has the key, or has the interface and refuses it by a rule of its items."""
    try:
        return key in {**getattr(array, interface), "strides": ..., "descr": ...}
    except AttributeError as missing:
        return getattr(missing, "rule", None) not in (None, "array-unreadable", "cai-device")


def check(error: Exception, array: Any) -> str | None:
    """Returns the interface whose key the error names, which the object must have."""
    named = KEY.match(str(error))
    if named is None:
        return None
    assert has_key(array, named[1], named[2]), (array, error)
    return named[1]


def test_the_key_that_is_named_is_the_objects(machine: Machine) -> None:
    seen = Counter[tuple[str | None, str]]()
    device, managed = machine.device_memory(4096), machine.managed_memory(4096)
    # The host follows the address of what is presented to it.
    ctypes.memset(managed, 0, 4096)
    for array in arrays():
        sources: list[Any] = [array]
        if not array.dtype.hasobject:
            sources += [on_the_device(array, device), on_the_device(array, managed)]
        for source in sources:
            for obj, doors in [(source, INTO), *((view, OF_VIEW) for view in views(source))]:
                for name, door in doors.items():
                    try:
                        door(obj)
                    except (BufferError, TypeError, ValueError, AttributeError, RuntimeError) as error:
                        seen[check(error, obj), name] += 1
    for key in ("__array_interface__", "__cuda_array_interface__"):
        for name in ("to_dlpack", "a copy", "the table", "In", "explain to torch", "as bfloat16"):
            assert seen[key, name] > 10, (key, name, seen)
