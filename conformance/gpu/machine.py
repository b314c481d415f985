"""A race's machine on a GPU, and on the simulator for the tests of these parts."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

from cai_conformance import Sim
from cai_conformance.library import is_simulator, loaded
from cai_conformance.slow import Slow

from conformance.tests.doubles.producers import Cai
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.race import LEGACY, NBYTES, Calls, Track

# Longer than it takes to enqueue a copy.
SLOW_SECONDS = 50e-6


class Gpu(Machine):
    """Drives a real GPU, which has no log: `order` is empty."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(library=ctypes.CDLL("libcuda.so.1")))  # type: ignore[arg-type]
        self.set_current(0)

    def clear(self) -> None:
        pass

    def calls(self) -> Calls:
        return []

    def write(self, pointer: int, data: bytes) -> None:
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), ctypes.c_char_p(data), ctypes.c_size_t(len(data)))

    def read(self, pointer: int, nbytes: int) -> bytes:
        target = ctypes.create_string_buffer(nbytes)
        self._call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(pointer), ctypes.c_size_t(nbytes))
        return target.raw


class SlowTrack(Track):
    """Writes after a while, and looks by a copy to the host: on a GPU and on the simulator alike."""

    seconds = SLOW_SECONDS
    # False for the control: a producer that declares no stream, so that nothing is ordered.
    declares = True

    def __init__(self, machine: Machine, ordinal: int = 0) -> None:
        super().__init__(machine, ordinal)
        self.slow = Slow()

    def load(self) -> None:
        """Loads the kernel now: that waits for the device, and no check means to."""
        self.slow.busy(self.a, 0)
        self.wait(self.a)

    def use(self, kind: str, nbytes: int = NBYTES) -> None:
        """Takes memory of another kind as the data."""
        allocate = {"device": self.machine.device_memory, "managed": self.machine.managed_memory}
        self.data = allocate.get(kind, self.machine.pinned_memory)(nbytes)

    def producer(self, stream: int | None) -> Cai:
        """An array that is ready on this stream, and says so if `declares`."""
        return super().producer(stream if self.declares else None)

    def call(self, name: str, *arguments: object) -> None:
        """One call of the driver, which must succeed."""
        self._do(name, *arguments)

    def put(self, data: bytes) -> None:
        """Fills the data, now: a copy to managed memory may still run when it returns."""
        Gpu.write(self.machine, self.data, data)  # type: ignore[arg-type]
        self.wait(LEGACY)

    def fill(self, stream: int, value: int) -> None:
        """Fills the data in stream order, which a capture can take."""
        nbytes = ctypes.c_size_t(NBYTES)
        self.call("cuMemsetD8Async", ctypes.c_uint64(self.data), ctypes.c_ubyte(value), nbytes, ctypes.c_void_p(stream))

    def read(self, stream: int, source: int | None = None) -> None:
        """Copies the data, or what is at `source`, in stream order."""
        data, self.data = self.data, source or self.data
        super().read(stream)
        self.data = data

    def blocking_stream(self) -> int:
        """A stream that orders itself with the legacy default stream."""
        found = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(found), ctypes.c_uint(0))
        return found.value or 0

    def free_memory(self) -> int:
        """Returns how many bytes of the current device are free."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def write(self, stream: int, value: int) -> None:
        self.slow.fill(stream, self.data, value, NBYTES, self.seconds)

    def seen(self) -> int:
        return self.value_at(self.copy)

    def value_at(self, address: int) -> int:
        """Returns the value of every byte there, or -1."""
        found = Gpu.read(self.machine, address, NBYTES)  # type: ignore[arg-type]
        return found[0] if found == found[:1] * NBYTES and found[0] != 0xA5 else -1


def machine() -> Machine:
    """The machine under this process, with device 0 current."""
    driver = loaded()
    if driver is None or not is_simulator(driver):
        return Gpu()
    control = Sim()
    control.set("log", 0)
    found = Machine(control)
    found.set_current(0)
    return found
