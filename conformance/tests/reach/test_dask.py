"""Views between the workers of Dask: what arrives is what left, and it was ready, on the simulated driver.

The workers are processes; between them distributed's own serializers and its TCP. UCXX is not run: its transports for
device memory need a device.
"""

from __future__ import annotations

import copyreg
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
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
    names = machine.names()
    machine.control.set("log", 1)
    assert frame.ptr == found.ptr == view.ptr
    assert not [name for name in names if "Memcpy" in name or "Alloc" in name], names


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


@pytest.fixture
def small_devices(client: Any) -> Iterator[None]:
    """20 MiB of memory for each worker's device."""
    before = client.run(_device_memory)
    client.run(set_device_memory, 20 << 20)
    yield
    for worker, nbytes in before.items():
        client.run(set_device_memory, nbytes, workers=[worker])


#: Elements of a block of a MiB.
BLOCK = 1 << 17


@pytest.mark.usefixtures("small_devices")
def test_arrays_that_no_device_could_hold_together(client: Any) -> None:
    """Each of 32 MiB goes to the other worker, into its device's memory, and ends before the next is made."""
    one, other = workers(client)
    for number in range(32):
        maker, reader = (one, other) if number % 2 else (other, one)
        made = client.submit(device_array, number * BLOCK, BLOCK, workers=[maker])
        found, device, _ = client.submit(total, made, workers=[reader]).result(timeout=30)
        del made
        first = number * BLOCK
        assert (found, device) == (sum(range(first, first + BLOCK)), (2, 0))


@pytest.mark.usefixtures("small_devices")
def test_map_blocks_over_views_that_no_device_could_hold_together(client: Any) -> None:
    """Two workers hold 24 MiB, and each block meets the one at the other end, which may be the other worker's."""
    import dask.array as da
    from distributed import wait

    count = 24
    numbers = da.arange(count * BLOCK, chunks=BLOCK, dtype=np.float64)
    views = numbers.map_blocks(to_device, dtype=np.float64, meta=np.empty(0)).persist()
    wait(views, timeout=60)
    held = client.run(live)
    assert sum(held.values()) >= count and max(held.values()) < 20, "one worker has them all"
    added = da.map_blocks(added_sums, views, views.blocks[::-1], dtype=np.float64, chunks=(1,), meta=np.empty(0))
    # One after the other: each device has room for few more than its half, and all that arrive at once may be more.
    found = np.concatenate([added.blocks[at].compute() for at in range(count)])
    sums = [float(sum(range(at * BLOCK, (at + 1) * BLOCK))) for at in range(count)]
    assert found.tolist() == [one + other for one, other in zip(sums, reversed(sums), strict=True)]


def to_device(block: np.ndarray[Any, Any]) -> cd.CaiView:
    from numba import cuda

    return cd.view(cuda.to_device(block))


def added_sums(one: cd.CaiView, other: cd.CaiView) -> np.ndarray[Any, Any]:
    assert (one.device, other.device) == ((2, 0), (2, 0)), "what arrived has stayed on the host"
    return np.array([sum(float(np.from_dlpack(view, device="cpu").sum()) for view in (one, other))])


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


# --- a worker that is killed ---


