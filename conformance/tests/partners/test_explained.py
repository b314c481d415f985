"""Looks for a case in which `explain` tells something else than what happens.

The generator is the matrix's own (`conformance/matrix/explained.py`), over the libraries of this environment;
`make conformance` runs it over all others.
"""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi

from conformance.matrix import said
from conformance.matrix.arrays import readers
from conformance.matrix.calls import PARTNERS
from conformance.matrix.doors import DOORS
from conformance.matrix.draws import CAPTURED, FILTERS, MODES, WRONG, Case, drawn, names, typed
from conformance.matrix.explained import Bench
from conformance.matrix.odd import DEVICES, HOST, TYPES, fresh, on_device, tensor
from conformance.tests.doubles.producers import Dlpack
from conformance.tests.expectations.refusal import refuse
from conformance.tests.simulated.machine import Machine

pytestmark = pytest.mark.long

CASES = {"host": 8000, "device": 6000}


@pytest.mark.parametrize("room", CASES)
def test_what_is_told_is_what_happens(room: str, machine: Machine) -> None:
    bench, chosen = Bench(machine.control, room), random.Random(1)
    consumers = bench.consumers()
    wrong: dict[str, Case] = {}
    for _ in range(CASES[room]):
        case = bench.drawn(chosen, consumers)
        for line in bench.wrong(case):
            wrong.setdefault(line, case)
    assert not wrong, "\n".join(f"{case}: {line}" for line, case in wrong.items())
    for consumer in consumers:
        # Of host memory, the libraries of device memory take hardly any.
        read = ["arrived"] if consumer in readers(room) else []
        for outcome in ("taken", "refused", *read):
            assert bench.reached[consumer, outcome] > 3, f"{consumer} has {outcome} nearly nothing"
    for door in ("to_dlpack", "from_dlpack", "a capsule", "CaiView"):
        for outcome in ("taken", "refused"):
            assert bench.reached[door, outcome] > 3, f"{door} has {outcome} nearly nothing"
    for outcome in ("unknown", "raised"):
        assert bench.reached[None, outcome] > 10
    assert bench.reached["apache-tvm-ffi", "dropped"] > 10
    assert bench.reached["cuda-core", "remedy"] > 10


def test_the_draws_have_every_kind() -> None:
    """Each odd array, wrong keyword, filter, capture and name comes up."""
    chosen = random.Random(1)
    odd = sorted({*HOST, *on_device([1, 2, 3])})
    cases = [drawn(chosen, ["numpy"], odd, [None, "cupy-cuda13x", "numpy"], list(DOORS)) for _ in range(20000)]
    assert {case.producer for case in cases} == {"numpy", *odd}
    assert {case.door for case in cases} == {None, *DOORS}
    assert {case.filters for case in cases} == {None, *FILTERS}
    assert {case.capture for case in cases} == {None, *((whose, mode) for whose in CAPTURED for mode in MODES)}
    given = {(name, repr(value)) for case in cases for name, value in case.keywords}
    assert {(name, repr(value)) for name, value in WRONG} <= given
    typed_names = {case.name for case in cases}
    assert {"cupy-cuda12x", "CUPY-CUDA11", "cp", "np", "NUMPY"} <= typed_names
    tensors = [tensor(random.Random(number), DEVICES, fresh).tensor for number in range(4000)]
    assert {made.dtype.lanes for made in tensors} >= {1, 2, 4}
    assert {(made.device.device_type, made.device.device_id) for made in tensors} == set(DEVICES)
    assert {(made.dtype.code, made.dtype.bits) for made in tensors} == set(TYPES)


def test_every_name_of_a_library_is_taken() -> None:
    chosen = random.Random(1)
    for distribution, row in PARTNERS.items():
        assert all("*" not in name or name in row["distributions"] for name in names(row))
        for _ in range(50):
            name = typed(chosen, distribution)
            assert cd.explain(np.arange(3), to=name).call == row["calls"][0]["code"], name
    for name in ("cupy-cudax", "cupy-cuda12y", "cudf-cu", "cudf-cu12a", "", "*"):
        with pytest.raises(ValueError, match="to"):
            cd.explain(np.arange(3), to=name)


