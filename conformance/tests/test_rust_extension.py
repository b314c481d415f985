"""Extension modules in Rust (bindings/example, bindings/example-peer) with the real libraries around them.

Both link their own copy of the bridge and make no set-up call; neither imports the package `cai_dlpack`.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import cai_dlpack as cd
import cai_example
import cai_example_peer as peer
import numba.cuda
import numpy as np
import pytest
import tvm_ffi
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import Cai, Dlpack, cai, interface
from conformance.tests.interpreter.free_threaded import elsewhere
from conformance.tests.interpreter.process import on_the_simulator
from conformance.tests.interpreter.threads import blocked_signals
from conformance.tests.ownership.waiting import until
from conformance.tests.simulated.machine import Machine

VALUES = np.arange(4, dtype=np.float32)


def settle(machine: Machine) -> None:
    """Returns when the thread that keeps owners for streams makes no more calls."""
    before = None
    while before != (now := machine.names()):
        before = now
        time.sleep(0.01)


@pytest.fixture(name="machine")
def machine_of_its_own(machine: Machine) -> Iterator[Machine]:
    """The machine, after which no call of this test is written down."""
    yield machine
    settle(machine)


def tvm_tensor(values: np.ndarray[Any, Any], machine: Machine) -> Any:
    """A tensor of tvm-ffi in device memory."""
    pointer = machine.device_memory(values.nbytes)
    machine.write(pointer, values.tobytes())
    return tvm_ffi.from_dlpack(peer.view_of(cai(shape=values.shape, data=(pointer, False))))


def contents(view: Any, machine: Machine) -> np.ndarray[Any, Any]:
    """Returns the content of a view's memory once its stream is done, read past every stream."""
    face = view.__cuda_array_interface__
    if face["stream"]:
        view.synchronize()
    count = int(np.prod(face["shape"]))
    raw = machine.read(face["data"][0], count * 4)
    return np.frombuffer(raw, np.float32).reshape(face["shape"])


# --- arguments of different libraries, work through cudarc, a result for others --------------------------


def test_two_libraries_in_and_a_view_out(machine: Machine) -> None:
    ours = numba.cuda.to_device(VALUES)
    theirs = tvm_tensor(VALUES + 10, machine)
    stacked = cai_example.stack(ours, theirs)
    assert (stacked.shape, stacked.dtype, stacked.device) == ((2, 4), "float32", (2, 0))
    assert np.array_equal(contents(stacked, machine), [VALUES, VALUES + 10])


def test_arrays_without_elements(machine: Machine) -> None:
    """The driver allocates no 0 bytes."""
    empty, matrix = cai(shape=(0,)), cai(shape=(0, 3))
    for array in (empty, Dlpack(abi.make(shape=(0,), device=(2, 1), data=0))):
        stacked = cai_example.stack(array, array)
        assert (stacked.shape, stacked.dtype, stacked.stream) == ((2, 0), "float32", None)
        cai_example.zero(array)
    assert cai_example.add(matrix, matrix).shape == (0, 3)
    assert cai_example.zeros(0).shape == (0,)
    assert cai_example.copy_into(empty, cai(shape=(0,))).shape == (0,)


def test_numba_takes_the_result(machine: Machine) -> None:
    ours = numba.cuda.to_device(VALUES)
    stacked = cai_example.stack(ours, ours)
    array = numba.cuda.as_cuda_array(stacked)
    assert np.array_equal(array.copy_to_host(), [VALUES, VALUES])


def test_tvm_takes_the_result(machine: Machine) -> None:
    ours = numba.cuda.to_device(VALUES)
    stacked = cai_example.stack(ours, ours)
    tensor = tvm_ffi.from_dlpack(stacked)
    assert (tensor.data_ptr(), tuple(tensor.shape)) == (stacked.ptr, (2, 4))


def test_the_host_waits_for_nothing(machine: Machine) -> None:
    """Only the thread that keeps owners does, as Numba names no stream that could wait instead."""
    ours = numba.cuda.to_device(VALUES)
    work = cai_example.stack(ours, ours).stream
    machine.clear()
    with machine.control.gate(work):
        stacked = cai_example.stack(ours, ours)
        waits = {"cuStreamSynchronize", "cuCtxSynchronize", "cuMemcpyDtoH_v2"}
        assert not waits & set(machine.names())
    assert np.array_equal(contents(stacked, machine), [VALUES, VALUES])


def test_an_array_is_kept_until_the_stream_is_done_with_it(machine: Machine) -> None:
    """The caller lets go of an array that names no stream, while the copies that read it are waiting."""
    pointer = machine.device_memory(16)
    machine.write(pointer, VALUES.tobytes())
    array = Cai(interface(shape=(4,), data=(pointer, False)))
    gone = weakref.ref(array)
    work = cai_example.stack(array, array).stream
    with machine.control.gate(work):
        stacked = cai_example.stack(array, array)
        del array
        gc.collect()
        time.sleep(0.05)
        assert gone() is not None
    assert np.array_equal(contents(stacked, machine), [VALUES, VALUES])
    late = time.monotonic() + 10
    while gone() is not None and time.monotonic() < late:
        time.sleep(0.001)
    assert gone() is None


