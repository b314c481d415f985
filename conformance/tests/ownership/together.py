"""Many threads at the same work, begun at one moment."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from conformance.tests.ownership import native

THREADS = 8
# What each thread does in one test.
ROUNDS = native.figure(2_000, 100_000)


def together(*bodies: Callable[[], object]) -> None:
    """Runs each on a thread of its own, none before all are ready; raises what the first of them raised."""
    start = threading.Barrier(len(bodies))
    raised: list[BaseException] = []

    def run(body: Callable[[], object]) -> None:
        start.wait()
        try:
            body()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


@contextmanager
def meanwhile(body: Callable[[], object], threads: int = 1) -> Iterator[None]:
    """Calls `body` again and again on other threads, as long as the block runs."""
    ended = threading.Event()
    raised: list[BaseException] = []

    def run() -> None:
        while not ended.is_set():
            try:
                body()
            except BaseException as error:
                raised.append(error)
                return

    others = [threading.Thread(target=run) for _ in range(threads)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        ended.set()
        for other in others:
            other.join()
    if raised:
        raise raised[0]


@contextmanager
def switching_often() -> Iterator[None]:
    """With a GIL: threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
