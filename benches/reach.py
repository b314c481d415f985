"""Messages between processes: what a view costs beside the engine's own array, in one run.

    python benches/reach.py                       the engines that are installed (`make bench-reach`)
    python benches/reach.py nixl ucxx             these alone
    python -m cai_conformance simulate --devices 4 -- python benches/reach_ipc.py

Memory of the host: NumPy's arrays, or torch's where that is installed. More arrays, larger arrays, more processes that
receive. Both kinds take turns, round after round; the least and the median are over the rounds. The machine may be
shared: compare ratios of one row, and the growth of a column, not microseconds of two runs.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import pickle
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import cai_dlpack as cd
import numpy as np
from cai_dlpack import pickling
from instructions import commit
from reach_rows import HEAD, SIZES, WORKERS, Message, loads, row

HERE = Path(__file__).resolve().parent


def is_here(*modules: str) -> bool:
    return all(importlib.util.find_spec(module) for module in modules)


def by_buffers(arrays: list[Any]) -> list[Any]:
    buffers: list[Any] = []
    found: list[Any] = pickle.loads(pickle.dumps(arrays, 5, buffer_callback=buffers.append), buffers=buffers)
    return found


def in_one_piece(arrays: list[Any]) -> list[Any]:
    found: list[Any] = pickle.loads(pickle.dumps(arrays, 5))
    return found


def by_dask(arrays: list[Any]) -> list[Any]:
    from distributed.protocol import deserialize, serialize

    return [deserialize(*serialize(array, serializers=["dask"], on_error="raise")) for array in arrays]


def in_one_process() -> Iterator[str]:
    """What is made for a message, and read of it."""
    engines: dict[str, Callable[[list[Any]], list[Any]]] = {
        "pickle 5, buffers apart": by_buffers,
        "pickle 5, in one piece": in_one_piece,
    }
    if is_here("distributed"):
        from cai_dlpack import dask

        dask.register()
        engines["Dask, serialized and read"] = by_dask
    for name, engine in engines.items():
        for number, nbytes in loads():
            arrays = [np.zeros(nbytes, np.uint8) for _ in range(number)]
            views = [cd.view(array) for array in arrays]
            repeats = max(1, min(200, (64 << 20) // nbytes) // number)
            message = Message(name, number, nbytes)
            yield row(message, lambda e=engine, v=views: e(v), lambda e=engine, a=arrays: e(a), repeats)


def torch_rows() -> Iterator[str]:
    """torch's way between processes is a file of shared memory for each tensor: no byte is copied once it is there."""
    import torch.multiprocessing  # registers torch's reductions

    def sent(objects: list[Any]) -> list[Any]:
        found: list[Any] = pickle.loads(bytes(ForkingPickler.dumps(objects)))
        return found

    pickling.register()
    for number, nbytes in loads()[1:3] + loads()[4:]:
        tensors = [torch.zeros(nbytes, dtype=torch.uint8) for _ in range(number)]
        views = [cd.view(tensor) for tensor in tensors]
        message = Message("pickle 5, buffers apart; own: torch's tensor", number, nbytes)
        yield row(message, lambda v=views: by_buffers(v), lambda t=tensors: by_buffers(t), max(1, 50 // number))
    for number, nbytes in loads()[:2] + loads()[4:]:
        message = Message("multiprocessing's pickler; own: torch's, by shared memory", number, nbytes)
        views = [cd.view(torch.zeros(nbytes, dtype=torch.uint8)) for _ in range(number)]
        yield row(message, lambda v=views: sent(v), lambda n=number, b=nbytes: sent(fresh(n, b)), max(1, 10 // number))


def fresh(number: int, nbytes: int) -> list[Any]:
    """Tensors that are not in shared memory yet."""
    import torch

    return [torch.zeros(nbytes, dtype=torch.uint8) for _ in range(number)]


def size_of(found: Any) -> int:
    return int(found.nbytes)


def pool_rows() -> Iterator[str]:
    for receivers in WORKERS:
        with multiprocessing.get_context("spawn").Pool(receivers) as pool:
            arrays = [np.zeros(SIZES[0], np.uint8) for _ in range(200)]
            views = [cd.view(array) for array in arrays]
            message = Message("multiprocessing.Pool", 200, SIZES[0], receivers)
            yield row(
                message,
                lambda p=pool, v=views: p.map(size_of, v, chunksize=10),
                lambda p=pool, a=arrays: p.map(size_of, a, chunksize=10),
            )


def mpi_rows() -> Iterator[str]:
    mpiexec = Path(sys.executable).with_name("mpiexec")
    for receivers in WORKERS:
        command = [str(mpiexec), "-n", str(1 + receivers), sys.executable, str(HERE / "reach_mpi.py")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        yield from done.stdout.splitlines()


def made(nbytes: int) -> Any:
    return np.zeros(nbytes, np.uint8)


def made_view(nbytes: int) -> Any:
    return cd.view(made(nbytes))


def cluster_rows() -> Iterator[str]:
    """One worker of Dask makes arrays, the others read them, over TCP."""
    from distributed import Client, LocalCluster

    for receivers in WORKERS:
        options = {"processes": True, "dashboard_address": None, "preload": "cai_dlpack.dask", "memory_limit": 0}
        with (
            LocalCluster(n_workers=1 + receivers, threads_per_worker=1, **options) as cluster,
            Client(cluster) as client,
        ):
            client.wait_for_workers(1 + receivers)
            one, *others = sorted(client.scheduler_info()["workers"])

            def carried(make: Any, number: int, nbytes: int, c: Any = client, o: Any = one, to: Any = others) -> None:
                futures = [c.submit(make, nbytes, workers=[o], pure=False) for _ in range(number)]
                at = [to[place % len(to)] for place in range(number)]
                c.gather([c.submit(size_of, future, workers=[w]) for future, w in zip(futures, at, strict=True)])

            for number, nbytes in [*loads()[:3], *loads()[4:]] if receivers == 1 else loads()[2:3]:
                message = Message("Dask, workers over TCP", number, nbytes, receivers)
                args = (number, nbytes)
                yield row(message, lambda a=args, c=carried: c(made_view, *a), lambda a=args, c=carried: c(made, *a))


def nixl_rows() -> Iterator[str]:
    """A transfer between two agents of this process, from its rows on; the memory is registered before."""
    os.environ["NIXL_LOG_LEVEL"] = "WARN"
    from cai_dlpack import nixl
    from nixl_cu12._api import nixl_agent

    one, other = nixl_agent("one"), nixl_agent("other")

    def of_views(views: list[Any]) -> Any:
        return np.concatenate([nixl.rows(view).rows for view in views])

    def of_arrays(arrays: list[Any]) -> Any:
        return np.array([(array.ctypes.data, array.nbytes, 0) for array in arrays], np.uint64)

    def sent(name: str, ends: list[Any]) -> None:
        handle = one.initialize_xfer("WRITE", *(one.get_xfer_descs(rows, "DRAM") for rows in ends), name, b"")
        state = one.transfer(handle)
        while state == "PROC":
            state = one.check_xfer_state(handle)
        assert state == "DONE", state
        one.release_xfer_handle(handle)

    for number, nbytes in loads():
        blocks = [np.ones((number, nbytes), np.uint8), np.zeros((number, nbytes), np.uint8)]
        held = [
            agent.register_memory(of_arrays([block]), "DRAM") for agent, block in zip((one, other), blocks, strict=True)
        ]
        name = one.add_remote_agent(other.get_agent_metadata())
        arrays = [list(block) for block in blocks]
        views = [[cd.view(array) for array in end] for end in arrays]
        yield row(
            Message("NIXL, a transfer", number, nbytes),
            lambda n=name, v=views: sent(n, [of_views(end) for end in v]),
            lambda n=name, a=arrays: sent(n, [of_arrays(end) for end in a]),
            max(1, min(100, (64 << 20) // nbytes) // number),
        )
        assert blocks[1].all()
        one.remove_remote_agent(name)
        for agent, registered in zip((one, other), held, strict=True):
            agent.deregister_memory(registered)


def ucxx_rows() -> Iterator[str]:
    """Messages from one endpoint of this process to the other, over TCP."""
    import asyncio

    os.environ["UCX_WARN_UNUSED_ENV_VARS"] = "n"
    import ucxx

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    ucxx.init(options={"TLS": "tcp,self"})
    there: asyncio.Future[Any] = loop.create_future()
    over = asyncio.Event()

    async def serve(endpoint: Any) -> None:
        there.set_result(endpoint)
        await over.wait()
        await endpoint.close()

    async def connected() -> tuple[Any, Any, Any]:
        listener = ucxx.create_listener(serve)
        return listener, await ucxx.create_endpoint("127.0.0.1", listener.port), await there

    async def closed() -> None:
        over.set()
        await here.close()
        while listener.active_clients:
            await asyncio.sleep(0.01)
        listener.close()

    async def carried(pairs: list[tuple[Any, Any]], prepare: Callable[[Any], Any]) -> None:
        for sent, into in pairs:
            await asyncio.gather(here.send(prepare(sent)), other.recv(prepare(into)))

    listener, here, other = loop.run_until_complete(connected())
    for number, nbytes in loads():
        arrays = [(np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)) for _ in range(number)]
        views = [(cd.view(sent), cd.view(into)) for sent, into in arrays]
        yield row(
            Message("UCXX, a message", number, nbytes),
            lambda v=views: loop.run_until_complete(carried(v, cd.CaiView.synchronize)),
            lambda a=arrays: loop.run_until_complete(carried(a, lambda array: array)),
            max(1, min(100, (64 << 20) // nbytes) // number),
        )
        assert all(into.all() for _, into in arrays)
    loop.run_until_complete(closed())


def ray_rows() -> Iterator[str]:
    sys.path.insert(0, str(HERE))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from cai_dlpack import ray as bridge

    bridge.register()

    @ray.remote(num_cpus=0, enable_tensor_transport=True)
    class Actor:
        @ray.method(tensor_transport="cai_dlpack")
        def views(self, number: int, nbytes: int) -> list[Any]:
            return [cd.view(np.zeros(nbytes, np.uint8), read_only=True) for _ in range(number)]

        def arrays(self, number: int, nbytes: int) -> list[Any]:
            return [np.zeros(nbytes, np.uint8) for _ in range(number)]

        def take(self, found: list[Any]) -> int:
            return len(found)

    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=512 << 20, log_to_driver=False)
    of_class: Any = Actor
    one, others = of_class.remote(), [of_class.remote() for _ in range(max(WORKERS))]

    def carried(make: Any, number: int, nbytes: int, receivers: int) -> None:
        sent = make.remote(number, nbytes)
        ray.get([other.take.remote(sent) for other in others[:receivers]])

    cases = [(*load, 1) for load in loads() if load[0] < 1000] + [(100, SIZES[0], some) for some in WORKERS[1:]]
    for number, nbytes, receivers in cases:
        args = (number, nbytes, receivers)
        message = Message("Ray, actors", *args)
        yield row(message, lambda a=args: carried(one.views, *a), lambda a=args: carried(one.arrays, *a), 3)
    ray.shutdown()


def copied() -> Iterator[str]:
    """Whether what is read lies where it was sent from."""
    engines = {"pickle 5, buffers apart": by_buffers, "pickle 5, in one piece": in_one_piece}
    if is_here("distributed"):
        engines["Dask, serialized and read"] = by_dask
    for name, engine in engines.items():
        view = cd.view(np.zeros(512))
        (found,) = engine([view])
        yield f"{name}: {0 if found.ptr == view.ptr else view.nbytes} of {view.nbytes} bytes copied."


def main() -> None:
    print(f"Commit {commit()}, CPython {platform.python_version()}, {os.cpu_count()} cores, {platform.platform()}.")
    print(f"Microseconds for each array; {os.getloadavg()[0]:.1f} other processes wanted a core at the start.\n")
    print(HEAD, flush=True)
    pickling.register()
    tables = {in_one_process: (), pool_rows: (), mpi_rows: ("mpi4py",), cluster_rows: ("distributed",)}
    if is_here("ray"):
        tables = {nixl_rows: ("nixl_cu12",), ucxx_rows: ("ucxx",), ray_rows: ()}
    if is_here("torch"):
        tables = {torch_rows: ()}
    chosen = sys.argv[1:]
    for table, needed in tables.items():
        if is_here(*needed) and (not chosen or table.__name__.removesuffix("_rows") in chosen):
            for line in table():
                print(line, flush=True)
    print("", *copied(), sep="\n")


if __name__ == "__main__":
    main()
