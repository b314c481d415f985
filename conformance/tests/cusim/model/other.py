"""A second process on the simulator, whose driver and controls are called from here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from multiprocessing.connection import Connection, Pipe
from types import TracebackType
from typing import Any

from cai_conformance import Sim
from cai_conformance.sim import Gate

from conformance.tests.cusim.model.driver import Driver, Refused

# A call that takes longer hangs.
SECONDS = 30


class Calls:
    """The methods of one object over there: `cu` or `sim`."""

    def __init__(self, other: Other, target: str, later: bool) -> None:
        self._other, self._target, self._later = other, target, later

    def __getattr__(self, method: str) -> Any:
        def call(*arguments: object) -> Any:
            self._other.channel.send((self._target, method, arguments))
            return None if self._later else self._other.result()

        return call


class Other:
    """Starts the process, with device 0 current. `cu` calls and waits, `later_cu` only calls."""

    def __init__(self, **environment: str) -> None:
        self.channel, theirs = Pipe()
        number = theirs.fileno()
        command = [sys.executable, "-m", __name__, str(number)]
        self.process = subprocess.Popen(command, pass_fds=[number], env={**os.environ, **environment})
        theirs.close()
        self.cu: Any = Calls(self, "cu", False)
        self.later_cu: Any = Calls(self, "cu", True)
        self.sim: Any = Calls(self, "sim", False)

    def result(self) -> Any:
        """The result of the oldest call whose result has not been taken; raises what it raised."""
        if not self.channel.poll(SECONDS):
            raise TimeoutError("the other process does not answer")
        value = self.channel.recv()
        if isinstance(value, BaseException):
            raise value
        return value

    def has_answered(self, seconds: float = 0) -> bool:
        return self.channel.poll(seconds)

    def kill(self) -> None:
        """Ends the process as kill -9 does."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Other:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.channel.close()
        try:
            self.process.wait(SECONDS)
        finally:
            self.process.kill()


class Controls(Sim):
    """The controls, with gates by number: a `Gate` does not travel. And what else the process does."""

    def shut_gate(self, stream: int) -> int:
        return self.gate(stream).number

    def open_gate(self, number: int) -> None:
        Gate(self, number).open()

    def take_descriptor(self, process: int, number: int) -> int:
        """Returns a descriptor here of what that process has open."""
        return os.open(f"/proc/{process}/fd/{number}", os.O_RDWR)

    def close_descriptor(self, number: int) -> None:
        os.close(number)

    def fork(self) -> int:
        """Returns the number of a child that does nothing, and has all that this process has open."""
        child = os.fork()
        if child == 0:
            time.sleep(SECONDS)
            os._exit(0)
        return child


def serve(channel: Connection) -> None:
    """Carries out calls until the first process closes the channel."""
    cu = Driver()
    cu.set_current(cu.retain(0))
    targets = {"cu": cu, "sim": Controls()}
    while True:
        try:
            target, method, arguments = channel.recv()
        except EOFError:
            return
        try:
            value = getattr(targets[target], method)(*arguments)
        except Refused as refused:
            value = refused
        channel.send(value)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
