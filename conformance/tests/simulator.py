"""The simulated driver as the tests use it: memory, streams, and the log of every call.

Memory and streams come from the driver API itself, by ctypes; only the log is the simulator's own.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import Any

# The calls that make a stream, or the host, wait for a stream.
_ORDER = {"cuEventRecord", "cuStreamWaitEvent", "cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"}

# A line of the log: `cuEventRecord(event=0xe7e000000000, stream=0x57ea00000000) = 0`.
_LINE = re.compile(r"^(\w+)\((.*)\) = (\S+)$")


class Sim:
    """One process's driver. Calls that it makes itself are not in the log (`clear` runs after them)."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.driver = library
        self._contexts: dict[int, int] = {}
        self._call("cuInit", 0)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.driver, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    # --- contexts ---

    def context(self, ordinal: int) -> int:
        """The device's primary context, retained once for the whole run."""
        if ordinal not in self._contexts:
            found = ctypes.c_void_p()
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(found), ordinal)
            assert found.value
            self._contexts[ordinal] = found.value
        return self._contexts[ordinal]

    def set_current(self, ordinal: int) -> None:
        """Makes the device's primary context current on this thread."""
        self._call("cuCtxSetCurrent", ctypes.c_void_p(self.context(ordinal)))

    def current(self) -> int:
        """The context that is current on this thread."""
        found = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(found))
        return found.value or 0

    # --- memory ---

    def device_memory(self, nbytes: int, ordinal: int = 0) -> int:
        """`nbytes` of a device's memory."""
        self.set_current(ordinal)
        found = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(found), ctypes.c_size_t(nbytes))
        self.set_current(0)
        return found.value

    def managed_memory(self, nbytes: int) -> int:
        """`nbytes` of managed memory, reachable from both sides."""
        self.set_current(0)
        found = ctypes.c_uint64()
        self._call("cuMemAllocManaged", ctypes.byref(found), ctypes.c_size_t(nbytes), 1)
        return found.value

    def pinned_memory(self, nbytes: int) -> int:
        """`nbytes` of page-locked host memory."""
        self.set_current(0)
        found = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(found), ctypes.c_size_t(nbytes), 0)
        assert found.value
        return found.value

    def free(self, pointer: int) -> None:
        """Gives device or managed memory back."""
        self._call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def write(self, pointer: int, data: bytes) -> None:
        """Fills device-accessible memory."""
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), data, ctypes.c_size_t(len(data)))

    def read(self, pointer: int, nbytes: int) -> bytes:
        """Reads device-accessible memory."""
        block = ctypes.create_string_buffer(nbytes)
        self._call("cuMemcpyDtoH_v2", block, ctypes.c_uint64(pointer), ctypes.c_size_t(nbytes))
        return block.raw

    # --- streams ---

    def stream(self, ordinal: int = 0) -> int:
        """A new non-blocking stream of a device."""
        self.set_current(ordinal)
        found = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(found), 1)
        self.set_current(0)
        assert found.value
        return found.value

    def destroy_stream(self, stream: int) -> None:
        """Ends a stream; its handle is invalid afterwards."""
        self._call("cuStreamDestroy_v2", ctypes.c_void_p(stream))

    # --- the log ---

    def clear(self) -> None:
        """Forgets what was called so far."""
        self.driver.sim_log_clear()

    def calls(self) -> list[tuple[str, int]]:
        """Every call since `clear`, without its suffix, with the stream that it names (0: none)."""
        size = self.driver.sim_log_text(None, ctypes.c_uint64(0))
        text = ctypes.create_string_buffer(size)
        self.driver.sim_log_text(text, ctypes.c_uint64(size))
        return [_parsed(line) for line in text.value.decode().splitlines()]

    def names(self) -> list[str]:
        """The functions called since `clear`, in order."""
        return [name for name, _ in self.calls()]

    def order(self) -> list[tuple[str, int]]:
        """The calls since `clear` that make a stream or the host wait for a stream."""
        return [call for call in self.calls() if call[0] in _ORDER]


def _parsed(line: str) -> tuple[str, int]:
    found = _LINE.match(line)
    assert found, f"not a line of the log: {line!r}"
    arguments = dict(pair.split("=") for pair in found[2].split(", ") if pair)
    name = re.sub(r"(_v\d+)?(_pt[ds]z?)?$", "", found[1])
    return name, int(arguments.get("stream", "0"), 0)


def one_event(ready: int, waiting: int) -> list[tuple[str, int]]:
    """What it costs to make one stream wait for another."""
    return [("cuEventRecord", ready), ("cuStreamWaitEvent", waiting)]


def load() -> Sim:
    """Puts the simulator where every library of this process looks for the driver, and proves it.

    Called before anything else can have looked.
    """
    library = ctypes.CDLL(str(_built()))
    assert library.sim_abi() == 1, "another simulator than these tests are written for"
    assert hasattr(ctypes.CDLL("libcuda.so.1"), "sim_abi"), "libcuda.so.1 is not the simulator"
    try:
        other = ctypes.CDLL("libcuda.so")
    except OSError:
        pass
    else:
        assert hasattr(other, "sim_abi"), "libcuda.so is a real driver: put the simulator's folder on LD_LIBRARY_PATH"
    return Sim(library)


def _built() -> Path:
    """The simulator that Cargo built last."""
    root = Path(__file__).parents[2]
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target"))
    found = [root / target / profile / "libcusim.so" for profile in ("release", "debug")]
    built = [each for each in found if each.exists()]
    assert built, f"no simulator in {root / target}: run `make simulator`"
    return max(built, key=lambda each: each.stat().st_mtime)
