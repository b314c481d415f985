"""Steps of the programs at the edges about ends: of guards on other threads, of owners that the host uses anew."""

from __future__ import annotations

import gc
import warnings

import cai_dlpack as cd
from cai_conformance import abi

from conformance.tests.interpreter.free_threaded import FREE_THREADED
from conformance.tests.ownership.waiting import until
from conformance.tests.streams.edge_machine import NBYTES, Array, Cached, Queue
from conformance.tests.streams.edge_pieces import Pieces
from conformance.tests.streams.elsewhere import elsewhere
from conformance.tests.streams.moved_producers import Moving

# The edges that these steps meet.
ENDS = {
    "source goes to a host cache before its copy",
    "a copy's memory cannot be waited for",
    "a context is not told of",
    "a copy takes over what is still read",
    "a copy for the legacy stream is read beside it",
    "a producer works on another thread's stream",
    *([] if FREE_THREADED else ["a guard is dropped on another thread"]),
}


class Ends(Pieces):
    """What ends elsewhere, or by the host."""

    def _cache(self) -> None:
        """A copy of memory that its owner's end gives to the host, which writes it in the order of no stream."""
        made = Cached(self.bench, self.random)
        consumer = self.random.choice(self.bench.queues)
        self.machine.enter(consumer.home)
        device_id = self.random.choice([None, None, consumer.device]) if not consumer.is_default else None
        with self._without_a_host_wait():
            capsule = cd.view(made, device_id=device_id).__dlpack__(
                stream=consumer.number, copy=True, max_version=(1, 3)
            )
        tensor = abi.consume(capsule)
        self._read(consumer, tensor.data, made.value)
        del made, capsule
        self.kept.append(tensor)
        self.reached["source goes to a host cache before its copy"] += 1

    def _refuse_waits(self) -> None:
        """The library's threads can wait for no device at first: a copy that ends stays until they can."""
        for call in ("cuMemAlloc_v2", "cuMemHostAlloc"):
            self.machine.control.fault(call, 2, self.random.randrange(1, 3), by="other")
        self.reached["a copy's memory cannot be waited for"] += 1

    def _refuse_to_tell(self) -> None:
        """The library's threads are not told of a context at first: a copy that ends stays until they are."""
        if not self.kept:
            return
        call, control = "cuCtxGetId", self.machine.control  # which no owner's end calls
        refusals = 2 * self.random.randrange(1, 3)
        self.machine.enter(self.random.choice(self.bench.homes))
        self.machine.clear()
        for nth in range(1, refusals + 1):
            control.fault(call, 999, nth, by="other")
        abi.release(self.kept.pop(self.random.randrange(len(self.kept))))
        view, stream = self._view(self.bench.arrays[0]), self.bench.handles[0].number
        for _ in range(100):
            if until(lambda: sum(made.result == 999 for made in control.calls(call)) == refusals, 0.2):
                break
            # A thread that was at work may have called before the last refusal was set.
            abi.release(abi.consume(view.__dlpack__(stream=stream, copy=True, max_version=(1, 3))))
        else:
            self.wrong.append(f"not refused {refusals} times: {control.calls()}")
        self.reached["a context is not told of"] += 1

    def _take_over(self) -> None:
        """A copy of ready memory, while memory is short, gets a dropped one's, which the stream still reads."""
        consumer, before = self.random.choice(self.bench.queues), 0
        self.machine.enter(consumer.home)
        for calls in ([], ["cuMemHostAlloc"]):
            made = Cached(self.bench, self.random, "pinned")
            for call in calls:
                self.machine.control.fault(call, 2, 1, by="this")
            try:
                capsule = cd.view(made, producer_stream=None).__dlpack__(
                    stream=consumer.number, copy=True, max_version=(1, 3)
                )
            except cd.DriverError:
                return  # the dropped one has been given back by now
            finally:
                self.machine.control.clear_faults()  # a copy into a block that is free asks for no memory
            tensor = abi.consume(capsule)
            self._read(consumer, tensor.data, made.value)
            self.reached["a copy takes over what is still read"] += tensor.data == before
            before = tensor.data
            del made, capsule
            abi.release(tensor)

    def _read_beside(self) -> None:
        """A copy for the legacy stream, read on one that this waits for: its end comes after that, too."""
        array = self._array()
        consumer = next(queue for queue in self.bench.queues if queue.number == 1 and array.can_name(queue))
        view = self._view(array)
        self._enter(consumer, array)
        tensor = abi.consume(view.__dlpack__(stream=1, copy=True, max_version=(1, 3)))
        number = self.random.choice([2, self.bench.blocking[consumer.home]])
        self._read(Queue(consumer.home, number, consumer.device), tensor.data, array.value)
        abi.release(tensor)
        self.reached["a copy for the legacy stream is read beside it"] += 1

    def _leave_elsewhere(self) -> None:
        """A block that is left, or dropped, on another thread than its consumer's: the producer's next write waits."""
        array = self._array()
        consumer = self._usable(array)
        if self.random.random() < 0.5:
            consumer = Queue(array.home or consumer.home, 2, array.device or consumer.device)
        if FREE_THREADED or (self.captured and array.ready.number == 2):
            return  # the host's wait, for a stream that only its thread can name, may be refused beside a capture
        view = self._view(array)
        self._enter(consumer, array)
        block = [view.consume(consumer.number)]
        block[0].__enter__()
        self._read(consumer, array.address, array.value)

        def drop() -> None:
            self.machine.enter(self.random.choice(self.bench.homes))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", cd.ConsumeWarning)
                block.clear()
                gc.collect()

        elsewhere(drop)
        self._write(array)
        self.reached["a guard is dropped on another thread"] += 1

    def _move_elsewhere(self) -> None:
        """The consumer's stream and the producer's are both 2, but of two threads: the block's end is refused."""
        owned = [array for array in self.bench.arrays if array.home is not None]
        array = self.random.choice(owned)
        home, device = array.home, array.device
        assert home is not None and device is not None
        own, view = Queue(home, 2, device), self._view(array)
        self.machine.enter(home)
        view.on(2)
        self._use(own, array)
        array.ready = own
        moving = Moving.of(array.address, (abi.CUDA, device), 2)
        block = cd.view(moving.array).consume(2)
        block.__enter__()
        self._read(own, array.address, array.value)

        def leave() -> None:
            self.machine.enter(home)
            if not self._expect({"stream-thread"}, lambda: block.__exit__(None, None, None)):
                self.wrong.append("a block for one thread's stream is left on another one's")

        elsewhere(leave)
        self.reached["a producer works on another thread's stream"] += 1

    def _write(self, array: Array) -> None:
        """The producer's next write, where the array is ready."""
        array.value = self.random.randrange(1, 256)
        self.machine.enter(array.ready.home)
        self.machine.control.store(array.ready.number, array.address, bytes([array.value]) * NBYTES)
