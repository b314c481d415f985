"""Asks every question, each in a process of its own, and prints a line for each: question, answer."""

from __future__ import annotations

import ctypes

from conformance.gpu.child import answer
from conformance.tests.cusim.model.driver import Driver
from conformance.tests.cusim.questions import addresses, calls, captures, frees, handles, processes
from conformance.tests.cusim.questions.ask import QUESTIONS, Question, answered, text

# In the order of their lines.
TOPICS = (calls, frees, captures, handles, addresses, processes)


def ask_driver(ask: Question) -> str:
    cu = Driver(ctypes.CDLL("libcuda.so.1"))
    cu.set_current(cu.retain(0))
    return answered(ask, cu)


def main() -> None:
    order = [topic.__name__ for topic in TOPICS]
    for ask in sorted(QUESTIONS, key=lambda ask: order.index(ask.__module__)):
        print(text(ask), answer(lambda ask=ask: ask_driver(ask)), sep="\t", flush=True)  # type: ignore[misc]


if __name__ == "__main__":
    main()
