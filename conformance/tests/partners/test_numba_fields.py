"""Numba's arrays, whose fields are read without the getter of their interface, are read as the getter gives them.

The judge is the same array of a subclass, for which the getter is called.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from numba import cuda
from numba.cuda.cudadrv.devicearray import DeviceNDArray, DeviceNDArrayBase

from conformance.tests.interpreter import needs
from conformance.tests.interpreter.process import on_the_simulator
from conformance.tests.simulated.machine import Machine

pytestmark = needs.numba_cuda

GETTER = DeviceNDArrayBase.__cuda_array_interface__.fget.__code__
DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


class Judge(DeviceNDArray):  # type: ignore[misc]
    """Numba's array by another class."""

    def __init__(self, array: DeviceNDArray) -> None:
        self.__dict__.update(array.__dict__)


@contextmanager
def calls_of_getter() -> Iterator[list[object]]:
    """Notes each call of Numba's getter."""
    seen: list[object] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is GETTER:
            seen.append(frame)

    sys.setprofile(profile)
    try:
        yield seen
    finally:
        sys.setprofile(None)


def told(make: Callable[[], cd.CaiView]) -> str:
    """All that a view says, or why there is none."""
    try:
        view = make()
    except Exception as refused:
        text = f"{type(refused).__name__}: {refused}"
    else:
        text = f"{view!r} {view.__cuda_array_interface__}"
    return re.sub(r"[\w.]*\b(Judge|DeviceNDArray)\b", "the class", text)


def is_direct(array: DeviceNDArray) -> bool:
    """Compares each import of an array with that of the judge; whether they went without the getter."""
    with calls_of_getter() as seen:
        found = [told(lambda: cd.view(array)), told(lambda: cd.from_cai(array))]
    with calls_of_getter() as asked:
        wanted = [told(lambda: cd.view(Judge(array))), told(lambda: cd.from_cai(Judge(array)))]
    assert asked
    assert found == wanted
    return not seen


@pytest.fixture(autouse=True)
def known(machine: Machine) -> None:
    """The type is known before calls are counted."""
    for kind in (DeviceNDArray, Judge):
        cd.view(Judge(made(np.zeros(1))) if kind is Judge else made(np.zeros(1)))


def made(values: np.ndarray[Any, Any], stream: Any = 0) -> DeviceNDArray:
    return cuda.to_device(values, stream=stream)


def random_array(draw: random.Random) -> DeviceNDArray:
    """An array of any plain type and layout, whole or sliced, Numba's own or one of another library's memory."""
    shape = tuple(draw.choice([0, 1, 2, 3, 5]) if draw.random() < 0.9 else 7 for _ in range(draw.randrange(5)))
    values = np.zeros(shape, draw.choice(DTYPES))
    array = made(draw.choice([values, np.asfortranarray(values)]), draw.choice([0, cuda.stream()]))
    if draw.random() < 0.3:
        array = cuda.as_cuda_array(cd.view(array, producer_stream=draw.choice([1, 2])))
    if draw.random() < 0.5 and shape and array.size:
        steps = (slice(draw.randrange(3), draw.randrange(8), draw.choice([1, 2, -1])) for _ in shape)
        array = array[tuple(steps)]
    if draw.random() < 0.2:
        array = array.bind(draw.choice([0, 1, 2, 0x7F001000, cuda.default_stream(), cuda.stream()]))
    return array


@pytest.mark.parametrize("seed", range(150))
def test_fields_are_those_of_the_getter(seed: int) -> None:
    array = random_array(random.Random(seed))
    named = int(array.stream) if array.stream != 0 else None
    # A stream 0 is warned of, and an array without elements may lie anywhere: the dict is read.
    assert is_direct(array) or named == 0 or not array.size


class Wide(int):
    """An int that says something else as an index."""

    def __index__(self) -> int:
        return 99


class Named:
    """A stream of an unknown kind."""

    def __init__(self, handle: object, same: object = False) -> None:
        self.handle, self.same = handle, same

    def __int__(self) -> int:
        return self.handle  # type: ignore[return-value]

    def __ne__(self, other: object) -> bool:
        return not self.same


class Pointer:
    def __init__(self, value: object) -> None:
        self.value = value


class Data:
    """A producer's own memory."""

    def __init__(self, pointer: object) -> None:
        self.device_ctypes_pointer = pointer


class Raising:
    def __getattr__(self, name: str) -> object:
        raise AttributeError(name) if name == "device_ctypes_pointer" else ValueError(name)


