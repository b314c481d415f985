"""Runs checks in processes of their own, so that a crash or a hang is a result and not the end."""

from __future__ import annotations

import faulthandler
import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cai_conformance.judge import steps
from cai_conformance.judge.check import Check
from cai_conformance.judge.run import Outcome, Result
from cai_conformance.judge.samples import SAMPLES
from cai_conformance.judge.text import printable, text_of

#: Seconds that a check may take; `--timeout` sets another number.
LIMIT = 60.0

#: Seconds after which it is asked whether a process that says nothing still lives.
ASK = 0.1

Send = Callable[[Any], None]


class _Done:
    """The last thing that a process sends."""


class _Raised(str):
    """Sent of an exception that ends a process, as SystemExit does."""


def _child(run: Callable[[Send], None], pipe: int) -> None:
    """The body of the other process: sends what `run` gives it, and ends without anybody's clean-up."""
    faulthandler.disable()  # what is seen of a crash is the result
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(quiet, descriptor)
    own = os.getpid()

    def send(value: Any) -> None:
        if os.getpid() != own:
            os._exit(0)  # the subject forked, and this is its copy, which judges nothing
        data = pickle.dumps(value)
        left = memoryview(len(data).to_bytes(8, "little") + data)
        while left:
            left = left[os.write(pipe, left) :]

    code = 1
    try:
        try:
            run(send)
            send(_Done())
        except BaseException as error:
            send(_Raised(text_of(error)))
        code = 0
    finally:
        os._exit(code)


class _Process:
    """A copy of this process, and what it sends."""

    def __init__(self, run: Callable[[Send], None], limit: float) -> None:
        self.limit = limit
        self.status: int | None = None
        self.pipe, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            _child(run, writer)
        os.close(writer)

    def has_ended(self) -> bool:
        """Whether it has; then `status` tells how, unless somebody else has asked for it."""
        if self.status is None:
            try:
                done, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                done, status = self.pid, 0
            self.status = status if done else None
        return self.status is not None

    def values(self) -> Iterator[Any]:
        """What it sends, to the end of what it sends. The pipe's end is no sign: a process that it has forked may
        hold the pipe for as long as it lives.

        Raises:
            TimeoutError: nothing came for as long as the limit.
        """
        while True:
            until = time.monotonic() + self.limit
            head = self._read(8, until)
            body = None if head is None else self._read(int.from_bytes(head, "little"), until)
            if body is None:
                return
            yield pickle.loads(body)

    def _read(self, count: int, until: float) -> bytes | None:
        found = b""
        while len(found) < count:
            ended = self.has_ended()
            left = until - time.monotonic()
            if select.select([self.pipe], [], [], 0 if ended else max(0.0, min(ASK, left)))[0]:
                more = os.read(self.pipe, count - len(found))
                if not more:
                    return None
                found += more
            elif ended:
                return None
            elif left <= 0:
                raise TimeoutError
        return found

    def end(self, limit: float) -> None:
        """Waits for its end, and kills it if that does not come."""
        os.close(self.pipe)
        until = time.monotonic() + limit
        while not self.has_ended() and time.monotonic() < until:
            time.sleep(0.001)
        if not self.has_ended():
            os.kill(self.pid, signal.SIGKILL)
            while not self.has_ended():
                time.sleep(0.001)


def forked(run: Callable[[Send], None], limit: float | None = None) -> Iterator[Any]:
    """Yields what a function sends from a copy of this process. `limit` is for each of them.

    Raises:
        ChildEnded: the other process ended early; says how.
    """
    limit = LIMIT if limit is None else limit
    process = _Process(run, limit)
    done, patience = False, 0.0
    try:
        for value in process.values():
            if isinstance(value, _Raised):
                raise ChildEnded(f"raised {value}, which ends the process")
            if isinstance(value, _Done):
                done, patience = True, 5.0  # it has nothing left to do
                break
            yield value
        else:
            patience = 5.0
    except TimeoutError:
        raise ChildEnded(f"hung: no result within {limit:.0f} s") from None
    finally:
        process.end(patience)
    if done:
        return
    status = process.status or 0
    if os.WIFSIGNALED(status):
        raise ChildEnded(f"crashed: the process ended by {_signal(os.WTERMSIG(status))}")
    raise ChildEnded(f"crashed: the process ended with exit code {os.waitstatus_to_exitcode(status)}")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class ChildEnded(Exception):
    """The other process crashed or hung."""


Told = tuple[str, Outcome, str, str, Any, int, str]


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


#: Writes the program of a check in which the process ended, of the steps that it told before.
Program = Callable[[Check, list[steps.Step]], str]


def ended(check: Check, why: str, done: list[steps.Step], program: Program) -> Result:
    """The result of a check in which the process ended."""
    said = steps.last("offer", done)
    if done and done[-1][0] == "make":
        said = f"while {done[-1][1]!r} was made"
        if SAMPLES[done[-1][1]].huge:
            return Result(check, Outcome.NOT_RUN, f"{said}, for which memory is short: {why}")
    evidence = printable(f"{said}: {why}" if said else why)
    return Result(check, Outcome.FAILED, evidence, program(check, done), check.ended)


#: Whether this process runs one check alone, and so may copy itself for each of its cases.
_ALONE: list[bool] = []


def alone() -> bool:
    """Whether this process is one that `one` has made."""
    return bool(_ALONE)


def one(run: Callable[[], Result], check: Check, program: Program) -> Result:
    """Runs one check in a process of its own."""
    done: list[steps.Step] = []

    def body(send: Send) -> None:
        _ALONE.append(True)
        steps.listen(lambda step: send(("step", step)))
        send(("result", told(run())))

    result: Result | None = None
    try:
        for kind, value in forked(body):
            if kind == "step":
                done.append(value)
            else:
                result = of(value, {check.id: check})
    except ChildEnded as why:
        return ended(check, str(why), done, program)
    assert result is not None
    return result


def many(
    run: Callable[[list[Check], dict[str, Result], dict[str, str]], Iterable[Result]],
    checks: list[Check],
    program: Program,
) -> Iterator[Result]:
    """Runs checks in one other process, and goes on in a new one after a check in which it ended.

    `run` is given the checks that are left, the results so far, and the samples in whose making the process ended: they
    are told once, and not made again.
    """
    by_id = {check.id: check for check in checks}
    results: dict[str, Result] = {}
    fatal: dict[str, str] = {}
    left = list(checks)
    while left:
        done: list[steps.Step] = []

        def body(send: Send, left: list[Check] = left) -> None:
            steps.listen(lambda step: send(("step", step)))
            for result in run(left, dict(results), dict(fatal)):
                send(("result", told(result)))

        try:
            for kind, value in forked(body):
                if kind == "step":
                    done.append(value)
                    continue
                result = of(value, by_id)
                results[result.check.rule] = result
                left, done = left[1:], []
                yield result
        except ChildEnded as why:
            if not left:
                return
            if done and done[-1][0] == "make":
                fatal[done[-1][1]] = str(why)
            result = ended(left[0], str(why), done, program)
            results[result.check.rule] = result
            left = left[1:]
            yield result
        else:
            return
