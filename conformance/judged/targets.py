"""The libraries' producers and consumers, as the kit's command names them; each imports its library when called."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from cai_conformance.cuda import driver
from cai_conformance.judge.memory import values
from cai_conformance.reference.producers import CaiArray, DlpackArray, dtype_of


class Judged(NamedTuple):
    """One target."""

    library: str
    """The distribution."""
    kind: str
    target: str
    profiles: tuple[str, ...]
    read: str = ""
    only: tuple[str, ...] = ()
    """The rules that it is judged by, if not by all."""


def cuda_core_of_cai(array: Any) -> Any:
    """cuda.core's view of device memory."""
    return cuda_core_cai(CaiArray(array))


def cuda_core_of_dlpack(array: Any) -> Any:
    """cuda.core's view of host memory."""
    return cuda_core_dlpack(DlpackArray(array))


def cuda_core_cai(obj: Any) -> Any:
    """cuda.core's import of the CUDA Array Interface; nothing is to wait for the default stream."""
    from cuda.core import Device
    from cuda.core.utils import StridedMemoryView

    Device(0).set_current()
    return StridedMemoryView.from_cuda_array_interface(obj, stream_ptr=1)


def cuda_core_dlpack(obj: Any) -> Any:
    """cuda.core's import of DLPack."""
    from cuda.core.utils import StridedMemoryView

    return StridedMemoryView.from_dlpack(obj, stream_ptr=-1)


@cache
def cuda_core_stream() -> int:
    """The stream that is named to cuda.core."""
    return driver().stream()


def cuda_core_on_a_stream(obj: Any) -> Any:
    """cuda.core's import of DLPack for work in a stream."""
    from cuda.core import Device
    from cuda.core.utils import StridedMemoryView

    Device(0).set_current()
    return StridedMemoryView.from_dlpack(obj, stream_ptr=cuda_core_stream())


def cuda_core_read(view: Any) -> Any:
    """What work in that stream reads."""
    if not view.is_device_accessible:
        return np.from_dlpack(view)
    nbytes = int(np.prod(view.shape)) * view.dtype.itemsize
    return np.frombuffer(driver().read_after(cuda_core_stream(), view.ptr, nbytes), view.dtype).reshape(view.shape)


def tvm_ffi(array: Any) -> Any:
    """tvm-ffi's tensor of an array."""
    import tvm_ffi as library

    return library.from_dlpack(DlpackArray(array))


def tvm_ffi_call(obj: Any) -> Any:
    """Calls a function of tvm-ffi's that returns its argument."""
    import tvm_ffi as library

    return library.get_global_func("testing.echo")(obj)


def jax(array: Any) -> Any:
    """JAX's array on the CPU."""
    from jax import numpy

    return numpy.asarray(array)


def tensorflow(array: Any) -> Any:
    """TensorFlow's tensor."""
    import tensorflow as library

    return library.constant(array)


def tensorflow_import(obj: Any) -> Any:
    """TensorFlow takes the capsule."""
    import tensorflow as library

    return library.experimental.dlpack.from_dlpack(obj.__dlpack__())


def paddle(array: Any) -> Any:
    """Paddle's tensor on the CPU."""
    import paddle as library

    return library.to_tensor(array, place=library.CPUPlace())


def paddle_import(obj: Any, **keywords: Any) -> Any:
    """Paddle's import."""
    import paddle as library

    return library.from_dlpack(obj, **keywords)


def paddle_read(tensor: Any) -> Any:
    """Paddle's tensor as a NumPy array."""
    return tensor.numpy()


def pyarrow(array: Any) -> Any:
    """Arrow's array, which has one axis."""
    import pyarrow as library

    return library.array(array)


def pyarrow_import(obj: Any) -> Any:
    """Arrow's tensor, which has any axes."""
    import pyarrow as library

    return library.Tensor.from_dlpack(obj)


def pyarrow_read(tensor: Any) -> Any:
    """Arrow's tensor as a NumPy array."""
    return tensor.to_numpy()


def warp(array: Any) -> Any:
    """Warp's array on the CPU."""
    import warp as library

    library.config.quiet = True
    return library.array(array, device="cpu")


def warp_import(obj: Any) -> Any:
    """Warp's import."""
    import warp as library

    library.config.quiet = True
    library.init()
    return library.from_dlpack(obj)


def warp_read(array: Any) -> Any:
    """Warp's array as a NumPy array; memory of a device in Warp's stream, which it names to producers."""
    if array.device.is_cuda:
        stream = array.device.stream.cuda_stream
        return np.frombuffer(driver().read_after(stream, array.ptr, array.capacity), np.uint8)
    return array.numpy()


