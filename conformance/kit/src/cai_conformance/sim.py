"""`Sim`: the simulated driver's controls, from inside a process that runs on it."""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Literal

from cai_conformance.library import require_simulator
from cai_conformance.log import Call, parse

_SCHEDULES = ("threaded", "lazy")
_FAULT_BY = ("any", "this", "other")

# Answers and arguments of the C functions, by name; `cusim.h` has the same in C.
_U32, _U64, _TEXT, _I32 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_int32
_PROTOTYPES: dict[str, tuple[type | None, list[type]]] = {
    "sim_count": (_U64, [_TEXT]),
    "sim_log_clear": (None, []),
    "sim_log_text": (_U64, [_TEXT, _U64]),
    "sim_lookups_text": (_U64, [_TEXT, _U64]),
    "sim_fault_by": (_U32, [_TEXT, _U64, _U32, _U32]),
    "sim_fault_clear": (None, []),
    "sim_fault_pending": (_U64, []),
    "sim_live_allocations": (_U64, []),
    "sim_live_streams": (_U64, []),
    "sim_live_events": (_U64, []),
    "sim_live_contexts": (_U64, []),
    "sim_pending_work": (_U64, []),
    "sim_gil_watch": (None, [_U32, _TEXT]),
    "sim_gil_count": (_U64, []),
    "sim_gil_text": (_U64, [_TEXT, _U64]),
    "sim_gil_held": (_U32, []),
    "sim_set": (_U32, [_TEXT, _U64]),
    "sim_get": (_U64, [_TEXT]),
    "sim_attribute": (_U32, [_I32, _I32, _I32]),
    "sim_order_begin": (_U32, [ctypes.c_void_p, _U64, _U32]),
    "sim_order_end": (_U64, [ctypes.c_void_p, ctypes.c_void_p, _U64]),
    "sim_gate": (_U64, [ctypes.c_void_p]),
    "sim_open": (_U32, [_U64]),
    "sim_open_all": (None, []),
    "sim_end_host_functions": (None, []),
    "sim_delay": (_U32, [ctypes.c_void_p, _U64]),
    "sim_store": (_U32, [ctypes.c_void_p, _U64, _TEXT, _U64]),
    "sim_sum": (_U32, [ctypes.c_void_p, _U64, _U64, _U64, _TEXT]),
    "sim_peek": (_U32, [_U64, ctypes.c_void_p, _U64]),
    "sim_poke": (_U32, [_U64, ctypes.c_void_p, _U64]),
    "sim_poison": (_U32, [_U32]),
    "sim_queue_length": (_U32, [ctypes.c_void_p, ctypes.c_void_p]),
}


@cache
def _end_host_functions_at_exit() -> None:
    """Host functions in Python end before the interpreter does: called later they fault."""
    atexit.register(require_simulator().sim_end_host_functions)


class GilHeld(AssertionError):
    """Driver calls that may block were made while the GIL was held."""


@dataclass(frozen=True)
class Gate:
    """A place in a stream that work does not pass until `open`; also a context manager."""

    sim: Sim
    number: int

    def open(self) -> None:
        """Lets the stream go on. Opening twice is fine."""
        self.sim._do("sim_open", self.number)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()


@dataclass(frozen=True)
class Live:
    """Counts the driver's live objects; at the end of a test, what it leaked."""

    allocations: int
    streams: int
    events: int
    contexts: int


