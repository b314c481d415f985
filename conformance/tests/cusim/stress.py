"""Producers and consumers on four threads and two devices; prints how many reads were wrong.

Arguments: rounds for each thread, and 1 for a record and a wait between the streams, else 0.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading

from cai_conformance import Sim

from conformance.tests.cusim.model.driver import Driver

NBYTES = 256
THREADS = 4
ALL_DONE = threading.Barrier(THREADS)


def work(cu: Driver, sim: Sim, device: int, rounds: int, waits: bool, wrong: list[int]) -> None:
    """Each round writes a pattern on one stream and reads it on another."""
    cu.set_current(cu.retain(device))
    producer, consumer = cu.stream(), cu.stream()
    memory, result = cu.alloc(NBYTES), cu.alloc_host(NBYTES)
    bad = 0
    for number in range(rounds):
        pattern = bytes([1 + number % 250]) * NBYTES
        sim.poke(memory, b"\x00" * NBYTES)
        for _ in range(3):  # work before the write, so that it is not done at once
            cu.fill_async(memory, 0, NBYTES, producer)
        sim.store(producer, memory, pattern)
        if waits:
            cu.order(producer, consumer)
        cu.read_async(result, memory, NBYTES, consumer)
        cu.wait_for(consumer)
        bad += ctypes.string_at(result, NBYTES) != pattern
        cu.wait_for(producer)
    # Freeing waits for the whole device, and so would do the work of the other threads' producers.
    ALL_DONE.wait()
    cu.free(memory)
    cu.free_host(result)
    cu.destroy_stream(producer)
    cu.destroy_stream(consumer)
    wrong.append(bad)


def main() -> None:
    rounds, waits = int(sys.argv[1]), sys.argv[2] == "1"
    cu, sim = Driver(), Sim()
    wrong: list[int] = []
    contexts = [cu.retain(0), cu.retain(1)]
    before = sim.live()
    threads = [
        threading.Thread(target=work, args=(cu, sim, number % 2, rounds, waits, wrong)) for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sim.live() == before, "something leaked"
    assert len(wrong) == THREADS and len(contexts) == 2
    print(json.dumps({"wrong": sum(wrong), "reads": THREADS * rounds}))


if __name__ == "__main__":
    main()
