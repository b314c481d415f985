"""Copies of memory of every kind: of the right write, for each consumer, and given back."""

from __future__ import annotations

import ctypes
import gc
import time

import cai_dlpack as cd
import numpy as np
from cai_conformance import abi

from conformance.gpu.machine import SlowTrack
from conformance.gpu.registry import NotRun, check, expect
from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.streams.race import NBYTES

KINDS = ("device", "pinned", "managed")
VERSION = (1, 3)


def copied_for_a_stream(track: SlowTrack, kind: str) -> None:
    """Of the slow write; and dropped while the consumer's stream reads it."""
    track.use(kind)
    track.write(track.a, 5)
    capsule = cd.view(track.producer(track.a)).__dlpack__(copy=True, stream=track.b, max_version=VERSION)
    tensor = abi.consume(capsule)
    track.slow.busy(track.b, track.seconds)
    track.read(track.b, tensor.data)
    abi.release(tensor)
    track.wait(track.b)
    expect(track.seen(), 5)


def copied_to_the_host(track: SlowTrack, kind: str) -> None:
    track.use(kind)
    track.write(track.a, 6)
    capsule = cd.view(track.producer(track.a)).__dlpack__(copy=True, dl_device=(1, 0), max_version=VERSION)
    tensor = abi.consume(capsule)
    expect(tensor.device[0], abi.CPU)
    expect(ctypes.string_at(tensor.data, NBYTES), bytes([6]) * NBYTES)
    abi.release(tensor)


def layouts(track: SlowTrack, kind: str) -> None:
    """Strided, and against the strides: each element at its place."""
    values = np.arange(64, dtype=np.int32).reshape(8, 8)
    track.use(kind, values.nbytes)
    track.put(values.tobytes())
    for part in (values, values[::2], values[:, 1:5:2], values.T, values[::-1, ::-3][::-1, ::-1]):
        offset = part.__array_interface__["data"][0] - values.__array_interface__["data"][0]
        whole = interface(shape=part.shape, strides=part.strides, typestr="<i4", data=(track.data + offset, False))
        tensor = abi.consume(cd.view(Cai(whole)).__dlpack__(copy=True, dl_device=(1, 0), max_version=VERSION))
        found = np.frombuffer(ctypes.string_at(tensor.data, part.size * 4), np.int32).reshape(part.shape)
        abi.release(tensor)
        expect(found.tolist(), part.tolist())


def given_back(track: SlowTrack, kind: str) -> None:
    """Two hundred copies of a mebibyte, each dropped before the next, leave nothing."""
    track.use(kind, 1 << 20)
    whole = interface(shape=(1 << 20,), typestr="|u1", data=(track.data, False), stream=track.a)
    view = cd.view(Cai(whole))
    before = track.free_memory()
    held = view.__dlpack__(copy=True, stream=track.b, max_version=VERSION)
    if before - track.free_memory() < 1 << 20:
        raise NotRun("the driver's count of free memory leaves it out")
    del held
    for _ in range(200):
        view.__dlpack__(copy=True, stream=track.b, max_version=VERSION)
    gc.collect()
    track.wait(track.b)
    for _ in range(200):
        if before - track.free_memory() < 8 << 20:
            return
        time.sleep(0.05)
    raise AssertionError(f"{(before - track.free_memory()) >> 20} MiB are not given back")


for memory in KINDS:
    for name, run, orders in (
        ("for a stream, and dropped while it reads", copied_for_a_stream, True),
        ("to the host", copied_to_the_host, True),
        ("every layout", layouts, False),
        ("given back", given_back, False),
    ):
        add = check("copies", f"{memory}: {name}", orders)
        add(lambda track, run=run, memory=memory: run(track, memory))  # type: ignore[misc]
