"""Arrays of both rooms as their libraries make them, and as some make them who leave things unsaid.

A producer gets a host array of a dtype and a layout, and returns an object for `view`.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import cai_dlpack as cd
import ml_dtypes
import numpy as np

from conformance.matrix import device, host
from conformance.matrix.cells import NotMade
from conformance.matrix.installed import version

Make = Callable[[Any], Any]


def is_capsule(obj: object) -> bool:
    return type(obj).__name__ == "PyCapsule"


def streams() -> list[int]:
    """Three streams of the first device."""
    device.prepare()
    found = []
    for _ in range(3):
        handle = ctypes.c_void_p()
        assert ctypes.CDLL("libcuda.so.1").cuStreamCreate(ctypes.byref(handle), 1) == 0
        found.append(handle.value or 0)
    return found


@contextlib.contextmanager
def capturing(stream: int, mode: int) -> Iterator[None]:
    """A capture of a stream, which is given up afterwards."""
    driver, graph = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert driver.cuStreamBeginCapture_v2(ctypes.c_void_p(stream), ctypes.c_uint(mode)) == 0
    try:
        yield
    finally:
        driver.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph))
        if graph.value:
            driver.cuGraphDestroy(graph)


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """Allows this thread what captures of other streams forbid it."""
    driver, mode = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint(2)
    assert driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def readers(room: str) -> dict[str, Any]:
    """The libraries whose calls are made in a room, by distribution."""
    module = host if room == "host" else device
    return dict.fromkeys(name for name, _ in module.CONSUMERS)


# The streams on which libraries work that choose them by themselves.
OWN_STREAMS: dict[str | None, Callable[[], int]] = {
    "warp-lang": lambda: int(device.load("warp").get_stream("cuda:0").cuda_stream),
}


def given(room: str, distribution: str) -> dict[str, Any]:
    """What a library's call needs beside the view and the stream."""
    module: Any = host if room == "host" else device
    return {name: value for name, value in module.GIVEN.get(distribution, dict)().items() if name != "s"}


def producers(room: str, stream: int) -> dict[str, Make]:
    """Every producer of a room: the libraries that are installed, and doubles."""
    module: Any = host if room == "host" else device
    installed = {name: of(make) for name, make in module.PRODUCERS.items() if version(name)}
    return {**installed, **(HOST if room == "host" else on_device(stream))}


def of(make: Callable[[Any], tuple[Any, int]]) -> Make:
    return lambda array: make(array)[0]


# --- on the host ------------------------------------------------------------------------------------------------


def plain(array: Any) -> Any:
    """NumPy's own types alone."""
    if array.dtype.kind not in "biufc":
        raise NotMade("no such dtype")
    return array


def swapped(array: Any) -> Any:
    return plain(array).astype(array.dtype.newbyteorder())


def dates(array: Any) -> Any:
    if array.dtype != np.int64:
        raise NotMade("dates have 64 bits")
    return array.view("M8[s]")


def records(array: Any) -> Any:
    if array.dtype != np.float32 or not array.flags.c_contiguous or array.ndim == 0:
        raise NotMade("made of float32")
    return array.view([("x", "<f4")])


def masked(array: Any) -> Any:
    return np.ma.masked_array(plain(array), mask=np.zeros(array.shape, bool) if array.size % 2 else np.ma.nomask)


# Types of ml_dtypes that NumPy has no DLPack number for.
OWN = [getattr(ml_dtypes, name) for name in dir(ml_dtypes) if isinstance(getattr(ml_dtypes, name), type)]
OWN = [kind for kind in OWN if issubclass(kind, np.generic)]


def of_ml_dtypes(array: Any) -> Any:
    if array.dtype.kind not in "iuf":
        raise NotMade("no such dtype")
    # One for each dtype and layout, so that a case can be made again.
    kind = OWN[(array.itemsize * 7 + ord(array.dtype.kind) + array.ndim + array.size) % len(OWN)]
    made = np.zeros(array.shape, kind)
    made.flags.writeable = array.flags.writeable
    return made[::-1] if array.ndim and array.strides[0] < 0 else made


