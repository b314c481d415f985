"""Five hand-overs between libraries that do not speak each other's protocol.

Each function is one of them, written as a user would write it: the line with `cd.` in it is the
whole bridge. What surrounds it looks at what arrived. The exit status is 1 when a pointer, dtype,
shape, stride or value is not what was given.

The data is written on one stream and used on another, so each hand-over has to order the two.
"""

from __future__ import annotations

import sys

import cai_dlpack as cd
import gpu
import numba.cuda
import numpy as np
import tvm_ffi
from cuda.core import Device, Stream
from cuda.core.utils import StridedMemoryView
from mpi4py import MPI
from report import Array, HandOver, Values, clock, table


def numba_to_tvm_ffi(work: gpu.Streams) -> HandOver:
    """Numba shows the CUDA Array Interface only; tvm-ffi takes DLPack only.

    tvm-ffi names no stream when it asks, so the capsule is made here, for the stream that will use it.
    """
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    source = numba.cuda.to_device(values, stream=numba_stream(work.producer))

    def convert() -> tvm_ffi.Tensor:
        return tvm_ffi.from_dlpack(cd.to_dlpack(source, stream=work.consumer))

    with gpu.stream_calls(work) as calls:
        tensor = convert()
    taken = Array.of_elements(tensor.data_ptr(), str(tensor.dtype), tensor.shape, tensor.strides)
    return HandOver(
        route="Numba array -> to_dlpack -> tvm-ffi",
        given=of_numba(source),
        taken=taken,
        values_given=values,
        values_taken=gpu.read(taken, work.consumer),
        stream_calls=calls,
        microseconds=clock(convert, work.settle),
    )


def numba_to_cuda_core(work: gpu.Streams) -> HandOver:
    """Every second column of a Numba array, as a view; cuda.core names its stream itself."""
    values = np.arange(24, dtype=np.float64).reshape(3, 8)
    source = numba.cuda.to_device(values, stream=numba_stream(work.producer))[:, ::2]

    def convert() -> StridedMemoryView:
        return StridedMemoryView.from_dlpack(cd.view(source), stream_ptr=int(work.consumer.handle))

    with gpu.stream_calls(work) as calls:
        seen = convert()
    taken = Array.of_elements(seen.ptr, seen.dtype, seen.shape, seen.strides)
    return HandOver(
        route="Numba array -> view -> cuda.core",
        given=of_numba(source),
        taken=taken,
        values_given=values[:, ::2],
        values_taken=gpu.read(taken, work.consumer),
        stream_calls=calls,
        microseconds=clock(convert, work.settle),
    )


def cuda_core_to_numba(work: gpu.Streams) -> HandOver:
    """Hands a buffer of cuda.core, which has `__dlpack__` alone, to Numba, which needs `__cuda_array_interface__`.

    cuda.core does not order its export, so the stream that filled the buffer is named here.
    """
    values = np.arange(96, dtype=np.int8)
    source = Device().allocate(values.nbytes, stream=work.producer)
    given = Array.of(int(source.handle), np.int8, (source.size,), None)
    gpu.write(given, values, work.producer)

    def convert() -> numba.cuda.devicearray.DeviceNDArray:
        return numba.cuda.as_cuda_array(cd.view(source, producer_stream=work.producer))

    with gpu.stream_calls(work) as calls:
        array = convert()
    return HandOver(
        route="cuda.core buffer -> view -> Numba",
        given=given,
        taken=of_numba(array),
        values_given=values,
        values_taken=array.copy_to_host(stream=array.stream),
        stream_calls=calls,
        microseconds=clock(convert, work.settle),
    )


def managed_to_numpy(work: gpu.Streams) -> HandOver:
    """Managed memory can be read by the host, once the GPU has written it: the bridge waits for that.

    (`from_cai`, since Numba's managed array is a NumPy array too, and would offer itself as one.)
    """
    values = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    source = numba.cuda.managed_array(values.shape, values.dtype)
    given = of_interface(source)
    gpu.write(given, values, work.producer)

    def convert() -> Values:
        return np.from_dlpack(cd.from_cai(source, producer_stream=work.producer))

    with gpu.stream_calls(work) as calls:
        array = convert()
    return HandOver(
        route="managed memory -> view -> NumPy",
        given=given,
        taken=Array.of(array.ctypes.data, array.dtype, array.shape, array.strides),
        values_given=values,
        values_taken=array.copy(),  # now, and not when the table is made
        stream_calls=calls,
        microseconds=clock(convert, work.settle),
    )


def cai_to_mpi4py(work: gpu.Streams) -> HandOver:
    """Sends device memory by MPI, which has no streams: the host waits for the data first.

    The memory is managed, since an MPI library that was built without CUDA sends from the host.
    """
    values = np.linspace(0.0, 1.0, 12)
    source = numba.cuda.managed_array(values.shape, values.dtype)
    given = of_interface(source)
    gpu.write(given, values, work.producer)

    def convert() -> MPI.memory:
        return MPI.memory.frombuffer(cd.from_cai(source, producer_stream=work.producer).synchronize())

    with gpu.stream_calls(work) as calls:
        message = convert()
    received, status = np.empty_like(values), MPI.Status()
    MPI.COMM_SELF.Sendrecv([message, MPI.DOUBLE], dest=0, recvbuf=received, source=0, status=status)
    return HandOver(
        route="CAI array -> view -> mpi4py",
        given=given,
        taken=Array.of(message.address, received.dtype, (status.Get_count(MPI.DOUBLE),), None),
        values_given=values,
        values_taken=received,
        stream_calls=calls,
        microseconds=clock(convert, work.settle),
    )


def numba_stream(stream: Stream) -> object:
    """Returns Numba's stream object of the same handle."""
    return numba.cuda.external_stream(int(stream.handle))


def of_numba(array: numba.cuda.devicearray.DeviceNDArray) -> Array:
    """Reads an array as Numba describes it, with strides in bytes."""
    return Array.of(array.device_ctypes_pointer.value, array.dtype, array.shape, array.strides)


def of_interface(source: object) -> Array:
    """Reads an array as the interface's dict describes it."""
    said = source.__cuda_array_interface__  # type: ignore[attr-defined]
    return Array.of(said["data"][0], said["typestr"], said["shape"], said["strides"])


HAND_OVERS = (numba_to_tvm_ffi, numba_to_cuda_core, cuda_core_to_numba, managed_to_numpy, cai_to_mpi4py)


def main() -> int:
    """Runs them all and returns the exit status."""
    print(f"cai-dlpack {cd.__version__} on {gpu.describe()}\n")
    work = gpu.Streams.create()
    done = [hand_over(work) for hand_over in HAND_OVERS]
    print(table(done))
    print(f"\n{gpu.LEGEND}")
    wrong = [(hand_over.route, defect) for hand_over in done for defect in hand_over.defects()]
    for route, defect in wrong:
        print(f"WRONG: {route}: {defect}", file=sys.stderr)
    return 1 if wrong else 0
