"""A module by nanobind, compiled: its arguments take views, and the import takes its arrays.

A consumer by nanobind names no stream, and clears every error of `__dlpack__`: what a capture refuses is read as
"incompatible function arguments".
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cai_dlpack as cd
import nanobind
import pytest

from conformance.tests.bindings import compiled
from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.expectations.refusal import refuse
from conformance.tests.simulated.capture import Captures
from conformance.tests.simulated.machine import Machine, one_event

LEGACY = 1
UNHELPFUL = "incompatible function arguments"


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    package = Path(nanobind.__file__).parent
    include = [nanobind.include_dir(), str(package / "ext" / "robin_map" / "include")]
    other = [Path(nanobind.source_dir()) / "nb_combined.cpp"]
    return compiled("by_nanobind", tmp_path_factory.mktemp("nanobind"), include=include, other=other)


@pytest.fixture
def captures(machine: Machine) -> Iterator[Captures]:
    made = Captures(machine)
    yield made
    made.close()


def array(machine: Machine, stream: int | None = None, read_only: bool = False) -> Cai:
    return Cai(interface(data=(machine.device_memory(24), read_only), stream=stream))


# --- as a consumer ------------------------------------------------------------------------------------------


def test_an_argument_is_the_memory_and_the_legacy_stream_waits(module: Any, machine: Machine) -> None:
    ready, work = machine.stream(), machine.stream()
    view = cd.view(array(machine, ready))
    machine.clear()
    assert module.writes(view) == view.ptr
    assert machine.order() == one_event(ready, LEGACY)
    machine.clear()
    with cd.use_stream(work):
        assert module.any(view) == (view.ptr, 2, 0)
    assert machine.order() == one_event(ready, work) + one_event(ready, LEGACY)
    told = cd.explain(view, to="nanobind")
    assert told.order is not None and "the legacy default stream (1) waits for an event" in told.order


def test_a_constant_goes_to_constant_arguments_alone(module: Any, machine: Machine) -> None:
    constant = cd.view(array(machine, read_only=True))
    with pytest.raises(TypeError, match=UNHELPFUL):
        module.writes(constant)
    assert module.reads(constant) == module.any(constant)[0] == constant.ptr
    assert module.writes(cd.view(constant, read_only=False)) == constant.ptr


@pytest.mark.parametrize("name", ["writes", "reads", "any"])
def test_in_a_capture_the_refusal_is_swallowed_and_explain_has_it(
    name: str, module: Any, captures: Captures, machine: Machine
) -> None:
    """nanobind #1241."""
    stream = machine.stream()
    view, call = cd.view(array(machine, stream)), getattr(module, name)
    captures.begin(stream)
    with pytest.raises(TypeError, match=UNHELPFUL) as read:
        call(view)
    assert "capture" not in str(read.value) and read.value.__cause__ is None
    told = cd.explain(view, to="nanobind").refused
    assert told is not None and "[capture-legacy]" in told and "with cd.use_stream(stream)" in told
    assert refuse(lambda: view.__dlpack__(), BufferError).message == told
    # The way out, and the capture is as it was.
    machine.clear()
    with cd.use_stream(stream):
        assert cd.explain(view, to="nanobind").refused is None
        taken = call(view)
    assert taken in (view.ptr, (view.ptr, 2, 0))
    assert machine.order() == []
    captures.end(stream)


def test_other_ways_through_a_capture(module: Any, captures: Captures, machine: Machine) -> None:
    stream, before = machine.stream(), machine.stream()
    older = cd.view(array(machine, before))
    made_ready, waited = older.on(stream), older.synchronize()
    view = cd.view(array(machine, stream))
    captures.begin(stream)
    machine.clear()
    with cd.use_stream(stream):
        assert module.writes(made_ready) == older.ptr
    assert module.writes(waited) == older.ptr
    with cd.policy(sync="none"):
        assert module.writes(view) == view.ptr
    # A capsule names its stream, and what refuses it is read.
    assert module.writes(cd.to_dlpack(view, stream=stream, max_version=(1, 1))) == view.ptr
    assert refuse(lambda: cd.to_dlpack(older, stream=stream), BufferError).rule == "capture-consumer"
    assert machine.order() == []
    captures.end(stream)


# --- as a producer ------------------------------------------------------------------------------------------


def test_its_arrays_are_undeclared(module: Any, machine: Machine) -> None:
    made = module.produce(machine.device_memory(24), object())
    assert type(made).__module__ == "nanobind"
    with pytest.warns(cd.StreamWarning):
        assert cd.view(made).stream == LEGACY
    assert refuse(lambda: cd.view(made, strict=True), BufferError).rule == "stream-undeclared"
    stream = machine.stream()
    view = cd.view(made, producer_stream=stream)
    assert (view.stream, view.shape, view.read_only) == (stream, (2, 3), False) and view.dtype == "float32"
    assert cd.view(module.produce_constant(view.ptr, made), producer_stream=stream).read_only is True


def test_its_owner_ends_with_the_last_view(module: Any, machine: Machine) -> None:
    class Owner:
        pass

    owner = Owner()
    references = sys.getrefcount(owner)
    made = module.produce(machine.device_memory(24), owner)
    view = cd.view(made, producer_stream=None)
    capsule = cd.to_dlpack(view)
    del made, view
    assert sys.getrefcount(owner) > references
    del capsule
    assert sys.getrefcount(owner) == references


def test_what_it_keeps_is_the_view(module: Any, machine: Machine) -> None:
    view = cd.view(array(machine))
    assert module.keep(view) is view
