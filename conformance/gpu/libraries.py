"""Arrays of the libraries themselves, from each to each: order, who waits, who keeps the memory; graphs and shares.

The control passes -1 for the stream, by which nothing is ordered, or says of the array that it is ready.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from typing import Any

import cai_dlpack as cd

from conformance.gpu.captures import refused
from conformance.gpu.library import Library, library, next_value
from conformance.gpu.machine import SlowTrack
from conformance.gpu.processes import BUSY, closed, eventually, opened, seen, there
from conformance.gpu.registry import NotRun, check, expect
from conformance.tests.reach.peer import Other, Raised

PART = "libraries"
# Starting them takes ten seconds.
TOGETHER = "started once"

PRODUCERS = ("torch", "CuPy", "Numba", "cuda.core", "JAX")
CONSUMERS = ("torch", "CuPy", "Numba", "Numba, a kernel", "cuda.core", "tvm-ffi", "JAX")


def pairs() -> list[tuple[str, str]]:
    return [(one, other) for one in PRODUCERS for other in CONSUMERS if one != other.partition(",")[0]]


def query(track: SlowTrack, stream: int) -> int:
    return int(track.machine.driver.cuStreamQuery(ctypes.c_void_p(stream)))


def handed_over(track: SlowTrack, producer: Library, consumer: Library) -> None:
    """The consumer's stream reads the slow write, and the host has waited if the page of the pair says so."""
    given: dict[str, Any] = {**producer.keywords, **({} if track.declares else {"stream": -1})}
    # The first time loads and allocates what the second one needs.
    for seconds in (0, track.seconds):
        value = next_value()
        with producer.current():
            array = producer.written(track, value, seconds)
            taken = consumer.taken(array, **given)
        state = query(track, producer.stream)
        found = consumer.value(taken)
        track.call("cuCtxSynchronize")
    expect(found, value)
    if track.declares:
        expect(f"the host waits: {state != BUSY}", f"the host waits: {consumer.host_waits}")


def kept(producer: Library, consumer: Library) -> None:
    array, is_held = producer.watched()
    with producer.current():
        taken = consumer.taken(array, **producer.keywords)
    del array
    gc.collect()
    expect(is_held(), True)
    del taken
    eventually(lambda: not is_held(), "the producer's memory is let go")


for one, other in pairs():
    check(PART, f"{one} to {other}: the slow write, and who waits", together=TOGETHER)(
        lambda track, one=one, other=other: handed_over(track, library(one), library(other))  # type: ignore[misc]
    )
for one, other in pairs():
    if other != "Numba, a kernel":
        check(PART, f"{one} to {other}: kept until it is dropped", False, TOGETHER)(
            lambda _, one=one, other=other: kept(library(one), library(other))  # type: ignore[misc]
        )


# --- graphs ---


@check(PART, "torch: a loan in a graph that it captures", together=TOGETHER)
def loan_in_a_graph(track: SlowTrack) -> None:
    torch = library("torch")
    tensor, graph = torch.array(), torch.torch.cuda.CUDAGraph()
    with torch.torch.cuda.graph(graph, stream=torch.work):
        tensor.fill_(7)
        view = torch.view(tensor) if track.declares else torch.undeclared(tensor)
        with view.consume(track.b):
            track.read(track.b, torch.address(tensor))
    with torch.current():
        graph.replay()
    track.call("cuCtxSynchronize")
    expect(track.seen(), 7)


@check(PART, "torch: each replay reads the array of CuPy that was handed over before the capture", False, TOGETHER)
def handed_over_before_the_capture(track: SlowTrack) -> None:
    torch, cupy = library("torch"), library("CuPy")
    with cupy.current():
        taken = torch.taken(cupy.written(track, next_value(), track.seconds))
    graph = torch.torch.cuda.CUDAGraph()
    with torch.torch.cuda.graph(graph, stream=torch.work):
        torch.copy.copy_(taken)
    for _ in range(2):
        value = next_value()
        with cupy.current():
            torch.taken(cupy.written(track, value, track.seconds))
        with torch.current():
            graph.replay()
            torch.work.synchronize()
        expect(torch.value(torch.copy), value)


@check(PART, "torch: an array of CuPy is refused within a capture, which goes on", False, TOGETHER)
def refused_within_a_capture(track: SlowTrack) -> None:
    torch, cupy = library("torch"), library("CuPy")
    array, graph = cupy.written(track, 1, 0), torch.torch.cuda.CUDAGraph()
    with torch.torch.cuda.graph(graph, stream=torch.work):
        with cupy.current():
            refused("capture-consumer", lambda: torch.taken(array))
        torch.copy.fill_(9)
    with torch.current():
        graph.replay()
    track.call("cuCtxSynchronize")
    expect(torch.copy.tolist(), [9] * len(torch.copy))


