"""Random programs in which the code of others, which a call runs, interferes with that call.

An array is to be written, and passes through one call. Each place at which the call runs foreign code (a stream object,
a producer's interface, `__dlpack__` and table, a consumer's table, an iterator) is a hook; at one of them the program
leaves a block, ends the loan of the array, lets go of every object of a stream, collects, or makes another context
current. Whoever gets the memory must read what was written and nothing later, no handle of a stream is used after its
end, and nothing is kept at the end.
"""

from __future__ import annotations

import contextvars
import ctypes
import gc
import random
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import cai_dlpack as cd
from cai_conformance import abi, exchange

from conformance.tests.doubles.hooks import HookedCai, HookedDlpack, HookedOwningStream, exchanger
from conformance.tests.doubles.producers import StreamObject
from conformance.tests.streams.race import LEGACY, NBYTES, Track

#: What is written before the call, and what its producer writes after the end of a loan.
FIRST, LATER = 1, 2
VERSION = (1, 1)
REFUSED = (BufferError,)
#: What takes longer is left for ever.
SECONDS = 10

ACTIONS = ("nothing", "end the loan", "leave", "let go", "collect", "another context", "enter")
PRODUCERS = ("interface", "dlpack", "table", "view")


def speaks(array: Any) -> Any:
    """The array, or a view of it that speaks DLPack."""
    return array if hasattr(array, "__dlpack__") else cd.view(array)


class Reader:
    """Where what the call has made is read: on a stream, or where the view itself says."""

    def __init__(self, made: Any, stream: Any, loan: Any = None) -> None:
        self.made, self.stream, self.loan = made, stream, loan