ODD: dict[str, list[object]] = {
    "shape": [(), (1,), (2, 2), (2, 2, 2), [2, 3], (-2, 3), (2**40, 2**40), (2**70, 1), (np.int64(2), 3), (True, 3),
              (Wide(2), 3), (2.0, 3), "23", None, 6, range(2, 4)],
    "strides": [(), (4,), (0, 0), (12, 4), (4, 12), (0, 4), (12, 0), (-12, -4), (2**63, 4), (2**70, 4), [12, 4],
                (Wide(12), 4), (np.int32(12), 4), (12, 4, 4), (3, 1), None, 4],
    "dtype": [np.dtype("q"), np.dtype(">f4"), np.dtype("f4", metadata={"a": 1}), np.dtype("S3"), np.dtype("M8[s]"),
              np.dtype([("a", "f4")]), np.dtype("O"), np.dtype("V2"), np.dtype(("f4", (2,))), np.float32, "f4", None],
    "stream": [0, 1, 2, 7, False, True, -1, 2**63, 2**70, 0.0, 1.5, "0", "2", None, np.int64(0), np.int64(2), Wide(0),
               Wide(2), Named(2), Named(0), Named(-1), Named(2, same=True), Named("2"), np.zeros(2), object()],
    "gpu_data": [None, Data(Pointer(None)), Data(Pointer(0)), Data(Pointer(64)), Data(Pointer(-1)), Data(Pointer(3)),
                 Data(Pointer(2**70)), Data(Pointer(Wide(64))), Data(Pointer("64")), Data(None), Raising(), object()],
    "__cuda_array_interface__": [{}, None],
    "device_ctypes_pointer": [Pointer(64), None],
    "size": [0],
}  # fmt: skip


@pytest.mark.parametrize("seed", range(300))
def test_odd_fields_are_those_of_the_getter(seed: int) -> None:
    draw = random.Random(seed)
    array = made(np.zeros((2, 3), draw.choice(["f4", "i8"])))
    for name in draw.sample(sorted(ODD), draw.choice([1, 1, 1, 2, 3])):
        if draw.random() < 0.1:
            array.__dict__.pop(name, None)
        else:
            array.__dict__[name] = draw.choice(ODD[name])
    is_direct(array)


@pytest.mark.parametrize(("name", "which"), [(name, which) for name in sorted(ODD) for which in range(len(ODD[name]))])
def test_one_odd_field_is_that_of_the_getter(name: str, which: int) -> None:
    array = made(np.zeros((2, 3), "f4"))
    array.__dict__[name] = ODD[name][which]
    is_direct(array)


def test_an_interrupt_is_raised() -> None:
    class Interrupted:
        @property
        def device_ctypes_pointer(self) -> object:
            raise KeyboardInterrupt

    array = made(np.zeros((2, 3), "f4"))
    array.gpu_data = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        cd.view(array)


def test_a_class_that_is_changed_is_asked() -> None:
    """In another process: a class that has been changed stays so."""
    done = on_the_simulator("""
import cai_dlpack as cd, numpy as np
from numba import cuda
from numba.cuda.cudadrv import devicearray

array = cuda.to_device(np.zeros((2, 3), "f4"))
assert cd.view(array).shape == (2, 3)
own = devicearray.DeviceNDArrayBase.__cuda_array_interface__
def changed(self):
    return own.fget(self) | {"shape": (3, 2)}

devicearray.DeviceNDArrayBase.__cuda_array_interface__ = property(changed)
assert cd.view(array).shape == (3, 2)
devicearray.DeviceNDArrayBase.__cuda_array_interface__ = own
assert cd.view(array).shape == (2, 3)
devicearray.DeviceNDArray.shape = property(lambda self: (1, 2))
assert cd.view(array).shape == (1, 2)
del devicearray.DeviceNDArray.shape
assert cd.view(array).shape == (2, 3)
own = object.__getattribute__
devicearray.DeviceNDArray.__getattribute__ = lambda self, name: {} if name == "shape" else own(self, name)
try:
    cd.view(array)
except TypeError as refused:
    assert "shape" in str(refused)
else:
    raise AssertionError
""")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "change",
    [
        "module.is_contiguous = lambda array: False",
        "module.tuple = list",
        "module.DeviceNDArrayBase.device_ctypes_pointer = property(lambda self: self.gpu_data.device_ctypes_pointer)",
        "module.DeviceNDArrayBase.__cuda_array_interface__ = property(lambda self: dict(own.fget(self), version=2))",
        "module.DeviceNDArray.__getattribute__ = lambda self, name: object.__getattribute__(self, name)",
    ],
)
def test_a_class_that_was_changed_before_is_asked(change: str) -> None:
    done = on_the_simulator(f"""
import sys
import cai_dlpack as cd, numpy as np
from numba import cuda
from numba.cuda.cudadrv import devicearray as module

own = module.DeviceNDArrayBase.__cuda_array_interface__
array = cuda.to_device(np.zeros((2, 3), "f4"))
{change}
seen = []
sys.setprofile(lambda frame, event, _: seen.append(frame.f_code) if event == "call" else None)
cd.view(array), cd.view(array)
sys.setprofile(None)
assert seen.count(own.fget.__code__) == 2, seen
""")
    assert done.returncode == 0, done.stderr
