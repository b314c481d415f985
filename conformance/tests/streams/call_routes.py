"""Takes every route of the package once for each kind of memory and ready stream, and prints its driver calls.

Run on the simulator, as a program: `main` prints JSON. A route is what a row of docs/streams.md calls so; its doors are
the functions that take it, which make the same calls.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import cai_dlpack as cd
import numpy as np
from cai_conformance import Sim, abi, exchange

from conformance.tests.doubles.producers import Cai, Dlpack, interface
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.race import NBYTES, Track

DLPACK = {"device": abi.CUDA, "pool": abi.CUDA, "pinned": abi.CUDA_HOST, "managed": abi.CUDA_MANAGED}
SHARED = ("pinned", "managed")
READY = ("None", "A", "1")
CONSUMERS = ("A", "B", "1", "2", "-1", "None", "CPU")

Door = Callable[["Given"], Callable[[], Any]]


@dataclass
class Given:
    """An array: of this memory, at this address, ready on this stream."""

    track: Track
    memory: str
    address: int
    ready: int | None

    def dict(self) -> dict[str, Any]:
        return interface(data=(self.address, False), stream=self.ready)

    def view(self) -> cd.CaiView:
        return cd.view(Cai(self.dict()))

    def tensor(self) -> abi.Made:
        return abi.make(device=(DLPACK[self.memory], 0), data=self.address)


def door(make: Callable[[Given], Any], call: Callable[[Any, Given], Any]) -> Door:
    """Makes the array, and what is measured: the call with it."""
    return lambda given: partial(call, make(given), given)


def of_view(call: Callable[[cd.CaiView], Any]) -> Door:
    return door(Given.view, lambda view, _: call(view))


def of_dict(**told: Any) -> dict[str, Door]:
    by: dict[str, Callable[..., Any]] = {"view": cd.view, "from_cai": cd.from_cai, "split_masked": cd.split_masked}

    def of(import_: Callable[..., Any]) -> Door:
        return door(lambda given: Cai(given.dict()), lambda array, _: import_(array, **told))

    return {name: of(import_) for name, import_ in by.items()}


def with_table(given: Given) -> Any:
    producer = exchange.Producer(given.tensor())
    return exchange.make_type(exchange.capsule(exchange.table(producer)), producer)()


def told(import_: Callable[..., Any]) -> Callable[[Any, Given], Any]:
    return lambda array, given: import_(array, producer_stream=given.ready)


OF_TENSOR: dict[str, Door] = {
    "view": door(lambda given: Dlpack(given.tensor()), told(cd.view)),
    "from_dlpack": door(lambda given: Dlpack(given.tensor()), told(cd.from_dlpack)),
    "view, of a capsule": door(lambda given: given.tensor().capsule(), told(cd.view)),
    "from_dlpack, of a capsule": door(lambda given: given.tensor().capsule(), told(cd.from_dlpack)),
    "__dlpack_c_exchange_api__": door(with_table, told(cd.view)),
}


def end_of_block(given: Given) -> Callable[[], Any]:
    block = given.view().consume(given.track.b)
    block.__enter__()
    return lambda: block.__exit__(None, None, None)


def enter_use_stream(given: Given) -> Callable[[], Any]:
    return lambda: cd.use_stream(given.ready or given.track.b).__enter__()


def a_field(given: Given) -> Callable[[], Any]:
    pairs = {"typestr": "|V8", "descr": [("x", "<f4"), ("y", "<f4")], "shape": (2,)}
    view = cd.view(Cai({**given.dict(), **pairs}))
    return lambda: view.field("y")


# What is named by the table of docs/streams.md, and by which doors it is taken.
ROUTES: dict[str, tuple[tuple[str, ...], dict[str, Door]]] = {
    "a dict": (tuple(DLPACK), of_dict()),
    "a dict, `device_id=`": (tuple(DLPACK), of_dict(device_id=0)),
    "a tensor, `producer_stream=`": (tuple(DLPACK), OF_TENSOR),
    "a view": (tuple(DLPACK), {"view": of_view(cd.view), "split_masked": of_view(cd.split_masked)}),
    "a view, by `from_cai`": (tuple(DLPACK), {"from_cai": of_view(cd.from_cai)}),
    "a view, `producer_stream=`": (
        tuple(DLPACK),
        {"view": door(Given.view, told(cd.view))},
    ),
    "the dict of a view": (
        tuple(DLPACK),
        {"to_cai": of_view(lambda view: view.to_cai()), "interface": of_view(lambda v: v.__cuda_array_interface__)},
    ),
    '`present_as("cuda")`': (tuple(DLPACK), {"present_as": of_view(lambda view: view.present_as("cuda"))}),
    '`present_as("host")`': (SHARED, {"present_as": of_view(lambda view: view.present_as("host"))}),
    "what a view tells": (
        tuple(DLPACK),
        {
            "repr": of_view(repr),
            "_repr_html_": of_view(lambda view: view._repr_html_()),
            "__dlpack_device__": of_view(lambda view: view.__dlpack_device__()),
            "field": a_field,
        },
    ),
    "`explain(v, stream=B)`": (
        tuple(DLPACK),
        {"explain": door(Given.view, lambda view, given: cd.explain(view, stream=given.track.b))},
    ),
    "the end of `consume(B)`": (tuple(DLPACK), {"consume": end_of_block}),
    "`use_stream`": (("device",), {"use_stream": enter_use_stream}),
}

# The ready stream, by which the host reads; these make the calls of a row with the consumer "host".
HOST_READERS: dict[str, Door] = {
    "synchronize": of_view(lambda view: view.synchronize()),
    "to_dlpack": of_view(lambda view: cd.to_dlpack(view, stream="host")),
    "np.from_dlpack": of_view(np.from_dlpack),
    "np.asarray": of_view(np.asarray),
    "memoryview": of_view(lambda view: memoryview(view)),
    "__array_interface__": of_view(lambda view: view.__array_interface__),
}
HOST_ONLY_IF_SHARED = ("np.from_dlpack", "np.asarray", "memoryview", "__array_interface__")


@dataclass
class Measure:
    """The arrays and streams of one machine, and what has been measured: (route, memory, ready, door) to calls."""

    machine: Machine
    found: list[tuple[list[str], list[str]]] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.track = Track(self.machine)
        self.streams = {"A": self.track.a, "B": self.track.b, "1": 1, "2": 2, "-1": -1, "None": None}
        made = ctypes.c_uint64()
        size, stream = ctypes.c_size_t(NBYTES), ctypes.c_void_p(self.track.a)
        assert self.machine.driver.cuMemAllocAsync(ctypes.byref(made), size, stream) == 0
        self.addresses = {
            "device": self.track.data,
            "pool": made.value,
            "pinned": self.machine.pinned_memory(NBYTES),
            "managed": self.machine.managed_memory(NBYTES),
        }

    def given(self, memory: str, ready: str) -> Given:
        return Given(self.track, memory, self.addresses[memory], self.streams[ready])

    def run(self) -> None:
        """On a thread of its own, whose context is that of A, and whose calls alone are logged."""
        self.machine.set_current(0)
        self.machine.control.set("log", 2)
        self._meet()
        for name, (memories, of_route) in ROUTES.items():
            for memory, ready in product(memories, READY):
                for door, make in of_route.items():
                    self._measure([name, memory, ready, door], partial(make, self.given(memory, ready)))
        for memory, ready in product(DLPACK, READY):
            for door, make in HOST_READERS.items():
                if memory in SHARED or door not in HOST_ONLY_IF_SHARED:
                    self._measure(["host", memory, ready, door], partial(make, self.given(memory, ready)))
            for consumer in CONSUMERS:
                if memory in SHARED or consumer != "None":
                    self._measure(["copy", memory, ready, consumer], self._copy(memory, ready, consumer))

    def _meet(self) -> None:
        """Makes the calls that only the first order of a context makes."""
        for memory in DLPACK:
            view = self.given(memory, "1").view()
            view.on(self.track.a)
            view.synchronize()
            self.given(memory, "A").view().on(1)

    def _copy(self, memory: str, ready: str, consumer: str) -> Callable[[], Callable[[], Any]]:
        told: Any = {"dl_device": (1, 0)} if consumer == "CPU" else {"stream": self.streams[consumer]}
        view = self.given(memory, ready).view()
        call = partial(view.__dlpack__, copy=True, max_version=(1, 3), **told)
        return lambda: call

    def _measure(self, what: list[str], make: Callable[[], Callable[[], Any]]) -> None:
        """The calls of the third time: by then every event has been made, and what the others made is kept."""
        kept = [make()() for _ in range(2)]
        call = make()
        self.machine.clear()
        kept.append(call())
        self.found.append((what, self.machine.names()))
        self.kept.append(kept)


def main() -> None:
    measure = Measure(Machine(Sim()))
    thread = threading.Thread(target=measure.run)
    thread.start()
    thread.join()
    print(json.dumps(measure.found))


def doors() -> Iterator[str]:
    """The names of all doors."""
    for _, of_route in ROUTES.values():
        yield from of_route
    yield from HOST_READERS
