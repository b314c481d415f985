"""Views that go from one extension module's copy of the library to another's: their dict names one stream, of two."""

from __future__ import annotations

import gc
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cai_dlpack as cd
import cai_example
import cai_example_peer as peer
import pytest
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import Cai, Dlpack, interface
from conformance.tests.expectations.refusal import refuse
from conformance.tests.ownership.waiting import until
from conformance.tests.simulated.machine import one_event
from conformance.tests.streams.moved_producers import KINDS, Moving
from conformance.tests.streams.race import LEGACY, NBYTES, PER_THREAD, Track
from conformance.tests.streams.test_consume import on_another_thread

BEFORE, WRITTEN, NEXT = 0xEE, 0x11, 0x22

#: From copy to copy, and by which function the last one is imported.
PASSES: dict[str, Callable[[cd.CaiView], Any]] = {
    "here to there": peer.view_of,
    "and back": lambda view: cd.view(peer.view_of(view)),
    "and back by from_cai": lambda view: cd.from_cai(peer.view_of(view)),
    "and back, with a shape": lambda view: cd.view(peer.view_of(view), shape=(6,)),
    "and back, with an owner": lambda view: cd.view(peer.view_of(view), owner=object()),
    "there and there": lambda view: peer.view_of(peer.view_of(view)),
    "and on": lambda view: peer.view_of(cd.view(peer.view_of(view))),
    "and back by split_masked": lambda view: cd.split_masked(peer.view_of(view))[0],
}
#: Those of any type, and of the view's own shape.
BY_DLPACK = [by for by in PASSES if "from_cai" not in by and "shape" not in by]
#: The view itself beside some of them.
HANDED: dict[str, Callable[[cd.CaiView], Any]] = {
    "the view itself": lambda view: view,
    **{by: PASSES[by] for by in ("here to there", "and back")},
}
#: Where the data is ready when the view is passed.
STATES: dict[str, Callable[[cd.CaiView, Track], cd.CaiView]] = {
    "as it was": lambda view, _: view,
    "on": lambda view, track: view.on(track.b),
    "synchronize": lambda view, _: view.synchronize(),
    "join": lambda view, track: cd.join([view], on=track.b)[0],
    "for the current device": lambda view, _: view.present_as("cuda"),
}
#: Those of which the data is ready where the producer works.
FOLLOWED = ("as it was", "for the current device")
#: Where the producer works: of the import, and later.
MOVES = [("a", "a"), ("a", "new"), (LEGACY, "new"), ("a", LEGACY), (PER_THREAD, PER_THREAD)]


@pytest.fixture
def shared(request: pytest.FixtureRequest, lazily: Track) -> Iterator[tuple[Track, str]]:
    """The race on memory of a kind, and the kind."""
    before = lazily.data
    if request.param != "device":
        lazily.data = getattr(lazily.machine, f"{request.param}_memory")(NBYTES)
    lazily.machine.write(lazily.data, bytes([BEFORE]) * NBYTES)
    yield lazily, request.param
    lazily.machine.finish()
    lazily.data = before


@pytest.fixture
def new(track: Track) -> Iterator[int]:
    """The stream to which a producer moves."""
    stream = track.machine.stream(0)
    yield stream
    track.machine.finish()
    track.machine.destroy_stream(stream)


def read_before_the_next_write(track: Track, working: int) -> int:
    """Returns what a consumer has read on `b` if the producer writes anew where it works."""
    track.write(working, NEXT)
    track.wait(working)
    track.wait(track.b)
    return track.seen()


@pytest.mark.parametrize("move", MOVES, ids=str)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    "by", [by for by in PASSES if by not in ("there and there", "and back, with a shape", "and back, with an owner")]
)
@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("shared", KINDS, indirect=True)
def test_both_edges_are_the_producer_s(
    is_before: bool, by: str, state: str, move: Any, shared: tuple[Track, str], new: int
) -> None:
    """It moves and writes before the view is passed, or after."""
    track, kind = shared
    first, later = ({"a": track.a, "new": new}.get(stream, stream) for stream in move)
    moving = Moving.of(track.data, KINDS[kind], first)
    view = STATES[state](cd.view(moving.array), track)
    passed = None if is_before else PASSES[by](view)
    moving.go(later)
    # What is ready elsewhere is the data of before.
    wanted = WRITTEN if state in FOLLOWED else BEFORE
    if wanted == WRITTEN:
        track.write(later, WRITTEN)
    with (passed or PASSES[by](view)).consume(track.b, strict=True) as lent:
        track.read(track.b)
        edge = lent.return_edge
    assert (read_before_the_next_write(track, later), edge) == (wanted, "event")


