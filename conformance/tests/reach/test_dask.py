"""Views between the workers of Dask: what arrives is what left, and it was ready, on the simulated driver.

The workers are processes; between them distributed's own serializers and its TCP. UCXX is not run: its transports for
device memory need a device.
"""

from __future__ import annotations

import copyreg
import math
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.interpreter import needs
from conformance.tests.reach.arrays import drawn, lazy, on_device
from conformance.tests.simulated.machine import Machine

__all__ = ["lazy"]
pytestmark = needs.dask


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    from cai_dlpack import dask

    dask.register()
    yield
    del copyreg.dispatch_table[cd.CaiView]


def around(view: Any, family: str) -> tuple[cd.CaiView, Any]:
    """What arrives of a view, and the frames that were on the way."""
    from distributed.protocol import deserialize, serialize

    header, frames = serialize(view, serializers=[family], on_error="raise")
    return deserialize(header, frames), frames


@pytest.mark.parametrize("family", ["dask", "cuda"])
def test_what_arrives_is_what_left_and_was_ready(lazy: Machine, family: str) -> None:
    chosen = random.Random(f"dask {family}")
    stream = lazy.stream()
    for _ in range(150):
        array, read_only = drawn(chosen), chosen.random() < 0.5
        view = on_device(lazy, array, stream, read_only)
        from distributed.protocol import deserialize, serialize

        families = [family, "dask"] if not array.size else [family]
        header, frames = serialize(view, serializers=families, on_error="raise")
        for frame in frames if family == "cuda" and array.size else []:
            # A communication asks a frame for no stream: it reads.
            assert lazy.read(frame.ptr, frame.nbytes) == array.tobytes()
        found = deserialize(header, frames)
        assert (found.shape, str(found.dtype)) == (array.shape, str(view.dtype))
        assert (found.device, found.read_only) == (view.device if array.size else found.device, read_only)
        assert np.from_dlpack(found, device="cpu").tobytes() == array.tobytes()


def test_memory_in_c_order_is_not_copied_for_a_communication_that_takes_it(machine: Machine) -> None:
    view = on_device(machine, np.arange(12.0).reshape(3, 4), machine.stream(), False)
    machine.control.set("log", 2)  # what earlier tests have left may still run, on other threads
    machine.clear()
    found, (frame,) = around(view, "cuda")
    machine.control.set("log", 1)
    assert frame.ptr == found.ptr == view.ptr
    assert not [name for name in machine.names() if "Memcpy" in name or "Alloc" in name], machine.names()


def test_host_memory_is_not_copied_before_it_is_sent() -> None:
    array = np.arange(12.0)
    found, (frame,) = around(cd.view(array), "dask")
    assert np.frombuffer(frame, np.uint8).ctypes.data == array.ctypes.data
    assert found.device == (1, 0) and np.array_equal(np.asarray(found), array)


@pytest.mark.parametrize(
    "beside", [lambda view: (1, view), lambda view: {"a": 1, "b": (view,)}, lambda view: [[1, view]]]
)
def test_a_view_travels_beside_other_objects(lazy: Machine, beside: Any) -> None:
    """Dask pickles these."""
    from distributed.protocol import deserialize, serialize

    found = deserialize(*serialize(beside(on_device(lazy, np.arange(6.0), lazy.stream(), False)), on_error="raise"))
    while not isinstance(found, cd.CaiView):
        found = list(found.values() if isinstance(found, dict) else found)[-1]
    assert found.device == (2, 0) and np.array_equal(np.from_dlpack(found, device="cpu"), np.arange(6.0))


@pytest.mark.parametrize("family", ["dask", "cuda"])
def test_memory_of_each_kind_arrives_where_it_can_be_used_or_is_refused(machine: Machine, family: str) -> None:
    """No address of another driver's memory is taken for one of CUDA's, and what the host may read, it may read."""
    arrives = {1: 1, 2: 2, 3: 1, 13: 2 if family == "dask" else 13}
    seen = set()
    for kind in range(20):
        data = machine.device_memory(32)
        if kind in (1, 3, 13):
            data = getattr(machine, "managed_memory" if kind == 13 else "pinned_memory")(32)
        capsule = abi.make((4,), dtype=(2, 64, 1), device=(kind, 0), data=data).capsule()
        try:
            view = cd.view(capsule)
        except BufferError:
            continue
        seen.add(kind)
        if kind in arrives:
            assert sent(view, family).device == (arrives[kind], 0)
        else:
            with pytest.raises(TypeError) as refused:
                sent(view, family)
            cause = refused.value.__cause__
            assert isinstance(cause, BufferError) and isinstance(cause, cd.Refusal), kind
            assert cause.rule == "copy-refused", kind
    assert {*arrives, 10, 14} <= seen


