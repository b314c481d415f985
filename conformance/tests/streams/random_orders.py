"""Random programs whose every wait is the library's: shared by tests and soak.

Arrays of every kind of memory are handed from stream to stream, on two devices: handles and the default streams of
both. Each step imports an array where it is ready, which it declares or not, orders another stream after it, copies
and writes it there; or its producer writes it, which has gone to another stream meanwhile. Without a wait some copy
would be of another step's value. An order makes the driver calls of its row in the table of docs/streams.md; if any
one of them fails, the error names it and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import ctypes
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import cai_dlpack as cd
from cai_conformance import abi
from cuda.core.utils import StridedMemoryView

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.simulated.capture import Captures
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.call_table import HOST, Row, names, table
from conformance.tests.streams.elsewhere import elsewhere
from conformance.tests.streams.moved_producers import LOANS, Moving, Use
from conformance.tests.streams.silent_producers import produced

NBYTES = 24
# The calls that order a stream, or the host: any of them will do.
FACES: dict[str, Callable[[cd.CaiView, int], Any]] = {
    "on": lambda view, stream: view.on(stream),
    "dlpack": lambda view, stream: view.__dlpack__(stream=stream, max_version=(1, 3)),
    "join": lambda view, stream: cd.join([view], on=stream),
    "to, by a table": lambda view, stream: cd.to(view, StridedMemoryView, stream=stream),
    "to, by a call": lambda view, stream: cd.to(view, "tvm_ffi", stream=stream),
    "to, by a wait of the host": lambda view, _: cd.to(view, "numba"),
    "synchronize": lambda view, _: view.synchronize(),
    "wait": lambda view, _: asyncio.run(view.wait()),
}
# Codes by which a call of the driver fails, of an event that is alive: out of memory, an unknown error.
FAILURES = [2, 999]
TABLE = table()
_DLPACK = {
    "device": abi.CUDA,
    "pool": abi.CUDA,
    "pinned": abi.CUDA_HOST,
    "managed": abi.CUDA_MANAGED,
    "pinned, named": abi.CUDA,
    "managed, named": abi.CUDA,
}


@dataclass(frozen=True)
class Queue:
    """A stream as its number, and the device in whose primary context the number means it."""

    device: int
    number: int

    @property
    def is_default(self) -> bool:
        return self.number <= 2


@dataclass
class Array:
    """Memory, the device whose default streams are meant for it (`None`: those of any), and where it is ready.

    Memory that every device reaches may be named as that of one, which need not be the one that it was allocated for.
    """

    kind: str
    address: int
    device: int | None
    ready: Queue
    value: int = 0

    @property
    def is_named(self) -> bool:
        return self.kind.endswith("named")

    @property
    def named(self) -> int | None:
        """The device that an import by CAI has to name."""
        return self.device if self.is_named else None


async def _inside(block: AbstractAsyncContextManager[cd.CaiView], body: Callable[[], None]) -> None:
    async with block:
        body()


@dataclass
class Program:
    """One machine for many programs, each of its own seed.

    `rows` counts the rows of the table that orders were compared with, `failed` the calls that were made to fail,
    `moved` the routes on which a producer went to another stream, and `wrong` tells what was not as it has to be, of
    all programs.
    """

    machine: Machine
    has_edges: bool = True  # captures, and calls that fail, among the steps
    queues: list[Queue] = field(init=False)
    arrays: list[Array] = field(init=False)
    rows: Counter[Row] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        machine = self.machine
        handles = [Queue(device, machine.stream(device)) for device in (0, 0, 1)]
        self.queues = handles + [Queue(device, number) for device in (0, 1) for number in (1, 2)]
        first = handles[0]
        self.arrays = [
            Array("device", machine.device_memory(NBYTES, 0), 0, first),
            Array("device", machine.device_memory(NBYTES, 1), 1, first),
            Array("pool", machine.pool_memory(NBYTES), 0, first),
            Array("pinned", machine.pinned_memory(NBYTES), None, first),
            Array("managed", machine.managed_memory(NBYTES), None, first),
            Array("pinned, named", machine.pinned_memory(NBYTES), 1, first),
            Array("managed, named", machine.managed_memory(NBYTES), 1, first),
        ]
        self.copies = machine.device_memory(64 * NBYTES)
        self._meet()

    def _meet(self) -> None:
        """Makes the calls that only the first order of a context or device makes."""
        for array in self.arrays:
            for queue in self.queues:
                if queue.is_default and array.device in (None, queue.device):
                    self.machine.set_current(queue.device)
                    data = (array.address, False)
                    view = cd.view(Cai(interface(data=data, stream=queue.number)), device_id=array.named)
                    view.on(self.queues[0].number)
                    view.synchronize()
        self.machine.set_current(0)

    def is_right(self, seed: int, steps: int = 12) -> bool:
        """Runs the program of this seed; returns whether every copy is of the step before it, and every call right."""
        choose, before, live = random.Random(seed), len(self.wrong), self.machine.control.live()
        for array in self.arrays:
            array.ready, array.value = self.queues[0], 0
            self.machine.write(array.address, bytes(NBYTES))
        expected = []
        for step in range(steps):
            # Those that are named have no rows of the table.
            (array,) = choose.choices(self.arrays, [1 if array.is_named else 3 for array in self.arrays])
            expected.append(array.value)
            self._step(choose, array, self.copies + step * NBYTES, step + 1)
        self._wait_for_all(choose)
        seen = [self.machine.read(self.copies + step * NBYTES, NBYTES) for step in range(steps)]
        left = [self.machine.read(array.address, NBYTES) for array in self.arrays]
        values = expected + [array.value for array in self.arrays]
        if seen + left != [bytes([value]) * NBYTES for value in values]:
            self.wrong.append(f"seed {seed}: {values}, but {[value[0] for value in seen + left]}")
        if self.machine.control.live() != live:
            self.wrong.append(f"seed {seed} leaves {self.machine.control.live()} of {live}")
        return len(self.wrong) == before

    def _step(self, choose: random.Random, array: Array, copy: int, value: int) -> None:
        """Hands the array to another stream, which copies it and writes it."""
        if choose.random() < 0.1:
            self._order_nothing(choose, array)
        if self.has_edges and choose.random() < 0.05:
            self._fail_first(choose, array)
        if self.has_edges and choose.random() < 0.1:
            self._capture(array, *choose.sample(self.queues[:2], 2))
        consumer = choose.choice(self._usable(array))
        if choose.random() < 0.1 and not (array.device is None and array.ready.is_default):
            self._move(choose, array, copy, value)
            return
        self._current(choose, array.ready, array)
        named = array.device if choose.random() < 0.5 else array.named  # else the driver is asked
        device = _DLPACK[array.kind], array.device or 0
        made = produced(choose, array.address, device, array.ready.number, named)
        view = made.view(choose, self.wrong)
        is_met = isinstance(made.array, (Cai, dict)) and "device_id" not in made.told
        current = self._current(choose, consumer, array, may_be_none=True)
        row = self._row(array, consumer.number, consumer.device, current, is_met)
        if self.has_edges and row is not None and choose.random() < 0.6:
            self._fail(choose, row, current, lambda: view.on(consumer.number))
        if choose.random() < 0.3:
            self._lend(choose, view, array, consumer, lambda: self._use(consumer, array.address, copy, value), row)
            if view.producer_stream == "unknown":
                array.ready = consumer  # no return edge
        else:
            self._hand_on(choose, view, array, consumer, current, row, is_met)
            self._use(consumer, array.address, copy, value)
            array.ready = consumer
        array.value = value

    def _usable(self, array: Array) -> list[Queue]:
        return [queue for queue in self.queues if not queue.is_default or array.device in (None, queue.device)]

    def _move(self, choose: random.Random, array: Array, copy: int, value: int) -> None:
        """Lends the array while its producer goes to another stream, on which it writes next."""
        usable = [queue for queue in self._usable(array) if array.device is not None or not queue.is_default]
        to, consumer, between = (choose.choice(usable) for _ in range(3))
        moving = Moving.of(array.address, (_DLPACK[array.kind], array.device or 0), array.ready.number)
        self._current(choose, None, array)
        view = cd.view(moving.array)

        def read(address: int) -> None:
            before = self.machine.current()
            self._copy(consumer, address, copy)
            self.machine.enter(before)

        use = Use(consumer.number, between.number, lambda: moving.go(to.number), read)
        if choose.random() < 0.5:
            use.move()
        name = choose.choice(list(LOANS))
        LOANS[name](view, use)
        writer = choose.choice([to, to, array.ready])  # it may have come back
        self.machine.set_current(writer.device)
        self.machine.control.store(writer.number, array.address, bytes([value]) * NBYTES)
        array.ready, array.value = writer, value
        self.moved[name] += 1

    def _lend(
        self,
        choose: random.Random,
        view: cd.CaiView,
        array: Array,
        consumer: Queue,
        use: Callable[[], None],
        row: Row | None,
    ) -> None:
        block = view.consume(consumer.number)
        self.machine.clear()

        def body() -> None:
            self._compare(row, consumer.is_default and array.device is None)
            use()
            at_the_end.append(self._current(choose, None, array))
            self.machine.clear()

        at_the_end: list[int | None] = []
        if choose.random() < 0.5:
            with block:
                body()
        else:
            asyncio.run(_inside(block, body))
        producer, (current,) = array.ready, at_the_end
        if not (producer.is_default or consumer.is_default) and view.producer_stream != "unknown":
            back = Array(array.kind, array.address, array.device, ready=consumer)
            self._compare(self._row(back, producer.number, producer.device, current, is_met=False))

    def _hand_on(
        self,
        choose: random.Random,
        view: cd.CaiView,
        array: Array,
        consumer: Queue,
        current: int | None,
        row: Row | None,
        is_met: bool,
    ) -> None:
        are_handles = not consumer.is_default and not array.ready.is_default
        if are_handles and choose.random() < 0.2:
            streams = [array.ready.number, *(queue.number for queue in self.queues[:3])]
            elsewhere(lambda: cd.join(streams, on=consumer.number))  # on a thread without a context
            return
        face = choose.choice(list(FACES))
        if face == "synchronize":
            row = self._row(array, HOST, None, current, is_met)
        self.machine.clear()
        kept = FACES[face](view, consumer.number)
        if face not in ("wait", "to, by a wait of the host"):
            is_remembered = face in ("on", "join") and consumer.is_default and array.device is None
            self._compare(row, is_remembered)
        del kept

    def _capture(self, array: Array, producer: Queue, consumer: Queue) -> None:
        """An order inside a capture, which ends whole."""
        self.machine.set_current(producer.device)
        captures = Captures(self.machine)
        captures.begin(producer.number)
        captures.fork(producer.number, consumer.number)
        view = cd.view(Cai(interface(data=(array.address, False), stream=producer.number)), device_id=array.named)
        self.machine.clear()
        view.on(consumer.number)
        self._compare_named(array, ("A", "B", array.kind, "A's, both captured"))
        captures.fork(consumer.number, producer.number)
        graph = captures.end(producer.number)
        self._do("cuGraphDestroy", ctypes.c_void_p(graph))

    def _order_nothing(self, choose: random.Random, array: Array) -> None:
        """Of ready data, and for a consumer that orders the streams itself, nothing is called."""
        self._current(choose, array.ready, array)
        producer = Cai(interface(data=(array.address, False), stream=array.ready.number))
        view = cd.view(producer, device_id=array.named)
        ready = cd.view(producer, producer_stream=None, device_id=array.named)
        self.machine.clear()
        if not array.ready.is_default:
            view.__dlpack__(stream=-1, max_version=(1, 3))
            self._compare_named(array, ("A", "-1", array.kind, "A's"))
            self.machine.clear()
        FACES[choose.choice(["on", "dlpack", "join"])](ready, self.queues[0].number)
        self._compare_named(array, ("None", "B", array.kind, "A's"))
        if array.kind != "managed":  # the table's is on a device that does not share it
            self.machine.clear()
            FACES["synchronize"](ready, HOST)
            self._compare_named(array, ("None", "host", array.kind, "A's"))

    # --- what an order calls ---

    def _row(
        self, array: Array, consumer: int, consumer_device: int | None, current: int | None, is_met: bool
    ) -> Row | None:
        """The row of the table, if it is of one; `is_met` says that the import has asked whose the memory is."""
        ready, kind = array.ready, array.kind
        first, second = names(ready.number, consumer)
        is_own = array.device is not None
        if kind == "pool" and first == "1" and second != "1" and not is_met:
            return None
        if second == "host" and kind == "managed":
            kind = "pinned"
        if second in ("1", "2") and first == "A" and is_own and ready.device != consumer_device:
            return None
        if second == "2" and not is_own and ready.device != consumer_device:
            return None
        if current is None and (array.device or 0) != ready.device:
            return None
        where = {ready.device: "A's", None: "none"}.get(current, "another")
        if (first, second) in (("A", "A"), ("1", "1")) and (is_own or first == "A"):
            where = "A's"
        row = (first, second, kind, where)
        return row if row in TABLE else None

    def _compare_named(self, array: Array, row: Row) -> None:
        """Compares, unless the array has no rows: it is called another memory than it is."""
        self._compare(None if array.is_named else row)

    def _compare(self, row: Row | None, is_remembered: bool = False) -> None:
        """Compares the calls since the log was cleared with the table; a view that is made asks for the context."""
        if row is None:
            return
        self.rows[row] += 1
        calls, expected = self.machine.names(), TABLE[row]
        more = ["cuCtxGetCurrent"] * is_remembered
        if calls not in ([*expected, *more], [*more, *expected]):
            self.wrong.append(f"{row}: {calls}, but the table has {expected}")

    def _fail(self, choose: random.Random, row: Row, current: int | None, order: Callable[[], object]) -> None:
        """One call of the order fails, again and again: the error names it, and no event or stream is left behind."""
        calls = TABLE[row]
        if not calls:
            return
        at = choose.randrange(len(calls))
        call, live = calls[at], self.machine.control.live()
        # The order stands by then: the caller's context is made current once more.
        is_made = not {"cuStreamWaitEvent", "cuStreamSynchronize"} & set(calls[at:])
        is_late = is_made and call in ("cuCtxPopCurrent", "cuDevicePrimaryCtxRelease")
        for _ in range(3):
            self.machine.control.fault(call, choose.choice(FAILURES), calls[: at + 1].count(call))
            try:
                order()
            except cd.DriverError as error:
                if is_late or call not in str(error):
                    self.wrong.append(f"{call} of {row} failed as {error}")
            else:
                if not is_late:
                    self.wrong.append(f"{call} of {row} failed unseen")
            self.machine.control.clear_faults()
            self._enter(current)
        self.failed[call] += 1
        if self.machine.control.live() != live:
            self.wrong.append(f"{call} of {row} failed and leaves {self.machine.control.live()} of {live}")

    def _fail_first(self, choose: random.Random, array: Array) -> None:
        """The first order of a context, which makes its event, fails: no event is left behind."""
        machine, made = self.machine, ctypes.c_void_p()
        home = machine.create_context(0)
        machine.enter(home)
        self._do("cuStreamCreate", ctypes.byref(made), 1)
        view = cd.view(Cai(interface(data=(array.address, False), stream=made.value)))
        call, live = choose.choice(["cuEventCreate", "cuEventRecord"]), machine.control.live()
        for _ in range(3):
            machine.control.fault(call, choose.choice(FAILURES))
            try:
                view.on(self.queues[0].number)
            except cd.DriverError:
                continue
            self.wrong.append(f"{call} of a new context failed unseen")
        if machine.control.live() != live:
            self.wrong.append(f"{call} of a new context failed and leaves {machine.control.live()} of {live}")
        self.failed[call] += 1
        del view
        machine.set_current(0)
        machine.destroy_context(home)

    # --- the machine ---

    def _current(
        self, choose: random.Random, queue: Queue | None, array: Array, may_be_none: bool = False
    ) -> int | None:
        """Makes the context current that the number is meant in; any, or none, where the number says it all."""
        matters = queue is not None and queue.is_default and array.device is None
        current = queue.device if queue is not None and matters else choose.choice([0, 1, None][: 2 + may_be_none])
        self._enter(current)
        return current

    def _enter(self, current: int | None) -> None:
        if current is None:
            self.machine.enter(0)
        else:
            self.machine.set_current(current)

    def _use(self, queue: Queue, address: int, copy: int, value: int) -> None:
        self._copy(queue, address, copy)
        self.machine.control.store(queue.number, address, bytes([value]) * NBYTES)

    def _copy(self, queue: Queue, address: int, copy: int) -> None:
        self.machine.set_current(queue.device)
        arguments = ctypes.c_uint64(copy), ctypes.c_uint64(address), ctypes.c_size_t(NBYTES)
        self._do("cuMemcpyAsync", *arguments, ctypes.c_void_p(queue.number))

    def _wait_for_all(self, choose: random.Random) -> None:
        for queue in choose.sample(self.queues, len(self.queues)):
            self.machine.set_current(queue.device)
            self._do("cuStreamSynchronize", ctypes.c_void_p(queue.number))
        self.machine.set_current(0)

    def _do(self, name: str, *arguments: Any) -> None:
        code = getattr(self.machine.driver, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    def close(self) -> None:
        self.machine.set_current(0)
        for array in self.arrays:
            if array.kind.startswith("pinned"):
                self._do("cuMemFreeHost", ctypes.c_void_p(array.address))
            else:
                self.machine.free(array.address)
        self.machine.free(self.copies)
        for queue in self.queues:
            if not queue.is_default:
                self.machine.destroy_stream(queue.number)
