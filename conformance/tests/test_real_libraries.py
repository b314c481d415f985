"""The real libraries, unmodified, on the simulated driver: pointers, values, and the calls made.

Every library gets its own section, as a producer and as a consumer. `calls` is the simulator's log
of one conversion: what is not in it did not happen.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import cai_dlpack as cd
import cuda.core
import numba.cuda
import numpy as np
import pytest
import tvm_ffi
from cai_conformance import abi
from cuda.core.utils import StridedMemoryView
from mpi4py import MPI

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.expectations import oracle
from conformance.tests.interpreter.process import on_the_simulator
from conformance.tests.simulated.machine import Machine, one_event

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def pointer(array: Any) -> int:
    found: int = array.__cuda_array_interface__["data"][0]
    return found


# --- Numba, the producer ------------------------------------------------------------------------------


@pytest.mark.parametrize("typestr", oracle.DTYPES)
def test_numba_dtypes(typestr: str, machine: Machine) -> None:
    array = numba.cuda.to_device(np.ones((2, 3), typestr))
    view = cd.view(array)
    assert (view.ptr, view.shape, view.dtype.name) == (pointer(array), (2, 3), oracle.DTYPES[typestr][0])
    assert view.owner is array
    assert view.device == (2, 0)
    assert view.__cuda_array_interface__["typestr"] == typestr


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(np.s_[:], id="whole"),
        pytest.param(np.s_[::2], id="every-second-row"),
        pytest.param(np.s_[:, ::2], id="every-second-column"),
        pytest.param(np.s_[1:, 1:3], id="window"),
        pytest.param(np.s_[::-1], id="backwards"),
        pytest.param(np.s_[1], id="one-row"),
        pytest.param(np.s_[3:], id="nothing"),
    ],
)
def test_numba_layouts(index: Any, machine: Machine) -> None:
    array = numba.cuda.to_device(VALUES)[index]
    want = VALUES[index]
    view = cd.view(array)
    assert view.shape == want.shape
    assert view.ptr == (pointer(array) if want.size else 0)
    if want.size:
        assert view.byte_strides == want.strides
        tensor = abi.read(view.__dlpack__(stream=-1, max_version=(1, 3)))
        assert tensor.strides == tuple(step // 4 for step in want.strides)
        assert tensor.data == pointer(array)


def test_numba_transposed(machine: Machine) -> None:
    view = cd.view(numba.cuda.to_device(np.asfortranarray(VALUES)))
    assert view.byte_strides == (4, 12)
    assert view.__cuda_array_interface__["strides"] == (4, 12)


def test_numba_second_device(machine: Machine) -> None:
    with numba.cuda.gpus[1]:
        array = numba.cuda.to_device(VALUES)
    assert cd.view(array).device == (2, 1)


def test_numba_stream_is_ordered_by_one_event(machine: Machine) -> None:
    ready, mine = numba.cuda.stream(), machine.stream()
    view = cd.view(numba.cuda.to_device(VALUES, stream=ready))
    assert view.stream == view.producer_stream == int(ready)
    machine.clear()
    view.__dlpack__(stream=mine, max_version=(1, 3))
    assert machine.order() == one_event(int(ready), mine)


@pytest.mark.parametrize("asked", ["same", "no-synchronisation"])
def test_numba_stream_needs_no_call(asked: str, machine: Machine) -> None:
    ready = numba.cuda.stream()
    view = cd.view(numba.cuda.to_device(VALUES, stream=ready))
    machine.clear_own()
    view.__dlpack__(stream=int(ready) if asked == "same" else -1, max_version=(1, 3))
    assert machine.calls() == []


def test_numba_array_without_a_stream_is_pending_on_numbas_default(machine: Machine) -> None:
    """Numba exports None for its default stream, on which its kernels run: the table of partners has it."""
    array = numba.cuda.to_device(VALUES)
    view = cd.view(array)
    assert (view.stream, view.producer_stream) == (1, 1)
    machine.clear_own()
    for stream in (None, -1, 1):
        view.__dlpack__(stream=stream, max_version=(1, 3))
    assert machine.calls() == []
    view.__dlpack__(stream=2, max_version=(1, 3))
    assert "cuEventRecord" in {call.name for call in machine.control.calls()}


def test_nothing_pending_is_said_by_the_caller_and_costs_nothing(machine: Machine) -> None:
    view = cd.view(numba.cuda.to_device(VALUES), producer_stream=None)
    assert view.stream is None
    machine.clear_own()
    for stream in (None, -1, 1, 2, 0x5500):
        view.__dlpack__(stream=stream, max_version=(1, 3))
    assert machine.calls() == []


@pytest.mark.parametrize("schedule", ["lazy", "threaded"])
@pytest.mark.parametrize("variable", ["CUDA_PYTHON", "NUMBA"])
@pytest.mark.parametrize("value", ["0", "1"])
def test_a_default_stream_of_numbas_is_waited_for_on_every_thread(variable: str, value: str, schedule: str) -> None:
    """Numba's work is on stream 1, or on that of the thread that enqueues it: no thread names another one's."""
    program = """
