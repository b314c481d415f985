"""Arrays of every kind of silence, as they come in by every wrapping, and what is known of their order.

The model is the table "Undeclared data" of docs/streams.md. A source says what its import has to find; `derived` makes
views of a view, which keep its state until a stream is named.
"""

from __future__ import annotations

import asyncio
import ctypes
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cai_dlpack as cd
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import Cai, Dlpack, Legacy, interface
from conformance.tests.streams.race import LEGACY, Track
from conformance.tests.streams.silent_producers import DEAF, PARTNERS, of_a_user, of_library

NBYTES = 24
DEVICES = {"device": (abi.CUDA, 0), "pinned": (abi.CUDA_HOST, 0), "managed": (abi.CUDA_MANAGED, 0), "cpu": (abi.CPU, 0)}
CONTAINERS: dict[str, Callable[[Any], object]] = {
    "a tuple": lambda held: (held,),
    "a list": lambda held: [None, held],
    "a dict": lambda held: {"array": held},
    "a deque": lambda held: deque([held]),
    "a set": lambda held: {held},
    "a tuple of a view": lambda held: (cd.view(held, producer_stream=None),),
}


@dataclass(frozen=True)
class State:
    """What is known of the order of an array: the ready stream, whether it is assumed, whether a warning says so."""

    ready: int | None
    is_undeclared: bool = False
    warns: bool = False


READY = State(None)
ON_DEFAULT = State(LEGACY, is_undeclared=True)
UNKNOWN = State(LEGACY, is_undeclared=True, warns=True)


@dataclass
class Source:
    """An array, made anew for each import, as a capsule is taken once."""

    name: str
    make: Callable[[], Any]
    state: State
    doors: list[str]
    told: dict[str, Any] = field(default_factory=dict)

    def come_in(self, door: str, **more: Any) -> Any:
        """Imports it by one door: a view, or a capsule."""
        array = self.make()  # outlives the call: a destructor in Python runs with no exception set
        found = getattr(cd, door)(array, **{**self.told, **more})
        return found[0] if door == "split_masked" else found


def of_silence(silence: str, version: int) -> State:
    """What a dict without a stream is taken for, of a library with this silence; "" is one that is not in the table."""
    if silence.startswith("undeclared: unknown"):
        return UNKNOWN
    if silence.startswith("undeclared: pending"):
        return ON_DEFAULT
    return READY if version == 3 else State(None, is_undeclared=True)


def declared(stream: int | None, is_empty: bool) -> State | None:
    """The state of an array whose dict names a stream, or which has no elements; else `None`."""
    return State(stream) if stream is not None else READY if is_empty else None


