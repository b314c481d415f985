"""Steps of the programs at the edges about captures: what runs beside one, is refused in one, and joins back."""

from __future__ import annotations

import time
from collections.abc import Callable

import cai_dlpack as cd
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.simulated.capture import GLOBAL, IDLE, RELAXED, THREAD_LOCAL
from conformance.tests.streams.edge_pieces import Pieces

# The edges that these steps meet.
CAPTURES = {
    "steps beside a capture",
    "copies end beside the capture of a blocking stream",
    "refused in a capture",
    "nested loans in a capture",
}


class Captured(Pieces):
    """What happens while a stream is being captured."""

    def _capture(self) -> None:
        """Begins a capture that lasts over the next steps, or ends it: whole, and without a node."""
        if not self.captured:
            stream = self.random.choice(self.bench.capturable)
            self.machine.set_current(1)
            self.captures.begin(stream, self.random.choice([GLOBAL, THREAD_LOCAL, RELAXED]))
            self.captured = stream
            return
        graph = self.captures.end(self.captured)
        self.captured = 0
        if count := self.captures.nodes(graph):
            self.wrong.append(f"{count} nodes in a capture")
        self.reached["steps beside a capture"] += 1

    def _capture_a_blocking_stream(self) -> None:
        """A capture that any use of the legacy stream breaks: copies for that end before it and in it."""
        array, seconds = self._array(), self.random.choice([0, 0, 0.001])
        legacy = next(queue for queue in self.bench.queues if queue.number == 1 and array.can_name(queue))
        view, stream = self._view(array), self.bench.blocking[legacy.home]
        self._enter(legacy, array)
        made = [abi.consume(view.__dlpack__(stream=1, copy=True, max_version=(1, 3))) for _ in range(2)]
        for tensor in made:
            self._read(legacy, tensor.data, array.value)
        abi.release(made.pop())
        self.machine.enter(legacy.home)
        self.captures.begin(stream, self.random.choice([GLOBAL, THREAD_LOCAL, RELAXED]))
        abi.release(made.pop())
        self._drop()
        time.sleep(seconds)
        if count := self.captures.nodes(self.captures.end(stream)):
            self.wrong.append(f"{count} nodes in the capture of a blocking stream")
        self.reached["copies end beside the capture of a blocking stream"] += 1

    def _refuse_in_a_capture(self) -> None:
        """What would break a capture is refused, and draws no stream into it."""
        if not self.captured:
            return
        # Data that is ready in the capture, read by a stream, a copy or the host; and the other way about.
        array, queue = self._array(), self.random.choice(self.bench.handles)
        captured = cd.view(Cai(interface(data=(array.address, False), stream=self.captured)))
        outside = self._view(array)
        self.machine.enter(self.random.choice(self.bench.homes))
        calls: list[tuple[str, Callable[[], object]]] = [
            ("capture-producer", lambda: captured.on(queue.number)),
            ("capture-producer", lambda: captured.__dlpack__(stream=queue.number, copy=True)),
            ("capture-consumer", lambda: outside.__dlpack__(stream=self.captured, copy=True)),
            ("capture-host-wait", lambda: cd.to_dlpack(captured, stream="host")),
            ("capture-host-wait", lambda: captured.__dlpack__(stream=-1, copy=True)),
        ]
        for rule, call in calls:
            if not self._expect({rule}, call):
                self.wrong.append(f"accepted: {rule}")
        if self.captures.state(queue.number) != IDLE:
            self.wrong.append("a refusal draws a stream into a capture")
        self.reached["refused in a capture"] += 1

    def _lend_in_a_capture(self) -> None:
        """Loans inside a capture, one in the other, which join back before it ends."""
        if not self.captured:
            return
        array = self._array()
        outer, inner = self.random.sample(self.bench.handles, 2)
        view = cd.view(Cai(interface(data=(array.address, False), stream=self.captured)))
        try:
            with view.consume(outer.number) as lent, lent.consume(inner.number):
                pass
        except BufferError as refused:
            self.wrong.append(f"a loan in a capture: {refused}")
        self._capture()
        if [self.captures.state(queue.number) for queue in (outer, inner)] != [IDLE, IDLE]:
            self.wrong.append("a loan outlives its capture")
        self.reached["nested loans in a capture"] += 1
