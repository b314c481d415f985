"""UCXX, NCCL, NIXL and MPI read and write addresses: a view's, which they ask for no stream."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cai_dlpack as cd
import numpy as np
from cai_dlpack import nixl as rows

from conformance.gpu import pending as arrays
from conformance.gpu.pending import BEFORE, COUNT, LATER, VALUES, is_simulated, now, same
from conformance.gpu.registry import NotRun, check, expect
from conformance.tests.interpreter.process import ROOT
from conformance.tests.reach.page import recipe_of_nccl
from conformance.tests.reach.peer import Other

# --- UCXX ---

#: Between two processes nothing is sent in less.
SLOW = 1.0


def memory() -> str:
    """What UCXX and NIXL are given: on the simulator their transports for device memory find no device."""
    return "pinned" if is_simulated() else "device"


def given(view: cd.CaiView) -> Any:
    """What UCXX is given: the view. On the simulator NumPy's array of its page-locked memory, which is ready, too."""
    return np.asarray(view) if is_simulated() else view


def begin_ucxx() -> Any:
    import ucxx

    arrays.here()
    ucxx.reset()
    ucxx.init(options={"TLS": "tcp,self"} if is_simulated() else {})
    return ucxx


async def received(ucxx: Any, port: int, seconds: float) -> None:
    """Receives into an array that its stream has still to write, if it takes any time."""
    endpoint = await ucxx.create_endpoint("127.0.0.1", port)
    await endpoint.recv(given(arrays.ready(BEFORE, memory())))
    target = arrays.pending(LATER, seconds, memory()) if seconds else None
    into = target.view if target else arrays.ready(BEFORE, memory())
    await endpoint.recv(given(into.synchronize()))
    if target:
        arrays.here().wait(target.stream)
    same(now(into))
    await endpoint.close()


def received_by_ucxx(port: int, seconds: float) -> None:
    """In the other process."""
    asyncio.run(asyncio.wait_for(received(begin_ucxx(), port, seconds), 30))


async def sent(ucxx: Any, seconds: float, receive: Callable[[int], Awaitable[object]]) -> None:
    """Sends one array to make the connection, and one that its stream has still to write."""
    done = asyncio.Event()

    async def serve(endpoint: Any) -> None:
        await endpoint.send(given(arrays.ready(BEFORE, memory())))
        view = arrays.pending(VALUES, seconds, memory()).view if seconds else arrays.ready(memory=memory())
        await endpoint.send(given(view.synchronize()))
        await done.wait()
        await endpoint.close()

    listener = ucxx.create_listener(serve)
    try:
        await receive(listener.port)
    finally:
        done.set()
        listener.close()


def by_ucxx(sender: float, receiver: float, is_alone: bool) -> str:
    ucxx = begin_ucxx()

    async def exchange() -> None:
        if is_alone:
            await sent(ucxx, sender, lambda port: received(ucxx, port, receiver))
            return
        with Other() as other:
            loop = asyncio.get_running_loop()
            await sent(ucxx, sender, lambda port: loop.run_in_executor(None, other, received_by_ucxx, port, receiver))

    asyncio.run(asyncio.wait_for(exchange(), 35))
    return f"{memory()} memory, its own address at both ends; UCX {'.'.join(map(str, ucxx.get_ucx_version()))}"


for alone, where in ((True, "within one process"), (False, "to another process")):
    check("ucxx", f"{where}: what is sent is the slow write before it")(
        lambda _, alone=alone: by_ucxx(SLOW, 0, alone)  # type: ignore[misc]
    )
    check("ucxx", f"{where}: what is received is not written over by what was pending there")(
        lambda _, alone=alone: by_ucxx(0, SLOW, alone)  # type: ignore[misc]
    )

# --- NCCL ---

#: `ncclFloat32` and `ncclSum` of nccl.h.
FLOAT32, SUM = 7, 0


class Double:
    """On the simulator: what a sum over one rank is, a copy on the stream."""

    def allReduce(self, sent: int, into: int, count: int, datatype: int, op: int, stream: int) -> None:
        expect((datatype, op), (FLOAT32, SUM))
        addresses = ctypes.c_uint64(into), ctypes.c_uint64(sent)
        arrays.here().call("cuMemcpyDtoDAsync_v2", *addresses, ctypes.c_size_t(4 * count), ctypes.c_void_p(stream))


class Library:
    """NCCL without another library: one rank."""

    def __init__(self) -> None:
        self.nccl = loaded_nccl()
        self.communicator = ctypes.c_void_p()
        devices = (ctypes.c_int * 1)(0)
        self.do("ncclCommInitAll", ctypes.byref(self.communicator), 1, devices)

    def do(self, name: str, *arguments: Any) -> None:
        expect((name, getattr(self.nccl, name)(*arguments)), (name, 0))

    def allReduce(self, sent: int, into: int, count: int, datatype: int, op: int, stream: int) -> None:
        pointers = ctypes.c_void_p(sent), ctypes.c_void_p(into), ctypes.c_size_t(count)
        self.do("ncclAllReduce", *pointers, datatype, op, self.communicator, ctypes.c_void_p(stream))


