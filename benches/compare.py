"""Nanoseconds per conversion, beside the C floor and the libraries of the field, in one process.

    python benches/compare.py               the tables
    python benches/compare.py --save        also a file under benches/results/
    python benches/compare.py --torch       torch's tables instead (`make bench-torch`)

Every call goes through the same C loop and vectorcall (floor.loop), so that no interpreter loop is
counted. The workloads of a table take turns, round after round, in ten runs one after the other. A ratio is of the
least times of one run: what stands in a table is the median of ten ratios, with the least and the greatest. The clock
of a shared machine changes by half while one looks, so that a claim holds if all ten do.

Run it on the simulated driver (`make bench` does): allocation, pointer query and events are then calls
into a library that answers at once, which is the least that a driver can cost; what it costs by itself is a row. A
debug build of the simulator is refused, and its log of calls is off.

Exit code 1 if the tables that are kept are of older sources.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cai_conformance import Sim
from dlpark.build import build as build_dlpark
from instructions import Array, build, commit

HERE = Path(__file__).resolve().parent
CALLS = 2000
#: Of these many rounds each; a ratio has its spread over the runs.
RUNS, ROUNDS = 10, 7
#: What the figures depend on.
SOURCES = (
    "src",
    "bindings/python/src",
    "bindings/python/python/cai_dlpack/__init__.py",
    "benches/compare.py",
    "benches/floor",
)
LIBRARIES = ["numpy", "cuda-core", "apache-tvm-ffi", "numba-cuda", "mpi4py", "torch"]


class Call(NamedTuple):
    """A call to time; `consume` takes the tensor out of the capsule and deletes it."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    names: tuple[str, ...] = ()
    consume: bool = False


class Times:
    """Nanoseconds per call, in runs of rounds."""

    def __init__(self) -> None:
        self.runs: list[list[float]] = [[] for _ in range(RUNS)]

    @property
    def least(self) -> float:
        return min(map(min, self.runs))

    @property
    def median(self) -> float:
        return statistics.median(time for run in self.runs for time in run)

    def ratios(self, to: Times) -> list[float]:
        """Of the least times of each run, in order of size."""
        return sorted(min(own) / min(other) for own, other in zip(self.runs, to.runs, strict=True))


class Table(NamedTuple):
    """Calls of one kind; the first is ours, and the ratios are to it."""

    title: str
    calls: list[Call]


def measure(floor: Any, calls: list[Call]) -> dict[str, Times]:
    """Times each call, in turns."""
    found = {call.name: Times() for call in calls}
    for call in calls:
        floor.loop(call.function, call.arguments, call.names or None, 200, "", call.consume)
    for run in range(RUNS):
        for _ in range(ROUNDS):
            for call in calls:
                start = time.perf_counter_ns()
                floor.loop(call.function, call.arguments, call.names or None, CALLS, "", call.consume)
                found[call.name].runs[run].append((time.perf_counter_ns() - start) / CALLS)
    return found


def lines(table: Table, times: dict[str, Times]) -> list[str]:
    """The table in Markdown, ratios first."""
    first = times[table.calls[0].name]
    text = [f"### {table.title}", "", "| | to ours | of ten runs | min ns | median ns |", "|---|---|---|---|---|"]
    for call in table.calls:
        each = times[call.name]
        ratios = each.ratios(first)
        spread = f"{statistics.median(ratios):.2f} | {ratios[0]:.2f} to {ratios[-1]:.2f}"
        text.append(f"| {call.name} | {spread} | {each.least:.0f} | {each.median:.0f} |")
    return [*text, ""]