# By library: a view, what another view looks like to the library, and the field that differs.
LIES: dict[str, tuple[Any, Any, str]] = {
    "address": (np.zeros(3), np.zeros(3), "ptr"),
    "shape": (np.zeros((2, 3)), np.zeros((3, 2)), "shape"),
    "strides": (np.zeros((2, 3)), np.zeros((2, 3), order="F"), "strides"),
    "type": (np.zeros(3), np.zeros(3, np.int64), "dtype"),
    "size": (np.zeros(3), np.zeros(4), "nbytes"),
    "flag": (np.broadcast_to(np.float64(1), (3,)), np.zeros(3), "read-only"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_field_that_has_changed_is_noticed(lie: str) -> None:
    """Each field, read by NumPy's eyes from another array."""
    own, other, field = LIES[lie]
    assert list(said.differences("numpy", cd.view(own), np.asarray(cd.view(own)), None, is_copy=False)) == []
    found = list(said.differences("numpy", cd.view(own), other, None, is_copy=False))
    assert any(field in line.partition(" is ")[0] for line in found), found


def test_what_mpi4py_counts_is_what_there_is() -> None:
    """It counts whole bytes for packed elements, as a producer that exports them to it finds; a view refuses."""
    from mpi4py import MPI

    made = abi.make((8,), dtype=(abi.INT, 4, 1))
    beyond = MPI.memory(Dlpack(made))
    sent = SimpleNamespace(memory=lambda: beyond)
    view = cd.view(made.capsule())
    assert (beyond.nbytes, view.nbytes) == (8, 4)
    assert any(line.startswith("nbytes") for line in said.differences("mpi4py", view, sent, None, is_copy=False))
    refused = refuse(lambda: MPI.memory(view), BufferError)
    assert refused.rule == "packed-legacy"
    told = cd.explain(view, to="mpi4py")
    assert told.refused is not None
    presented = eval(
        told.remedies[0], {"cd": cd, "v": view, "comm": SimpleNamespace(Send=lambda v, dest: MPI.memory(v))}
    )
    assert (presented.address, presented.nbytes) == (view.ptr, 4)


PLAIN = Case("numpy", "float32", "rows", (), None, None, None, False)


def test_a_false_answer_of_a_door_is_noticed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A door that takes what is told as refused, or refuses what is told as taken, fails; with the smallest case."""
    bench = Bench(machine.control, "host")
    for door in ("to_dlpack", "from_dlpack", "a capsule", "CaiView"):
        drawn_case = replace(PLAIN, door=door, keywords=(("strict", True),) * (door != "CaiView"), sync="host")
        assert bench.wrong(drawn_case) == []
        with monkeypatch.context() as patched:
            refusing = replace(DOORS[door], call=lambda *given: cd.view(cast(Any, 3)))
            patched.setitem(DOORS, door, refusing)
            (line,) = bench.wrong(drawn_case)
            assert "protocol-missing" in line
            assert bench.shrunk(drawn_case, line) == replace(PLAIN, door=door)
        refused = replace(PLAIN, producer="dates", dtype="int64", door=door)
        assert bench.wrong(refused) == []
        with monkeypatch.context() as patched:
            patched.setitem(DOORS, door, replace(DOORS[door], call=lambda *given: None))
            (line,) = bench.wrong(refused)
            assert "taken, told as" in line


@pytest.mark.parametrize(
    ("told", "case"),
    [
        ({"refused": "too round"}, PLAIN),
        ({"route": "cai"}, PLAIN),
        ({"route": None}, PLAIN),
        ({"ready": "on stream 0x5000"}, PLAIN),
        ({"warnings": ("beware",)}, PLAIN),
        ({"driver_calls": ("cuStreamSynchronize",)}, PLAIN),
        ({"refused": None}, replace(PLAIN, dtype="bfloat16", consumer="numpy")),
        ({"remedies": ("np.from_dlpack(v)",)}, replace(PLAIN, dtype="bfloat16", consumer="numpy")),
        ({"call": "np.load(v)"}, replace(PLAIN, consumer="numpy")),
        ({"dropped": "the read-only flag"}, replace(PLAIN, consumer="apache-tvm-ffi")),
        ({"dropped": None}, replace(PLAIN, consumer="apache-tvm-ffi", layout="read-only")),
        ({"refused": "another"}, replace(PLAIN, producer="text")),
        ({"route": "cai"}, replace(PLAIN, producer="text")),
    ],
    ids=str,
)
def test_a_false_answer_is_noticed(
    told: dict[str, Any], case: Case, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(machine.control, "host")
    assert bench.wrong(case) == []

    class False_:
        def __init__(self, true: Any) -> None:
            self.true = true

        def __getattr__(self, name: str) -> Any:
            return told[name] if name in told else getattr(self.true, name)

    explain = cd.explain
    monkeypatch.setattr(cd, "explain", lambda *given, **named: False_(explain(*given, **named)))
    assert bench.wrong(case) != []
