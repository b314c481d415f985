"""The recipe for NCCL, as the page prints it, with a communicator that is a double: one rank, on the simulated driver.

The double takes what CuPy's `NcclCommunicator.allReduce` takes, addresses and a stream, and enqueues there a copy,
which is what a sum over one rank is. What is pending is done when somebody waits for it, and not before. NCCL itself
is not run.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any, NamedTuple

import cai_dlpack as cd
import numpy as np

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.reach.arrays import lazy
from conformance.tests.reach.page import recipe_of_nccl
from conformance.tests.simulated.machine import Machine

__all__ = ["lazy"]

#: `ncclFloat32` and `ncclSum` of nccl.h.
FLOAT32, SUM = 7, 0
VALUES = np.arange(1, 9, dtype=np.float32)
LATER = np.full(8, 99, np.float32)
BEFORE = np.full(8, -1, np.float32)


class Communicator:
    """One rank: the sum over all ranks is what this one has."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.calls = 0

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:
        assert (datatype, op) == (FLOAT32, SUM)
        addresses = ctypes.c_uint64(recvbuf), ctypes.c_uint64(sendbuf)
        self.machine._call("cuMemcpyDtoDAsync_v2", *addresses, ctypes.c_size_t(4 * count), ctypes.c_void_p(stream))
        self.calls += 1


class Stream:
    """A stream of CuPy's."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr


class Pending(NamedTuple):
    """An array that its stream has still to write."""

    view: cd.CaiView
    stream: int


def pending(machine: Machine, values: np.ndarray[Any, Any]) -> Pending:
    data, stream = machine.device_memory(values.nbytes), machine.stream()
    machine.write(data, BEFORE.tobytes())
    machine.control.store(stream, data, values.tobytes())
    return Pending(cd.view(Cai(interface(shape=(8,), data=(data, False), stream=stream))), stream)


def names(machine: Machine, sent: Pending, into: Pending) -> dict[str, Any]:
    """What the recipe's reader has."""
    nccl = SimpleNamespace(NCCL_FLOAT32=FLOAT32, NCCL_SUM=SUM)
    return {
        "view": sent.view,
        "into": into.view,
        "comm": Communicator(machine),
        "cupy": SimpleNamespace(cuda=SimpleNamespace(nccl=nccl)),
        "s": Stream(machine.stream()),
    }


def wait(machine: Machine, stream: int) -> None:
    machine._call("cuStreamSynchronize", ctypes.c_void_p(stream))


def at(machine: Machine, view: cd.CaiView) -> list[float]:
    return list(np.frombuffer(machine.read(view.ptr, view.nbytes), np.float32))


def test_the_recipe_is_ordered_after_the_data_and_before_the_next_write(lazy: Machine) -> None:
    sent, into = pending(lazy, VALUES), pending(lazy, LATER)
    given = names(lazy, sent, into)
    waits = lazy.control.count("cuStreamSynchronize"), lazy.control.count("cuEventSynchronize")
    exec(recipe_of_nccl(), given)
    assert given["comm"].calls == 1
    assert waits == (lazy.control.count("cuStreamSynchronize"), lazy.control.count("cuEventSynchronize"))
    assert at(lazy, into.view) == list(BEFORE), "it is done already: the order is not tested"
    # The producer goes on writing, and is waited for alone: what NCCL has still to read is read first.
    lazy.control.store(sent.stream, sent.view.ptr, LATER.tobytes())
    wait(lazy, sent.stream)
    assert at(lazy, sent.view) == list(LATER)
    # A reader of `into` waits for its own stream, which waits for NCCL's.
    wait(lazy, into.stream)
    assert at(lazy, into.view) == list(VALUES)


def test_without_order_it_sends_what_was_there_before(lazy: Machine) -> None:
    """The control of the first edge: NCCL reads, and writes, before the arrays' own streams have written."""
    sent, into = pending(lazy, VALUES), pending(lazy, LATER)
    given = names(lazy, sent, into)
    given["comm"].allReduce(sent.view.ptr, into.view.ptr, 8, FLOAT32, SUM, given["s"].ptr)
    wait(lazy, given["s"].ptr)
    assert at(lazy, into.view) == list(BEFORE)
    wait(lazy, into.stream)
    assert at(lazy, into.view) == list(LATER), "its own stream has written over it"


def test_without_the_way_back_the_producer_writes_over_what_is_sent(lazy: Machine) -> None:
    """The control of the second edge: NCCL's stream waits for the data, and the producer's waits for nothing."""
    sent, into = pending(lazy, VALUES), pending(lazy, BEFORE)
    given = names(lazy, sent, into)
    wait(lazy, sent.stream)
    wait(lazy, into.stream)
    given["comm"].allReduce(sent.view.ptr, into.view.ptr, 8, FLOAT32, SUM, given["s"].ptr)
    lazy.control.store(sent.stream, sent.view.ptr, LATER.tobytes())
    wait(lazy, sent.stream)
    wait(lazy, given["s"].ptr)
    assert at(lazy, into.view) == list(LATER)
