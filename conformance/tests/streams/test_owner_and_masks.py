"""Views as `owner=` and as masks: whose streams an array has then, and when a producer that has moved is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cai_dlpack as cd
import cai_example_peer as peer
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, Dlpack, interface
from conformance.tests.simulated.capture import Captures
from conformance.tests.simulated.machine import one_event
from conformance.tests.streams.moved_producers import KINDS, Moving
from conformance.tests.streams.race import LEGACY, NBYTES, PER_THREAD, Track
from conformance.tests.streams.test_another_copy import STATES, new, read_before_the_next_write
from conformance.tests.streams.test_capture import captures
from conformance.tests.streams.test_consume import on_another_thread

__all__ = ["captures", "new"]

WRITTEN, NEXT = 0x11, 0x22


def refuse(rule: str, call: Callable[[], object]) -> None:
    with pytest.raises(cd.Refusal) as refused:
        call()
    assert refused.value.rule == rule


@pytest.fixture
def beside(track: Track) -> Iterator[int]:
    """Memory of another array."""
    made = track.machine.device_memory(NBYTES)
    yield made
    track.machine.finish()
    track.machine.free(made)


def of_bytes(data: int, stream: int) -> Moving:
    """A library with an array of bytes, as masks are."""
    return Moving.of(data, KINDS["device"], stream, shape=(24,), dtype=(abi.UINT, 8, 1))


def moved(data: int, ready: int, goes: int, of: Callable[..., Moving] | None = None) -> cd.CaiView:
    """A view whose producer works elsewhere by now."""
    moving = of(data, ready) if of else Moving.of(data, KINDS["device"], ready)
    view = cd.view(moving.array)
    moving.go(goes)
    return view


@pytest.mark.parametrize("of", [lambda view: view, peer.view_of], ids=["ours", "another copy's"])
def test_a_view_tells_its_streams_itself_whatever_view_is_its_owner(
    of: Callable[[cd.CaiView], Any], track: Track
) -> None:
    """An owner of undeclared order makes none of it, by a strict import."""
    undeclared = cd.view(Cai(interface(version=2, stream=..., data=(track.data, False))), device_id=0)
    for owner in (track.view(track.b), undeclared):
        for stream in (None, track.a):
            taken = cd.from_cai(of(track.view(stream)), owner=owner, strict=True)
            assert (taken.stream, taken.producer_stream) == (stream, stream)


OWNERS: dict[str, Callable[[int, Track, int], object]] = {
    "a view whose producer works elsewhere": lambda data, track, new: moved(data, new, new).on(track.a),
    "a view whose producer has moved": lambda data, track, new: moved(data, track.a, new),
    "one of another copy": lambda data, track, new: peer.view_of(moved(data, new, new).on(track.a)),
    "a view of an unknown producer": lambda data, track, new: cd.view(Dlpack(abi.make(data=data))).on(track.a),
    "a list": lambda data, track, new: [1],
}
TAKES: dict[str, Callable[..., cd.CaiView]] = {
    "view": cd.view,
    "from_cai": cd.from_cai,
    "to": lambda array, owner: cd.to(array, cd.CaiView, owner=owner),
    "view of a view": lambda array, owner: cd.view(cd.view(array), owner=owner),
    "from_cai of a view": lambda array, owner: cd.from_cai(cd.view(array), owner=owner),
    "view of another copy's": lambda array, owner: cd.view(peer.view_of(array), owner=owner),
    "from_cai of another copy's": lambda array, owner: cd.from_cai(peer.view_of(array), owner=owner),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("take", TAKES)
def test_an_array_that_names_its_stream_has_its_own_producer(
    take: str, owner: str, lazily: Track, new: int, beside: int
) -> None:
    kept = OWNERS[owner](beside, lazily, new)
    lazily.write(lazily.a, WRITTEN)
    lazily.machine.clear()
    view = TAKES[take](lazily.producer(lazily.a), owner=kept)
    assert not lazily.machine.order()
    with view.consume(lazily.b, strict=True) as lent:
        lazily.read(lazily.b)
        edge = lent.return_edge
    lazily.write(lazily.a, NEXT)
    lazily.wait(lazily.a)
    lazily.wait(lazily.b)
    assert (lazily.seen(), edge, view.producer_stream) == (WRITTEN, "event", lazily.a)


#: A view as it is, and as another extension module has it.
WHOSE: dict[str, Callable[[cd.CaiView], Any]] = {"own": lambda view: view, "another copy's": peer.view_of}


def bare(track: Track) -> dict[str, Any]:
    """A dict that leaves the order to the view of whose memory it is."""
    return interface(data=(track.data, False), stream=None)


#: Calls with a dict and the view that is its owner.
SPOKEN_FOR: dict[str, Callable[[dict[str, Any], Any], Any]] = {
    "view": lambda dict_, view: cd.view(dict_, owner=view),
    "from_cai": lambda dict_, view: cd.from_cai(dict_, owner=view),
    "object": lambda dict_, view: cd.view(Cai(dict_), owner=view),
    "from_cai of an object": lambda dict_, view: cd.from_cai(Cai(dict_), owner=view),
    "to": lambda dict_, view: cd.to(dict_, cd.CaiView, owner=view),
}


@pytest.mark.parametrize("whose", WHOSE)
@pytest.mark.parametrize("call", SPOKEN_FOR)
def test_what_a_view_speaks_for_waits_once_for_its_producer(call: str, whose: str, lazily: Track, new: int) -> None:
    view = WHOSE[whose](moved(lazily.data, lazily.a, new))
    lazily.write(new, WRITTEN)
    lazily.machine.clear()
    made = SPOKEN_FOR[call](bare(lazily), view)
    assert lazily.machine.order() == one_event(new, lazily.a)
    with made.consume(lazily.b, strict=True):
        lazily.read(lazily.b)
    assert read_before_the_next_write(lazily, new) == WRITTEN


@pytest.mark.parametrize("whose", WHOSE)
@pytest.mark.parametrize("policy", ["event", "host"])
@pytest.mark.parametrize("captured", [False, True])
def test_explain_of_it_makes_nothing_wait(
    captured: bool, policy: Any, whose: str, track: Track, new: int, captures: Captures
) -> None:
    view = WHOSE[whose](moved(track.data, track.a, new))
    if captured:
        captures.begin(track.a)
        captures.fork(track.a, new)
    track.machine.clear()
    with cd.policy(sync=policy):
        for array in (bare(track), Cai(bare(track)), peer.view_of(track.producer(track.a))):
            for named in ({}, {"stream": track.b}, {"to": "torch"}):
                cd.explain(array, owner=view, **named)
    assert not track.machine.order()
    captures.close()


@pytest.mark.filterwarnings("ignore")
def test_a_refusal_comes_before_the_wait(track: Track, new: int, beside: int) -> None:
    view, mask, data = moved(track.data, track.a, new), moved(track.data, track.a, new, of_bytes), (beside, False)
    passed = peer.view_of(view)
    array = Cai(interface(data=data))
    nothing: Any = "x"
    refused: list[Callable[[], object]] = [
        lambda: cd.view(bare(track), owner=view, device_id=1, check="bounds"),
        lambda: cd.from_cai(Cai(bare(track)), owner=view, device_id=1, check="bounds"),
        lambda: cd.view(bare(track), owner=passed, device_id=1, check="bounds"),
        lambda: cd.from_cai(Cai(bare(track)), owner=passed, device_id=1, check="bounds"),
        lambda: cd.from_cai(view, owner=[1], device_id=1, check="bounds"),
        lambda: cd.from_dlpack(view, shape=(7,)),
        lambda: cd.from_dlpack(view, dtype="float64"),
        lambda: cd.from_dlpack(view.on(track.b), shape=(7,)),
        lambda: view.present_as("host"),
        partial(cd.join, [view, cd.view(array)], on=nothing),
        lambda: cd.join([view, Cai(interface(data=data, typestr="zz"))], on=track.b),
        lambda: cd.join([peer.view_of(cd.view(array)), view, Cai(interface(data=data, typestr="zz"))], on=track.b),
        lambda: cd.split_masked(Cai(interface(data=data, mask=view))),
        lambda: cd.split_masked(Cai(interface(data=(0x4D2, False), shape=(24,), mask=mask))),
        lambda: cd.split_masked(Cai(interface(data=data, shape=(5,), mask=mask))),
    ]
    for call in refused:
        track.machine.clear()
        with pytest.raises((TypeError, ValueError, BufferError)):
            call()
        order = track.machine.order()
        # `on` waits as it is told to.
        assert order == ([*one_event(new, track.a), *one_event(track.a, track.b)] if call is refused[7] else [])


def test_a_default_stream_of_several_contexts_is_refused_before_join_waits(track: Track, new: int) -> None:
    machine = track.machine
    data = machine.device_memory(NBYTES, 1)
    machine.set_current(1)
    elsewhere = cd.view(Cai(interface(data=(data, False), stream=1)))
    machine.set_current(0)
    view = moved(track.data, track.a, new)
    for passed in (view, peer.view_of(cd.view(view, producer_stream=track.a)), view):
        machine.clear()
        refuse("stream-context", partial(cd.join, [passed, elsewhere], on=1))
        assert not machine.order()
    machine.free(data)


def masked(data: int, mask: Any) -> Cai:
    return Cai(interface(data=(data, False), shape=mask.shape, mask=mask))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("whose", WHOSE)
@pytest.mark.parametrize("is_before", [True, False])
def test_a_mask_that_is_a_view_has_its_producer(
    is_before: bool, whose: str, state: str, lazily: Track, new: int, beside: int
) -> None:
    moving = of_bytes(lazily.data, lazily.a)
    mask = WHOSE[whose](STATES[state](cd.view(moving.array), lazily))
    if is_before:
        moving.go(new)
    mask = cd.split_masked(masked(beside, mask))[1]
    assert mask is not None
    moving.go(new)
    with mask.consume(lazily.b, strict=True) as lent:
        lazily.read(lazily.b)
        edge = lent.return_edge
    before = read_before_the_next_write(lazily, new)
    assert (before != NEXT, edge) == (True, "event")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("whose", WHOSE)
def test_a_strict_import_refuses_a_mask_of_undeclared_order(whose: str, track: Track, beside: int) -> None:
    view = cd.view(Cai(interface(data=(track.data, False), typestr="|u1", shape=(6,), stream=..., version=2)))
    mask = WHOSE[whose](view)
    with cd.policy(strict=True):
        refuse("stream-undeclared", partial(cd.split_masked, masked(beside, mask)))


def test_a_mask_that_was_lent_ends_with_its_block(track: Track, beside: int) -> None:
    view = cd.view(Cai(interface(data=(track.data, False), typestr="|u1", shape=(6,), stream=track.a)))
    with view.consume(track.b) as lent:
        mask = cd.split_masked(masked(beside, lent))[1]
        assert mask is not None
        assert mask.stream == track.b
    refuse("scope-ended", partial(mask.on, track.a))


@pytest.mark.parametrize("whose", WHOSE)
def test_a_view_whose_block_was_left_is_no_owner(whose: str, track: Track) -> None:
    with WHOSE[whose](track.view(track.a)).consume(track.b) as lent:
        pass
    named = interface(data=(track.data, False), stream=track.b)
    for take in (*SPOKEN_FOR.values(), lambda dict_, view: cd.to_dlpack(dict_, owner=view, stream=track.a)):
        refuse("scope-ended", partial(take, bare(track), lent))
    refuse("scope-ended", partial(cd.view, named, owner=lent))
    assert "[scope-ended]" in str(cd.explain(bare(track), owner=lent).refused)


@pytest.mark.parametrize("whose", WHOSE)
def test_a_mask_is_ready_on_a_default_stream_of_another_context(whose: str, lazily: Track, beside: int) -> None:
    machine, pinned = lazily.machine, lazily.machine.pinned_memory(NBYTES)
    lazily.data, before = pinned, lazily.data
    machine.set_current(1)
    lazily.write(LEGACY, WRITTEN)
    view = cd.view(Cai(interface(data=(pinned, False), typestr="|u1", shape=(24,), stream=LEGACY)))
    machine.set_current(0)
    mask = cd.split_masked(masked(beside, WHOSE[whose](view)))[1]
    assert mask is not None
    with mask.consume(lazily.b, strict=True):
        lazily.read(lazily.b)
    machine.set_current(1)
    lazily.write(LEGACY, NEXT)
    machine.finish()
    assert lazily.seen() == WRITTEN
    lazily.data = before


def test_a_mask_is_ready_on_another_thread_s_default_stream(lazily: Track, beside: int) -> None:
    made: list[cd.CaiView] = []

    def write() -> None:
        lazily.write(PER_THREAD, WRITTEN)
        array = Cai(interface(data=(lazily.data, False), typestr="|u1", shape=(24,), stream=PER_THREAD))
        made.append(cd.view(array))

    assert on_another_thread(lazily.machine, write) is None
    (view,) = made
    mask = cd.split_masked(masked(beside, view))[1]
    assert mask is not None
    refuse("stream-thread", partial(mask.on, lazily.b))
    assert cd.from_cai(view).stream == PER_THREAD


@pytest.mark.parametrize("stream", [5, 1])
def test_memory_without_streams_has_no_producer_s(stream: int) -> None:
    view = cd.view(np.arange(6.0))
    for array in (view, peer.view_of(view)):
        for take in (cd.view, cd.from_dlpack, cd.to_dlpack):
            refuse("stream-cpu", partial(take, array, producer_stream=stream))
        assert "stream-cpu" in str(cd.explain(array, producer_stream=stream).refused)
