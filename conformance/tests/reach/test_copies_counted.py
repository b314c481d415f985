"""The copies of docs/reach.md: how many are made of a view at each end, by kind of memory, layout and engine."""

from __future__ import annotations

import copyreg
import importlib
from collections.abc import Iterator
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_dlpack import pickling

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.interpreter import needs
from conformance.tests.interpreter.process import ROOT
from conformance.tests.reach.messages import received, sent
from conformance.tests.reach.page import stated
from conformance.tests.simulated.machine import Machine

#: Kinds of memory, with that in which an array arrives.
KINDS = {"host": 1, "pinned": 1, "managed": 2, "device": 2}
ENGINES = [pytest.param("dask", marks=needs.dask), "pickle"]


def view_of(machine: Machine, kind: str, is_strided: bool) -> cd.CaiView:
    """3 x 4 numbers, in C order or as a part of 3 x 8."""
    whole = np.arange(24.0).reshape(3, 8) if is_strided else np.arange(12.0).reshape(3, 4)
    if kind == "host":
        return cd.view(whole[:, :4])
    data = getattr(machine, f"{kind}_memory")(whole.nbytes)
    machine.write(data, whole.tobytes())
    described = interface(shape=(3, 4), strides=whole.strides, typestr="<f8", data=(data, False))
    return cd.view(Cai(described))


def copied_by_the_driver(machine: Machine) -> int:
    return sum(name.startswith("cuMemcpy") for name in machine.names())


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    pickling.register()
    yield
    del copyreg.dispatch_table[cd.CaiView]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("is_strided", [False, True], ids=["C order", "strided"])
@pytest.mark.parametrize("kind", KINDS)
def test_copies_at_each_end(machine: Machine, kind: str, is_strided: bool, engine: str) -> None:
    view = view_of(machine, kind, is_strided)
    at_sender, at_receiver = stated(engine, kind)
    machine.clear()
    message = sent(engine, view)
    (frame,) = message.frames
    address = np.frombuffer(frame, np.uint8).ctypes.data
    by_driver = copied_by_the_driver(machine)
    # The host copies what it reads without the driver: memory that lies elsewhere is that one copy.
    by_host = int(kind in ("host", "pinned") and address != view.ptr)
    assert by_driver + by_host == at_sender + is_strided
    assert (address == view.ptr) == (at_sender + is_strided == 0)

    machine.clear()
    arrived = received(engine, message)
    assert copied_by_the_driver(machine) == at_receiver
    assert (arrived.ptr == address) == (at_receiver == 0)
    assert arrived.device == (KINDS[kind], 0)
    assert np.array_equal(np.from_dlpack(arrived, device="cpu"), np.from_dlpack(view, device="cpu"))


@needs.dask
@pytest.mark.parametrize("kind", ["device", "managed"])
@pytest.mark.parametrize("is_strided", [False, True], ids=["C order", "strided"])
def test_copies_for_a_communication_that_takes_device_memory(machine: Machine, kind: str, is_strided: bool) -> None:
    from cai_dlpack import dask
    from distributed.protocol import deserialize, serialize

    dask.register()
    view = view_of(machine, kind, is_strided)
    machine.clear()
    header, frames = serialize(view, serializers=["cuda"], on_error="raise")
    arrived: Any = deserialize(header, frames)
    assert copied_by_the_driver(machine) == is_strided
    assert (arrived.ptr == view.ptr) == (not is_strided)


@needs.dask
def test_the_benchmark_counts_the_copies_that_the_page_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benches"))
    reach = importlib.import_module("reach")
    from cai_dlpack import dask

    dask.register()
    counted = dict(line.split(": ") for line in reach.copied())
    assert counted["pickle 5, buffers apart"] == "0 of 4096 bytes copied."
    assert counted["pickle 5, in one piece"] == "4096 of 4096 bytes copied."
    assert counted["Dask, serialized and read"] == "0 of 4096 bytes copied."
