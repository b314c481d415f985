"""Runs the program of a check in a Python of its own: for what only the end of an interpreter shows, or a fork."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cai_conformance.judge import isolate, steps
from cai_conformance.judge.check import CHECKS, NotRun
from cai_conformance.judge.target import Target

#: Seconds that such a process may take at least: it imports the library.
LIMIT = 60.0

_TARGETS: list[Target] = []


@contextmanager
def judging(target: Target) -> Iterator[None]:
    """Names the target of the checks that are run meanwhile."""
    _TARGETS.append(target)
    try:
        yield
    finally:
        _TARGETS.remove(target)


def ended(key: str) -> str | None:
    """Runs the program of a check by itself; returns how it ended, or None if it ended well.

    Raises:
        NotRun: no other process can import the function.
    """
    if not _TARGETS or not _TARGETS[-1].is_importable:
        raise NotRun("no other process can import the function by its name")
    target, check = _TARGETS[-1], CHECKS[key]
    write = target.producer_program if check.samples else target.consumer_program
    program = f"import sys\nsys.path[:] = {sys.path!r}\n{write(check, list(steps.STEPS))}\n"
    limit = max(isolate.LIMIT, LIMIT)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "CAI_CONFORMANCE_ALONE": "1"},
        )
        if not _ends(process, limit):
            process.kill()
            process.wait()
            return f"the process hung: it had not ended after {limit:.0f} s"
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()
    if process.returncode == 0:
        return None
    last = f": {said[-1]}" if said else ""
    if process.returncode < 0:
        return f"the process ended by {signal.Signals(-process.returncode).name}{last}"
    return f"the process ended with exit code {process.returncode}{last}"


def _ends(process: subprocess.Popen[bytes], limit: float) -> bool:
    """Whether a process ends in time. Meanwhile whoever waits for this one is told that it works."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        try:
            process.wait(min(1.0, isolate.LIMIT / 2))
        except subprocess.TimeoutExpired:
            steps.tell("wait", "")
        else:
            return True
    return False
