"""Tests `cd.policy`: which side waits if a call does not choose."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

import cai_dlpack as cd
import pytest

from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.interpreter.process import on_the_simulator
from conformance.tests.interpreter.threads import THREADS_INHERIT
from conformance.tests.simulated.machine import one_event
from conformance.tests.streams.race import Calls, Track


class Trouble(Exception):
    """Raised by the body of a block."""


def ordered(track: Track) -> Calls:
    """Returns the waits of an export to b under the current policy."""
    track.machine.clear()
    track.view(track.a).__dlpack__(stream=track.b, max_version=(1, 3))
    return track.machine.order()


def event(track: Track) -> Calls:
    return one_event(track.a, track.b)


def host(track: Track) -> Calls:
    return [("cuStreamSynchronize", track.a)]


def test_blocks_nest_and_end_with_an_exception(track: Track) -> None:
    assert ordered(track) == event(track)
    with cd.policy(sync="host"):
        assert ordered(track) == host(track)
        with cd.policy(sync="none"):
            assert ordered(track) == []
            with pytest.raises(Trouble, match="True"), cd.policy(sync="event"):
                raise Trouble(ordered(track) == event(track))
            assert ordered(track) == []
        assert ordered(track) == host(track)
    assert ordered(track) == event(track)


def test_one_object_is_entered_again_and_twice_over(track: Track) -> None:
    patient = cd.policy(sync="host")
    for _ in range(2):
        with patient, patient:
            assert ordered(track) == host(track)
        assert ordered(track) == event(track)


def test_a_policy_is_its_threads_own(track: Track) -> None:
    found: list[Calls] = []
    with cd.policy(sync="host"):
        thread = threading.Thread(target=lambda: found.append(ordered(track)))
        thread.start()
        thread.join()
        assert found == [host(track) if THREADS_INHERIT else event(track)]
        assert ordered(track) == host(track)


def test_one_object_on_two_threads_gives_each_its_own_back(track: Track) -> None:
    """The thread that leaves first must not be given what the other one had before."""
    shared, entered, may_leave = cd.policy(sync="host"), threading.Event(), threading.Event()

    def other() -> None:
        with shared:
            entered.set()
            may_leave.wait(10)

    thread = threading.Thread(target=other)
    with cd.policy(sync="none"):
        with shared:
            thread.start()
            assert entered.wait(10)
        assert ordered(track) == []
        may_leave.set()
        thread.join()
    assert ordered(track) == event(track)


def test_blocks_of_generators_end_in_any_order(track: Track) -> None:
    def inside(sync: Any) -> Generator[None, None, None]:
        with cd.policy(sync=sync):
            yield

    first, second = inside("host"), inside("none")
    next(first)
    next(second)
    first.close()
    assert ordered(track) == []
    second.close()
    assert ordered(track) == event(track), "nothing of the two is left behind"


def test_leaving_what_was_never_entered_is_refused_and_changes_nothing(track: Track) -> None:
    with ExitStack() as stack:
        stack.enter_context(cd.policy(sync="host"))
        with pytest.raises(RuntimeError, match="not entered"):
            cd.policy(sync="none").__exit__(None, None, None)
        assert ordered(track) == host(track)


@pytest.mark.parametrize("sync", ["event", "host", "none"])
def test_what_is_asked_for_by_name_is_done_under_every_policy(sync: Any, track: Track) -> None:
    view = track.view(track.a)
    with cd.policy(sync=sync):
        track.machine.clear()
        view.on(track.b)
        cd.join([view], on=track.b)
        assert track.machine.order() == 2 * event(track)
        track.machine.clear()
        view.synchronize()
        cd.to_dlpack(view, stream="host")
        assert track.machine.order() == 2 * host(track)


@pytest.mark.parametrize(
    ("sync", "raises", "rule"),
    [
        ("events", ValueError, "argument-value"),
        ("", ValueError, "argument-value"),
        ("Event", ValueError, "argument-value"),
        (None, TypeError, "argument-type"),
        (1, TypeError, "argument-type"),
    ],
)
def test_a_policy_that_nobody_knows(sync: Any, raises: type[Exception], rule: str, track: Track) -> None:
    check_refusal(
        refuse(lambda: cd.policy(sync=sync), raises),
        rule,
        "sync",
        hint='"event", "host" or "none"' if raises is ValueError else None,
    )
    assert ordered(track) == event(track)


# --- CAI_DLPACK_SYNC -----------------------------------------------------------------------------------

ORDERED = """
import cai_dlpack as cd
from cai_conformance import Sim
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.race import Track
machine = Machine(Sim())
machine.set_current(0)
track = Track(machine)
machine.clear()
track.view(track.a).__dlpack__(stream=track.b, max_version=(1, 3))
print([name for name, _ in machine.order()])
"""


@pytest.mark.parametrize(
    ("sync", "calls"),
    [
        ("event", "['cuEventRecord', 'cuStreamWaitEvent']"),
        ("host", "['cuStreamSynchronize']"),
        ("none", "[]"),
    ],
)
def test_the_environment_names_the_policy(sync: str, calls: str) -> None:
    done = on_the_simulator(ORDERED, CAI_DLPACK_SYNC=sync)
    assert (done.returncode, done.stdout.strip()) == (0, calls), done.stderr


@pytest.mark.parametrize("sync", ["", "never", "Host", "event\udcff"])
def test_a_wrong_environment_is_refused_when_the_package_is_imported(sync: str) -> None:
    done = on_the_simulator("import cai_dlpack", CAI_DLPACK_SYNC=sync)
    assert done.returncode == 1
    shown = sync.replace("\udcff", "\ufffd")  # a byte that is no UTF-8
    assert "ValueError" in done.stderr and "CAI_DLPACK_SYNC" in done.stderr and f"'{shown}'" in done.stderr


def test_other_libraries_variables_say_nothing_here() -> None:
    done = on_the_simulator(ORDERED, NUMBA_CUDA_ARRAY_INTERFACE_SYNC="0", CUPY_CUDA_ARRAY_INTERFACE_SYNC="0")
    assert done.stdout.strip() == "['cuEventRecord', 'cuStreamWaitEvent']", done.stderr
