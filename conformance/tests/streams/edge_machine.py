"""What the programs at the edges run on: three contexts on two devices, their streams, and arrays of every kind."""

from __future__ import annotations

import contextlib
import ctypes
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import cai_dlpack as cd
from cai_conformance.sim import Gate

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.simulated.machine import Machine

NBYTES = 24
STEPS = 24
CONCURRENT_MANAGED_ACCESS = 89


@dataclass(frozen=True)
class Queue:
    """A stream as its number, the context that the number is meant in, and its device."""

    home: int
    number: int
    device: int

    @property
    def is_default(self) -> bool:
        return self.number <= 2


@dataclass
class Array:
    """Memory; its device and context, `None` for memory that every context reaches; where it is ready.

    Such memory may be named as that of a device, whose default streams are then meant for it.
    """

    address: int
    device: int | None
    home: int | None
    ready: Queue
    is_managed: bool = False
    is_named: bool = False
    value: int = 0

    @property
    def named(self) -> int | None:
        """The device that an import has to name."""
        return self.device if self.is_named else None

    def can_name(self, queue: Queue) -> bool:
        """Whether the number means that stream for this array."""
        return not queue.is_default or self.home in (None, queue.home)


class Late:
    """Opens a gate at the end, or after ten seconds: then `is_late`."""

    def __init__(self, gate: Gate) -> None:
        self.gate, self.is_late = gate, False
        self.timer = threading.Timer(10, self._give_up)
        self.timer.start()

    def _give_up(self) -> None:
        self.is_late = True
        self.gate.open()

    def open(self) -> None:
        self.timer.cancel()
        self.timer.join()
        if not self.is_late:
            self.gate.open()