class Sim:
    """The simulator that this process runs on. NotSimulated if it runs on a real driver or none."""

    def __init__(self) -> None:
        self.library = require_simulator()
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = result, arguments
        _end_host_functions_at_exit()

    def _do(self, name: str, *arguments: object) -> None:
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: CUresult {code}")

    def _text(self, name: str) -> str:
        ask: Callable[[object, int], int] = getattr(self.library, name)
        size = ask(None, 0)
        while True:
            buffer = ctypes.create_string_buffer(size)
            needed = ask(buffer, size)
            if needed <= size:
                return buffer.value.decode()
            size = needed

    # --- the call log ---

    def clear(self) -> None:
        """Forgets the calls so far."""
        self.library.sim_log_clear()

    def calls(self, *names: str) -> list[Call]:
        """The calls since `clear`, oldest first; with names, only those functions."""
        logged = [parse(line) for line in self._text("sim_log_text").splitlines()]
        return [call for call in logged if not names or call.name in names]

    def count(self, name: str | None = None) -> int:
        """Returns how often a function, or without a name any function, was called since `clear`."""
        return int(self.library.sim_count(None if name is None else name.encode()))

    @contextmanager
    def no_calls(self, *names: str) -> Iterator[None]:
        """Asserts that the body makes no driver call, or none of those functions."""
        before = len(self.calls(*names))
        yield
        made = self.calls(*names)[before:]
        if made:
            raise AssertionError(f"driver calls were made: {[call.symbol for call in made]}")

    def lookups(self) -> list[tuple[str, int, int, bool]]:
        """Returns the calls of cuGetProcAddress: name, version, flags, found."""
        rows = [line.split() for line in self._text("sim_lookups_text").splitlines()]
        return [(row[0], int(row[1]), int(row[2]), row[3] == "1") for row in rows]

    # --- faults ---

    def fault(self, name: str, code: int, nth: int = 1, by: Literal["any", "this", "other"] = "any") -> None:
        """Makes the `nth` call of a function from now return `code` and do nothing else. With code 0 a wait
        succeeds without waiting, which a test of that wait must notice. Counts and fails the calls of any thread, of
        this one, or of the others."""
        self._do("sim_fault_by", name.encode(), nth, code, _FAULT_BY.index(by))

    def clear_faults(self) -> None:
        """Forgets faults that have not happened yet."""
        self.library.sim_fault_clear()

    def pending_faults(self) -> int:
        """Returns how many faults have not happened yet; 0 if a test reached them all."""
        return int(self.library.sim_fault_pending())

    def poison(self, code: int) -> None:
        """Gives the current context a sticky error, as failed work does."""
        self._do("sim_poison", code)

    # --- work on streams: a stream is a CUstream as a number ---

    def gate(self, stream: int) -> Gate:
        """Stops a stream here until the gate is opened."""
        number = self.library.sim_gate(stream)
        if number == 0:
            raise RuntimeError("sim_gate: no usable context or stream")
        return Gate(self, number)

    def open_gates(self) -> None:
        """Opens every gate, so that no stream waits for ever after a test that ended early."""
        self.library.sim_open_all()

    def delay(self, stream: int, seconds: float) -> None:
        """Work that takes this long. Prefer a gate."""
        self._do("sim_delay", stream, int(seconds * 1e6))

    def store(self, stream: int, address: int, data: bytes) -> None:
        """A kernel that writes these bytes to device memory."""
        self._do("sim_store", stream, address, data, len(data))

    def sum(self, stream: int, result: int, source: int, count: int, dtype: str) -> None:
        """A kernel that sums `count` elements (u1 i4 i8 f4 f8) into one i8 or f8 at `result`."""
        self._do("sim_sum", stream, result, source, count, dtype.encode())

    def peek(self, address: int, nbytes: int) -> bytes:
        """Device-accessible memory as it is now, whatever streams have still to do."""
        buffer = ctypes.create_string_buffer(nbytes)
        self._do("sim_peek", address, buffer, nbytes)
        return buffer.raw

    def poke(self, address: int, data: bytes) -> None:
        """Writes device-accessible memory now, past all streams."""
        self._do("sim_poke", address, data, len(data))

    def pending(self, stream: int | None = None) -> int:
        """Pieces of work that are not done: of one stream, or of all."""
        if stream is None:
            return int(self.library.sim_pending_work())
        length = ctypes.c_uint64()
        self._do("sim_queue_length", stream, ctypes.byref(length))
        return length.value

    # --- what exists ---

    def live(self) -> Live:
        """Returns the counts of live objects."""
        names = ("allocations", "streams", "events", "contexts")
        return Live(*(int(getattr(self.library, f"sim_live_{name}")()) for name in names))

    # --- the GIL ---

    @contextmanager
    def gil_watch(self, *names: str) -> Iterator[None]:
        """GilHeld if the body makes calls that enqueue, create, destroy or wait with the GIL held;
        with names, only those functions are watched, whatever they do; `*` stands for every one."""
        self.library.sim_gil_watch(1, ",".join(names).encode())
        try:
            yield
            held = self._text("sim_gil_text").splitlines()
        finally:
            self.library.sim_gil_watch(0, b"")
        if held:
            raise GilHeld(f"called with the GIL held: {held}")

    # --- settings ---

    def set(self, name: str, value: int) -> None:
        """`protect`, `reuse`, `queue`, `driver_version`, `memory`: for what is made afterwards;
        `log`: 0 for measurements, 1 for every thread's calls, 2 for those of the calling thread."""
        self._do("sim_set", name.encode(), value)

    def set_attribute(self, attribute: int, value: int, device: int = -1) -> None:
        """Sets what cuDeviceGetAttribute returns, of one device or of all."""
        self._do("sim_attribute", device, attribute, value)

    def get(self, name: str) -> int:
        """A setting; also `devices`."""
        value = int(self.library.sim_get(name.encode()))
        if value == 2**64 - 1:
            raise KeyError(name)
        return value

    @property
    def schedule(self) -> str:
        """`threaded` or `lazy`. Pending work carries on under the schedule that is set."""
        return _SCHEDULES[self.get("schedule")]

    @schedule.setter
    def schedule(self, name: str) -> None:
        self.set("schedule", _SCHEDULES.index(name))

    # --- every order ---

    def orders(self, host_points: bool = False) -> Iterator[list[int]]:
        """Runs the body of a `for` loop once for every legal order of the queues, lazily.

        The body must do the same each time: it makes its own streams and memory, and waits for
        all its work. With `host_points` work may also run before any call of the driver, not only
        where somebody waits: exact, and for very small programs only.
        """
        before, self.schedule = self.schedule, "lazy"
        prefix: list[int] | None = []
        try:
            while prefix is not None:
                array = (ctypes.c_uint32 * len(prefix))(*prefix)
                self._do("sim_order_begin", array, len(prefix), int(host_points))
                try:
                    yield prefix
                finally:
                    taken = self._order_end()
                prefix = _next_prefix(taken)
        finally:
            self.schedule = before

    def _order_end(self) -> list[tuple[int, int]]:
        count = self.library.sim_order_end(None, None, 0)
        choices, options = (ctypes.c_uint32 * count)(), (ctypes.c_uint32 * count)()
        self.library.sim_order_end(choices, options, count)
        return list(zip(choices, options, strict=True))


def _next_prefix(taken: list[tuple[int, int]]) -> list[int] | None:
    """The choices of the next run: the last one that has an option left takes it."""
    for index in reversed(range(len(taken))):
        choice, options = taken[index]
        if choice + 1 < options:
            return [before for before, _ in taken[:index]] + [choice + 1]
    return None
