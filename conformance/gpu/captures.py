"""Captures in the three modes: what the library allows beside one, refuses, and leaves whole."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import cai_dlpack as cd

from conformance.gpu.machine import SlowTrack
from conformance.gpu.registry import check, expect
from conformance.tests.streams.race import LEGACY

MODES = {"GLOBAL": 0, "THREAD_LOCAL": 1, "RELAXED": 2}


def begin(track: SlowTrack, stream: int, mode: int) -> None:
    track.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_uint(mode))


def end(track: SlowTrack, stream: int) -> ctypes.c_void_p:
    """Returns the graph of a capture that must be whole."""
    graph = ctypes.c_void_p()
    track.call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
    return graph


def refused(rule: str, call: Callable[[], object]) -> None:
    try:
        call()
    except BufferError as error:
        expect(getattr(error, "rule", None), rule)
    else:
        raise AssertionError(f"not refused: {rule}")


def in_one_graph(track: SlowTrack, mode: int) -> None:
    begin(track, track.a, mode)
    track.fill(track.a, 7)
    with track.view(track.a).consume(track.b):
        track.read(track.b)
    graph, executable = end(track, track.a), ctypes.c_void_p()
    track.wait(track.b)  # has nothing to do, unless the read was not captured
    track.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
    track.call("cuGraphLaunch", executable, ctypes.c_void_p(track.a))
    track.wait(track.a)
    expect(track.seen(), 7)


def refusals(track: SlowTrack, mode: int) -> None:
    begin(track, track.a, mode)
    refused("capture-producer", lambda: track.view(track.a).on(track.b))
    refused("capture-consumer", lambda: track.view(track.b).on(track.a))
    refused("capture-host-wait", lambda: track.view(track.a).synchronize())
    end(track, track.a)


def legacy(track: SlowTrack, mode: int) -> None:
    stream = track.blocking_stream()
    begin(track, stream, mode)
    refused("capture-legacy", lambda: track.view(LEGACY).on(track.b))
    refused("capture-legacy", lambda: track.view(track.b).on(LEGACY))
    end(track, stream)


def beside(track: SlowTrack, mode: int, work: Callable[[int], object]) -> None:
    """Runs `work` beside a capture of this thread, then beside one of another thread, with a value for each."""
    stream = track.machine.stream()
    track.machine.set_current(0)
    begin(track, stream, mode)
    work(9)
    end(track, stream)
    begun, done = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def capture() -> None:
        try:
            track.machine.set_current(0)
            begin(track, stream, mode)
            begun.set()
            done.wait()
            end(track, stream)
        except BaseException as error:  # raised below
            failed.append(error)
            begun.set()

    thread = threading.Thread(target=capture)
    thread.start()
    begun.wait()
    try:
        work(11)
    finally:
        done.set()
        thread.join()
    if failed:
        raise failed[0]


def order_beside(track: SlowTrack, mode: int) -> None:
    def order(value: int) -> None:
        track.write(track.a, value)
        track.view(track.a).on(track.b)
        track.read(track.b)

    beside(track, mode, order)
    track.wait(track.b)
    expect(track.seen(), 11)


def host_wait_beside(track: SlowTrack, mode: int) -> None:
    def wait(value: int) -> None:
        track.write(track.a, value)
        track.view(track.a).synchronize()

    beside(track, mode, wait)
    expect(track.value_at(track.data), 11)


def import_beside(track: SlowTrack, mode: int) -> None:
    beside(track, mode, lambda _: cd.view(track.producer(track.a), check="bounds"))


def copy_beside(track: SlowTrack, mode: int) -> None:
    def copy(_: int) -> None:
        track.view(track.a).__dlpack__(copy=True, stream=track.b, max_version=(1, 3))

    beside(track, mode, copy)


for label, number in MODES.items():
    for name, run, orders in (
        ("an order and its way back in one graph", in_one_graph, True),
        ("refusals leave it whole", refusals, True),
        ("the legacy stream is refused", legacy, True),
        ("an order of two idle streams beside it", order_beside, True),
        ("a host wait for an idle stream beside it", host_wait_beside, True),
        ("an import with bounds beside it", import_beside, False),
        ("a copy made and dropped beside it", copy_beside, False),
    ):
        add = check("captures", f"{label}: {name}", orders)
        add(lambda track, run=run, number=number: run(track, number))  # type: ignore[misc]
