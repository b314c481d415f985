"""The stack that a finaliser finds below owners that end, and greenlets that leave theirs in another order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import pytest

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.interpreter.threads import on_stack_of
from conformance.tests.ownership import native
from conformance.tests.ownership.subprocesses import EACH_INTERPRETER, Interpreter

#: In bytes, of which `docs/ownership.md` tells: what nested ends use, the last one of them included.
MOST = (128 << 10) + (16 << 10)
#: In bytes, too: 64 ends, which nest on a stack of any size, use no more.
LEAST = 64 * 1024


class Ends(Cai):
    """A producer that calls a function as it ends."""

    def __init__(self, end: Callable[[], object]) -> None:
        super().__init__(interface())
        self.end = end

    def __del__(self) -> None:
        self.end()


def chain(producer: Any, length: int) -> Any:
    """A view of a tensor of a view, and so on, of the producer, which nothing else keeps."""
    view = cd.view(producer, device_id=0)
    del producer
    for _ in range(length):
        view = cd.from_dlpack(view.__dlpack__(stream=-1, max_version=(1, 3)), producer_stream=None)
    return view


def here() -> int:
    """The address of a variable in a C function that this calls."""
    stack = native.with_gil().stack
    stack.restype = ctypes.c_size_t
    address: int = stack()
    return address


@pytest.mark.parametrize("mebibytes", [0.5, 1, 2, 8, 64])
def test_a_finaliser_finds_as_good_as_all_of_the_stack(mebibytes: float) -> None:
    """One that recurses until Python refuses it must find what it has found elsewhere."""
    used: dict[int, int] = {}

    def end(length: int) -> None:
        found: list[int] = []
        held = [chain(Ends(lambda: found.append(here())), length)]
        begun = here()
        held.clear()
        used[length] = begun - found[0]

    def end_all() -> None:
        for length in [*range(70), 100, 200, 500, 1_000, 2_000, 4_000, 6_000, 8_000, 20_000]:
            end(length)

    on_stack_of(int(mebibytes * (1 << 20)), end_all)
    most = MOST if mebibytes >= 2 else LEAST
    assert len(used) == 79
    assert {length: bytes_used for length, bytes_used in used.items() if bytes_used - used[0] > most} == {}


@EACH_INTERPRETER
def test_a_chain_ends_wherever_the_stack_becomes_too_small(interpreter: Interpreter) -> None:
    """The list of those that wait was emptied above that place, into itself below it, for ever and with the GIL."""
    exit_code, printed = interpreter.run(
        """
        import threading
        import cai_dlpack as cd

        class Array:
            __cuda_array_interface__ = {"shape": (2,), "typestr": "<f4", "data": (4096, False), "version": 3}

            def __del__(self):
                ended.append(1)

        def end():
            view = cd.view(Array(), device_id=0, producer_stream=None)
            for _ in range(300):
                view = cd.from_dlpack(view.__dlpack__(stream=-1, max_version=(1, 3)), producer_stream=None)
            del view

        ended = []
        for kibibytes in range(1024, 1160, 4):
            threading.stack_size(kibibytes << 10)
            thread = threading.Thread(target=end)
            thread.start()
            thread.join()
        assert len(ended) == 34, ended
        """,
        seconds=60,
    )
    assert exit_code == 0, printed


@pytest.mark.parametrize("kibibytes", [0, 512])
@pytest.mark.parametrize("rounds", [1, 100])
def test_greenlets_that_leave_finalisers_crosswise_keep_nothing_waiting(rounds: int, kibibytes: int) -> None:
    """They share a thread: the ends that have begun do not return in the order in which they nest."""
    import greenlet

    ended: list[str] = []

    def end(producer: Callable[[], object]) -> None:
        view = chain(Ends(producer), 0)
        del view

    def cross() -> None:
        main = greenlet.getcurrent()
        first = greenlet.greenlet(lambda: end(main.switch))
        second = greenlet.greenlet(lambda: end(first.switch))
        first.switch()  # back from the first one's finaliser
        second.switch()  # whose finaliser has the first one leave
        assert first.dead and not second.dead
        second.switch()
        assert second.dead

    def end_all() -> None:
        for _ in range(rounds):
            cross()
        view = chain(Ends(lambda: ended.append("chain")), 30_000)
        del view
        ended.append("let go of")
        for _ in range(100):
            view = chain(Ends(lambda: ended.append("alone")), 0)
            del view

    on_stack_of(kibibytes << 10, end_all)
    assert ended == ["chain", "let go of", *["alone"] * 100]
