"""What `explain` says of a view whose producer has moved since the import, and what the calls then do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cai_dlpack as cd
import numba.cuda
import numpy as np
import pytest
import tvm_ffi
from cuda.core.utils import StridedMemoryView

from conformance.tests.simulated.capture import Captures
from conformance.tests.streams.moved_producers import KINDS, Moving
from conformance.tests.streams.race import LEGACY, NBYTES, PER_THREAD, Track
from conformance.tests.streams.test_capture import captures
from conformance.tests.streams.test_consume import on_another_thread

__all__ = ["captures"]

pytestmark = pytest.mark.long

#: The streams that a case names: where the data is ready, another, where the producer has gone, and the default ones.
STREAMS = ("ready", "other", "new", "legacy", "per-thread", "no-sync", "unnamed")
#: Which streams are in a capture: the first has begun it, and the others have been drawn into it.
CAPTURES = ((), ("ready",), ("other",), ("new",), ("other", "new"), ("ready", "new"), ("ready", "other", "new"))


class Moved:
    """A view whose producer has moved, and the streams by name."""

    def __init__(self, track: Track, kind: str, start: str, goes: str) -> None:
        machine = track.machine
        self.machine, self.named = machine, {"ready": track.a, "other": track.b, "new": machine.stream(0)}
        self.named |= {"legacy": LEGACY, "per-thread": PER_THREAD, "no-sync": -1}
        data = track.data if kind == "device" else getattr(machine, f"{kind}_memory")(NBYTES)
        moving = Moving.of(data, KINDS[kind], self.named[start])
        self.view = cd.view(moving.array)
        moving.go(self.named[goes])

    def stream(self, name: str) -> int | None:
        return self.named.get(name)

    def begin(self, captures: Captures, captured: tuple[str, ...]) -> None:
        for name in captured[:1]:
            captures.begin(self.named[name])
        for name in captured[1:]:
            captures.fork(self.named[captured[0]], self.named[name])

    def done(self, call: Callable[[], object]) -> tuple[tuple[str, ...], str | None]:
        """Returns the calls of the driver that make the order, and how it is refused."""
        self.machine.clear()
        refused = None
        try:
            call()
        except BufferError as error:
            refused = str(error)
        return tuple(name for name, _ in self.machine.order()), refused

    def told(self, **named: Any) -> cd.Explanation:
        """Returns what is explained, which must order nothing."""
        self.machine.clear()
        found = cd.explain(self.view, **named)
        assert not self.machine.order()
        return found


def named(moved: Moved, name: str) -> dict[str, Any]:
    return {} if name == "unnamed" else {"stream": moved.stream(name)}


@pytest.mark.parametrize("captured", CAPTURES, ids="-".join)
@pytest.mark.parametrize("policy", ["event", "host", "none"])
@pytest.mark.parametrize("goes", ["new", "legacy", "other"])
@pytest.mark.parametrize("start", ["ready", "legacy"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_explained_is_what_is_done(
    kind: str, start: str, goes: str, policy: Any, captured: tuple[str, ...], track: Track, captures: Captures
) -> None:
    moved = Moved(track, kind, start, goes)
    moved.begin(captures, captured)
    with cd.policy(sync=policy):
        for name in STREAMS:
            told = moved.told(**named(moved, name))
            export = partial(moved.view.__dlpack__, stream=moved.stream(name), max_version=(1, 3))
            calls, refused = moved.done(export)
            # Without a consumer the import is explained.
            of_import = moved.done(partial(cd.view, moved.view))[1] if name == "unnamed" else refused
            assert told.refused == of_import, name
            assert refused or told.driver_calls == calls or (told.driver_calls is None and name == "unnamed"), name
    captures.close()


@pytest.mark.parametrize("captured", CAPTURES, ids="-".join)
@pytest.mark.parametrize("policy", ["event", "host", "none"])
@pytest.mark.parametrize("goes", ["new", "legacy", "other"])
@pytest.mark.parametrize("start", ["ready", "legacy"])
def test_in_a_block_of_use_stream_too(
    start: str, goes: str, policy: Any, captured: tuple[str, ...], track: Track, captures: Captures
) -> None:
    moved = Moved(track, "device", start, goes)
    moved.begin(captures, captured)
    for work in ("ready", "other", "new"):
        with cd.policy(sync=policy), cd.use_stream(moved.named[work]):
            told = moved.told()
            calls, refused = moved.done(partial(moved.view.__dlpack__, max_version=(1, 3)))
        assert refused or told.driver_calls == calls, (work, str(told))
    captures.close()


@pytest.mark.parametrize("captured", CAPTURES, ids="-".join)
@pytest.mark.parametrize("policy", ["event", "host", "none"])
@pytest.mark.parametrize("word", ["unnamed", "ready", "other", "new"])
def test_where_the_caller_says_that_the_data_is_ready_no_producer_is_asked(
    word: str, policy: Any, captured: tuple[str, ...], track: Track, captures: Captures
) -> None:
    """`producer_stream=` is what the caller says, None that nothing is pending; it is derived without a wait."""
    moved = Moved(track, "device", "ready", "new")
    said = moved.stream(word)
    moved.begin(captures, captured)
    with cd.policy(sync=policy):
        assert moved.done(partial(cd.view, moved.view, producer_stream=said)) == ((), None)
        assert moved.told(producer_stream=said).refused is None
        derived = cd.view(moved.view, producer_stream=said)
        for name in STREAMS[:-1]:
            told, stream = moved.told(producer_stream=said, **named(moved, name)), moved.stream(name)
            through = partial(cd.to_dlpack, moved.view, stream=stream, producer_stream=said)
            for call in (partial(derived.__dlpack__, stream=stream, max_version=(1, 3)), through):
                calls, refused = moved.done(call)
                assert told.refused == refused, name
                assert refused or told.driver_calls == calls, name
    captures.close()


@pytest.mark.parametrize("policy", ["event", "host", "none"])
def test_a_consumer_that_asks_for_no_order_gets_none(policy: Any, track: Track, captures: Captures) -> None:
    moved = Moved(track, "device", "ready", "new")
    with cd.policy(sync=policy):
        for export in (moved.view.__dlpack__, partial(cd.to_dlpack, moved.view)):
            assert moved.done(partial(export, stream=-1)) == ((), None)


@pytest.mark.parametrize("policy", ["event", "host", "none"])
@pytest.mark.parametrize("goes", ["new", "legacy", "per-thread"])
def test_what_is_ready_on_another_thread_s_own_stream(goes: str, policy: Any, track: Track) -> None:
    """No stream of this thread's waits in that one's place."""
    moved = Moved(track, "device", "per-thread", goes)

    def compare() -> None:
        with cd.policy(sync=policy):
            told = moved.told()
            calls, refused = moved.done(partial(cd.view, moved.view))
        assert (calls, told.refused) == ((), refused)
        assert (refused is None) == (policy == "none")

    assert on_another_thread(track.machine, compare) is None


#: The names in the lines that `explain` tells of each library, and the memory that it takes.
NAMESPACE = {"np": np, "StridedMemoryView": StridedMemoryView, "tvm_ffi": tvm_ffi, "numba": numba}
TAKES = {"numpy": ("pinned", "managed"), "cuda.core": tuple(KINDS), "tvm_ffi": tuple(KINDS), "numba": tuple(KINDS)}
#: Beside a capture the driver refuses the wait of Numba's own, wherever the producer works.
LINES = [
    pytest.param(to, kind, captured, id="-".join([to, kind, *captured]))
    for to, kinds in TAKES.items()
    for kind in kinds
    for captured in (CAPTURES[:1] if to == "numba" else CAPTURES)
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("policy", ["event", "host", "none"])
@pytest.mark.parametrize("goes", ["new", "legacy", "other"])
@pytest.mark.parametrize("start", ["ready", "legacy"])
@pytest.mark.parametrize(("to", "kind", "captured"), LINES)
def test_what_is_explained_of_a_library_is_what_its_line_does(
    to: str, kind: str, captured: tuple[str, ...], start: str, goes: str, policy: Any, track: Track, captures: Captures
) -> None:
    moved = Moved(track, kind, start, goes)
    moved.begin(captures, captured)
    with cd.policy(sync=policy):
        for name in STREAMS[:-1] if to == "cuda.core" else ("unnamed",):
            told = moved.told(to=to, **named(moved, name))
            names = NAMESPACE | {"v": moved.view, "s": moved.stream(name)}
            calls, refused = moved.done(partial(eval, str(told.call), names))
            assert (told.refused is None) == (refused is None), (name, refused)
            assert told.driver_calls == calls or refused, (name, str(told))
    captures.close()