def test_a_finaliser_finds_a_context_on_the_reapers_thread(machine: Machine) -> None:
    """Numba's calls the driver: an array that is let go while the main thread is in a C call is freed elsewhere."""
    seen: list[tuple[bool, bool]] = []

    class Finalised(Cai):
        def __del__(self) -> None:
            here = threading.current_thread() is threading.main_thread()
            seen.append((here, machine.current() != 0))

    # Started before the thread that makes the array, whose number it would get once that has ended: free-threaded
    # CPython would take it for the array's own thread.
    dropped = threading.Event()

    def open_then() -> None:
        dropped.wait()
        time.sleep(0.1)
        gate.open()

    threading.Thread(target=open_then).start()
    data = (machine.device_memory(16), False)
    array = elsewhere(lambda: Finalised(interface(shape=(4,), data=data)))
    work = cai_example.stack(array, array).stream
    gate = machine.control.gate(work)
    stacked = cai_example.stack(array, array)
    del array
    dropped.set()
    time.sleep(1)
    assert seen == [(False, True)]
    assert contents(stacked, machine).shape == (2, 4)


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), signal.SIGTERM)", "print(fork_and_wait())"])
def test_a_process_ends_while_an_array_is_kept(end: str) -> None:
    """Its stream never finishes, and is not waited for: not at the end, not in a forked child."""
    code = f"""
import os, signal, sys
import cai_example
from cai_conformance import Sim
from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.simulated.machine import Machine

machine = Machine(Sim())
array = Cai(interface(shape=(4,), data=(machine.device_memory(16), False)))
work = cai_example.stack(array, array).stream
gate = machine.control.gate(work)
stacked = cai_example.stack(array, array)
del array

def fork_and_wait():
    child = os.fork()
    return os.waitpid(child, 0)[1] if child else sys.exit(0)

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
{end}
"""
    done = on_the_simulator(code)
    says = "0\n" if "fork" in end else ""
    assert (done.stdout, done.returncode) == (says, 0), done.stderr


def test_the_thread_that_keeps_arrays_takes_no_signals(machine: Machine) -> None:
    array = cai(shape=(4,), data=(machine.device_memory(16), False))
    cai_example.stack(array, array)
    # Each module has such a thread of its own, which has its name a moment after its start.
    assert until(lambda: bool(blocked_signals("cai-dlpack-keep")))
    masks = blocked_signals("cai-dlpack-keep")
    assert all(mask >> 1 & 1 for mask in masks), "SIGINT reaches it"


def test_the_end_of_an_array_lets_go_of_the_gil() -> None:
    """Also in a module that has never taken one: freeing calls the driver, whose host functions may want the GIL."""
    code = """
import cai_example
from cai_conformance import Sim
from conformance.tests.simulated.machine import Machine

machine = Machine(Sim())
view = cai_example.zeros(4)
with machine.control.gil_watch("*"):
    del view
assert "cuMemFreeAsync" in machine.names()
"""
    done = on_the_simulator(code)
    assert done.returncode == 0, done.stderr


def test_the_order_of_both_producers(machine: Machine) -> None:
    """Both streams are waited for, and both wait for the copies: the return edge."""
    first, second = machine.stream(), machine.stream()
    a, b = (cai(shape=(4,), data=(machine.device_memory(16), False), stream=stream) for stream in (first, second))
    work = cai_example.stack(a, b).stream
    assert work not in (0, 1, 2, first, second)
    machine.clear()
    cai_example.stack(a, b)
    theirs = [call for call in machine.order() if call != ("cuEventRecord", work)]
    foreign = [call for call in theirs if call[1] in (first, second)]
    assert foreign == [
        ("cuEventRecord", first),
        ("cuEventRecord", second),
        ("cuStreamWaitEvent", first),
        ("cuStreamWaitEvent", second),
    ]
    assert theirs.count(("cuStreamWaitEvent", work)) >= 2


# The array as it is, or as another module's view of it.
LENDERS = [pytest.param(lambda array: array, id="itself"), pytest.param(peer.view_of, id="of-another-module")]


@pytest.mark.parametrize("lend", LENDERS)
def test_a_slow_producer_is_waited_for(lend: Callable[[Any], Any], machine: Machine) -> None:
    """The values that a producer's stream has yet to write are the ones that are copied."""
    stream = machine.stream()
    pointer = machine.device_memory(16)
    machine.write(pointer, bytes(16))
    slow = lend(cai(shape=(4,), data=(pointer, False), stream=stream))
    with machine.control.gate(stream):
        machine.control.store(stream, pointer, VALUES.tobytes())
        stacked = cai_example.stack(slow, slow)
    assert np.array_equal(contents(stacked, machine), [VALUES, VALUES])


def of_ours(array: Any) -> Any:
    """Returns the array as a view of the module that it is passed to, which has written to it."""
    return cai_example.copy_into(numba.cuda.to_device(VALUES), array)


@pytest.mark.parametrize("lend", [*LENDERS, pytest.param(of_ours, id="of-the-same-module"), cd.view])
def test_a_producer_that_has_moved_is_waited_for(lend: Callable[[Any], Any], machine: Machine) -> None:
    """What a library with a table writes on the stream where it works by then is what is copied."""
    stream, new, pointer = machine.stream(), machine.stream(), machine.device_memory(16)
    producer = exchange.Producer(abi.make(device=(abi.CUDA, 0), data=pointer, shape=(4,)))
    producer.stream = stream
    view = lend(exchange.make_type(exchange.capsule(exchange.table(producer)), producer)())
    cai_example.stack(view, view)
    machine.driver.cuCtxSynchronize()
    machine.write(pointer, bytes(16))
    producer.stream = new
    with machine.control.gate(new):
        machine.control.store(new, pointer, VALUES.tobytes())
        stacked = cai_example.stack(view, view)
    assert np.array_equal(contents(stacked, machine), [VALUES, VALUES])


@pytest.mark.parametrize("lend", LENDERS)
def test_the_producer_waits_for_the_reader(lend: Callable[[Any], Any], machine: Machine) -> None:
    """The copies do not read what the producer writes next."""
    stream = machine.stream()
    pointer = machine.device_memory(16)
    machine.write(pointer, VALUES.tobytes())
    array = lend(cai(shape=(4,), data=(pointer, False), stream=stream))
    work = cai_example.stack(array, array).stream
    with machine.control.gate(work):
        stacked = cai_example.stack(array, array)
        machine.control.store(stream, pointer, bytes(16))
    assert np.array_equal(contents(stacked, machine), [VALUES, VALUES])