def tables(floor: Any) -> list[Table]:
    """Returns the tables of timed calls, without the libraries that are not installed; the heading lists those."""
    import cai_dlpack as cd
    import numpy as np

    names, asked = ("stream", "max_version"), (-1, (1, 3))
    memory, array = device_array()
    host = np.zeros((3, 5), dtype=np.float32)
    view, plain, host_view = cd.view(array, device_id=0), floor.view(array), cd.view(host)
    get = cd.CaiView.__cuda_array_interface__.__get__
    plain_get = floor.View.__cuda_array_interface__.__get__

    to_capsule = [
        Call("ours, device_id=0", cd.to_dlpack, (array, *asked, 0), (*names, "device_id"), True),
        Call("ours, one pointer query", cd.to_dlpack, (array, *asked), names, True),
        Call("C floor, same arguments", floor.to_dlpack, (array, *asked, 0), (*names, "device_id"), True),
        Call("C floor, no arguments", floor.to_dlpack_bare, (array,), (), True),
        Call("the producer's attribute alone", floor.attribute, (array,)),
        Call("the simulated driver's answer to that query alone", floor.query, (array.pointer,)),
    ]
    to_view = [
        Call("ours, device_id=0", cd.view, (array, 0), ("device_id",)),
        Call("ours, one pointer query", cd.view, (array,)),
        Call("C floor", floor.view, (array,)),
    ]
    export = [
        Call("ours", view.__dlpack__, asked, names, True),
        Call("C floor", plain.__dlpack__, asked, names, True),
        Call("numpy", host.__dlpack__, ((1, 3),), ("max_version",), True),
    ]
    imports = [
        Call("ours, of the C floor's view", cd.from_dlpack, (plain,)),
        Call("C floor, of its own view", floor.from_dlpack, (plain,)),
        Call("ours, of numpy", cd.from_dlpack, (host,)),
        Call("numpy, of numpy", np.from_dlpack, (host,)),
        Call("numpy, of our view", np.from_dlpack, (host_view,)),
    ]
    exchange = [
        Call("ours, of the C floor's view", cd.view, (plain,)),
        Call("C floor, of its own view", floor.from_exchange, (plain,)),
    ]
    through = [Call("ours, of numpy", cd.to_dlpack, (host, None, (1, 3)), names, True)]
    dicts = [
        Call("ours", get, (view,)),
        Call("C floor (copied template)", plain_get, (plain,)),
    ]
    add_cuda_core(to_view, export, imports, array, host)
    add_tvm(imports, exchange, host, cd)
    add_mpi4py(to_view, array)
    add_dlpark(imports, through, plain, host)
    found = [
        Table("CAI object -> capsule, consumed and freed (whole call, with the attribute)", to_capsule),
        Table("CAI object -> view", to_view),
        Table("view -> `__dlpack__`, consumed and freed", export),
        Table("DLPack object -> view, by `__dlpack__`", imports),
        Table("DLPack object -> view, by the C Exchange API", exchange),
        Table("DLPack object -> capsule, consumed and freed", through),
        Table("view -> dict", dicts),
        Table("CAI object -> capsule, by the number of axes", axes(cd)),
    ]
    add_numba(found, memory, cd)
    return found


def device_array() -> tuple[Any, Array]:
    """Memory of the (simulated) device, and a producer of it whose dict is made beforehand."""
    from numba import cuda

    memory = cuda.device_array((3, 5), dtype="f4")
    array = Array((3, 5))
    array.__cuda_array_interface__["data"] = memory.__cuda_array_interface__["data"]
    array.pointer = array.__cuda_array_interface__["data"][0]
    return memory, array


def axes(cd: Any) -> list[Call]:
    """0 to 8 axes, in C order and every second element."""
    calls = []
    for ndim in (2, 0, 1, 4, 8):
        shape = (2,) * ndim
        for kind, step in (("C order", None), ("strided", 8)):
            strides = tuple(step * 2 ** (ndim - 1 - axis) for axis in range(ndim)) if step else None
            call = (Array(shape, strides), -1, (1, 3), 0)
            calls.append(Call(f"{ndim}, {kind}", cd.to_dlpack, call, ("stream", "max_version", "device_id"), True))
    return calls


