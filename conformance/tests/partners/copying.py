"""Copies of every kind of memory, and what the tests of them wait for."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import cai_dlpack as cd
from cai_conformance import abi

from conformance.tests.doubles.producers import cai
from conformance.tests.ownership.waiting import PATIENCE, until
from conformance.tests.simulated.machine import Machine

SIZE = 24
OLD = bytes([1]) * SIZE
LEGACY, PER_THREAD = 1, 2
MEBIBYTE = 1 << 20


def memory(machine: Machine, kind: str, nbytes: int = SIZE) -> int:
    """Memory of a kind that holds `OLD`, repeated."""
    allocate = {"device": machine.device_memory, "pinned": machine.pinned_memory, "managed": machine.managed_memory}
    pointer = allocate[kind](nbytes)
    machine.write(pointer, (OLD * nbytes)[:nbytes])
    return pointer


def view(pointer: int, nbytes: int = SIZE, **changes: Any) -> cd.CaiView:
    """A view of bytes, ready unless the changes name a stream."""
    return cd.view(cai(shape=(nbytes,), typestr="|u1", strides=None, data=(pointer, False), **changes))


def copy_for(source: cd.CaiView, stream: int | None, **more: Any) -> abi.Read:
    """Makes a copy for a stream, and consumes it."""
    return abi.consume(source.__dlpack__(stream=stream, copy=True, max_version=(1, 3), **more))


def read_on(machine: Machine, stream: int, target: int, source: int) -> None:
    """Enqueues a read of `SIZE` bytes."""
    addresses = (ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(SIZE))
    machine._call("cuMemcpyAsync", *addresses, ctypes.c_void_p(stream))


def wait(machine: Machine, stream: int) -> int:
    """Waits for a stream, also beside a capture; the code."""
    with machine.relaxed():
        return int(machine.driver.cuStreamSynchronize(ctypes.c_void_p(stream)))


def on_a_thread(body: Callable[[], Any]) -> Any:
    """Runs a call that must not wait for a closed gate; fails if it does."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(body()), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert found, "the call waits"
    return found[0]


# --- what is allocated, and what the library's threads have done ------------------------------------------


def settled(machine: Machine) -> int:
    """Waits until no copy was freed for a while, and returns the live allocations. On a busy machine more may go."""
    gc.collect()
    found, same = -1, 0
    while same < 5:
        now = machine.control.live().allocations
        found, same = now, same + 1 if now == found else 0
        time.sleep(0.01)
    return found


def is_alive(machine: Machine, tensor: abi.Read) -> bool:
    """Whether the copy's memory is allocated."""
    return int(machine.driver.cuMemGetAddressRange_v2(None, None, ctypes.c_uint64(tensor.data))) == 0


def is_at_most(machine: Machine, limit: int) -> bool:
    """Whether no more allocations are live."""
    return machine.control.live().allocations <= limit


def release_and_wait(machine: Machine, tensor: abi.Read, stream: int) -> None:
    """Drops a copy that was made for a stream since the log was cleared, once the marks of earlier ones have been seen.

    The stream is marked by the next copy for it, as nothing keeps it.
    """
    assert wait(machine, stream) == 0
    assert until(partial(_all_marks_are_seen, machine)), machine.control.calls()
    machine.clear()
    abi.release(tensor)
    assert wait(machine, stream) == 0


def _all_marks_are_seen(machine: Machine) -> bool:
    """Whether every event that was recorded has been found to be reached: none of them is taken for a later one."""
    pending: set[int] = set()
    for call in machine.control.calls("cuEventRecord", "cuEventQuery"):
        if call.name == "cuEventRecord":
            pending.add(call.arguments["event"])
        elif call.result == 0:
            pending.discard(call.arguments["event"])
    return not pending
