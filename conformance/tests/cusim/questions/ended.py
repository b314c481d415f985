"""Streams that were destroyed: what may still be asked, while their work is pending and afterwards."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_uint64, c_void_p

from cai_conformance.slow import Slow

from conformance.tests.cusim.model.driver import Driver
from conformance.tests.cusim.questions.ask import LONG, question


def calls(cu: Driver, stream: int) -> dict[str, Callable[[], int]]:
    event = cu.event()
    return {
        "id": lambda: cu.code("cuStreamGetId", c_void_p(stream), byref(c_uint64())),
        "query": lambda: cu.code("cuStreamQuery", c_void_p(stream)),
        "record": lambda: cu.code("cuEventRecord", c_void_p(event), c_void_p(stream)),
    }


def idle(name: str) -> None:
    def ask(cu: Driver) -> object:
        stream = cu.stream()
        asked = calls(cu, stream)
        cu.destroy_stream(stream)
        return asked[name]()

    ask.__doc__ = f"a stream that was destroyed, of those that had no work left: {name}"
    question(ask)


def busy(name: str) -> None:
    def ask(cu: Driver) -> object:
        slow, stream = Slow(), cu.stream()
        slow.busy(stream, 0)
        cu.wait_for(stream)
        asked = calls(cu, stream)
        slow.busy(stream, LONG)
        cu.destroy_stream(stream)
        return asked[name]()

    ask.__doc__ = f"a stream that was destroyed while it works: {name}"
    question(ask)


for each in ("id", "query", "record"):
    idle(each)
    busy(each)


@question
def destroyed_while_it_works(cu: Driver) -> object:
    """does cuStreamDestroy wait for the stream's work; does cuMemFree in its context afterwards?"""
    slow, stream, memory, mark, event = Slow(), cu.stream(), cu.alloc(8), cu.stream(), cu.event()
    slow.busy(stream, 0)
    cu.wait_for(stream)
    slow.busy(stream, LONG)
    cu.record(event, stream)
    cu.destroy_stream(stream)
    after_destroy = cu.event_done(event)
    cu.free(memory)
    del mark
    return after_destroy, cu.event_done(event)
