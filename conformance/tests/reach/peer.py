"""Another process, which calls the functions that it is sent: on the simulated driver, and on a GPU."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

#: What takes longer hangs.
SECONDS = 60


class Raised(Exception):
    """What the other process raised: the rule of a refusal, or the text."""


class Other:
    """A process of its own, started by `spawn`: it inherits the key of multiprocessing, and nothing of the driver."""

    def __init__(self, **environment: str) -> None:
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        context = multiprocessing.get_context("spawn")
        self._channel, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})

    def send(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._channel.send((function, arguments))

    def receive(self) -> Any:
        assert self._channel.poll(SECONDS), "the other process hangs"
        succeeded, value = self._channel.recv()
        if not succeeded:
            raise Raised(*value)
        return value

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function of a module over there."""
        self.send(function, *arguments)
        return self.receive()

    def kill(self) -> None:
        self.process.kill()
        # Not by `join`, which waits for the children that it has forked, too.
        os.waitid(os.P_PID, self.process.pid or 0, os.WEXITED | os.WNOWAIT)

    def __enter__(self) -> Other:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._channel.close()


def serve(channel: Connection) -> None:
    while True:
        try:
            function, arguments = channel.recv()
        except EOFError:
            return
        try:
            answer = (True, function(*arguments))
        except Exception as error:
            answer = (False, (getattr(error, "rule", None) or type(error).__name__, traceback.format_exc()))
        channel.send(answer)
        del answer
