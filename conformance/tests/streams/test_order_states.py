"""Whether the order of data is declared: one state, which no wrapping hides and only a named stream ends."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import cai_dlpack as cd
import pytest

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.simulated.machine import one_event
from conformance.tests.streams.order_states import DEVICES, Source, Sources, State, derived
from conformance.tests.streams.race import Track

SEEDS = range(1500)


@pytest.fixture
def sources(track: Track) -> Iterator[Sources]:
    made = Sources(track)
    yield made
    track.control.open_gates()
    made.close()


def refused(call: Any) -> bool:
    """Whether the call is refused since nothing declares the order; every other refusal fails the test."""
    try:
        call()
    except BufferError as error:
        if error.rule != "stream-undeclared":  # type: ignore[attr-defined]
            raise
        return True
    return False


def warned(call: Any) -> tuple[Any, list[type[Warning]]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = call()
    return found, [each.category for each in seen]


def told(state: State) -> str:
    """How `explain` begins."""
    return "undeclared" if state.is_undeclared else "now" if state.ready is None else "on "


@pytest.mark.parametrize("block", range(10))
def test_the_state_is_found_behind_every_wrapping(block: int, sources: Sources, track: Track) -> None:
    wrong = []
    for seed in SEEDS[block::10]:
        choose = random.Random(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = sources.draw(choose)
        state = source.state
        found, seen = warned(partial(source.come_in, "view"))
        if found.stream != state.ready or seen != [cd.StreamWarning] * state.warns:
            wrong.append(f"{seed}: {found.stream}, {seen} of {state}: {source.name}")
        for door in source.doors:
            if by_strict(choose, source, door) != state.is_undeclared:
                wrong.append(f"{seed}: strict {door} of {state}: {source.name}")
        wrong += [f"{seed}: {text}: {source.name}" for text in explained(source, state)]
        wrong += [f"{seed}: {text}: {source.name}" for text in named(choose, source, track)]
    assert wrong == []


def by_strict(choose: random.Random, source: Source, door: str) -> bool:
    by_keyword = choose.random() < 0.5 and door != "split_masked"
    with cd.policy(strict=not by_keyword), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return refused(lambda: source.come_in(door, **{"strict": True} if by_keyword else {}))


def explained(source: Source, state: State) -> list[str]:
    ready = cd.explain(source.make(), **source.told).ready
    is_right = ready is None or ready.startswith(told(state))
    return [] if is_right else [f"explained as {ready}"]


def named(choose: random.Random, source: Source, track: Track) -> list[str]:
    """A stream that the caller names is the order, and no warning or refusal is left."""
    stream = choose.choice([track.a, None])
    door = choose.choice([door for door in source.doors if door not in ("split_masked", "to_dlpack")])
    try:
        with cd.policy(strict=True):
            view, seen = warned(lambda: source.come_in(door, producer_stream=stream))
    except ValueError as error:
        return [] if error.rule == "stream-cpu" else [str(error)]  # type: ignore[attr-defined]
    with cd.policy(strict=True):
        again = refused(lambda: cd.view(view))
    is_right = not again and seen == [] and (view.stream, view.producer_stream)[1] == stream
    return [] if is_right else [f"{stream} was named, and it is {view.stream}, {view.producer_stream}, {seen}"]


@pytest.mark.parametrize("block", range(5))
def test_a_view_keeps_the_state_until_a_stream_is_named(block: int, sources: Sources, track: Track) -> None:
    wrong: list[str] = []
    for seed in SEEDS[block::5]:
        choose = random.Random(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = sources.draw(choose)
            view, ways = source.come_in("view"), ["view"]
        for _ in range(choose.randrange(1, 4)):
            (way, view), seen = warned(lambda: derived(choose, view, track))  # noqa: B023
            ways.append(way)
            if seen:
                wrong.append(f"{seed}: {ways} warn: {source.name}")
        with cd.policy(strict=True):
            if source.state.is_undeclared and not refused(partial(cd.to, view, "cuda.core")):
                wrong.append(f"{seed}: strict to after {ways} of {source.state}: {source.name}")
            for door in (cd.view, cd.to_dlpack, cd.from_dlpack, cd.split_masked):
                if refused(lambda: door(view)) != source.state.is_undeclared:  # noqa: B023
                    wrong.append(f"{seed}: strict {door.__name__} after {ways} of {source.state}: {source.name}")
            assert cd.view(view, producer_stream=None).stream is None
        ready = cd.explain(view).ready
        assert ready is not None
        if ready.startswith("undeclared") != source.state.is_undeclared:
            wrong.append(f"{seed}: explained as {ready} after {ways}: {source.name}")
    assert wrong == []


@pytest.mark.parametrize("door", ["its dict", "a dict without a stream", "from_cai"])
def test_a_default_stream_stays_that_of_the_views_context(door: str, sources: Sources, track: Track) -> None:
    """Memory that every context reaches: the number of its stream means another one in another context."""
    machine = track.machine
    shown = interface(shape=(24,), typestr="|u1", data=(sources.addresses["pinned"], False), stream=1)
    view = cd.view(Cai(shown))
    silent = {**shown, "stream": None}
    make: dict[str, Any] = {
        "its dict": lambda: cd.view(shown, owner=view),
        "a dict without a stream": lambda: cd.view(silent, owner=view),
        "from_cai": lambda: cd.from_cai(view),
    }
    derived = make[door]()
    for current in (0, 1):
        machine.set_current(current)
        again = derived if door == "from_cai" else make[door]()
        waits = machine.control.gate(1) if current == 0 else None
        machine.clear()
        again.on(track.b)
        assert machine.order() == one_event(1, track.b)
        assert ("cuCtxPushCurrent", 0) in machine.calls() or current == 0
        if waits is not None:
            assert machine.control.pending(track.b)
            waits.open()
        track.wait(track.b)
    machine.set_current(0)


def test_every_state_and_memory_is_drawn(sources: Sources) -> None:
    states: Counter[tuple[str, bool, bool]] = Counter()
    for seed in SEEDS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = sources.draw(random.Random(seed))
        for memory in DEVICES:
            if memory in source.name:
                is_empty = "empty: True" in source.name or "'shape': (0," in source.name
                states[memory, source.state.is_undeclared, is_empty] += 1
    undeclared = {(memory, True, False) for memory in ("device", "pinned", "managed")}
    declared = {(memory, False, empty) for memory in DEVICES for empty in (False, True)}
    assert set(states) == undeclared | declared, states
