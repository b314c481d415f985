"""Runs functions in a forked child: a call that hangs, kills the process or breaks the context stays there.

The parent must not have started a driver, which no fork survives.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import signal
from collections.abc import Callable, Iterator, Sequence

Ask = Callable[[], str]


def answer(ask: Ask, seconds: float = 60) -> str:
    """Returns what `ask` returns, else how its process ended."""
    (found,) = answers([ask], seconds)
    return found


def answers(asks: Sequence[Ask], seconds: float = 60, can_go_on: Callable[[], bool] = lambda: True) -> Iterator[str]:
    """Returns the answers of one process; after one that ended, hung or cannot go on, the next are of a new one."""
    found = 0
    while found < len(asks):
        for each in _of_one_process(asks[found:], seconds, can_go_on):
            found += 1
            yield each


def _of_one_process(asks: Sequence[Ask], seconds: float, can_go_on: Callable[[], bool]) -> Iterator[str]:
    """Returns the answers of a process, the last of which may be how it ended; at least one."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(sender, asks, can_go_on), daemon=False)
    process.start()
    sender.close()
    count, has_ended = 0, False
    try:
        while count < len(asks) and receiver.poll(seconds):
            found = str(receiver.recv())
            count += 1
            yield found
        has_ended = count == len(asks)
    except EOFError:
        has_ended = True
    if has_ended:
        # Its end of the pipe closes a moment before it can be waited for.
        process.join(5)
    is_killed = process.exitcode is None
    if is_killed:
        process.kill()
        process.join()
    if count == len(asks) or (has_ended and process.exitcode == 0 and count):
        return
    yield f"no answer in {seconds:.0f} s" if is_killed else f"the process ended by {_ending(process.exitcode or 0)}"


def _tell(sender: multiprocessing.connection.Connection, asks: Sequence[Ask], can_go_on: Callable[[], bool]) -> None:
    for ask in asks:
        sender.send(ask())
        if not can_go_on():
            break
    sender.close()


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
