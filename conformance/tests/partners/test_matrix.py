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

from conformance.matrix import device, host
from conformance.matrix.cells import COPIED, DTYPES, FAILED, LAYOUTS, OK, REFUSED, NotMade
from conformance.matrix.installed import LIBRARIES, present
from conformance.matrix.order import WAITS, order
from conformance.matrix.pair import one
from conformance.matrix.run import last
from conformance.matrix.table import markdown, outcomes, regressions, summary
from conformance.tests.interpreter import needs
from conformance.tests.interpreter.process import ROOT
from conformance.tests.simulated.machine import Machine

ROOMS: dict[str, Any] = {"host": host, "device": device}
MINE = {"numpy", "apache-tvm-ffi", "mpi4py", "numba-cuda", "cuda-core"}
SAVED = json.loads((ROOT / "conformance" / "results" / "matrix-simulated.json").read_text())

PAIRS = [
    (room, producer, consumer, bridge)
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
            cell = one(produce, consume, bridge, dtype, layout)
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
    assert len(PAIRS) == 31


@pytest.mark.parametrize(("consumer", "bridge"), [key for key in device.CONSUMERS if key[0] in MINE - {"mpi4py"}])
def test_somebody_waits(consumer: str, bridge: str, machine: Machine) -> None:
    if bridge != "capsule":
        assert order(device.CONSUMERS[consumer, bridge], machine.control) in WAITS.values()


# --- what the matrix itself would notice --------------------------------------------------------------------


def outcome(consume: host.Consume, produce: host.Produce = host.numpy_out) -> str:
    return one(produce, consume, "view, DLPack", "float32", "rows").outcome


def test_a_copy_is_noticed() -> None:
    def copy(view: Any) -> host.Seen:
        return host.numpy_in(np.from_dlpack(view).copy())

    assert (outcome(host.numpy_in), outcome(copy)) == (OK, COPIED)


def test_wrong_data_are_noticed() -> None:
    def transposed(view: Any) -> host.Seen:
        pointer, _, name = host.numpy_in(view)
        return pointer, np.from_dlpack(view).T.tobytes(), name

    assert outcome(transposed) == FAILED


def test_a_wrong_dtype_is_noticed_on_either_side() -> None:
    def bits(view: Any) -> host.Seen:
        pointer, data, _ = host.numpy_in(view)
        return pointer, data, "uint32"

    def sent_as_bits(array: Any) -> tuple[object, int]:
        return array.view(np.uint32), array.ctypes.data

    assert outcome(bits) == FAILED
    assert outcome(host.numpy_in, sent_as_bits) == FAILED


def test_a_wrong_address_is_noticed() -> None:
    def elsewhere(array: Any) -> tuple[object, int]:
        return array, array.ctypes.data + 4

    assert outcome(host.numpy_in, elsewhere) == FAILED


def test_refusals_have_a_reason_and_absence_is_none() -> None:
    def refuses(_: Any) -> host.Seen:
        raise BufferError("not today")

    def has_none(_: Any) -> tuple[object, int]:
        raise NotMade("no strides")

    refused = one(host.numpy_out, refuses, "view, DLPack", "float32", "rows")
    assert (refused.outcome, refused.reason) == (REFUSED, "BufferError: not today")
    assert outcome(host.numpy_in, has_none) == "not made"


def test_nobody_waiting_is_noticed(machine: Machine) -> None:
    def careless(view: cd.CaiView) -> host.Seen:
        return device.cuda_core_dlpack(view.synchronize())

    def reckless(view: cd.CaiView) -> host.Seen:
        view.__dlpack__(stream=-1, max_version=(1, 3))
        return 0, b"", None

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
    head = {"date": "today", "commit": "c", "driver": "simulated driver", "versions": {"numpy": "1"}}
    pairs = summary(run("host", "numpy", "mpi4py", "view, buffer or DLPack"))
    text = markdown({**head, "not_run": {"cupy": "needs a GPU"}}, pairs)
    assert "buffer is not contiguous" in text and "- cupy: needs a GPU" in text and "simulated driver" in text


def test_the_line_that_says_most() -> None:
    assert last("a\nCheck failed: NULL\n***\nbye\n") == "Check failed: NULL"
    assert last("") == "no words"