def test_in_place(machine: Machine) -> None:
    pointer = machine.device_memory(16)
    machine.write(pointer, VALUES.tobytes())
    cai_example.zero(cai(shape=(4,), data=(pointer, False), stream=machine.stream()))
    written = cai_example.copy_into(numba.cuda.to_device(VALUES), cai(shape=(4,), data=(pointer, False)))
    assert contents(written, machine).tolist() == VALUES.tolist()
    cai_example.zero(written)
    assert not contents(written, machine).any()


def test_a_written_argument_is_ready_where_it_was_written(machine: Machine) -> None:
    """For a producer without a stream, the data is ready on the writer's stream."""
    ours = numba.cuda.to_device(VALUES)
    pointer = machine.device_memory(16)
    silent = cai(shape=(4,), data=(pointer, False), stream=None)
    work = cai_example.stack(ours, ours).stream
    filled = cai_example.copy_into(ours, silent)
    assert filled.ptr == pointer
    assert filled.stream == work
    assert np.array_equal(contents(filled, machine), VALUES)


def test_a_written_argument_with_a_producer_is_ready_there(machine: Machine) -> None:
    ours, stream = numba.cuda.to_device(VALUES), machine.stream()
    pointer = machine.device_memory(16)
    filled = cai_example.copy_into(ours, cai(shape=(4,), data=(pointer, False), stream=stream))
    assert filled.stream == stream
    assert np.array_equal(contents(filled, machine), VALUES)


def test_the_gil_is_let_go_of(machine: Machine) -> None:
    """A callback on the producer's stream may take the GIL, so that the driver is entered without it."""
    stream = machine.stream()
    pointer = machine.device_memory(16)
    array = cai(shape=(4,), data=(pointer, False), stream=stream)
    cai_example.stack(array, array)
    with machine.control.gil_watch("*"):
        cai_example.stack(array, array)
        peer.elements(cai(shape=(2, 2), typestr="<f8", data=(machine.managed_memory(32), False), stream=stream))


def test_memory_is_freed_in_its_own_context(machine: Machine) -> None:
    """The result dies while the other device is current, which stays so."""
    ours = numba.cuda.to_device(VALUES)
    view = cai_example.stack(ours, ours)
    machine.set_current(1)
    before = machine.current()
    machine.clear()
    del view
    gc.collect()
    assert machine.current() == before
    assert "cuMemFreeAsync" in machine.names()


def test_the_second_device(machine: Machine) -> None:
    with numba.cuda.gpus[1]:
        ours = numba.cuda.to_device(VALUES)
    view = cai_example.stack(ours, ours)
    assert view.device == (2, 1)
    assert np.array_equal(contents(view, machine), [VALUES, VALUES])


def test_two_devices_in_one_call(machine: Machine) -> None:
    first = numba.cuda.to_device(VALUES)
    with numba.cuda.gpus[1]:
        second = numba.cuda.to_device(VALUES)
    with pytest.raises(BufferError, match="stream-device"):
        cai_example.stack(first, second)


def test_a_kernel_needs_a_gpu(machine: Machine) -> None:
    """The simulated driver runs no kernels; the refusal is the driver's, and nothing is left behind."""
    ours = numba.cuda.to_device(VALUES.reshape(2, 2))
    with pytest.raises(RuntimeError, match="NOT_SUPPORTED"):
        cai_example.add(ours, ours)


# --- arrays of NumPy and of a GPU, by one argument ---------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 4])
def test_an_argument_is_of_numpy_or_of_a_gpu(count: int, machine: Machine) -> None:
    values = np.arange(count, dtype=np.float32)
    expected = [*values, *values]
    of_numpy = cai_example.twice(values)
    assert type(of_numpy) is np.ndarray
    assert of_numpy.tolist() == expected
    assert cai_example.twice(values[::-1]).tolist() == [*values[::-1], *values[::-1]]
    of_numba = cai_example.twice(numba.cuda.to_device(values))
    assert type(of_numba).__name__ == "CaiView"
    assert of_numba.device == (2, 0)
    if count:
        assert contents(of_numba, machine).tolist() == expected


def test_managed_memory_is_an_array_of_numpy_once_it_is_written(machine: Machine) -> None:
    stream, pointer = machine.stream(), machine.managed_memory(16)
    array = cai(shape=(4,), data=(pointer, False), stream=stream)
    done: list[Any] = []
    with machine.control.gate(stream):
        machine.control.store(stream, pointer, VALUES.tobytes())
        reader = threading.Thread(target=lambda: done.append(cai_example.twice(array)))
        reader.start()
    reader.join()
    assert done[0].tolist() == [*VALUES, *VALUES]


def test_rust_numpy_beside_an_argument(machine: Machine) -> None:
    assert cai_example.dot(VALUES, VALUES) == 14.0
    assert cai_example.dot(VALUES[::-1], VALUES) == 4.0
    with pytest.raises(TypeError, match=r"^argument 'a' = .*view-shape"):
        cai_example.dot(VALUES[1:], VALUES)
    with pytest.raises(TypeError, match=r"^argument 'a' = .*view-device"):
        cai_example.dot(numba.cuda.to_device(VALUES), VALUES)


# --- two extensions in one process -----------------------------------------------------------------------


def test_the_modules_have_classes_of_their_own(machine: Machine) -> None:
    ours = numba.cuda.to_device(VALUES)
    view = cai_example.stack(ours, ours)
    theirs = peer.view_of(view)
    assert type(theirs).__name__ == type(view).__name__ == "CaiView"
    assert type(theirs) is not type(view)
    # The modules that maturin puts into packages of their names.
    named = type(view).__module__, type(theirs).__module__
    assert named == ("cai_example.cai_example", "cai_example_peer.cai_example_peer")


