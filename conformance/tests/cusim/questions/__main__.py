"""Asks every question, each in a process of its own, and prints a line for each: question, answer."""

from __future__ import annotations

import ctypes
import sys

from conformance.gpu.child import answer
from conformance.tests.cusim.model.driver import Driver
from conformance.tests.cusim.questions import (
    addresses,
    calls,
    captures,
    ended,
    frees,
    handles,
    library,
    processes,
    waits,
)
from conformance.tests.cusim.questions.ask import QUESTIONS, Question, answered, text

# In the order of their lines.
TOPICS = (calls, frees, captures, library, waits, handles, ended, addresses, processes)


def ask_driver(ask: Question) -> str:
    cu = Driver(ctypes.CDLL("libcuda.so.1"))
    cu.set_current(cu.retain(0))
    return answered(ask, cu)


def main() -> None:
    """Asks the questions of the topics that are named, of all if none is."""
    asked = sys.argv[1:]
    topics = [topic.__name__ for topic in TOPICS if not asked or topic.__name__.rpartition(".")[2] in asked]
    order = [topic.__name__ for topic in TOPICS]
    for ask in sorted(QUESTIONS, key=lambda ask: order.index(ask.__module__)):
        if ask.__module__ not in topics:
            continue
        print(text(ask), answer(lambda ask=ask: ask_driver(ask)), sep="\t", flush=True)  # type: ignore[misc]


if __name__ == "__main__":
    main()
