"""Times conversions on a GPU with its driver, beside other libraries, in nanoseconds.

    python benches/gpu.py               on a GPU (`make gpu PARTS=bench` keeps what it prints)
    python benches/gpu.py --simulated   on the simulator, to see that it runs: its times say nothing about a GPU

The calls of a table take turns, round after round; the device is idle at the start of each turn; minimum and median
are over the rounds. A library that is not installed, or fails, is listed with its reason. The clocks are left as they
are and shown; `PIN_CLOCKS=1 make gpu PARTS=bench` has them fixed meanwhile, where that is allowed.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "conformance" / "kit" / "src")]

import cai_dlpack as cd  # noqa: E402
from cai_conformance.slow import Slow  # noqa: E402

from conformance.gpu.facts import begin  # noqa: E402

Call = Callable[[], object]
Makes = dict[str, Callable[[], Call]]
ROUNDS, CALLS = 31, 300
# Of the kernel beside which the host must not wait.
LONG_SECONDS = 0.2


class Array:
    """The interface of a device array and nothing else, ready on a stream."""

    def __init__(self, pointer: int, stream: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (32, 32), "typestr": "<f4", "data": (pointer, False), "strides": None, "version": 3,
            "stream": stream,
        }  # fmt: skip


class Driver:
    """The driver by ctypes, with the memory and the streams of the tables."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)
        self.a, self.b, self.c = (self.out("cuStreamCreate", ctypes.c_uint(1)) for _ in range(3))
        self.plain = self.out("cuMemAlloc_v2", ctypes.c_size_t(4096))
        self.pool = self.out("cuMemAllocAsync", ctypes.c_size_t(4096), ctypes.c_void_p(self.a))
        self.settle()

    def __call__(self, name: str, *arguments: object) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: {code}")

    def out(self, name: str, *arguments: object) -> int:
        found = ctypes.c_uint64()
        self(name, ctypes.byref(found), *arguments)
        return found.value

    def settle(self) -> None:
        """Waits until the device is idle."""
        self("cuCtxSynchronize")