@cache
def by_nanobind() -> Any:
    """A module by nanobind, whose function gives its argument back; compiled once for all processes."""
    import importlib.util
    import subprocess
    import sysconfig
    import tempfile
    from importlib.metadata import version
    from pathlib import Path

    import nanobind as library

    source = """
    #include <nanobind/nanobind.h>
    #include <nanobind/ndarray.h>
    #include <vector>
    namespace nb = nanobind;

    // An array of the module's own of the memory of its argument.
    nb::object pass(nb::ndarray<> array) {
        auto *kept = new nb::ndarray<>(array);
        nb::capsule owner(kept, [](void *self) noexcept { delete (nb::ndarray<> *) self; });
        std::vector<size_t> shape(array.shape_ptr(), array.shape_ptr() + array.ndim());
        using Array = nb::ndarray<nb::array_api>;
        return nb::cast(Array(array.data(), array.ndim(), shape.data(), owner, array.stride_ptr(), array.dtype(),
                              array.device_type(), array.device_id()));
    }
    NB_MODULE(by_nanobind, module) { module.def("pass", &pass); }
    """
    room = Path(tempfile.gettempdir()) / f"by_nanobind-{version('nanobind')}-{sysconfig.get_config_var('SOABI')}"
    built = room / "by_nanobind.so"
    if not built.exists():
        room.mkdir(exist_ok=True)
        (room / "by_nanobind.cpp").write_text(source)
        package = Path(library.__file__).parent
        include = [library.include_dir(), str(package / "ext/robin_map/include"), sysconfig.get_path("include")]
        flags = ["-std=c++17", "-O0", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-shared"]
        sources = [str(room / "by_nanobind.cpp"), str(Path(library.source_dir()) / "nb_combined.cpp")]
        command = ["c++", *flags, *(f"-isystem{each}" for each in include), *sources, "-o", f"{built}.new"]
        subprocess.run(command, check=True)
        Path(f"{built}.new").replace(built)
    spec = importlib.util.spec_from_file_location("by_nanobind", built)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def nanobind(array: Any) -> Any:
    """An array that a function by nanobind returns."""
    return nanobind_import(DlpackArray(array))


def nanobind_import(obj: Any) -> Any:
    """A function by nanobind, which returns its argument."""
    return getattr(by_nanobind(), "pass")(obj)


def onnxruntime(array: Any) -> Any:
    """ONNX Runtime's value on the CPU."""
    import onnxruntime as library

    return library.OrtValue.ortvalue_from_numpy(array)


def onnxruntime_import(obj: Any) -> Any:
    """ONNX Runtime's import."""
    import onnxruntime as library

    return library.OrtValue.from_dlpack(obj)


def onnxruntime_read(value: Any) -> Any:
    """ONNX Runtime's value as a NumPy array."""
    return value.numpy()


class Message:
    """The memory that mpi4py would send, and the layout of the offer, of which mpi4py keeps none."""

    def __init__(self, obj: Any) -> None:
        from mpi4py import MPI

        self.memory = MPI.memory.frombuffer(obj, readonly=True)
        self.array = obj.array
        self.host = getattr(obj, "memory", None) is None


def mpi4py_read(message: Message) -> Any:
    """The elements of a message."""
    array, memory = message.array, message.memory
    assert memory.nbytes == array.nbytes, f"{memory.nbytes} bytes instead of {array.nbytes}"
    return values(memory.address, array.shape, array.strides, array.dtype, host=message.host)


class Dlpark:
    """A tensor that dlpark has imported, as its own methods describe it; work on it is in the legacy default stream."""

    def __init__(self, obj: Any, *, copy: bool | None = None) -> None:
        from dlpark_path import Imported

        self.tensor = Imported(obj, copy=copy)

    def interface(self, *devices: int) -> dict[str, Any]:
        address, shape, strides, (code, bits, lanes), (device, _), read_only = self.tensor.described()
        if device not in devices:
            raise AttributeError(f"memory of device type {device}")
        if lanes != 1:
            raise BufferError(f"NumPy has no type of {lanes} lanes")
        try:
            dtype = dtype_of(code, bits)
        except (KeyError, TypeError):
            raise BufferError(f"NumPy has no type of code {code} and {bits} bits") from None
        return {
            "shape": tuple(shape),
            "typestr": dtype.str,
            "data": (address, read_only),
            "strides": tuple(stride * dtype.itemsize for stride in strides),
            "version": 3,
        }

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.interface(1, 3)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.interface(2), "stream": 1}


def torch(array: Any) -> Any:
    """torch's tensor on the CPU."""
    import torch as library

    if not array.flags.writeable:
        raise TypeError("torch has no read-only tensors")
    return library.from_numpy(array)


def torch_read(tensor: Any) -> Any:
    """torch's tensor as a NumPy array."""
    return tensor.numpy()


def pycuda(array: Any) -> Any:
    """PyCUDA's array in device memory."""
    from pycuda import autoprimaryctx, gpuarray  # noqa: F401

    return gpuarray.to_gpu(array)


def strict(array: Any) -> Any:
    """The array of array-api-strict."""
    import array_api_strict as library

    return library.asarray(array)


def strict_import(obj: Any, **keywords: Any) -> Any:
    """The import of array-api-strict."""
    import array_api_strict as library

    return library.from_dlpack(obj, **keywords)


_HERE = "conformance.judged.targets"
_OURS = "conformance.tests.kit.ourselves"
CAI, DLPACK, EXCHANGE = "cai", "dlpack", "exchange"
STREAMS = tuple(f"stream-{rule}" for rule in ("zero", "alive", "explicit", "order", "fallback", "passed-on"))

