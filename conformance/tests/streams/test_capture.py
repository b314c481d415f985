"""Graph capture: what is recorded, what is refused, and that the user's capture outlives each refusal."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cai_dlpack as cd
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.interpreter.process import on_the_simulator
from conformance.tests.ownership import native
from conformance.tests.ownership.waiting import until
from conformance.tests.simulated.capture import ACTIVE, GLOBAL, IDLE, QUESTIONS, RELAXED, THREAD_LOCAL, Captures
from conformance.tests.simulated.machine import Machine, one_event
from conformance.tests.streams.faces import HOST_FACES, STREAM_FACES
from conformance.tests.streams.race import LEGACY, PER_THREAD, Track


@pytest.fixture
def captures(track: Track) -> Iterator[Captures]:
    made = Captures(track.machine)
    yield made
    made.close()


# What is captured before the order is asked for: each names the streams that are.
Setting = Callable[[Captures, Track, int], None]


def ready_captured(captures: Captures, track: Track, mode: int) -> None:
    captures.begin(track.a, mode)


def requested_captured(captures: Captures, track: Track, mode: int) -> None:
    captures.begin(track.b, mode)


def two_captures(captures: Captures, track: Track, mode: int) -> None:
    captures.begin(track.a, mode)
    captures.begin(track.b, mode)


def one_capture(captures: Captures, track: Track, mode: int) -> None:
    captures.begin(track.a, mode)
    captures.fork(track.a, track.b)


REFUSED: list[tuple[Setting, str, str]] = [
    *((ready_captured, face, "capture-producer") for face in STREAM_FACES if not face.startswith("consume")),
    *((requested_captured, face, "capture-consumer") for face in STREAM_FACES),
    *((two_captures, face, "capture-other") for face in STREAM_FACES),
    *((ready_captured, face, "capture-host-wait") for face in HOST_FACES),
    *((one_capture, face, "capture-host-wait") for face in HOST_FACES),
]


def argument(face: str) -> str:
    """What the stream that waits is called."""
    return "on" if face == "join" else "stream"


@pytest.mark.parametrize("policy", ["event", "host"])
@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED], ids=["global", "thread-local", "relaxed"])
@pytest.mark.parametrize(("setting", "face", "rule"), REFUSED, ids=lambda value: getattr(value, "__name__", value))
def test_a_refusal_comes_before_any_call_that_touches_a_capture(
    setting: Setting, face: str, rule: str, mode: int, policy: Any, track: Track, captures: Captures
) -> None:
    view = track.view(track.a)
    setting(captures, track, mode)
    states = [captures.state(stream) for stream in (track.a, track.b)]
    track.machine.clear()
    with cd.policy(sync=policy):
        found = refuse(lambda: (STREAM_FACES | HOST_FACES)[face](view, track.b), BufferError)
    assert set(track.machine.names()) <= QUESTIONS
    check_refusal(found, rule, argument(face), hint="capture")
    assert [captures.state(stream) for stream in (track.a, track.b)] == states
    assert cd.stats()["open_guards"] == 0
    if setting is one_capture:
        captures.fork(track.b, track.a)
    captured = list(captures.open)
    for stream in captured:  # the user's captures go on, and end well
        track.write(stream, 1)
        captures.launch(captures.end(stream), stream)
    for stream in captured:  # beside a capture the host may not wait
        track.wait(stream)


@pytest.mark.parametrize("face", STREAM_FACES)
@pytest.mark.parametrize("setting", [ready_captured, requested_captured, two_captures, one_capture])
def test_nothing_to_order_is_no_call_whatever_is_captured(
    setting: Setting, face: str, track: Track, captures: Captures
) -> None:
    setting(captures, track, GLOBAL)
    track.machine.clear_own()
    STREAM_FACES[face](track.view(track.a), track.a)
    STREAM_FACES[face](track.view(None), track.b)
    if face in ("dlpack", "to-dlpack"):
        STREAM_FACES[face](track.view(track.a), -1)
    if face in ("dlpack", "to-dlpack", "consume"):
        with cd.policy(sync="none"):
            STREAM_FACES[face](track.view(track.a), track.b)
    assert track.machine.calls() == []
    if setting is one_capture:
        captures.fork(track.b, track.a)


@pytest.mark.parametrize("policy", ["event", "host"])
@pytest.mark.parametrize("face", STREAM_FACES)
def test_within_one_capture_the_order_is_an_edge_of_the_graph(
    face: str, policy: Any, track: Track, captures: Captures
) -> None:
    one_capture(captures, track, GLOBAL)
    view = track.view(track.a)
    track.machine.clear()
    with cd.policy(sync=policy):
        STREAM_FACES[face](view, track.b)
    back = one_event(track.b, track.a) if face.startswith("consume") else []
    assert track.machine.order() == one_event(track.a, track.b) + back
    captures.fork(track.b, track.a)
    captures.launch(captures.end(track.a), track.a)
    track.wait(track.a)


@pytest.mark.parametrize("policy", ["event", "host"])
@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
def test_a_loan_forks_into_the_capture_and_joins_back(
    raises: bool, policy: Any, track: Track, captures: Captures
) -> None:
    """Write, copy by a consumer on another stream, write again: all in the graph, in this order."""
    captures.begin(track.a)
    track.write(track.a, 4)
    track.machine.clear()
    try:
        with cd.policy(sync=policy), track.view(track.a).consume(track.b):
            assert captures.state(track.b) == ACTIVE
            track.read(track.b)
            if raises:
                raise LookupError
    except LookupError:
        assert raises
    assert track.machine.order() == one_event(track.a, track.b) + one_event(track.b, track.a)
    track.write(track.a, 5)
    graph = captures.end(track.a)
    assert captures.state(track.b) == IDLE
    outcomes = set()
    track.control.schedule = "lazy"
    captures.launch(graph, track.a)
    track.wait(track.a)
    outcomes.add((track.seen(), track.machine.read(track.data, 1)))
    assert outcomes == {(4, b"\x05")}


@pytest.mark.parametrize("schedule", ["lazy", "threaded"])
def test_nested_loans_join_back_to_one_capture(
    schedule: str, track: Track, captures: Captures, machine: Machine
) -> None:
    """The inner consumer waits for the outer one, and the producer for both."""
    third, target = machine.stream(), machine.device_memory(24)
    captures.begin(track.a)
    track.write(track.a, 4)
    machine.clear()
    with track.view(track.a).consume(track.b) as outer:
        with outer.consume(third) as inner:
            assert captures.state(third) == ACTIVE
            assert inner.return_edge == "event"
            own, track.copy = track.copy, target
            track.read(third)
            track.copy = own
        track.read(track.b)
    there = one_event(track.a, track.b) + one_event(track.b, third)
    assert machine.order() == there + one_event(third, track.a) + one_event(track.b, track.a)
    track.write(track.a, 5)
    graph = captures.end(track.a)
    assert captures.state(third) == IDLE
    track.control.schedule = schedule
    captures.launch(graph, track.a)
    track.wait(track.a)
    assert (track.seen(), machine.read(target, 1), machine.read(track.data, 1)) == (4, b"\x04", b"\x05")
    machine.free(target)
    machine.destroy_stream(third)


def test_a_leaked_loan_joins_back_when_it_is_dropped(track: Track, captures: Captures) -> None:
    captures.begin(track.a)
    held = [track.view(track.a).consume(track.b)]
    held[0].__enter__()
    with pytest.warns(ResourceWarning, match="never left"):
        held.clear()
    captures.end(track.a)


def test_a_loan_whose_ready_stream_is_not_the_producers_may_not_fork(
    track: Track, captures: Captures, machine: Machine
) -> None:
    """It would join back to another stream than the one that is captured."""
    third = machine.stream()
    moved = track.view(track.a).on(track.b)
    captures.begin(track.b)
    machine.clear()
    check_refusal(refuse(moved.consume(third).__enter__, BufferError), "capture-producer", "stream")
    assert set(machine.names()) <= QUESTIONS
    assert captures.state(third) == IDLE
    captures.end(track.b)
    machine.destroy_stream(third)


def test_a_capture_that_begins_inside_a_loan_forbids_its_return_edge(track: Track, captures: Captures) -> None:
    """The producer's stream is captured by then, the consumer's is not: the end of the loan raises."""
    loan = track.view(track.a).consume(track.b)
    loan.__enter__()
    captures.begin(track.a)
    check_refusal(refuse(lambda: loan.__exit__(None, None, None), BufferError), "capture-consumer", "stream")
    assert cd.stats()["open_guards"] == 0
    captures.end(track.a)


def test_a_finaliser_on_the_thread_that_releases_breaks_no_capture(
    track: Track, captures: Captures, machine: Machine
) -> None:
    """Where a native thread lets go of an array: the finaliser frees memory, which a capture forbids to every thread of
    the program's, and runs on one that the program has not started."""
    threads: list[int] = []

    def free(pointer: int) -> None:
        machine.free(pointer)
        threads.append(threading.get_ident())

    def offered() -> abi.Read:
        pointer = machine.device_memory(16)
        array = Cai(interface(data=(pointer, False)))
        weakref.finalize(array, free, pointer)
        return abi.consume(cd.view(array).__dlpack__(stream=-1, max_version=(1, 3)))

    tensors = [offered() for _ in range(100)]
    captures.begin(track.a, GLOBAL)
    with ThreadPoolExecutor(1) as pool:
        for tensor in tensors:
            pool.submit(native.storm, [tensor], gil=False).result()
    assert until(lambda: len(threads) == len(tensors))
    captures.end(track.a)
    assert threading.get_ident() not in threads


