"""A reference consumer of the C Exchange API."""

from __future__ import annotations

import ctypes
from typing import Any

from cai_conformance import abi, exchange
from cai_conformance.cuda import driver
from cai_conformance.reference.consumers import DlpackConsumer, Refused, TakenTensor
from cai_conformance.reference.exchanger import as_object


class Taken(TakenTensor):
    """The array that it took: the host has waited for the producer's stream."""

    stream = None


class ExchangeConsumer:
    """Takes an array by the table of its type, and by `__dlpack__` if there is none that it knows."""

    rules = DlpackConsumer.rules

    def __call__(self, obj: Any) -> Any:
        table = self.known(self.newest(obj))
        if table is None:
            return DlpackConsumer()(obj)
        address = self.exported(table, obj)
        try:
            read = self.look(address)
        except Refused:
            self.refused(address)
            raise
        self.order(table, read.device)
        return self.made(table, read)

    def newest(self, obj: Any) -> Any:
        """The table that the type shows; None if it shows none."""
        capsule = self.attribute(obj)
        if type(capsule).__name__ != "PyCapsule" or not self.is_named(abi.name(capsule)):
            return None
        return exchange.Table.from_address(abi.pointer(capsule))

    def attribute(self, obj: Any) -> Any:
        return getattr(type(obj), exchange.ATTRIBUTE, None)

    def is_named(self, name: bytes) -> bool:
        return name == exchange.NAME

    def known(self, table: Any) -> Any:
        """The newest table of version 1; None if there is none."""
        while table is not None and table.version.major != 1:
            table = exchange.Table.from_address(table.prev_api) if table.prev_api else None
        return table

    def exported(self, table: Any, obj: Any) -> int:
        if not table.from_object:
            raise Refused("from-object-null")
        out = ctypes.c_void_p()
        code = exchange.FromObject(table.from_object)(id(obj), ctypes.byref(out))  # raises what the function raised
        if code != 0 or not out.value:
            raise Refused("from-object")
        return out.value

    def look(self, address: int) -> abi.Read:
        if abi.DLPackVersion.from_address(address).major != 1 and "dlpack-major" in self.rules:
            raise Refused("dlpack-major")
        read = abi.peek(address, versioned=True)
        for rule, breaks in self.rules.items():
            if breaks(read):
                raise Refused(rule)
        return read

    def refused(self, address: int) -> None:
        """Gives a tensor back."""
        abi.call_deleter(address, versioned=True)

    def order(self, table: Any, device: tuple[int, int]) -> None:
        """Makes the host wait for the producer's stream."""
        if device[0] == abi.CUDA:
            out = ctypes.c_void_p()
            exchange.WorkStream(table.work_stream)(*device, ctypes.byref(out))
            driver().wait(out.value or 0)

    def made(self, table: Any, read: abi.Read) -> Any:
        """The array that it returns."""
        del table
        return self.taken(read)

    def taken(self, read: abi.Read) -> Any:
        return Taken(read)


class ExchangeEcho(ExchangeConsumer):
    """Gives an array of the producer's own back, as a function does that was called with one."""

    def made(self, table: Any, read: abi.Read) -> Any:
        if read.device[0] != abi.CPU:
            return super().made(table, read)
        return self.returned(table, read.address)

    def returned(self, table: Any, address: int) -> Any:
        out = ctypes.c_void_p()
        if exchange.ToObject(table.to_object)(address, ctypes.byref(out)) != 0:
            raise Refused("to-object")
        made = as_object(out.value or 0)
        abi.decref(id(made))
        return made
