"""What another process on the simulated driver does as it is told: it shares, opens, reads."""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Any

import cai_dlpack as cd
import numpy as np
from cai_conformance import Sim as Control

from conformance.tests.reach.arrays import on_device
from conformance.tests.reach.peer import SECONDS
from conformance.tests.simulated.machine import Machine

#: Views, and blocks of `share` with the array that they keep, by name.
HELD: dict[str, Any] = {}
_MACHINE: list[Machine] = []
_STREAMS: list[int] = []


def machine() -> Machine:
    if not _MACHINE:
        _MACHINE.append(Machine(Control()))
        _MACHINE[0].control.schedule = "lazy"
        _MACHINE[0].set_current(0)
    return _MACHINE[0]


def stream() -> int:
    if not _STREAMS:
        _STREAMS.append(machine().stream())
    return _STREAMS[0]


def opened(name: str, handle: bytes, key: bytes | None = None) -> dict[str, Any]:
    """Opens a handle; the facts of the view."""
    view = HELD[name] = cd.open(handle, stream=stream(), key=key)
    return facts(view) | {"is on stream": view.stream == stream()}


def facts(view: cd.CaiView) -> dict[str, Any]:
    return {
        "shape": view.shape,
        "strides": view.elem_strides,
        "dtype": str(view.dtype),
        "read only": view.read_only,
        "device": view.device,
        "ptr": view.ptr,
    }


def calls_of_an_import_and_its_end(handle: bytes) -> list[str]:
    """Opens a handle, and ends the view; the driver's functions that this has called."""
    for _ in range(2):  # the first starts threads, which make calls of their own
        machine().clear()
        opened("the calls of", handle)
        closed("the calls of")
        assert owners(0) == 0  # its end is no call of this thread's
    return machine().names()


def values(name: str) -> bytes:
    """What a consumer reads."""
    return bytes(np.ascontiguousarray(np.from_dlpack(HELD[name], device="cpu")).tobytes())


def peeked(name: str) -> bytes:
    """What lies there now, whatever is pending."""
    view = HELD[name]
    return machine().read(view.ptr, view.nbytes)


def write(name: str, data: bytes) -> None:
    """Writes on the stream, without a wait."""
    machine().control.store(stream(), HELD[name].ptr, data)


def closed(name: str) -> None:
    del HELD[name]
    gc.collect()


def shared(name: str, count: int) -> cd.Handle:
    """Shares an array that is still to be written."""
    view = on_device(machine(), np.arange(float(count)), stream(), False)
    block = cd.share(view)
    HELD[name] = (view, block)
    return block.__enter__()


def left(name: str) -> None:
    """Leaves the block, and drops the array."""
    _, block = HELD.pop(name)
    block.__exit__(None, None, None)
    del block
    gc.collect()


def live(expected: dict[str, int] | None = None) -> dict[str, int]:
    """What may leak; with what is expected, once it has had time to become that."""
    end, found = time.monotonic() + 10, counted()
    while expected not in (None, found) and time.monotonic() < end:
        time.sleep(0.01)
        found = counted()
    return found


def settled() -> dict[str, int]:
    """Counts what may leak, after all that earlier tests have closed is gone."""
    assert owners(0) == 0
    return counted()


def owners(expected: int) -> int:
    end = time.monotonic() + 10
    while counted()["owners"] != expected and time.monotonic() < end:
        time.sleep(0.01)
    return counted()["owners"]


def settled_owners() -> int:
    """Counts the live owners once none has ended for a while: what another process closes ends here later."""
    found, since = cd.stats()["live"], time.monotonic()
    while time.monotonic() < since + 0.3:
        gc.collect()
        now = cd.stats()["live"]
        found, since = now, since if now == found else time.monotonic()
        time.sleep(0.01)
    return found


def called(name: str) -> int:
    return machine().control.count(name)


def counted() -> dict[str, int]:
    gc.collect()
    control = machine().control
    with open("/proc/self/maps") as maps:
        mappings = sum("memfd:" in line for line in maps)
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "mappings": mappings,
        "events": control.live().events,
        "contexts": control.live().contexts,
        "owners": cd.stats()["live"],
    }


def storm(handles: list[bytes], threads: int, rounds: int) -> int:
    """Opens, reads and drops on many threads; the number of wrong values and errors."""
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(rounds):
            at = (number + turn) % len(handles)
            try:
                view = cd.open(handles[at], stream=own)
                found = np.from_dlpack(cd.view(view), device="cpu")
                if not np.array_equal(found, np.arange(8.0) + at):
                    wrong.append((at, found))
            except Exception as error:
                wrong.append(error)

    own = stream()
    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if wrong:
        print(wrong[:3])
    return len(wrong)


def forked() -> int:
    """A child that goes on without another program; its number."""
    child = os.fork()
    if not child:
        time.sleep(SECONDS)
        os._exit(0)
    return child


def as_user(number: int, handle: bytes) -> str:
    """The rule that refuses the handle to another user."""
    os.setuid(number)
    try:
        cd.open(handle, stream=1)
    except cd.Refusal as refusal:
        return refusal.rule
    return "opened"