def test_the_exceptions_are_those_of_the_package() -> None:
    """From the first refusal after its import on; so one `except` catches what every module raises."""
    code = """
import cai_example_peer as peer

def refused(array):
    try:
        peer.elements(array)
    except Exception as error:
        return error

before = refused([1.0])
assert (type(before), before.rule) == (TypeError, "protocol-missing"), type(before)
import cai_dlpack as cd
import numpy as np

for array, builtin in (([1.0], TypeError), (np.ma.masked_array([[1.0]], mask=True), BufferError)):
    error = refused(array)
    assert isinstance(error, cd.Refusal) and isinstance(error, builtin), type(error).__mro__
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_views_go_from_module_to_module(machine: Machine) -> None:
    """The dict passes the stream on: there is no wait yet, and the producer can still be waited for."""
    ours = numba.cuda.to_device(VALUES)
    view = cai_example.stack(ours, ours)
    settle(machine)
    machine.clear()
    there = peer.view_of(view)
    assert (there.ptr, there.shape, there.stream) == (view.ptr, view.shape, view.stream)
    assert (there.owner, there.producer_stream) == (view, view.stream)
    assert machine.order() == []
    back = cai_example.stack(*(cai(shape=(4,), data=(there.ptr, False)) for _ in range(2)))
    assert np.array_equal(contents(back, machine), [VALUES, VALUES])


def test_the_owner_lives_across_modules(machine: Machine) -> None:
    array = Cai(interface(shape=(4,), data=(machine.device_memory(16), False)))
    gone = weakref.ref(array)
    view = peer.view_of(peer.view_of(array))
    del array
    gc.collect()
    assert gone() is not None
    del view
    gc.collect()
    assert gone() is None


def test_no_set_up_call(machine: Machine) -> None:
    """In a fresh process, with the package of the bridge out of reach."""
    code = (
        "import sys; sys.modules['cai_dlpack'] = None; "
        "import numpy as np, cai_example_peer as p; "
        "print(p.elements(np.eye(2)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[1.0, 0.0, 0.0, 1.0]\n", 0), done.stderr


# --- what an argument refuses, in words for the caller ---------------------------------------------------

MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)

REFUSED: list[Any] = [
    pytest.param(lambda: peer.demand([1.0], ""), TypeError, "protocol-missing", ["list"], id="no-protocol"),
    pytest.param(
        lambda: peer.demand(MATRIX.astype("f8"), ""),
        TypeError,
        "view-dtype",
        ["float64 of shape [2, 3]", "on cpu:0", "float32 of 2 axes is wanted"],
        id="dtype",
    ),
    pytest.param(
        lambda: peer.demand(MATRIX[0], ""), TypeError, "view-ndim", ["[3]", "float32 of 2 axes is wanted"], id="ndim"
    ),
    pytest.param(lambda: peer.demand(MATRIX.T, "C"), TypeError, "view-contiguous", ["C order", "[1, 3]"], id="c"),
    pytest.param(lambda: peer.demand(MATRIX, "F"), TypeError, "view-contiguous", ["Fortran order"], id="f"),
    pytest.param(
        lambda: peer.demand(MATRIX[:, ::2], "contiguous"), TypeError, "view-contiguous", ["C or Fortran"], id="any"
    ),
    pytest.param(lambda: peer.demand(MATRIX, "cuda"), TypeError, "view-device", ["cpu:0", "CUDA devices"], id="cuda"),
    pytest.param(lambda: peer.demand(MATRIX, "cuda:1"), TypeError, "view-device", ["cuda:1 is wanted"], id="device"),
    pytest.param(
        lambda: peer.demand(MATRIX.T, "(any, 3)"), TypeError, "view-shape", ["(any, 3) is wanted", "[3, 2]"], id="shape"
    ),
    pytest.param(
        lambda: peer.double(np.broadcast_to(np.ones(1), 3)), BufferError, "read-only-writer", ["read-only"], id="read"
    ),
]


@pytest.mark.parametrize(("call", "kind", "rule", "says"), REFUSED)
def test_refusals(call: Callable[[], Any], kind: type[Exception], rule: str, says: list[str]) -> None:
    with pytest.raises(kind) as refusal:
        call()
    assert refusal.value.rule == rule  # type: ignore[attr-defined]
    for words in says:
        assert words in str(refusal.value)


def test_the_argument_is_named() -> None:
    """PyO3 adds the argument's name to the error."""
    with pytest.raises(TypeError) as refusal:
        peer.borrow_both(np.ones(2), np.ones(2, np.float32))
    notes = getattr(refusal.value, "__notes__", ["'_out'"])
    assert "'_out'" in str(notes)


DEMANDS = [
    (MATRIX.T, "C"),
    (MATRIX, "F"),
    (MATRIX[:, ::2], "contiguous"),
    (MATRIX, "cuda"),
    (MATRIX, "cuda:1"),
    (MATRIX.T, "(any, 3)"),
]


@pytest.mark.parametrize(("array", "what"), DEMANDS)
def test_a_demand_names_its_argument(array: np.ndarray[Any, Any], what: str) -> None:
    """PyO3 has nothing to do with a method in the function's body."""
    with pytest.raises(TypeError, match=r"^argument 'a' = float32 of shape") as refusal:
        peer.demand(array, what)
    assert refusal.value.field == "a"  # type: ignore[attr-defined]


def test_the_host_s_demand_names_its_argument(machine: Machine) -> None:
    array = cai(shape=(2, 2), data=(machine.device_memory(16), False))
    with pytest.raises(TypeError, match=r"^argument 'a' = .*view-device"):
        peer.demand(array, "host")


