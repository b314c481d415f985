"""Which code of the extension an input has reached, from the counters of `-C instrument-coverage`.

The counters are a section of the library, `__llvm_prf_cnts`, 8 bytes each. They are read where the library is mapped,
so that neither a runtime nor a nightly compiler is needed.
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

SECTION = b"__llvm_prf_cnts"


def section(library: Path) -> tuple[int, int] | None:
    """Returns address and size of the counters in a 64-bit ELF file; None if it was built without."""
    content = library.read_bytes()
    (headers,) = struct.unpack_from("<Q", content, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", content, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", content, headers + size * index) for index in range(count)]
    names = rows[names_at][4]
    for name, _, _, address, _, length in rows:
        start = names + name
        if content[start : content.index(b"\0", start)] == SECTION:
            return address, length
    return None


def base(library: Path) -> int:
    """Returns where a loaded library begins."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(library)):
            return int(line.split("-")[0], 16)
    raise LookupError(f"{library} is not loaded")


class Counters:
    """The counters of a library that is loaded."""

    def __init__(self, library: Path) -> None:
        found = section(library)
        if found is None:
            raise LookupError(f"{library} was built without -C instrument-coverage")
        address, size = found
        memory = (ctypes.c_uint64 * (size // 8)).from_address(base(library) + address)
        self._now: npt.NDArray[np.uint64] = np.ctypeslib.as_array(memory)
        # Each bit stands for a count of up to 1, 2, 4, ... 128.
        self.seen: npt.NDArray[np.uint8] = np.zeros(size // 8, np.uint8)

    def clear(self) -> None:
        self._now[:] = 0

    def is_new(self) -> bool:
        """Whether something was reached, or so often, for the first time; remembers it."""
        now = self._now.copy()  # the extension's own thread counts on
        hit = np.flatnonzero(now)
        counts = np.minimum(now[hit], 128).astype(np.uint8)
        bits = (1 << np.log2(counts).astype(np.uint8)).astype(np.uint8)
        new = bool(np.any(bits & ~self.seen[hit]))
        if new:
            self.seen[hit] |= bits
        return new

    def reached(self) -> int:
        return int(np.count_nonzero(self.seen))