def measure(calls: dict[str, Call], settle: Call, repeat: int = CALLS) -> dict[str, tuple[float, float]]:
    """Minimum and median nanoseconds of each, in turns."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for at in range(-2, ROUNDS):
        for name, call in calls.items():
            settle()
            start = time.perf_counter_ns()
            for _ in range(repeat):
                call()
            if at >= 0:
                spent[name].append((time.perf_counter_ns() - start) / repeat)
    return {name: (min(times), statistics.median(times)) for name, times in spent.items()}


def usable(calls: Makes) -> tuple[dict[str, Call], dict[str, str]]:
    """Returns the calls that can be made once, and for each of the others the reason."""
    made: dict[str, Call] = {}
    absent: dict[str, str] = {}
    for name, make in calls.items():
        try:
            call = make()
            call()
        except Exception as error:  # whatever a foreign library says
            absent[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        else:
            made[name] = call
    return made, absent


def single_calls(cu: Driver) -> Makes:
    """Returns every driver call that an order or an import is made of, by ctypes, and what ctypes itself costs."""
    library, out, word = cu.library, ctypes.c_uint64(), ctypes.c_uint()
    a, b, pointer = ctypes.c_void_p(cu.a), ctypes.c_void_p(cu.b), ctypes.byref(out)
    current = ctypes.c_void_p(cu.out("cuCtxGetCurrent"))
    event = ctypes.c_void_p(cu.out("cuEventCreate", ctypes.c_uint(2)))
    numbers = (ctypes.c_uint * 9)(1, 2, 3, 4, 8, 9, 13, 11, 12)

    def attributes(count: int, address: int) -> Call:
        values = (ctypes.c_uint64 * count)()
        slots = (ctypes.c_void_p * count)(*(ctypes.addressof(values) + 8 * at for at in range(count)))
        length, where = ctypes.c_uint(count), ctypes.c_uint64(address)

        def ask() -> int:
            assert values is not None  # kept: the slots point into it
            return int(library.cuPointerGetAttributes(length, numbers, slots, where))

        return ask

    def event_made() -> None:
        made = ctypes.c_void_p()
        library.cuEventCreate(ctypes.byref(made), ctypes.c_uint(2))
        library.cuEventDestroy_v2(made)

    def retained() -> None:
        library.cuDevicePrimaryCtxRetain(pointer, 0)
        library.cuDevicePrimaryCtxRelease_v2(0)

    def recorded() -> None:
        library.cuEventRecord(event, a)
        library.cuStreamWaitEvent(b, event, 0)

    return {
        "cuDriverGetVersion: ctypes, and a call that does nothing": lambda: (
            lambda: library.cuDriverGetVersion(ctypes.byref(word))
        ),
        "cuPointerGetAttributes, 7, plain memory": lambda: attributes(7, cu.plain),
        "cuPointerGetAttributes, 7, pool memory": lambda: attributes(7, cu.pool),
        "cuPointerGetAttributes, 9, plain memory": lambda: attributes(9, cu.plain),
        "cuCtxGetCurrent": lambda: lambda: library.cuCtxGetCurrent(pointer),
        "cuCtxSetCurrent": lambda: lambda: library.cuCtxSetCurrent(current),
        "cuCtxGetId": lambda: lambda: library.cuCtxGetId(current, pointer),
        "cuStreamGetCtx": lambda: lambda: library.cuStreamGetCtx(a, pointer),
        "cuStreamIsCapturing": lambda: lambda: library.cuStreamIsCapturing(a, ctypes.byref(word)),
        "cuEventRecord and cuStreamWaitEvent": lambda: recorded,
        "cuEventCreate and cuEventDestroy": lambda: event_made,
        "cuDevicePrimaryCtxRetain and Release": lambda: retained,
    }


def conversions(array: Array, a: int, b: int) -> Makes:
    """Returns one conversion with more and more driver calls, and an empty call for the loop itself."""
    view = cd.view(array, device_id=0)
    legacy = cd.view(array, producer_stream=1)

    def consume() -> None:
        with view.consume(b):
            pass

    return {
        "an empty call": lambda: lambda: None,
        "view, device_id=0: no driver call": lambda: lambda: cd.view(array, device_id=0),
        "view: one pointer query": lambda: lambda: cd.view(array),
        "view, check='bounds': one query with the range": lambda: lambda: cd.view(array, check="bounds"),
        "view.on(the same stream): no driver call": lambda: lambda: view.on(a),
        "view.on(another stream): one record, one wait": lambda: lambda: view.on(b),
        "view.__dlpack__(another stream): the same": lambda: lambda: view.__dlpack__(stream=b, max_version=(1, 3)),
        "view ready on the legacy stream, .on(a stream)": lambda: lambda: legacy.on(b),
        "view.consume(another stream): both edges": lambda: consume,
        "view.__dlpack__(copy=True), made and dropped": lambda: (
            lambda: view.__dlpack__(copy=True, stream=b, max_version=(1, 3))
        ),
    }


def joins(cu: Driver) -> Makes:
    """Returns joins of 300 views of three streams."""
    streams = [cu.a, cu.b, cu.c] * 100
    views = [cd.view(Array(cu.plain, stream), device_id=0) for stream in streams]
    target = cu.out("cuStreamCreate", ctypes.c_uint(1))
    return {
        "cd.join of 300 views of three streams": lambda: lambda: cd.join(views, on=target),
        "300 times view.on": lambda: lambda: [view.on(target) for view in views],
    }


def not_waiting(cu: Driver, array: Array) -> list[str]:
    """Returns how long each order takes while the ready stream is busy, and whether it still is afterwards."""
    slow, view = Slow(), cd.view(array, device_id=0)
    slow.busy(cu.a, 0)
    cu.settle()

    def consume() -> None:
        with view.consume(cu.b):
            pass

    orders: dict[str, Call] = {
        "view": lambda: cd.view(array),
        "view.on": lambda: view.on(cu.b),
        "view.__dlpack__": lambda: view.__dlpack__(stream=cu.b, max_version=(1, 3)),
        "cd.join": lambda: cd.join([view], on=cu.b),
        "view.consume, both edges": consume,
        "view.__dlpack__(copy=True), made and dropped": lambda: view.__dlpack__(
            copy=True, stream=cu.b, max_version=(1, 3)
        ),
        "view.synchronize: the control, which must wait": lambda: view.synchronize(),
    }
    title = f"The host does not wait: one call beside a kernel of {LONG_SECONDS * 1e3:.0f} ms on the ready stream"
    lines = [f"### {title}", "", "| call | us | ready stream afterwards |", "|---|---|---|"]
    for name, call in orders.items():
        call()
        cu.settle()
        slow.busy(cu.a, LONG_SECONDS)
        start = time.perf_counter_ns()
        call()
        took = (time.perf_counter_ns() - start) / 1e3
        state = {0: "done", 600: "busy"}[cu.library.cuStreamQuery(ctypes.c_void_p(cu.a))]
        cu.settle()
        lines.append(f"| {name} | {took:.1f} | {state} |")
    return [*lines, ""]


def imports(array: Array, b: int) -> Makes:
    """Returns imports of one object by each library directly, and through a view."""

    def cupy() -> Call:
        import cupy

        return lambda: cupy.asarray(array)

    def cupy_by_view() -> Call:
        import cupy

        return lambda: cupy.from_dlpack(cd.view(array, device_id=0))

    def torch() -> Call:
        import torch

        return lambda: torch.as_tensor(array, device="cuda")

    def torch_by_view() -> Call:
        import torch

        return lambda: torch.from_dlpack(cd.view(array, device_id=0))

    def numba() -> Call:
        import numba.cuda

        return lambda: numba.cuda.as_cuda_array(array, sync=False)

    def numba_by_view() -> Call:
        import numba.cuda

        return lambda: numba.cuda.as_cuda_array(cd.view(array, device_id=0), sync=False)

    def cuda_core() -> Call:
        from cuda.core.utils import StridedMemoryView

        return lambda: StridedMemoryView.from_cuda_array_interface(array, stream_ptr=b)

    def jax() -> Call:
        import jax.numpy

        return lambda: jax.numpy.asarray(array)

    def jax_by_view() -> Call:
        import jax.dlpack

        return lambda: jax.dlpack.from_dlpack(cd.view(array, device_id=0))

    def whole_way(library: str) -> Callable[[], Call]:
        def make() -> Call:
            cd.to(array, library)
            return lambda: cd.to(array, library)

        return make

    return {
        "cai_dlpack.view": lambda: lambda: cd.view(array),
        "cai_dlpack.view, ready on another stream": lambda: lambda: cd.view(array).on(b),
        "cuda.core StridedMemoryView, for another stream": cuda_core,
        "cai_dlpack.to(cuda.core)": whole_way("cuda.core"),
        "numba.cuda.as_cuda_array": numba,
        "numba.cuda.as_cuda_array(cai_dlpack.view)": numba_by_view,
        "cai_dlpack.to(numba)": whole_way("numba"),
        "cupy.asarray": cupy,
        "cupy.from_dlpack(cai_dlpack.view)": cupy_by_view,
        "cai_dlpack.to(cupy)": whole_way("cupy"),
        "torch.as_tensor": torch,
        "torch.from_dlpack(cai_dlpack.view)": torch_by_view,
        "cai_dlpack.to(torch)": whole_way("torch"),
        "jax.numpy.asarray": jax,
        "jax.dlpack.from_dlpack(cai_dlpack.view)": jax_by_view,
        "cai_dlpack.to(jax)": whole_way("jax"),
    }


def torch_tensor() -> Any:
    import torch

    return torch.zeros(32, 32, device="cuda")


def cupy_array() -> Any:
    import cupy

    return cupy.zeros((32, 32), "f4")


def jax_array() -> Any:
    import jax.numpy

    return jax.numpy.zeros((32, 32), "float32")


def exports(make: Callable[[], Any]) -> Makes:
    """Returns what an array of a library costs to ask, and to be taken by each library."""

    def by(take: Callable[[Any], object]) -> Callable[[], Call]:
        def made() -> Call:
            source = make()
            return lambda: take(source)

        return made

    def cupy(source: Any) -> object:
        import cupy

        return cupy.from_dlpack(source)

    def torch(source: Any) -> object:
        import torch

        return torch.from_dlpack(source)

    return {
        "its `__dlpack_device__`": by(lambda source: source.__dlpack_device__()),
        "its `__dlpack__(stream=-1)`": by(lambda source: source.__dlpack__(stream=-1)),
        "its `__cuda_array_interface__`": by(lambda source: source.__cuda_array_interface__),
        "cai_dlpack.view": by(cd.view),
        "cai_dlpack.from_dlpack": by(cd.from_dlpack),
        "torch.from_dlpack": by(torch),
        "cupy.from_dlpack": by(cupy),
    }


def clocks() -> str:
    """Returns the clocks as the driver's tool tells them."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "clocks: unknown (no nvidia-smi)"
    asked = "clocks.sm,clocks.max.sm,clocks.mem,persistence_mode,pstate"
    told = subprocess.run([tool, f"--query-gpu={asked}", "--format=csv,noheader"], capture_output=True, text=True)
    return f"{asked}: {told.stdout.strip() or told.stderr.strip()}"