class Program:
    """One array, one call, one interference."""

    def __init__(self, track: Track, second: int, pinned: int, seed: int) -> None:
        self.track, self.machine, self.second, self.pinned = track, track.machine, second, pinned
        self.draw = random.Random(seed)
        self.is_pinned = self.draw.random() < 0.3
        self.device = (abi.CUDA_HOST if self.is_pinned else abi.CUDA, 0)
        self.seen: list[str] = []
        #: Objects of streams that the program keeps until it is told to let go of them.
        self.objects: list[StreamObject] = []
        self.alive: list[weakref.ref[StreamObject]] = []
        self.blocks: list[Any] = []
        self.loan: Any = None
        self.made: Any = None
        self.library: Any = None
        self.other: Any = None
        self.is_loan_over = False
        self.countdown = 0
        self.action = "nothing"

    # --- the interference ---

    def hook(self) -> None:
        """Called by all foreign code."""
        self.countdown -= 1
        if self.countdown == 0:
            self.seen.append(self.action)
            getattr(self, "do_" + self.action.replace(" ", "_"))()

    def do_nothing(self) -> None:
        pass

    def do_end_the_loan(self) -> None:
        if self.loan is not None and not self.is_loan_over:
            self.is_loan_over = True
            self.loan.__exit__(None, None, None)
            self.track.write(self.at, LATER)

    def do_leave(self) -> None:
        if self.blocks:
            self.blocks.pop(self.draw.randrange(len(self.blocks))).__exit__(None, None, None)
        self.do_let_go()

    def do_let_go(self) -> None:
        self.objects.clear()
        self.do_collect()

    def do_collect(self) -> None:
        gc.collect()

    def do_another_context(self) -> None:
        self.machine.enter(self.second)

    def do_enter(self) -> None:
        block = cd.use_stream(self.stream(), device_id=0)
        block.__enter__()
        self.blocks.append(block)

    # --- what takes part ---

    def stream(self) -> HookedOwningStream:
        """The object of a new stream, which ends with it."""
        made = HookedOwningStream(self.machine.stream(), self.machine.destroy_stream, self.hook)
        self.objects.append(made)
        self.alive.append(weakref.ref(made))
        return made

    def array(self) -> Any:
        """An array that is still to be written, on the stream `at`."""
        kind, owner = self.draw.choice(PRODUCERS), self.stream()
        self.seen.append(kind)
        self.at = owner.handle
        self.track.write(self.at, FIRST)
        if kind == "interface":
            return HookedCai(self.track.data, owner, self.hook)
        if kind == "view":
            return cd.view(HookedCai(self.track.data, owner, self.hook))
        if kind == "dlpack":
            tensor = abi.make(device=self.device, data=self.track.data)
            made: Any = HookedDlpack(tensor, self.machine.current, self.order_after, self.hook)
        else:
            made = exchanger(self.hook, self.at, self.device, self.track.data, self.order_after, self.machine.current)
            # A library keeps its current stream.
            self.library = owner
        made.owner = owner
        return made

    def order_after(self, stream: int | None, context: int) -> None:
        """As a producer makes a consumer's stream wait: of a default one that of the memory, or of this context."""
        event, before = ctypes.c_void_p(), self.machine.current()
        self.machine.set_current(0)
        if stream is None and self.is_pinned:
            self.track.wait(self.at)
            return self.machine.enter(before)
        self.machine._call("cuEventCreate", ctypes.byref(event), 2)
        self.machine._call("cuEventRecord", event, ctypes.c_void_p(self.at))
        if self.is_pinned:
            self.machine.enter(context)
        self.machine._call("cuStreamWaitEvent", ctypes.c_void_p(stream or LEGACY), event, 0)
        self.machine._call("cuEventDestroy_v2", event)
        self.machine.enter(before)

    def receiver(self) -> type:
        """A class of a consumer, whose table calls the hook before it gets the tensor, which it does not keep."""

        def to_object(tensor: int, out: Any) -> int:
            abi.call_deleter(tensor, versioned=True)
            out[0] = id(made)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
            return 0

        table = exchange.ToObject(to_object)
        made = exchanger(self.hook, self.other.handle, (abi.CUDA, 0), self.track.data, to_object=table)
        self.made = made
        return type(made)

    # --- the calls ---

    def calls(self) -> dict[str, Callable[[Any, Any], Reader]]:
        """By name: takes the array and a stream, by its object or a default one by its number."""

        def items(array: Any) -> Iterator[Any]:
            yield HookedOwningStream(self.machine.stream(), self.machine.destroy_stream, self.hook)
            self.hook()
            yield array

        def consumed(array: Any, to: Any) -> Reader:
            block = cd.view(array).consume(to)
            return Reader(block.__enter__(), to, block)

        def explained(array: Any, to: Any) -> Reader:
            cd.explain(array, to="cuda.core", stream=to)
            return Reader(cd.view(array).on(to), to)

        return {
            "view": lambda array, _: Reader(cd.view(array), None),
            "from_dlpack": lambda array, to: Reader(cd.from_dlpack(speaks(array), stream=to), to),
            "from_dlpack, unnamed": lambda array, _: Reader(cd.from_dlpack(speaks(array)), None),
            "from_dlpack of a view": lambda array, to: Reader(cd.from_dlpack(cd.view(array), stream=to), to),
            "to_dlpack": lambda array, to: Reader(cd.to_dlpack(array, stream=to, max_version=VERSION), to),
            "a copy": lambda array, to: Reader(cd.from_dlpack(cd.view(array), copy=True, stream=to), to),
            "__dlpack__": lambda array, to: Reader(cd.view(array).__dlpack__(stream=to, max_version=VERSION), to),
            "on": lambda array, to: Reader(cd.view(array).on(to), to),
            "consume": consumed,
            "join": lambda array, to: Reader(cd.join(items(array), on=to)[-1], to),
            "to CaiView": lambda array, to: Reader(cd.to(array, cd.CaiView, stream=to), to),
            "to cuda.core": lambda array, to: Reader(cd.to(array, "cuda.core", stream=to), to),
            "to tvm_ffi": lambda array, to: Reader(cd.to(array, "tvm_ffi", stream=to), to),
            "to a table, with a stream": lambda array, to: Reader(cd.to(array, self.receiver(), stream=to), to),
            "to a table": lambda array, _: Reader(cd.to(array, self.receiver()), self.other),
            "explain": explained,
        }

    # --- the program ---

    def run(self) -> str | None:
        """Returns what was wrong."""
        return contextvars.copy_context().run(self.run_in_context)

    def run_in_context(self) -> str | None:
        self.machine.set_current(0)
        self.machine.write(self.track.copy, bytes(NBYTES))
        before = cd.stats()["live"]
        wrong = self.attempted()
        while self.blocks:
            self.blocks.pop().__exit__(None, None, None)
        if self.loan is not None and not self.is_loan_over:
            self.loan.__exit__(None, None, None)
        self.loan = self.made = self.other = self.library = None
        self.objects.clear()
        self.machine.set_current(0)
        self.machine.finish()
        gc.collect()
        # The memory of a copy ends on a thread of the library's, which marks its stream, perhaps only now.
        end = time.monotonic() + SECONDS
        while (left := self.left(before)) and time.monotonic() < end:
            time.sleep(0.001)
            self.machine.finish()
        return wrong or left

    def left(self, before: int) -> str | None:
        streams = sum(alive() is not None for alive in self.alive)
        owners = cd.stats()["live"] - before
        return f"{streams} objects of streams and {owners} owners are left" if streams or owners else None

    def attempted(self) -> str | None:
        self.other, own = self.stream(), self.track.data
        if self.is_pinned:
            self.seen.append("pinned")
            self.track.data = self.pinned
        try:
            self.machine.write(self.track.data, bytes(NBYTES))
            return self.passed(self.array())
        finally:
            self.track.data = own

    def passed(self, array: Any) -> str | None:
        if self.draw.random() < 0.5:
            self.do_enter()
        if self.draw.random() < 0.5:
            self.loan = cd.view(array).consume(self.stream())
            array = self.loan.__enter__()
            self.seen.append("lent")
        name, call = self.draw.choice(sorted(self.calls().items()))
        self.action, self.countdown = self.draw.choice(ACTIONS), self.draw.randrange(1, 7)
        self.seen.append(name)
        to: Any = self.stream()
        if self.draw.random() < 0.25:
            self.seen.append("a default stream")
            to = LEGACY
        try:
            reader = call(array, to)
        except REFUSED as refused:
            return None if self.is_loan_over else f"refused: {refused}"
        except cd.DriverError as error:
            return f"a stream that has ended: {error}"
        finally:
            self.countdown = 0
        del array, to
        return self.read(reader)

    def read(self, reader: Reader) -> str | None:
        """What a consumer reads of the memory, after all that the producer has done by then."""
        made, after = reader.made, self.machine.current()
        stream = getattr(reader.stream, "handle", reader.stream)
        data = self.track.data
        if isinstance(made, cd.CaiView):
            try:
                # The loan may be over: then nothing hands the memory out.
                made.__dlpack__(stream=-1)
                if made.stream == LEGACY and not reader.loan:
                    # Whose it is, the view knows.
                    made = made.on(self.other)
            except REFUSED:
                return None if self.is_loan_over else "refused later"
            data, stream = made.ptr, made.stream
        self.machine.enter(after if self.is_pinned else self.machine.context(0))
        reading = self.machine.current()
        own, self.track.data = self.track.data, data
        try:
            self.track.read(stream or LEGACY)
        except AssertionError as error:
            return f"its stream: {error}"
        finally:
            self.track.data = own
        if reader.loan:
            comes_back = made.return_edge != "unknown"
            self.machine.enter(after)
            reader.loan.__exit__(None, None, None)
            self.machine.set_current(0)
            if comes_back:
                self.track.write(self.at, LATER)
        # A missing edge before the reading shows if its stream is run first, one after it if the producer's is.
        if self.draw.random() < 0.5:
            self.machine.set_current(0)
            if self.is_alive(self.at):
                self.track.wait(self.at)
        self.machine.enter(reading)
        self.track.wait(stream or LEGACY)
        found = self.track.seen()
        return None if found == FIRST else f"it reads {found}"

    def is_alive(self, handle: int) -> bool:
        return any(stream is not None and stream.handle == handle for stream in (alive() for alive in self.alive))


def counted(track: Track, second: int, pinned: int, seeds: range) -> tuple[dict[int, str], Counter[str]]:
    """What was wrong, by seed, and how often each thing took part."""
    wrong, seen = {}, Counter[str]()
    before, track.control.schedule = track.control.schedule, "lazy"
    # The programs collect a lot: what others have made is left alone.
    gc.freeze()
    for seed in seeds:
        program = Program(track, second, pinned, seed)
        found = program.run()
        seen.update(program.seen)
        if found:
            wrong[seed] = f"{', '.join(program.seen)}: {found}"
    gc.unfreeze()
    track.control.schedule = before
    return wrong, seen