import ctypes, threading, time
import cai_dlpack as cd, numba.cuda, numpy as np
from cai_conformance import Sim
from conformance.tests.simulated.machine import Machine

machine = Machine(Sim())
machine.set_current(0)
mine, copy = machine.stream(), machine.device_memory(24)
array = numba.cuda.device_array(3)
pointer = array.__cuda_array_interface__["data"][0]
machine.write(pointer, bytes(24))

def write():
    # Behind work that takes its time, on the stream that is this thread's default one.
    machine.set_current(0)
    stream = 2 if __VALUE__ else 1
    machine.control.delay(stream, 0.05)
    machine.control.store(stream, pointer, np.full(3, 7.0).tobytes())
    written.set()
    read.wait()

written, read = threading.Event(), threading.Event()
thread = threading.Thread(target=write)
thread.start()
written.wait()
cd.view(array).__dlpack__(stream=mine, max_version=(1, 3))
copied = ctypes.c_uint64(copy), ctypes.c_uint64(pointer), ctypes.c_size_t(24), ctypes.c_void_p(mine)
machine._call("cuMemcpyAsync", *copied)
machine._call("cuStreamSynchronize", ctypes.c_void_p(mine))
print(np.frombuffer(machine.read(copy, 24)).tolist())
read.set()
thread.join()
"""
    variable += "_CUDA_PER_THREAD_DEFAULT_STREAM"
    done = on_the_simulator(
        program.replace("__VALUE__", value), "--schedule", schedule, timeout=110, **{variable: value}
    )
    assert (done.stdout, done.returncode) == ("[7.0, 7.0, 7.0]\n", 0), done.stderr


def test_numba_default_stream_is_0_and_taken_as_1(machine: Machine) -> None:
    array = numba.cuda.device_array((2, 3), np.float32, stream=numba.cuda.default_stream())
    assert array.__cuda_array_interface__["stream"] == 0, "Numba has stopped exporting 0: drop the rule"
    with pytest.warns(UserWarning, match="stream"):
        view = cd.view(array)
    assert view.stream == 1


def test_numba_array_is_kept_by_what_is_made_of_it(machine: Machine) -> None:
    array = numba.cuda.to_device(VALUES)
    alive = weakref.ref(array)
    tensor = tvm_ffi.from_dlpack(cd.view(array))
    del array
    gc.collect()
    assert alive() is not None
    del tensor
    gc.collect()
    assert alive() is None


# --- Numba, the consumer ------------------------------------------------------------------------------


def test_numba_takes_a_view(machine: Machine) -> None:
    source = numba.cuda.to_device(VALUES)[:, ::2]
    array = numba.cuda.as_cuda_array(cd.view(source))
    assert pointer(array) == pointer(source)
    assert array.shape == (3, 2)
    assert array.strides == source.strides
    assert array.copy_to_host().tolist() == VALUES[:, ::2].tolist()


def test_numba_waits_for_the_views_stream(machine: Machine) -> None:
    ready = numba.cuda.stream()
    view = cd.view(numba.cuda.to_device(VALUES, stream=ready))
    machine.clear()
    numba.cuda.as_cuda_array(view)
    assert machine.order() == [("cuStreamSynchronize", int(ready))]


def test_numba_takes_a_0_d_and_an_empty_view(machine: Machine) -> None:
    scalar = cd.view(Cai(interface(shape=(), data=(machine.device_memory(4), False))))
    assert numba.cuda.as_cuda_array(scalar).shape == ()
    empty = cd.view(Cai(interface(shape=(0, 3), data=(0, False))), device_id=0)
    assert numba.cuda.as_cuda_array(empty).shape == (0, 3)


# --- cuda.core ----------------------------------------------------------------------------------------


@pytest.fixture
def device(machine: Machine) -> Any:
    found = cuda.core.Device(0)
    found.set_current()
    return found


def buffer_of(device: Any, values: np.ndarray[Any, Any], stream: Any, machine: Machine) -> Any:
    buffer = device.allocate(values.nbytes, stream=stream)
    stream.sync()
    machine.write(int(buffer.handle), values.tobytes())
    return buffer


def test_cuda_core_buffer_to_numba(device: Any, machine: Machine) -> None:
    """A buffer speaks DLPack alone, Numba speaks CAI alone."""
    stream = device.create_stream()
    values = np.arange(16, dtype=np.int8)
    buffer = buffer_of(device, values, stream, machine)
    view = cd.view(buffer, producer_stream=stream)
    assert (view.ptr, view.dtype.name, view.shape, view.device) == (int(buffer.handle), "int8", (16,), (2, 0))
    array = numba.cuda.as_cuda_array(view)
    assert pointer(array) == int(buffer.handle)
    assert array.copy_to_host().tolist() == values.tolist()


def test_cuda_core_buffer_is_kept(device: Any, machine: Machine) -> None:
    stream = device.create_stream()
    view = cd.view(buffer_of(device, np.arange(4, dtype=np.int8), stream, machine), producer_stream=stream)
    gc.collect()
    assert machine.read(view.ptr, 4) == bytes(range(4))


def test_cuda_core_takes_a_view_by_dlpack(device: Any, machine: Machine) -> None:
    ready, mine = numba.cuda.stream(), device.create_stream()
    source = numba.cuda.to_device(VALUES, stream=ready)
    view = cd.view(source)
    machine.clear()
    seen = StridedMemoryView.from_dlpack(view, stream_ptr=int(mine.handle))
    assert machine.order() == one_event(int(ready), int(mine.handle))
    assert (seen.ptr, seen.shape, np.dtype(seen.dtype)) == (pointer(source), (3, 4), np.float32)
    assert seen.device_id == 0
    assert not seen.readonly


def test_cuda_core_takes_a_view_by_the_interface(device: Any, machine: Machine) -> None:
    ready, mine = numba.cuda.stream(), device.create_stream()
    source = numba.cuda.to_device(VALUES, stream=ready)[:, ::2]
    view = cd.view(source)
    machine.clear()
    seen = StridedMemoryView.from_cuda_array_interface(view, stream_ptr=int(mine.handle))
    assert machine.order() == one_event(int(ready), int(mine.handle)), "cuda.core's own event, and none of ours"
    assert (seen.ptr, seen.shape, seen.strides) == (pointer(source), (3, 2), (4, 2))


def test_cuda_core_is_told_of_read_only(device: Any, machine: Machine) -> None:
    view = cd.view(numba.cuda.to_device(VALUES), read_only=True)
    assert StridedMemoryView.from_dlpack(view, stream_ptr=-1).readonly
    assert StridedMemoryView.from_cuda_array_interface(view, stream_ptr=-1).readonly


def test_cuda_core_with_minus_one_makes_no_call_of_ours(device: Any, machine: Machine) -> None:
    view = cd.view(numba.cuda.to_device(VALUES, stream=numba.cuda.stream()))
    machine.clear()
    StridedMemoryView.from_dlpack(view, stream_ptr=-1)
    assert machine.order() == []


def test_cuda_core_strided_view_as_a_producer(device: Any, machine: Machine) -> None:
    source = numba.cuda.to_device(VALUES)[:, ::2]
    between = StridedMemoryView.from_cuda_array_interface(cd.view(source), stream_ptr=-1)
    view = cd.view(between)
    assert (view.ptr, view.shape, view.dtype.name) == (pointer(source), (3, 2), "float32")
    assert view.byte_strides == source.strides


def test_cuda_core_streams_are_taken_as_objects(device: Any, machine: Machine) -> None:
    ready, mine = device.create_stream(), device.create_stream()
    source = numba.cuda.to_device(VALUES)
    view = cd.view(source, producer_stream=ready)
    assert view.stream == int(ready.handle)
    machine.clear()
    view.__dlpack__(stream=mine, max_version=(1, 3))
    assert machine.order() == one_event(int(ready.handle), int(mine.handle))
    assert view.on(mine).stream == int(mine.handle)


def test_cuda_core_pinned_memory_to_numpy(machine: Machine) -> None:
    buffer = cuda.core.LegacyPinnedMemoryResource().allocate(16)
    view = cd.view(buffer)
    assert view.memory == "pinned"
    array = np.from_dlpack(view)
    assert array.ctypes.data == int(buffer.handle) == view.ptr


# --- tvm-ffi -------------------------------------------------------------------------------------------


def test_tvm_ffi_takes_a_view_and_a_capsule(machine: Machine) -> None:
    source = numba.cuda.to_device(VALUES)[:, ::2]
    for given in (cd.view(source), cd.to_dlpack(source), cd.to_dlpack(source, max_version=(1, 3))):
        tensor = tvm_ffi.from_dlpack(given)
        assert tensor.data_ptr() == pointer(source)
        assert tuple(tensor.shape) == (3, 2)
        assert tuple(tensor.strides) == (4, 2)
        assert str(tensor.dtype) == "float32"
        assert str(tensor.device) == "cuda:0"


def test_tvm_ffi_names_no_stream_which_is_the_legacy_default(machine: Machine) -> None:
    ready = numba.cuda.stream()
    view = cd.view(numba.cuda.to_device(VALUES, stream=ready))
    machine.clear()
    tvm_ffi.from_dlpack(view)
    assert machine.order() == one_event(int(ready), 1)


def test_tvm_ffi_as_a_producer(machine: Machine) -> None:
    source = numba.cuda.to_device(VALUES)
    tensor = tvm_ffi.from_dlpack(cd.view(source))
    view = cd.view(tensor)
    assert (view.ptr, view.shape, view.dtype.name, view.device) == (pointer(source), (3, 4), "float32", (2, 0))
    assert numba.cuda.as_cuda_array(view).copy_to_host().tolist() == VALUES.tolist()


def test_tvm_ffi_tensor_destroyed_with_an_exception_pending(machine: Machine) -> None:
    made = abi.make()
    with pytest.raises(IndexError, match="list index out of range"):
        (tvm_ffi.from_dlpack(cd.from_dlpack(made.capsule())), [][7])
    gc.collect()
    assert made.released == 1


# --- NumPy ---------------------------------------------------------------------------------------------


def test_numpy_reads_numbas_managed_array(machine: Machine) -> None:
    """By `from_cai`: Numba's managed array is a NumPy array as well, and would offer itself as one."""
    source = numba.cuda.managed_array((3, 4), np.float32)
    source[:] = VALUES
    view = cd.from_cai(source)
    assert (view.memory, view.device) == ("managed", (13, 0))
    array = np.from_dlpack(view)
    assert array.ctypes.data == source.ctypes.data == view.ptr
    array[0, 0] = 77
    assert source[0, 0] == 77
    alive = weakref.ref(source)
    del source, view
    gc.collect()
    assert alive() is not None
    assert array[2, 3] == 11


