"""The default streams, 1 and 2: a number that means another stream in each context and on each thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import numba.cuda
import pytest

from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.race import PER_THREAD, Track

SCHEDULES = ["lazy", "threaded"]


def elsewhere(work: Callable[[], Any]) -> Any:
    """Returns what `work` returns, or the exception that it raises, on another thread."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


# --- the dict on another thread ---------------------------------------------------------------------------


def test_the_dict_of_another_threads_stream_is_refused(track: Track) -> None:
    """`'stream': 2` would mean the reader's own stream, on which nothing is pending."""
    view = track.view(PER_THREAD)
    assert view.__cuda_array_interface__["stream"] == PER_THREAD
    absent = elsewhere(lambda: view.__cuda_array_interface__)
    assert isinstance(absent, AttributeError)
    assert "[stream-thread]" in str(absent)
    refused = elsewhere(view.to_cai)
    assert (type(refused), refused.rule) == (BufferError, "stream-thread")
    assert not elsewhere(lambda: hasattr(view, "__cuda_array_interface__"))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_numba_on_another_thread_does_not_read_too_early(schedule: str, track: Track, machine: Machine) -> None:
    """It refuses the view; of a view that was moved to a handle it reads what was written."""
    track.control.schedule = schedule
    view, seen = track.view(PER_THREAD), []

    def read(view: cd.CaiView) -> None:
        machine.set_current(0)
        numba.cuda.as_cuda_array(view)
        seen.append(machine.read(track.data, 1))

    with track.control.gate(PER_THREAD):
        track.write(PER_THREAD, 7)
        assert isinstance(elsewhere(lambda: read(view)), (TypeError, AttributeError, BufferError))
        moved = view.on(track.a)
    elsewhere(lambda: read(moved))
    assert seen == [b"\x07"]
    track.wait(PER_THREAD)
