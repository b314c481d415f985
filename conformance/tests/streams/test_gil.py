"""The GIL: a driver call that may block is made without it, since a host callback may want it."""

from __future__ import annotations

import ctypes

import cai_dlpack as cd
import numpy as np
import pytest
import tvm_ffi

from conformance.tests.interpreter.process import on_the_simulator
from conformance.tests.streams.faces import HOST_FACES, STREAM_FACES, Face
from conformance.tests.streams.race import LEGACY, PER_THREAD, Track


def leak(view: cd.CaiView, stream: int) -> None:
    loan = view.consume(stream)
    loan.__enter__()


def raise_inside(view: cd.CaiView, stream: int) -> None:
    try:
        with view.consume(stream):
            raise LookupError
    except LookupError:
        pass


def by_the_host(view: cd.CaiView, stream: int) -> None:
    with cd.policy(sync="host"):
        view.__dlpack__(stream=stream, max_version=(1, 3))


ECHO = tvm_ffi.convert(lambda tensor: None)


def by_the_table(view: cd.CaiView, stream: int) -> None:
    with cd.use_stream(stream):
        ECHO(view)


FACES: dict[str, Face] = {
    **STREAM_FACES,
    **HOST_FACES,
    "consume-left-open": leak,
    "consume-and-raise": raise_inside,
    "policy-host": by_the_host,
    "exchange-table": by_the_table,
}


@pytest.mark.filterwarnings("ignore:a consume block was never left:ResourceWarning")
@pytest.mark.parametrize("ready", ["legacy", "per-thread", "A"])
@pytest.mark.parametrize("face", FACES)
def test_nothing_that_enqueues_creates_or_waits_is_called_with_the_gil(face: str, ready: str, track: Track) -> None:
    view = track.view({"legacy": LEGACY, "per-thread": PER_THREAD}.get(ready, track.a))
    with track.control.gil_watch():
        for _ in range(2):  # with an event that is made, and with one that was kept
            FACES[face](view, track.b)


def test_a_refused_call_is_made_without_the_gil_as_well(track: Track) -> None:
    for name in ("cuEventRecord", "cuStreamWaitEvent", "cuStreamGetCtx"):
        track.control.fault(name, 2)
        with track.control.gil_watch(), pytest.raises(cd.DriverError):
            track.view(track.a).on(track.b)


def test_numpy_waits_for_managed_memory_without_the_gil(track: Track) -> None:
    pointer = track.machine.managed_memory(24)
    track.data, device_data = pointer, track.data
    view = cd.view(track.producer(track.a))
    with track.control.gil_watch():
        np.from_dlpack(view)
        np.asarray(view)
    track.data = device_data
    track.machine.free(pointer)


def test_the_watch_sees_a_call_with_the_gil(track: Track) -> None:
    """Shows that the tests above can fail: `ctypes.PyDLL` keeps the GIL, `CDLL` does not."""
    held = ctypes.PyDLL(track.machine.driver._name)
    with pytest.raises(AssertionError, match="cuStreamSynchronize"), track.control.gil_watch():
        held.cuStreamSynchronize(ctypes.c_void_p(track.a))


CALLBACKS = """
import ctypes, sys, threading
import cai_dlpack as cd
from cai_conformance import Sim
from cuda.bindings import driver as cu
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.race import Track
from conformance.tests.streams.test_gil import FACES

machine = Machine(Sim())
control = machine.control
control.set("queue", 2)             # the third piece of work blocks whoever enqueues it
machine.set_current(0)
track = Track(machine)
calls = []

@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def wants_the_gil(_):
    calls.append(sum(range(1000)))

function = cu.CUhostFn(ctypes.cast(wants_the_gil, ctypes.c_void_p).value)

def host_function(stream):
    (code,) = cu.cuLaunchHostFunc(cu.CUstream(stream), function, 0)
    assert code == cu.CUresult.CUDA_SUCCESS, code

sys.setswitchinterval(1e-5)
view = track.view(track.a)

def work(name, rounds):
    machine.set_current(0)
    for _ in range(rounds):
        host_function(track.a)
        host_function(track.b)
        FACES[name](view, track.b)
"""

ONE_THREAD = """
for name in FACES:
    work(name, 20)
track.wait(track.a)
track.wait(track.b)
assert len(calls) == 40 * len(FACES)
print("done")
"""

MANY_THREADS = """
threads = [threading.Thread(target=work, args=(name, 10)) for name in FACES]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
track.wait(track.a)
track.wait(track.b)
assert len(calls) == 20 * len(FACES)
assert cd.stats()["open_guards"] == 0
print("done")
"""


@pytest.mark.parametrize("schedule", ["threaded", "lazy"])
@pytest.mark.parametrize("program", [ONE_THREAD, MANY_THREADS], ids=["one-thread", "many-threads"])
def test_host_functions_that_take_the_gil_meet_full_queues_and_no_deadlock(program: str, schedule: str) -> None:
    done = on_the_simulator(CALLBACKS + program, "--schedule", schedule, timeout=60, PYTHONWARNINGS="ignore")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