def test_numpy_reads_numbas_mapped_array(machine: Machine) -> None:
    source = numba.cuda.mapped_array((3, 4), np.float32)
    source[:] = VALUES
    view = cd.from_cai(source)
    assert view.memory == "pinned"
    assert np.from_dlpack(view).tolist() == VALUES.tolist()


# --- mpi4py ----------------------------------------------------------------------------------------------


def test_mpi4py_takes_a_view_of_managed_memory(machine: Machine) -> None:
    source = numba.cuda.managed_array((12,), np.float64)
    source[:] = np.linspace(0, 1, 12)
    view = cd.from_cai(source)
    memory = MPI.memory.frombuffer(view)
    assert (memory.address, memory.nbytes, memory.readonly) == (view.ptr, 96, False)
    received = np.zeros(12)
    MPI.COMM_SELF.Sendrecv([view, MPI.DOUBLE], dest=0, recvbuf=received, source=0)
    assert received.tolist() == source.tolist()


def test_mpi4py_receives_into_a_view(machine: Machine) -> None:
    target = numba.cuda.managed_array((4,), np.float64)
    MPI.COMM_SELF.Sendrecv(np.arange(4.0), dest=0, recvbuf=[cd.from_cai(target), MPI.DOUBLE], source=0)
    assert target.tolist() == [0, 1, 2, 3]


