"""Device memory between processes by `cd.share` and `cd.open`, on the simulated driver: handles a second, and calls.

    python -m cai_conformance simulate --devices 4 -- python benches/reach_ipc.py

The driver is simulated: its part of the time (files in memory, messages between processes) says nothing about a GPU's.
What holds there, too, is the number of calls, and what does not grow. Beside each row the driver's own calls by ctypes
for the same memory, without an event, a key, an owner or a check: `cuIpcGetMemHandle`, and `cuIpcOpenMemHandle` with
`cuIpcCloseMemHandle`.
"""

from __future__ import annotations

import collections
import ctypes
import gc
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "conformance" / "kit" / "src")]

import cai_dlpack as cd  # noqa: E402
from cai_conformance import Sim  # noqa: E402
from instructions import commit  # noqa: E402
from reach_rows import HEAD, NUMBERS, SIZES, WORKERS, Message, row  # noqa: E402

from conformance.tests.doubles.producers import Cai, interface  # noqa: E402
from conformance.tests.simulated.machine import Machine  # noqa: E402

DEVICES = (1, 2, 4)


class RawHandle(ctypes.Structure):
    """`CUipcMemHandle`."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


def machine() -> Machine:
    found = Machine(Sim())
    found.set_current(0)
    return found


# --- the process that receives ---


def serve(channel: Connection) -> None:
    here = machine()
    streams = [here.stream(device) for device in range(max(DEVICES))]
    cd.open(channel.recv(), stream=streams[0])  # the first one makes what all share
    channel.send(None)
    while True:
        what, given = channel.recv()
        channel.send({"open": opened, "mapped": mapped, "raw": raw, "calls": calls}[what](here, streams, given))


def settle() -> None:
    gc.collect()
    while cd.stats()["live"]:
        time.sleep(0.0005)


def opened(_: Machine, streams: Sequence[int], given: Sequence[tuple[int, bytes]]) -> float:
    """The seconds that it takes to open all, and to drop them; a thread ends the mappings afterwards."""
    start = time.perf_counter()
    views = [cd.open(handle, stream=streams[device]) for device, handle in given]
    took = time.perf_counter() - start
    assert len(views) == len(given)
    del views
    settle()
    return took


def mapped(here: Machine, streams: Sequence[int], given: Sequence[tuple[int, bytes]]) -> float:
    """As `opened`, of memory that is mapped already."""
    views = [cd.open(handle, stream=streams[device]) for device, handle in given]
    start = time.perf_counter()
    again = [cd.open(handle, stream=streams[device]) for device, handle in given]
    took = time.perf_counter() - start
    assert [view.ptr for view in views] == [view.ptr for view in again]
    del views, again
    settle()
    return took


def raw(here: Machine, _: Sequence[int], given: Sequence[tuple[int, bytes]]) -> float:
    handles = [(device, RawHandle.from_buffer_copy(handle)) for device, handle in given]
    pointers = [ctypes.c_uint64() for _ in handles]
    start = time.perf_counter()
    for (device, handle), pointer in zip(handles, pointers, strict=True):
        if device:
            here.set_current(device)
        here._call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), handle, 1)
    for pointer in pointers:
        here._call("cuIpcCloseMemHandle", pointer)
    took = time.perf_counter() - start
    here.set_current(0)
    return took


def calls(here: Machine, streams: Sequence[int], given: Sequence[tuple[int, bytes]]) -> dict[str, dict[str, int]]:
    """The driver's calls of this process for one array."""
    found: dict[str, dict[str, int]] = {}
    ((device, handle),) = given

    def step(name: str, call: Callable[[], Any]) -> Any:
        here.clear()
        kept = call()
        settle() if name.startswith("close") else None
        found[name] = dict(collections.Counter(here.names()))
        return kept

    kept = [step("open", lambda: cd.open(handle, stream=streams[device]))]
    kept.append(step("open, mapped already", lambda: cd.open(handle, stream=streams[device])))
    kept.pop()
    step("close, of the last view", kept.clear)
    return found


# --- the process that shares ---


class Receivers:
    def __init__(self, number: int, first: cd.CaiView) -> None:
        context = multiprocessing.get_context("spawn")
        self.channels, self.processes = [], []
        for _ in range(number):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs,), daemon=True)
            process.start()
            self.channels.append(ours)
            self.processes.append(process)
        for channel in self.channels:
            with cd.share(first) as handle:
                channel.send(bytes(handle))
                channel.recv()

    def ask(self, what: str, given: Sequence[tuple[int, bytes]]) -> Any:
        """What each returns, all at once; of seconds the most."""
        for channel in self.channels:
            channel.send((what, given))
        answers = [channel.recv() for channel in self.channels]
        return max(answers) if isinstance(answers[0], float) else answers[0]

    def __enter__(self) -> Receivers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()