def sent(view: cd.CaiView, family: str) -> cd.CaiView:
    from distributed.protocol import deserialize, serialize

    found: cd.CaiView = deserialize(*serialize(view, serializers=[family, "dask"], on_error="raise"))
    return found


def names_of_types() -> list[str]:
    """Names of DLPack's types, those that NumPy lacks among them."""
    floats = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "complex32"]
    return ["bool", "float16", "int64", "uint8", *floats, "int4", "uint2", "float32x2", "int4x2"]


@pytest.mark.parametrize("dtype", names_of_types())
def test_each_type_of_dlpack_travels(dtype: str) -> None:
    data = np.random.default_rng(1).integers(0, 2, 48, np.uint8)
    view = cd.view(data, dtype=dtype, shape=(2, -1))
    found, _ = around(view, "dask")
    assert (str(found.dtype), found.shape, found.nbytes) == (dtype, view.shape, 48)


@pytest.mark.parametrize(
    ("array", "rule"),
    [(np.zeros(3, "M8[s]"), "dtype-argument"), (np.zeros(3, [("x", "f4"), ("y", "i8")]), "dtype-argument")],
)
def test_what_dlpack_has_no_type_for_is_refused_by_rule_before_it_leaves(array: Any, rule: str) -> None:
    with pytest.raises(TypeError, match="CaiView") as refused:
        around(cd.view(array), "dask")
    assert isinstance(refused.value.__cause__, cd.Refusal) and refused.value.__cause__.rule == rule


def test_the_receivers_library_may_own_the_memory(machine: Machine) -> None:
    from cai_dlpack import dask
    from numba import cuda

    dask.register(to_device=cuda.to_device)
    try:
        found, _ = around(on_device(machine, np.arange(6.0), machine.stream(), False), "dask")
    finally:
        dask.register()
    assert isinstance(found.owner, cuda.cudadrv.devicearray.DeviceNDArray)
    assert np.array_equal(np.from_dlpack(found, device="cpu"), np.arange(6.0))


@pytest.mark.parametrize("read_only", [True, False])
def test_a_library_without_room_leaves_the_array_on_the_host_and_no_bytes_are_written(
    caplog: pytest.LogCaptureFixture, machine: Machine, read_only: bool
) -> None:
    """Frames that were compressed, or a pickle's, are bytes, which Python shares."""
    from cai_dlpack import dask
    from distributed.protocol import deserialize, serialize

    def full(_: object) -> Any:
        raise MemoryError("no room")

    view = on_device(machine, np.arange(6.0), machine.stream(), read_only)
    header, frames = serialize(view, serializers=["dask"], on_error="raise")
    shared = bytes(frames[0])
    dask.register(to_device=full)
    try:
        found = deserialize(header, [shared])
    finally:
        dask.register()
    assert (found.device, found.read_only) == ((1, 0), read_only)
    assert "48 bytes that were on a device stay on the host: no room" in caplog.text
    if not read_only:
        np.asarray(found)[...] = 7
        assert shared == np.arange(6.0).tobytes()


