"""Random programs whose every wait is the library's: shared by tests and soak.

Arrays of every kind of memory are handed from stream to stream, on two devices: handles and the default streams of
both. Each step imports an array where it is ready, which it declares or not, orders another stream after it, copies and
writes it there. Without a wait some copy would be of another step's value.
"""

from __future__ import annotations

import asyncio
import ctypes
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import cai_dlpack as cd

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.simulated.machine import Machine

NBYTES = 24
# The calls that order a stream: any of them will do.
FACES: dict[str, Callable[[cd.CaiView, int], Any]] = {
    "on": lambda view, stream: view.on(stream),
    "dlpack": lambda view, stream: view.__dlpack__(stream=stream, max_version=(1, 3)),
    "join": lambda view, stream: cd.join([view], on=stream),
    "wait": lambda view, _: asyncio.run(view.wait()),
}


class Silent(Cai):
    """An array of a library whose kernels run on the legacy default stream, which its dict does not name."""

    __module__ = "numba.cuda"


@dataclass(frozen=True)
class Queue:
    """A stream as its number, and the device in whose primary context the number means it."""

    device: int
    number: int

    @property
    def is_default(self) -> bool:
        return self.number <= 2


@dataclass
class Array:
    """Memory, the device whose default streams are meant for it (`None`: those of any), and where it is ready."""

    address: int
    device: int | None
    ready: Queue
    value: int = 0


async def _inside(block: AbstractAsyncContextManager[cd.CaiView], body: Callable[[], None]) -> None:
    async with block:
        body()


@dataclass
class Program:
    """One machine for many programs, each of its own seed."""

    machine: Machine
    queues: list[Queue] = field(init=False)
    memory: list[tuple[int, int | None]] = field(init=False)

    def __post_init__(self) -> None:
        machine = self.machine
        handles = [Queue(device, machine.stream(device)) for device in (0, 0, 1)]
        self.queues = handles + [Queue(device, number) for device in (0, 1) for number in (1, 2)]
        self.memory = [
            (machine.device_memory(NBYTES, 0), 0),
            (machine.device_memory(NBYTES, 1), 1),
            (self._pool(handles[0].number), 0),
            (machine.pinned_memory(NBYTES), None),
            (machine.managed_memory(NBYTES), None),
        ]
        self.copies = machine.device_memory(64 * NBYTES)

    def _pool(self, stream: int) -> int:
        made = ctypes.c_uint64()
        self._do("cuMemAllocAsync", ctypes.byref(made), ctypes.c_size_t(NBYTES), ctypes.c_void_p(stream))
        self._do("cuStreamSynchronize", ctypes.c_void_p(stream))
        return made.value

    def is_right(self, seed: int, steps: int = 12) -> bool:
        """Runs the program of this seed; returns whether every copy is of the step before it."""
        choose = random.Random(seed)
        arrays = [Array(address, device, self.queues[0]) for address, device in self.memory]
        for array in arrays:
            self.machine.write(array.address, bytes(NBYTES))
        expected = []
        for step in range(steps):
            array = choose.choice(arrays)
            expected.append(array.value)
            self._step(choose, array, self.copies + step * NBYTES, step + 1)
        self._wait_for_all(choose)
        seen = [self.machine.read(self.copies + step * NBYTES, NBYTES) for step in range(steps)]
        left = [self.machine.read(array.address, NBYTES) for array in arrays]
        values = expected + [array.value for array in arrays]
        return seen + left == [bytes([value]) * NBYTES for value in values]

    def _step(self, choose: random.Random, array: Array, copy: int, value: int) -> None:
        """Hands the array to another stream, which copies it and writes it."""
        usable = [queue for queue in self.queues if not queue.is_default or array.device in (None, queue.device)]
        consumer = choose.choice(usable)
        self._current(choose, array.ready, array)
        named = array.device if choose.random() < 0.5 else None  # else the driver is asked
        data, ready = (array.address, False), array.ready.number
        is_silent = ready == 1 and choose.random() < 0.5
        producer = Silent(interface(data=data, stream=None)) if is_silent else Cai(interface(data=data, stream=ready))
        view = cd.view(producer, device_id=named)
        self._current(choose, consumer, array)
        if choose.random() < 0.3:
            block = view.consume(consumer.number)

            def use() -> None:
                self._use(consumer, array.address, copy, value)
                self._current(choose, None, array)

            if choose.random() < 0.5:
                with block:
                    use()
            else:
                asyncio.run(_inside(block, use))
        else:
            kept = FACES[choose.choice(list(FACES))](view, consumer.number)
            self._use(consumer, array.address, copy, value)
            array.ready = consumer
            del kept
        array.value = value

    def _current(self, choose: random.Random, queue: Queue | None, array: Array) -> None:
        """Makes the context current that the number is meant in; any, where the number says it all."""
        matters = queue is not None and queue.is_default and array.device is None
        self.machine.set_current(queue.device if queue is not None and matters else choose.randrange(2))

    def _use(self, queue: Queue, address: int, copy: int, value: int) -> None:
        self.machine.set_current(queue.device)
        arguments = ctypes.c_uint64(copy), ctypes.c_uint64(address), ctypes.c_size_t(NBYTES)
        self._do("cuMemcpyAsync", *arguments, ctypes.c_void_p(queue.number))
        self.machine.control.store(queue.number, address, bytes([value]) * NBYTES)

    def _wait_for_all(self, choose: random.Random) -> None:
        for queue in choose.sample(self.queues, len(self.queues)):
            self.machine.set_current(queue.device)
            self._do("cuStreamSynchronize", ctypes.c_void_p(queue.number))
        self.machine.set_current(0)

    def _do(self, name: str, *arguments: Any) -> None:
        code = getattr(self.machine.driver, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    def close(self) -> None:
        self.machine.set_current(0)
        self._do("cuMemFreeHost", ctypes.c_void_p(self.memory[3][0]))
        for address in (*(address for at, (address, _) in enumerate(self.memory) if at != 3), self.copies):
            self.machine.free(address)
        for queue in self.queues:
            if not queue.is_default:
                self.machine.destroy_stream(queue.number)
