"""The hand-overs: each as the two lines that a user would write, without the bridge and with it.

The lines are run as they are printed. In them `array` is the producer's; on a GPU, stream `writer` is about to fill it,
and `reader` is the stream that the consumer works on.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cai_dlpack.demo.gpu import VALUES, Gpu

# What makes the streams and the memory of a device.
DEVICE = ("cuda",)


def is_installed(module: str) -> bool:
    """Returns whether a module can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


@dataclass(frozen=True)
class Case:
    """One array on its way from a producer to a consumer."""

    title: str
    why: str
    """What is missing without the bridge."""
    needs: tuple[str, ...]
    """The modules of the libraries."""
    imports: str
    """What the lines need before them."""
    make: Callable[..., Any]
    """Makes the producer's array, on the GPU if there is one."""
    without: str
    bridge: str
    read: Callable[..., Any]
    """What the consumer finds in what it got."""

    @property
    def is_on_a_device(self) -> bool:
        return self.needs[: len(DEVICE)] == DEVICE

    def missing(self) -> list[str]:
        """The modules that are not installed."""
        return [name for name in self.needs if not is_installed(name)]


def _numba_on(stream: Callable[[Gpu], int]) -> Callable[[Gpu], Any]:
    def make(gpu: Gpu) -> Any:
        from numba import cuda

        number = stream(gpu)
        array = cuda.device_array(VALUES.shape, VALUES.dtype, stream=cuda.external_stream(number) if number else 0)
        gpu.fill(array.__cuda_array_interface__["data"][0], number)
        return array

    return make


def _managed(gpu: Gpu) -> Any:
    from numba import cuda

    array = cuda.managed_array(VALUES.shape, VALUES.dtype)
    gpu.fill(array.__cuda_array_interface__["data"][0], int(gpu.writer.handle))
    return array


class Interface:
    """Managed memory of any producer that states its stream, by the CUDA Array Interface."""

    def __init__(self, gpu: Gpu) -> None:
        self.memory = _managed(gpu)
        stream = int(gpu.writer.handle)
        self.__cuda_array_interface__ = {**self.memory.__cuda_array_interface__, "stream": stream}


def send(array: Any) -> Any:
    """Sends an array to this very process, by MPI."""
    from mpi4py import MPI

    received = np.empty_like(VALUES)
    MPI.COMM_SELF.Sendrecv([array, MPI.FLOAT], dest=0, recvbuf=received, source=0)
    return received


def _brain_floats(_: object) -> Any:
    import ml_dtypes

    return VALUES.astype(ml_dtypes.bfloat16)


def _by_interface(array: Any, gpu: Gpu) -> Any:
    return gpu.read(array.__cuda_array_interface__["data"][0])


CASES = [
    Case(
        title="Numba -> tvm-ffi",
        why="Numba speaks the CUDA Array Interface only, and tvm-ffi DLPack only.",
        needs=(*DEVICE, "numba_cuda", "tvm_ffi"),
        imports="import tvm_ffi",
        make=_numba_on(lambda gpu: int(gpu.writer.handle)),
        without="tvm_ffi.from_dlpack(array)",
        bridge='cd.to(array, "tvm_ffi", stream=reader)',
        read=lambda tensor, gpu: gpu.read(tensor.data_ptr()),
    ),
    Case(
        title="cuda.core -> Numba",
        why="The other way round: cuda.core exports DLPack only.",
        needs=(*DEVICE, "numba_cuda"),
        imports="import numba.cuda",
        make=Gpu.buffer,
        without="numba.cuda.as_cuda_array(array)",
        bridge='cd.to(array, "numba", producer_stream=writer)',
        read=_by_interface,
    ),
    Case(
        title="cuda.core -> tvm-ffi",
        why="Both speak DLPack, and neither makes the reading stream wait.",
        needs=(*DEVICE, "tvm_ffi"),
        imports="import tvm_ffi",
        make=Gpu.buffer,
        without="tvm_ffi.from_dlpack(array)",
        bridge='cd.to(array, "tvm_ffi", producer_stream=writer, stream=reader)',
        read=lambda tensor, gpu: gpu.read(tensor.data_ptr()),
    ),
    Case(
        title="Numba -> cuda.core",
        why="Numba works on its default stream, and states none; that is taken for ready.",
        needs=(*DEVICE, "numba_cuda"),
        imports="from cuda.core.utils import StridedMemoryView",
        make=_numba_on(lambda gpu: 0),
        without="StridedMemoryView.from_any_interface(array, stream_ptr=int(reader.handle))",
        bridge="cd.to(array, StridedMemoryView, stream=reader)",
        read=lambda view, gpu: gpu.read(view.ptr),
    ),
    Case(
        title="Managed memory -> NumPy",
        why="The host can read it at any time, and NumPy knows no streams: the bridge waits.",
        needs=(*DEVICE, "numba_cuda"),
        imports="",
        make=_managed,
        without="np.asarray(array)",
        bridge='cd.to(array, "numpy", producer_stream=writer)',
        read=lambda array, gpu: array.copy(),
    ),
    Case(
        title="CUDA Array Interface -> MPI",
        why="MPI sends what is there, and knows no streams: the bridge waits.",
        needs=(*DEVICE, "numba_cuda", "mpi4py"),
        imports="",
        make=Interface,
        without="send(array)",
        bridge="send(cd.view(array).synchronize())",
        read=lambda received, gpu: received,
    ),
    Case(
        title="NumPy bfloat16 -> torch",
        why="NumPy exports no dtype of ml_dtypes.",
        needs=("torch", "ml_dtypes"),
        imports="import torch",
        make=_brain_floats,
        without="torch.from_dlpack(array)",
        bridge='cd.to(array, "torch")',
        read=lambda tensor, gpu: tensor.float().numpy(),
    ),
    Case(
        title="NumPy bfloat16 -> JAX",
        why="NumPy exports no dtype of ml_dtypes.",
        needs=("jax", "ml_dtypes"),
        imports="import jax",
        make=_brain_floats,
        without="jax.dlpack.from_dlpack(array)",
        bridge='cd.to(array, "jax")',
        read=lambda array, gpu: np.asarray(array).astype(np.float32),
    ),
    Case(
        title="NumPy -> TensorFlow",
        why="TensorFlow takes bare capsules only.",
        needs=("tensorflow",),
        imports="import tensorflow as tf",
        make=lambda gpu: VALUES.copy(),
        without="tf.experimental.dlpack.from_dlpack(array)",
        bridge='cd.to(array, "tensorflow")',
        read=lambda tensor, gpu: tensor.numpy(),
    ),
]
# The one that `--svg` draws.
DRAWN = CASES[2]