# --- any number of axes, and one of several types -----------------------------------------------------------


@pytest.mark.parametrize("ndim", [0, 1, 2, 5, 16, 17, 32])
def test_any_number_of_axes(ndim: int) -> None:
    values = np.zeros([2 if axis < 3 else 1 for axis in range(ndim)], order="F")
    strides = [stride // 8 for stride in values.strides]
    shape, elem_strides = peer.layout(values)
    assert shape == list(values.shape)
    # A stride of an axis of one element means nothing.
    assert [s for s, n in zip(elem_strides, shape, strict=True) if n > 1] == [
        s for s, n in zip(strides, shape, strict=True) if n > 1
    ]


NUMBERS = ["float32", "float64", "int32", "bool"]


@pytest.mark.parametrize("dtype", sorted({np.dtype(code).name for code in "?bBhHiIlLqQefdFD"}))
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2)])
def test_one_of_several_types(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.ones(shape, dtype)
    if dtype in NUMBERS:
        assert peer.total(values) == (dtype, values.size)
    else:
        with pytest.raises(TypeError, match="float32, float64, int32 or bool is wanted") as refusal:
            peer.total(values)
        assert refusal.value.rule == "view-dtype"  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", NUMBERS)
def test_one_of_several_types_is_written(dtype: str) -> None:
    values = np.ones(3, dtype)
    peer.clear(values)
    assert not values.any()
    values.flags.writeable = False
    with pytest.raises(BufferError, match="read-only-writer"):
        peer.clear(values)
    with pytest.raises(TypeError, match="view-ndim"):
        peer.clear(np.ones((1, 3), dtype))


@pytest.mark.parametrize("dtype", [dtype for dtype in NUMBERS if dtype != "bool"])
def test_one_of_several_types_is_aligned(dtype: str) -> None:
    size = np.dtype(dtype).itemsize
    raw = np.zeros(2 * size + 1, np.uint8)
    at = next(at for at in range(2) if (raw.ctypes.data + at) % 2)
    with pytest.raises(BufferError, match="data-alignment"):
        peer.total(cai(shape=(1,), typestr=np.dtype(dtype).str, data=(raw.ctypes.data + at, False)))


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (MATRIX, ""),
        (MATRIX, "C"),
        (MATRIX.T, "F"),
        (MATRIX.T, "contiguous"),
        (MATRIX, "host"),
        (MATRIX, "(any, 3)"),
        (MATRIX[:, ::2], ""),
    ],
)
def test_demands_that_are_met(array: np.ndarray[Any, Any], what: str) -> None:
    assert peer.demand(array, what) == array.size


def test_device_memory_is_not_read_by_the_host(machine: Machine) -> None:
    ours = numba.cuda.to_device(np.ones((2, 2)))
    with pytest.raises(TypeError, match="view-device"):
        peer.elements(ours)


def test_bounds_come_from_the_driver(machine: Machine) -> None:
    pointer = machine.device_memory(16)
    outside = cai(shape=(2, 3), data=(pointer, False))
    with pytest.raises(BufferError, match="out-of-bounds"):
        peer.demand(outside, "")


def test_bounds_of_dlpack_come_from_the_driver(machine: Machine) -> None:
    pointer = machine.device_memory(16)
    outside = peer.view_of(cai(shape=(2, 3), data=(pointer, False)))

    class OnlyDlpack:
        def __dlpack__(self, **keywords: Any) -> Any:
            return outside.__dlpack__(**keywords)

        def __dlpack_device__(self) -> Any:
            return outside.__dlpack_device__()

    with pytest.raises(BufferError, match="out-of-bounds"):
        peer.demand(OnlyDlpack(), "")


def test_one_query_for_an_argument(machine: Machine) -> None:
    array = cai(shape=(2, 2), data=(machine.device_memory(16), False))
    peer.demand(array, "")  # loads the driver
    machine.clear()
    peer.demand(array, "")
    assert machine.names() == ["cuPointerGetAttributes"]


# --- values and addresses --------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [np.s_[:], np.s_[::2], np.s_[:, ::-1], np.s_[::-1, 1:], np.s_[1:1]])
def test_elements_in_c_order(index: Any) -> None:
    values = np.arange(20.0).reshape(4, 5)[index]
    assert peer.elements(values) == values.ravel().tolist()
    assert peer.elements(values.T) == values.T.ravel().tolist()


def test_a_broadcast_array_is_read() -> None:
    assert peer.elements(np.broadcast_to(np.arange(2.0), (3, 2))) == [0.0, 1.0] * 3


@pytest.mark.parametrize("index", [np.s_[:], np.s_[::-1], np.s_[:, 1:]])
def test_addresses(index: Any) -> None:
    values = MATRIX[index]
    last = values[-1:, -1:]
    assert peer.address(values, *(extent - 1 for extent in values.shape)) == last.ctypes.data


def test_bools() -> None:
    assert peer.count(np.array([2, 0, 1], np.uint8).view(np.bool_)) == 2


def test_managed_memory_is_waited_for(machine: Machine) -> None:
    stream, pointer = machine.stream(), machine.managed_memory(32)
    array = cai(shape=(2, 2), typestr="<f8", data=(pointer, False), stream=stream)
    with machine.control.gate(stream):
        machine.control.store(stream, pointer, np.eye(2).tobytes())
        done: list[list[float]] = []
        reader = threading.Thread(target=lambda: done.append(peer.elements(array)))
        reader.start()
    reader.join()
    assert done == [[1.0, 0.0, 0.0, 1.0]]


# --- what is written is alone ----------------------------------------------------------------------------


def test_in_place_on_the_host() -> None:
    values = np.arange(3.0)
    peer.double(values)
    assert values.tolist() == [0.0, 2.0, 4.0]


