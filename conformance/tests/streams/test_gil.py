"""The GIL: every driver call is made without it, but for the first, `cuInit`.

Any call may wait for a lock of the driver; a `cuMemFree` may hold that lock until the device's work is done, and a
host function in that work may want the GIL.
"""

from __future__ import annotations

import ctypes
import gc
import re
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
import tvm_ffi
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, Dlpack, interface
from conformance.tests.interpreter.process import ROOT, on_the_simulator
from conformance.tests.reach import other
from conformance.tests.reach.peer import Other
from conformance.tests.simulated.capture import Captures
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.faces import HOST_FACES, STREAM_FACES, Face, consume
from conformance.tests.streams.race import LEGACY, NBYTES, PER_THREAD, Track


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


@pytest.fixture(autouse=True, scope="module")
def started() -> None:
    """Starts the driver, which is the one call with the GIL (tested below)."""
    cd.use_stream(LEGACY)


@pytest.mark.filterwarnings("ignore:a consume block was never left:ResourceWarning")
@pytest.mark.parametrize("ready", ["legacy", "per-thread", "A"])
@pytest.mark.parametrize("face", FACES)
def test_no_order_is_made_with_the_gil(face: str, ready: str, track: Track) -> None:
    view = track.view({"legacy": LEGACY, "per-thread": PER_THREAD}.get(ready, track.a))
    with track.control.gil_watch("*"):
        for _ in range(2):  # with an event that is made, and with one that was kept
            FACES[face](view, track.b)


def test_a_refused_call_is_made_without_the_gil_as_well(track: Track) -> None:
    for name in ("cuEventRecord", "cuStreamWaitEvent", "cuStreamGetCtx"):
        track.control.fault(name, 2)
        with track.control.gil_watch("*"), pytest.raises(cd.DriverError):
            track.view(track.a).on(track.b)


# --- every other way to the driver ---------------------------------------------------------------------


class Kinds(Track):
    """A track with memory of every kind, and of another device."""

    def __init__(self, machine: Machine) -> None:
        self.managed, self.pinned = machine.managed_memory(NBYTES), machine.pinned_memory(NBYTES)
        self.other, self.there = machine.device_memory(NBYTES, 1), machine.stream(1)
        super().__init__(machine)

    def close(self) -> None:
        self.machine.driver.cuCtxSynchronize()
        for pointer in (self.managed, self.other):
            self.machine.free(pointer)
        self.machine.driver.cuMemFreeHost(ctypes.c_uint64(self.pinned))
        super().close()


class Insists(Dlpack):
    """A producer whose device must be current while it is asked, as torch's."""

    __module__ = "torch"


def managed(track: Kinds) -> cd.CaiView:
    return cd.view(Cai(interface(data=(track.managed, False), stream=track.a)))


def managed_on_the_legacy_stream(track: Kinds) -> cd.CaiView:
    return cd.view(Cai(interface(data=(track.managed, False), stream=LEGACY)))


def without_a_context(call: Callable[[], object]) -> None:
    """Runs `call` on a thread that has no current context."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # raised below
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def of_dlpack(track: Kinds) -> Dlpack:
    return Dlpack(abi.make(device=(2, 0), data=track.data))


def dropped_copy(track: Kinds, **keywords: Any) -> None:
    capsule = track.view(track.a).__dlpack__(copy=True, max_version=(1, 3), **keywords)
    del capsule
    gc.collect()


def ready_on_another_device(track: Kinds) -> None:
    """Without a context the stream is asked about in the memory's."""
    view = track.view(track.there)
    without_a_context(lambda: view.on(track.b))


def captured(track: Kinds) -> None:
    """An event between two streams of one capture."""
    captures = Captures(track.machine)
    captures.begin(track.a)
    with track.view(track.a).consume(track.b):
        track.view(track.b).on(track.a)
    captures.end(track.a)


