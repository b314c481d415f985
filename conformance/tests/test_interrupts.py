"""An interrupt that comes while the library formats a value for a message: it is raised after all."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest

from conformance.tests.doubles.producers import Cai, interface


class Interrupted(BaseException):
    """Raised by a handler of a signal; no `Exception`."""


class Shown:
    """Raises this while it is shown."""

    def __init__(self, raised: type[BaseException]) -> None:
        self.raised = raised

    def __repr__(self) -> str:
        raise self.raised


class Raises(Exception):
    """An exception whose text raises."""

    def __init__(self, raised: type[BaseException]) -> None:
        self.raised = raised

    def __str__(self) -> str:
        raise self.raised


def of(**entries: object) -> Any:
    return SimpleNamespace(__cuda_array_interface__=interface(**{"stream": None, **entries}))


def attempted(call: Callable[[], object]) -> None:
    """Runs a call, and code after it."""
    with contextlib.suppress(cd.Refusal, OSError, TypeError):
        call()
    for _ in range(1000):
        pass


def deleted(raised: type[BaseException]) -> object:
    def read(_: object) -> object:
        raise Raises(raised)

    return type("Deleted", (), {"__cuda_array_interface__": property(read), "is_deleted": lambda _: True})()


CALLS: dict[str, Callable[[Any], object]] = {
    "argument": lambda value: cd.view(of(), device_id=value),
    "dict": lambda value: cd.view(of(typestr=value), device_id=0),
    "stream": lambda value: cd.view(of(stream=value), device_id=0),
    "keyword": lambda value: cd.view(of(), device_id=0, elephant=value),  # type: ignore[call-arg]
    "library": lambda value: cd.to(of(), value),
    "explained": lambda value: cd.explain(of(typestr=value), device_id=0),
    "dtype": lambda value: cd.DType(value),
    "method": lambda value: cd.view(of(), device_id=0).__dlpack__(dl_device=value),
}


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, Interrupted])
@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_exception_of_the_value_is_raised(call: str, raised: type[BaseException]) -> None:
    with pytest.raises(raised):
        attempted(lambda: CALLS[call](Shown(raised)))


@pytest.mark.parametrize("call", CALLS)
def test_it_is_that_very_exception(call: str) -> None:
    raised = SystemExit(3)

    class Ends:
        def __repr__(self) -> str:
            raise raised

    with pytest.raises(SystemExit) as found:
        attempted(lambda: CALLS[call](Ends()))
    assert found.value is raised


@pytest.mark.parametrize("call", [call for call in CALLS if call != "dtype"])
def test_code_that_the_message_runs_later_does_not_take_it(call: str) -> None:
    """That of a finaliser of the exception's frames, and of the class, whose name stands for the value."""
    seen = list[str]()

    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            seen.append(name)
            return super().__getattribute__(name)

    class Dies:
        def __del__(self) -> None:
            seen.append("finaliser")

    class Shows(metaclass=Meta):
        def __repr__(self) -> str:
            dies = Dies()
            raise KeyboardInterrupt(dies is None)

    with pytest.raises(KeyboardInterrupt):
        attempted(lambda: CALLS[call](Shows()))


@pytest.mark.parametrize("raised", [KeyboardInterrupt, Interrupted])
@pytest.mark.parametrize("function", [cd.view, cd.explain])
def test_so_is_that_of_an_exceptions_text(function: Callable[..., object], raised: type[BaseException]) -> None:
    with pytest.raises(raised):
        attempted(lambda: function(deleted(raised)))


@pytest.mark.parametrize("call", [call for call in CALLS if call != "dtype"])  # Its text is asked for the name.
def test_an_exception_of_the_value_is_not(call: str) -> None:
    attempted(lambda: CALLS[call](Shown(ValueError)))


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    seen = list[object]()
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    return seen


@contextlib.contextmanager
def alarmed(raised: type[BaseException]) -> Iterator[list[int]]:
    """Raises this by a signal, which may come at any time."""
    fired = list[int]()

    def handle(number: int, _: object) -> None:
        fired.append(number)
        raise raised

    before = signal.signal(signal.SIGALRM, handle)
    try:
        yield fired
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# Not a comparison of types, which NumPy makes: it takes what a handler raises for a failure of its own.
@pytest.mark.parametrize(
    "call",
    [
        lambda: repr(cd.view(np.arange(4))),
        lambda: cd.view(of(typestr=5), device_id=0),
        lambda: cd.explain(Cai(interface(typestr=5, stream=None)), device_id=0),
    ],
    ids=["shown", "refused", "explained"],
)
def test_what_a_signals_handler_raises_is_not_lost(call: Callable[[], object], unraisable: list[object]) -> None:
    got, rounds = 0, 0
    with alarmed(Interrupted) as fired:
        while rounds < 300:
            rounds += 1
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + rounds % 40))
                for _ in range(20):
                    attempted(call)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                got += 1
    assert (got, unraisable) == (len(fired), [])
    assert fired
