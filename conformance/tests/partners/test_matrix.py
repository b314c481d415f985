"""The matrix, as far as the tests' own environment goes: no cell fails, and what was OK is OK.

`make conformance` has all the libraries. Here the pairs run in one process, and are compared with the
table that was saved last.
"""

from __future__ import annotations

import json
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest

from conformance.matrix import access, device, host
from conformance.matrix.calls import CALLS, PARTNERS, PREFERRED, Consume, Seen
from conformance.matrix.cells import COPIED, DTYPES, FAILED, LAYOUTS, NO_SUCH, OK, REFUSED, NotMade, sample
from conformance.matrix.installed import LIBRARIES, present
from conformance.matrix.order import NOBODY, WAITS, expected, order
from conformance.matrix.pair import one
from conformance.matrix.run import last
from conformance.matrix.table import markdown, outcomes, regressions, summary
from conformance.tests.interpreter import needs
from conformance.tests.interpreter.process import ROOT
from conformance.tests.simulated.machine import Machine

pytestmark = pytest.mark.long

RESULTS = ROOT / "conformance" / "results"
ROOMS: dict[str, Any] = {"host": host, "device": device}
MINE = {"numpy", "apache-tvm-ffi", "mpi4py", "numba-cuda", "cuda-core"}
SAVED = json.loads((RESULTS / "matrix-simulated.json").read_text())
TABLES = {
    key: pair
    for name in ("matrix-simulated", "matrix-torch", "matrix-readers")
    for key, pair in json.loads((RESULTS / f"{name}.json").read_text())["pairs"].items()
}
# Taken by the library's call, and not readable by the case: tvm-ffi has no name for complex numbers, CuTe DSL no
# element type, and ONNX Runtime no NumPy array of bfloat16.
READ_BY_THE_CASE = {
    ("apache-tvm-ffi", "complex64"),
    ("apache-tvm-ffi", "complex128"),
    ("nvidia-cutlass-dsl", "complex64"),
    ("nvidia-cutlass-dsl", "complex128"),
    ("onnxruntime", "bfloat16"),
}


def needed(consumer: str) -> list[pytest.MarkDecorator]:
    """What a library needs beside its own wheel."""
    return [needs.numba_cuda] if consumer == "numba-cuda" else []


PAIRS = [
    pytest.param(room, producer, consumer, bridge, marks=needed(consumer))
    for room, producers, _ in LIBRARIES
    for producer in producers
    for consumer, bridge in ROOMS[room].CONSUMERS
    if {producer, consumer} <= MINE
]


def run(room: str, producer: str, consumer: str, bridge: str) -> list[dict[str, Any]]:
    produce, consume = ROOMS[room].PRODUCERS[producer], ROOMS[room].CONSUMERS[consumer, bridge]
    cells = []
    for dtype in DTYPES:
        for layout in LAYOUTS:
            cell = one(produce, consume, bridge, dtype, layout, consumer)
            place = {"room": room, "producer": producer, "consumer": consumer, "bridge": bridge}
            cells.append({**place, "dtype": dtype, "layout": layout, "outcome": cell.outcome, "reason": cell.reason})
    return cells


@pytest.mark.parametrize(("room", "producer", "consumer", "bridge"), PAIRS)
def test_pair(room: str, producer: str, consumer: str, bridge: str, machine: Machine) -> None:
    found = summary(run(room, producer, consumer, bridge))
    assert regressions(SAVED, found, {}) == []
    (pair,) = found.values()
    told = [outcome for _, _, outcome in outcomes(pair)]
    assert FAILED not in told and COPIED not in told
    assert OK in told


@needs.numba_cuda
def test_all_of_mine_take_part() -> None:
    here, _ = present(sorted(MINE))
    assert {name for _, name in here} == MINE
    assert len(PAIRS) == 47


@pytest.mark.parametrize(
    ("consumer", "bridge"),
    [pytest.param(*key, marks=needed(key[0])) for key in device.CONSUMERS if key[0] in MINE],
)
def test_the_one_waits_whom_the_table_names(consumer: str, bridge: str, machine: Machine) -> None:
    if bridge != "capsule":
        found = order(device.CONSUMERS[consumer, bridge], machine.control)
        assert found == expected(consumer, bridge)
        assert (found == NOBODY) == (consumer == "mpi4py")


# --- one table: what is said of a library, and what it was seen to do ------------------------------------------


def test_every_call_has_a_case_and_every_case_a_call() -> None:
    """Names the rows of `src/partners/table.rs` that claim to be tried and have no case, and cases without a row."""
    cases = {*host.CONSUMERS, *device.CONSUMERS}
    tried = {name for name, row in PARTNERS.items() if row["checked"] not in {"source", "test"}}
    assert sorted(key for key in CALLS if key[0] in tried and key not in cases) == []
    makers = {*host.PRODUCERS, *device.PRODUCERS}
    assert sorted(name for name in tried if PARTNERS[name]["produces"] and name not in makers) == []
    assert sorted({*makers, *host.READERS, *device.READERS} - {*PARTNERS}) == []


def seen_of(consumer: str, bridge: str, dtype: str, layout: str) -> str | None:
    """The outcome in the saved tables, of an array that NumPy sent, or tvm-ffi where NumPy has no such array."""
    for producer in ("numpy", "apache-tvm-ffi"):
        pair = TABLES.get(f"host: {producer} -> {consumer} ({bridge})")
        if pair is None:
            continue
        number = int(pair["rows"][dtype].split()[LAYOUTS.index(layout)])
        what, reason = pair["reasons"][number - 1] if number else (OK, "")
        if what != NO_SUCH and not reason.startswith("on import"):
            return str(what)
    return None