#: The main thread waits in C, so that the call that the first release has scheduled is still to come once the driver is
#: in use: by then there is a capture, and more to release.
SCHEDULED_BEFORE = """
import ctypes, sys, threading, weakref
import cai_dlpack as cd
from cai_conformance import Sim, abi
from conformance.tests.doubles.producers import Cai, cai, interface
from conformance.tests.ownership import native
from conformance.tests.ownership.waiting import until
from conformance.tests.simulated.capture import GLOBAL, Captures
from conformance.tests.simulated.machine import Machine

machine = Machine(Sim())
captures = Captures(machine)
threads, is_over = [], ctypes.c_int(0)


def tensor(array):
    return abi.consume(cd.view(array, device_id=0).__dlpack__(stream=-1, max_version=(1, 3)))


def freeing():
    pointer = machine.device_memory(16)
    array = Cai(interface(data=(pointer, False)))
    weakref.finalize(array, lambda: (threads.append(threading.get_ident()), machine.free(pointer)))
    return tensor(array)


def other():
    machine.set_current(0)
    a, b = machine.stream(), machine.stream()
    sys.setswitchinterval(1000)  # the main thread waits for the GIL until this one lets go of it
    native.storm([tensor(cai())], gil=True)
    later = [freeing() for _ in range(20)]
    with cd.view(Cai(interface(data=(machine.device_memory(24), False), stream=a))).consume(b):
        pass
    captures.begin(a, GLOBAL)
    is_over.value = 1
    native.with_gil().sit(20_000)
    native.storm(later, gil=True)
    sys.setswitchinterval(0.005)
    assert until(lambda: len(threads) == len(later))
    captures.end(a)
    print("whole")


native.path()
thread = threading.Thread(target=other)
thread.start()
native.without_gil().sit_until(ctypes.byref(is_over))
thread.join()
print(threads.count(threading.get_ident()), "on the main thread")
"""


