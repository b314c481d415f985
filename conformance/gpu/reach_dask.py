"""Views between two workers of Dask, over TCP and over UCXX: each its own process, both on one GPU."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import cai_dlpack as cd
import numpy as np

from conformance.gpu import pending as arrays
from conformance.gpu.pending import is_simulated, same
from conformance.gpu.registry import NotRun, check, expect

SLOW = 2.0
#: What the receiver has logged, and where its frames of device memory were allocated.
LOGGED: list[str] = []
ALLOCATED: list[tuple[int, int]] = []


# --- on a worker ---


def made(memory: str, seconds: float) -> cd.CaiView:
    if not seconds:
        return arrays.ready(memory=memory)
    return arrays.pending(seconds=seconds, memory=memory).view


class Arrived(NamedTuple):
    device: tuple[int, int]
    values: np.ndarray[Any, Any]
    address: int
    nbytes: int
    process: int
    logged: list[str]
    allocated: list[tuple[int, int]]


def read(view: cd.CaiView) -> Arrived:
    values = np.array(np.from_dlpack(view, device="cpu"))
    kept = LOGGED[:], ALLOCATED[:]
    return Arrived(view.device, values, view.ptr, view.nbytes, os.getpid(), *kept)


def address_of_frame(view: cd.CaiView) -> tuple[int, int]:
    """Of a view, and of the frame that a communication takes which takes device memory."""
    from distributed.protocol import serialize

    _, (frame,) = serialize(view, serializers=["cuda"], on_error="raise")
    return view.ptr, frame.ptr


def forget() -> None:
    LOGGED.clear()
    ALLOCATED.clear()


def listen() -> None:
    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            LOGGED.append(record.getMessage())

    logger = logging.getLogger("cai_dlpack")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(Kept())


def use(library: str) -> None:
    """Imports what is to take what arrives, and lets it take the device."""
    arrays.here()
    found = import_module(library)
    if library == "torch":
        found.zeros(1, device="cuda")
    elif library == "numba.cuda":
        found.current_context()
    elif library == "cuda.core":
        found.Device(0).set_current()


def receives() -> str | None:
    """What comes before every other library, if it is there: distributed imports it where it is installed."""
    return "rmm" if "rmm" in sys.modules else None


def leave_the_wait_to_us() -> None:
    """distributed-ucxx waits for the whole device before it sends (0.52.0: `Device.sync`): without that, what is in
    order is so by the view's own wait."""
    from cuda.core import Device
    from distributed_ucxx import ucxx

    ucxx.synchronize_stream = lambda *_: Device(0).set_current()


def record_allocations() -> None:
    """Of each size there is one: memory that UCX has not met is opened by the sender, and the driver waits for its work
    there (on an H200 that send came back after the slow write, so that the control was not lost)."""
    from distributed_ucxx import ucxx

    allocate = functools.cache(ucxx.device_array)

    def recorded(nbytes: int) -> Any:
        found = allocate(nbytes)
        ALLOCATED.append((int(found.ptr), nbytes))
        return found

    ucxx.device_array = recorded


# --- on the client ---


class Workers(NamedTuple):
    client: Any
    one: str
    other: str

    def on(self, worker: str, function: Any, *arguments: Any) -> Any:
        return self.client.run(function, *arguments, workers=[worker])[worker]

    def sent(self, memory: str, seconds: float) -> Arrived:
        """Makes an array on the one worker, and reads it on the other."""
        array = self.client.submit(made, memory, seconds, workers=[self.one], pure=False)
        found: Arrived = self.client.submit(read, array, workers=[self.other], pure=False).result(timeout=30)
        return found


@contextmanager
def workers(protocol: str) -> Iterator[Workers]:
    from cai_dlpack import dask
    from distributed import Client, LocalCluster

    dask.register()
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None, "memory_limit": 0}
    with (
        LocalCluster(protocol=protocol, preload="cai_dlpack.dask", **options) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2, timeout=30)
        one, other = sorted(client.scheduler_info()["workers"])
        assert one.startswith(protocol) and other.startswith(protocol), one
        yield Workers(client, one, other)


def needs(library: str | None) -> None:
    """The check is not run without it. It is not imported: it would take a device here."""
    if library is not None and find_spec(library.partition(".")[0]) is None:
        raise NotRun(f"{library} is not installed")


