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
    try:
        found = receiver.recv() if receiver.poll(seconds) else None
    except EOFError:
        found = ""
    if found:
        process.join(5)
    if process.exitcode is None:
        process.kill()
        process.join()
        return str(found) if found else f"no answer in {seconds:.0f} s"
    return str(found) if found else f"the process ended by {_ending(process.exitcode)}"


def _tell(sender: multiprocessing.connection.Connection, ask: Callable[[], str]) -> None:
    sender.send(ask())
    sender.close()


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
