"""The libraries' producers and consumers, as the kit's command names them; each imports its library when called."""

from __future__ import annotations

from typing import Any, NamedTuple

from cai_conformance.reference.producers import CaiArray, DlpackArray


class Judged(NamedTuple):
    """One target."""

    library: str
    """The distribution."""
    kind: str
    target: str
    profiles: tuple[str, ...]
    read: str = ""


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


def paddle_import(obj: Any) -> Any:
    """Paddle's import."""
    import paddle as library

    return library.from_dlpack(obj)


def paddle_read(tensor: Any) -> Any:
    """Paddle's tensor as a NumPy array."""
    return tensor.numpy()


def pyarrow(array: Any) -> Any:
    """Arrow's array, which has one axis."""
    import pyarrow as library

    return library.array(array)


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
    """Warp's array as a NumPy array."""
    return array.numpy()


def strict(array: Any) -> Any:
    """The array of array-api-strict."""
    import array_api_strict as library

    return library.asarray(array)


def strict_import(obj: Any) -> Any:
    """The import of array-api-strict."""
    import array_api_strict as library

    return library.from_dlpack(obj)


_HERE = "conformance.judged.targets"
_OURS = "conformance.tests.kit.ourselves"
CAI, DLPACK, EXCHANGE = "cai", "dlpack", "exchange"

TARGETS = (
    Judged("cai-dlpack", "producer", f"{_OURS}:on_a_device", (CAI, DLPACK, EXCHANGE)),
    Judged("cai-dlpack", "producer", f"{_OURS}:on_the_host", (DLPACK, EXCHANGE)),
    Judged("cai-dlpack", "consumer", "cai_dlpack:view", (CAI, DLPACK, EXCHANGE)),
    Judged("numpy", "producer", "numpy:asarray", (DLPACK,)),
    Judged("numpy", "consumer", "numpy:from_dlpack", (DLPACK,)),
    Judged("numba-cuda", "producer", "numba.cuda:to_device", (CAI,)),
    Judged("numba-cuda", "consumer", "numba.cuda:as_cuda_array", (CAI,)),
    Judged("cuda-core", "producer", f"{_HERE}:cuda_core_of_cai", (DLPACK,)),
    Judged("cuda-core", "producer", f"{_HERE}:cuda_core_of_dlpack", (DLPACK, EXCHANGE)),
    Judged("cuda-core", "consumer", f"{_HERE}:cuda_core_cai", (CAI,)),
    Judged("cuda-core", "consumer", f"{_HERE}:cuda_core_dlpack", (DLPACK,)),
    Judged("apache-tvm-ffi", "producer", f"{_HERE}:tvm_ffi", (DLPACK,)),
    Judged("apache-tvm-ffi", "consumer", "tvm_ffi:from_dlpack", (DLPACK, EXCHANGE)),
    Judged("apache-tvm-ffi", "consumer", f"{_HERE}:tvm_ffi_call", (EXCHANGE,)),
    Judged("jax", "producer", f"{_HERE}:jax", (DLPACK,)),
    Judged("jax", "consumer", "jax.dlpack:from_dlpack", (DLPACK,)),
    Judged("tensorflow-cpu", "producer", f"{_HERE}:tensorflow", (DLPACK,)),
    Judged("tensorflow-cpu", "consumer", f"{_HERE}:tensorflow_import", (DLPACK,)),
    Judged("paddlepaddle", "producer", f"{_HERE}:paddle", (DLPACK,)),
    Judged("paddlepaddle", "consumer", f"{_HERE}:paddle_import", (DLPACK,), f"{_HERE}:paddle_read"),
    Judged("pyarrow", "producer", f"{_HERE}:pyarrow", (DLPACK,)),
    Judged("warp-lang", "producer", f"{_HERE}:warp", (DLPACK,)),
    Judged("warp-lang", "consumer", f"{_HERE}:warp_import", (DLPACK,), f"{_HERE}:warp_read"),
    Judged("array-api-strict", "producer", f"{_HERE}:strict", (DLPACK,)),
    Judged("array-api-strict", "consumer", f"{_HERE}:strict_import", (DLPACK,)),
)
