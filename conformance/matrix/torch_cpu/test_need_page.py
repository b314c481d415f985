"""The lines of docs/need.md about torch: the direct calls on the CPU, run, and what its source is quoted for."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "need.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("<!-- no bridge -->")[2].partition("<!-- end -->")[0]
RUN = re.findall(r"^\| NumPy \| torch \| `([^`]+)` \| `make torch`[^|]*\|$", TABLE, re.MULTILINE)
QUOTED = re.findall(r"torch ([\d.]+), `([\w/.]+)`: `([^`]+)`", TABLE)


@pytest.mark.parametrize("call", RUN)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float16", "float64", "complex64"])
def test_the_direct_call_shares_the_memory(call: str, dtype: str) -> None:
    array = np.zeros((2, 3), dtype)
    tensor = eval(call, {"torch": torch, "array": array})
    assert (tensor.data_ptr(), tuple(tensor.shape)) == (array.ctypes.data, array.shape)
    assert str(tensor.dtype) == f"torch.{dtype}"


def test_a_direct_call_loses_the_read_only_flag() -> None:
    """As the page says, and as the row of torch does of a view."""
    array = np.zeros(3)
    array.flags.writeable = False
    torch.from_dlpack(array)[0] = 7
    assert array[0] == 7 and "| `make torch`; read-only data can be written |" in TABLE


def test_the_source_says_what_the_page_quotes() -> None:
    assert len(RUN) == 1 and len(QUOTED) == 3
    for version, file, line in QUOTED:
        assert torch.__version__.partition("+")[0] == version
        assert line in (Path(torch.__file__).parent / file).read_text(encoding="utf-8")
