"""Random programs for several streams, with exactly the waits that their memory accesses need.

Whatever a schedule does, the memory must end up as if the steps had run one after the other. With
one needed wait left out, some order is wrong, and the lazy schedule should find it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from cai_conformance import Sim

from conformance.tests.cusim.model.driver import Driver


@dataclass
class Buffer:
    """Device memory, what it should hold, and the last accesses: steps as (stream, event)."""

    address: int
    expected: bytes
    writer: tuple[int, int] | None = None
    readers: list[tuple[int, int]] = field(default_factory=list)


class Program:
    """Streams, buffers, and an event for each step; `skip` is the number of a wait to leave out."""

    def __init__(self, cu: Driver, sim: Sim, seed: int, skip: int | None = None) -> None:
        self.cu, self.sim, self.random, self.skip = cu, sim, random.Random(seed), skip
        self.streams = [cu.stream() for _ in range(self.random.randint(2, 4))]
        self.buffers = [self._buffer() for _ in range(self.random.randint(2, 5))]
        self.events: list[int] = []
        self.waits = 0

    def _buffer(self) -> Buffer:
        address = self.cu.alloc(8)
        self.sim.poke(address, b"\x00" * 8)
        return Buffer(address, b"\x00" * 8)

    def run(self, steps: int) -> bool:
        """Enqueues the steps, waits for all streams in a random order, and returns whether the memory is right."""
        for _ in range(steps):
            if self.random.random() < 0.5:
                self._store()
            else:
                self._copy()
        self.random.shuffle(self.streams)
        for stream in self.streams:
            self.cu.wait_for(stream)
        return all(self.sim.peek(buffer.address, 8) == buffer.expected for buffer in self.buffers)

    def _store(self) -> None:
        stream, buffer = self.random.choice(self.streams), self.random.choice(self.buffers)
        self._wait(stream, [buffer.writer, *buffer.readers])
        buffer.expected = self.random.randbytes(8)
        self.sim.store(stream, buffer.address, buffer.expected)
        self._wrote(stream, buffer)

    def _copy(self) -> None:
        stream = self.random.choice(self.streams)
        source, target = self.random.sample(self.buffers, 2)
        self._wait(stream, [source.writer, target.writer, *target.readers])
        self.cu.copy_async(target.address, source.address, 8, stream)
        target.expected = source.expected
        source.readers.append(self._wrote(stream, target))

    def _wrote(self, stream: int, buffer: Buffer) -> tuple[int, int]:
        event = self.cu.event()
        self.cu.record(event, stream)
        self.events.append(event)
        buffer.writer, buffer.readers = (stream, event), []
        return stream, event

    def _wait(self, stream: int, accesses: list[tuple[int, int] | None]) -> None:
        for access in accesses:
            if access is not None and access[0] != stream:
                if self.waits != self.skip:
                    self.cu.stream_wait(stream, access[1])
                self.waits += 1

    def close(self) -> None:
        self.cu.synchronize()
        for event in self.events:
            self.cu.destroy_event(event)
        for stream in self.streams:
            self.cu.destroy_stream(stream)
        for buffer in self.buffers:
            self.cu.free(buffer.address)


def is_right(cu: Driver, sim: Sim, seed: int, skip: int | None = None, steps: int = 20) -> tuple[bool, int]:
    """Runs one program; also how many waits it needed."""
    program = Program(cu, sim, seed, skip)
    right = program.run(steps)
    program.close()
    return right, program.waits