def test_mpi4py_refuses_to_receive_into_a_read_only_view(machine: Machine) -> None:
    target = numba.cuda.managed_array((4,), np.float64)
    view = cd.from_cai(target, read_only=True)
    assert MPI.memory.frombuffer(view, readonly=True).readonly
    # mpi4py tries the buffer protocol last, and that is the error that it raises.
    with pytest.raises((BufferError, TypeError)):
        MPI.COMM_SELF.Sendrecv(np.arange(4.0), dest=0, recvbuf=[view, MPI.DOUBLE], source=0)


def test_mpi4py_infers_the_type_of_a_view(machine: Machine) -> None:
    source = numba.cuda.managed_array((3,), np.int32)
    source[:] = [7, 8, 9]
    received = np.zeros(3, np.int32)
    MPI.COMM_SELF.Sendrecv(cd.from_cai(source), dest=0, recvbuf=received, source=0)
    assert received.tolist() == [7, 8, 9]


# --- the library's own way to order -------------------------------------------------------------------------


def test_on_makes_a_view_that_is_ready_on_my_stream(machine: Machine) -> None:
    ready, mine = numba.cuda.stream(), machine.stream()
    view = cd.view(numba.cuda.to_device(VALUES, stream=ready))
    machine.clear_own()
    moved = view.on(mine)
    assert machine.order() == one_event(int(ready), mine)
    assert (moved.stream, moved.producer_stream, moved.ptr) == (mine, int(ready), view.ptr)
    assert view.stream == int(ready)
    machine.clear_own()
    assert moved.on(mine).stream == mine
    assert moved.__cuda_array_interface__["stream"] == mine
    moved.__dlpack__(stream=mine, max_version=(1, 3))
    assert machine.calls() == []


def test_synchronize_waits_on_the_host_and_leaves_nothing_to_wait_for(machine: Machine) -> None:
    ready = numba.cuda.stream()
    view = cd.view(numba.cuda.to_device(VALUES, stream=ready))
    machine.clear_own()
    done = view.synchronize()
    assert [call for call in machine.order() if "Synchronize" in call[0]] != []
    assert (done.stream, done.ptr, done.producer_stream) == (None, view.ptr, int(ready))
    machine.clear_own()
    done.__dlpack__(stream=1, max_version=(1, 3))
    assert machine.calls() == []


def test_the_interface_passes_the_stream_on_without_a_call(machine: Machine) -> None:
    ready = numba.cuda.stream()
    view = cd.view(numba.cuda.to_device(VALUES, stream=ready))
    machine.clear_own()
    assert view.__cuda_array_interface__["stream"] == int(ready)
    assert machine.calls() == []
