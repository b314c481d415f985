"""Runs checks in processes of their own, so that a crash or a hang is a result and not the end."""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cai_conformance.judge.check import Check, Severity
from cai_conformance.judge.run import Outcome, Result

#: Seconds that a check may take.
LIMIT = 60.0


def _child(run: Callable[[Callable[[Any], None]], None], pipe: int) -> None:
    """The body of the other process: sends what `run` gives it, and ends without anybody's clean-up."""
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(quiet, descriptor)
    code = 1
    try:

        def send(value: Any) -> None:
            data = pickle.dumps(value)
            os.write(pipe, len(data).to_bytes(8, "little") + data)

        run(send)
        code = 0
    finally:
        os._exit(code)


def _read(pipe: int, count: int, until: float) -> bytes | None:
    """Bytes of a pipe; None at its end, TimeoutError at the limit."""
    found = b""
    while len(found) < count:
        ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise TimeoutError
        more = os.read(pipe, count - len(found))
        if not more:
            return None
        found += more
    return found


def forked(run: Callable[[Callable[[Any], None]], None], limit: float = LIMIT) -> Iterator[Any]:
    """Yields what a function sends from a copy of this process. `limit` is for each of them.

    Raises:
        ChildEnded: the other process ended early; says how.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child(run, writer)
    os.close(writer)
    ended = False
    try:
        while True:
            until = time.monotonic() + limit
            head = _read(reader, 8, until)
            body = None if head is None else _read(reader, int.from_bytes(head, "little"), until)
            if body is None:
                break
            yield pickle.loads(body)
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        ended = True
        raise ChildEnded(f"hung: no result within {limit:.0f} s") from None
    finally:
        os.close(reader)
        if not ended:
            status = _end(pid)
    if os.WIFSIGNALED(status):
        raise ChildEnded(f"crashed: the process ended by {signal.Signals(os.WTERMSIG(status)).name}")
    if os.waitstatus_to_exitcode(status):
        raise ChildEnded(f"crashed: the process ended with exit code {os.waitstatus_to_exitcode(status)}")


def _end(pid: int) -> int:
    """Waits for a child, which has little left to do, and kills it if it does not end."""
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


class ChildEnded(Exception):
    """The other process crashed or hung."""


Told = tuple[str, Outcome, str, str, Severity, int, str]


def told(result: Result) -> Told:
    """A result without its check, which has functions in it."""
    return (
        result.check.id,
        result.outcome,
        result.evidence,
        result.program,
        result.severity,
        result.tried,
        result.after,
    )


def of(found: Told, checks: dict[str, Check]) -> Result:
    """The result that another process told."""
    key, outcome, evidence, program, severity, tried, after = found
    return Result(checks[key], outcome, evidence, program, severity, tried, after)


def one(run: Callable[[], Result], check: Check, program: str = "") -> Result:
    """Runs one check in a process of its own."""
    try:
        found = list(forked(lambda send: send(told(run()))))
    except ChildEnded as why:
        return Result(check, Outcome.FAILED, str(why), program, Severity.VIOLATION)
    return of(found[0], {check.id: check})


def many(
    run: Callable[[list[Check], dict[str, Result]], Iterable[Result]],
    checks: list[Check],
    program: Callable[[Check], str],
) -> Iterator[Result]:
    """Runs checks in one other process, and goes on in a new one after a check in which it ended."""
    by_id = {check.id: check for check in checks}
    results: dict[str, Result] = {}
    left = list(checks)
    while left:

        def send_all(send: Callable[[Any], None], left: list[Check] = left) -> None:
            for result in run(left, dict(results)):
                send(told(result))

        try:
            for found in forked(send_all):
                result = of(found, by_id)
                results[result.check.rule] = result
                left = left[1:]
                yield result
        except ChildEnded as why:
            if not left:
                return
            result = Result(left[0], Outcome.FAILED, str(why), program(left[0]), Severity.VIOLATION)
            results[result.check.rule] = result
            left = left[1:]
            yield result
        else:
            return