def refused_record(track: Kinds) -> None:
    """The second event of two is made for this record, and destroyed."""
    for nth in (1, 2):
        track.control.fault("cuEventRecord", 400, nth)
    with pytest.raises(cd.DriverError):
        track.view(track.a).on(track.b)
    track.control.clear_faults()


def shared(track: Kinds) -> None:
    with cd.share(track.view(track.a)) as handle:
        cd.open(handle, stream=track.b)


@cache
def exported() -> bytes:
    """A handle of another process's, which shares to the end."""
    exporter = Other()
    EXPORTERS.append(exporter)
    return bytes(exporter(other.shared, "array", 8))


EXPORTERS: list[Other] = []
ROUTES: dict[str, Callable[[Kinds], object]] = {
    "view": lambda track: cd.view(track.producer(track.a)),
    "from-cai": lambda track: cd.from_cai(track.producer(track.a)),
    "to-dlpack": lambda track: cd.to_dlpack(track.producer(None), stream=-1),
    "to-dlpack-in-order": lambda track: cd.to_dlpack(track.producer(track.a), stream=track.b),
    "view-with-bounds": lambda track: cd.view(track.producer(track.a), check="bounds"),
    "dlpack-with-bounds": lambda track: cd.view(of_dlpack(track), check="bounds"),
    "dlpack-of-a-current-device": lambda track: cd.view(Insists(abi.make(device=(2, 1), data=track.other))),
    "explain": lambda track: cd.explain(track.producer(track.a)),
    "explain-a-consumer": lambda track: cd.explain(track.producer(track.a), to="numpy", stream=track.b),
    "use-stream": lambda track: cd.use_stream(track.a),
    "use-a-default-stream": lambda track: cd.use_stream(LEGACY),
    "use-stream-without-a-context": lambda track: without_a_context(lambda: cd.use_stream(track.a)),
    "order-without-a-context": lambda track: without_a_context(lambda: track.view(LEGACY).on(track.a)),
    "join-bare-streams": lambda track: cd.join([track.a, LEGACY], on=track.b),
    "ready-on-another-device": ready_on_another_device,
    "copy": lambda track: dropped_copy(track),
    "copy-for-a-stream": lambda track: dropped_copy(track, stream=track.b),
    "copy-to-the-host": lambda track: dropped_copy(track, dl_device=(1, 0)),
    "copy-to-another-device": lambda track: dropped_copy(track, dl_device=(2, 1)),
    "from-dlpack-to-a-device": lambda track: cd.from_dlpack(np.zeros(3), device="cuda:1"),
    "copy-of-rows": lambda track: cd.view(
        Cai(interface(shape=(2, 2), strides=(12, 4), data=(track.data, False), stream=track.a))
    ).__dlpack__(copy=True, max_version=(1, 3)),
    "copy-of-managed-memory": lambda track: managed(track).__dlpack__(copy=True, max_version=(1, 3)),
    "copy-of-pinned-memory": lambda track: cd.view(Cai(interface(data=(track.pinned, False), stream=None))).__dlpack__(
        copy=True, max_version=(1, 3)
    ),
    "present-as-host": lambda track: managed(track).present_as("host"),
    "present-as-cuda": lambda track: managed(track).present_as("cuda"),
    "numpy-from-dlpack": lambda track: np.from_dlpack(managed(track)),
    "numpy-asarray": lambda track: np.asarray(managed(track)),
    "memoryview": lambda track: memoryview(managed(track)).release(),
    "managed-on-a-default-stream": lambda track: managed_on_the_legacy_stream(track).on(track.a),
    "dict-of-a-default-stream": lambda track: managed_on_the_legacy_stream(track).to_cai(),
    "consume-on-a-default-stream": lambda track: consume(managed(track), LEGACY),
    "join-on-a-default-stream": lambda track: cd.join([managed(track), track.view(track.b)], on=LEGACY),
    "capture": captured,
    "refused-record": refused_record,
    "share": shared,
    "open": lambda track: cd.open(exported(), stream=track.b),
}


