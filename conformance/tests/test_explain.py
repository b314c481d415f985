"""Checks `cd.explain` against what the import and the export then do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_dlpack import _core

from conformance.tests.dlpack import abi, exchange
from conformance.tests.interpreter.free_threaded import FREE_THREADED
from conformance.tests.simulated.machine import Machine


def array(**changed: Any) -> Any:
    entries = {"shape": (3, 4), "typestr": "<f4", "data": (0x1000, False), "version": 3}
    return SimpleNamespace(__cuda_array_interface__={**entries, **changed})


def test_an_interface_with_a_stream_is_taken_by_it() -> None:
    found = cd.explain(array(stream=0x5000), stream=0x6000)
    assert found.route == "cai"
    assert found.order is not None
    assert "stream 0x6000 waits for an event on stream 0x5000" in found.order
    assert found.refused is None


@pytest.mark.parametrize(
    ("stream", "asked", "said"),
    [
        (None, 0x6000, "nothing to do"),
        (0x5000, 0x5000, "nothing to do"),
        (0x5000, -1, "nothing to do"),
        (1, None, "nothing to do"),
        (0x5000, None, "the legacy default stream (1) waits for an event"),
    ],
)
def test_the_order_is_the_plan(stream: int | None, asked: int | None, said: str) -> None:
    order = cd.explain(array(stream=stream), stream=asked).order
    assert order is not None and said in order


def test_the_policy_is_part_of_the_plan() -> None:
    with cd.policy(sync="host"):
        order = cd.explain(array(stream=0x5000), stream=0x6000).order
    assert order is not None and "the host waits for stream 0x5000" in order


def test_an_old_interface_is_taken_at_its_word_with_a_warning() -> None:
    text = str(cd.explain(array(version=2)))
    assert "cai" in text and "producer_stream=" in text


def test_numpy_goes_by_dlpack() -> None:
    found = cd.explain(np.arange(3))
    assert (found.route, found.order, found.refused) == ("dlpack", None, None)


def test_a_refusal_is_the_one_that_the_import_raises() -> None:
    with pytest.raises(BufferError) as refusal:
        cd.view(array(typestr="|O8"))
    found = cd.explain(array(typestr="|O8"))
    assert found.route is None
    assert found.refused == str(refusal.value)


@pytest.mark.parametrize(
    "changes", [{"typestr": ">f4"}, {"strides": (13, 4)}, {"typestr": "|V4", "descr": [("x", "<f4")]}]
)
def test_what_dlpack_cannot_say_is_refused_by_its_readers(changes: dict[str, Any]) -> None:
    producer = array(**changes)
    for what in (producer, cd.view(producer, device_id=0)):
        with pytest.raises(BufferError) as refusal:
            cd.to_dlpack(what, device_id=0)
        for to in ("torch", "jax", "tvm_ffi", "cupy"):
            assert (cd.explain(what, to=to).refused or "").startswith(str(refusal.value))
        assert cd.explain(what).refused is cd.explain(what, to="numba").refused is None
        assert f"by DLPack   refused: {refusal.value}" in str(cd.explain(what))


def test_an_object_without_either_protocol_is_refused() -> None:
    found = cd.explain(3)
    assert found.route is None and found.refused is not None


@pytest.mark.parametrize(
    ("to", "changed", "refused"),
    [
        ("jax", {"data": (0x1000, True)}, "read-only"),
        ("torch", {"data": (0x1000 + 32, False), "strides": (-16, 4)}, "negative strides"),
        ("torch", {}, None),
        ("numba", {"data": (0x1000, True)}, None),
    ],
)
def test_a_consumer_that_would_refuse(to: str, changed: dict[str, Any], refused: str | None) -> None:
    view = cd.view(array(**changed), device_id=0)
    found = cd.explain(view, to=to)
    assert found.route == "view"
    if refused is None:
        assert found.refused is None
    else:
        assert found.refused is not None and refused in found.refused


def test_the_device_decides_for_a_consumer() -> None:
    found = cd.explain(cd.view(np.arange(3)), to="cupy")
    assert found.refused is not None and "device type 1" in found.refused


def test_memory_of_another_kind_has_a_remedy(machine: Machine) -> None:
    view = cd.view(array(data=(machine.device_memory(64), False)))
    refused = cd.explain(view, to="numpy").refused
    assert refused is not None and 'np.from_dlpack(v, device="cpu") copies it' in refused


PARTNERS = _core._partners()


@pytest.mark.parametrize("row", PARTNERS, ids=lambda row: row["name"])
def test_every_partner_is_explained_under_all_its_names(row: dict[str, Any]) -> None:
    view = cd.view(array(), device_id=0)
    texts = {
        str(cd.explain(view, to=name)) for name in [row["name"], row["title"], row["distribution"], *row["aliases"]]
    }
    assert len(texts) == 1
    (text,) = texts
    assert f"to {row['name']}" in text and row["calls"][0]["code"] in text


@pytest.mark.parametrize("typed", ["pyarrow", "onnxruntime", "array-api-strict", "pylibraft", "xgboost", "DALI"])
def test_the_partners_of_the_page_are_taken(typed: str) -> None:
    assert cd.explain(cd.view(np.arange(3)), to=typed).route == "view"


def test_an_unknown_consumer_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'torhc'.*torch"):
        cd.explain(array(), to="torhc")


def test_nothing_is_kept_and_nothing_is_called() -> None:
    class Producer:
        calls = 0

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **_: object) -> object:
            self.calls += 1
            raise AssertionError("explain must not export")

    before = cd.stats()["live"]
    producer = Producer()
    cd.explain(producer, to="numpy")
    assert producer.calls == 0
    assert cd.stats()["live"] == before


# --- by the table of the C Exchange API: on loan, without a tensor ------------------------------------------


def exchanger(producer: exchange.Producer, **members: Any) -> Any:
    """An array of a library whose arrays can all be written, so that a loan, which has no flags, says it all."""
    attribute = exchange.capsule(exchange.table(producer, lends=True))
    return exchange.make_type(attribute, producer, **{"__module__": "tvm_ffi", **members})()


def test_a_table_lends_what_explain_says(machine: Machine) -> None:
    made = abi.make((2, 3), device=(2, 0), data=machine.device_memory(64), dtype=(abi.BFLOAT, 16, 1))
    producer = exchange.Producer(made)
    producer.stream = machine.stream()
    machine.clear()
    found = cd.explain(exchanger(producer), to="torch", stream=machine.stream())
    assert (found.route, found.refused) == ("exchange", None)
    assert "(2, 3) bfloat16 on (2, 0)" in str(found)
    assert found.order is not None and f"waits for an event on stream {producer.stream:#x}" in found.order
    # Without the GIL a description on loan may change while it is read: a tensor is taken, and given back.
    assert producer.exported == made.released == (1 if FREE_THREADED else 0), "nothing was taken"
    assert producer.fallbacks == []
    assert "cuEventRecord" not in machine.names()


def test_a_table_that_says_less_than_dlpack_is_not_the_route() -> None:
    producer = exchange.Producer()
    found = cd.explain(exchanger(producer, requires_grad=True))
    assert (found.route, found.order) == ("dlpack", None)
    pinned = cd.explain(exchanger(exchange.Producer(), is_pinned=lambda self: True))
    assert pinned.route == "dlpack"
    negated = cd.explain(exchanger(producer, is_neg=lambda self: True))
    assert negated.refused is not None and "values-lazy" in negated.refused
    assert producer.exported == 0 or FREE_THREADED


def test_a_table_that_lends_nothing_is_asked_for_a_tensor() -> None:
    producer = exchange.Producer()
    attribute = exchange.capsule(exchange.table(producer))
    found = cd.explain(exchange.make_type(attribute, producer, __module__="tvm_ffi")())
    assert (found.route, found.refused) == ("exchange", None)
    assert producer.exported == producer.made.released == 1, "taken, and given back"


@pytest.mark.parametrize(("flags", "told"), [(abi.READ_ONLY, True), (0, False)])
def test_a_flag_that_a_loan_cannot_carry_is_asked_for(flags: int, told: bool) -> None:
    producer = exchange.Producer(abi.make(flags=flags))
    found = cd.explain(exchanger(producer, __module__="elsewhere"), to="jax")
    assert ("read-only" in str(found).lower(), found.refused is not None) == (told, told)
    assert producer.exported == producer.made.released == 1, "taken, and given back"
