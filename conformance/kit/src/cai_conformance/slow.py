"""Work of a stream that takes its time: a kernel on a GPU, a delay on the simulator."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from cai_conformance.library import is_simulator

# A byte from each thread, once so many nanoseconds have passed. `%s` is the target: the driver compiles it for the
# device that is there, if it still takes the target.
_SLOW_FILL = """
.version 6.3
.target %s
.address_size 64
.visible .entry slow_fill(.param .u64 address, .param .u32 value, .param .u64 nanoseconds)
{
    .reg .pred %%early, %%nowhere;
    .reg .b32 %%at, %%byte;
    .reg .b64 %%now, %%end, %%to, %%offset;
    mov.u64 %%now, %%globaltimer;
    ld.param.u64 %%end, [nanoseconds];
    add.u64 %%end, %%end, %%now;
wait:
    mov.u64 %%now, %%globaltimer;
    setp.lt.u64 %%early, %%now, %%end;
    @%%early bra wait;
    ld.param.u64 %%to, [address];
    setp.eq.u64 %%nowhere, %%to, 0;
    @%%nowhere bra done;
    mov.u32 %%at, %%tid.x;
    cvt.u64.u32 %%offset, %%at;
    cvta.to.global.u64 %%to, %%to;
    add.u64 %%to, %%to, %%offset;
    ld.param.u32 %%byte, [value];
    st.global.u8 [%%to], %%byte;
done:
    ret;
}
"""
_TARGETS = ("sm_75", "sm_50")


class Slow:
    """Slow work for the current context; the kernel is loaded once for each."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")  # its own: nobody has declared its functions' parameters
        self.is_simulated = is_simulator(self.driver)
        self._kernels: dict[int, ctypes.c_void_p] = {}

    def busy(self, stream: int, seconds: float) -> None:
        """Keeps a stream of the current context busy; returns at once."""
        if self.is_simulated:
            self._do("sim_delay", ctypes.c_uint64(stream), ctypes.c_uint64(int(seconds * 1e6)))
        else:
            self._launch(stream, 0, 0, 1, seconds)

    def fill(self, stream: int, address: int, value: int, nbytes: int, seconds: float) -> None:
        """Writes `nbytes` (at most 1024) of `value` after a while."""
        if not self.is_simulated:
            self._launch(stream, address, value, nbytes, seconds)
            return
        self.busy(stream, seconds)
        data = ctypes.c_char_p(bytes([value]) * nbytes)
        self._do("sim_store", ctypes.c_uint64(stream), ctypes.c_uint64(address), data, ctypes.c_uint64(nbytes))

    def _launch(self, stream: int, address: int, value: int, threads: int, seconds: float) -> None:
        arguments = ctypes.c_uint64(address), ctypes.c_uint32(value), ctypes.c_uint64(int(seconds * 1e9))
        pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(argument) for argument in arguments))
        grid_and_block = (1, 1, 1, threads, 1, 1)
        self._do("cuLaunchKernel", self._kernel(), *grid_and_block, 0, ctypes.c_void_p(stream), pointers, None)

    def _kernel(self) -> ctypes.c_void_p:
        context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self._do("cuCtxGetCurrent", ctypes.byref(context))
        if (context.value or 0) not in self._kernels:
            codes = {target: self._load(module, target) for target in _TARGETS if not module.value}
            if not module.value:
                raise RuntimeError(f"cuModuleLoadData: {codes}")
            self._do("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(b"slow_fill"))
            self._kernels[context.value or 0] = function
        return self._kernels[context.value or 0]

    def _load(self, module: ctypes.c_void_p, target: str) -> int:
        text = ctypes.c_char_p((_SLOW_FILL % target).encode())
        load: Callable[..., int] = self.driver.cuModuleLoadData
        return load(ctypes.byref(module), text)

    def _do(self, name: str, *arguments: object) -> None:
        code = getattr(self.driver, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: {code}")
