"""The routes: each kind of producer, through each function and method that takes it, to each kind of consumer.

`ROUTES` is their product. A route is made of parts whose results are plain values, so that two runs can be compared;
a part that an array does not support is a refusal, which is a result too.
"""

from __future__ import annotations

import ctypes
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cai_dlpack as cd
import cai_example_peer as peer
import numpy as np
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import Cai, Dlpack, Legacy, StreamObject, interface
from conformance.tests.faults.world import World
from conformance.tests.streams.moved_producers import Moving

Make = Callable[[World], Any]
Use = Callable[[World, Any], object]

STRUCT = [("x", "<f4"), ("y", "<f4")]
REFUSALS = (TypeError, ValueError, BufferError, AttributeError)


def shown(kind: str, **changes: Any) -> Make:
    """Makes an array by a CAI dict."""
    return lambda world: Cai(interface(data=(world.address(kind), False), **changes))


def on_a(kind: str, **changes: Any) -> Make:
    """Makes an array by a CAI dict that names stream A."""
    return lambda world: Cai(interface(data=(world.address(kind), False), stream=world.a, **changes))


def tensor(kind: str, device: tuple[int, int], *, offer: Callable[[abi.Made], Any] = Dlpack, **changes: Any) -> Make:
    """Makes a DLPack tensor, and offers it."""
    return lambda world: offer(abi.make(device=device, data=world.address(kind), **changes))


_TABLES: dict[int, Moving] = {}


def moving(world: World) -> Moving:
    """A library whose type has the C Exchange API, and works on stream A; the type is made once."""
    made = _TABLES.get(id(world))
    if made is None:
        made = _TABLES[id(world)] = Moving.of(world.address("device"), (abi.CUDA, 0), world.a)
    made.go(world.a)
    return made


def tabled(world: World) -> Any:
    return moving(world).array


def moved(take: Callable[[Any], Any]) -> Make:
    """Makes a view of an array whose library works on stream B by now: what is done with it waits for that first."""

    def make(world: World) -> Any:
        library = moving(world)
        view = take(library.array)
        library.go(world.b)
        return view

    return make


PRODUCERS: dict[str, Make] = {
    "device": on_a("device"),
    "device, ready": shown("device"),
    "device, default stream": shown("device", stream=1),
    "device, undeclared": shown("device", stream=..., version=2),
    "device, F order": on_a("device", strides=(4, 8), shape=(2, 3)),
    "device, many axes": on_a("device", shape=(1, 2, 1, 3, 1, 1, 2), strides=None),
    "device, structs": on_a("device", typestr="|V8", descr=STRUCT),
    "device, masked": lambda world: Cai(
        interface(data=(world.address("device"), False), stream=world.a, mask=on_a("device", typestr="|b1")(world))
    ),
    "device, empty": on_a("device", shape=(0, 3)),
    "managed": on_a("managed"),
    "pinned": on_a("pinned"),
    "tensor": tensor("device", (abi.CUDA, 0)),
    "tensor, legacy": tensor("device", (abi.CUDA, 0), offer=Legacy, versioned=False),
    "tensor, pinned": tensor("pinned", (abi.CUDA_HOST, 0)),
    "tensor, capsule": tensor("device", (abi.CUDA, 0), offer=lambda made: made.capsule()),
    "tensor, host": tensor("host", (abi.CPU, 0)),
    "table": tabled,
    "view": lambda world: cd.view(on_a("device")(world)),
    "view of a table, moved": moved(cd.view),
    "another copy's view": lambda world: peer.view_of(on_a("device")(world)),
    "another copy's view of a table, moved": moved(peer.view_of),
    "NumPy": lambda world: np.arange(6.0).reshape(2, 3),
    "NumPy, structs": lambda world: np.zeros((2, 3), dtype=STRUCT),
    "NumPy, read-only": lambda world: np.broadcast_to(np.float32(1), (2, 3)),
    "malformed": shown("device", typestr="<f5"),
    "no array": lambda world: object(),
}


def told(value: Any) -> object:
    """Returns a result as a value that two runs share: no object identities, no addresses of blocks."""
    if isinstance(value, cd.CaiView):
        order = (value.stream, value.producer_stream, value.return_edge)
        return (value.shape, value.elem_strides, str(value.dtype), value.device, value.read_only, *order)
    if isinstance(value, np.ndarray):
        return (value.shape, value.strides, str(value.dtype))
    if isinstance(value, (tuple, list)):
        return [told(each) for each in value]
    if type(value).__name__ == "PyCapsule":
        read = abi.read(value)
        return (read.version, read.flags, read.device, read.dtype, read.shape, read.strides)
    if isinstance(value, (dict, memoryview)):
        return type(value).__name__
    if hasattr(value, "shape"):  # of another library
        return (type(value).__name__, tuple(value.shape))
    return str(value) if value is not None else None