@pytest.mark.parametrize("move", MOVES, ids=str)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("by", HANDED)
def test_an_extension_reads_between_two_writes(by: str, state: str, move: Any, lazily: Track, new: int) -> None:
    track = lazily
    track.machine.write(track.data, bytes([BEFORE]) * NBYTES)
    first, later = ({"a": track.a, "new": new}.get(stream, stream) for stream in move)
    moving = Moving.of(track.data, KINDS["device"], first)
    view = STATES[state](cd.view(moving.array, shape=(6,)), track)
    passed = HANDED[by](view)
    moving.go(later)
    wanted = WRITTEN if state in FOLLOWED else BEFORE
    if wanted == WRITTEN:
        track.write(later, WRITTEN)
    stacked = cai_example.stack(passed, passed)
    track.write(later, NEXT)
    track.wait(later)
    stacked.synchronize()
    assert track.control.peek(stacked.ptr, 2 * NBYTES) == bytes([wanted]) * 2 * NBYTES


@pytest.mark.parametrize("stream", ["a", LEGACY, PER_THREAD])
@pytest.mark.parametrize("by", PASSES)
@pytest.mark.parametrize("shared", KINDS, indirect=True)
def test_a_producer_that_is_named_stays_named(by: str, stream: Any, shared: tuple[Track, str]) -> None:
    """By a dict or by the caller: no table is asked."""
    track, _ = shared
    working = {"a": track.a}.get(stream, stream)
    for view in (track.view_of_any(working), cd.view(track.view_of_any(track.b), producer_stream=working)):
        passed = PASSES[by](view.on(track.b))
        assert (passed.stream, passed.producer_stream) == (track.b, working)
        track.machine.write(track.data, bytes([WRITTEN]) * NBYTES)
        with passed.consume(track.b, strict=True) as lent:
            track.read(track.b)
            edge = lent.return_edge
        assert (read_before_the_next_write(track, working), edge) == (WRITTEN, "event")


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("stream", [LEGACY, PER_THREAD])
@pytest.mark.parametrize("by", PASSES)
@pytest.mark.parametrize("shared", ["pinned", "managed"], indirect=True)
def test_a_default_stream_stays_that_of_its_context(
    by: str, stream: int, current: int, shared: tuple[Track, str]
) -> None:
    """The memory is named the other device's, and goes on from whatever context is current."""
    track, _ = shared
    # A device whose default stream is used has a context.
    track.machine.set_current(1)
    track.machine.set_current(0)
    there = interface(data=(track.data, False), stream=stream)
    view = cd.view(there, owner=object(), device_id=1).on(track.b)
    track.machine.set_current(current)
    passed = PASSES[by](view)
    track.machine.write(track.data, bytes([WRITTEN]) * NBYTES)
    with passed.consume(track.b, strict=True) as lent:
        track.machine.set_current(0)
        track.read(track.b)
        edge = lent.return_edge
        track.machine.set_current(current)
    track.machine.set_current(1)
    track.write(stream, NEXT)
    track.wait(stream)
    track.machine.set_current(0)
    track.wait(track.b)
    assert (track.seen(), edge) == (WRITTEN, "event")


@pytest.mark.parametrize("by", PASSES)
@pytest.mark.parametrize("stream", ["a", LEGACY, PER_THREAD])
def test_one_stream_stays_one(stream: Any, by: str, track: Track) -> None:
    """Ready where the producer works: a consumer there makes nothing wait."""
    working = {"a": track.a}.get(stream, stream)
    for view in (track.view(working), cd.view(Moving.of(track.data, KINDS["device"], working).array)):
        passed = PASSES[by](view)
        track.machine.clear()
        with passed.consume(working) as lent:
            assert lent.return_edge == "same-stream"
        assert not track.machine.order()
        with passed.consume(track.b):
            pass
        assert track.machine.order() == [*one_event(working, track.b), *one_event(track.b, working)]


