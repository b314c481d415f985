"""Arrays to hand to a consumer whose type has DLPack's C Exchange API.

from cai_conformance.exchanged import exchanged
take(exchanged(table=(2, 0)))
"""

from __future__ import annotations

import ctypes
from typing import Any

from cai_conformance import abi, exchange, offers
from cai_conformance.cuda import driver
from cai_conformance.reference.exchanger import ExchangeArray, as_object
from cai_conformance.reference.producers import DeviceMemory, kept

#: The devices for which consumers asked for the work stream.
ASKED: list[tuple[int, int]] = []
#: The addresses of tensors that consumers gave to the table's import.
IMPORTED: list[int] = []


def _export(obj: int, out: Any) -> int:
    offer = as_object(obj)
    out[0] = ctypes.addressof(offer.tensor.managed(True))
    offer.addresses.append(out[0])
    return 0


def _export_other(obj: int, out: Any) -> int:
    as_object(obj).by_other = True
    return _export(obj, out)


def _lend(obj: int, out: Any) -> int:
    """Lends a copy, so that a check can change what was lent."""
    offer = as_object(obj)
    copy = offer.array.copy()
    changes = {key: value for key, value in offer.tensor.changes.items() if key != "data"}
    out[0] = offers.Tensor(copy, **changes).managed(True).dl_tensor
    offer.lent.append(copy)
    return 0


def _import(tensor: int, out: Any) -> int:
    IMPORTED.append(tensor)
    return ExchangeArray.to_object(tensor, out)


def _work_stream(kind: int, number: int, out: Any) -> int:
    ASKED.append((kind, number))
    out[0] = offers.a_stream() if kind == abi.CUDA else None
    return 0


#: Returns -1 and leaves an exception set, that of `__bool__`: a function of Python's cannot, by ctypes.
RAISES = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p).value

_FUNCTIONS = {
    "allocator": exchange.Allocator(ExchangeArray.allocate),
    "from_object": exchange.FromObject(_export),
    "to_object": exchange.ToObject(_import),
    "borrow": exchange.Borrow(_lend),
    "work_stream": exchange.WorkStream(_work_stream),
}
_OTHER = exchange.FromObject(_export_other)


def table(version: tuple[int, int], missing: tuple[str, ...] = (), raises: bool = False, other: bool = False) -> Any:
    """A table, which lives as long as the process. With `raises` nothing in it may be called."""
    made = kept(exchange.Table())
    made.version = abi.DLPackVersion(*version)
    for name, function in _FUNCTIONS.items():
        setattr(made, name, None if name in missing else exchange.address(function))
    if other:
        made.from_object = exchange.address(_OTHER)
    if raises:
        made.from_object = RAISES
        made.borrow = made.borrow and RAISES
    return made


class Exchanged:
    """An array, whose class has a table of its own. Counts the calls."""

    def __init__(self, array: Any, memory: Any, error: Exception, changes: dict[str, Any]) -> None:
        self.tensor = offers.Tensor(array, **changes)
        self.array = array
        self.memory = memory
        self.error = error
        self.address = int(array.ctypes.data)
        self.addresses: list[int] = []
        self.misused = 0
        self.by_other = False
        self.lent: list[Any] = []

    @property
    def exported(self) -> int:
        return len(self.addresses)

    @property
    def deleted(self) -> int:
        return self.tensor.deleted

    @property
    def used(self) -> bool:
        """Whether its table gave a tensor."""
        return bool(self.exported or self.lent)

    def __bool__(self) -> bool:
        self.misused += 1
        raise self.error


def exchanged(array: Any = offers.USUAL, /, **changes: Any) -> Any:
    """An array in memory of the host whose type has the exchange table, with something changed.

    Of the table: table (version), prev (version of an older table), missing (functions that are NULL), name of its
    capsule, raises (an exception, by the table and by `__dlpack__`), other (its own export function).
    Of the object: only (no `__dlpack__`), instance (an attribute of the instance that hides the type's), on_device.
    The rest is changed as by `cai_conformance.offers.tensor`.
    """
    version, prev = changes.pop("table", abi.NEWEST), changes.pop("prev", None)
    name = changes.pop("name", exchange.NAME)
    error = changes.pop("raises", None)
    only = changes.pop("only", False)
    instance = changes.pop("instance", None)
    unusable = error is not None or version[0] != 1 or name != exchange.NAME
    shown = table(version, changes.pop("missing", ()), unusable, changes.pop("other", False))
    if prev is not None:
        shown.prev_api = ctypes.addressof(table(prev))
    memory = DeviceMemory(array) if changes.pop("on_device", False) else None
    if memory is not None:
        driver().synchronize()
        changes.update(device=(abi.CUDA, 0), data=memory.address)
    if error is not None:
        changes["raises"] = error
    body: dict[str, Any] = {exchange.ATTRIBUTE: exchange.capsule(shown, name)}
    if not only:
        body["__dlpack__"] = lambda self, **keywords: self.tensor.__dlpack__(**keywords)
        body["__dlpack_device__"] = lambda self: self.tensor.__dlpack_device__()
    kind = type("Exchanged", (Exchanged,), body)
    made = kind(array, memory, error or BufferError("this table must not be used"), changes)
    if instance is not None:
        setattr(made, exchange.ATTRIBUTE, instance)
    return made
