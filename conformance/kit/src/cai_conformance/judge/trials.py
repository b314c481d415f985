"""Race trials: what a consumer does about work that is still to be done, without a log of its calls.

On a GPU a kernel takes its time before it writes. A read that does not wait finds the bytes from before. On the
simulated driver nothing is done before somebody waits for it: there one trial tells, and takes no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from cai_conformance import abi
from cai_conformance.cuda import driver
from cai_conformance.judge.check import NotRun
from cai_conformance.judge.consumed import Consumer
from cai_conformance.judge.exported import Export
from cai_conformance.judge.text import text_of
from cai_conformance.offers import a_stream
from cai_conformance.sim import Sim
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


@contextmanager
def nothing_by_itself() -> Iterator[tuple[int, float]]:
    """Gives the number of trials, and the seconds that a write is held up; on the simulated driver the body's work is
    done only as far as somebody waits for it."""
    if not driver().simulated:
        yield TRIALS, SECONDS
        return
    sim = Sim()
    before, sim.schedule = sim.schedule, "lazy"
    try:
        yield 1, 0.0
    finally:
        driver().synchronize()
        sim.schedule = before


def writes_late(address: int, value: int, nbytes: int, seconds: float, stream: int | None = None) -> None:
    """From now on a stream, `a_stream()` unless one is named, is busy, and then it writes `nbytes` (at most 1024) of
    `value`."""
    with driver().context():
        _slow().fill(a_stream() if stream is None else stream, address, value, nbytes, seconds)


Read = Callable[[Consumer, Any], bytes]


def in_its_stream(consumer: Consumer, taken: Any) -> bytes:
    """The elements, once the work is done that is in the consumer's own stream, and nothing else.

    By the function that reads it if there is one that can, else by the stream of `__cuda_array_interface__`. The array
    lies in C order.

    Raises:
        NotRun: nothing tells which stream it is.
    """
    why = "nothing tells in which stream it works: name a function that reads it (--read)"
    if consumer.read is not None:
        try:
            return np.array(consumer.read(taken)).tobytes()
        except Exception as error:
            why = f"the function that reads it raised {text_of(error)}"
    interface = getattr(taken, "__cuda_array_interface__", None)
    if interface is None or interface["version"] < 3:
        raise NotRun(why)
    nbytes = int(np.prod(interface["shape"])) * np.dtype(interface["typestr"]).itemsize
    stream = interface.get("stream")
    return driver().read_after(another_stream() if stream is None else stream, interface["data"][0], nbytes)


def passed_on(consumer: Consumer, taken: Any) -> bytes:
    """The elements, as a consumer reads them that names its own stream to `__dlpack__`.

    Raises:
        NotRun: there is no such method, or it refuses the stream, as it may.
    """
    del consumer
    if not hasattr(taken, "__dlpack__"):
        raise NotRun("what it returned has no __dlpack__")
    return read_after_export(taken, another_stream())


def read_after_export(array: Any, stream: int | None) -> bytes:
    """The elements, in the stream that `__dlpack__` is told; in the legacy default stream if that is None.

    Raises:
        NotRun: it refuses the stream, as it may.
    """
    try:
        capsule = array.__dlpack__(stream=stream, max_version=abi.NEWEST)
    except TypeError:
        try:
            capsule = array.__dlpack__(stream=stream)
        except Exception as error:
            raise NotRun(f"__dlpack__(stream={stream!r}) raised {text_of(error)}") from None
    except Exception as error:
        raise NotRun(f"__dlpack__(stream={stream!r}) raised {text_of(error)}") from None
    found = Export(capsule)
    nbytes = int(np.prod(found.read.shape or ())) * found.read.dtype[1] // 8
    return driver().read_after(1 if stream is None else stream, found.address, nbytes)


@cache
def another_stream() -> int:
    """A stream without work."""
    return driver().stream()


def lost(
    consumer: Consumer, offered: Callable[[], Any], read: Read = in_its_stream, stream: int | None = None
) -> str | None:
    """Whether the consumer's array was read before the write that it is ready after: what was read, or None.

    `offered` makes an array of a type with one byte, in C order, that is ready on `stream`, or on `a_stream()`.

    Raises:
        NotRun: nothing reads it in order, or nobody can lose this race here.
    """
    consumer.take(offered())  # what a first use does

    def made() -> Late:
        offer = offered()
        return Late(offer, offer.address, offer.array.nbytes)

    return raced(made, lambda offer: read(consumer, consumer.take(offer)), stream)


class Late(NamedTuple):
    """An array whose bytes are written late."""

    array: Any
    address: int
    nbytes: int


def raced(make: Callable[[], Late], read: Callable[[Any], bytes], stream: int | None = None) -> str | None:
    """What an array was when it was read before a late write in a stream, or None if that came first each time.

    Raises:
        NotRun: nobody can lose this race here.
    """
    with driver().context(), nothing_by_itself() as (trials, seconds):  # most programs have one that is current
        control = 0
        for trial in range(trials):
            (array, address, nbytes), value = make(), 1 + trial
            driver().synchronize()
            writes_late(address, value, nbytes, seconds, stream)
            control += driver().read_after(another_stream(), address, nbytes) != bytes([value]) * nbytes
            driver().synchronize()
            driver().write(address, bytes(nbytes))
            driver().synchronize()  # such a copy may still run when it returns
            writes_late(address, value, nbytes, seconds, stream)
            found = read(array)
            driver().synchronize()
            if found != bytes([value]) * nbytes:
                return f"trial {trial + 1}: it read {found[:8].hex()}, and {value:02x} was written in the stream"
    if not control:
        raise NotRun(f"in {trials} trials nobody who waits for nothing read too early")
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