@check(PART, "CuPy: a loan in a graph that it captures", together=TOGETHER)
def loan_in_a_graph_of_cupy(track: SlowTrack) -> None:
    cupy = library("CuPy")
    array, value = cupy.array(), next_value()
    with cupy.current():
        # It is not written as it is made: CuPy's pool has what an earlier run, whose control this is, has left there.
        array.data.memset_async(0, array.nbytes, cupy.work)
        cupy.work.synchronize()
        cupy.work.begin_capture()
        try:
            array.data.memset_async(value, array.nbytes, cupy.work)
            view = cupy.view(array) if track.declares else cupy.undeclared(array)
            with view.consume(track.b):
                track.read(track.b, cupy.address(array))
        finally:
            graph = cupy.work.end_capture()
        graph.launch(cupy.work)
    track.call("cuCtxSynchronize")
    expect(track.seen(), value)


# --- shares ---


def taken_there(handle: bytes, name: str) -> int:
    """Opens a handle in the other process, and has a library read it there."""
    there()
    reader = library(name)
    return int(reader.value(reader.taken(cd.open(handle, stream=reader.stream))))


def shared(track: SlowTrack, producer: Library) -> None:
    """What another process opens is the slow write."""
    with Other() as other:
        # The first time opens what the second one needs.
        for seconds in (0, 3 * track.seconds):
            value = next_value()
            with producer.current(), contextlib.ExitStack() as block:
                array = producer.written(track, value, seconds)
                view = producer.view(array) if track.declares else producer.undeclared(array)
                handle = bytes(block.enter_context(cd.share(view)))
                other(opened, handle)
                found = other(seen)
                other(closed)
            track.call("cuCtxSynchronize")
    expect(found, value)


def shared_or_refused(track: SlowTrack, producer: Library) -> None:
    try:
        shared(track, producer)
    except cd.Refusal as error:
        expect(getattr(error, "rule", None), "share-memory")
        raise NotRun(f"refused by name: {error}") from None


def shared_to(track: SlowTrack, producer: Library, name: str) -> None:
    value = next_value()
    with producer.current():
        view = producer.view(producer.written(track, value, track.seconds))
    with Other() as other, cd.share(view) as handle:
        try:
            expect(other(taken_there, bytes(handle), name), value)
        except Raised as error:
            rule, traceback = error.args
            if rule == "NotRun":
                # Its reason alone: the rest names the folders of a machine.
                raise NotRun(traceback.splitlines()[-1].partition("NotRun: ")[2]) from None
            raise AssertionError(traceback[-600:]) from None


def not_shared(producer: Library) -> None:
    def share() -> None:
        with producer.current(), cd.share(producer.view(producer.array())):
            pass

    refused("share-memory", share)


for one in ("torch", "CuPy", "Numba", "cuda.core, a pool for IPC"):
    check(PART, f"{one}: opened by another process, it is the slow write", together=TOGETHER)(
        lambda track, one=one: shared(track, library(one))  # type: ignore[misc]
    )
check(PART, "JAX: opened by another process, it is the slow write, or it is refused by name", together=TOGETHER)(
    lambda track: shared_or_refused(track, library("JAX"))
)
for one, other in (("torch", "CuPy"), ("CuPy", "torch"), ("Numba", "tvm-ffi"), ("cuda.core, a pool for IPC", "Numba")):
    check(PART, f"{one}: opened by another process, and handed to {other} there", False, TOGETHER)(
        lambda track, one=one, other=other: shared_to(track, library(one), other)  # type: ignore[misc]
    )
for one in ("CuPy, the driver's pool", "cuda.core"):
    check(PART, f"{one}: not shared with another process", False, TOGETHER)(
        lambda _, one=one: not_shared(library(one))  # type: ignore[misc]
    )
check(PART, "CuPy, the driver's pool, to cuda.core: the slow write, and who waits", together=TOGETHER)(
    lambda track: handed_over(track, library("CuPy, the driver's pool"), library("cuda.core"))
)


# --- torch with another allocator, which it chooses as it starts ---


def torch_with(setting: str) -> Library:
    if "torch" in sys.modules and os.environ.get("PYTORCH_ALLOC_CONF") != setting:
        raise AssertionError("torch has chosen its allocator")
    # The second name is the one of torch before 2.9.
    os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = setting
    found: Library = library("torch")
    return found


for setting in ("expandable_segments:True", "backend:cudaMallocAsync"):
    check(PART, f"torch, {setting}: to cuda.core: the slow write, and who waits", together=setting)(
        lambda track, setting=setting: handed_over(track, torch_with(setting), library("cuda.core"))  # type: ignore[misc]
    )
    check(PART, f"torch, {setting}: not shared with another process", False, setting)(
        lambda _, setting=setting: not_shared(torch_with(setting))  # type: ignore[misc]
    )