@pytest.mark.parametrize(("consumer", "bridge"), [key for key in PREFERRED if key in host.CONSUMERS])
def test_explain_tells_what_was_seen(consumer: str, bridge: str) -> None:
    """Of every dtype and layout on the host: refused as it is explained, and taken as it is explained."""
    wrong, compared = [], 0
    for dtype in DTYPES:
        for layout in LAYOUTS:
            seen = seen_of(consumer, bridge, dtype, layout)
            if seen is None:
                continue
            compared += 1
            array = sample(dtype, layout)
            view = host.borrowed(array) if array.flags.writeable else cd.view(array)
            told = cd.explain(view, to=PREFERRED[consumer, bridge]).refused
            if (told is not None) != (seen == REFUSED) and (consumer, dtype) not in READ_BY_THE_CASE:
                wrong.append(f"{dtype}, {layout}: {seen}, and explained as {told or 'taken'}")
    assert compared > 100
    assert wrong == []


# --- what the matrix itself would notice --------------------------------------------------------------------


take = host.CONSUMERS["numpy", "view, DLPack"]


def outcome(consume: Consume, produce: host.Produce = host.numpy_out) -> str:
    return one(produce, consume, "view, DLPack", "float32", "rows").outcome


def test_a_copy_is_noticed() -> None:
    def copy(view: Any) -> tuple[Any, Seen]:
        found = np.from_dlpack(view).copy()
        return found, host.read_numpy(found)

    assert (outcome(take), outcome(copy)) == (OK, COPIED)


def test_wrong_data_are_noticed() -> None:
    def transposed(view: Any) -> tuple[Any, Seen]:
        found = np.from_dlpack(view)
        pointer, _, name = host.read_numpy(found)
        return found, (pointer, found.T.tobytes(), name)

    assert outcome(transposed) == FAILED


def test_a_wrong_dtype_is_noticed_on_either_side() -> None:
    def bits(view: Any) -> tuple[Any, Seen]:
        found = np.from_dlpack(view)
        pointer, data, _ = host.read_numpy(found)
        return found, (pointer, data, "uint32")

    def sent_as_bits(array: Any) -> tuple[object, int]:
        return array.view(np.uint32), array.ctypes.data

    assert outcome(bits) == FAILED
    assert outcome(take, sent_as_bits) == FAILED


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (False, True, "the consumer may write what is read-only"),
        (None, True, "the consumer may write what is of unknown access"),
        (True, False, "the consumer may not write what is writable"),
        (True, True, None),
        (None, False, None),
        (False, None, None),
    ],
)
def test_another_access_is_noticed(before: bool | None, after: bool | None, reason: str | None) -> None:
    assert access.lost(before, after) == reason


def test_writing_to_read_only_data_is_noticed() -> None:
    def careless(view: Any) -> tuple[Any, Seen]:
        found = np.from_dlpack(cd.view(view, read_only=False))
        return found, host.read_numpy(found)

    found = one(host.numpy_out, careless, "view, DLPack", "float32", "read-only")
    assert (found.outcome, found.reason) == (FAILED, "the consumer may write what is read-only")


def test_a_wrong_address_is_noticed() -> None:
    def elsewhere(array: Any) -> tuple[object, int]:
        return array, array.ctypes.data + 4

    assert outcome(take, elsewhere) == FAILED


def test_refusals_have_a_reason_and_absence_is_none() -> None:
    def refuses(_: Any) -> tuple[Any, Seen]:
        raise BufferError("not today")

    def has_none(_: Any) -> tuple[object, int]:
        raise NotMade("no strides")

    refused = one(host.numpy_out, refuses, "view, DLPack", "float32", "rows")
    assert (refused.outcome, refused.reason) == (REFUSED, "BufferError: not today")
    assert outcome(take, has_none) == "not made"


def test_nobody_waiting_is_noticed(machine: Machine) -> None:
    def careless(view: cd.CaiView) -> tuple[Any, Seen]:
        return device.CONSUMERS["cuda-core", "view, DLPack"](view.synchronize())

    def reckless(view: cd.CaiView) -> tuple[Any, Seen]:
        return view.__dlpack__(stream=-1, max_version=(1, 3)), (0, b"", None)

    assert order(careless, machine.control) == WAITS["cuStreamSynchronize"]
    assert order(reckless, machine.control) not in WAITS.values()


def test_what_was_ok_and_is_not_any_more_is_named() -> None:
    good = run("host", "numpy", "numpy", "view, DLPack")
    bad = [{**cell, "outcome": FAILED, "reason": "x"} if cell["layout"] == "scalar" else cell for cell in good]
    waited = {"numpy": "its stream waits for an event"}
    saved = {"pairs": summary(good), "order": waited}
    assert regressions(saved, summary(good), waited) == []
    assert len(regressions(saved, summary(bad), {})) == sum(
        cell["outcome"] == OK and cell["layout"] == "scalar" for cell in good
    )
    assert regressions(saved, {}, {"numpy": "nobody waits"}) == ["numpy: its stream waits for an event"]


def test_the_report_has_every_reason_and_who_was_not_there() -> None:
    head = {"date": "today", "commit": "c", "driver": "simulated driver", "versions": {"numpy": "1"}, "target": "t"}
    pairs = summary(run("host", "numpy", "mpi4py", "view, buffer or DLPack"))
    text = markdown({**head, "not_run": {"cupy": "needs a GPU"}}, pairs)
    assert "buffer is not contiguous" in text and "- cupy: needs a GPU" in text and "simulated driver" in text
    assert "Made by `make t`." in text


def test_the_line_that_says_most() -> None:
    assert last("a\nCheck failed: NULL\n***\nbye\n") == "Check failed: NULL"
    assert last("") == "no words"
