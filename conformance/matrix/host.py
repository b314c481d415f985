"""Libraries on host memory: how each makes an array, and how it takes one.

A producer gets a NumPy array and returns an object of its own with the address of the first element.
A reader gets the result of a library's call (`calls.py`) and returns the address and the elements that it sees.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import itertools
import math
import types
from collections.abc import Callable, Sequence
from typing import Any

import cai_dlpack as cd
import numpy as np

from conformance.matrix import silent
from conformance.matrix.calls import Consume, Key, Seen, consumers
from conformance.matrix.cells import EXTRA, NotMade

Produce = Callable[[Any], tuple[Any, int]]


def load(name: str) -> Any:
    """A library, when it is needed; without types, which few of them have."""
    return importlib.import_module(name)


def prepare() -> None:
    """Paddle before TensorFlow: `import tensorflow, paddle` is a segmentation fault (docs/partners.md)."""
    if importlib.util.find_spec("paddle"):
        load("paddle")


def row_major_only(array: Any) -> None:
    """For libraries that have no strides."""
    if not array.flags.c_contiguous:
        raise NotMade("has no strides")
    if not array.flags.writeable:
        raise NotMade("has no read-only arrays")


def borrowed(array: Any) -> cd.CaiView:
    """A view of any NumPy array, also of a dtype that NumPy does not export itself."""
    if array.dtype.name in EXTRA:
        plain = array.view(np.dtype(f"u{array.itemsize}"))
        return cd.from_dlpack(plain, dtype=array.dtype.name)
    return cd.from_dlpack(array)


def seen(view: Any) -> bytes:
    """The elements of anything that exports DLPack, in C order, through the bridge itself."""
    taken = cd.view(view)
    return elements(taken)


def elements(taken: cd.CaiView) -> bytes:
    """The elements of a view of host memory, in C order, one by one."""
    assert taken.itemsize is not None
    assert taken.byte_strides is not None
    return gather(taken.ptr, taken.shape, taken.byte_strides, taken.itemsize)


def gather(pointer: int, shape: Sequence[int], byte_strides: Sequence[int], itemsize: int) -> bytes:
    """Reads the elements in C order, one by one, at the address and strides that a consumer reports."""
    found = b""
    for index in itertools.product(*(range(extent) for extent in shape)):
        offset = sum(place * step for place, step in zip(index, byte_strides, strict=True))
        found += ctypes.string_at(pointer + offset, itemsize)
    return found


# --- producers ------------------------------------------------------------------------------------------


def numpy_out(array: Any) -> tuple[object, int]:
    return array, array.ctypes.data


def strict_out(array: Any) -> tuple[object, int]:
    array_api_strict = load("array_api_strict")
    if array.dtype.name in EXTRA:
        raise NotMade("no such dtype")
    made = array_api_strict.asarray(array, copy=False)
    return made, made._array.ctypes.data


def jax_out(array: Any) -> tuple[object, int]:
    jax = load("jax")
    row_major_only(array)
    made = jax.device_put(jax.numpy.array(array), jax.devices("cpu")[0])  # on a machine with a GPU, too
    return made, made.unsafe_buffer_pointer()


def tvm_out(array: Any) -> tuple[object, int]:
    tvm_ffi = load("tvm_ffi")
    if not array.flags.writeable:
        raise NotMade("has no read-only arrays")
    made = tvm_ffi.from_dlpack(borrowed(array))
    return made, made.data_ptr()


def tensorflow_out(array: Any) -> tuple[object, int]:
    tensorflow = load("tensorflow")
    row_major_only(array)
    made = tensorflow.constant(array)
    return made, cd.from_dlpack(tensorflow.experimental.dlpack.to_dlpack(made)).ptr


def paddle_out(array: Any) -> tuple[object, int]:
    paddle = load("paddle")
    row_major_only(array)
    if array.dtype.name in EXTRA or array.dtype.name in {"uint16", "uint32", "uint64"}:
        raise NotMade("no such dtype")
    made = paddle.to_tensor(array)
    return made, made.data_ptr()


def pyarrow_out(array: Any) -> tuple[object, int]:
    pyarrow = load("pyarrow")
    if array.ndim != 1 or array.strides[0] != array.itemsize:
        raise NotMade("arrays have one axis and no strides")
    if array.dtype.name in EXTRA or array.dtype.kind in "c":
        raise NotMade("no such dtype")
    made = pyarrow.array(array)
    return made, made.buffers()[1].address


def onnxruntime_out(array: Any) -> tuple[object, int]:
    onnxruntime = load("onnxruntime")
    row_major_only(array)
    if array.dtype.name in EXTRA or array.dtype.kind == "c":
        raise NotMade("no such dtype")
    made = onnxruntime.OrtValue.ortvalue_from_numpy(array)
    return made, made.data_ptr()


def warp_out(array: Any) -> tuple[object, int]:
    warp = load("warp")
    if array.dtype.name in EXTRA or array.dtype.kind == "c" or array.ndim == 0:
        raise NotMade("no such dtype or no axes")
    if not array.flags.writeable:
        raise NotMade("has no read-only arrays")
    warp.init()
    made = warp.array(array, device="cpu", copy=False)
    return made, made.ptr or 0


def torch_out(array: Any) -> tuple[object, int]:
    torch = load("torch")
    if not array.flags.writeable:
        raise NotMade("has no read-only arrays")
    if min(array.strides, default=0) < 0:
        raise NotMade("has no negative strides")
    made = torch.from_dlpack(borrowed(array))
    return made, made.data_ptr()


PRODUCERS: dict[str, Produce] = {
    "numpy": numpy_out,
    "array-api-strict": strict_out,
    "apache-tvm-ffi": tvm_out,
    "jax": jax_out,
    "onnxruntime": onnxruntime_out,
    "paddlepaddle": paddle_out,
    "pyarrow": pyarrow_out,
    "tensorflow-cpu": tensorflow_out,
    "torch": torch_out,
    "warp-lang": warp_out,
}


# --- readers of what a library's call returns ------------------------------------------------------------


def read_numpy(array: Any) -> Seen:
    return array.ctypes.data, array.tobytes(), array.dtype.name


def read_strict(array: Any) -> Seen:
    return read_numpy(array._array)


def read_jax(array: Any) -> Seen:
    return array.unsafe_buffer_pointer(), np.asarray(array).tobytes(), array.dtype.name


def read_tensor(tensor: Any) -> Seen:
    """tvm-ffi, Paddle and torch."""
    return tensor.data_ptr(), seen(tensor), str(tensor.dtype).rpartition(".")[2]


def read_tensorflow(tensor: Any) -> Seen:
    tensorflow = load("tensorflow")
    pointer = cd.from_dlpack(tensorflow.experimental.dlpack.to_dlpack(tensor)).ptr
    return pointer, tensor.numpy().tobytes(), tensor.dtype.name


def read_pyarrow(found: Any) -> Seen:
    """A buffer, which has no type, or a tensor."""
    if hasattr(found, "to_pybytes"):
        return found.address, found.to_pybytes(), None
    return read_numpy(found.to_numpy())


def read_onnxruntime(value: Any) -> Seen:
    return value.data_ptr(), value.numpy().tobytes(), value.numpy().dtype.name


def read_warp(array: Any) -> Seen:
    return array.ptr or 0, array.numpy().tobytes(), array.numpy().dtype.name


def read_mpi(sent: Sent) -> Seen:
    memory = sent.memory()
    return memory.address, bytes(memory.tobytes()), None


def read_argument(argument: silent.Argument) -> Seen:
    found = gather(argument.ptr, argument.shape, argument.strides or (), argument.itemsize)
    return argument.ptr, found, silent.name_of(argument)


def read_bytes(argument: silent.Argument) -> Seen:
    """KvikIO and UCXX send the bytes as they lie."""
    found = ctypes.string_at(argument.ptr, math.prod(argument.shape) * argument.itemsize)
    return argument.ptr, found, silent.name_of(argument)


READERS: dict[str, Callable[[Any], Seen]] = {
    "numpy": read_numpy,
    "array-api-strict": read_strict,
    "apache-tvm-ffi": read_tensor,
    "jax": read_jax,
    "mpi4py": read_mpi,
    "onnxruntime": read_onnxruntime,
    "paddlepaddle": read_tensor,
    "pyarrow": read_pyarrow,
    "tensorflow-cpu": read_tensorflow,
    "torch": read_tensor,
    "warp-lang": read_warp,
    "kvikio-cu13": read_bytes,
    "ucxx-cu13": read_bytes,
    "nvidia-cutlass-dsl": lambda tensor: read_argument(silent.read_cute(tensor)),
}


def given_warp() -> dict[str, Any]:
    load("warp").init()
    return {}


class Sent:
    """A message whose sending is prepared and not begun, for lack of a receiver: mpi4py has read all of its buffer."""

    def __init__(self, buffer: Any, dest: int) -> None:
        from mpi4py import MPI

        MPI.COMM_SELF.Send_init(buffer, dest=0).Free()
        self.buffer = buffer

    def memory(self) -> Any:
        from mpi4py import MPI

        return MPI.memory.frombuffer(self.buffer, readonly=True)


def given_mpi() -> dict[str, Any]:
    return {"comm": types.SimpleNamespace(Send=Sent)}


GIVEN: dict[str, Callable[[], dict[str, Any]]] = {"warp-lang": given_warp, "mpi4py": given_mpi, **silent.GIVEN}
CONSUMERS: dict[Key, Consume] = consumers(1, READERS, GIVEN)
