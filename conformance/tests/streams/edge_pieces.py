"""The pieces that the steps of the programs at the edges are made of."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator

import cai_dlpack as cd
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.simulated.capture import Captures
from conformance.tests.streams.edge_machine import NBYTES, Array, Bench, Queue

_HOST_WAITS = {"cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"}


class Pieces:
    """The state of one program, on a bench that many programs share."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench, self.machine, self.random = bench, bench.machine, random.Random(seed)
        self.captures, self.captured = Captures(bench.machine), 0
        self.kept: list[abi.Read] = []
        self.wrong: list[str] = []
        self.read: list[tuple[int, int]] = []
        self.reached: Counter[str] = Counter()

    def _array(self) -> Array:
        return self.random.choice(self.bench.arrays)

    def _usable(self, array: Array) -> Queue:
        """A stream that the array can be handed to: a default one is of the memory's context."""
        usable = [queue for queue in self.bench.queues if array.can_name(queue)]
        alike = [queue for queue in usable if queue.number == array.ready.number and queue.home != array.ready.home]
        if alike and self.random.random() < 0.5:
            self.reached["one number in two contexts"] += 1
            return self.random.choice(alike)
        return self.random.choice(usable)

    def _view(self, array: Array, nbytes: int = NBYTES) -> cd.CaiView:
        """Imports an array where it is ready, in any context in which the number means that stream."""
        self._enter(array.ready, array)
        is_named = array.is_named or (
            array.device is not None and self.random.random() < 0.5
        )  # else the driver is asked
        data, shape = (array.address, False), (nbytes,)
        producer = Cai(interface(shape=shape, typestr="|u1", data=data, stream=array.ready.number))
        return cd.view(producer, device_id=array.device if is_named else None)

    def _enter(self, queue: Queue, array: Array) -> None:
        """Makes the context current that the number is meant in; any, where the number says it all."""
        matters = queue.is_default and array.home is None
        homes = [queue.home] if matters else self.bench.homes
        self.machine.enter(self.random.choice(homes))
        if queue.home == self.bench.homes[2]:
            self.reached["two contexts on a device"] += 1

    def _use(self, queue: Queue, array: Array) -> None:
        """Reads and writes the array on a stream."""
        self._read(queue, array.address, array.value)
        array.value = self.random.randrange(1, 256)
        self.machine.enter(queue.home)
        self.machine.control.store(queue.number, array.address, bytes([array.value]) * NBYTES)

    def _read(self, queue: Queue, address: int, value: int) -> None:
        target = self.bench.copies + NBYTES * len(self.read)
        self.read.append((target, value))
        self.bench.copy_on(queue, target, address)

    def _drop(self) -> None:
        """Drops a copy, anywhere."""
        if self.kept:
            self.machine.enter(self.random.choice(self.bench.homes))
            abi.release(self.kept.pop(self.random.randrange(len(self.kept))))

    @contextlib.contextmanager
    def _policy(self) -> Iterator[None]:
        """Any policy that waits; by events the host never does."""
        if self.random.random() < 0.2:
            with cd.policy(sync="host"):
                yield
        else:
            with self._without_a_host_wait():
                yield

    @contextlib.contextmanager
    def _without_a_host_wait(self) -> Iterator[None]:
        """A consumer that names a stream makes no host wait."""
        self.machine.clear()
        yield
        if waits := _HOST_WAITS & set(self.machine.names()):
            self.wrong.append(f"the host waits: {waits}")

    def _expect(self, rules: set[str], call: Callable[[], object]) -> bool:
        """Whether a call was refused, by one of these rules."""
        try:
            call()
        except (BufferError, AttributeError, TypeError) as error:
            if not any(f"[{rule}]" in str(error) for rule in rules):
                self.wrong.append(f"refused otherwise: {error}")
            return True
        return False