TARGETS = (
    Judged("cai-dlpack", "producer", f"{_OURS}:on_a_device", (CAI, DLPACK, EXCHANGE)),
    Judged("cai-dlpack", "producer", f"{_OURS}:on_the_host", (DLPACK, EXCHANGE)),
    Judged("cai-dlpack", "consumer", "cai_dlpack:view", (CAI, DLPACK, EXCHANGE)),
    Judged("numpy", "producer", "numpy:asarray", (DLPACK,)),
    Judged("numpy", "consumer", "numpy:from_dlpack", (DLPACK,)),
    Judged("numba-cuda", "producer", "numba.cuda:to_device", (CAI,)),
    Judged("numba-cuda", "consumer", "numba.cuda:as_cuda_array", (CAI,)),
    Judged("cuda-core", "producer", f"{_HERE}:cuda_core_of_cai", (DLPACK, EXCHANGE)),
    Judged("cuda-core", "producer", f"{_HERE}:cuda_core_of_dlpack", (DLPACK, EXCHANGE)),
    Judged("cuda-core", "consumer", f"{_HERE}:cuda_core_cai", (CAI,)),
    Judged("cuda-core", "consumer", f"{_HERE}:cuda_core_dlpack", (DLPACK,)),
    Judged("cuda-core", "consumer", f"{_HERE}:cuda_core_on_a_stream", (DLPACK,), f"{_HERE}:cuda_core_read", STREAMS),
    Judged("apache-tvm-ffi", "producer", f"{_HERE}:tvm_ffi", (DLPACK,)),
    Judged("apache-tvm-ffi", "consumer", "tvm_ffi:from_dlpack", (DLPACK, EXCHANGE)),
    Judged("apache-tvm-ffi", "consumer", f"{_HERE}:tvm_ffi_call", (EXCHANGE,)),
    Judged("jax", "producer", f"{_HERE}:jax", (DLPACK,)),
    Judged("jax", "consumer", "jax.dlpack:from_dlpack", (DLPACK,)),
    Judged("tensorflow-cpu", "producer", f"{_HERE}:tensorflow", (DLPACK,)),
    Judged("tensorflow-cpu", "consumer", f"{_HERE}:tensorflow_import", (DLPACK,)),
    Judged("paddlepaddle", "producer", f"{_HERE}:paddle", (DLPACK, EXCHANGE)),
    Judged("paddlepaddle", "consumer", f"{_HERE}:paddle_import", (DLPACK,), f"{_HERE}:paddle_read"),
    Judged("nanobind", "producer", f"{_HERE}:nanobind", (DLPACK,)),
    Judged("nanobind", "consumer", f"{_HERE}:nanobind_import", (DLPACK,)),
    Judged("onnxruntime", "producer", f"{_HERE}:onnxruntime", (DLPACK,)),
    Judged("onnxruntime", "consumer", f"{_HERE}:onnxruntime_import", (DLPACK,), f"{_HERE}:onnxruntime_read"),
    Judged("dlpark", "consumer", f"{_HERE}:Dlpark", (DLPACK, EXCHANGE)),
    Judged("torch", "producer", f"{_HERE}:torch", (DLPACK, EXCHANGE)),
    Judged("torch", "consumer", "torch:from_dlpack", (DLPACK,), f"{_HERE}:torch_read"),
    Judged("mpi4py", "consumer", f"{_HERE}:Message", (CAI, DLPACK), f"{_HERE}:mpi4py_read"),
    Judged("pycuda", "producer", f"{_HERE}:pycuda", (CAI,)),
    Judged("pyarrow", "producer", f"{_HERE}:pyarrow", (DLPACK,)),
    Judged("pyarrow", "consumer", f"{_HERE}:pyarrow_import", (DLPACK,), f"{_HERE}:pyarrow_read"),
    Judged("warp-lang", "producer", f"{_HERE}:warp", (DLPACK,)),
    Judged("warp-lang", "consumer", f"{_HERE}:warp_import", (DLPACK,), f"{_HERE}:warp_read"),
    Judged("array-api-strict", "producer", f"{_HERE}:strict", (DLPACK,)),
    Judged("array-api-strict", "consumer", f"{_HERE}:strict_import", (DLPACK,)),
)

#: What no target judges, and why; libraries that need a GPU stand in `conformance.matrix.installed`.
NOT_JUDGED = {
    "dlpark, producer": "a trait, whose arrays are those of the module that implements it",
    "dlpack-rs": "a crate; kornia-rs 0.2.0, which has it, takes images of two or three axes alone",
    "memory of a device, by JAX, TensorFlow, Paddle, ONNX Runtime, torch; made by Warp": "needs a GPU: they reach the "
    "driver through a static CUDA runtime",
    "PyCUDA, consumer": "takes the address as an argument of a kernel, and returns nothing that could be read",
    "mpi4py, producer": "has no arrays",
    "imports by the exchange table, of all but cai-dlpack, dlpark and tvm-ffi": "the others ask "
    "`__dlpack__` of an array whose type has a table",
}
