"""Device memory between two processes by CUDA IPC: its order, who keeps it, and the death of either side."""

from __future__ import annotations

import ctypes
import gc
import os
import time
import weakref
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd

from conformance.gpu.contexts import second_device
from conformance.gpu.machine import SlowTrack, machine
from conformance.gpu.registry import check, expect
from conformance.tests.doubles.producers import Cai
from conformance.tests.reach.peer import Other, Raised

#: What `cuStreamQuery` says of a stream that has work.
BUSY = 600
#: How long the other process has to let go.
PATIENCE = 20

# --- what is done over there ---

HELD: dict[str, Any] = {}


def there() -> SlowTrack:
    """The streams of the other process, whose kernel is loaded."""
    if "track" not in HELD:
        HELD["track"] = track = SlowTrack(machine())
        track.seconds = 0.1
        track.load()
    found: SlowTrack = HELD["track"]
    return found


def warmed(handle: bytes) -> None:
    """Opens a handle before the race: what the first opening makes is there."""
    cd.open(handle, stream=there().b)
    gc.collect()


def opened(handle: bytes) -> int:
    """Opens on stream B, and copies there; what the stream says before anybody waits for it."""
    track = there()
    HELD["view"] = view = cd.open(handle, stream=track.b)
    track.read(track.b, view.ptr)
    return int(track.machine.driver.cuStreamQuery(ctypes.c_void_p(track.b)))


def seen() -> int:
    """The value that was copied."""
    track = there()
    track.wait(track.b)
    return track.seen()


def read_again() -> int:
    track = there()
    track.read(track.b, HELD["view"].ptr)
    return seen()


def written(value: int) -> None:
    """Writes to what is open, slowly, and waits for it."""
    track = there()
    track.slow.fill(track.b, HELD["view"].ptr, value, HELD["view"].nbytes, track.seconds)
    track.wait(track.b)


def closed() -> None:
    del HELD["view"]
    gc.collect()


def addresses(handle: bytes) -> tuple[int, int]:
    one, two = (cd.open(handle, stream=there().b) for _ in range(2))
    return one.ptr, two.ptr


def shared(value: int) -> bytes:
    """Shares an array of this process's, which is still to be written."""
    track = there()
    track.write(track.a, value)
    HELD["block"] = block = cd.share(track.view(track.a))
    return bytes(block.__enter__())


# --- this side ---


class Array(Cai):
    """An array that can be waited for to end."""


def array(track: SlowTrack) -> Array:
    return Array(track.producer(track.a).interface)


def begun(track: SlowTrack, other: Other) -> None:
    """The other process has its context and has opened something."""
    with cd.share(cd.view(array(track), device_id=0)) as handle:
        other(warmed, bytes(handle))


def eventually(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > end:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        gc.collect()
        time.sleep(0.01)


def refused(other: Callable[[], object]) -> None:
    try:
        other()
    except (Raised, cd.Refusal) as error:
        expect(getattr(error, "rule", error.args[0]), "share-ended")
    else:
        raise AssertionError("not refused: share-ended")


@check("processes", "what another process opens is the slow write before it")
def order(track: SlowTrack) -> None:
    with Other() as other:
        begun(track, other)
        track.write(track.a, 21)
        with cd.share(cd.view(array(track), device_id=0)) as handle:
            other(opened, bytes(handle))
            expect(other(seen), 21)
            other(closed)


@check("processes", "opening does not wait: the other process's stream does")
def host_does_not_wait(track: SlowTrack) -> None:
    with Other() as other:
        begun(track, other)
        track.seconds = 2.0
        track.write(track.a, 22)
        with cd.share(cd.view(array(track), device_id=0)) as handle:
            expect(other(opened, bytes(handle)), BUSY)
            expect(other(seen), 22)
            other(closed)


@check("processes", "what the other process writes is here, once its message says so", False)
def way_back(track: SlowTrack) -> None:
    with Other() as other, cd.share(cd.view(array(track), device_id=0)) as handle:
        other(opened, bytes(handle))
        other(written, 23)
        expect(track.value_at(track.data), 23)
        other(closed)


@check("processes", "opened twice it has one address", False)
def twice(track: SlowTrack) -> None:
    with Other() as other, cd.share(cd.view(array(track), device_id=0)) as handle:
        one, two = other(addresses, bytes(handle))
        expect(one, two)


@check("processes", "the array is kept until the other process lets go, after the block is left", False)
def owner(track: SlowTrack) -> None:
    source = array(track)
    ended = weakref.ref(source)
    with Other() as other:
        with cd.share(cd.view(source, device_id=0)) as handle:
            track.write(track.a, 24)
            track.wait(track.a)
            other(opened, bytes(handle))
            del source
        refused(lambda: other(opened, bytes(handle)))
        time.sleep(0.2)
        gc.collect()
        expect(ended() is None, False)
        expect(other(read_again), 24)
        other(closed)
        eventually(lambda: ended() is None, "the array ends")


def killed(track: SlowTrack, while_it: Callable[[Other, bytes], object]) -> None:
    """The array ends, and this process's work goes on."""
    source = array(track)
    ended = weakref.ref(source)
    with Other() as other:
        begun(track, other)
        track.write(track.a, 25)
        with cd.share(cd.view(source, device_id=0)) as handle:
            del source
            while_it(other, bytes(handle))
            other.kill()
    eventually(lambda: ended() is None, "the array ends")
    track.write(track.a, 26)
    track.wait(track.a)
    expect(track.value_at(track.data), 26)


for name, while_it in {
    "its stream waits": lambda other, handle: other(opened, handle),
    "it has read": lambda other, handle: (other(opened, handle), other(seen)),
    "it writes": lambda other, handle: (other(opened, handle), other.send(written, 27)),
    "it opens": lambda other, handle: other.send(opened, handle),
}.items():
    check("processes", f"the other process is killed while {name}", False)(
        lambda track, while_it=while_it: killed(track, while_it)  # type: ignore[misc]
    )


@check("processes", "the process that shares is killed: its handle is refused, and what is open can be dropped", False)
def exporter_killed(track: SlowTrack) -> None:
    before = cd.stats()["live"]
    with Other() as other:
        handle = other(shared, 28)
        view = cd.open(handle, stream=track.b)
        track.read(track.b, view.ptr)
        track.wait(track.b)
        expect(track.seen(), 28)
        other.kill()
    refused(lambda: cd.open(handle, stream=track.b))
    del view
    eventually(lambda: cd.stats()["live"] == before, "the view ends")


@check("processes", "the process that shares is killed: this one's own work goes on", False)
def work_after(track: SlowTrack) -> None:
    with Other() as other:
        view = cd.open(other(shared, 29), stream=track.b)
        other.kill()
    del view
    gc.collect()
    track.write(track.a, 30)
    track.wait(track.a)
    expect(track.value_at(track.data), 30)


@check("processes", "the other process numbers the devices otherwise", False)
def numbered_otherwise(track: SlowTrack) -> None:
    second_device(track)
    seen_here = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    with Other(CUDA_VISIBLE_DEVICES=",".join(reversed(seen_here))) as other:
        track.write(track.a, 31)
        with cd.share(cd.view(array(track), device_id=0)) as handle:
            other(opened, bytes(handle))
            expect(other(seen), 31)
            other(closed)