@dataclass
class Bench:
    """One machine for many programs."""

    machine: Machine
    homes: list[int] = field(init=False)
    queues: list[Queue] = field(init=False)
    arrays: list[Array] = field(init=False)
    # The addresses of sources whose owners have not ended yet.
    sources: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        machine = self.machine
        primary = [machine.context(device) for device in (0, 1)]
        self.homes, self.devices = [*primary, machine.create_context(0)], [0, 1, 0]
        self.handles = [
            Queue(home, self._stream(home), device) for home, device in zip(self.homes, self.devices, strict=True)
        ]
        self.handles.append(Queue(self.homes[0], machine.stream(0), 0))
        self.queues = [
            *self.handles,
            *(
                Queue(home, number, device)
                for home, device in zip(self.homes, self.devices, strict=True)
                for number in (1, 2)
            ),
        ]
        # Streams that the legacy one of their context waits for, as they wait for it.
        self.blocking = {home: self._stream(home, flags=0) for home in self.homes}
        self.exclusive = [device for device in (0, 1) if self._attribute(device, CONCURRENT_MANAGED_ACCESS) == 0]
        # Of a device that shares its managed memory: a wait for the context would break the capture of such a stream.
        shared = next(device for device in (1, 0) if device not in self.exclusive)
        self.capturable = [machine.stream(shared), machine.stream(shared)]
        first = self.queues[0]
        self.arrays = [
            Array(machine.device_memory(NBYTES, 0), 0, self.homes[0], first),
            Array(machine.device_memory(NBYTES, 1), 1, self.homes[1], first),
            Array(self._allocate(self.homes[2]), 0, self.homes[2], first),
            Array(machine.pool_memory(NBYTES, 0), 0, self.homes[0], first),
            Array(machine.pool_memory(NBYTES, 1), 1, self.homes[1], first),
            Array(machine.pinned_memory(NBYTES), None, None, first),
            Array(self._managed(0), None, None, first, is_managed=True),
            Array(self._managed(1), None, None, first, is_managed=True),
            Array(machine.pinned_memory(NBYTES), 1, self.homes[1], first, is_named=True),
            Array(self._managed(1), 0, self.homes[0], first, is_named=True),
        ]
        self.pinned = [self.arrays[5].address, self.arrays[8].address]
        # Of each stream, since nothing orders their work.
        self.scratch = {queue: machine.device_memory(NBYTES) for queue in self.queues}
        self.copies = machine.device_memory(8 * STEPS * NBYTES)
        # What a caching allocator of the host has to give: memory of each kind.
        self.cache: dict[str, list[int]] = {"pinned": [], "managed": []}

    def _attribute(self, device: int, attribute: int) -> int:
        found = ctypes.c_int()
        self.machine._call("cuDeviceGetAttribute", ctypes.byref(found), attribute, device)
        return found.value

    def _managed(self, device: int) -> int:
        made = ctypes.c_uint64()
        self.machine.set_current(device)
        self.machine._call("cuMemAllocManaged", ctypes.byref(made), ctypes.c_size_t(NBYTES), 1)
        return made.value

    def device_of(self, array: Array) -> int:
        """The device that the memory was allocated for."""
        found, ordinal = ctypes.c_int(), 9
        self.machine._call("cuPointerGetAttribute", ctypes.byref(found), ordinal, ctypes.c_uint64(array.address))
        return found.value

    def settle(self, home: int) -> None:
        """Waits for all work, and for the owners of what it has read: the end of one waits for its device, held or not.

        What was dropped before is about to be freed.
        """
        self._wait_for(self.streams)
        self.machine.enter(home)
        late = time.monotonic() + 10
        while self.sources:
            assert time.monotonic() < late, f"{len(self.sources)} sources are kept"
            cd.stats()  # what another thread has ended goes with the next call into the package
            time.sleep(0.001)

    @contextlib.contextmanager
    def late(self, queue: Queue) -> Iterator[Late]:
        """Holds a stream with work on it, for a while at most."""
        self.machine.enter(queue.home)
        late = Late(self.machine.control.gate(queue.number))
        self.machine.control.store(queue.number, self.scratch[queue], bytes(NBYTES))
        try:
            yield late
        finally:
            late.open()

    def busy(self, queue: Queue, value: int) -> None:
        """Enqueues work of some length on other memory, which nothing orders."""
        self.machine.enter(queue.home)
        self.machine.control.delay(queue.number, 0.001)
        self.machine.control.store(queue.number, self.scratch[queue], bytes([value]) * NBYTES)

    def is_disturbed(self, queue: Queue, value: int) -> bool:
        """Whether that work runs on, in a device that wants managed memory to itself and a context that tells of it."""
        is_told = queue.home in self.homes[:2] and queue.device in self.exclusive
        return is_told and self.machine.read(self.scratch[queue], NBYTES) != bytes([value]) * NBYTES

    def _stream(self, home: int, flags: int = 1) -> int:
        made = ctypes.c_void_p()
        self.machine.enter(home)
        self.machine._call("cuStreamCreate", ctypes.byref(made), flags)
        assert made.value
        return made.value

    def _allocate(self, home: int) -> int:
        made = ctypes.c_uint64()
        self.machine.enter(home)
        self.machine._call("cuMemAlloc_v2", ctypes.byref(made), ctypes.c_size_t(NBYTES))
        return made.value

    def reset(self) -> None:
        """Zeroes, ready on the first stream, in every array."""
        for array in self.arrays:
            array.ready, array.value = self.queues[0], 0
            self.machine.write(array.address, bytes(NBYTES))

    def copy_on(self, queue: Queue, target: int, source: int) -> None:
        self.machine.enter(queue.home)
        addresses = ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(NBYTES)
        self.machine._call("cuMemcpyAsync", *addresses, ctypes.c_void_p(queue.number))

    def wait_for_all(self, choose: random.Random) -> None:
        self._wait_for(choose.sample(self.streams, len(self.streams)))
        self.machine.set_current(0)

    def wait_for(self, queue: Queue) -> None:
        """Waits for a stream, also beside a capture; its context stays current."""
        self._wait_for([(queue.home, queue.number)])

    @property
    def streams(self) -> list[tuple[int, int]]:
        """Every stream, in its context."""
        return [*((queue.home, queue.number) for queue in self.queues), *self.blocking.items()]

    def _wait_for(self, streams: list[tuple[int, int]]) -> None:
        with self.machine.relaxed():
            for home, number in streams:
                self.machine.enter(home)
                self.machine._call("cuStreamSynchronize", ctypes.c_void_p(number))

    @contextlib.contextmanager
    def little_memory(self, left: int) -> Iterator[None]:
        """Lets no device take more than `left` bytes on top of what the fuller one has."""
        everything, used = self.machine.control.get("memory"), []
        for device in (0, 1):
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            self.machine.set_current(device)
            self.machine._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
            used.append(total.value - free.value)
        self.machine.control.set("memory", max(used) + left)
        try:
            yield
        finally:
            self.machine.control.set("memory", everything)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """For a step's own calls between those of the library: the caller's context stays, and no capture breaks."""
        before = self.machine.current()
        with self.machine.relaxed():
            yield
        self.machine.enter(before)

    def close(self) -> None:
        machine = self.machine
        for array in self.arrays:
            machine.enter(array.home or self.homes[0])
            if array.address in self.pinned:
                machine._call("cuMemFreeHost", ctypes.c_void_p(array.address))
            else:
                machine.free(array.address)
        machine.set_current(0)
        for cached in self.cache["pinned"]:
            machine._call("cuMemFreeHost", ctypes.c_void_p(cached))
        for cached in self.cache["managed"]:
            machine.free(cached)
        machine.free(self.copies)
        for scratch in self.scratch.values():
            machine.free(scratch)
        for stream in (*self.capturable, *self.blocking.values(), *(queue.number for queue in self.handles)):
            machine.destroy_stream(stream)
        machine.destroy_context(self.homes[2])


class Temporary(Cai):
    """Ready memory that is freed with its owner, by a call that waits for its own device only."""

    def __init__(self, bench: Bench, choose: random.Random) -> None:
        at = choose.randrange(3)
        self.bench, self.home, self.value = bench, bench.homes[at], choose.randrange(1, 256)
        with bench.aside():
            self.address = bench._allocate(self.home)
        bench.sources.add(self.address)
        bench.machine.write(self.address, bytes([self.value]) * NBYTES)
        super().__init__(interface(data=(self.address, False), stream=None))

    def __del__(self) -> None:
        with self.bench.aside():
            self.bench.machine.enter(self.home)
            self.bench.sources.discard(self.address)
            self.bench.machine.free(self.address)


class Cached(Cai):
    """Memory of the host's caching allocator, ready on a stream: with its owner it goes to the host, at once."""

    def __init__(self, bench: Bench, choose: random.Random, kind: str = "") -> None:
        kind, ready = kind or choose.choice(list(bench.cache)), choose.choice(bench.handles)
        self.bench, self.free, self.value = bench, bench.cache[kind], choose.randrange(1, 256)
        with bench.aside():
            allocate = {"pinned": lambda: bench.machine.pinned_memory(NBYTES), "managed": lambda: bench._managed(0)}
            self.address = self.free.pop() if self.free else allocate[kind]()
        bench.machine.write(self.address, bytes([self.value]) * NBYTES)
        super().__init__(interface(data=(self.address, False), stream=ready.number))

    def __del__(self) -> None:
        self.bench.machine.write(self.address, bytes(NBYTES))
        self.free.append(self.address)