def consumed(world: World, view: Any) -> object:
    with view.consume(world.b) as lent:
        return told(lent)


def exported(world: World, view: Any) -> object:
    """The view's own exchange table, as a consumer in C calls it: a tensor, which ends at once."""
    table = exchange.table_of(cd.CaiView)
    out = ctypes.c_void_p()
    exchange.FromObject(table.from_object)(id(view), ctypes.pointer(out))
    assert out.value
    read = abi.read_at(out.value, versioned=True)
    abi.release(read)
    return (read.version, read.flags, read.device, read.dtype, read.shape, read.strides)


def in_use_stream(world: World, view: Any) -> object:
    with cd.use_stream(world.b):
        return exported(world, view)


def by_policy(world: World, view: Any) -> object:
    with cd.policy(sync="host"):
        return view.__dlpack__(stream=world.b)


def waited(world: World, view: Any) -> object:
    """Drives `wait()` without an event loop: asyncio's own allocations and calls are not meant."""
    coroutine = view.wait()
    coroutine.close()
    return None


def attributes(world: World, view: Any) -> object:
    """Every attribute that is a value: each is made when it is read."""
    of_dtype = (view.dtype.name, view.dtype.itemsize, str(view.dtype), repr(view.dtype), hash(view.dtype) and None)
    values = (view.ndim, view.shape, view.itemsize, view.nbytes, view.byte_strides, view.elem_strides, view.byte_offset)
    place = (view.device, view.__dlpack_device__(), view.memory, view.ptr and None, view.read_only)
    order = (view.stream and None, view.producer_stream and None, view.return_edge)
    return (of_dtype, values, place, order, view.fields)


# What a view can do. The parts after the import, so that each runs for each producer.
OF_A_VIEW: dict[str, Use] = {
    "told": lambda world, view: view,
    "__dlpack__": lambda world, view: view.__dlpack__(stream=world.b, max_version=(1, 3)),
    "__dlpack__, legacy": lambda world, view: view.__dlpack__(stream=world.b),
    "__dlpack__, default stream": lambda world, view: view.__dlpack__(),
    "__dlpack__, stream object": lambda world, view: view.__dlpack__(stream=StreamObject(world.b)),
    "__dlpack__, copy": lambda world, view: view.__dlpack__(stream=world.b, copy=True, max_version=(1, 3)),
    "__dlpack__, host copy": lambda world, view: view.__dlpack__(dl_device=(1, 0), copy=True, max_version=(1, 3)),
    "__dlpack__, other device": lambda world, view: view.__dlpack__(dl_device=(2, 1), max_version=(1, 3)),
    "exchange": exported,
    "exchange, use_stream": in_use_stream,
    "policy": by_policy,
    "CAI": lambda world, view: view.__cuda_array_interface__,
    "to_cai": lambda world, view: view.to_cai(),
    "on": lambda world, view: view.on(world.b),
    "synchronize": lambda world, view: view.synchronize(),
    "wait": waited,
    "consume": consumed,
    "present as host": lambda world, view: view.present_as("host"),
    "present as cuda": lambda world, view: view.present_as("cuda"),
    "__array__": lambda world, view: view.__array__(),
    "__array_interface__": lambda world, view: view.__array_interface__,
    "buffer": lambda world, view: memoryview(view),
    "field": lambda world, view: view.field("y"),
    "join": lambda world, view: cd.join([view, world.a], on=world.b),
    "view": lambda world, view: cd.view(view, dtype="int32"),
    "repr": lambda world, view: (repr(view) and None, view.dtype.dtype),
    "attributes": attributes,
}


def then(use: Use) -> Use:
    return lambda world, array: use(world, cd.view(array))


def shared(world: World, array: Any) -> object:
    with cd.share(array) as handle:
        return type(handle).__name__


def opened(world: World, array: Any) -> object:
    with cd.share(array) as handle:
        return cd.open(handle, stream=world.b)


def bare(world: World) -> dict[str, Any]:
    """A dict that leaves its order to its owner, if that is a view."""
    return interface(data=(world.address("device"), False), stream=None)


