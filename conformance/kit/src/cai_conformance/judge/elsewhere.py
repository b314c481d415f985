"""Runs the program of a check in a Python of its own: for what only the end of an interpreter shows, or a fork."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cai_conformance.judge import isolate, steps
from cai_conformance.judge.check import CHECKS, NotRun
from cai_conformance.judge.target import Target

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
    limit = isolate.LIMIT * 0.9
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit,
            env={**os.environ, "CAI_CONFORMANCE_ALONE": "1"},
        )
    except subprocess.TimeoutExpired:
        return f"the process hung: it had not ended after {limit:.0f} s"
    if done.returncode == 0:
        return None
    said = done.stderr.decode(errors="replace").strip().splitlines()
    last = f": {said[-1]}" if said else ""
    if done.returncode < 0:
        return f"the process ended by {signal.Signals(-done.returncode).name}{last}"
    return f"the process ended with exit code {done.returncode}{last}"
