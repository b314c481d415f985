"""A module by pybind11, compiled: by the recipe of docs/partners.md the caller passes a capsule that is ordered."""

from __future__ import annotations

import sys
from typing import Any

import cai_dlpack as cd
import pybind11
import pytest

from conformance.tests.bindings import HERE, compiled
from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.interpreter.process import ROOT
from conformance.tests.simulated.machine import Machine, one_event

RECIPE = "by_pybind11.writes(cd.to_dlpack(v, stream=s, max_version=(1, 0)))"


@pytest.fixture(scope="module")
def by_pybind11(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return compiled("by_pybind11", tmp_path_factory.mktemp("pybind11"), include=[pybind11.get_include()], other=[])


def test_the_recipe_orders_the_stream_and_keeps_nothing(by_pybind11: Any, machine: Machine) -> None:
    assert RECIPE in (ROOT / "docs" / "partners.md").read_text(encoding="utf-8")
    ready, s = machine.stream(), machine.stream()
    made = Cai(interface(data=(machine.device_memory(24), False), stream=ready))
    v = cd.view(made)
    references, live = sys.getrefcount(v), cd.stats()["live"]
    machine.clear()
    assert eval(RECIPE, {"by_pybind11": by_pybind11, "cd": cd, "v": v, "s": s}) == v.ptr
    assert machine.order() == one_event(ready, s)
    assert (sys.getrefcount(v), cd.stats()["live"]) == (references, live)


@pytest.mark.parametrize(
    ("maximum", "error"), [(None, ValueError), ((1, 0), TypeError)], ids=["a legacy capsule", "read-only data"]
)
def test_what_it_refuses_ends_with_its_capsule(
    maximum: tuple[int, int] | None, error: type[Exception], by_pybind11: Any, machine: Machine
) -> None:
    read_only = maximum is not None
    v = cd.view(Cai(interface(data=(machine.device_memory(24), read_only))))
    references = sys.getrefcount(v)
    with pytest.raises(error, match="expected"):
        by_pybind11.writes(cd.to_dlpack(v, stream=1, max_version=maximum))
    assert sys.getrefcount(v) == references


def test_a_view_is_no_capsule(by_pybind11: Any, machine: Machine) -> None:
    """pybind11 reads no protocol by itself."""
    with pytest.raises(TypeError, match="incompatible function arguments"):
        by_pybind11.writes(cd.view(Cai(interface(data=(machine.device_memory(24), False)))))
    assert "__dlpack__" not in (HERE / "by_pybind11.cpp").read_text(encoding="utf-8")