def table(title: str, calls: Makes, settle: Call, repeat: int = CALLS) -> list[str]:
    made, absent = usable(calls)
    lines = [f"### {title}", "", "| call | min ns | median ns |", "|---|---|---|"]
    times = measure(made, settle, repeat)
    lines += [f"| {name} | {least:.0f} | {middle:.0f} |" for name, (least, middle) in times.items()]
    lines += [f"| {name} | not run | {reason} |" for name, reason in absent.items()]
    return [*lines, ""]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", action="store_true")
    begin(parser, parser.parse_args().simulated)
    cu = Driver()
    plain, pool = Array(cu.plain, cu.a), Array(cu.pool, cu.a)
    text = [
        f"# {clocks()}",
        "",
        *table("The driver's calls, one by one", single_calls(cu), cu.settle),
        *table("Conversions of plain memory", conversions(plain, cu.a, cu.b), cu.settle),
        *table("Conversions of pool memory", conversions(pool, cu.a, cu.b), cu.settle),
        *table("Three hundred arrays", joins(cu), cu.settle, 3),
        *not_waiting(cu, plain),
        *table("An object with the interface, ready on a stream", imports(plain, cu.b), cu.settle),
        *table("A tensor of torch", exports(torch_tensor), cu.settle),
        *table("An array of CuPy", exports(cupy_array), cu.settle),
        *table("An array of JAX", exports(jax_array), cu.settle),
    ]
    print("\n".join(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
