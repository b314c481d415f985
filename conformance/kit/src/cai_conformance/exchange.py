"""The C Exchange API as DLPack 1.3's header lays it out, built and called with ctypes alone."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from cai_conformance import abi

ATTRIBUTE = "__dlpack_c_exchange_api__"
NAME = b"dlpack_exchange_api"

_Out = ctypes.POINTER(ctypes.c_void_p)
SetError = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
Allocator = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _Out, ctypes.c_void_p, SetError)
FromObject = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _Out)
ToObject = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _Out)
Borrow = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(abi.DLTensor))
WorkStream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, _Out)


class Table(ctypes.Structure):
    _fields_ = [
        ("version", abi.DLPackVersion),
        ("prev_api", ctypes.c_void_p),
        ("allocator", ctypes.c_void_p),
        ("from_object", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("borrow", ctypes.c_void_p),
        ("work_stream", ctypes.c_void_p),
    ]


assert ctypes.sizeof(Table) == 56

# Tables are static: what a test makes lives for the whole run.
_alive: list[Any] = []


def address(function: Any) -> int | None:
    """A C function's address."""
    return ctypes.cast(function, ctypes.c_void_p).value


def table_of(kind: type) -> Table:
    """The table that a type shows."""
    return Table.from_address(abi.pointer(getattr(kind, ATTRIBUTE)))


def capsule(table: Table, name: bytes = NAME) -> object:
    return abi.new_capsule(ctypes.addressof(table), name, destructor=False)


class Producer:
    """Holds the state behind a double's table: the tensor that it exports, and its calls."""

    def __init__(self, made: abi.Made | None = None) -> None:
        self.made = made if made is not None else abi.make()
        self.stream = 0
        self.exported = 0
        self.asked: list[tuple[int, int]] = []
        self.fallbacks: list[dict[str, Any]] = []


def table(
    producer: Producer,
    *,
    version: tuple[int, int] = (1, 3),
    prev: Table | None = None,
    from_object: Any = ...,
    to_object: Any = ...,
    work_stream: Any = ...,
    lends: bool = False,
) -> Table:
    """A complete table of `producer`; the functions that others call can be replaced."""

    def export(_object: int, out: Any) -> int:
        producer.exported += 1
        out[0] = producer.made.address
        return 0

    def lend(_object: int, out: Any) -> int:
        out[0] = producer.made.tensor
        return 0

    def work(device_type: int, device_id: int, out: Any) -> int:
        producer.asked.append((device_type, device_id))
        out[0] = producer.stream
        return 0

    def refuse(*_: Any) -> int:
        return -1

    functions = {
        "allocator": Allocator(refuse),
        "from_object": FromObject(export) if from_object is ... else from_object,
        "to_object": ToObject(refuse) if to_object is ... else to_object,
        "borrow": Borrow(lend) if lends else None,
        "work_stream": WorkStream(work) if work_stream is ... else work_stream,
    }
    made = Table()
    made.version = abi.DLPackVersion(*version)
    made.prev_api = None if prev is None else ctypes.addressof(prev)
    for name, function in functions.items():
        setattr(made, name, None if function is None else address(function))
    _alive.extend([made, functions, prev])
    return made


def make_type(attribute: Any, producer: Producer, **members: Any) -> type:
    """A class with this as its `__dlpack_c_exchange_api__`, and a `__dlpack__` that records its calls."""

    def dlpack(self: Any, **keywords: Any) -> object:
        producer.fallbacks.append(keywords)
        return producer.made.capsule()

    def dlpack_device(self: Any) -> tuple[int, int]:
        device = producer.made.tensor.device
        return (device.device_type, device.device_id)

    body = {"__dlpack__": dlpack, "__dlpack_device__": dlpack_device, ATTRIBUTE: attribute, **members}
    return type("Exchanger", (), body)


def call(function: Callable[..., Any], prototype: Any) -> Any:
    """A table's function, callable."""
    return prototype(function)
