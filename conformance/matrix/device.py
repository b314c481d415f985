"""Libraries on CUDA memory, simulated or real: how each makes an array, and how it takes one.

On the simulated driver no kernel runs, so that CuPy, torch and JAX on the GPU take part on real
hardware only. The shape of the functions is that of `host.py`.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.util
import itertools
import struct
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import cai_dlpack as cd
import numpy as np

from conformance.matrix import silent
from conformance.matrix.calls import Consume, Key, Seen, consumers
from conformance.matrix.cells import EXTRA, NotMade
from conformance.matrix.host import Sent, given_mpi

Produce = Callable[[Any], tuple[Any, int]]


def prepare() -> None:
    """Makes the first device current, for libraries that ask the driver for the current one."""
    from cuda.core import Device

    Device(0).set_current()
    if importlib.util.find_spec("warp"):
        importlib.import_module("warp").init()


@functools.cache
def pycuda() -> tuple[Any, Any]:
    """Returns PyCUDA on the first device's primary context, popped again as the process ends."""
    driver = load("pycuda.driver")
    driver.init()
    context = driver.Device(0).retain_primary_context()
    context.push()
    atexit.register(context.pop)
    return driver, load("pycuda.gpuarray")


def settled(produce: Produce) -> Produce:
    """Waits until the array is written: a copy of pageable memory may still run when it returns, and not every consumer
    waits for the stream that it is on. Order is judged elsewhere (conformance/gpu)."""

    def made(array: Any) -> tuple[Any, int]:
        found = produce(array)
        code = ctypes.CDLL("libcuda.so.1").cuCtxSynchronize()
        assert code == 0, f"cuCtxSynchronize: {code}"
        return found

    return made


def load(name: str) -> Any:
    """A library, when it is needed; without types, which few of them have."""
    return importlib.import_module(name)


def read(pointer: int, nbytes: int) -> bytes:
    """Device memory, copied by the driver."""
    target = ctypes.create_string_buffer(max(nbytes, 1))
    code = ctypes.CDLL("libcuda.so.1").cuMemcpyDtoH_v2(target, ctypes.c_uint64(pointer), ctypes.c_size_t(nbytes))
    assert code == 0, f"cuMemcpyDtoH: {code}"
    return target.raw[:nbytes]


def gather(pointer: int, shape: Sequence[int], byte_strides: Sequence[int], itemsize: int) -> bytes:
    """Reads the elements in C order, one by one, at the address and strides that a consumer reports."""
    found = b""
    for index in itertools.product(*(range(extent) for extent in shape)):
        found += read(pointer + sum(at * step for at, step in zip(index, byte_strides, strict=True)), itemsize)
    return found


def seen(array: Any) -> Seen:
    """Reads another library's array through the bridge."""
    view = cd.view(array)
    assert view.itemsize is not None
    assert view.byte_strides is not None
    return view.ptr, gather(view.ptr, view.shape, view.byte_strides, view.itemsize), view.dtype.name


# --- producers ------------------------------------------------------------------------------------------


def numba_out(array: Any) -> tuple[Any, int]:
    import numba.cuda

    if array.dtype.name in EXTRA:
        raise NotMade("no such dtype")
    if not array.flags.writeable:
        raise NotMade("has no read-only arrays")
    if array.ndim == 2 and array.strides[0] == 0:
        raise NotMade("exports a broadcast array as a contiguous one")
    base = numba.cuda.to_device(np.ascontiguousarray(array.base if array.base is not None else array))
    made = laid_out(base, array)
    interface = made.__cuda_array_interface__
    return made, interface["data"][0]


def laid_out(base: Any, array: Any) -> Any:
    """A device array of the same values and layout as the host array, sliced on the device."""
    import numba.cuda

    if array.ndim == 0:
        return numba.cuda.to_device(np.ascontiguousarray(array).reshape(1)).reshape(())
    if array.flags.f_contiguous and array.ndim == 2 and not array.flags.c_contiguous:
        return numba.cuda.to_device(array)
    if array.ndim == 1 and array.strides[0] < 0:
        return numba.cuda.to_device(np.ascontiguousarray(array[::-1]))[::-1]
    if array.flags.c_contiguous:
        return numba.cuda.to_device(array)
    table = numba.cuda.to_device(np.arange(12).astype(array.dtype).reshape(3, 4))
    if array.dtype == np.bool_:
        table = numba.cuda.to_device((np.arange(12) % 2).astype(np.bool_).reshape(3, 4))
    return table[::2, ::2] if array.strides[1] > array.itemsize else table[1:, 1:3]


