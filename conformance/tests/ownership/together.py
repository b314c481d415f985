"""Many threads at the same work, begun at one moment."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from conformance.tests.ownership import native

THREADS = 8
# What each thread does in one test.
ROUNDS = native.figure(2_000, 100_000)


@contextmanager
def running(*bodies: Callable[[], object]) -> Iterator[None]:
    """Runs each on a thread of its own beside the block, then joins them; raises what the first of them raised."""
    raised: list[BaseException] = []

    def run(body: Callable[[], object]) -> None:
        try:
            body()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()
    if raised:
        raise raised[0]


def together(*bodies: Callable[[], object]) -> None:
    """Runs each on a thread of its own, none before all are ready; raises what the first of them raised."""
    start = threading.Barrier(len(bodies))

    def run(body: Callable[[], object]) -> None:
        start.wait()
        body()

    with running(*(partial(run, body) for body in bodies)):
        pass


@contextmanager
def meanwhile(body: Callable[[], object], threads: int = 1) -> Iterator[None]:
    """Calls `body` again and again on other threads, as long as the block runs."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            body()

    with running(*[run] * threads):
        try:
            yield
        finally:
            ended.set()


@contextmanager
def switching_often() -> Iterator[None]:
    """With a GIL: threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
