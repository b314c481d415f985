"""Random programs of copies: for streams of two devices, for no stream and for the host, dropped at any time.

Arrays are written on a stream of their own; each copy has to hold what its array held in the order of the program,
and its memory has to be there until what reads it is done.
"""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass

import cai_dlpack as cd
from cai_conformance import abi

from conformance.tests.doubles.producers import cai
from conformance.tests.simulated.machine import Machine

SIZE = 8
LEGACY = 1
KINDS = ("device", "other-device", "managed", "pinned")


@dataclass
class Array:
    """Memory, the stream that writes it, and what it holds once that stream is done."""

    address: int
    home: int
    expected: bytes


class Program:
    """Streams, arrays, and the copies of copies that show what was read."""

    def __init__(self, machine: Machine, seed: int, *, drops: bool) -> None:
        self.machine, self.random, self.drops = machine, random.Random(seed), drops
        self.streams_of = {machine.stream(ordinal): ordinal for ordinal in (0, 0, 1, 1)}
        self.streams = list(self.streams_of)
        self.arrays = [self._array(kind) for kind in KINDS]
        self.pinned = self.arrays[KINDS.index("pinned")].address
        self.read: list[tuple[int, bytes]] = []
        self.kept: list[abi.Read] = []
        self.right = True

    def _array(self, kind: str) -> Array:
        allocate = {
            "device": self.machine.device_memory,
            "other-device": lambda nbytes: self.machine.device_memory(nbytes, 1),
            "managed": self.machine.managed_memory,
            "pinned": self.machine.pinned_memory,
        }[kind]
        array = Array(allocate(SIZE), self.random.choice(self.streams), bytes(SIZE))
        self.machine.write(array.address, array.expected)
        return array

    def run(self, steps: int) -> bool:
        """Runs the steps; returns whether every copy held what it should."""
        for _ in range(steps):
            calls = [self._store, self._copy, self._copy, self._copy_in_a_block, self._copy_to_host, self._drop]
            self.random.choice(calls)()
        while self.drops and self.kept:
            self._drop()
        self.random.shuffle(self.streams)
        for stream in self.streams:
            code = self.machine.driver.cuStreamSynchronize(ctypes.c_void_p(stream))
            assert code == 0, code
        for ordinal in (1, 0):
            self.machine.set_current(ordinal)
            self.machine._call("cuStreamSynchronize", ctypes.c_void_p(LEGACY))
        return self.right and all(self.machine.read(target, SIZE) == value for target, value in self.read)

    def _store(self) -> None:
        array = self.random.choice(self.arrays)
        array.expected = self.random.randbytes(SIZE)
        self.machine.control.store(array.home, array.address, array.expected)

    def _view(self, array: Array) -> cd.CaiView:
        return cd.view(cai(shape=(SIZE,), typestr="|u1", data=(array.address, False), stream=array.home))

    def _copy(self) -> None:
        """A copy for a stream, or for none, that a stream then reads."""
        array = self.random.choice(self.arrays)
        reader = self.random.choice(self.streams)
        asked = self.random.choice([reader, reader, -1])
        tensor = abi.consume(self._view(array).__dlpack__(stream=asked, copy=True, max_version=(1, 3)))
        if asked == -1:
            self.right &= self.machine.read(tensor.data, SIZE) == array.expected
        else:
            self._read(tensor.data, array.expected, reader)
        self.kept.append(tensor)

    def _copy_in_a_block(self) -> None:
        """A copy for a consumer that names no stream, and works on the block's or on the legacy default one."""
        at = self.random.randrange(len(KINDS))
        array, ordinal = self.arrays[at], int(KINDS[at] == "other-device")
        block = self.random.choice(self.streams)
        is_of_device = self.streams_of[block] == ordinal
        with cd.use_stream(block, device_id=self.streams_of[block]):
            tensor = abi.consume(self._view(array).__dlpack__(copy=True, max_version=(1, 3)))
        reader = self.random.choice([block, LEGACY]) if is_of_device else LEGACY
        self._read(tensor.data, array.expected, reader, ordinal)
        self.kept.append(tensor)

    def _read(self, address: int, expected: bytes, reader: int, ordinal: int = 0) -> None:
        target = self.machine.device_memory(SIZE)
        self.machine.set_current(ordinal)  # whose default stream it is
        addresses = (ctypes.c_uint64(target), ctypes.c_uint64(address), ctypes.c_size_t(SIZE))
        self.machine._call("cuMemcpyAsync", *addresses, ctypes.c_void_p(reader))
        self.machine.set_current(0)
        self.read.append((target, expected))

    def _copy_to_host(self) -> None:
        array = self.random.choice(self.arrays)
        tensor = abi.consume(self._view(array).__dlpack__(dl_device=(abi.CPU, 0), copy=True, max_version=(1, 3)))
        self.right &= ctypes.string_at(tensor.data, SIZE) == array.expected
        abi.release(tensor)

    def _drop(self, *, at_the_end: bool = False) -> None:
        if self.kept and (self.drops or at_the_end):
            abi.release(self.kept.pop(self.random.randrange(len(self.kept))))

    def close(self) -> None:
        while self.kept:
            self._drop(at_the_end=True)
        for stream in self.streams:
            self.machine.destroy_stream(stream)
        for address in (*(target for target, _ in self.read), *(array.address for array in self.arrays)):
            if address == self.pinned:
                self.machine._call("cuMemFreeHost", ctypes.c_void_p(address))
            else:
                self.machine.free(address)


def is_right(machine: Machine, seed: int, steps: int = 30, *, drops: bool = True) -> bool:
    """Runs one program. What is dropped is freed by a thread, whose calls wait for the device, at any time; without
    `drops` all is kept to the end."""
    program = Program(machine, seed, drops=drops)
    right = program.run(steps)
    program.close()
    return right