def add_cuda_core(to_view: list[Call], export: list[Call], imports: list[Call], array: Any, host: Any) -> None:
    from cuda.core.utils import StridedMemoryView as View

    to_view.append(Call("cuda.core", View.from_cuda_array_interface, (array, -1), ("stream_ptr",)))
    view = View.from_dlpack(host, stream_ptr=-1)
    if hasattr(view, "__dlpack__"):
        export.append(Call("cuda.core", view.__dlpack__, ((1, 3),), ("max_version",), True))
    imports.append(Call("cuda.core, of numpy", View.from_dlpack, (host, -1), ("stream_ptr",)))


def add_tvm(imports: list[Call], exchange: list[Call], host: Any, cd: Any) -> None:
    """A `tvm_ffi.Tensor` has no exchange table, and reads others'."""
    import tvm_ffi

    tensor = tvm_ffi.from_dlpack(host)
    imports.append(Call("tvm-ffi, of numpy", tvm_ffi.from_dlpack, (host,)))
    imports.append(Call("ours, of tvm-ffi", cd.view, (tensor,)))
    imports.append(Call("tvm-ffi, of tvm-ffi", tvm_ffi.from_dlpack, (tensor,)))
    exchange.append(Call("tvm-ffi, of our view", tvm_ffi.from_dlpack, (cd.view(host),)))


def add_numba(tables: list[Table], memory: Any, cd: Any) -> None:
    """Numba's array has a getter of its own, which both sides read: a table apart from a dict that is there."""
    from numba import cuda

    tables.append(
        Table(
            "Numba's array -> an array of the importer",
            [
                Call("ours, by its fields, with one pointer query", cd.view, (memory,)),
                Call("ours, device_id=0", cd.view, (memory, 0), ("device_id",)),
                Call("numba, sync=False", cuda.as_cuda_array, (memory, False), ("sync",)),
                Call("the producer's attribute alone", type(memory).__cuda_array_interface__.__get__, (memory,)),
            ],
        )
    )


def add_mpi4py(to_view: list[Call], array: Any) -> None:
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    to_view.append(Call("mpi4py", MPI.buffer.frombuffer, (array,)))


def add_dlpark(imports: list[Call], through: list[Call], plain: Any, host: Any) -> None:
    import dlpark_path  # type: ignore[import-not-found]

    imports.append(Call("dlpark, of numpy", dlpark_path.take, (host,)))
    imports.append(Call("dlpark, of the C floor's view", dlpark_path.take, (plain,)))
    through.append(Call("dlpark, of numpy", dlpark_path.pass_on, (host,), (), True))


def torch_tables(floor: Any) -> list[Table]:
    """A tensor of the CPU, in torch's own environment; its flags are read before its table is used."""
    import cai_dlpack as cd
    import torch
    import tvm_ffi

    tensor, plain = torch.zeros((3, 5)), floor.view(Array((3, 5)))
    view = cd.view(tensor)
    exchange = [
        Call("ours, of torch", cd.view, (tensor,)),
        Call("ours, of the C floor's view", cd.view, (plain,)),
        Call("tvm-ffi, of torch", tvm_ffi.from_dlpack, (tensor,)),
        Call("torch.from_dlpack, of torch", torch.from_dlpack, (tensor,)),
        Call("torch.from_dlpack, of our view", torch.from_dlpack, (view,)),
    ]
    imports = [Call("ours, of torch", cd.from_dlpack, (tensor,))]
    return [
        Table("torch tensor -> view, by the C Exchange API", exchange),
        Table("torch tensor -> view, by `__dlpack__`", imports),
    ]


def bulk(cd: Any) -> list[str]:
    """Many arrays in a Python list comprehension: does anything grow?"""
    text = ["### Many arrays, all alive, in a list comprehension", "", "| arrays | ns per array |", "|---|---|"]
    for count in (1, 100, 1000):
        arrays = [Array((3, 5)) for _ in range(count)]
        rounds = 10_000 // count
        best = min(timed(partial(views, cd, arrays)) for _ in range(rounds))
        text.append(f"| {count} | {best / count:.0f} |")
    return [*text, ""]