@pytest.fixture
def kinds(machine: Machine) -> Iterator[Kinds]:
    machine.control.schedule = "threaded"
    made = Kinds(machine)
    yield made
    made.close()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("route", ROUTES)
def test_no_route_calls_the_driver_with_the_gil(route: str, kinds: Kinds) -> None:
    with kinds.control.gil_watch("*"):
        for _ in range(2):
            ROUTES[route](kinds)


#: What no route reaches here, and why.
NOT_REACHED = {
    "cuInit": "is tested below",
    "cuStreamGetCaptureInfo": "stands in for the second version if that is missing",
    "cuCtxSynchronize": "is for devices whose managed memory the host must leave alone",
    "cuMemAlloc_v2": "is for devices without pools",
    "cuLaunchHostFunc": "gathers pinned memory in the stream's order, which Rust callers reach",
    "cuUserObjectCreate": "keeps an owner for a graph, which guards of Rust ask for",
    "cuGraphRetainUserObject": "keeps an owner for a graph, which guards of Rust ask for",
    "cuStreamDestroy_v2": "ends a private stream if the pool of streams is full",
}

EVERY_ROUTE = """
import time
from cai_conformance import Sim
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.test_gil import FACES, ROUTES, Kinds

kinds = Kinds(Machine(Sim()))
kinds.machine.clear()
for route in ROUTES.values():
    route(kinds)
for face in FACES.values():
    face(kinds.view(kinds.a), kinds.b)
time.sleep(0.2)  # for the threads that release copies
print(*{call.symbol for call in kinds.control.calls()}, sep="\\n")
"""


def test_the_routes_reach_every_function_that_the_library_calls() -> None:
    text = (ROOT / "src" / "driver" / "cuda.rs").read_text(encoding="utf-8")
    table = text[text.index("\nfunctions! {") :]
    exported = set(re.findall(r'^    \w+ "\w+" "(\w+)"', table[: table.index("\n}")], re.MULTILINE))
    assert len(exported) >= 30
    done = on_the_simulator(EVERY_ROUTE, PYTHONWARNINGS="ignore")
    assert done.returncode == 0, done.stderr
    assert exported - NOT_REACHED.keys() <= set(done.stdout.splitlines())


#: The first use of the driver in a process. What they ask for is refused: there is neither memory nor a context.
FIRST = {
    "view": "cd.view(cai())",
    "explain": "cd.explain(cai())",
    "on": "cd.view(cai(stream=1), device_id=0).on(2)",
    "consume": "cd.view(cai(stream=1), device_id=0).consume(2).__enter__()",
    "capsule": "cd.view(cai(stream=1), device_id=0).__dlpack__(stream=2)",
    "copy": "cd.view(cai(), device_id=0).__dlpack__(stream=2, copy=True)",
    "to_dlpack": "cd.to_dlpack(cai())",
    "synchronize": "cd.view(cai(stream=1), device_id=0).synchronize()",
    "join": "cd.join([1], on=2)",
    "use_stream": "cd.use_stream(1)",
}


@pytest.mark.parametrize("first", FIRST)
def test_the_driver_is_started_with_the_gil(first: str) -> None:
    """No thread forks in the midst of it. The driver calls that follow are made without."""
    done = on_the_simulator(
        f"""
import cai_dlpack as cd
from cai_conformance import GilHeld, Sim
from conformance.tests.doubles.producers import cai

control = Sim()
try:
    with control.gil_watch("*"):
        try:
            {FIRST[first]}
        except (BufferError, cd.DriverError):
            pass
except GilHeld as held:
    print(held)
print(len(control.calls()) > 1)
""",
        PYTHONWARNINGS="ignore",
    )
    assert done.stdout == "called with the GIL held: ['cuInit']\nTrue\n", done.stdout + done.stderr


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
