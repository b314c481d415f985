"""Streams that are destroyed while they work: what may be asked of them, and what waits for the work."""

from __future__ import annotations

from cai_conformance.slow import Slow

from conformance.tests.cusim.model.driver import Driver
from conformance.tests.cusim.questions.ask import LONG, question
from conformance.tests.cusim.questions.handles import stream_calls


def busy(name: str) -> None:
    def ask(cu: Driver) -> object:
        slow, stream = Slow(), cu.stream()
        slow.busy(stream, 0)
        cu.wait_for(stream)
        asked = stream_calls(cu, stream)
        slow.busy(stream, LONG)
        cu.destroy_stream(stream)
        return asked[name]()

    ask.__doc__ = f"a stream that was destroyed while it works: {name}"
    question(ask)


for each in ("id", "query", "record"):
    busy(each)


@question
def destroyed_while_it_works(cu: Driver) -> object:
    """does cuStreamDestroy wait for the stream's work; does cuMemFree in its context afterwards?"""
    slow, stream, memory, event = Slow(), cu.stream(), cu.alloc(8), cu.event()
    slow.busy(stream, 0)
    cu.wait_for(stream)
    slow.busy(stream, LONG)
    cu.record(event, stream)
    cu.destroy_stream(stream)
    after_destroy = cu.event_done(event)
    cu.free(memory)
    return after_destroy, cu.event_done(event)