class Arrays:
    """Arrays of allocations of their own, ready on a stream of their device."""

    def __init__(self, here: Machine, number: int, nbytes: int = SIZES[0], devices: int = 1) -> None:
        self.here = here
        self.devices = [at % devices for at in range(number)]
        streams = [here.stream(device) for device in range(devices)]
        self.data = [here.device_memory(nbytes, device) for device in self.devices]
        self.views = [
            cd.view(
                Cai(interface(shape=(nbytes,), typestr="|u1", data=(data, False), stream=streams[device])),
                device_id=device,
            )
            for data, device in zip(self.data, self.devices, strict=True)
        ]

    def given(self, handles: Sequence[Any]) -> list[tuple[int, bytes]]:
        return list(zip(self.devices, map(bytes, handles), strict=True))

    def share(self, receive: Callable[[list[tuple[int, bytes]]], Any] | None = None) -> float:
        """The seconds that it takes to share all; or what the receiver says."""
        start = time.perf_counter()
        blocks = [cd.share(view) for view in self.views]
        handles = [block.__enter__() for block in blocks]
        took = time.perf_counter() - start
        if receive is not None:
            took = receive(self.given(handles))
        for block in blocks:
            block.__exit__(None, None, None)
        return took

    def raw(self, receive: Callable[[list[tuple[int, bytes]]], float] | None = None) -> float:
        handles = [RawHandle() for _ in self.data]
        start = time.perf_counter()
        for handle, data in zip(handles, self.data, strict=True):
            self.here._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(data))
        took = time.perf_counter() - start
        return took if receive is None else receive(self.given(handles))

    def free(self) -> None:
        self.views.clear()
        gc.collect()
        for data in self.data:
            self.here.free(data)


def cases() -> Iterator[tuple[int, int, int, int]]:
    """Number and bytes of arrays, receivers, devices: one of them grows at a time."""
    yield from ((number, SIZES[0], 1, 1) for number in NUMBERS)
    yield from ((1, nbytes, 1, 1) for nbytes in SIZES[1:])
    yield from ((100, SIZES[0], receivers, 1) for receivers in WORKERS[1:])
    yield from ((100, SIZES[0], 1, devices) for devices in DEVICES[1:])


def rows(here: Machine, first: cd.CaiView, number: int, nbytes: int, receivers: int, devices: int) -> Iterator[str]:
    arrays, of = Arrays(here, number, nbytes, devices), f", {devices} devices" if devices > 1 else ""
    with Receivers(receivers, first) as there:

        def ask(what: str) -> Callable[[list[tuple[int, bytes]]], float]:
            return lambda given: float(there.ask(what, given))

        def own() -> float:
            return arrays.raw(ask("raw"))

        if receivers == 1:
            yield row(Message(f"share{of}", number, nbytes), arrays.share, arrays.raw)
        for name, what in {"open": "open", "open, mapped already": "mapped"}.items():
            message = Message(name + of, number, nbytes, receivers)
            yield row(message, lambda what=what: arrays.share(ask(what)), own)  # type: ignore[misc]
    arrays.free()


def of_one_array(here: Machine, first: cd.CaiView) -> Iterator[str]:
    """The calls for one array, whose memory and stream have been shared before."""
    found: dict[str, dict[str, int]] = {}
    arrays = Arrays(here, 1)
    with Receivers(1, first) as there:
        arrays.share(lambda given: there.ask("open", given))
        block = cd.share(arrays.views[0])
        here.clear()
        handle = block.__enter__()
        found["share"] = dict(collections.Counter(here.names()))
        found |= there.ask("calls", arrays.given([handle]))
        here.clear()
        block.__exit__(None, None, None)
        gc.collect()
        found["leave"] = dict(collections.Counter(here.names()))
    yield "| step | calls of the driver |"
    yield "|---|---|"
    for step, made in found.items():
        said = ", ".join(f"{name} {count}" if count > 1 else name for name, count in made.items())
        yield f"| {step} | {sum(made.values())}{': ' if made else ''}{said} |"


def main() -> None:
    here = machine()
    here.control.set("log", 1)
    first = Arrays(here, 1).views[0]
    print(f"Commit {commit()}. Simulated driver; microseconds for each array, which says nothing about a GPU.\n")
    print(*of_one_array(here, first), sep="\n")
    here.control.set("log", 0)
    print(f"\n{HEAD}", flush=True)
    for case in cases():
        for line in rows(here, first, *case):
            print(line, flush=True)


if __name__ == "__main__":
    main()