class Sources:
    """Draws sources on one machine."""

    def __init__(self, track: Track) -> None:
        self.track = track
        machine = track.machine
        self.addresses = {
            "device": track.data,
            "pinned": machine.pinned_memory(NBYTES),
            "managed": machine.managed_memory(NBYTES),
        }
        self.host = (ctypes.c_ubyte * NBYTES)()
        self.addresses["cpu"] = ctypes.addressof(self.host)

    def close(self) -> None:
        machine = self.track.machine
        machine.free(self.addresses["managed"])
        code = machine.driver.cuMemFreeHost(ctypes.c_void_p(self.addresses["pinned"]))
        assert code == 0, code

    def draw(self, choose: random.Random) -> Source:
        return choose.choice([self.by_dict, self.by_dict, self.by_owner, self.by_dlpack, self.by_table])(choose)

    def _dict(self, choose: random.Random, memory: str) -> tuple[dict[str, Any], int, int | None, bool]:
        version, size = choose.choice([2, 3]), choose.choice([0, NBYTES, NBYTES, NBYTES])
        stream = choose.choice([None, None, ..., self.track.a, LEGACY])
        data = (self.addresses[memory] if size or choose.random() < 0.5 else 0, False)
        shown = interface(shape=(size,), typestr="|u1", data=data, version=version, stream=stream)
        return shown, version, None if stream is ... else stream, size == 0

    def by_dict(self, choose: random.Random) -> Source:
        """An object of a library, or of none, or of a subclass, with a dict."""
        memory = choose.choice(["device", "pinned", "managed"])
        shown, version, stream, is_empty = self._dict(choose, memory)
        library, silence, kind = self._author(choose)
        state = declared(stream, is_empty) or of_silence(silence, version)
        name = f"{library} {shown} in {memory}"
        return Source(name, lambda: kind(shown), state, ["view", "to_dlpack", "from_cai", "split_masked"])

    def _author(self, choose: random.Random) -> tuple[str, str, Any]:
        row = choose.choice([None, *PARTNERS])
        if row is None:
            return "users.arrays", "", of_library("users.arrays", Cai)
        library = choose.choice(row["modules"])
        return library, row["silence"], choose.choice([of_library, of_a_user])(library, Cai)

    def by_owner(self, choose: random.Random) -> Source:
        """A bare dict, or an object of no library, beside which somebody else is kept alive."""
        shown, version, stream, is_empty = self._dict(choose, choose.choice(["device", "pinned", "managed"]))
        library, silence, kind = self._author(choose)
        theirs = kind(shown)
        form = choose.choice(["itself", "a view", *CONTAINERS])
        held: Any = theirs
        unnamed = of_silence(silence, version)
        if form == "a view":
            tellings: list[dict[str, Any]] = [{}, {"producer_stream": self.track.b}, {"producer_stream": None}]
            told = choose.choice(tellings)
            held = cd.view(theirs, **told)
            own = State(told["producer_stream"]) if told else declared(stream, is_empty) or unnamed
            # The dict names what the view assumes, or nothing.
            unnamed, stream = (
                State(own.ready, own.is_undeclared),
                None if stream == own.ready and not is_empty else stream,
            )
        elif form != "itself":
            held, unnamed = CONTAINERS[form](theirs), UNKNOWN
        state = declared(stream, is_empty) or unnamed
        bare = choose.random() < 0.5
        users = of_library("users.arrays", Cai)
        name = f"{'a dict' if bare else 'an object'} of {shown} with {form} of {library}"
        doors = ["view", "to_dlpack", "from_cai"]
        return Source(name, lambda: shown if bare else users(shown), state, doors, {"owner": held})

    def by_dlpack(self, choose: random.Random) -> Source:
        """`__dlpack__` that honours the stream, ignores it or takes none, and a bare capsule."""
        memory = choose.choice(list(DEVICES))
        made, is_empty = self._tensor(choose, memory)
        form = choose.choice(["honours", "ignores", "takes none", "a capsule"])
        has_streams = memory != "cpu" and not is_empty
        state = UNKNOWN if has_streams else READY
        doors = ["view", "to_dlpack", "from_dlpack"]
        make: Callable[[], Any]
        if form == "honours":
            kind, state = Dlpack, State(LEGACY if memory == "device" else None)
        elif form == "ignores":
            library = choose.choice(choose.choice(DEAF)["modules"])
            kind = choose.choice([of_library, of_a_user])(library, Dlpack)
        else:
            kind = Legacy
        make = lambda: kind(made)  # noqa: E731
        if form == "a capsule":
            make, state = made.capsule, ON_DEFAULT if has_streams else READY
        return Source(f"{form}, {memory}, empty: {is_empty}", make, state, doors)

    def by_table(self, choose: random.Random) -> Source:
        """A table that names a stream, or NULL: of a library that means it, or of one that always does."""
        memory = choose.choice(list(DEVICES))
        made, is_empty = self._tensor(choose, memory)
        producer = exchange.Producer(made)
        producer.stream = choose.choice([0, self.track.a])
        is_deaf = choose.random() < 0.5
        library = choose.choice(choose.choice(DEAF)["modules"]) if is_deaf else "users.arrays"
        table = exchange.capsule(exchange.table(producer))
        made_type = exchange.make_type(table, producer, __module__=library)
        state = State(producer.stream or LEGACY)
        if memory == "cpu":
            state = READY
        elif is_deaf and producer.stream == 0:
            state = READY if is_empty else UNKNOWN
        name = f"the table of {library} with stream {producer.stream}, {memory}, empty: {is_empty}"
        return Source(name, made_type, state, ["view", "to_dlpack"])

    def _tensor(self, choose: random.Random, memory: str) -> tuple[abi.Made, bool]:
        size = choose.choice([0, NBYTES, NBYTES])
        address = self.addresses[memory] if size or choose.random() < 0.5 else 0
        return abi.make(shape=(size,), dtype=(1, 8, 1), device=DEVICES[memory], data=address), size == 0


def derived(choose: random.Random, view: cd.CaiView, track: Track) -> tuple[str, cd.CaiView]:
    """A view of a view, by which no stream of the data's is named."""
    device_type = view.device[0]
    host = device_type == abi.CPU
    ways: dict[str, Callable[[], Any]] = {
        "view": lambda: cd.view(view),
        "view, writable": lambda: cd.view(view, read_only=False),
        "view, dtype": lambda: cd.view(view, dtype="int8"),
        "from_dlpack": lambda: cd.from_dlpack(view),
        "split_masked": lambda: cd.split_masked(view)[0],
        "join": lambda: cd.join([view], on=track.b)[0],
        "synchronize": view.synchronize,
        "wait": lambda: asyncio.run(_waited(view)),
    }
    if not host:
        shown = dict(view.__cuda_array_interface__)
        silent = {**shown, "stream": None, "version": choose.choice([2, 3])}
        ways |= {
            "on": lambda: view.on(choose.choice([track.b, LEGACY])),
            "from_cai": lambda: cd.from_cai(view),
            "its dict": lambda: cd.view(shown, owner=view),
            "a dict without a stream": lambda: cd.view(silent, owner=view),
            "an object without a stream": lambda: cd.view(Cai(silent), owner=view),
        }
    if device_type in (abi.CUDA_HOST, abi.CUDA_MANAGED):
        ways["presented to the device"] = lambda: view.present_as("cuda")
        ways["presented to the host"] = lambda: view.present_as("host")
    name = choose.choice(list(ways))
    return name, ways[name]()


async def _waited(view: cd.CaiView) -> cd.CaiView:
    return await view.wait()
