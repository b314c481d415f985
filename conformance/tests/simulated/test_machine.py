"""The log of the machine, as the tests read it."""

from __future__ import annotations

import threading

from conformance.tests.simulated.machine import Machine


def test_what_is_cleared_is_of_this_thread_from_then_on(machine: Machine) -> None:
    """A call that another thread makes beside it does not stay."""
    is_over = threading.Event()

    def call() -> None:
        while not is_over.is_set():
            machine.driver.cuCtxSynchronize()  # it has no context

    others = [threading.Thread(target=call) for _ in range(2)]
    for other in others:
        other.start()
    found = list[list[tuple[str, int]]]()
    for _ in range(20_000):
        machine.clear()
        machine.clear_own()
        found.append(machine.calls())
    is_over.set()
    for other in others:
        other.join()
    assert not any(found)
