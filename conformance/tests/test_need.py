"""The direct calls on docs/need.md, made: who waits, and whether read-only data can be written on the other side."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import numba.cuda
import numpy as np
import pytest
import tvm_ffi
from cuda.core.utils import StridedMemoryView

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.interpreter import needs
from conformance.tests.interpreter.process import ROOT
from conformance.tests.simulated.machine import Machine, one_event

pytestmark = [needs.numba_cuda, pytest.mark.filterwarnings("ignore::cai_dlpack.StreamWarning")]
PAGE = (ROOT / "docs" / "need.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("<!-- direct calls -->")[2].partition("<!-- end -->")[0]
CELLS = (r" (?P<origin>[^|]+) ", r" (?P<to>[^|]+) ", r" `(?P<call>[^`]+)` ")
TOLD = (r" (?P<waits>[^|]+) ", r" (?P<constant>[^|]+) ", r" (?P<bridge>[^|]+) ")
ROW = re.compile(r"^\|" + r"\|".join(CELLS + TOLD) + r"\|$", re.MULTILINE)
ROWS = list(ROW.finditer(TABLE))
Make = Callable[[bool], Any]


def makers(machine: Machine, ready: int) -> dict[str, Make]:
    """By library: its array, that `ready` still writes; None if it has no read-only ones."""

    def on_device(read_only: bool) -> cd.CaiView:
        return cd.view(Cai(interface(shape=(6,), data=(machine.device_memory(64), read_only), stream=ready)))

    def of_numpy(read_only: bool) -> Any:
        array = np.zeros(6, np.float32)
        array.flags.writeable = not read_only
        return array

    def of_numba(read_only: bool) -> Any:
        stream = numba.cuda.external_stream(ready)
        return None if read_only else numba.cuda.to_device(np.zeros(6, np.float32), stream=stream)

    return {
        "NumPy": of_numpy,
        "Numba": of_numba,
        "cuda.core": lambda read_only: StridedMemoryView.from_cuda_array_interface(
            on_device(read_only), stream_ptr=ready
        ),
        "tvm-ffi": lambda read_only: None if read_only else tvm_ffi.from_dlpack(on_device(False)),
    }


def who(machine: Machine, ready: int, s: int, call: Callable[[], object]) -> str:
    machine.clear()
    try:
        call()
    except (TypeError, AttributeError, BufferError, RuntimeError):
        return "refused"
    orders = {(): "nobody", tuple(one_event(ready, s)): "its stream", (("cuStreamSynchronize", ready),): "the host"}
    return orders[tuple(machine.order())]


#: The pages from which somebody may take a bridge that he does not need.
PAGES = [
    "README.md",
    *(f"docs/{name}.md" for name in ("mapping", "pairs", "partners", "python", "reach", "rust", "streams")),
]


@pytest.mark.parametrize("page", PAGES)
def test_each_page_tells_when_no_bridge_is_needed(page: str) -> None:
    """By the page of the pairs that need none, near its head."""
    head = (ROOT / page).read_text(encoding="utf-8").split("\n## ")[:3]
    assert "need.md" in "".join(head)


NO_BRIDGE = PAGE.partition("<!-- no bridge -->")[2].partition("<!-- end -->")[0]
UPPER = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in NO_BRIDGE.strip().splitlines()[2:]]


def test_each_line_of_the_upper_table_is_read_or_run() -> None:
    """A line that is run stands in the table of direct calls, which tells what is lost; or `make torch` runs it."""
    below = {(row["origin"], row["to"], row["call"]) for row in ROWS}
    for origin, to, call, tried in UPPER:
        (code,) = re.findall(r"^`([^`]+)`", call) or [call]
        if tried == "below":
            assert (origin, to, code) in below
        elif not tried.startswith("`make torch`"):
            assert re.match(r"source: \S+ [\w.]+, `[\w/.]+`", tried), tried
    assert [tried for *_, tried in UPPER].count("below") == 2 and len(UPPER) == 7


def test_every_line_of_the_table_is_a_row() -> None:
    assert len(ROWS) == TABLE.count("\n| ") - 1 > 6


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['origin']} to {row['to']}, {row['waits']}")
def test_the_direct_call_does_what_the_page_says(row: re.Match[str], machine: Machine) -> None:
    ready, s = machine.stream(), machine.stream()
    make = makers(machine, ready)[row["origin"]]
    names = {"numba": numba, "tvm_ffi": tvm_ffi, "StridedMemoryView": StridedMemoryView, "s": s}
    array = make(False)
    assert who(machine, ready, s, lambda: eval(row["call"], {**names, "array": array})) == row["waits"]
    constant, found = make(True), "has none"
    if constant is not None:
        try:
            made = eval(row["call"], {**names, "array": constant})
            found = "is kept" if cd.view(made).read_only else "can be written"
        except (TypeError, BufferError):
            found = "refused"
    assert found == row["constant"]
    library = {"cuda.core": "cuda.core", "tvm-ffi": "tvm_ffi", "Numba": "numba"}[row["to"]]
    keywords: dict[str, Any] = {} if row["origin"] == "NumPy" else {"producer_stream": ready, "stream": s}
    assert who(machine, ready, s, lambda: cd.to(array, library, **keywords)) == row["bridge"]