def loaded_nccl() -> ctypes.CDLL:
    """The library of the wheel nvidia-nccl, else the system's."""
    places: list[str] = []
    try:
        found = find_spec("nvidia.nccl")
        places += list(found.submodule_search_locations or ()) if found else []
    except ModuleNotFoundError:
        pass
    for path in [*(str(Path(place) / "lib/libnccl.so.2") for place in places), "libnccl.so.2"]:
        try:
            return ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    raise NotRun("no libnccl.so.2")


def communicator(kind: str) -> tuple[Any, Any, str]:
    """A communicator of one rank, what the recipe calls `cupy`, and whose it is."""
    constants = SimpleNamespace(cuda=SimpleNamespace(nccl=SimpleNamespace(NCCL_FLOAT32=FLOAT32, NCCL_SUM=SUM)))
    if is_simulated():
        return Double(), constants, "a double of NCCL"
    version = ctypes.c_int()
    loaded_nccl().ncclGetVersion(ctypes.byref(version))
    if kind == "libnccl":
        return Library(), constants, f"NCCL {version.value}"
    import cupy
    from cupy.cuda import nccl

    if not getattr(nccl, "available", False):
        raise NotRun("this CuPy is without NCCL")
    arrays.here()
    return nccl.NcclCommunicator(1, nccl.get_unique_id(), 0), cupy, f"CuPy {cupy.__version__}, NCCL {version.value}"


class Stream:
    """A stream as CuPy's is to the recipe."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr


def by_nccl(kind: str, is_way_back: bool) -> str:
    """The recipe of the page, as it is printed.

    After it the producer writes again. For the way back NCCL's stream is busy when it begins, so that NCCL has not
    read when that write is enqueued."""
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # two ranks would meet there, and one looks for it, too
    comm, cupy, whose = communicator(kind)
    at = arrays.here()
    stream = Stream(at.machine.stream())
    given = {"comm": comm, "cupy": cupy, "s": stream}
    code = compile(recipe_of_nccl(), "docs/reach.md", "exec")
    exec(code, {**given, "view": arrays.ready(), "into": arrays.ready(BEFORE)})  # what the first call makes is there
    at.wait(stream.ptr)

    view = arrays.pending(VALUES, 0.0 if is_way_back else SLOW)
    into = arrays.pending(LATER, 0.0 if is_way_back else SLOW / 2)
    again = arrays.filled(LATER)
    if is_way_back:
        at.wait(view.stream)
        at.wait(into.stream)
        at.slow.busy(stream.ptr, SLOW)
    start = time.perf_counter()
    exec(code, {**given, "view": view.view, "into": into.view})
    took = time.perf_counter() - start
    if is_way_back:
        arrays.copy(view, again)
    at.wait(into.stream)
    at.wait(stream.ptr)
    same(now(into.view))
    if is_way_back:
        at.wait(view.stream)
        same(now(view.view), LATER)
    if took > SLOW / 2:
        raise AssertionError(f"the host waited for {took:.2f} s")
    return f"{whose}; the call took {1e3 * took:.1f} ms beside work of {1e3 * SLOW:.0f} ms"


for library in ("cupy", "libnccl"):
    check("nccl", f"{library}: what is sent is the slow write before it")(
        lambda _, library=library: by_nccl(library, False)  # type: ignore[misc]
    )
    check("nccl", f"{library}: the producer's next write waits until it is read")(
        lambda _, library=library: by_nccl(library, True)  # type: ignore[misc]
    )

# --- NIXL ---

WIDTH = 1 << 8
#: Of the other process.
TARGET: dict[str, Any] = {}


def agent(name: str) -> Any:
    """An agent, whose UCX sees what is allocated: else it takes memory of a device for the host's. What it sees it by
    is linked to CUDA's runtime library, which it does not bring along."""
    from nixl_cu13._api import nixl_agent

    load_cudart()
    arrays.here()
    return nixl_agent(name)


def load_cudart() -> None:
    with suppress(Exception):  # NIXL says what it lacks
        from cuda.pathfinder import load_nvidia_dynamic_lib

        load_nvidia_dynamic_lib("cudart")