class Workers:
    """Workers by the command, without a nanny that would start them again: `one`, which a test kills, and `other`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", self.address, "--name", name, "--no-nanny"]
        command += ["--nthreads", "1", "--no-dashboard", "--memory-limit", "0", "--preload", "cai_dlpack.dask"]
        started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.running.append(started)
        return started

    def end(self) -> None:
        for started in self.running:
            started.kill()
            started.wait()


@pytest.fixture(scope="module")
def mortals() -> Iterator[Any]:
    from distributed import Client, LocalCluster

    options = {"processes": False, "protocol": "tcp", "host": "127.0.0.1", "dashboard_address": ":0"}
    with LocalCluster(n_workers=0, **options) as hub, Client(hub) as made:
        started = Workers(hub.scheduler_address)
        started.start("other")
        yield made, started
        started.end()


@pytest.fixture
def doomed(mortals: Any) -> Iterator[tuple[Any, subprocess.Popen[bytes], str, str]]:
    """A client, the process that will be killed, and the addresses of it and of the other worker."""
    client, started = mortals
    process = started.start("one")
    client.wait_for_workers(2, timeout=60)
    named = {found["name"]: address for address, found in client.scheduler_info()["workers"].items()}
    client.run(_numba_context)
    yield client, process, named["one"], named["other"]
    process.kill()
    process.wait()
    assert eventually(lambda: len(workers(client)) == 1)


def eventually(is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not (found := is_so()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def has_live(client: Any, worker: str, expected: int) -> bool:
    """Whether a worker comes to have so many owners; it forgets on the thread that is asked."""
    return eventually(lambda: client.run(live, workers=[worker])[worker] == expected)


def test_a_worker_that_is_killed_is_an_error_and_nothing_is_left(doomed: Any) -> None:
    """What was only sent there is lost, by name; the other worker keeps nothing."""
    from distributed.client import FutureCancelledError

    client, process, one, other = doomed
    base = client.run(live, workers=[other])[other]
    sent = client.scatter(cd.view(np.arange(1 << 16, dtype=np.float64)), workers=[one])
    process.kill()
    # The one if the scheduler has not noticed yet, the other if it has.
    reason = "total-[0-9a-f]+ cancelled for reason: (lost dependencies|already forgotten)"
    with pytest.raises(FutureCancelledError, match=reason):
        client.submit(total, sent, workers=[other]).result(timeout=30)
    del sent
    made = client.submit(device_array, 0, 10, workers=[other], pure=False)
    assert client.submit(total, made).result(timeout=30)[0] == 45.0
    del made
    assert has_live(client, other, base)


# Later all of it may have arrived, and the test below is about that.
@pytest.mark.parametrize("seconds", [0, 0.002])
def test_what_a_worker_was_sending_as_it_was_killed_is_computed_again(doomed: Any, seconds: float) -> None:
    client, process, one, other = doomed
    size = 1 << 22
    base = client.run(live, workers=[other])[other]
    made = client.submit(device_array, 0, size, workers=[one], allow_other_workers=True, pure=False)
    assert made.exception(timeout=30) is None
    client.run(dies_as_it_sends, seconds, workers=[one])
    read = client.submit(content, made, workers=[other])
    assert read.result(timeout=60) == np.arange(size, dtype=np.float64).tobytes()
    assert process.wait(timeout=10) == -signal.SIGKILL
    del made, read
    assert has_live(client, other, base)


def test_what_has_arrived_of_a_worker_that_is_killed_before_the_confirmation_is_computed_again(doomed: Any) -> None:
    """The right bytes; the receiver keeps what arrived in the traceback of its log's record, as distributed does it."""
    client, process, one, other = doomed
    size = 1 << 16
    base = client.run(live, workers=[other])[other]
    made = client.submit(device_array, 0, size, workers=[one], allow_other_workers=True, pure=False)
    assert made.exception(timeout=30) is None
    client.run(confirms_to_the_dead, process.pid, workers=[other])
    read = client.submit(content, made, workers=[other])
    assert read.result(timeout=60) == np.arange(size, dtype=np.float64).tobytes()
    del made, read
    assert has_live(client, other, base + 1)
    client.run(forget_log, workers=[other])
    assert has_live(client, other, base)


def confirms_to_the_dead(sender: int) -> None:
    """Ends the sender when all has arrived: the next confirmation of this process fails."""
    from distributed.comm import CommClosedError
    from distributed.comm.tcp import TCP

    before = TCP.write

    async def write(comm: Any, message: Any, *arguments: Any, **named: Any) -> Any:
        if message != "OK":
            return await before(comm, message, *arguments, **named)
        TCP.write = before
        os.kill(sender, signal.SIGKILL)
        raise CommClosedError("the sender is dead")

    TCP.write = write


def forget_log() -> None:
    from distributed.utils import DequeHandler

    DequeHandler.clear_all_instances()


def content(view: cd.CaiView) -> bytes:
    return np.from_dlpack(view, device="cpu").tobytes()


def dies_as_it_sends(seconds: float) -> None:
    """The next view that leaves this process is its last: 32 MiB are not sent in two thousandths of a second."""
    from cai_dlpack import dask

    module: Any = dask
    before = module.to_bytes

    def to_bytes(view: cd.CaiView) -> Any:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return before(view)

    module.to_bytes = to_bytes


def where_it_is(view: cd.CaiView) -> tuple[int, Any]:
    return view.ptr, view.stream


def test_in_one_process_the_view_itself_is_handed_over(machine: Machine) -> None:
    from distributed import Client, LocalCluster

    options = {"processes": False, "dashboard_address": ":0", "memory_limit": 0}
    with LocalCluster(n_workers=2, threads_per_worker=1, **options) as made, Client(made) as near:
        one, other = workers(near)
        view = on_device(machine, np.arange(5.0), machine.stream(), False)
        machine.clear()
        sent = near.scatter(view, workers=[one], hash=False)
        found = near.submit(where_it_is, sent, workers=[other]).result(timeout=30)
        assert found == where_it_is(view)
        assert sent.result(timeout=30) is view
        assert not [name for name in machine.names() if "Memcpy" in name or "Synchronize" in name]
