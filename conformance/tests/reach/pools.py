"""Buffers of a pool of cuda.core's that other processes may open."""

from __future__ import annotations

from typing import Any

import cai_dlpack as cd
from cuda.core import Buffer, Device, DeviceMemoryResource, DeviceMemoryResourceOptions, Stream

from conformance.tests.reach import other
from conformance.tests.simulated.machine import Machine

_POOLS: list[DeviceMemoryResource] = []


def made() -> DeviceMemoryResource:
    device = Device(0)
    device.set_current()
    return DeviceMemoryResource(device, options=DeviceMemoryResourceOptions(max_size=1 << 21, ipc_enabled=True))


def pool() -> DeviceMemoryResource:
    """Returns this process's pool."""
    if not _POOLS:
        _POOLS.append(made())
    return _POOLS[0]


def allocated(resource: DeviceMemoryResource, nbytes: int = 64) -> Buffer:
    return resource.allocate(nbytes, stream=Device(0).default_stream)


def pending(
    machine: Machine, buffer: Buffer, stream: int, content: bytes, *, offset: int = 0, delay: float = 0, **changes: Any
) -> cd.CaiView:
    """The buffer as numbers, which the stream has still to write, after `delay` seconds."""
    Device(0).default_stream.sync()
    buffer.set_deallocation_stream(Stream.from_handle(stream))  # Freed behind what is pending there.
    machine.write(int(buffer.handle), b"\xee" * buffer.size)
    if delay:
        machine.control.delay(stream, delay)
    machine.control.store(stream, int(buffer.handle) + offset, content)
    described = {"shape": (len(content) // 8,), "typestr": "<f8", "version": 3, "stream": stream} | changes
    return cd.view(described | {"data": (int(buffer.handle) + offset, False)}, owner=buffer)


def shared(name: str, content: bytes) -> cd.Handle:
    """Shares a buffer that is still to be written; `other.left` leaves the block."""
    view = pending(other.machine(), allocated(pool(), len(content)), other.stream(), content)
    block = cd.share(view)
    other.HELD[name] = (view, block)
    return block.__enter__()
