"""Runs functions in a forked child: a call that hangs, kills the process or breaks the context stays there.

The parent must not have started a driver, which no fork survives.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO

Ask = Callable[[], str]

#: How long a process that hangs has to say where.
SAYS_SECONDS = 0.5
#: A line of a traceback of faulthandler's.
FRAME = re.compile(r'^  File ".*?([^"/]+)", line (\d+) in (.+)$', re.MULTILINE)
#: The innermost frames that are told.
FRAMES = 4


def answer(ask: Ask, seconds: float = 60) -> str:
    """Returns what `ask` returns, else how its process ended."""
    (found,) = answers([ask], seconds)
    return found


def answers(asks: Sequence[Ask], seconds: float = 60, can_go_on: Callable[[], bool] = lambda: True) -> Iterator[str]:
    """Returns the answers of one process; after one that ended, hung or cannot go on, the next are of a new one."""
    found = 0
    while found < len(asks):
        with tempfile.TemporaryFile("w+") as said:
            for each in _of_one_process(said, asks[found:], seconds, can_go_on):
                found += 1
                yield each


def _of_one_process(said: IO[str], asks: Sequence[Ask], seconds: float, can_go_on: Callable[[], bool]) -> Iterator[str]:
    """Returns the answers of a process, the last of which may be how it ended; at least one.

    One that hangs says in `said` where.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(sender, said, asks, can_go_on), daemon=False)
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
    is_killed, where = process.exitcode is None, ""
    if is_killed:
        where = _where(process.pid or 0, said)
        process.kill()
        process.join()
    if count == len(asks) or (has_ended and process.exitcode == 0 and count):
        return
    ending = f"the process ended by {_ending(process.exitcode or 0)}"
    yield f"no answer in {seconds:.0f} s{where}" if is_killed else ending


def _where(pid: int, said: IO[str]) -> str:
    """Returns in which functions the main thread of the process stands; empty if it does not say."""
    os.kill(pid, signal.SIGUSR1)
    time.sleep(SAYS_SECONDS)
    said.seek(0)
    frames = FRAME.findall(said.read())[:FRAMES]
    return "".join(f", in {function} ({file}, line {line})" for file, line, function in frames)


def _tell(
    sender: multiprocessing.connection.Connection,
    said: IO[str],
    asks: Sequence[Ask],
    can_go_on: Callable[[], bool],
) -> None:
    # A thread that a driver keeps answers, too.
    faulthandler.register(signal.SIGUSR1, file=said, all_threads=False)
    for ask in asks:
        sender.send(ask())
        if not can_go_on():
            break
    sender.close()


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