def views(cd: Any, arrays: list[Any]) -> list[Any]:
    return [cd.view(array, device_id=0) for array in arrays]


def timed(work: Callable[[], Any]) -> int:
    start = time.perf_counter_ns()
    keep = work()
    spent = time.perf_counter_ns() - start
    del keep
    return spent


def threads(cd: Any, floor: Any) -> list[str]:
    """Times one conversion on several threads at once, each with its own array, under one GIL."""
    text = ["### Threads", "", "| threads | ns per conversion, all together |", "|---|---|"]
    for count in (1, 2, 4):
        best = min(one_race(cd, floor, count) for _ in range(5))
        text.append(f"| {count} | {best:.0f} |")
    return [*text, ""]


def one_race(cd: Any, floor: Any, count: int) -> float:
    calls = 40_000 // count

    def convert() -> None:
        arguments = (Array((3, 5)), -1, (1, 3), 0)
        for _ in range(calls // 100):
            floor.loop(cd.to_dlpack, arguments, ("stream", "max_version", "device_id"), 100, "", True)

    runners = [threading.Thread(target=convert) for _ in range(count)]
    start = time.perf_counter_ns()
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    return (time.perf_counter_ns() - start) / (calls * count)


def heading() -> list[str]:
    """Returns the heading: date, commit, machine, versions."""
    found = []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} not installed")
    return [
        f"# {datetime.date.today()}, commit {commit()}",
        "",
        f"CPython {platform.python_version()}, {platform.platform()}, {', '.join(found)}.",
        "Simulated driver, an optimized build, its log of calls off; 2-d arrays (3, 5) of float32 unless said.",
        "",
    ]


def stale(of: str) -> str:
    """Returns what has changed since the kept tables; "" if they are of these sources."""
    kept = sorted(HERE.glob(f"results/????-??-??-{of}python*.md"))
    if not kept:
        return "no tables are kept"
    found = re.match(r"# \S+ commit (\w+)", kept[-1].read_text())
    command = ["git", "diff", "--stat", found[1] if found else "", "--", *SOURCES]
    changed = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=False)
    if changed.returncode != 0:
        return f"{kept[-1].name} is of a commit that is not here"
    last = changed.stdout.strip().rpartition("\n")[2].strip()
    return f"{kept[-1].name} is stale: {last}" if last else ""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="write the tables to benches/results/")
    parser.add_argument("--torch", action="store_true", help="torch's tables instead")
    arguments = parser.parse_args()
    of = "torch-" if arguments.torch else ""
    # torch's tensors of the CPU ask for no driver.
    if not arguments.torch:
        sim = Sim()
        if not sim.get("optimized"):
            print("not run: the simulated driver is a debug build; `make bench` takes the release build")
            return 1
        sim.set("log", 0)
    if arguments.save and commit().endswith("-dirty"):
        print("not saved: the figures would be of no commit; commit what has changed first")
        return 1
    with tempfile.TemporaryDirectory() as name:
        build(Path(name))
        if not arguments.torch:
            build_dlpark(Path(name))
        sys.path.insert(0, name)
        import cai_dlpack as cd
        import floor  # type: ignore[import-not-found]

        text = heading()
        for table in torch_tables(floor) if arguments.torch else tables(floor):
            text += lines(table, measure(floor, table.calls))
        if not arguments.torch:
            text += bulk(cd) + threads(cd, floor)
    print("\n".join(text))
    if arguments.save:
        results = HERE / "results"
        results.mkdir(exist_ok=True)
        path = results / f"{datetime.date.today()}-{of}python{platform.python_version()}.md"
        path.write_text("\n".join(text))
    elif why := stale(of):
        print(f"{why}; save anew: `make bench BENCH=--save`, at a commit")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
