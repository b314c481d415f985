"""Runs a function in a forked child: a call that hangs, kills the process or breaks the context stays there.

The parent must not have started a driver, which no fork survives.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import signal
from collections.abc import Callable


def answer(ask: Callable[[], str], seconds: float = 60) -> str:
    """Returns what `ask` returns, else how its process ended."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(sender, ask), daemon=False)
    process.start()
    sender.close()
    found, has_ended = "", False
    try:
        if receiver.poll(seconds):
            found = str(receiver.recv())
            has_ended = True
    except EOFError:
        has_ended = True
    if has_ended:
        # Its end of the pipe closes a moment before it can be waited for.
        process.join(5)
    if process.exitcode is None:
        process.kill()
        process.join()
        return found or f"no answer in {seconds:.0f} s"
    return found or f"the process ended by {_ending(process.exitcode)}"


def _tell(sender: multiprocessing.connection.Connection, ask: Callable[[], str]) -> None:
    sender.send(ask())
    sender.close()


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
