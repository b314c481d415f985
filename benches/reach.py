"""Messages between processes: what a view costs beside NumPy's array by the same engine, in one run.

    python benches/reach.py    the tables, of the engines that are installed (`make bench-reach`)

Memory of the host, 4 KiB for each array. Engines take turns, round after round; the least and the median are over the
rounds. Pickle and Dask make and read a message in one process; Ray sends it from one actor to another. Compare ratios.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cai_dlpack as cd
import numpy as np
from cai_dlpack import pickling
from instructions import commit

NUMBERS = (1, 10, 100, 1000)
ROUNDS = 15


def by_pickle(arrays: list[Any]) -> list[Any]:
    buffers: list[Any] = []
    found: list[Any] = pickle.loads(pickle.dumps(arrays, 5, buffer_callback=buffers.append), buffers=buffers)
    return found


def by_dask(arrays: list[Any]) -> list[Any]:
    from distributed.protocol import deserialize, serialize

    return [deserialize(*serialize(array, serializers=["dask"], on_error="raise")) for array in arrays]


def row(name: str, number: int, calls: dict[str, Callable[[], Any]]) -> str:
    """Both calls in turns, microseconds for each array."""
    spent: dict[str, list[float]] = {kind: [] for kind in calls}
    repeats = max(1, 200 // number) if "Ray" not in name else 3
    for at in range(-1, ROUNDS):
        for kind, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            if at >= 0:
                spent[kind].append((time.perf_counter() - start) / repeats / number * 1e6)
    view, numpy = (min(spent[kind]) for kind in ("view", "numpy"))
    median = statistics.median(spent["view"])
    return f"| {name} | {number} | {view:.1f} | {median:.1f} | {numpy:.1f} | {view / numpy:.2f} | {1e6 / view:,.0f} |"


def ray_rows() -> list[str]:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from cai_dlpack import ray as bridge

    bridge.register()

    @ray.remote(num_cpus=0, enable_tensor_transport=True)
    class Actor:
        @ray.method(tensor_transport="cai_dlpack")
        def views(self, number: int) -> list[Any]:
            import cai_dlpack as cd

            return [cd.view(np.zeros(512), read_only=True) for _ in range(number)]

        def arrays(self, number: int) -> list[Any]:
            return [np.zeros(512) for _ in range(number)]

        def take(self, found: list[Any]) -> int:
            return len(found)

    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=128 << 20, log_to_driver=False)
    of_class: Any = Actor
    one, other = of_class.remote(), of_class.remote()
    lines = []
    for number in NUMBERS[:3]:
        calls = {
            "view": lambda n=number: ray.get(other.take.remote(one.views.remote(n))),
            "numpy": lambda n=number: ray.get(other.take.remote(one.arrays.remote(n))),
        }
        lines.append(row("Ray, two actors", number, calls))
    ray.shutdown()
    return lines


def main() -> None:
    print(f"Commit {commit()}, CPython {platform.python_version()}, {os.cpu_count()} cores, {platform.platform()}.")
    print("Memory of the host, 4 KiB for each array; microseconds for each array.\n")
    print("| engine | arrays in a message | view, min | view, median | numpy, min | view to numpy | views per second |")
    print("|---|---|---|---|---|---|---|")
    pickling.register()
    engines = {"pickle 5, buffers apart": by_pickle}
    if importlib.util.find_spec("distributed"):
        from cai_dlpack import dask

        dask.register()
        engines["Dask, serialized and read"] = by_dask
    copied = []
    for name, engine in engines.items():
        for number in NUMBERS:
            arrays = [np.zeros(512) for _ in range(number)]
            views = [cd.view(array) for array in arrays]
            calls = {"view": lambda e=engine, v=views: e(v), "numpy": lambda e=engine, a=arrays: e(a)}
            print(row(name, number, calls), flush=True)
        (found,) = engine(views[:1])
        nbytes = 0 if found.ptr == views[0].ptr else views[0].nbytes
        copied.append(f"{name}: {nbytes} of {views[0].nbytes} bytes copied.")
    if importlib.util.find_spec("ray"):
        print("\n".join(ray_rows()))
    print("", *copied, sep="\n")


if __name__ == "__main__":
    main()
