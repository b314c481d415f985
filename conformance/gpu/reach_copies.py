"""Copies by pickle, and how many copies of its bytes an array costs at either end.

On a GPU the driver's copies are counted by CUPTI, through torch's profiler, which a control must find able to count;
on the simulator by the driver's log.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import numpy as np
from cai_dlpack import pickling

from conformance.gpu import pending as arrays
from conformance.gpu.pending import BEFORE, VALUES, is_simulated, same
from conformance.gpu.reach_dask import LOGGED, forget, listen, memory_of, needs, use
from conformance.gpu.registry import NotRun, check, expect
from conformance.tests.doubles.producers import Cai
from conformance.tests.reach.messages import received, sent
from conformance.tests.reach.page import stated
from conformance.tests.reach.peer import Other

SLOW = 1.0

# --- pickle ---


def taken(library: str | None) -> None:
    """Prepares the other process: what is to take what arrives."""
    arrays.here()
    listen()
    if library is not None:
        use(library)


def pickled(seconds: float, memory: str) -> cd.CaiView:
    pickling.register()
    return arrays.pending(seconds=seconds, memory=memory).view if seconds else arrays.ready(memory=memory)


def loaded(view: cd.CaiView) -> tuple[tuple[int, int], Any, list[str]]:
    return view.device, np.array(np.from_dlpack(view, device="cpu")), LOGGED[:]


def by_pickle(memory: str, library: str | None) -> str:
    """Through multiprocessing's pipe, to another process."""
    if library in ("rmm", "cupy", "torch") and is_simulated():
        raise NotRun(f"{library} reaches no simulated driver")
    needs(library)
    arrays.here()
    pickling.register()
    with Other() as other:
        other(taken, library)
        other(loaded, pickled(0, memory))
        other(forget)
        device, values, logged = other(loaded, pickled(SLOW, memory))
    same(values)
    if memory == "pinned":
        expect(device, (1, 0))
        return "it is the host's there"
    expect(device, (2, 0))
    wanted = f"{VALUES.nbytes} bytes are in memory of {memory_of(library)}"
    if wanted not in logged:
        raise AssertionError(f"{logged} instead of {wanted!r}")
    return wanted


check("pickle", "device memory, received by the driver's pool")(lambda _: by_pickle("device", None))
for taker in ("rmm", "cupy", "numba.cuda", "cuda.core", "torch"):
    check("pickle", f"device memory, received by {taker}", False)(
        lambda _, taker=taker: by_pickle("device", taker)  # type: ignore[misc]
    )
check("pickle", "managed memory")(lambda _: by_pickle("managed", None))
check("pickle", "pinned memory")(lambda _: by_pickle("pinned", None))

# --- counted ---


def copied(work: Callable[[], Any]) -> tuple[Any, int]:
    """What the work returns, and how many copies the driver made of it."""
    at = arrays.here()
    if is_simulated():
        at.machine.control.set("log", 1)
        at.machine.clear()
        found = work()
        return found, sum(name.startswith("cuMemcpy") for name in at.machine.names())
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        found = work()
        at.call("cuCtxSynchronize")
    return found, sum(event.name.startswith("Memcpy") for event in profiler.events() or ())


def two() -> None:
    """Two copies: to the device, and back."""
    address = arrays.filled(BEFORE)
    target = ctypes.create_string_buffer(BEFORE.nbytes)
    arrays.here().call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(address), ctypes.c_size_t(BEFORE.nbytes))


def counts() -> None:
    """Raises if copies are not counted here."""
    copied(two)  # the profiler begins late at its first time
    _, found = copied(two)
    if found != 2:
        raise NotRun(f"not counted: {found} of 2 copies are seen")


def array(memory: str, is_strided: bool) -> tuple[cd.CaiView, np.ndarray[Any, Any]]:
    """A view of 256 rows, in C order or with gaps; and its values."""
    whole = VALUES.reshape(256, -1)
    part = whole[:, :64] if is_strided else whole
    if memory == "host":
        return cd.view(part), part
    data = arrays.filled(VALUES, memory)
    described = {"shape": part.shape, "strides": part.strides, "typestr": "<f4", "version": 3, "data": (data, False)}
    return cd.view(Cai(described)), part


def counted(engine: str, memory: str) -> str:
    pickling.register()
    counts()
    seen = []
    for is_strided in (False, True):
        view, values = array(memory, is_strided)
        at_sender, at_receiver = stated(engine, memory)
        received(engine, sent(engine, view))  # what is made at the first time is there
        message, by_driver = copied(lambda view=view: sent(engine, view))  # type: ignore[misc]
        (frame,) = message.frames
        address = np.frombuffer(frame, np.uint8).ctypes.data
        # The host copies what it reads without the driver: memory that lies elsewhere is that one copy.
        by_host = int(memory in ("host", "pinned") and address != view.ptr and not by_driver)
        found, by_receiver = copied(lambda message=message: received(engine, message))  # type: ignore[misc]
        expect(np.from_dlpack(found, device="cpu").tobytes(), values.tobytes())
        seen.append(f"{by_driver + by_host} + {by_receiver}")
        expect(seen[-1], f"{at_sender + is_strided} + {at_receiver}")
        expect((address == view.ptr, found.ptr == address), (at_sender + is_strided == 0, at_receiver == 0))
    return f"{seen[0]}, with gaps {seen[1]}"


def counted_on_the_device(memory: str) -> str:
    """For a communication that takes device memory; what it allocates at the receiver is not here."""
    from cai_dlpack import dask
    from distributed.protocol import deserialize, serialize

    dask.register()
    counts()
    expect(stated("dask over ucxx", memory), (0, 0))
    for is_strided in (False, True):
        view, values = array(memory, is_strided)

        def around(view: cd.CaiView = view) -> Any:
            return deserialize(*serialize(view, serializers=["cuda"], on_error="raise"))

        around()
        found, number = copied(around)
        expect((number, found.ptr == view.ptr), (int(is_strided), not is_strided))
        expect(np.from_dlpack(found, device="cpu").tobytes(), values.tobytes())
    return "0 + 0, with gaps 1 + 0"


for kind in ("host", "pinned", "managed", "device"):
    for engine in ("pickle", "dask"):
        check("copies", f"{engine}: {kind} memory", False)(
            lambda _, engine=engine, kind=kind: counted(engine, kind)  # type: ignore[misc]
        )
    if kind in ("managed", "device"):
        check("copies", f"dask over ucxx: {kind} memory", False)(
            lambda _, kind=kind: counted_on_the_device(kind)  # type: ignore[misc]
        )
