"""Two streams, memory that one of them is about to write, and what the other one reads of it."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

VALUES = np.arange(1, 5, dtype=np.float32)


def has_devices() -> bool:
    """Returns whether a CUDA driver, real or simulated, finds a device."""
    try:
        libcuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return libcuda.cuInit(0) == 0 and libcuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


class Gpu:
    """The stream that writes, the stream that reads, and the first device, which is current."""

    def __init__(self) -> None:
        from cuda.bindings import driver
        from cuda.core import Device, Stream

        self.driver = driver
        self.device = Device(0)
        self.device.set_current()
        self.writer: Stream = self.device.create_stream()
        self.reader: Stream = self.device.create_stream()

    def buffer(self) -> Any:
        """A buffer of cuda.core, of zeros until `writer` has done its work."""
        buffer = self.device.allocate(VALUES.nbytes, stream=self.writer)
        self.writer.sync()
        self.fill(int(buffer.handle), int(self.writer.handle))
        return buffer

    def fill(self, address: int, stream: int) -> None:
        """Zeros memory, waits for that, and has a stream write the values; they need not be there when this returns."""
        self._check(self.driver.cuMemsetD8(address, 0, VALUES.nbytes))
        self.settle()
        self._check(self.driver.cuMemcpyHtoDAsync(address, VALUES.ctypes.data, VALUES.nbytes, stream))

    def settle(self) -> None:
        """Waits until no work is left."""
        self._check(self.driver.cuCtxSynchronize())

    def read(self, address: int) -> Any:
        """What work on `reader` finds in memory, and no other stream is waited for."""
        found = np.empty_like(VALUES)
        self._check(self.driver.cuMemcpyDtoHAsync(found.ctypes.data, address, found.nbytes, self.reader.handle))
        self.reader.sync()
        return found

    def _check(self, result: tuple[Any, ...]) -> None:
        if result[0] != self.driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(result[0].name)