def memory_of(library: str | None) -> str:
    return "the driver's pool" if library is None else library


def over_tcp(memory: str, library: str | None, is_any: bool = False) -> str:
    """To the host, by TCP, and to memory of the receiver's library, or of the one that is there."""
    if library in ("rmm", "cupy", "torch") and is_simulated():
        raise NotRun(f"{library} reaches no simulated driver")
    needs(library)
    with workers("tcp://") as pair:
        pair.on(pair.other, listen)
        if library is not None:
            pair.on(pair.other, use, library)
        warm = pair.sent(memory, 0)
        first = pair.on(pair.other, receives)
        if not is_any and first not in (None, library):
            raise NotRun(f"the worker has imported {first}, which receives")
        expect(warm.process != pair.on(pair.one, os.getpid), True)
        same(warm.values)
        pair.on(pair.other, forget)
        arrived = pair.sent(memory, SLOW)
        same(arrived.values)
        if memory == "pinned":
            expect(arrived.device, (1, 0))
            return "it is the host's there"
        expect(arrived.device, (2, 0))
        wanted = f"{arrived.nbytes} bytes are in memory of {memory_of(first or library)}"
        if wanted not in arrived.logged:
            raise AssertionError(f"{arrived.logged} instead of {wanted!r}")
        return wanted


def configure_ucxx() -> None:
    """For this process and its workers."""
    import distributed_ucxx  # noqa: F401  where it is not installed the check is not run

    if is_simulated():
        os.environ["UCX_TLS"] = "tcp,self"
        return
    with suppress(Exception):  # it asks NVML for the device; without that UCX makes a context as it needs one
        import pynvml

        pynvml.nvmlInit()
        os.environ["DASK_DISTRIBUTED_UCXX__CREATE_CUDA_CONTEXT"] = "True"


def over_ucxx(memory: str, waits_itself: bool) -> str:
    """By UCXX, into memory that RMM allocates: no copy at either end."""
    if is_simulated() and memory != "pinned":
        raise NotRun("RMM allocates by CUDA's runtime library, which asks for a real driver")
    configure_ucxx()
    with workers("ucxx://") as pair:
        pair.on(pair.other, listen)
        if memory != "pinned":
            for worker in (pair.one, pair.other):
                if not waits_itself:
                    pair.on(worker, leave_the_wait_to_us)
            pair.on(pair.other, record_allocations)
        same(pair.sent(memory, 0).values)
        pair.on(pair.other, forget)
        arrived = pair.sent(memory, SLOW)
        same(arrived.values)
        if memory == "pinned":
            expect(arrived.device, (1, 0))
            return "it is the host's there"
        expect(arrived.device, (2, 0))
        if (arrived.address, arrived.nbytes) not in arrived.allocated:
            raise AssertionError(f"{arrived.address:#x} is none of {arrived.allocated}: a copy of what was received")
        expect(arrived.logged, [])
        array = pair.client.submit(made, memory, 0, workers=[pair.one], pure=False)
        address, frame = pair.client.submit(address_of_frame, array, workers=[pair.one]).result(timeout=20)
        expect(frame, address)
        return "0 + 0: the frame is the view's memory, and what arrived is where RMM allocated it"


for kind in ("device", "managed"):
    check("dask", f"over ucxx, {kind} memory, ordered by the view's wait alone")(
        lambda _, kind=kind: over_ucxx(kind, False)  # type: ignore[misc]
    )
check("dask", "over ucxx, device memory, as it is installed", False)(lambda _: over_ucxx("device", True))
check("dask", "over ucxx, pinned memory")(lambda _: over_ucxx("pinned", True))
for taker in (None, "rmm", "cupy", "numba.cuda", "cuda.core", "torch"):
    check("dask", f"over tcp, device memory, received by {memory_of(taker)}", taker in (None, "rmm"))(
        lambda _, taker=taker: over_tcp("device", taker)  # type: ignore[misc]
    )
check("dask", "over tcp, managed memory")(lambda _: over_tcp("managed", None, True))
check("dask", "over tcp, pinned memory")(lambda _: over_tcp("pinned", None, True))
