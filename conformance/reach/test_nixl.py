"""Rows of views, and two agents of NIXL that move arrays of the host by them. Its transports for a device need one."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi
from cai_dlpack import nixl

from conformance.tests.reach.arrays import drawn, lazy, on_device
from conformance.tests.simulated.machine import Machine

__all__ = ["lazy"]


@pytest.mark.parametrize("memory", ["host", "device"])
def test_the_rows_hold_the_elements_in_c_order_and_they_are_ready(lazy: Machine, memory: str) -> None:
    chosen, stream = random.Random(memory), lazy.stream()
    for _ in range(300):
        array = drawn(chosen)
        if memory == "host" and array.ndim and chosen.random() < 0.5:
            array = array[::-1]
        view = cd.view(array) if memory == "host" else on_device(lazy, array, stream, False)
        length = chosen.choice((None, array.itemsize))
        rows, kind, owner = nixl.rows(view, length)
        read = ctypes.string_at if memory == "host" else lazy.read
        assert b"".join(read(int(row[0]), int(row[1])) for row in rows) == array.tobytes()
        assert kind == ("DRAM" if memory == "host" else "VRAM") and owner.ptr == view.ptr
        assert rows.dtype == np.uint64 and rows.shape[1] == 3


def test_memory_in_one_piece_is_one_row_and_lengths_must_divide_it() -> None:
    view = cd.view(np.zeros((4, 6), np.float32))
    assert nixl.rows(view).rows.tolist() == [[view.ptr, 96, 0]]
    assert len(nixl.rows(cd.view(np.zeros((4, 6))[:, :3])).rows) == 4
    assert nixl.rows(view, 48).rows[:, 1].tolist() == [48, 48]
    for length in (0, -4, 7):
        with pytest.raises(ValueError, match="length"):
            nixl.rows(view, length)


def test_memory_of_another_device_is_refused_by_rule(lazy: Machine) -> None:
    data = lazy.device_memory(32)
    view = cd.view(abi.make((4,), dtype=(2, 64, 1), device=(10, 0), data=data).capsule())
    with pytest.raises(cd.Refusal) as refused:
        nixl.rows(view)
    assert refused.value.rule == "copy-refused"


def test_two_agents_move_an_array_with_gaps() -> None:
    from nixl_cu12._api import nixl_agent

    sent, received = np.arange(48.0).reshape(6, 8)[:, :4], np.zeros((6, 4))
    one, other = nixl_agent("one"), nixl_agent("other")
    source = nixl.rows(cd.view(sent))
    # Both sides have rows of one length.
    target = nixl.rows(cd.view(received), length=int(source.rows[0, 1]))
    registered: list[tuple[Any, Any]] = [
        (agent, agent.register_memory(found.rows, found.memory)) for agent, found in ((one, source), (other, target))
    ]
    name = one.add_remote_agent(other.get_agent_metadata())
    descriptors = [one.get_xfer_descs(found.rows, found.memory) for found in (source, target)]
    handle = one.initialize_xfer("WRITE", *descriptors, name, b"")
    state = one.transfer(handle)
    while state == "PROC":
        state = one.check_xfer_state(handle)
    assert state == "DONE" and np.array_equal(received, sent)
    one.release_xfer_handle(handle)
    for agent, held in registered:
        agent.deregister_memory(held)
