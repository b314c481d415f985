"""Contexts: of other devices, a second one of a device, none at all, one that was reset."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import cai_dlpack as cd

from conformance.gpu.machine import SlowTrack, machine
from conformance.gpu.registry import NotRun, check, expect
from conformance.tests.streams.race import LEGACY, NBYTES, PER_THREAD


def ordered(track: SlowTrack, writer: int, value: int) -> None:
    """A slow write, an order by the library, and a copy on B."""
    before = track.machine.current()
    cd.view(track.producer(writer)).on(track.b)
    expect(track.machine.current(), before)
    track.read(track.b)
    track.wait(track.b)
    expect(track.seen(), value)


def second_device(track: SlowTrack) -> int:
    count = ctypes.c_int()
    track.call("cuDeviceGetCount", ctypes.byref(count))
    if count.value < 2:
        raise NotRun("one device")
    return 1


@check("contexts", "a producer's stream of a second context of the device")
def second_context(track: SlowTrack) -> None:
    context, stream, primary = ctypes.c_void_p(), ctypes.c_void_p(), track.machine.current()
    track.call("cuCtxCreate_v2", ctypes.byref(context), ctypes.c_uint(0), 0)
    track.call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(1))
    track.slow.busy(stream.value or 0, 0)
    track.wait(stream.value or 0)
    track.write(stream.value or 0, 3)
    track.call("cuCtxSetCurrent", ctypes.c_void_p(primary))
    ordered(track, stream.value or 0, 3)


@check("contexts", "a thread without a context")
def no_context(track: SlowTrack) -> None:
    track.write(track.a, 4)
    on_a_bare_thread(lambda: track.view(track.a).on(track.b))
    track.read(track.b)
    track.wait(track.b)
    expect(track.seen(), 4)


def on_a_bare_thread(call: Callable[[], object]) -> None:
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


@check("contexts", "a stream of another device, with this one current")
def another_device(track: SlowTrack) -> None:
    ordinal = second_device(track)
    stream, track.data = track.machine.stream(ordinal), track.machine.device_memory(NBYTES, ordinal)
    track.machine.set_current(ordinal)
    track.slow.busy(stream, 0)
    track.wait(stream)
    track.write(stream, 5)
    track.machine.set_current(0)
    ordered(track, stream, 5)


def default_of_another_device(track: SlowTrack, default: int) -> None:
    """The default stream is that of the memory's device, whichever is current."""
    ordinal = second_device(track)
    track.data = track.machine.device_memory(NBYTES, ordinal)
    track.machine.set_current(ordinal)
    track.slow.busy(default, 0)
    track.wait(default)
    track.write(default, 6)
    track.machine.set_current(0)
    ordered(track, default, 6)


check("contexts", "the legacy stream of another device")(lambda track: default_of_another_device(track, LEGACY))
check("contexts", "the per-thread stream of another device")(lambda track: default_of_another_device(track, PER_THREAD))


@check("contexts", "events of before a reset of the primary context are not used after it")
def reset(track: SlowTrack) -> None:
    track.write(track.a, 7)
    ordered(track, track.a, 7)
    track.call("cuDevicePrimaryCtxReset_v2", 0)
    again = SlowTrack(machine())
    again.seconds, again.declares = track.seconds, track.declares
    again.load()
    again.write(again.a, 8)
    ordered(again, again.a, 8)