#: The first release of a batch waits, on the main thread, until another one has brought the driver and begun a capture.
BATCH_BEGUN_BEFORE = """
import threading, weakref
import cai_dlpack as cd
from cai_conformance import Sim, abi
from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.ownership import native
from conformance.tests.ownership.waiting import until
from conformance.tests.simulated.capture import GLOBAL, Captures
from conformance.tests.simulated.machine import Machine

machine = Machine(Sim())
machine.set_current(0)
captures = Captures(machine)
a, b = machine.stream(), machine.stream()
begun, go_on = threading.Event(), threading.Event()
threads = []


def offered(end, data=0x1000):
    array = Cai(interface(data=(data, False)))
    weakref.finalize(array, end, data)
    return abi.consume(cd.view(array, device_id=0).__dlpack__(stream=-1, max_version=(1, 3)))


def first(_):
    begun.set()
    go_on.wait(20)


def free(pointer):
    threads.append(threading.get_ident())
    machine.free(pointer)


def other():
    machine.set_current(0)
    begun.wait(20)
    with cd.view(Cai(interface(data=(machine.device_memory(24), False), stream=a))).consume(b):
        pass
    captures.begin(a, GLOBAL)
    go_on.set()
    assert until(lambda: len(threads) == 5)
    captures.end(a)
    print("whole")


batch = [offered(first)] + [offered(free, machine.device_memory(16)) for _ in range(5)]  # the oldest ends first
thread = threading.Thread(target=other)
thread.start()
native.storm(batch, gil=True)
while thread.is_alive():
    pass
print(threads.count(threading.get_ident()), "on the main thread")
"""


