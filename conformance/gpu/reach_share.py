"""CUDA IPC of memory of libraries: what is shared with another process, and what is refused by name."""

from __future__ import annotations

import gc
import os
from typing import Any

import cai_dlpack as cd
import numpy as np

from conformance.gpu import pending as arrays
from conformance.gpu.pending import COUNT, VALUES, is_simulated, same
from conformance.gpu.registry import NotRun, check, expect
from conformance.tests.reach.peer import Other


def opened(handle: Any) -> tuple[int, Any]:
    """In the other process: the address, and the values."""
    arrays.here()
    view = cd.open(handle, stream=1)
    found = view.ptr, np.array(np.from_dlpack(view, device="cpu"))
    del view
    gc.collect()
    return found


def shared(array: Any) -> str:
    with Other() as other, cd.share(array) as handle:
        address, values = other(opened, handle)
    same(values.view(np.float32))
    return f"at {address:#x} there, at {cd.view(array).ptr:#x} here"


def refused(array: Any) -> str:
    try:
        with cd.share(array):
            pass
    except cd.Refusal as refusal:
        expect(refusal.rule, "share-memory")
        return " ".join(str(refusal).split())[:200]
    raise AssertionError("not refused: share-memory")


def torch_tensor(settings: str) -> Any:
    """A part of a tensor, in memory of torch's allocator with these settings."""
    if is_simulated():
        raise NotRun("torch reaches no simulated driver")
    if settings:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = settings
    import torch

    whole = torch.from_numpy(np.concatenate([0 * VALUES, VALUES])).to("cuda")
    torch.cuda.synchronize()
    return whole[COUNT:]


def cupy_array(is_pool_of_the_driver: bool) -> Any:
    if is_simulated():
        raise NotRun("cupy reaches no simulated driver")
    import cupy

    if is_pool_of_the_driver:
        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    found = cupy.asarray(VALUES)
    cupy.cuda.get_current_stream().synchronize()
    return found


def numba_array() -> Any:
    import numba.cuda

    return numba.cuda.to_device(VALUES)


def rmm_buffer() -> Any:
    if is_simulated():
        raise NotRun("rmm reaches no simulated driver")
    import rmm

    return rmm.DeviceBuffer.to_device(VALUES.view(np.uint8))


def cuda_core_buffer() -> Any:
    """Of a pool that was made to be shared."""
    from cuda.core import Buffer, Device, DeviceMemoryResource, DeviceMemoryResourceOptions

    device = Device(0)
    device.set_current()
    options = DeviceMemoryResourceOptions(max_size=1 << 21, ipc_enabled=True)
    buffer = DeviceMemoryResource(device, options=options).allocate(VALUES.nbytes, stream=device.default_stream)
    source = Buffer.from_handle(VALUES.ctypes.data, VALUES.nbytes, owner=VALUES)
    buffer.copy_from(source, stream=device.default_stream)
    device.default_stream.sync()
    described = {"shape": (COUNT,), "typestr": "<f4", "data": (int(buffer.handle), False), "stream": 1, "version": 3}
    return cd.view(described, owner=buffer)


for name, make in {
    "torch's tensor": lambda: torch_tensor(""),
    "cupy's array": lambda: cupy_array(False),
    "numba's array": numba_array,
    "rmm's buffer": rmm_buffer,
    "cuda.core's buffer of a pool for it": cuda_core_buffer,
}.items():
    check("share", f"{name} is shared", False)(lambda _, make=make: shared(make()))  # type: ignore[misc]
for name, make in {
    "torch's tensor of expandable segments": lambda: torch_tensor("expandable_segments:True"),
    "torch's tensor of cudaMallocAsync": lambda: torch_tensor("backend:cudaMallocAsync"),
    "cupy's array of cudaMallocAsync": lambda: cupy_array(True),
}.items():
    check("share", f"{name} is refused", False)(lambda _, make=make: refused(make()))  # type: ignore[misc]
