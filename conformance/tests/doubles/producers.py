"""Small doubles of producers: an object that shows a CAI dict, an object that shows DLPack, and nothing else."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from cai_conformance import abi

# A pointer that nobody may follow: aligned, far from anything mapped, and the same in every run.
FAKE_POINTER = 0x7F00_0000_1000


class Cai:
    """Exports the dict that it was given, and counts the reads."""

    def __init__(self, interface: Any) -> None:
        self.interface = interface
        self.reads = 0

    @property
    def __cuda_array_interface__(self) -> Any:
        self.reads += 1
        return self.interface


def interface(**changes: Any) -> dict[str, Any]:
    """A valid version 3 dict of 2 x 3 float32; a key given as `...` is left out."""
    whole: dict[str, Any] = {
        "shape": (2, 3),
        "typestr": "<f4",
        "data": (FAKE_POINTER, False),
        "strides": None,
        "stream": None,
        "version": 3,
    }
    whole.update(changes)
    return {key: value for key, value in whole.items() if value is not ...}


def cai(**changes: Any) -> Cai:
    """An object with a valid version 3 dict, but for the changes."""
    return Cai(interface(**changes))


class Dlpack:
    """Exports one tensor by `__dlpack__`, and records each call's keywords."""

    def __init__(self, made: abi.Made, device: Any = None) -> None:
        self.made = made
        self.calls: list[dict[str, Any]] = []
        self.handed: list[object] = []
        tensor = made.tensor
        self.device = device
        if device is None:
            self.device = (tensor.device.device_type, tensor.device.device_id)

    def __dlpack__(self, **keywords: Any) -> Any:
        self.calls.append(keywords)
        return self.made.capsule()

    def __dlpack_device__(self) -> Any:
        return self.device


class Legacy(Dlpack):
    """Takes no keyword in `__dlpack__`."""

    def __dlpack__(self) -> object:  # type: ignore[override]
        self.calls.append({})
        return self.made.capsule()


class StreamOnly(Dlpack):
    """Takes `stream` and no other keyword in `__dlpack__`."""

    def __dlpack__(self, stream: Any = "omitted") -> object:  # type: ignore[override]
        self.calls.append({"stream": stream})
        return self.made.capsule()


class StreamObject:
    """Implements the `__cuda_stream__` protocol: a method that returns (version, handle)."""

    def __init__(self, handle: int, version: int = 0) -> None:
        self.handle = handle
        self.version = version

    def __cuda_stream__(self) -> tuple[int, int]:
        return (self.version, self.handle)


class OwningStream(StreamObject):
    """Ends its stream, as the stream objects of libraries do."""

    def __init__(self, handle: int, end: Callable[[int], None]) -> None:
        super().__init__(handle)
        self.end = end

    def __del__(self) -> None:
        self.end(self.handle)


def host_memory(nbytes: int) -> tuple[Any, int]:
    """Ordinary host memory and its address, aligned to 256 bytes; keep the first alive."""
    block = ctypes.create_string_buffer(nbytes + 256)
    return block, (ctypes.addressof(block) + 255) & ~255
