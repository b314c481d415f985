"""Memory that every context reaches, by each of its names: a default stream that is named is the current context's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import cai_dlpack as cd
import cai_example_peer as peer
import pytest

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.race import LEGACY, NBYTES, PER_THREAD, Track

WRITTEN, NEXT = 0x11, 0x33
NAMES: dict[str, Callable[[cd.CaiView], Any]] = {
    "its own": lambda view: view,
    "the CPU's": lambda view: view.present_as("host"),
    "the CPU's, passed": lambda view: cd.view(peer.view_of(view.present_as("host"))),
}
USES: dict[str, Callable[[cd.CaiView, int], Any]] = {
    "consume": lambda view, stream: view.consume(stream),
    "on": lambda view, stream: view.on(stream).consume(stream),
    "join": lambda view, stream: cd.join([view], on=stream)[0].consume(stream),
}


@dataclass
class Contexts:
    """A second context of device 0 beside the primary ones of both, and a stream with a handle for each side."""

    track: Track
    contexts: dict[str, int]
    memory: dict[str, int]

    def at(self, context: str) -> Machine:
        self.track.machine.enter(self.contexts[context])
        return self.track.machine

    def write(self, context: str, stream: int, value: int) -> None:
        self.at(context)
        self.track.write(stream, value)

    def finish(self) -> None:
        for context in self.contexts:
            self.at(context)._call("cuCtxSynchronize")


@pytest.fixture
def contexts(lazily: Track) -> Iterator[Contexts]:
    machine, before = lazily.machine, lazily.data
    memory = {"pinned": machine.pinned_memory(NBYTES), "managed": machine.managed_memory(NBYTES)}
    second = machine.create_context(0)
    made = Contexts(lazily, {"0": machine.context(0), "1": machine.context(1), "a second of 0": second}, memory)
    yield made
    made.finish()
    machine.set_current(0)
    machine.destroy_context(second)
    lazily.data = before


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["pinned", "managed"])
def test_both_edges_are_of_the_contexts_in_which_the_streams_were_named(
    kind: str, name: str, use: str, contexts: Contexts
) -> None:
    track, wrong = contexts.track, []
    track.data = contexts.memory[kind]
    numbers = {"legacy": LEGACY, "per-thread": PER_THREAD}
    produced = list(product(contexts.contexts, [*numbers, "a"]))
    consumed = list(product(contexts.contexts, [*numbers, "b"]))
    for (there, writer), (here, reader), end in product(produced, consumed, contexts.contexts):
        writes, reads = numbers.get(writer, track.a), numbers.get(reader, track.b)
        contexts.at("0").write(track.data, bytes(NBYTES))
        contexts.write(there, writes, WRITTEN)
        view = NAMES[name](cd.view(Cai(interface(data=(track.data, False), stream=writes))))
        contexts.at(here)
        with USES[use](view, reads) as lent:
            track.read(reads)
            edge = lent.return_edge
            contexts.at(end)
        contexts.write(there, writes, NEXT)
        contexts.finish()
        if track.seen() != WRITTEN or edge == "unknown":
            wrong.append((writer, there, reader, here, end, edge, track.seen()))
    assert wrong == []
