"""Makes streams and device memory, and lists the driver calls of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from cai_conformance import Sim, is_simulated
from cuda.bindings import driver
from cuda.core import Device, Stream
from report import Array, Values

# A real driver keeps no log of its calls; the simulated one does.
SIMULATED = is_simulated()

# The calls that make somebody wait.
ORDERING = {
    "cuEventRecord": "record on {}",
    "cuStreamWaitEvent": "{} waits",
    "cuStreamSynchronize": "host waits for {}",
    "cuEventSynchronize": "host waits for an event",
    "cuCtxSynchronize": "host waits for everything",
}


@dataclass(frozen=True)
class Streams:
    """Holds the producers' stream and the consumers' stream."""

    producer: Stream
    consumer: Stream

    @classmethod
    def create(cls) -> Streams:
        """Two new streams of the first device, which becomes the current one."""
        device = Device(0)
        device.set_current()
        return cls(device.create_stream(), device.create_stream())

    def settle(self) -> None:
        """Waits until nothing is left to do."""
        self.producer.sync()
        self.consumer.sync()


def write(array: Array, values: Values, stream: Stream) -> None:
    """Enqueues a copy into device memory; it need not have happened when this returns."""
    (code,) = driver.cuMemcpyHtoDAsync(array.pointer, values.ctypes.data, values.nbytes, stream.handle)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(code.name)


def read(array: Array, stream: Stream) -> Values | None:
    """The values that work on `stream` sees, no other stream being waited for; `None` where there is no reading."""
    steps = [(extent - 1) * stride for extent, stride in zip(array.shape, array.byte_strides, strict=True)]
    span = np.empty(sum(steps) + array.dtype.itemsize, np.uint8)
    (code,) = driver.cuMemcpyDtoHAsync(span.ctypes.data, array.pointer, span.nbytes, stream.handle)
    if code != driver.CUresult.CUDA_SUCCESS:
        return None
    stream.sync()
    return np.ndarray(array.shape, array.dtype, span, strides=array.byte_strides)


@contextmanager
def stream_calls(work: Streams) -> Iterator[list[str] | None]:
    """Lists the calls of the block that make a stream or the host wait; `None` on a real driver, which has no log."""
    if not SIMULATED:
        yield None
        return
    seen: list[str] = []
    simulator = Sim()
    simulator.clear()
    yield seen
    names = {int(work.producer.handle): "producer", int(work.consumer.handle): "consumer"}
    for call in simulator.calls(*ORDERING):
        seen.append(ORDERING[call.name].format(names.get(call.stream or 0, "another stream")))


def describe() -> str:
    """The driver and the device."""
    if SIMULATED:
        return "a simulated CUDA driver, as no GPU was found here"
    return f"the real CUDA driver and {Device(0).name}"


LEGEND = """\
Streams: the data is written on `producer` and used on `consumer`. Calls that only ask are not listed.
Time: one hand-over with the consumer's part, the best of ten batches."""
if SIMULATED:
    LEGEND += "\nThe simulated driver's own work is in it; there is no GPU in these numbers."