def test_where_no_device_is_the_bytes_stay_on_the_host_and_the_log_says_so() -> None:
    code = """
import logging, sys, numpy as np
from cai_dlpack import _wire
logging.basicConfig(stream=sys.stdout)
header = {"on_device": True, "dtype": "float32", "shape": (2,), "read_only": False}
found = _wire.of_bytes(header, bytes(8))
print(found.device, found.dtype, found.shape)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "CUSIM"))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "(1, 0) float32 (2,)" in done.stdout, done.stdout
    assert "8 bytes that were on a device stay on the host" in done.stdout, done.stdout


# --- two workers ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        preload="cai_dlpack.dask",
        memory_limit=0,
    ) as made:
        yield made


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    from distributed import Client

    with Client(cluster) as made:
        made.wait_for_workers(2, timeout=30)
        # Workers end arrays on the thread of their event loop, where Numba's own need a context.
        made.run(_numba_context)
        yield made


def _numba_context() -> None:
    from numba import cuda

    cuda.current_context()


def workers(client: Any) -> list[str]:
    return sorted(client.scheduler_info()["workers"])


def device_array(start: int, size: int) -> cd.CaiView:
    from numba import cuda

    return cd.view(cuda.to_device(np.arange(start, start + size, dtype=np.float64)))


def total(view: cd.CaiView) -> tuple[float, tuple[int, int], int]:
    return float(np.from_dlpack(view, device="cpu").sum()), view.device, os.getpid()


def live() -> int:
    import gc

    gc.collect()
    return int(cd.stats()["live"])


def test_an_array_goes_from_worker_to_worker_and_to_the_client(client: Any) -> None:
    one, other = workers(client)
    made = client.submit(device_array, 0, 1000, workers=[one])
    found, device, process = client.submit(total, made, workers=[other]).result()
    assert (found, device) == (499500.0, (2, 0))
    assert process == client.submit(os.getpid, workers=[other], pure=False).result() != os.getpid()
    arrived = made.result()
    assert (arrived.device, arrived.shape) == ((2, 0), (1000,))
    assert np.array_equal(np.from_dlpack(arrived, device="cpu"), np.arange(1000.0))
    sent = client.scatter(cd.view(np.arange(5.0)), workers=[one])
    assert client.submit(total, sent, workers=[other]).result()[:2] == (10.0, (1, 0))


def test_a_view_is_an_argument_a_constant_and_a_part_of_a_result(client: Any) -> None:
    import dask
    import dask.array as da

    one, other = workers(client)
    view = cd.view(np.arange(5.0))
    assert client.submit(total, view).result(timeout=30)[0] == 10.0
    assert client.submit(lambda given: total(given)[0], view).result(timeout=30) == 10.0
    assert dask.delayed(total)(view).compute()[0] == 10.0
    pair = client.submit(lambda: (1, device_array(0, 5)), workers=[one], pure=False)
    assert client.submit(lambda given: total(given[1])[:2], pair, workers=[other]).result(timeout=30) == (10.0, (2, 0))
    blocks = da.ones(8, chunks=4).map_blocks(lambda block, given: block * np.asarray(given).sum(), view, dtype=float)
    assert float(blocks.sum().compute()) == 80.0


def set_device_memory(nbytes: int) -> None:
    from cai_conformance import Sim

    Sim().set("memory", nbytes)


def test_arrays_that_no_device_could_hold_together(client: Any) -> None:
    """32 blocks of a MiB, of devices of 8 MiB; each goes to the other worker, which frees it."""
    block = 1 << 17
    before = client.run(_device_memory)
    client.run(set_device_memory, 8 << 20)
    try:
        one, other = workers(client)
        sums = []
        for number in range(32):
            made = client.submit(device_array, number * block, block, workers=[(one, other)[number % 2]])
            sums.append(client.submit(total, made, workers=[(other, one)[number % 2]]))
            del made
            if number % 4 == 3:
                sums[-1].result()
        found = math.fsum(part for part, _, _ in client.gather(sums))
        del sums
    finally:
        for worker, nbytes in before.items():
            client.run(set_device_memory, nbytes, workers=[worker])
    assert found == sum(range(32 * block))


def test_a_device_that_is_full_leaves_the_array_on_the_host_and_says_so(client: Any) -> None:
    """An error of what reads a message would be sent again, for ever."""
    one, other = workers(client)
    before = client.run(_device_memory)
    made = client.submit(device_array, 0, 1 << 18, workers=[one])
    made.result()
    client.run(set_device_memory, 1 << 20, workers=[other])
    try:
        found, device, _ = client.submit(total, made, workers=[other]).result(timeout=30)
    finally:
        client.run(set_device_memory, before[other], workers=[other])
    assert (found, device) == (sum(range(1 << 18)), (1, 0))


def _device_memory() -> int:
    from cai_conformance import Sim

    return int(Sim().get("memory"))


def test_map_blocks_of_dask_array(client: Any) -> None:
    import dask.array as da

    blocks = da.arange(4096, chunks=512, dtype=np.float64).map_blocks(doubled_on_a_device, dtype=np.float64)
    assert float(blocks.sum().compute()) == 2 * sum(range(4096))


def doubled_on_a_device(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    from numba import cuda

    return 2 * np.from_dlpack(cd.view(cuda.to_device(block)), device="cpu")


def test_a_worker_that_is_killed_is_an_error_and_nothing_is_left(cluster: Any, client: Any) -> None:
    """What it held is computed again, or the error names it; the other worker keeps nothing."""
    one, other = workers(client)
    base = client.run(live, workers=[other])[other]
    sent = client.scatter(cd.view(np.arange(1 << 16, dtype=np.float64)), workers=[one])
    process = client.submit(os.getpid, workers=[one], pure=False).result()
    os.kill(process, signal.SIGKILL)
    with pytest.raises(Exception, match=r"(?i)lost|cancel|killed|not found|Worker|forgotten"):
        client.submit(total, sent, workers=[other]).result(timeout=30)
    del sent
    client.wait_for_workers(2, timeout=30)
    made = client.submit(device_array, 0, 10, workers=[other], pure=False)
    assert client.submit(total, made).result(timeout=30)[0] == 45.0
    del made
    client.run(live, workers=[other])
    assert client.run(live, workers=[other])[other] <= base + 1