OVERLAPS: list[Any] = [
    pytest.param(lambda a: (a, a), True, id="the-same"),
    pytest.param(lambda a: (a[:4], a[3:]), True, id="one-element"),
    pytest.param(lambda a: (a[:3], a[3:]), False, id="side-by-side"),
    pytest.param(lambda a: (a[::2], a[1::2]), False, id="interleaved"),
    pytest.param(lambda a: (a[::2], a[::-2]), False, id="interleaved-backwards"),
    pytest.param(lambda a: (a[::2], a[::3]), True, id="meeting-strides"),
    pytest.param(lambda a: (a[:0], a), False, id="no-elements"),
]


@pytest.mark.parametrize(("split", "refused"), OVERLAPS)
def test_arguments_that_share_memory(split: Callable[[Any], tuple[Any, Any]], refused: bool) -> None:
    a, out = split(np.arange(6.0))
    if refused:
        with pytest.raises(BufferError, match="view-in-use"):
            peer.borrow_both(a, out)
    else:
        peer.borrow_both(a, out)
    peer.borrow_both(np.ones(2), out)


def test_a_borrow_ends_with_the_call() -> None:
    values = np.ones(3)
    for _ in range(3):
        peer.double(values)
    with pytest.raises(TypeError):
        peer.borrow_both(values, "nothing")
    peer.double(values)
    assert values.tolist() == [16.0] * 3


def test_a_callback_cannot_borrow_again() -> None:
    values = np.ones(3)
    with pytest.raises(BufferError, match="view-in-use"):
        peer.borrow_and_call(values, lambda: peer.double(values))
    peer.borrow_and_call(values, lambda: peer.double(np.ones(3)))


@pytest.mark.parametrize("write", [False, True])
def test_no_view_is_lent_beside_an_argument_that_is_written(write: bool) -> None:
    values = np.arange(6.0)
    with pytest.raises(BufferError, match="view-in-use"):
        peer.lend_beside(values, values[2:], write)
    assert peer.lend_beside(values[::2], values[1::2], write) == 3
    assert peer.lend_beside(values, np.ones(2), write) == 2


def test_a_clone_of_an_argument_that_is_read_is_not_written() -> None:
    with pytest.raises(BufferError, match="view-in-use"):
        peer.write_a_clone(np.arange(6.0))


def test_elements_with_two_indices_are_not_written() -> None:
    overlapping = np.lib.stride_tricks.as_strided(np.ones(4), (3, 2), (8, 8))
    with pytest.raises(BufferError, match="overlap"):
        peer.borrow_both(np.ones(2), np.lib.stride_tricks.as_strided(np.ones(1), (3,), (0,)))
    assert peer.elements(overlapping) == [1.0] * 6


def test_a_tensor_that_is_refused_is_released() -> None:
    made = abi.make(shape=(2, 3, 4))
    with pytest.raises(TypeError, match="view-ndim"):
        peer.demand(Dlpack(made), "")
    assert made.released == 1


# --- arguments by a table -------------------------------------------------------------------------------------


def exchanger(producer: exchange.Producer, **members: Any) -> Any:
    """An object whose type shows a table; `__dlpack__` is only written down."""
    return exchange.make_type(exchange.capsule(exchange.table(producer)), producer, **members)()


def test_a_table_is_the_way_of_an_argument(machine: Machine) -> None:
    producer = exchange.Producer(abi.make((2, 3), device=(2, 0), data=machine.device_memory(24)))
    machine.clear()
    assert peer.demand(exchanger(producer), "cuda") == 6
    assert (producer.exported, producer.made.released, producer.fallbacks) == (1, 1, [])
    assert machine.names() == ["cuPointerGetAttributes"], "the bounds, and nothing else"


def test_bounds_of_a_table_come_from_the_driver(machine: Machine) -> None:
    pointer = machine.device_memory(16)
    producer = exchange.Producer(abi.make((2, 3), device=(2, 0), data=pointer))
    with pytest.raises(BufferError, match="out-of-bounds"):
        peer.demand(exchanger(producer), "")
    assert (producer.made.released, producer.fallbacks) == (1, [])


NOT_WANTED: list[Any] = [
    pytest.param({"shape": (2, 3, 4)}, "view-ndim", id="rank"),
    pytest.param({"shape": (2, 3), "dtype": (abi.INT, 32, 1)}, "view-dtype", id="dtype"),
    pytest.param({"shape": (2, 3), "dtype": (abi.FLOAT, 32, 2)}, "view-dtype", id="lanes"),
    pytest.param({"shape": (2, 3), "byte_offset": 2}, "data-alignment", id="alignment"),
    pytest.param({"shape": (2, -3)}, "shape-extent", id="malformed"),
]


@pytest.mark.parametrize(("changes", "rule"), NOT_WANTED)
def test_what_a_table_gives_and_is_refused_is_released(changes: dict[str, Any], rule: str) -> None:
    producer = exchange.Producer(abi.make(**changes))
    with pytest.raises((TypeError, ValueError, BufferError), match=rule):
        peer.demand(exchanger(producer), "")
    assert (producer.exported, producer.made.released, producer.fallbacks) == (1, 1, [])


def test_what_a_table_gives_and_is_in_use_is_released() -> None:
    values = np.ones(4)
    made = abi.make((4,), dtype=(abi.FLOAT, 64, 1), data=values.ctypes.data)
    thing = exchanger(exchange.Producer(made))
    for _ in range(3):
        with pytest.raises(BufferError, match="view-in-use"):
            peer.borrow_both(values, thing)
    assert made.released == 3
    peer.borrow_both(np.ones(4), thing)
    assert made.released == 4


