"""`cd.join`: many views, or many streams, made ready on one."""

from __future__ import annotations

import ctypes
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import cai_dlpack as cd
import pytest

from conformance.tests.doubles.producers import OwningStream, cai
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.ownership.waiting import PATIENCE, until
from conformance.tests.simulated.machine import Machine, one_event
from conformance.tests.streams.race import LEGACY, PER_THREAD, Track


@pytest.fixture
def three(machine: Machine) -> Iterator[list[int]]:
    made = [machine.stream() for _ in range(3)]
    yield made
    for stream in made:
        machine.destroy_stream(stream)


def test_300_views_of_three_streams_are_three_records_and_three_waits(three: list[int], track: Track) -> None:
    views = [track.view(stream) for stream in three * 100]
    track.machine.clear()
    joined = cd.join(views, on=track.a)
    assert track.machine.order() == [call for stream in three for call in one_event(stream, track.a)]
    assert len(joined) == 300
    assert {(view.stream, view.ptr) for view in joined} == {(track.a, track.data)}
    assert [view.producer_stream for view in joined] == three * 100


def test_the_stream_itself_and_views_without_one_cost_nothing(track: Track) -> None:
    given = [track.view(track.a), track.view(None)]
    track.machine.clear_own()
    assert [view.stream for view in cd.join(given, on=track.a)] == [track.a, None]
    assert cd.join([], on=track.a) == []
    assert track.machine.calls() == []


def test_bare_streams_are_joined_and_give_nothing_back(three: list[int], track: Track) -> None:
    track.machine.clear()
    assert cd.join([*three, three[0], track.a], on=track.a) == []
    assert track.machine.order() == [call for stream in three for call in one_event(stream, track.a)]


@pytest.mark.parametrize("is_refused", [False, True], ids=["joined", "refused"])
def test_streams_that_the_iterator_alone_has_live_until_they_are_joined(is_refused: bool, track: Track) -> None:
    def handed_out() -> Iterator[Any]:
        for _ in range(3):
            yield OwningStream(track.machine.stream(), track.machine.destroy_stream)
        if is_refused:
            yield "no stream"

    track.machine.clear()
    if is_refused:
        check_refusal(refuse(lambda: cd.join(handed_out(), on=track.a), TypeError), "stream-type", "items")
    else:
        assert cd.join(handed_out(), on=track.a) == []
    ends = [stream for name, stream in track.machine.calls() if name == "cuStreamDestroy"]
    of_each = [[name for name, of in track.machine.calls() if of == stream] for stream in ends]
    recorded = [] if is_refused else ["cuEventRecord"]
    assert len(set(ends)) == 3
    assert [[name for name in names if name in ("cuEventRecord", "cuStreamDestroy")] for names in of_each] == [
        [*recorded, "cuStreamDestroy"]
    ] * 3


def test_views_and_streams_mix_and_the_views_come_back_in_order(three: list[int], track: Track) -> None:
    first, second = track.view(three[0]), track.view(three[1])
    track.machine.clear()
    joined = cd.join((item for item in (second, three[0], first)), on=track.a)
    assert [view.producer_stream for view in joined] == [three[1], three[0]]
    assert Counter(name for name, _ in track.machine.order()) == {"cuEventRecord": 2, "cuStreamWaitEvent": 2}


@pytest.mark.parametrize("default", [LEGACY, PER_THREAD])
def test_a_default_stream_is_one_in_each_context(default: int, track: Track, machine: Machine) -> None:
    """Two arrays on device 0 and one on device 1, all ready on "1": two streams, two events."""
    there = Track(machine, ordinal=1)
    machine.set_current(0)
    here = [track.view(default), track.view(default)]
    other = cd.view(there.producer(default), device_id=1)
    machine.clear()
    cd.join([*here, other], on=track.a)
    assert machine.order() == 2 * one_event(default, track.a)
    machine.set_current(1)
    there.close()


def test_a_bare_default_stream_is_the_current_contexts(track: Track, machine: Machine) -> None:
    there = Track(machine, ordinal=1)
    machine.control.schedule = "lazy"
    there.write(LEGACY, 3)  # on device 1, which is current
    cd.join([LEGACY], on=there.b)
    there.read(there.b)
    there.wait(there.b)
    assert there.seen() == 3
    there.wait(LEGACY)
    there.close()
    machine.control.schedule = "threaded"


@pytest.mark.parametrize("default", [LEGACY, PER_THREAD])
@pytest.mark.parametrize("on", ["default", "handle"])
@pytest.mark.parametrize("current", [0, 1])
def test_a_bare_default_stream_means_the_same_for_every_on(
    default: int, on: str, current: int, track: Track, machine: Machine
) -> None:
    """A view of device 1 beside it changes nothing: the current context's is waited for, and no other one."""
    there = Track(machine, ordinal=1)
    view = cd.view(there.producer(None), device_id=1)
    waiting = default if on == "default" else there.b
    expected = [current == 0, current == 1 and on == "handle"]
    for ordinal in (0, 1):
        machine.set_current(ordinal)
        with machine.control.gate(default):
            machine.set_current(current)
            cd.join([view, default], on=waiting)
            machine.set_current(1)
            there.write(waiting, 3)
            # The stream itself is held by its own gate.
            is_held = expected[ordinal] or (waiting == default and ordinal == 1)
            is_done = until(lambda: machine.control.pending(waiting) == 0, 0.05 if is_held else PATIENCE)
            assert is_done != is_held, ordinal
        there.wait(waiting)
    there.close()


