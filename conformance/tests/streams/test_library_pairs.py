"""Numba and cuda.core, unmodified, writing and reading on streams of their own, under every order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cai_dlpack as cd
import numba.cuda
import numpy as np
import pytest
from cuda.core import Buffer, Device
from cuda.core.utils import StridedMemoryView
from numba.cuda import as_cuda_array

from conformance.tests.interpreter import needs
from conformance.tests.simulated.machine import Machine

OLD, NEW = np.zeros(6, np.float32), np.arange(1, 7, dtype=np.float32)


class Scene:
    """A stream of each side, and pinned memory to copy from and to: such copies do not block the host."""

    def __init__(self) -> None:
        self.writes, self.reads = numba.cuda.stream(), numba.cuda.stream()
        self.core_writes, self.core_reads = Device(0).create_stream(), Device(0).create_stream()
        self.source, self.target = numba.cuda.pinned_array(6, np.float32), numba.cuda.pinned_array(6, np.float32)
        self.array = numba.cuda.device_array(6, np.float32, stream=self.writes)
        self.plain = numba.cuda.device_array(6, np.float32)
        self.buffer = Device(0).allocate(24, stream=self.core_writes)
        self.core_writes.sync()

    def drain(self) -> None:
        for stream in (self.writes, self.reads):
            stream.synchronize()
        for other in (self.core_writes, self.core_reads):
            other.sync()


@pytest.fixture
def scene(machine: Machine) -> Iterator[Scene]:
    Device(0).set_current()
    made = Scene()
    yield made
    machine.control.clear_faults()
    machine.control.schedule = "threaded"
    made.drain()


# --- producers: each writes on its own stream and answers a view ---------------------------------------


def numba_writes(scene: Scene) -> cd.CaiView:
    scene.array.copy_to_device(scene.source, stream=scene.writes)
    return cd.view(scene.array)


def cuda_core_writes(scene: Scene) -> cd.CaiView:
    source = Buffer.from_handle(scene.source.ctypes.data, 24, owner=scene)
    scene.buffer.copy_from(source, stream=scene.core_writes)
    return cd.view(scene.buffer, producer_stream=scene.core_writes, dtype="float32", shape=(6,))


# --- consumers: each reads on its own stream -------------------------------------------------------------


def numba_reads(view: cd.CaiView, scene: Scene) -> None:
    """Reads by Numba, which by default waits on the host; with `sync=False` it is ordered by `on`."""
    ready = as_cuda_array(view.on(scene.reads), sync=False)
    ready.copy_to_host(scene.target, stream=scene.reads)


def numba_waits(view: cd.CaiView, scene: Scene) -> None:
    as_cuda_array(view).copy_to_host(scene.target, stream=scene.reads)


def cuda_core_reads_dlpack(view: cd.CaiView, scene: Scene) -> None:
    seen = StridedMemoryView.from_dlpack(view, stream_ptr=int(scene.core_reads.handle))
    core_copies(seen, scene)


def cuda_core_reads_the_interface(view: cd.CaiView, scene: Scene) -> None:
    seen = StridedMemoryView.from_cuda_array_interface(view, stream_ptr=int(scene.core_reads.handle))
    core_copies(seen, scene)


def core_copies(seen: Any, scene: Scene) -> None:
    target = Buffer.from_handle(scene.target.ctypes.data, 24, owner=scene)
    target.copy_from(Buffer.from_handle(seen.ptr, 24, owner=seen), stream=scene.core_reads)


PRODUCERS = [numba_writes, cuda_core_writes]
NUMBA_READS = pytest.param(numba_reads, marks=needs.numba_cuda)
CONSUMERS = [NUMBA_READS, numba_waits, cuda_core_reads_dlpack, cuda_core_reads_the_interface]


@pytest.mark.parametrize("read", CONSUMERS)
@pytest.mark.parametrize("write", PRODUCERS)
def test_the_consumer_reads_what_the_producer_wrote(
    write: Callable[[Scene], cd.CaiView], read: Callable[[cd.CaiView, Scene], None], scene: Scene, machine: Machine
) -> None:
    for _ in machine.control.orders():
        scene.target[:] = 0
        scene.source[:] = NEW
        view = write(scene)
        read(view, scene)
        scene.drain()
        assert scene.target.tolist() == NEW.tolist()
        machine.write(view.ptr, bytes(24))


@pytest.mark.parametrize("read", [NUMBA_READS, cuda_core_reads_dlpack])
@pytest.mark.parametrize("write", PRODUCERS)
def test_without_our_wait_it_reads_too_early_each_time(
    write: Callable[[Scene], cd.CaiView], read: Callable[[cd.CaiView, Scene], None], scene: Scene, machine: Machine
) -> None:
    machine.control.schedule = "lazy"
    for _ in range(3):
        scene.target[:] = 0
        scene.source[:] = NEW
        view = write(scene)
        machine.write(view.ptr, bytes(24))
        machine.control.fault("cuStreamWaitEvent", 0)
        read(view, scene)
        assert machine.control.pending_faults() == 0
        scene.reads.synchronize()
        scene.core_reads.sync()
        assert scene.target.tolist() == OLD.tolist()
        scene.drain()


@needs.numba_cuda
@pytest.mark.parametrize("write", PRODUCERS)
def test_a_loan_keeps_the_producer_from_writing_too_early(
    write: Callable[[Scene], cd.CaiView], scene: Scene, machine: Machine
) -> None:
    for _ in machine.control.orders():
        scene.target[:] = 0
        scene.source[:] = NEW
        view = write(scene)
        with view.consume(scene.reads) as lent:
            as_cuda_array(lent, sync=False).copy_to_host(scene.target, stream=scene.reads)
        assert isinstance(view.producer_stream, int)
        machine.control.store(view.producer_stream, view.ptr, bytes(24))
        scene.drain()
        assert scene.target.tolist() == NEW.tolist()