@pytest.mark.parametrize("by", PASSES)
def test_an_unknown_producer_stays_unknown(by: str, track: Track) -> None:
    view = cd.from_dlpack(Dlpack(abi.make(device=(abi.CUDA, 0), data=track.data)), stream=track.a)
    for ready in (view, view.on(track.b), view.synchronize()):
        passed = PASSES[by](ready)
        assert (passed.stream, passed.producer_stream) == (ready.stream, "unknown")
        assert refuse(partial(passed.consume, track.b, strict=True), BufferError).rule == "stream-unknown"
        with passed.consume(track.b) as lent:
            assert lent.return_edge == "unknown"


@pytest.mark.parametrize("by", PASSES)
def test_undeclared_order_stays_undeclared(by: str, track: Track) -> None:
    """Of a capsule, whatever stream is asked for later."""
    view = cd.view(abi.make(device=(abi.CUDA, 0), data=track.data).capsule())
    for ready in (view, view.on(track.b)):
        passed = PASSES[by](ready)
        assert refuse(partial(cd.view, passed, strict=True), BufferError).rule == "stream-undeclared"
        assert refuse(partial(cd.from_cai, passed, strict=True), BufferError).rule == "stream-undeclared"
        assert cd.view(passed, strict=True, producer_stream=track.a).producer_stream == track.a


@pytest.mark.parametrize("current", [0, 1, None])
@pytest.mark.parametrize("stream", [LEGACY, PER_THREAD])
@pytest.mark.parametrize("named", [None, "cuda"])
@pytest.mark.parametrize("by", BY_DLPACK)
@pytest.mark.parametrize("shared", ["pinned", "managed"], indirect=True)
def test_data_that_is_ready_on_a_context_s_default_stream_is_waited_for(
    by: str, named: str | None, stream: int, current: int | None, shared: tuple[Track, str]
) -> None:
    """By the name of its device too; the importer finds memory that every device reaches."""
    track, kind = shared
    for home in (0, 1):
        track.machine.set_current(home)
        track.machine.write(track.data, bytes([BEFORE]) * NBYTES)
        view = cd.view(Moving.of(track.data, KINDS[kind], stream).array)
        if named:
            view = cd.view(view, device_id=home)
        track.write(stream, WRITTEN)
        track.machine.set_current(current) if current is not None else track.machine.enter(0)
        passed = PASSES[by](view)
        track.machine.set_current(0)
        with passed.consume(track.b, strict=True) as lent:
            track.read(track.b)
            edge = lent.return_edge
            track.machine.set_current(home)
        track.write(stream, NEXT)
        track.wait(stream)
        track.machine.set_current(0)
        track.wait(track.b)
        assert (track.seen(), edge) == (WRITTEN, "event"), home


@pytest.mark.parametrize("stream", [LEGACY, PER_THREAD])
@pytest.mark.parametrize("shared", ["pinned", "managed"], indirect=True)
def test_a_dict_names_another_context_s_default_stream_to_no_thread(stream: int, shared: tuple[Track, str]) -> None:
    """On a thread without a context its number means the memory's."""
    track, kind = shared
    for home, rule in ((0, None), (1, "stream-context")):
        track.machine.set_current(home)
        view = cd.view(Moving.of(track.data, KINDS[kind], stream).array)
        track.machine.enter(0)
        try:
            if rule is None:
                assert view.to_cai()["stream"] == stream
            else:
                assert refuse(view.to_cai, BufferError).rule == rule
        finally:
            track.machine.set_current(0)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("by", BY_DLPACK)
def test_a_type_that_no_dict_describes_is_passed_with_its_streams(by: str, state: str, lazily: Track, new: int) -> None:
    """By `__dlpack__`: the producer moves before the view is passed, or after."""
    track = lazily
    for is_before in (True, False):
        track.machine.write(track.data, bytes([BEFORE]) * NBYTES)
        producer = exchange.Producer(abi.make((12,), dtype=(abi.BFLOAT, 16, 1), device=(abi.CUDA, 0), data=track.data))
        producer.stream = track.a
        view = STATES[state](cd.view(exchange.make_type(exchange.capsule(exchange.table(producer)), producer)()), track)
        by_name = PASSES[by]
        passed = None if is_before else by_name(view)
        producer.stream = new
        wanted = WRITTEN if state in FOLLOWED else BEFORE
        if wanted == WRITTEN:
            track.write(new, WRITTEN)
        passed = passed or by_name(view)
        assert passed.stream == view.stream
        with passed.consume(track.b, strict=True) as lent:
            track.read(track.b)
            edge = lent.return_edge
        assert (read_before_the_next_write(track, new), edge) == (wanted, "event")