def test_the_joined_stream_sees_every_part_under_every_order(three: list[int], track: Track, machine: Machine) -> None:
    """An array whose three parts are written on three streams, exported with one."""
    outcomes = set()
    for _ in track.control.orders():
        machine.write(track.data, bytes(24))
        for part, stream in enumerate(three):
            track.control.store(stream, track.data + 8 * part, bytes([part + 1]) * 8)
        cd.join(three, on=track.a)
        whole = cd.view(track.producer(None), producer_stream=track.a, device_id=0)
        whole.on(track.b)
        track.read(track.b)
        for stream in (track.b, *three, track.a):
            track.wait(stream)
        outcomes.add(machine.read(track.copy, 24))
    assert outcomes == {bytes([1] * 8 + [2] * 8 + [3] * 8)}


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_without_one_of_the_waits_some_order_misses_a_part(
    missing: int, three: list[int], track: Track, machine: Machine
) -> None:
    outcomes = set()
    for _ in track.control.orders():
        machine.write(track.data, bytes(24))
        for part, stream in enumerate(three):
            track.control.store(stream, track.data + 8 * part, bytes([part + 1]) * 8)
        track.control.fault("cuStreamWaitEvent", 0, missing)
        cd.join(three, on=track.b)
        track.read(track.b)
        for stream in (track.b, *three):
            track.wait(stream)
        outcomes.add(machine.read(track.copy, 24)[8 * (missing - 1)])
    assert outcomes == {0, missing}


def test_a_join_that_is_refused_half_way_is_refused(three: list[int], track: Track) -> None:
    """The consumer may wait for the streams before it by then; the views are as they were."""
    views = [track.view(stream) for stream in three]
    track.machine.clear()
    track.control.fault("cuEventRecord", 2, nth=2)
    with pytest.raises(cd.DriverError, match="cuEventRecord"):
        cd.join(views, on=track.a)
    assert [view.stream for view in views] == three
    assert [stream for name, stream in track.machine.order() if name == "cuEventRecord"] == three[:2]


@pytest.mark.parametrize("items", [5, None, "ab", [object()], [None], [[1]]])
def test_what_is_no_list_of_views_and_streams(items: Any, track: Track) -> None:
    track.machine.clear_own()
    with pytest.raises(TypeError):
        cd.join(items, on=track.a)
    assert track.machine.calls() == []


def test_a_wrong_item_is_refused_before_any_wait(track: Track) -> None:
    wrong: list[Any] = [track.view(track.a), "7"]
    track.machine.clear_own()
    check_refusal(refuse(lambda: cd.join(wrong, on=track.b), TypeError), "stream-type", None)
    assert track.machine.calls() == []


def test_every_subset_of_streams_costs_its_size(three: list[int], track: Track) -> None:
    for size in range(4):
        for chosen in itertools.combinations(three, size):
            track.machine.clear()
            cd.join(chosen, on=track.a)
            assert len(track.machine.order()) == 2 * size


@pytest.mark.parametrize("seed", range(40))
def test_each_stream_is_waited_for_once_whatever_memory_is_ready_on_it(
    seed: int, track: Track, machine: Machine
) -> None:
    """A default stream is one for each context, whether the memory, its import or the thread tells the context."""
    choose = random.Random(seed)
    pool = ctypes.c_uint64()
    size, stream = ctypes.c_size_t(24), ctypes.c_void_p(track.a)
    assert machine.driver.cuMemAllocAsync(ctypes.byref(pool), size, stream) == 0
    track.wait(track.a)
    there, pinned, managed = machine.device_memory(24, 1), machine.pinned_memory(24), machine.managed_memory(24)
    memories = {track.data: 0, pool.value: 0, pinned: 0, managed: 0, there: 1}
    items: list[Any] = []
    streams: set[tuple[int, int | None]] = set()
    for _ in range(choose.randrange(2, 7)):
        ready = choose.choice([LEGACY, LEGACY, PER_THREAD, track.a])
        if choose.random() < 0.2:
            items.append(ready)
            streams.add((ready, 0 if ready <= PER_THREAD else None))
            continue
        address, device = choose.choice(list(memories.items()))
        items.append(cd.view(cai(data=(address, False), shape=(24,), typestr="|u1", stream=ready)))
        streams.add((ready, device if ready <= PER_THREAD else None))
    machine.clear()
    cd.join(items, on=track.b)
    recorded = [stream for name, stream in machine.order() if name == "cuEventRecord"]
    track.wait(track.b)
    items.clear()
    for address in (pool.value, managed, there):
        machine.free(address)
    assert machine.driver.cuMemFreeHost(ctypes.c_void_p(pinned)) == 0
    assert sorted(recorded) == sorted(stream for stream, _ in streams)


def test_every_array_that_view_takes_is_joined(track: Track) -> None:
    """However its interface is found; what `view` refuses is refused by its rule, and called no stream."""
    interface = track.producer(track.b).__cuda_array_interface__

    class Forwards:
        def __getattr__(self, name: str) -> Any:
            if name == "__cuda_array_interface__":
                return interface
            raise AttributeError(name)

    arrays: list[Any] = [SimpleNamespace(__cuda_array_interface__=interface), Forwards(), track.producer(track.b)]
    capsule = cd.view(track.producer(track.b)).__dlpack__(stream=track.b, max_version=(1, 3))
    track.machine.clear()
    joined = cd.join([*arrays, capsule], on=track.a)
    assert [view.stream for view in joined] == [track.a] * 4
    assert [view.ptr for view in joined] == [track.data] * 4
    assert one_event(track.b, track.a)[0] in track.machine.order()
    with pytest.raises(cd.Refusal) as by_view:
        cd.view(dict(interface))
    with pytest.raises(cd.Refusal) as by_join:
        cd.join([dict(interface)], on=track.a)
    assert by_join.value.rule == by_view.value.rule