def changed(program: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert old in program
        program = program.replace(old, new)
    return program


#: As before, while the main thread is in C code: the library's own thread has begun the batch.
OWN_BATCH_BEGUN_BEFORE = changed(
    BATCH_BEGUN_BEFORE,
    {
        "import threading": "import ctypes, sys, threading, time",
        "    begun.wait(20)\n": """
    time.sleep(0.01)
    sys.setswitchinterval(0.005)
    native.storm(batch, gil=True)
    assert begun.wait(20)
""",
        "    captures.end(a)\n": "    is_over.value = 1\n    captures.end(a)\n",
        "thread.start()\n": """
quiet, is_over = native.without_gil(), ctypes.c_int(0)
native.path()
sys.setswitchinterval(1000)  # the other thread gets the GIL when this one is in C code
thread.start()
""",
        "native.storm(batch, gil=True)\nwhile thread.is_alive():\n    pass\n": """
quiet.sit_until(ctypes.byref(is_over))
thread.join()
""",
    },
)


@pytest.mark.parametrize(
    "program", [SCHEDULED_BEFORE, BATCH_BEGUN_BEFORE, OWN_BATCH_BEGUN_BEFORE], ids=["scheduled", "begun", "own"]
)
def test_releases_end_on_a_thread_for_them_once_the_driver_has_begun(program: str) -> None:
    found = on_the_simulator(program)
    told = (found.returncode, found.stdout.split("\n")[:2], "Exception ignored" in found.stderr)
    assert told == (0, ["whole", "0 on the main thread"], False), found.stderr


def test_a_loan_that_nothing_was_done_for_may_end_in_the_capture(
    track: Track, captures: Captures, machine: Machine
) -> None:
    """Of managed memory the driver is asked whose the default stream is; the data is ready on it, in the capture."""
    array = Cai(interface(data=(machine.managed_memory(16), False), stream=track.a))
    captures.begin(track.a)
    captures.fork(track.a, PER_THREAD)
    here = cd.view(array).on(PER_THREAD)
    with here.consume(PER_THREAD) as loan:
        pass
    assert loan.return_edge == "event"
    captures.fork(PER_THREAD, track.a)
    captures.end(track.a)


@pytest.mark.parametrize("face", [*STREAM_FACES, *HOST_FACES])
@pytest.mark.parametrize("side", ["ready", "requested"])
def test_a_broken_capture_is_named_as_one(side: str, face: str, track: Track, captures: Captures) -> None:
    if face in HOST_FACES and side == "requested":
        side = "ready"
    broken = track.a if side == "ready" else track.b
    captures.begin(broken)
    assert track.machine.driver.cuStreamSynchronize(ctypes.c_void_p(broken)) != 0, "this breaks it"
    track.machine.clear()
    found = refuse(lambda: (STREAM_FACES | HOST_FACES)[face](track.view(track.a), track.b), BufferError)
    check_refusal(found, "capture-invalid", argument(face))
    assert set(track.machine.names()) <= QUESTIONS
    assert captures.abandon(broken) == 901


@pytest.mark.parametrize("face", STREAM_FACES)
@pytest.mark.parametrize(
    ("ready", "requested", "rule"),
    [
        (LEGACY, "b", "capture-legacy"),
        ("a", LEGACY, "capture-legacy"),
        (PER_THREAD, LEGACY, "capture-legacy"),
        ("captured", LEGACY, "capture-legacy"),
        (LEGACY, "captured", "capture-legacy"),
    ],
)
def test_the_legacy_stream_takes_no_part_beside_a_blocking_capture(
    ready: Any, requested: Any, rule: str, face: str, track: Track, captures: Captures
) -> None:
    """The capture of a stream that synchronises with the legacy stream."""
    blocking = ctypes.c_void_p()
    assert track.machine.driver.cuStreamCreate(ctypes.byref(blocking), 0) == 0
    assert blocking.value
    names = {"a": track.a, "b": track.b, "captured": blocking.value}
    captures.begin(blocking.value)
    track.machine.clear()
    view = track.view(names.get(ready, ready))
    found = refuse(lambda: STREAM_FACES[face](view, names.get(requested, requested)), BufferError)
    check_refusal(found, rule, argument(face))
    assert set(track.machine.names()) <= QUESTIONS
    assert captures.state(blocking.value) == ACTIVE
    captures.end(blocking.value)
    track.machine.destroy_stream(blocking.value)


def test_what_the_refusal_advises_is_accepted(track: Track, captures: Captures) -> None:
    """Order it before the capture begins; then nothing is left to order inside."""
    ready = track.view(track.a).on(track.b)
    done = track.view(track.a).synchronize()
    captures.begin(track.b)
    track.machine.clear_own()
    ready.__dlpack__(stream=track.b, max_version=(1, 3))
    done.__dlpack__(stream=track.b, max_version=(1, 3))
    assert track.machine.calls() == []
    track.read(track.b)
    captures.end(track.b)


def test_a_capture_on_the_other_device_or_of_a_third_stream_is_no_matter(
    track: Track, captures: Captures, machine: Machine
) -> None:
    for ordinal, mode in itertools.product((0, 1), (THREAD_LOCAL, RELAXED, GLOBAL)):
        third = machine.stream(ordinal)
        captures.begin(third, mode)
        machine.clear()
        track.view(track.a).on(track.b)
        assert machine.order() == one_event(track.a, track.b)
        assert captures.state(third) == ACTIVE
        captures.end(third)
        machine.destroy_stream(third)


@pytest.mark.parametrize("is_awaited", [False, True], ids=["with", "async with"])
@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED], ids=["global", "thread-local", "relaxed"])
def test_an_edge_of_a_graph_is_none_for_the_work_from_before_the_capture(
    mode: int, is_awaited: bool, track: Track, captures: Captures
) -> None:
    """The producer's next write would not wait for what was enqueued before: the end of the block says so."""
    block = track.view(track.a).consume(track.b)

    def begin() -> None:
        captures.begin(track.a, mode)
        captures.fork(track.a, track.b)

    def sync() -> None:
        with block:
            begin()

    async def awaited() -> None:
        async with block:
            begin()

    found = refuse((lambda: asyncio.run(awaited())) if is_awaited else sync, BufferError)
    check_refusal(found, "capture-consumer", "stream", hint="capture")
    assert cd.stats()["open_guards"] == 0
    captures.fork(track.b, track.a)
    captures.launch(captures.end(track.a), track.a)
