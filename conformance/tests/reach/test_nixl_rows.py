"""`explain(to="nixl")` beside what `cai_dlpack.nixl.rows` does; two agents that move arrays: conformance/reach."""

from __future__ import annotations

import random

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi
from cai_dlpack import nixl

from conformance.tests.doubles.producers import FAKE_POINTER
from conformance.tests.reach.arrays import drawn, lazy, on_device
from conformance.tests.simulated.machine import Machine

__all__ = ["lazy"]


@pytest.mark.parametrize("memory", ["host", "device"])
def test_what_explain_says_of_nixl_is_done(lazy: Machine, memory: str) -> None:
    chosen, stream = random.Random(memory), lazy.stream()
    for _ in range(100):
        array = drawn(chosen)
        view = cd.view(array) if memory == "host" else on_device(lazy, array, stream, False)
        told = cd.explain(view, to="nixl")
        assert (told.call, told.refused) == ("cai_dlpack.nixl.rows(v)", None)
        lazy.clear()
        found = cd.to(view, "nixl")
        assert [name for name, _ in lazy.order()] == list(told.driver_calls or ())
        assert isinstance(found, nixl.Rows) and found.rows.tolist() == nixl.rows(view).rows.tolist()


@pytest.mark.parametrize("kind", range(1, 22))
def test_what_explain_says_is_refused_is(machine: Machine, kind: int) -> None:
    memory = {1: 0, 3: machine.pinned_memory(64), 13: machine.managed_memory(64), 2: machine.device_memory(64)}
    refused = set()
    for dtype in ((abi.FLOAT, 32, 1), (abi.INT, 4, 1), (abi.INT, 4, 2), (abi.UINT, 1, 1)):
        for strides in (None, (16, 2)):
            host = np.zeros(64, np.uint8)
            data = host.ctypes.data if kind == 1 else memory.get(kind, FAKE_POINTER)
            capsule = abi.make((2, 8), strides=strides, dtype=dtype, device=(kind, 0), data=data).capsule()
            try:
                view = cd.view(capsule, producer_stream=None)
            except BufferError:
                continue
            told = cd.explain(view, to="nixl").refused
            try:
                nixl.rows(view)
                found = False
            except (BufferError, ValueError):
                found = True
            assert (told is not None) == found, (kind, dtype, strides, told)
            refused.add(found)
    assert refused in (set(), {True}) if kind not in memory else refused == {True, False}


def test_the_advice_names_the_call_of_the_agent() -> None:
    assert "agent.register_memory(found.rows, found.memory)" in str(cd.explain(np.zeros(3), to="nixl-cu13"))
    assert cd.explain(np.zeros(3), to="NIXL").call == "cai_dlpack.nixl.rows(v)"
    assert cd.explain(np.zeros(3), to="cuPyNumeric").call == "cupynumeric.from_dlpack(v)"
