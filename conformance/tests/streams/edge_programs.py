"""Random programs at the edges: several contexts and devices, copies that are dropped, captures, threads, failures.

Each step hands an array on, copies it, reads it on the host or captures beside all that; every wait is the library's.
A copy has to hold what the order of the program says, a capture has to end whole, and what is refused has to be
refused by its rule. `Program.reached` counts the edges that the steps of a program have met.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import numpy as np
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.streams.edge_captures import CAPTURES, Captured
from conformance.tests.streams.edge_ends import ENDS, Ends
from conformance.tests.streams.edge_machine import NBYTES, STEPS, Array, Queue, Temporary
from conformance.tests.streams.elsewhere import Elsewhere, elsewhere
from conformance.tests.streams.faces import STREAM_FACES
from conformance.tests.streams.moved_producers import ROUTES, Moving, Use
from conformance.tests.streams.silent_producers import SILENT, of

OUT_OF_MEMORY = 2
# Modules of the libraries whose arrays name no default stream that they work on.
ON_DEFAULT = [module for row in SILENT if "pending" in row["silence"] for module in row["modules"]]
# What the host reads memory by, as bytes.
HOST_READERS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda view: np.from_dlpack(view).tobytes(),
    "buffer": lambda view: bytes(memoryview(view)),
    "array-interface": lambda view: np.asarray(view).tobytes(),
    "present-as": lambda view: np.from_dlpack(view.present_as("host")).tobytes(),
}


# The edges that the programs have to meet.
EDGES = {
    "two contexts on a device",
    "one number in two contexts",
    "join over contexts",
    "join with a bare stream of another context",
    "another thread's stream",
    "a silent library's thread",
    "a call fails",
    "copy for another device",
    "copy for no stream",
    "source ends before its copy",
    "no memory is left",
    "no memory is left behind a busy stream",
    "copy to the host beside a capture",
    "copy of ready data to the host beside a backlog",
    "a context ends",
    "pinned memory is named as another device's",
    "copies for a thread's stream beside a backlog",
    *CAPTURES,
    *ENDS,
    *(f"a producer moves: {route}" for route in ROUTES),
}
# On a machine of which one device wants its managed memory.
EXCLUSIVE = "a device wants its managed memory"
OTHERS_MEMORY = "a device wants managed memory of another one"
OTHER_NAMES = {f"managed memory under another name: {name}" for name in ("cuda", "device_id", "host")}


class Program(Captured, Ends):
    """One program of a seed."""

    def run(self) -> bool:
        """Runs the steps; returns whether all that was read is what the order of the program says."""
        bench, often = self.bench, [self._hand_on, self._copy, self._copy]
        orders = [self._join, self._join_a_bare_stream, self._other_thread, self._silent_thread, self._fail]
        orders += [self._move, self._move, self._leave_elsewhere, self._move_elsewhere]
        copies = [self._drop, self._crowd, self._snapshot, self._cache]
        if self.machine.control.get("queue") > 99:  # else the driver waits for a held stream before it takes more work
            copies += [self._crowd_behind, self._crowd_of_a_thread, self._copy_ready_data_to_the_host]
        copies += [self._read_beside, self._refuse_waits, self._refuse_to_tell, self._take_over, self._end_a_context]
        host = [self._copy_to_the_host, self._read_on_the_host]
        captures = [self._capture, self._capture_a_blocking_stream, self._refuse_in_a_capture, self._lend_in_a_capture]
        steps = [*3 * often, *orders, *copies, *host, *captures]
        bench.reset()
        for _ in range(STEPS):
            self.random.choice(steps)()
        if self.captured:
            self._capture()
        while self.kept:
            self._drop()
        bench.wait_for_all(self.random)
        seen = [self.machine.read(address, NBYTES) == bytes([value]) * NBYTES for address, value in self.read]
        left = [self.machine.read(array.address, NBYTES) == bytes([array.value]) * NBYTES for array in bench.arrays]
        if not all(seen + left):
            self.wrong.append(f"read {seen}, left {left}")
        return not self.wrong

    # --- order ---

    def _hand_on(self) -> None:
        array = self._array()
        consumer, view = self._usable(array), self._view(array)
        self._enter(consumer, array)
        self.reached["pinned memory is named as another device's"] += array.is_named
        if self.random.random() < 0.3:
            with view.consume(consumer.number):
                self._use(consumer, array)
                self.machine.enter(self.random.choice(self.bench.homes))
            return
        face = self.random.choice(["on", "dlpack", "to-dlpack", "join"])
        with self._policy():
            kept = STREAM_FACES[face](view, consumer.number)
        self._use(consumer, array)
        array.ready = consumer
        del kept

    def _move(self) -> None:
        """A producer goes to another stream meanwhile: what it writes there waits for the consumer all the same."""
        owned = [array for array in self.bench.arrays if array.home is not None]
        array, name = self.random.choice(owned), self.random.choice(list(ROUTES))
        usable = [queue for queue in self.bench.queues if array.can_name(queue)]
        to, consumer, between = (self.random.choice(usable) for _ in range(3))
        moving = Moving.of(array.address, (abi.CUDA, array.device or 0), array.ready.number)
        self.machine.enter(self.random.choice(self.bench.homes))
        view = cd.view(moving.array)

        def read(address: int) -> None:
            before = self.machine.current()
            self._read(consumer, address, array.value)
            self.machine.enter(before)

        use = Use(consumer.number, between.number, lambda: moving.go(to.number), read)
        if self.random.random() < 0.5:
            use.move()
        ROUTES[name](view, use)
        array.ready = self.random.choice([to, to, array.ready])  # it may have come back
        array.value = self.random.randrange(1, 256)
        self.machine.enter(array.ready.home)
        self.machine.control.store(array.ready.number, array.address, bytes([array.value]) * NBYTES)
        self.reached[f"a producer moves: {name}"] += 1

    def _join(self) -> None:
        """A default stream has to be one stream for all arrays, or the call is refused."""
        arrays = self.random.sample(self.bench.arrays, 3)
        on = self.random.choice(self.bench.queues)
        views = [self._view(array) for array in arrays]
        self.machine.enter(on.home)
        meant = {array.home or on.home for array in arrays}
        refused = self._expect({"stream-context"}, lambda: cd.join(views, on=on.number))
        if refused != (on.is_default and len(meant) > 1):
            self.wrong.append(f"join on {on}: {'refused' if refused else 'accepted'} of {arrays}")
        self.reached["join over contexts"] += refused
        if refused or (on.is_default and meant != {on.home}):
            return
        for array in arrays:
            self._use(on, array)
            array.ready = on

    def _join_a_bare_stream(self) -> None:
        """A bare default stream among the items is the current context's, whatever the views and `on` are of."""
        defaults = [queue for queue in self.bench.queues if queue.is_default]
        array, bare = self._array(), self.random.choice(defaults)
        if not array.can_name(bare):
            return
        self._enter(array.ready, array)
        view = self._view(array)
        self._enter(bare, array)
        view.on(bare.number)
        self._use(bare, array)
        others = [other for other in self.bench.arrays if other.home is not None and other is not array]
        other, number = self.random.choice(others), self.random.choice([bare.number, 1, 2])
        meant = [queue for queue in defaults if (queue.home, queue.number) == (other.home, number)]
        on = self.random.choice([*meant, self.random.choice(self.bench.handles)])
        items: list[Any] = [self._view(other), bare.number]
        self.random.shuffle(items)
        self.machine.enter(bare.home)
        cd.join(items, on=on.number)
        self._use(on, other)
        self._use(on, array)
        other.ready = on
        if array.can_name(on):
            array.ready = on
        else:
            array.ready = bare
            self.machine.enter(on.home)
            self.bench.wait_for(on)
        self.reached["join with a bare stream of another context"] += on.is_default and on.home != bare.home

    def _other_thread(self) -> None:
        """2 is another stream on each thread: its number is not handed out, and another thread orders nothing."""
        array, queue = self._array(), self.random.choice(self.bench.handles)
        made: list[cd.CaiView] = []
        if array.ready.number == 2:
            return

        def work() -> None:
            own = Queue(array.home or self.bench.homes[0], 2, array.device or 0)
            view = self._view(array)
            self.machine.enter(own.home)
            made.append(view.on(2))
            self._use(own, array)
            made.append(made[0].on(queue.number))
            # Its stream ends with the thread; the handle's does not.
            array.ready = queue

        elsewhere(work)
        lost, moved = made
        if not self._expect({"stream-thread"}, lost.to_cai) or not self._expect({"stream-thread"}, lambda: lost.on(1)):
            self.wrong.append("another thread's stream was named")
        if moved.to_cai()["stream"] != queue.number:
            self.wrong.append("a moved view names another stream")
        self.reached["another thread's stream"] += 1

    def _silent_thread(self) -> None:
        """A library's threads work on default streams of their own, which its arrays do not name."""
        array = self._array()
        if array.ready.number == 2:
            return
        home = array.home or self.random.choice(self.bench.homes)
        own, consumer, view = Queue(home, 2, array.device or 0), self._usable(array), self._view(array)
        is_written, is_read = threading.Event(), threading.Event()

        def work() -> None:
            self.machine.enter(home)
            view.on(2)
            self._use(own, array)
            is_written.set()
            is_read.wait()

        with contextlib.closing(Elsewhere(work, is_read.set)) as thread:
            thread.wait_for(is_written)
            self.machine.enter(home)
            library = self.random.choice(ON_DEFAULT)
            dumb = of(self.random, library, Cai)(interface(data=(array.address, False), stream=None))
            silent = cd.view(dumb, device_id=array.named)
            self._enter(consumer, array)
            with self._policy():
                silent.__dlpack__(stream=consumer.number, max_version=(1, 3))
            self._use(consumer, array)
            array.ready = consumer
        self.reached["a silent library's thread"] += 1

    def _fail(self) -> None:
        """A call of the driver fails: the error names it, and the caller's context stays."""
        array = self._array()
        consumer, view = self._usable(array), self._view(array)
        self._enter(consumer, array)
        before = self.machine.current()
        call = self.random.choice(["cuEventRecord", "cuStreamWaitEvent", "cuStreamIsCapturing"])
        self.machine.control.fault(call, OUT_OF_MEMORY)
        try:
            view.on(consumer.number)
        except cd.DriverError as error:
            self.reached["a call fails"] += 1
            if call not in str(error):
                self.wrong.append(f"{call} failed as {error}")
        self.machine.control.clear_faults()
        if self.machine.current() != before:
            self.wrong.append(f"{call} failed in another context")

    # --- copies ---

    def _copy(self) -> None:
        """A copy for a stream, or for none; it is dropped behind what reads it.

        One for none may be read on any stream: of a primary context, or of the one that is current as it is made.
        """
        array = self._array()
        consumer, view = self._usable(array), self._view(array)
        is_finished = self.random.random() < 0.3
        self._enter(consumer, array)
        if self.random.random() < 0.3:
            self.machine.control.fault("cuMemAllocAsync", 801)  # a device without pools
        asked = -1 if is_finished else consumer.number
        self.reached["copy for another device"] += consumer.device != array.device
        here = self.machine.current()
        with contextlib.nullcontext() if is_finished else self._policy():
            made = view.__dlpack__(stream=asked, copy=True, max_version=(1, 3))
        self.machine.control.clear_faults()
        tensor = abi.consume(made)
        if is_finished:
            homes = (*self.bench.homes[:2], here)
            consumer = self.random.choice([queue for queue in self.bench.queues if queue.home in homes])
            self.reached["copy for no stream"] += 1
            if self.machine.read(tensor.data, NBYTES) != bytes([array.value]) * NBYTES:
                self.wrong.append("a copy for no stream is not there")
        self._read(consumer, tensor.data, array.value)
        self.kept.append(tensor)
        if self.random.random() < 0.5:
            self._drop()

    def _snapshot(self) -> None:
        """A copy of an array that ends at once: its memory is freed once it was read."""
        made = Temporary(self.bench, self.random)
        usable = [queue for queue in self.bench.queues if not queue.is_default or queue.home == made.home]
        consumer = self.random.choice(usable)
        with self._without_a_host_wait(), cd.policy(sync=self.random.choice(["event", "none"])):
            capsule = cd.view(made).__dlpack__(stream=consumer.number, copy=True, max_version=(1, 3))
        tensor = abi.consume(capsule)
        self._read(consumer, tensor.data, made.value)
        del made, capsule
        self.kept.append(tensor)
        self.reached["source ends before its copy"] += 1

    def _crowd(self) -> None:
        """More copies than the device has room for, each dropped before the next."""
        array = self._array()
        consumer = self._usable(array)
        with self.bench.little_memory(3 * NBYTES):
            for _ in range(6):
                view = self._view(array, nbytes=self.random.randrange(1, NBYTES + 1))
                self._enter(consumer, array)
                made = view.__dlpack__(stream=consumer.number, copy=True, max_version=(1, 3))
                abi.release(abi.consume(made))
        self.reached["no memory is left"] += 1

    def _crowd_behind(self) -> None:
        """More copies for one stream than the device has room for, while other work holds it: they go on."""
        array, consumer = self._array(), self.random.choice(self.bench.handles)
        self.bench.settle(consumer.home)
        view = self._view(array)
        with self.bench.little_memory(3 * NBYTES), self.bench.late(consumer) as gate:
            for _ in range(6):
                self._enter(consumer, array)
                tensor = abi.consume(view.__dlpack__(stream=consumer.number, copy=True, max_version=(1, 3)))
                self._read(consumer, tensor.data, array.value)
                abi.release(tensor)
            if gate.is_late:
                self.wrong.append("copies for one stream wait for it")
        self.reached["no memory is left behind a busy stream"] += 1

    def _crowd_of_a_thread(self) -> None:
        """Copies for the thread's default stream, each dropped before the next: no other work delays what they free."""
        if self.captured or self.kept:  # of those the memory is taken, too
            return
        home = self.random.choice(self.bench.homes[:2])
        device = self.bench.devices[self.bench.homes.index(home)]
        array = next(array for array in self.bench.arrays if array.home == home)
        other = next(queue for queue in self.bench.handles if queue.home == home)
        own = Queue(home, 2, device)
        view = self._view(array)
        self._enter(own, array)
        self.bench.settle(home)
        view = view.on(2)
        with self.bench.little_memory(5 * NBYTES), self.bench.late(other) as gate:
            for _ in range(9):
                self.machine.enter(home)
                tensor = abi.consume(view.__dlpack__(stream=2, copy=True, max_version=(1, 3)))
                self._read(own, tensor.data, array.value)
                abi.release(tensor)
                self.bench.wait_for(own)
            if gate.is_late:
                self.wrong.append("copies for a thread's stream wait for another stream")
        self.reached["copies for a thread's stream beside a backlog"] += 1

    def _end_a_context(self) -> None:
        """A context ends before the views and copies that name its stream: both end quietly, an order is refused."""
        array, queue = self._array(), self.random.choice(self.bench.handles)
        with self.machine.relaxed():
            home = self.machine.create_context(self.random.randrange(2))
            own = Queue(home, self.bench._stream(home), -1)
            view = self._view(array).on(own.number)
            tensor = abi.consume(view.__dlpack__(stream=own.number, copy=True, max_version=(1, 3)))
            self._use(own, array)
            self.bench.wait_for(own)
            self.machine.set_current(0)
            self.machine.destroy_context(home)
        array.ready = queue
        abi.release(tensor)
        try:
            view.on(queue.number)
        except cd.DriverError:
            self.reached["a context ends"] += 1
        else:
            self.wrong.append("a stream of a dead context was waited for")
        if self.machine.current() != self.bench.homes[0]:
            self.wrong.append("a dead context is current")

    # --- the host ---

    def _copy_to_the_host(self) -> None:
        array = self._array()
        view = self._view(array)
        self.machine.enter(self.random.choice(self.bench.homes))
        made = view.__dlpack__(dl_device=(abi.CPU, 0), copy=True, max_version=(1, 3))
        tensor = abi.consume(made)
        if ctypes.string_at(tensor.data, NBYTES) != bytes([array.value]) * NBYTES:
            self.wrong.append("a copy on the host is not there")
        abi.release(tensor)
        self.reached["copy to the host beside a capture"] += self.captured != 0

    def _copy_ready_data_to_the_host(self) -> None:
        """Data that is ready: no stream is waited for."""
        array, held = self._array(), self.random.choice(self.bench.queues)
        self.bench.settle(self.random.choice(self.bench.homes))
        ready = cd.view(Cai(interface(data=(array.address, False), stream=None)), producer_stream=None)
        if self.bench.exclusive and (array.is_managed or array.is_named):
            return  # of managed memory, under any name, the device is waited for
        with self.bench.late(held) as gate:
            tensor = abi.consume(ready.__dlpack__(dl_device=(abi.CPU, 0), copy=True, max_version=(1, 3)))
            if gate.is_late:
                self.wrong.append("a copy of ready data waits for a stream")
        if ctypes.string_at(tensor.data, NBYTES) != bytes([array.value]) * NBYTES:
            self.wrong.append("a copy of ready data on the host is not there")
        abi.release(tensor)
        self.reached["copy of ready data to the host beside a backlog"] += 1

    def _read_on_the_host(self) -> None:
        """Pinned and managed memory, by each route."""
        array = self.random.choice([array for array in self.bench.arrays if array.home is None])
        name = self.random.choice(list(HOST_READERS))
        view = self._under_another_name(array)
        if view.device[0] == abi.CUDA:
            name = "present-as"
        beside, busy = self.random.choice(self.bench.handles), self.random.randrange(1, 256)
        self.bench.busy(beside, busy)
        self.machine.enter(self.random.choice(self.bench.homes))
        self.machine.clear()
        if HOST_READERS[name](view) != bytes([array.value]) * NBYTES:
            self.wrong.append(f"{name} reads too early")
        if array.is_managed and self.bench.exclusive:
            owner = self.bench.device_of(array)
            self.reached[EXCLUSIVE if owner in self.bench.exclusive else OTHERS_MEMORY] += 1
            if self.bench.is_disturbed(beside, busy):
                self.wrong.append(f"{name} reads memory of {owner} while a device works: {view.device}")

    def _under_another_name(self, array: Array) -> cd.CaiView:
        """A view of managed memory as it is, as device memory, or as the host's since the device was idle."""
        view, name = self._view(array), self.random.choice(["its own", "its own", "cuda", "device_id", "host"])
        if not array.is_managed or name == "its own" or array.ready.is_default:
            return view
        self.reached[f"managed memory under another name: {name}"] += 1
        if name == "device_id":
            producer = Cai(interface(data=(array.address, False), stream=array.ready.number))
            return cd.view(producer, device_id=self.random.choice([0, 1]))
        return view.present_as("cuda" if name == "cuda" else "host")