def test_what_dlpack_would_refuse_goes_by_dlpack() -> None:
    producer = exchange.Producer(abi.make((2, 3)))
    assert peer.demand(exchanger(producer, requires_grad=True), "") == 6
    assert (producer.exported, len(producer.fallbacks), producer.made.released) == (1, 1, 2)


def test_many_arguments_at_a_time() -> None:
    """Each stands in a block of its own, of which the last is kept for the next."""

    def go(depth: int) -> None:
        values = np.full(3, float(depth))
        peer.borrow_and_call(values, lambda: go(depth - 1) if depth else None)
        peer.double(values)
        assert values.tolist() == [2.0 * depth] * 3

    for _ in range(3):
        go(20)


def test_arguments_of_many_threads() -> None:
    """A call that writes to an array excludes others: each call is counted or refused."""
    shared, mine = np.zeros(2), [np.zeros(2) for _ in range(4)]
    done, refused = [0] * len(mine), list[str]()

    def work(at: int) -> None:
        for _ in range(2000):
            peer.double(mine[at])
            try:
                peer.borrow_and_call(shared, lambda: time.sleep(0))
                done[at] += 1
            except BufferError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(mine))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(done) > 0
    assert sum(done) + len(refused) == 2000 * len(mine)
    assert all("view-in-use" in text for text in refused)
    assert [array.tolist() for array in mine] == [[0.0, 0.0]] * len(mine)
    peer.borrow_and_call(shared, lambda: None)


# --- two threads and one array ---------------------------------------------------------------------------------


class Holder:
    """A thread within a call of the extension: the call goes on until `end`."""

    def __init__(self, call: Callable[[Any, Callable[[], None]], Any], array: Any) -> None:
        self.entered, self.go = threading.Event(), threading.Event()
        self.refusal: BaseException | None = None
        self.result: Any = None

        def inside() -> None:
            self.entered.set()
            self.go.wait(60)  # longer than another one is waited for, which may wait for this one

        def work() -> None:
            try:
                self.result = call(array, inside)
            except BaseException as error:
                self.refusal = error

        self.thread = threading.Thread(target=work)
        self.thread.start()

    def end(self) -> None:
        self.go.set()
        self.thread.join(20)
        assert not self.thread.is_alive()


def borrowed(array: Any, callback: Callable[[], None]) -> None:
    peer.borrow_and_call(array, callback)


#: How each call meets a holder of another thread: by the newcomer's choice, except that both must trust.
MEETINGS: list[Any] = [
    pytest.param(borrowed, borrowed, "refused", id="refuse-meets-refuse"),
    pytest.param(peer.wait_and_call, borrowed, "refused", id="refuse-meets-wait"),
    pytest.param(peer.trust_and_call, borrowed, "refused", id="refuse-meets-trust"),
    pytest.param(borrowed, peer.wait_and_call, "waits", id="wait-meets-refuse"),
    pytest.param(peer.wait_and_call, peer.wait_and_call, "waits", id="wait-meets-wait"),
    pytest.param(peer.wait_to_read, peer.wait_and_call, "waits", id="wait-meets-a-reader"),
    pytest.param(peer.wait_and_call, peer.wait_to_read, "waits", id="a-reader-meets-wait"),
    pytest.param(peer.wait_to_read, peer.wait_to_read, "enters", id="readers"),
    pytest.param(peer.trust_and_call, peer.wait_and_call, "waits", id="wait-meets-trust"),
    pytest.param(peer.wait_and_call, peer.trust_and_call, "waits", id="trust-meets-wait"),
    pytest.param(borrowed, peer.trust_and_call, "waits", id="trust-meets-refuse"),
    pytest.param(peer.trust_and_call, peer.trust_and_call, "enters", id="trust-meets-trust"),
]


@pytest.mark.parametrize(("first", "second", "outcome"), MEETINGS)
def test_two_threads_and_one_array(first: Any, second: Any, outcome: str) -> None:
    values = np.arange(6.0)
    holder = Holder(first, values)
    assert holder.entered.wait(20)
    late = Holder(second, values[2:])
    if outcome == "refused":
        late.thread.join(20)
        assert isinstance(late.refusal, BufferError)
        assert late.refusal.rule == "view-in-use"  # type: ignore[attr-defined]
        holder.end()
        return
    does_enter = late.entered.wait(20 if outcome == "enters" else 0.05)
    if does_enter != (outcome == "enters"):
        holder.end()
        late.end()
        pytest.fail(f"it {'enters' if does_enter else 'waits'}")
    # An array beside it is nobody's.
    peer.wait_and_call(np.ones(2), lambda: None)
    holder.end()
    assert late.entered.wait(20)
    late.end()
    assert (holder.refusal, late.refusal) == (None, None)


@pytest.mark.parametrize("call", [peer.wait_and_call, peer.trust_and_call])
def test_a_thread_does_not_wait_for_itself(call: Any) -> None:
    values = np.ones(3)
    with pytest.raises(BufferError, match="view-in-use"):
        call(values, lambda: call(values, lambda: None))
    call(values, lambda: None)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_threads_that_wait_for_each_other_in_a_circle(count: int) -> None:
    """Each has one array and wants the next: exactly one is refused, and then the others go on."""
    arrays = [np.ones(3) for _ in range(count)]
    ready, refused, done = threading.Barrier(count), list[str](), list[int]()

    def work(at: int) -> None:
        def inside() -> None:
            ready.wait(20)
            peer.wait_and_call(arrays[(at + 1) % count], lambda: done.append(at))

        try:
            peer.wait_and_call(arrays[at], inside)
        except BufferError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert (len(refused), len(done)) == (1, count - 1)
    assert "waits for this thread" in refused[0]