def parts(whole: cd.CaiView, is_strided: bool) -> cd.CaiView:
    """The left half of each row, or all of it."""
    if not is_strided:
        return whole
    kept = {"shape": (COUNT // WIDTH, WIDTH // 2), "strides": (4 * WIDTH, 4), "typestr": "<f4", "version": 3}
    stream = whole.stream
    return cd.view({**kept, "data": (whole.ptr, False), "stream": stream}, owner=whole)


def nixl_target(length: int, is_strided: bool) -> tuple[bytes, Any, str]:
    """In the other process: an agent, whose memory the one here writes."""
    found = agent("other")
    view = arrays.ready(BEFORE, memory())
    target = (rows.strided_rows if is_strided else rows.rows)(parts(view, is_strided), length)
    held = found.register_memory(target.span if isinstance(target, rows.StridedRows) else target.rows, target.memory)
    TARGET.update(agent=found, view=view, held=held)
    return found.get_agent_metadata(), target.rows, target.memory


def nixl_arrived() -> Any:
    return now(TARGET["view"])


def done(found: Any, handle: Any) -> None:
    """Waits for a transfer, which must end well."""
    state, end = found.transfer(handle), time.monotonic() + 20
    while state == "PROC" and time.monotonic() < end:
        state = found.check_xfer_state(handle)
    expect(state, "DONE")
    found.release_xfer_handle(handle)


def by_nixl(is_strided: bool) -> str:
    one = agent("one")
    make = rows.strided_rows if is_strided else rows.rows
    length = 4 * WIDTH // 2 if is_strided else 4 * COUNT
    with Other() as other:
        metadata, there, kind = other(nixl_target, length, is_strided)
        expect(kind, "DRAM" if memory() == "pinned" else "VRAM")
        name = one.add_remote_agent(metadata)
        # What the first transfer makes is there.
        warm, slow = arrays.ready(BEFORE, memory()), arrays.pending(VALUES, SLOW, memory())
        for view in (warm, slow.view):
            source = make(parts(view, is_strided), length)
            span = source.span if isinstance(source, rows.StridedRows) else source.rows
            held = one.register_memory(span, source.memory)
            if is_strided:
                sides = [one.prep_xfer_dlist(who, found, kind) for who, found in (("", source.rows), (name, there))]
                every = np.arange(int(source.rows[:, 4].sum()), dtype=np.int32)
                done(one, one.make_prepped_xfer("WRITE", sides[0], every, sides[1], every))
                for side in sides:
                    one.release_dlist_handle(side)
            else:
                descriptors = [one.get_xfer_descs(found, kind) for found in (source.rows, there)]
                done(one, one.initialize_xfer("WRITE", *descriptors, name, b""))
            one.deregister_memory(held)
        arrived = other(nixl_arrived)
    wanted = np.where(left_of_rows(), VALUES, BEFORE) if is_strided else VALUES
    if is_strided and np.array_equal(arrived, BEFORE):
        same(arrived)
    same(arrived, wanted)
    return f"{kind}; " + ("the gaps are as they were" if is_strided else "one row")


def left_of_rows() -> Any:
    return np.arange(COUNT) % WIDTH < WIDTH // 2


for strided, label in ((False, "one row"), (True, "strided rows")):
    check("nixl", f"to another process, {label}: what is sent is the slow write before it")(
        lambda _, strided=strided: by_nixl(strided)  # type: ignore[misc]
    )

# --- MPI ---


def mpi(kind: str, direction: str) -> str:
    """Two ranks, by the MPI that is installed, or that was carried (conformance.gpu.carried)."""
    found = find_spec("mpi4py")
    if found is None or found.origin is None:
        raise NotRun("mpi4py is not installed")
    if kind == "device" and not is_simulated():
        raise NotRun("MPICH of the wheel is not built with CUDA")
    prefix = Path(found.origin).parents[1] / "prefix"
    environment = {**os.environ, "HYDRA_LAUNCHER": "fork"}
    starter = shutil.which("mpiexec", path=str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"])
    if (prefix / "bin/mpiexec.hydra").exists():
        starter = str(prefix / "bin/mpiexec.hydra")
        environment["MPI4PY_LIBMPI"] = str(prefix / "lib/libmpi.so.12")
    if starter is None:
        raise NotRun("no mpiexec")
    command = [starter, "-n", "2", sys.executable, "-m", "mpi4py", "-m", "conformance.gpu.reach_ranks"]
    ended = subprocess.run(
        [*command, kind, direction], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=40
    )
    if "lost: " in ended.stdout:
        raise arrays.Lost(ended.stdout.partition("lost: ")[2].splitlines()[0])
    if ended.returncode or "right: " not in ended.stdout:
        raise AssertionError(f"exit code {ended.returncode}: {(ended.stdout + ended.stderr)[-500:]}")
    return ended.stdout.partition("right: ")[2].splitlines()[0]


for kind in ("managed", "pinned", "device"):
    check("mpi4py", f"{kind} memory: what is sent is the slow write before it")(
        lambda _, kind=kind: mpi(kind, "sent")  # type: ignore[misc]
    )
    check("mpi4py", f"{kind} memory: what is received is not written over by what was pending there")(
        lambda _, kind=kind: mpi(kind, "into")  # type: ignore[misc]
    )