def packed(array: Any) -> Any:
    if array.dtype != np.uint8 or not array.flags.c_contiguous or not array.size:
        raise NotMade("made of bytes")
    dtype = ["int4", "uint4", "int2", "float4_e2m1fn"][array.ndim]
    return cd.view(array, dtype=dtype, shape=(array.nbytes * 8 // (2 if dtype == "int2" else 4),))


def capsule(array: Any) -> Any:
    return host.borrowed(array).__dlpack__(max_version=(1, 0))


def legacy(array: Any) -> Any:
    return cd.to_dlpack(cd.view(host.borrowed(array), read_only=False))


class Silent:
    """Exports by legacy capsules, which have no flag."""

    def __init__(self, array: Any) -> None:
        self.view = cd.view(host.borrowed(array), read_only=False)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, stream: object = None) -> object:
        return cd.to_dlpack(self.view)


class Refusing(Silent):
    """Has the method, and raises."""

    def __dlpack__(self, stream: object = None) -> object:
        raise BufferError("not today\nnor tomorrow")


class Elsewhere(Silent):
    """Announces another device than it exports."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (3, 0)


HOST: dict[str, Make] = {
    "a view": lambda array: host.borrowed(array),
    "a read-only view": lambda array: cd.view(host.borrowed(array), read_only=True),
    "a capsule": capsule,
    "a legacy capsule": legacy,
    "the other byte order": swapped,
    "dates": dates,
    "records": records,
    "a masked array": masked,
    "types of ml_dtypes": of_ml_dtypes,
    "packed": packed,
    "legacy tensors": Silent,
    "one that refuses": Refusing,
    "another device": Elsewhere,
    "text": lambda array: str(array),
    "a class": lambda array: type(array),
    "objects": lambda array: np.array([object()] * 3),
}


# --- on the device ----------------------------------------------------------------------------------------------


def memory(function: str, nbytes: int, *more: int) -> int:
    """Memory of the simulated machine, for good."""
    found = ctypes.c_void_p()
    code = getattr(ctypes.CDLL("libcuda.so.1"), function)(ctypes.byref(found), ctypes.c_size_t(nbytes), *more)
    assert code == 0
    return found.value or 0


def interface(array: Any, **changes: Any) -> Any:
    """The dict of an array of a new copy in device memory."""
    if array.dtype.kind not in "biufc":
        raise NotMade("no such dtype")
    start, end = np.lib.array_utils.byte_bounds(array)
    function, *more = changes.pop("kind", ("cuMemAlloc_v2",))
    data = memory(function, max(end - start, 1) + 64, *more)
    first = data + array.ctypes.data - start if array.size else 0
    return {
        "shape": array.shape,
        "typestr": array.dtype.str,
        "strides": array.strides,
        "data": (first, not array.flags.writeable),
        "version": 3,
        "stream": None,
        **changes,
    }


class Cai:
    def __init__(self, entries: dict[str, Any]) -> None:
        self.__cuda_array_interface__ = entries


def changed(**changes: Any) -> Make:
    return lambda array: Cai(interface(array, **changes))


class OnDevice:
    """Has `__dlpack__` alone, which makes the stream that it is passed wait."""

    keywords: tuple[str, ...] = ("stream", "max_version")

    def __init__(self, array: Any) -> None:
        self.view = cd.view(Cai(interface(array)))

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.view.device

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> object:
        return self.view.__dlpack__(stream=stream, max_version=max_version)


class Both(OnDevice):
    """And an interface of version 2, which names no stream."""

    def __init__(self, array: Any) -> None:
        entries = interface(array, version=2)
        super().__init__(array)
        self.__cuda_array_interface__ = entries


def without_data(array: Any) -> Any:
    return Cai(interface(array, data=(0x10, False)))


def buffer(array: Any) -> Any:
    from cuda.core import Buffer

    if array.ndim != 1 or array.dtype.name != "uint8":
        raise NotMade("a buffer is of bytes")
    return Buffer.from_handle(memory("cuMemAlloc_v2", array.nbytes or 1), array.nbytes or 1)


def on_device(stream: int) -> dict[str, Make]:
    pinned, managed = ("cuMemHostAlloc", 0), ("cuMemAllocManaged", 1)

    def view(array: Any) -> Any:
        return cd.view(Cai(interface(array, stream=stream)))

    def in_numba(array: Any) -> Any:
        import numba.cuda

        return numba.cuda.to_device(np.ascontiguousarray(plain(array)), stream=numba.cuda.external_stream(stream))

    def record(array: Any) -> Any:
        if array.dtype != np.float32:
            raise NotMade("made of float32")
        entries = interface(array, typestr="|V4", descr=[("x", "<f4")])
        return Cai(entries)

    return {
        "a view": view,
        "a read-only view": lambda array: cd.view(view(array), read_only=True),
        "a view that is ready": lambda array: view(array).synchronize(),
        "a pinned view": lambda array: cd.view(Cai(interface(array, kind=pinned, stream=stream))),
        "a managed view": lambda array: cd.view(Cai(interface(array, kind=managed))),
        "a capsule": lambda array: view(array).__dlpack__(stream=1, max_version=(1, 0)),
        "a legacy capsule": lambda array: cd.to_dlpack(cd.view(view(array), read_only=False)),
        "numba on a stream": in_numba,
        "a buffer of cuda.core": buffer,
        "an interface": changed(),
        "an interface on a stream": changed(stream=stream),
        "an interface on 0": changed(stream=0),
        "an interface on 1": changed(stream=1),
        "an interface on 2": changed(stream=2),
        "an interface of version 2": changed(version=2),
        "an interface of version 9": changed(version=9),
        "pinned": changed(kind=pinned, stream=stream),
        "managed": changed(kind=managed, stream=stream),
        "managed, ready": changed(kind=managed),
        "no interface": changed(typestr="<f3"),
        "with a mask": changed(mask=SimpleNamespace()),
        "a dict": interface,
        "unknown memory": without_data,
        "one field": record,
        "__dlpack__ alone": OnDevice,
        "an old interface and __dlpack__": Both,
    }
