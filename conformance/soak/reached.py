"""Tells which mutants a test reaches: the file that a build with mutants maps, and a plugin for pytest that reads it.

The file's first four bytes are the number of the mutant that is chosen, or 0. Each mutant that is reached sets the byte
behind them that has its number, in whichever process it is. A process looks for the file once, when it first calls the
library, which another plugin may do before this one: so `VARIABLE` is set before a process of tests begins.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

#: The file's size: more than there are mutants.
SIZE = 1 << 16
#: The variable that names the file to a build with mutants.
VARIABLE = "MUTANT"
#: What the names of the plugin's records end in, beside the files.
RECORDS = ".records"


class Switch:
    """The file, seen from outside."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)

    @classmethod
    @contextmanager
    def made(cls, path: Path) -> Iterator[Switch]:
        """Returns a new file, which is removed at the end."""
        path.write_bytes(bytes(SIZE))
        path.chmod(0o666)  # for the tests that start a process as another user
        switch = cls(path)
        yield switch
        switch._map.close()
        path.unlink()

    def choose(self, number: int) -> None:
        self._map[:4] = number.to_bytes(4, "little")

    def clear(self) -> None:
        self._map[4:] = bytes(SIZE - 4)

    def reached(self) -> int:
        """Returns the numbers of the mutants that have been reached, as the bits of one int."""
        marks = self._map[4:].translate(BINARY)
        return int(marks[::-1], 2)


#: The digits of a byte that is 0 or 1.
BINARY = bytes([ord("0")] + [ord("1")] * 255)


@dataclass(frozen=True)
class Record:
    """A test, how long it took by itself, and what it has reached."""

    test: str
    seconds: float
    reached: int


def by(records: Iterable[Record], number: int) -> list[Record]:
    """Returns those that reach a mutant, the shortest first."""
    return sorted((each for each in records if each.reached >> number & 1), key=lambda each: each.seconds)


def read(file: Path) -> list[Record]:
    """Returns what the plugin has written."""
    found = []
    for line in file.read_text().splitlines():
        seconds, marks, test = line.split("\t")
        found.append(Record(test, float(seconds), int(marks, 16)))
    return found


class Recorder:
    """The plugin: writes a record of each test that passes."""

    def __init__(self, path: Path) -> None:
        self.switch = Switch(path)
        self.file = path.with_suffix(RECORDS).open("w")
        self.failed = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.switch.clear()
        self.failed = False
        begun = time.monotonic()
        answer = yield
        if not self.failed:
            seconds = time.monotonic() - begun
            self.file.write(f"{seconds:.4f}\t{self.switch.reached():x}\t{item.nodeid}\n")
            self.file.flush()
        return answer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= not report.passed


def pytest_configure(config: pytest.Config) -> None:
    if path := os.environ.get(VARIABLE):
        config.pluginmanager.register(Recorder(Path(path)))