@pytest.mark.parametrize("dtype", [(abi.FLOAT, 32, 1), (abi.BFLOAT, 16, 1)], ids=["a dict", "no dict"])
@pytest.mark.parametrize("policy", ["event", "host", "none"])
@pytest.mark.parametrize("by", BY_DLPACK)
def test_explain_makes_nothing_wait(by: str, policy: Any, dtype: Any, track: Track, new: int) -> None:
    producer = exchange.Producer(abi.make((6,), dtype=dtype, device=(abi.CUDA, 0), data=track.data))
    producer.stream = track.a
    view = cd.view(exchange.make_type(exchange.capsule(exchange.table(producer)), producer)())
    passed = PASSES[by](view)
    producer.stream = new
    track.machine.clear()
    with cd.policy(sync=policy):
        told = cd.explain(passed, stream=track.b)
        assert not track.machine.order()
        assert told.refused is None
        of_view = cd.explain(view, stream=track.b)
    assert (told.ready, told.order) == (of_view.ready, of_view.order)


#: Copies of an array, as one of this package's or an extension's.
TAKES: dict[str, Callable[[Any, int], Any]] = {
    "stack": lambda array, _: cai_example.stack(array, array),
    "copy": lambda array, stream: cd.from_dlpack(array, copy=True, stream=stream),
}


@pytest.mark.parametrize("take", TAKES)
@pytest.mark.parametrize("by", HANDED)
def test_memory_of_an_unknown_producer_is_kept_until_it_is_read(take: str, by: str, track: Track) -> None:
    """Its deleter gives the memory away at once."""
    track.control.schedule = "lazy"
    track.machine.write(track.data, bytes([WRITTEN]) * NBYTES)
    made = abi.make((6,), device=(abi.CUDA, 0), data=track.data)
    made.on_release = lambda: track.machine.write(track.data, bytes([NEXT]) * NBYTES)
    passed = HANDED[by](cd.view(Dlpack(made)))
    found = TAKES[take](passed, track.b)
    del passed
    gc.collect()
    time.sleep(0.02)
    found.synchronize()
    assert track.control.peek(found.ptr, NBYTES) == bytes([WRITTEN]) * NBYTES
    assert until(lambda: made.released == 1)


@pytest.mark.parametrize("by", [name for name in PASSES if name != "and back by from_cai"])
def test_who_names_a_stream_is_believed(by: str, track: Track) -> None:
    view = cd.view(Moving.of(track.data, KINDS["device"], track.a).array).on(track.b)
    found = cd.view(peer.view_of(view), producer_stream=LEGACY)
    assert (found.stream, found.producer_stream) == (LEGACY, LEGACY)
    assert PASSES[by](found).producer_stream == LEGACY


@pytest.mark.parametrize("by", PASSES)
def test_another_thread_s_default_stream_is_refused(by: str, track: Track) -> None:
    """As a loan of the view is, where it is not passed on."""
    made: list[cd.CaiView] = []

    def make() -> None:
        view = cd.view(abi.make(device=(abi.CUDA, 0), data=track.data).capsule(), producer_stream=PER_THREAD)
        made.append(view.on(track.b))

    assert on_another_thread(track.machine, make) is None
    track.machine.clear()
    found = refuse(lambda: PASSES[by](made[0]), BufferError)
    assert (found.rule, found.field) == ("stream-thread", "producer_stream")
    assert refuse(lambda: made[0].consume(track.b).__enter__(), BufferError).rule == "stream-thread"
    assert not track.machine.order()
    # What the hint says.
    assert PASSES[by](cd.view(made[0], producer_stream=track.b)).producer_stream == track.b


