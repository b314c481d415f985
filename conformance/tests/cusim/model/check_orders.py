"""Every legal order of the queues of a small program."""

from __future__ import annotations

import math
from collections.abc import Callable

from cai_conformance import Sim

from conformance.tests.cusim.model.driver import Driver

# Enqueues work: source, target, the producer's stream, the consumer's.
Enqueue = Callable[[int, int, int, int], None]


def outcomes(cu: Driver, sim: Sim, enqueue: Enqueue, host_points: bool = False) -> list[bytes]:
    """Returns the content of the target after each order of the work; the source holds b"o" before."""
    seen = []
    source, target = cu.alloc(1), cu.alloc(1)
    for _ in sim.orders(host_points):
        sim.poke(source, b"o")
        producer, consumer = cu.stream(), cu.stream()
        enqueue(source, target, producer, consumer)
        cu.synchronize()
        seen.append(sim.peek(target, 1))
        cu.destroy_stream(producer)
        cu.destroy_stream(consumer)
    cu.free(source)
    cu.free(target)
    return seen


def results(cu: Driver, sim: Sim, waits: bool, host_points: bool = False) -> list[bytes]:
    """Returns what a producer and a consumer leave in each order, with and without the wait."""

    def enqueue(source: int, target: int, producer: int, consumer: int) -> None:
        sim.store(producer, source, b"n")
        if waits:
            cu.order(producer, consumer)
        cu.copy_async(target, source, 1, consumer)

    return outcomes(cu, sim, enqueue, host_points)


def test_without_the_wait_both_results_occur(cu: Driver, sim: Sim) -> None:
    assert sorted(results(cu, sim, waits=False)) == [b"n", b"o"]


def test_with_the_wait_every_order_is_right(cu: Driver, sim: Sim) -> None:
    seen = results(cu, sim, waits=True)
    assert set(seen) == {b"n"}


def test_work_may_also_run_before_calls(cu: Driver, sim: Sim) -> None:
    assert set(results(cu, sim, waits=True, host_points=True)) == {b"n"}
    assert set(results(cu, sim, waits=False, host_points=True)) == {b"n", b"o"}


def test_the_number_of_orders_is_the_number_of_interleavings(cu: Driver, sim: Sim) -> None:
    """Three queues of two pieces each: 6! / (2! 2! 2!) orders, and no order twice."""
    memory, seen = cu.alloc(1), []
    for choices in sim.orders():
        streams = [cu.stream() for _ in range(3)]
        for stream in streams * 2:
            sim.store(stream, memory, b"x")
        cu.synchronize()
        seen.append(tuple(choices))
        for stream in streams:
            cu.destroy_stream(stream)
    cu.free(memory)
    assert len(seen) == len(set(seen)) == math.factorial(6) // 2**3


def test_a_reverse_hazard_is_found(cu: Driver, sim: Sim) -> None:
    """The producer overwrites while the consumer has not read: wrong in one order of two."""

    def enqueue(source: int, target: int, producer: int, consumer: int) -> None:
        cu.copy_async(target, source, 1, consumer)
        sim.store(producer, source, b"n")

    assert sorted(outcomes(cu, sim, enqueue)) == [b"n", b"o"]
