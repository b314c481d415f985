"""A reference producer whose capsules are NumPy's: their destructor is of C, as ctypes makes none."""

from __future__ import annotations

from typing import Any

from cai_conformance.reference.producers import DlpackArray


class NumpyArray(DlpackArray):
    """An array in host memory, as NumPy shows it to those who ask for nothing."""

    def __dlpack__(self, **keywords: Any) -> Any:
        return super().__dlpack__(**keywords) if keywords or not self.array.size else self.array.__dlpack__()