def tvm_out(array: Any) -> tuple[Any, int]:
    tvm_ffi = load("tvm_ffi")
    made = tvm_ffi.from_dlpack(cd.view(numba_out(array)[0]))
    return made, made.data_ptr()


def cuda_core_out(array: Any) -> tuple[Any, int]:
    from cuda.core.utils import StridedMemoryView

    made = StridedMemoryView.from_dlpack(cd.view(numba_out(array)[0]), stream_ptr=-1)
    return made, made.ptr


def warp_out(array: Any) -> tuple[Any, int]:
    warp = load("warp")
    source = cd.view(numba_out(array)[0])
    if array.ndim == 0 or array.dtype.kind == "c":
        raise NotMade("no such dtype or no axes")
    dtype = warp.dtype_from_numpy(array.dtype)
    made = warp.array(ptr=source.ptr, shape=source.shape, strides=source.byte_strides, dtype=dtype, device="cuda:0")
    made.kept = source
    return made, made.ptr or 0


def pycuda_out(array: Any) -> tuple[Any, int]:
    driver, gpuarray = pycuda()
    if array.dtype.name in EXTRA or not array.flags.writeable:
        raise NotMade("no such dtype, or read-only")
    start, end = np.lib.array_utils.byte_bounds(array)
    memory = driver.mem_alloc(max(end - start, 1))
    driver.memcpy_htod(memory, np.frombuffer(ctypes.string_at(start, max(end - start, 1)), np.uint8))
    first = int(memory) + array.ctypes.data - start
    made = gpuarray.GPUArray(array.shape, array.dtype, gpudata=first, base=memory, strides=array.strides)
    return made, first


def cupy_out(array: Any) -> tuple[Any, int]:
    cupy = load("cupy")
    if array.dtype.name in EXTRA or not array.flags.writeable:
        raise NotMade("no such dtype, or read-only")
    memory = cupy.asarray(np.ascontiguousarray(array))
    made = cupy.asfortranarray(memory) if array.ndim == 2 and array.flags.f_contiguous else memory
    return made, made.data.ptr


def torch_out(array: Any) -> tuple[Any, int]:
    torch = load("torch")
    if array.dtype.name in EXTRA or not array.flags.writeable:
        raise NotMade("made from NumPy here, which has no such dtype")
    made = torch.from_numpy(np.ascontiguousarray(array)).cuda()
    return made, made.data_ptr()


def jax_out(array: Any) -> tuple[Any, int]:
    jax = load("jax")
    made = jax.device_put(np.ascontiguousarray(array), jax.devices("gpu")[0]).block_until_ready()
    return made, made.unsafe_buffer_pointer()


PRODUCERS: dict[str, Produce] = {
    "numba-cuda": numba_out,
    "apache-tvm-ffi": tvm_out,
    "cuda-core": cuda_core_out,
    "warp-lang": warp_out,
    "pycuda": pycuda_out,
    "cupy-cuda13x": cupy_out,
    "torch": torch_out,
    "jax": jax_out,
}


# --- readers of what a library's call returns ------------------------------------------------------------


def read_numba(array: Any) -> Seen:
    pointer = array.__cuda_array_interface__["data"][0]
    return pointer, gather(pointer, array.shape, array.strides, array.dtype.itemsize), array.dtype.name


class Items(NamedTuple):
    """A type that NumPy need not have."""

    name: str
    itemsize: int


def items(kind: Any) -> Items:
    """A type of Numba's."""
    from numba.core.errors import NumbaNotImplementedError
    from numba.np.numpy_support import as_dtype

    try:
        found = as_dtype(kind)
    except NumbaNotImplementedError:
        return Items(kind.name.removeprefix("__nv_"), kind.bitwidth // 8)
    return Items(found.name, found.itemsize)


class KernelArgument(NamedTuple):
    """What a kernel of Numba is passed for a view, as Numba's own code prepares it."""

    ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Items
    mutable: bool

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.ptr, not self.mutable)}