def test_many_threads_take_turns() -> None:
    """Of a counter that is read, and written later, no turn is lost; nobody is refused."""
    arrays = [np.zeros(4), np.zeros(4)]

    def turn(array: np.ndarray[Any, Any], part: np.ndarray[Any, Any]) -> None:
        def add() -> None:
            before = array[1]
            time.sleep(0)
            array[1] = before + 1

        peer.wait_and_call(part, add)

    def work() -> None:
        for at in range(200):
            array = arrays[at % 2]
            turn(array, array[:2] if at % 3 else array[1:])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [array[1] for array in arrays] == [400, 400]


#: The beginning of a program, in which another thread holds `values` until `go` is set.
HELD = """
import threading
import numpy as np
import cai_example_peer as peer

values, entered, go = np.ones(3), threading.Event(), threading.Event()

def hold():
    entered.set()
    go.wait(20)

holder = threading.Thread(target=lambda: peer.wait_and_call(values, hold))
holder.start()
entered.wait(20)
"""


def test_a_wait_ends_by_a_signal() -> None:
    code = (
        HELD
        + """
import _thread, signal, threading, time

# A shell ignores it for what it starts in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.1, _thread.interrupt_main).start()
try:
    peer.wait_and_call(values, lambda: None)
except KeyboardInterrupt:
    print("interrupted")
go.set()
holder.join()
peer.wait_and_call(values, lambda: print("free"))
"""
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == ("interrupted\nfree\n", 0), done.stderr


def test_a_wait_ends_by_a_panic() -> None:
    """A signal handler may raise a panic of this extension: the wait ends, and no other borrow."""
    code = (
        HELD
        + """
import signal, threading
signal.signal(signal.SIGALRM, lambda *_: peer.address(np.ones((1, 1), np.float32), 5, 5))
signal.setitimer(signal.ITIMER_REAL, 0.1)
try:
    peer.wait_and_call(values, lambda: None)
except BaseException as panic:
    print(type(panic).__name__)
try:
    peer.borrow_and_call(values, lambda: print("two at once"))
except BufferError as error:
    print(error.rule)
go.set()
holder.join()
peer.borrow_and_call(values, lambda: print("free"))
"""
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["PanicException", "view-in-use", "free"]), done.stderr


def test_a_forked_child_does_not_wait_for_its_parent() -> None:
    """No thread of the child ends what a thread of the parent has begun."""
    code = (
        HELD
        + """
import os, threading
child = os.fork()
if not child:
    try:
        peer.wait_and_call(values, lambda: None)
    except BufferError as error:
        os._exit(7 if error.rule == "view-in-use" else 1)
    os._exit(2)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
go.set()
holder.join()
print(code)
"""
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == ("7\n", 0), done.stderr


def test_a_capsule_is_not_waited_for() -> None:
    """It was ordered as it was made, and there is no second one."""
    values = np.ones(3)
    holder = Holder(peer.wait_and_call, values)
    assert holder.entered.wait(20)
    capsule = values.__dlpack__()
    with pytest.raises(BufferError, match="view-in-use"):
        peer.wait_to_read(capsule, lambda: None)
    holder.end()
    peer.wait_to_read(capsule, lambda: None)


class Moving:
    """An array whose producer moves to another stream, and to other memory, as the test has it."""

    def __init__(self, *faces: dict[str, Any]) -> None:
        self.faces, self.asked = list(faces), 0

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        face = self.faces[min(self.asked, len(self.faces) - 1)]
        self.asked += 1
        return face


def test_an_array_is_imported_after_the_wait(machine: Machine) -> None:
    """What the other thread has ordered is before what the producer says afterwards."""
    pointer, first, second = machine.device_memory(32), machine.stream(), machine.stream()

    def face(stream: int, at: int = pointer) -> dict[str, Any]:
        return interface(shape=(4,), typestr="<f8", data=(at, False), stream=stream)

    holder = Holder(peer.wait_and_call, cai(shape=(4,), typestr="<f8", data=(pointer, False)))
    assert holder.entered.wait(20)
    late = Holder(peer.wait_and_call, Moving(face(first), face(second)))
    assert not late.entered.wait(0.05)
    holder.end()
    late.end()
    assert (late.refusal, late.result.stream) == (None, second)
    # To other memory: that is borrowed, and the old is free.
    other = machine.device_memory(32)
    holder = Holder(peer.wait_and_call, cai(shape=(4,), typestr="<f8", data=(pointer, False)))
    assert holder.entered.wait(20)
    late = Holder(peer.wait_and_call, Moving(face(first), face(second, other)))
    assert not late.entered.wait(0.05)
    holder.end()
    assert late.entered.wait(20)
    peer.borrow_and_call(cai(shape=(4,), typestr="<f8", data=(pointer, False)), lambda: None)
    with pytest.raises(BufferError, match="view-in-use"):
        peer.borrow_and_call(cai(shape=(4,), typestr="<f8", data=(other, False)), lambda: None)
    late.end()
    assert (late.refusal, late.result.ptr) == (None, other)


def test_threads_that_trust_the_one_stream_of_a_module(machine: Machine) -> None:
    """None is refused, and each copy is whole: the stream has one after the other."""
    pointer, count = machine.device_memory(16), 4
    shared = cai(shape=(4,), data=(pointer, False), stream=machine.stream())
    sources = [numba.cuda.to_device(np.full(4, at, np.float32)) for at in range(count)]
    refused = list[BaseException]()

    def work(at: int) -> None:
        try:
            for _ in range(50):
                cai_example.copy_into(sources[at], shared)
        except BaseException as error:
            refused.append(error)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert refused == []
    written = contents(cai_example.copy_into(sources[0], shared), machine)
    assert written.tolist() == [0.0] * 4
    # The two arguments of one call exclude each other as before.
    with pytest.raises(BufferError, match="view-in-use"):
        cai_example.copy_into(shared, shared)
