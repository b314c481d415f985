"""Work on a thread of its own, which raises what it raises on the thread that waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Elsewhere:
    """Runs on a thread of its own, which `leave` tells to end; `close` raises what it raised."""

    def __init__(self, work: Callable[[], object], leave: Callable[[], None] = lambda: None) -> None:
        self.leave = leave
        self.raised: list[BaseException] = []
        self.thread = threading.Thread(target=self._run, args=(work,))
        self.thread.start()

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            self.raised.append(error)

    def wait_for(self, event: threading.Event) -> None:
        """Waits for what the thread does, unless it has ended before."""
        while not event.wait(0.01) and self.thread.is_alive():
            pass

    def close(self) -> None:
        self.leave()
        self.thread.join()
        if self.raised:
            raise self.raised[0]


def elsewhere(work: Callable[[], object]) -> None:
    """Runs on a thread of its own, and raises what it raises."""
    Elsewhere(work).close()
