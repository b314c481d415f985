"""Race trials: what a consumer does about work that is still to be done, without a log of its calls.

On a GPU a kernel takes its time before it writes, on the simulated driver a delay does. A read that does not wait finds
the bytes from before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from cai_conformance import abi
from cai_conformance.cuda import driver
from cai_conformance.judge.check import NotRun
from cai_conformance.judge.consumed import Consumer
from cai_conformance.judge.exported import Export
from cai_conformance.offers import a_stream
from cai_conformance.slow import Slow

#: How long the write is held up: longer than a consumer needs to take an array that it has seen the like of.
SECONDS = 0.05
TRIALS = 20


@cache
def _slow() -> Slow:
    slow = Slow()
    with driver().context():
        slow.busy(a_stream(), 0)
    driver().synchronize()  # loading a kernel waits for the device
    return slow


def writes_late(address: int, value: int, nbytes: int) -> None:
    """From now on `a_stream()` is busy, and then it writes `nbytes` (at most 1024) of `value`."""
    with driver().context():
        _slow().fill(a_stream(), address, value, nbytes, SECONDS)


def in_order(consumer: Consumer, taken: Any) -> bytes:
    """The elements, once what the consumer's array says of its stream is done, and nothing else.

    By the function that reads it if there is one, else by the stream of `__cuda_array_interface__`, else by
    `__dlpack__(stream=)`. The array lies in C order.

    Raises:
        NotRun: nothing shows it.
    """
    if consumer.read is not None:
        return np.array(consumer.read(taken)).tobytes()
    interface = getattr(taken, "__cuda_array_interface__", None)
    if interface is not None:
        nbytes = int(np.prod(interface["shape"])) * np.dtype(interface["typestr"]).itemsize
        stream = interface.get("stream")
        return driver().read_after(another_stream() if stream is None else stream, interface["data"][0], nbytes)
    if hasattr(taken, "__dlpack__"):
        export = Export(taken.__dlpack__(stream=another_stream(), max_version=abi.NEWEST))
        nbytes = int(np.prod(export.read.shape or ())) * export.read.dtype[1] // 8
        return driver().read_after(another_stream(), export.address, nbytes)
    raise NotRun("what it returned cannot be read in stream order: name a function that reads it (--read)")


@cache
def another_stream() -> int:
    """A stream without work."""
    return driver().stream()


def lost(consumer: Consumer, offered: Callable[[], Any]) -> str | None:
    """Whether the consumer's array was read before the write that it is ready after: what was read, or None.

    `offered` makes an array of a type with one byte, in C order, that is ready on `a_stream()`.

    Raises:
        NotRun: nothing reads it in order, or nobody can lose this race here.
    """
    consumer.take(offered())  # what a first use does
    control = 0
    for trial in range(TRIALS):
        offer, value = offered(), 1 + trial
        nbytes = offer.array.nbytes
        driver().synchronize()
        writes_late(offer.address, value, nbytes)
        control += driver().read_after(another_stream(), offer.address, nbytes) != bytes([value]) * nbytes
        driver().synchronize()
        driver().write(offer.address, bytes(nbytes))
        driver().synchronize()  # such a copy may still run when it returns
        writes_late(offer.address, value, nbytes)
        found = in_order(consumer, consumer.take(offer))
        driver().synchronize()
        if found != bytes([value]) * nbytes:
            return f"trial {trial + 1}: it read {found[:8].hex()}, and {value:02x} was written in the stream"
    if not control:
        raise NotRun(f"in {TRIALS} trials nobody who waits for nothing read too early")
    return None


def waits(action: Callable[[], object], *streams: int) -> bool:
    """Whether an action comes back only after the work of streams, which are busy for a while."""
    action()  # what a first use does
    for _ in range(3):
        with driver().context():
            for stream in streams:
                _slow().busy(stream, SECONDS)
        begun = time.monotonic()
        action()
        took = time.monotonic() - begun
        idle = any(driver().is_idle(stream) for stream in streams)
        driver().synchronize()
        if not idle and took < SECONDS:
            return False
    return True
