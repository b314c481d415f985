"""Deleters on threads that Python has never seen: they never wait, and what they release comes soon."""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cai_dlpack as cd
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, Dlpack, cai, interface
from conformance.tests.interpreter.free_threaded import FREE_THREADED, elsewhere
from conformance.tests.interpreter.threads import blocked_signals
from conformance.tests.ownership import native
from conformance.tests.ownership.waiting import PROMISED, until

# Under valgrind nothing is promised. Without the GIL the queue is emptied meanwhile, and more pushes wake the reaper.
P99_NS = 2_000_000 if native.FIGURES == "few" else 20_000 if FREE_THREADED else 2_000


def tensor_of(producer: Any) -> abi.Read:
    return abi.consume(cd.view(producer, device_id=0).__dlpack__(stream=-1, max_version=(1, 3)))


def keeping_the_gil(body: Callable[[], None]) -> None:
    """Runs `body` on a thread on which nothing is released between two of its lines: it runs no pending calls
    (the main thread may, as any call returns) and is not asked for the GIL."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1)
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(body).result()
    finally:
        sys.setswitchinterval(interval)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Every test begins and ends with nothing waiting."""
    assert until(lambda: cd.stats()["pending"] == 0)
    yield
    assert until(lambda: cd.stats()["pending"] == 0)


@pytest.mark.parametrize("threads", [1, 4])
def test_a_storm_while_this_thread_keeps_the_gil(threads: int) -> None:
    """The storm's caller holds the GIL and waits for the threads: one deleter that waited would hang."""
    count = native.figure(10_000, 1_000_000)
    producer = cai()
    tensors = [tensor_of(producer) for _ in range(count)]
    before = cd.stats()
    took = native.storm(tensors, gil=True, threads=threads)
    if threads == 1:
        p99 = statistics.quantiles(took, n=100)[98]
        print(f"push of {count}: median {statistics.median(took):.0f} ns, p99 {p99:.0f} ns")
        assert p99 < P99_NS
    assert until(lambda: cd.stats()["pending"] == 0)
    # A view and its producer end with each tensor; without the GIL as soon as this thread comes to it.
    assert until(lambda: cd.stats()["released"] == before["released"] + 2 * count)
    assert cd.stats()["live"] == before["live"] - 2 * count


def test_a_storm_while_another_thread_keeps_the_gil_for_a_second() -> None:
    count = native.figure(10_000, 1_000_000)
    producer = cai()
    tensors = [tensor_of(producer) for _ in range(count)]
    before = cd.stats()["released"]
    seconds = 1.0
    holder = threading.Thread(target=lambda: native.with_gil().sit(int(seconds * 1e6)))
    took: list[int] = []
    sent = threading.Thread(target=lambda: took.extend(native.storm(tensors, gil=False)))
    start = time.monotonic()
    sent.start()
    holder.start()
    holder.join()
    sent.join()
    assert time.monotonic() - start >= seconds
    assert max(took) < seconds * 1e9 / 2, "a deleter waited for the GIL"
    assert until(lambda: cd.stats()["released"] == before + 2 * count)


def test_released_soon_although_the_main_thread_never_stops() -> None:
    alive = weakref.ref(producer := cai())
    tensor = tensor_of(producer)
    del producer
    start = time.monotonic()
    native.storm([tensor], gil=False)
    while alive() is not None:
        assert time.monotonic() - start < PROMISED
    assert alive() is None


def test_a_foreign_deleter_behind_ours_runs_with_the_gil() -> None:
    """numpy's deleter waits for the GIL: on a thread that keeps it from us that would be for ever."""
    held: list[bool] = []
    check = ctypes.PyDLL(None).PyGILState_Check
    made = abi.make()
    made.on_release = lambda: held.append(bool(check()))
    tensor = abi.consume(cd.to_dlpack(Dlpack(made), max_version=(1, 3)))

    def delete() -> None:
        native.storm([tensor], gil=True)
        # Without a GIL to keep, the reaper need not wait.
        assert made.released == 0 or FREE_THREADED, "called on the foreign thread"

    keeping_the_gil(delete)
    assert until(lambda: made.released == 1)
    assert held == [True]


def test_numpys_deleter_behind_ours_is_no_deadlock() -> None:
    import numpy as np

    array = np.arange(6, dtype=np.float32)
    alive = weakref.ref(array)
    tensor = abi.consume(cd.to_dlpack(array, max_version=(1, 3)))
    del array
    native.storm([tensor], gil=True)
    assert until(lambda: alive() is None)


def test_the_gil_is_seen_where_it_is() -> None:
    """The deleter detects whether its own thread holds the GIL, also if PyGILState_Check is always 1."""
    producer = cai()
    tensors = [elsewhere(lambda: tensor_of(producer)) for _ in range(3)]
    before = cd.stats()["released"]

    def delete() -> None:
        abi.release(tensors[0], gil=True)
        assert cd.stats()["released"] == before + 2, "the GIL was held, and it was not released at once"
        native.storm([tensors[1]], gil=True)
        # Without a GIL to keep, the reaper need not wait.
        assert cd.stats()["released"] == before + 2 or FREE_THREADED, "the GIL was another thread's"

    keeping_the_gil(delete)
    abi.release(tensors[2], gil=False)
    assert until(lambda: cd.stats()["released"] == before + 6)


def test_an_owner_that_deletes_without_the_gil_as_it_ends() -> None:
    """A release inside a release: the outer one has the GIL, the inner one let it go."""
    inner = cai()
    alive = weakref.ref(inner)

    class Owner(Cai):
        def __del__(self) -> None:
            native.storm([nested], gil=True)

    nested = tensor_of(inner)
    del inner
    outer = tensor_of(Owner(interface()))
    gc.collect()
    native.storm([outer], gil=True)
    assert until(lambda: alive() is None)


def test_the_reaper_takes_no_signals() -> None:
    """A signal that is sent to the process reaches a thread that can do something with it."""
    abi.release(tensor_of(cai()))
    masks = blocked_signals("cai-dlpack")
    # Each extension module of the process has one.
    assert masks
    assert all(mask >> 1 & 1 for mask in masks), "SIGINT reaches a reaper"
