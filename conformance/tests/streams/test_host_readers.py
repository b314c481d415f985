"""The host as a reader: it reads pinned and managed memory after the wait, and never before."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi
from mpi4py import MPI

from conformance.tests.simulated.machine import Machine, one_event
from conformance.tests.streams.race import NBYTES, Track, pretended


@pytest.fixture(params=["pinned", "managed"])
def shared(request: pytest.FixtureRequest, track: Track, machine: Machine) -> Iterator[Track]:
    """The track with its data where the host reads it too."""
    device_data = track.data
    track.data = {"pinned": machine.pinned_memory, "managed": machine.managed_memory}[request.param](NBYTES)
    machine.write(track.data, bytes(NBYTES))
    yield track
    track.data = device_data


def ready_on(track: Track, stream: int) -> cd.CaiView:
    return cd.view(track.producer(stream))


def first_byte(address: int) -> int:
    return ctypes.c_uint8.from_address(address).value


def by_capsule(view: cd.CaiView, **keywords: Any) -> int:
    capsule = cd.to_dlpack(view, **keywords)
    return first_byte(abi.read(capsule).data)


READERS: dict[str, Callable[[cd.CaiView], int]] = {
    "numpy-from-dlpack": lambda view: int(np.from_dlpack(view).view(np.uint8)[0, 0]),
    "numpy-asarray": lambda view: int(np.asarray(view).view(np.uint8)[0, 0]),
    "dl-device-cpu": lambda view: first_byte(abi.read(view.__dlpack__(dl_device=(1, 0), max_version=(1, 3))).data),
    "stream-none": lambda view: first_byte(abi.read(view.__dlpack__(stream=None)).data),
    "to-dlpack-host": lambda view: by_capsule(view, stream="host"),
    "to-dlpack-cpu": lambda view: by_capsule(view, dl_device=(1, 0)),
    "synchronize": lambda view: first_byte(view.synchronize().ptr),
}


@pytest.mark.parametrize("reader", READERS)
def test_the_host_reads_what_was_written_under_every_order(reader: str, shared: Track) -> None:
    for _ in shared.control.orders():
        shared.machine.write(shared.data, bytes(NBYTES))
        shared.write(shared.a, 7)
        assert READERS[reader](ready_on(shared, shared.a)) == 7
        shared.wait(shared.a)


@pytest.mark.parametrize("reader", READERS)
def test_without_the_wait_it_reads_too_early_each_time(reader: str, shared: Track) -> None:
    shared.control.schedule = "lazy"
    for _ in range(3):
        shared.machine.write(shared.data, bytes(NBYTES))
        shared.write(shared.a, 7)
        with pretended(shared, "cuStreamSynchronize"):
            assert READERS[reader](ready_on(shared, shared.a)) == 0
        shared.wait(shared.a)


@pytest.mark.parametrize("reader", READERS)
def test_behind_a_closed_gate_the_host_waits_without_the_gil(reader: str, shared: Track, machine: Machine) -> None:
    seen: list[int] = []

    def read() -> None:
        machine.set_current(0)
        seen.append(READERS[reader](ready_on(shared, shared.a)))

    with shared.control.gate(shared.a):
        shared.write(shared.a, 9)
        machine.clear()
        thread = threading.Thread(target=read)
        thread.start()
        # This thread runs: the GIL is free. The other one is inside the wait, and has read nothing.
        while not any(call.result is None for call in shared.control.calls("cuStreamSynchronize")):
            assert thread.is_alive()
        assert seen == []
    thread.join(30)
    assert seen == [9]


@pytest.mark.parametrize("policy", ["event", "host", "none"])
@pytest.mark.parametrize("reader", READERS)
def test_a_host_that_reads_waits_under_every_policy(reader: str, policy: Any, shared: Track) -> None:
    shared.machine.clear()
    with cd.policy(sync=policy):
        READERS[reader](ready_on(shared, shared.a))
    assert shared.machine.order() == [("cuStreamSynchronize", shared.a)]


def test_who_names_a_stream_gets_an_event_and_the_host_goes_on(shared: Track) -> None:
    view = ready_on(shared, shared.a)
    with shared.control.gate(shared.a):
        shared.machine.clear()
        view.__dlpack__(stream=shared.b, max_version=(1, 3))
        assert shared.machine.order() == one_event(shared.a, shared.b)


def test_minus_one_waits_for_nobody(shared: Track) -> None:
    view = ready_on(shared, shared.a)
    shared.machine.clear_own()
    view.__dlpack__(stream=-1, max_version=(1, 3))
    assert shared.machine.calls() == []


def test_data_that_is_ready_costs_the_host_no_call(shared: Track) -> None:
    view = ready_on(shared, shared.a).synchronize()
    shared.machine.clear_own()
    np.from_dlpack(view)
    view.synchronize()
    assert shared.machine.calls() == []


def test_device_memory_for_a_consumer_without_streams(track: Track) -> None:
    """TensorFlow's way in: a capsule, and nothing left to wait for."""
    outcomes = set()
    for _ in track.control.orders():
        track.write(track.a, 3)
        cd.to_dlpack(track.view(track.a), stream="host")
        outcomes.add(track.machine.read(track.data, 1))
        track.write(track.a, 0)
        track.wait(track.a)
    assert outcomes == {b"\x03"}


@pytest.mark.parametrize("recipe", [True, False], ids=["synchronised", "as-it-is"])
def test_mpi4py_sends_what_was_written(recipe: bool, shared: Track, machine: Machine) -> None:
    """mpi4py requests a buffer first; a buffer of host memory is returned after the wait."""
    received = bytearray(NBYTES)
    for _ in shared.control.orders():
        machine.write(shared.data, bytes(NBYTES))
        shared.write(shared.a, 6)
        view = ready_on(shared, shared.a)
        machine.clear()
        given = view.synchronize() if recipe else view
        MPI.COMM_SELF.Sendrecv([given, MPI.FLOAT], dest=0, recvbuf=[received, MPI.BYTE], source=0)
        assert machine.order() == [("cuStreamSynchronize", shared.a)]
        assert received == bytes([6]) * NBYTES
        shared.wait(shared.a)


def test_mpi4py_takes_device_memory_without_an_order(track: Track, machine: Machine) -> None:
    """mpi4py passes -1, or reads the dict without its stream: `synchronize` is needed first."""
    view = track.view(track.a)
    machine.clear()
    assert MPI.memory.frombuffer(view).address == track.data
    assert machine.order() == [], "mpi4py orders by itself now: the page can drop its recipe"
