"""Actors of Ray that make views and read them. Each process has a simulated driver of its own."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import cai_dlpack as cd
import numpy as np
import ray
from cai_conformance import Sim
from cai_dlpack import ray as bridge

from conformance.tests.doubles.producers import interface
from conformance.tests.reach.arrays import on_device
from conformance.tests.simulated.machine import Machine

# Ray looks for the transport when the class is defined.
bridge.register()


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Actor:
    """Work of its driver is done when somebody waits for it, and not before."""

    def __init__(self) -> None:
        self.machine = Machine(Sim())
        self.machine.set_current(0)
        self.machine.control.schedule = "lazy"

    @ray.method(tensor_transport="cai_dlpack")
    def make(self, array: Any, memory: str, read_only: bool = False) -> cd.CaiView:
        return self._made(array, memory, read_only)

    @ray.method(tensor_transport="cai_dlpack")
    def make_many(self, arrays: list[Any], memory: str) -> dict[str, Any]:
        return {"views": [self._made(array, memory, False) for array in arrays], "beside": "text"}

    def _made(self, array: Any, memory: str, read_only: bool) -> cd.CaiView:
        if memory == "host":
            return cd.view(np.array(array), read_only=read_only)
        return on_device(self.machine, array, self.machine.stream(), read_only)

    @ray.method(tensor_transport="cai_dlpack")
    def make_of_another_device(self) -> cd.CaiView:
        from cai_conformance import abi

        data = self.machine.device_memory(32)
        return cd.view(abi.make((4,), dtype=(2, 64, 1), device=(10, 0), data=data).capsule())

    def read(self, view: cd.CaiView) -> tuple[Any, ...]:
        values = np.array(np.from_dlpack(view, device="cpu"))
        return values, view.device, view.shape, str(view.dtype), view.read_only, os.getpid()

    def read_many(self, found: dict[str, Any]) -> list[Any]:
        assert found["beside"] == "text"
        return [np.array(np.from_dlpack(view, device="cpu")) for view in found["views"]]

    def live(self) -> int:
        gc.collect()
        return int(cd.stats()["live"])

    def release_stored(self) -> None:
        """Lets go of what was stored for others, as if Ray had ended it too early."""
        from ray.experimental.rdt.util import get_tensor_transport_manager

        transport: Any = get_tensor_transport_manager(bridge.NAME)
        end = time.monotonic() + 20
        while not transport._stored and time.monotonic() < end:  # Ray stores on a thread of its own.
            time.sleep(0.01)
        transport._stored.clear()

    def process(self) -> int:
        return os.getpid()

    @ray.method(tensor_transport="cai_dlpack")
    def make_watched(self, memory: str, read_only: bool) -> cd.CaiView:
        """Makes an array in C order, ready, and looks from then on where what is stored lies."""
        values = np.arange(16.0)
        if memory == "host":
            view = cd.view(values, read_only=read_only)
        else:
            data = getattr(self.machine, f"{memory}_memory")(values.nbytes)
            self.machine.write(data, values.tobytes())
            view = cd.view(interface(shape=values.shape, typestr="<f8", data=(data, read_only)), owner=self)
        put = ray.put

        def watched(parts: list[Any], **given: Any) -> Any:
            self.is_stored_from_there = parts[0].ctypes.data == view.ptr
            ray.put = put
            return put(parts, **given)

        ray.put = watched
        self.machine.clear()
        return view

    def copied_to_send(self) -> int:
        """Copies that were made for the store, and the store's own."""
        return max(self._copied_by_the_driver(), not self.is_stored_from_there) + 1

    def prepare_to_receive(self) -> None:
        self.machine.clear()

    def copied_to_receive(self, view: cd.CaiView) -> int:
        """Copies of what is in the store: by the driver, or to other memory of the host."""
        by_driver = self._copied_by_the_driver()
        return by_driver + (view.device == (1, 0) and not is_in_the_store(view.ptr))

    def _copied_by_the_driver(self) -> int:
        return sum(name.startswith("cuMemcpy") for name in self.machine.names())


def is_in_the_store(address: int) -> bool:
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            if first <= address < last:
                return "plasma" in line
    return False
