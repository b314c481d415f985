"""Readers on the host, of pinned and managed memory that streams still write."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import cai_dlpack as cd
import numpy as np

from conformance.gpu.machine import SlowTrack
from conformance.gpu.registry import check, expect
from conformance.tests.streams.race import NBYTES

Reader = Callable[[cd.CaiView], object]

READERS: dict[str, Reader] = {
    "np.from_dlpack": lambda view: np.from_dlpack(view).tobytes(),
    "np.asarray": lambda view: np.asarray(view).tobytes(),
    "memoryview": lambda view: memoryview(view).tobytes(),
    "present_as": lambda view: np.asarray(view.present_as("host")).tobytes(),
    "synchronize": lambda view: at(view.synchronize().ptr),
    "to_dlpack for the host": lambda view: (cd.to_dlpack(view, stream="host"), at(view.ptr))[1],
}


def at(address: int) -> bytes:
    return ctypes.string_at(address, NBYTES)


def of_one_stream(track: SlowTrack, kind: str, reader: Reader) -> None:
    track.use(kind)
    track.put(bytes([1]) * NBYTES)
    track.write(track.a, 2)
    expect(reader(cd.view(track.producer(track.a))), bytes([2]) * NBYTES)


def of_two_streams(track: SlowTrack, kind: str, reader: Reader) -> None:
    """Both halves have a stream of their own; the reader waits for the join of the two."""
    track.use(kind)
    half = NBYTES // 2
    track.slow.fill(track.a, track.data, 3, half, track.seconds)
    track.slow.fill(track.b, track.data + half, 4, half, track.seconds)
    cd.join([track.a, track.b], on=track.b)
    expect(reader(cd.view(track.producer(track.b))), bytes([3]) * half + bytes([4]) * half)


for memory in ("pinned", "managed"):
    for label, each in READERS.items():
        for streams, run in {"one stream": of_one_stream, "two streams": of_two_streams}.items():
            check("host_readers", f"{memory}, {streams}: {label}")(
                lambda track, run=run, memory=memory, each=each: run(track, memory, each)  # type: ignore[misc]
            )