def given_numba() -> dict[str, Any]:
    """A kernel without code: Numba's own launch types its argument and prepares it."""
    from numba.cuda.dispatcher import _Kernel
    from numba.cuda.typing.typeof import Purpose, typeof

    class Kernel:
        def __getitem__(self, launch: tuple[int, int, Any]) -> Callable[[Any], KernelArgument]:
            def kernel(view: Any) -> KernelArgument:
                kind, passed = typeof(view, Purpose.argument), []  # type: ignore[var-annotated]
                _Kernel._prepare_args(types.SimpleNamespace(extensions=[]), kind, view, launch[2], [], passed)
                # Two that Numba's own functions use, the number of items, their size, the address; extents and strides.
                numbers = [int(getattr(each, "value", each) or 0) for each in passed]
                ndim = kind.ndim
                return KernelArgument(
                    numbers[4],
                    tuple(numbers[5 : 5 + ndim]),
                    tuple(numbers[5 + ndim : 5 + 2 * ndim]),
                    items(kind.dtype),
                    kind.mutable,
                )

            return kernel

    return {"kernel": Kernel(), "s": 0}


def read_cuda_core(memory: Any) -> Seen:
    """What cuda.core's view shows: strides in elements, None for C order."""
    itemsize = np.dtype(memory.dtype).itemsize
    steps = memory.strides
    if steps is None:
        steps = np.empty(memory.shape, "i1").strides
    return (
        memory.ptr,
        gather(memory.ptr, memory.shape, [step * itemsize for step in steps], itemsize),
        np.dtype(memory.dtype).name,
    )


def read_warp(array: Any) -> Seen:
    warp = load("warp")
    dtype = np.dtype(warp.dtype_to_numpy(array.dtype))
    pointer = array.ptr or 0
    return pointer, gather(pointer, array.shape, array.strides, dtype.itemsize), dtype.name


def read_numpy(array: Any) -> Seen:
    return None, array.tobytes(), array.dtype.name


def read_mpi(sent: Sent) -> Seen:
    memory = sent.memory()
    return memory.address, read(memory.address, memory.nbytes) if memory.nbytes else b"", None


def read_launched(launched: tuple[bytes, Any]) -> Seen:
    """A kernel's arguments: the address is all that PyCUDA takes of a view."""
    arguments, view = launched
    (pointer,) = struct.unpack("P", arguments)
    said = cd.view(view)
    assert said.byte_strides is not None and said.itemsize is not None
    return pointer, gather(pointer, said.shape, said.byte_strides, said.itemsize), None


def read_cupy(array: Any) -> Seen:
    cupy = load("cupy")
    if array.size:
        cupy.sum(array)  # a kernel reads it
    return array.data.ptr, array.get().tobytes(), array.dtype.name


def read_torch(tensor: Any) -> Seen:
    return tensor.data_ptr(), tensor.cpu().numpy().tobytes(), str(tensor.dtype).rpartition(".")[2]


def read_jax(array: Any) -> Seen:
    return array.unsafe_buffer_pointer(), np.asarray(array).tobytes(), array.dtype.name


def read_argument(argument: silent.Argument) -> Seen:
    ptr, shape, strides, _, itemsize = argument
    found = gather(ptr, shape, strides or np.empty(shape, f"V{itemsize}").strides, itemsize)
    return ptr, found, silent.name_of(argument)


READERS: dict[str, Callable[[Any], Seen]] = {
    "numba-cuda": read_numba,
    "cuda-core": read_cuda_core,
    "apache-tvm-ffi": seen,
    "warp-lang": read_warp,
    "mpi4py": read_mpi,
    "pycuda": read_launched,
    "numpy": read_numpy,
    "cuda-cccl": read_argument,
    "kvikio-cu13": read_argument,
    "ucxx-cu13": read_argument,
    "nvidia-cutlass-dsl": lambda tensor: read_argument(silent.read_cute(tensor)),
    "cupy-cuda13x": read_cupy,
    "torch": read_torch,
    "jax": read_jax,
}


def given_pycuda() -> dict[str, Any]:
    """A kernel without code: PyCUDA's own call collects its arguments."""
    driver, _ = pycuda()

    def kernel(view: Any, block: tuple[int, int, int]) -> tuple[bytes, Any]:
        launched: list[bytes] = []
        function = types.SimpleNamespace(
            _set_block_shape=lambda *shape: None,
            _launch_kernel=lambda grid, block, arguments, shared, stream: launched.append(arguments),
        )
        driver.Function.__call__(function, view, block=block)
        return launched[0], view

    return {"kernel": kernel}


GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "numba-cuda": given_numba,
    "pycuda": given_pycuda,
    "mpi4py": given_mpi,
    "cuda-core": lambda: {"s": 1},
    **silent.GIVEN,
}
CONSUMERS: dict[Key, Consume] = consumers(2, READERS, GIVEN)