@pytest.mark.filterwarnings("ignore::cai_dlpack.StreamWarning")
@pytest.mark.parametrize("told", [None, 1, b"", (), "a str", "a capsule of another", "nothing", "raises"], ids=str)
def test_what_is_no_view_is_read_as_any_object(told: Any, track: Track) -> None:
    """The names of the attributes are no secret; another version of the library may pass its streams otherwise."""

    class Looks(Cai):
        _is_cai_view = True

        def __getattr__(self, name: str) -> Any:
            if name != "_streams" or told == "nothing":
                raise AttributeError(name)
            if told == "raises":
                raise ZeroDivisionError
            return abi.make().capsule() if told == "a capsule of another" else told

    looks = Looks(interface(data=(track.data, False), stream=track.a))
    bare = interface(data=(track.data, False), stream=None)
    if told == "raises":
        for array, owner in ((looks, None), (bare, looks)):
            with pytest.raises(ZeroDivisionError):
                cd.view(array, owner=owner)
        return
    for take in (cd.view, cd.from_cai):
        found = take(bare, owner=looks)
        assert (found.stream, found.producer_stream) == (LEGACY, "unknown")
        assert refuse(partial(take, bare, owner=looks, strict=True), BufferError).rule == "stream-undeclared"
    for take in (cd.view, cd.from_cai, peer.view_of):
        found = take(looks)
        assert (found.stream, found.producer_stream) == (track.a, track.a)


def outcome(passes: Callable[[], Any]) -> str:
    """Returns the producer's stream that a view tells, or why there is none."""
    try:
        return str(passes().producer_stream)
    except (cd.DriverError, RuntimeError) as refused:
        return str(refused)


@pytest.mark.parametrize("by", PASSES)
@pytest.mark.parametrize("stream", [LEGACY, "a"])
@pytest.mark.parametrize("shared", KINDS, indirect=True)
def test_each_call_of_the_driver_refused(stream: Any, by: str, shared: tuple[Track, str]) -> None:
    """A refused import leaves nothing, and the next one is right."""
    track, kind = shared
    working = {"a": track.a}.get(stream, stream)
    view = cd.view(Moving.of(track.data, KINDS[kind], working).array).on(track.b)
    PASSES[by](view)
    track.machine.clear()
    PASSES[by](view)
    live = cd.stats()["live"]
    for name in sorted(set(track.machine.names())):
        for nth in itertools.count(1):
            track.control.fault(name, 999, nth, by="this")
            said = outcome(partial(PASSES[by], view))
            assert cd.stats()["live"] == live
            assert said == str(working) or re.search(r"\b999\b", said)
            if track.control.pending_faults():
                break
        track.control.clear_faults()


def test_views_are_passed_by_many_threads_at_once(track: Track) -> None:
    view = cd.view(Moving.of(track.data, KINDS["device"], track.a).array).on(track.b)
    found: list[set[Any]] = [set() for _ in range(4)]

    def run(mine: set[Any]) -> None:
        for _, by in itertools.product(range(50), PASSES.values()):
            passed = by(view)
            mine.add((passed.stream, passed.producer_stream))

    threads = [threading.Thread(target=run, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{(track.b, track.a)}] * 4


@pytest.mark.parametrize("by", [by for by in PASSES if "from_cai" not in by])
@pytest.mark.parametrize("shared", ["pinned", "managed"], indirect=True)
def test_a_name_that_the_other_copy_does_not_use(by: str, shared: tuple[Track, str]) -> None:
    """The dict of memory that is presented as the device's names memory that every context reaches."""
    track, kind = shared
    made = abi.make((6,), device=KINDS[kind], data=track.data)
    view = cd.view(made.capsule(), producer_stream=LEGACY).present_as("cuda")
    track.write(LEGACY, WRITTEN)
    track.machine.set_current(1)
    passed = PASSES[by](view)
    with passed.consume(track.b, strict=True) as lent:
        track.machine.set_current(0)
        track.read(track.b)
        edge = lent.return_edge
        track.machine.set_current(1)
    track.machine.set_current(0)
    assert (read_before_the_next_write(track, LEGACY), edge) == (WRITTEN, "event")


@pytest.mark.parametrize("by", PASSES)
def test_a_producer_is_asked_by_the_name_that_it_uses(by: str, track: Track) -> None:
    """It calls managed memory a device's, which the other copy does not."""
    producer = exchange.Producer(abi.make((6,), device=(abi.CUDA, 0), data=track.machine.managed_memory(NBYTES)))
    producer.stream = track.a
    passed = PASSES[by](cd.view(exchange.make_type(exchange.capsule(exchange.table(producer)), producer)()))
    producer.asked.clear()
    assert passed.producer_stream == track.a
    assert set(producer.asked) == {(abi.CUDA, 0)}