def traced(use: Use) -> Use:
    def run(world: World, array: Any) -> object:
        with cd.policy(trace=True):
            return use(world, array)

    return run


# What takes any array.
OF_AN_ARRAY: dict[str, Use] = {
    **{f"view: {name}": then(use) for name, use in OF_A_VIEW.items()},
    "view, device_id": lambda world, array: cd.view(array, device_id=0),
    "view, bounds": lambda world, array: cd.view(array, check="bounds"),
    "view, shape": lambda world, array: cd.view(array, shape=(6,), read_only=True),
    "view, producer's stream": lambda world, array: cd.view(array, producer_stream=StreamObject(world.a), owner=world),
    "view a dict, owner": lambda world, array: cd.view(bare(world), owner=array),
    "view, strict": lambda world, array: cd.view(array, strict=True),
    "from_cai": lambda world, array: cd.from_cai(array),
    "from_dlpack": lambda world, array: cd.from_dlpack(array, stream=world.b),
    "from_dlpack, copy": lambda world, array: cd.from_dlpack(array, copy=True, device=(1, 0)),
    "from_dlpack, other device": lambda world, array: cd.from_dlpack(array, device="cuda:1"),
    "to_dlpack": lambda world, array: cd.to_dlpack(array, stream=world.b, max_version=(1, 3)),
    "to_dlpack, legacy": lambda world, array: cd.to_dlpack(array),
    "to_dlpack, host": lambda world, array: cd.to_dlpack(array, stream="host", max_version=(1, 3)),
    "to_dlpack, copy": lambda world, array: cd.to_dlpack(array, stream=world.b, copy=True, max_version=(1, 3)),
    "to_dlpack, writable": lambda world, array: cd.to_dlpack(array, stream=-1, writable=True, max_version=(1, 3)),
    "split_masked": lambda world, array: cd.split_masked(array),
    "to: numba.cuda": lambda world, array: cd.to(array, "numba.cuda", stream=world.b),
    "to: cuda.core": lambda world, array: cd.to(array, "cuda.core", stream=world.b),
    "to: tvm_ffi": lambda world, array: cd.to(array, "tvm_ffi", stream=world.b),
    "Rust argument": lambda world, array: peer.view_of(array),
    "share": shared,
    "open": opened,
    "traced: on": traced(lambda world, array: cd.view(array).on(world.b)),
    "traced: to_dlpack": traced(lambda world, array: cd.to_dlpack(array, stream=world.b, max_version=(1, 3))),
    "traced: attributes": traced(lambda world, array: cd.view(array).__cuda_array_interface__),
    "explain": lambda world, array: cd.explain(array, to="torch", stream=world.b),
    "explain, no consumer": lambda world, array: cd.explain(array),
    "explain a dict, owner": lambda world, array: cd.explain(bare(world), owner=array),
    "explain, numpy": lambda world, array: cd.explain(array, to="numpy"),
}


@dataclass(frozen=True)
class Route:
    """A producer and a use of it."""

    producer: str
    use: str

    def make(self, world: World) -> Any:
        """Makes the array: before anything fails."""
        return PRODUCERS[self.producer](world)

    def take(self, world: World, array: Any) -> Any:
        """Takes the route; returns the result itself, which the caller ends, or a refusal's rule."""
        try:
            return OF_AN_ARRAY[self.use](world, array)
        except REFUSALS as error:
            return f"{type(error).__name__}: {getattr(error, 'rule', None) or error}"

    def run(self, world: World, array: Any) -> object:
        """Takes the route and ends the result; returns what came of it as plain values."""
        return told(self.take(world, array))

    @property
    def is_foreign(self) -> bool:
        """Whether another library makes the result, which calls the driver too."""
        return self.use.startswith("to: ") or self.use == "Rust argument"

    @property
    def held(self) -> int:
        """How many owners the array itself keeps, of those that `stats` counts: another copy counts its own."""
        return int(self.producer.startswith("view"))

    def __str__(self) -> str:
        return f"{self.producer} / {self.use}"


ROUTES = [Route(producer, use) for producer in PRODUCERS for use in OF_AN_ARRAY]


def quiet() -> None:
    """Ignores warnings, as a route warns once and is run many times, and the lines of the trace.

    A line is made, and passed to `logging`, which keeps frames in cycles if memory is short: it makes no record of it.
    """
    warnings.simplefilter("ignore")
    logging.getLogger("cai_dlpack").setLevel(logging.WARNING)
    logging.getLogger("cai_dlpack").addHandler(logging.NullHandler())
