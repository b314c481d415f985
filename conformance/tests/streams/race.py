"""A race with two edges: a producer writes, a consumer copies, the producer writes again.

The smallest program in which a missing wait shows. `Track` has the memory and the streams; `Pair` is
a combination of ready stream, request and policy, and says what the library owes it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import cai_dlpack as cd

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.simulated.machine import Machine, one_event

NBYTES = 24  # 2 x 3 float32, as in `producers.interface`
LEGACY, PER_THREAD = 1, 2

# A and B are streams with handles; neither orders itself with the default streams.
Name = Literal["none", "legacy", "per-thread", "A", "B", "no-sync", "omitted"]
Policy = Literal["event", "host", "none"]
Calls = list[tuple[str, int]]


class Track:
    """Two streams and the memory of the race, on one device. `close` gives everything back."""

    def __init__(self, machine: Machine, ordinal: int = 0) -> None:
        self.machine = machine
        self.control = machine.control
        self.a, self.b = machine.stream(ordinal), machine.stream(ordinal)
        self.data = machine.device_memory(NBYTES, ordinal)
        self.copy = machine.device_memory(NBYTES, ordinal)
        machine.set_current(ordinal)

    def close(self) -> None:
        self.machine.finish()
        for pointer in (self.data, self.copy):
            self.machine.free(pointer)
        for stream in (self.a, self.b):
            self.machine.destroy_stream(stream)
        self.machine.set_current(0)

    def handle(self, name: Name) -> int:
        """The stream on which a side works that names its stream so."""
        return {"none": self.a, "A": self.a, "B": self.b, "no-sync": self.b, "per-thread": PER_THREAD}.get(name, LEGACY)

    # --- what the two sides do ---

    def write(self, stream: int, value: int) -> None:
        self.control.store(stream, self.data, bytes([value]) * NBYTES)

    def busy(self, stream: int) -> None:
        """Work before the write, so that it is not done at once."""
        for _ in range(3):
            self._do("cuMemsetD8Async", ctypes.c_uint64(self.data), 0, ctypes.c_size_t(NBYTES), ctypes.c_void_p(stream))

    def read(self, stream: int) -> None:
        size, source, target = ctypes.c_size_t(NBYTES), ctypes.c_uint64(self.data), ctypes.c_uint64(self.copy)
        self._do("cuMemcpyAsync", target, source, size, ctypes.c_void_p(stream))

    def wait(self, stream: int) -> None:
        self._do("cuStreamSynchronize", ctypes.c_void_p(stream))

    def seen(self) -> int:
        """Returns the value that the consumer has copied, or -1 for memory that was not written."""
        found = self.control.peek(self.copy, NBYTES)
        return found[0] if found == found[:1] * NBYTES and found[0] != 0xA5 else -1

    def _do(self, name: str, *arguments: Any) -> None:
        code = getattr(self.machine.driver, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    def producer(self, stream: int | None) -> Cai:
        """An array that is ready on this stream."""
        return Cai(interface(data=(self.data, False), stream=stream))

    def view(self, stream: int | None) -> cd.CaiView:
        return cd.view(self.producer(stream), device_id=0)

    def view_of_any(self, stream: int | None) -> cd.CaiView:
        """A view of which the driver is asked where the memory is."""
        return cd.view(self.producer(stream))


@dataclass(frozen=True)
class Pair:
    """Holds the stream on which the data is ready, the requested stream, and the policy."""

    ready: Name
    request: Name
    policy: Policy = "event"

    def __str__(self) -> str:
        return f"{self.ready}-to-{self.request}-by-{self.policy}"

    @property
    def is_same(self) -> bool:
        names = {"omitted": "legacy", "no-sync": "B"}
        return names.get(self.request, self.request) == self.ready

    @property
    def needs_order(self) -> bool:
        """Returns whether a wait is needed, and the policy allows it."""
        return self.ready != "none" and self.request != "no-sync" and not self.is_same and self.policy != "none"

    @property
    def is_ordered_by_the_driver(self) -> bool:
        """Returns whether no call is needed: the two default streams wait for one another."""
        defaults = {"legacy", "per-thread", "omitted"}
        return self.ready == "none" or self.is_same or {self.ready, self.request} <= defaults

    def calls(self, track: Track) -> Calls:
        """The waits that the forward edge is made of."""
        if not self.needs_order:
            return []
        ready = track.handle(self.ready)
        if self.policy == "host":
            return [("cuStreamSynchronize", ready)]
        return one_event(ready, track.handle(self.request))

    def stream(self, track: Track) -> int | None:
        """The `stream` of the producer's interface."""
        return None if self.ready == "none" else track.handle(self.ready)

    def argument(self, track: Track) -> int | None:
        """The `stream` argument of `__dlpack__`."""
        return {"omitted": None, "no-sync": -1}.get(self.request, track.handle(self.request))


# How a view is made ready for a consumer: each answers what has to stay alive while it is used.
Face = Callable[[Track, Pair], Any]


def by_dlpack(track: Track, pair: Pair) -> Any:
    return track.view(pair.stream(track)).__dlpack__(stream=pair.argument(track), max_version=(1, 3))


def by_to_dlpack(track: Track, pair: Pair) -> Any:
    return cd.to_dlpack(track.producer(pair.stream(track)), stream=pair.argument(track), device_id=0)


def by_on(track: Track, pair: Pair) -> Any:
    return track.view(pair.stream(track)).on(track.handle(pair.request))


def by_join(track: Track, pair: Pair) -> Any:
    return cd.join([track.view(pair.stream(track))], on=track.handle(pair.request))


def forward(track: Track, pair: Pair, face: Face, value: int = 1) -> Calls:
    """Write, order, copy. The calls that made the order; `track.seen()` is the outcome."""
    writer, reader = track.handle(pair.ready), track.handle(pair.request)
    track.write(writer, value)
    if pair.ready == "none":  # the producer says that there is nothing to wait for, and it is true
        track.wait(writer)
    track.machine.clear_own()
    with cd.policy(sync=pair.policy):
        ready = face(track, pair)
    made = track.machine.order() if pair.needs_order else track.machine.calls()
    track.read(reader)
    track.wait(reader)
    track.wait(writer)
    del ready
    return made


def there_and_back(track: Track, pair: Pair, value: int = 1) -> Calls:
    """Write, lend, copy, end of the loan, write again: the copy must be of the first write."""
    writer, reader = track.handle(pair.ready), track.handle(pair.request)
    track.write(writer, value)
    view = track.view(track.handle(pair.ready))
    track.machine.clear()
    with cd.policy(sync=pair.policy), view.consume(reader):
        entry = track.machine.order()
        track.read(reader)
        track.machine.clear()
    made = entry + track.machine.order()
    track.write(writer, value + 1)
    track.wait(reader)
    track.wait(writer)
    return made


@contextmanager
def pretended(track: Track, name: str, nth: int = 1) -> Iterator[None]:
    """Makes the `nth` call of a function return success without doing anything."""
    track.control.fault(name, 0, nth)
    yield
    assert track.control.pending_faults() == 0, f"{name} was not called {nth} times"
