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

from conformance.tests.expectations.refusal import refuse
from conformance.tests.reach.arrays import drawn, lazy, on_device
from conformance.tests.reach.page import stated
from conformance.tests.simulated.machine import Machine

__all__ = ["lazy"]


def read(machine: Machine, memory: str, address: int, nbytes: int) -> bytes:
    return ctypes.string_at(address, nbytes) if memory == "host" else machine.read(address, nbytes)


def drawn_view(machine: Machine, chosen: random.Random, memory: str, stream: int) -> tuple[np.ndarray[Any, Any], Any]:
    """An array, and a view of it in this memory, which the stream has still to write."""
    array = drawn(chosen)
    if memory == "host" and array.ndim and chosen.random() < 0.5:
        array = array[::-1]
    return array, cd.view(array) if memory == "host" else on_device(machine, array, stream, False)


@pytest.mark.parametrize("memory", ["host", "device"])
def test_the_rows_hold_the_elements_in_c_order_and_they_are_ready(lazy: Machine, memory: str) -> None:
    chosen, stream = random.Random(memory), lazy.stream()
    for _ in range(300):
        array, view = drawn_view(lazy, chosen, memory, stream)
        length = chosen.choice((None, array.itemsize))
        rows, kind, owner = nixl.rows(view, length)
        assert b"".join(read(lazy, memory, int(row[0]), int(row[1])) for row in rows) == array.tobytes()
        assert kind == ("DRAM" if memory == "host" else "VRAM") and owner.ptr == view.ptr
        assert rows.dtype == np.uint64 and rows.shape[1] == 3


@pytest.mark.parametrize("memory", ["host", "device"])
def test_strided_rows_are_the_same_pieces_within_the_memory_to_register(lazy: Machine, memory: str) -> None:
    chosen, stream = random.Random(f"strided {memory}"), lazy.stream()
    fewer = 0
    for _ in range(300):
        array, view = drawn_view(lazy, chosen, memory, stream)
        length = chosen.choice((None, array.itemsize))
        rows, kind, owner, span = nixl.strided_rows(view, length)
        content = b"".join(read(lazy, memory, at, int(row[1])) for row in rows for at in pieces(row))
        assert content == array.tobytes()
        plain = nixl.rows(view, length)
        expanded = [[at, int(row[1]), int(row[2])] for row in rows for at in pieces(row)]
        assert expanded == plain.rows.tolist() and (kind, owner.ptr) == (plain.memory, view.ptr)
        assert rows.dtype == np.uint64 and rows.shape[1] == 5 and (rows[:, 3] >= rows[:, 1]).all()
        ends = [[at, at + nbytes] for at, nbytes, _ in expanded]
        covered = [[min(map(min, ends)), max(map(max, ends)) - min(map(min, ends)), 0]] if ends else []
        assert span.tolist() == covered
        fewer += len(rows) < len(plain.rows)
    assert fewer > 30


def pieces(row: Any) -> range:
    """The addresses of the pieces of a strided row."""
    address, _, _, distance, number = map(int, row)
    return range(address, address + number * distance, distance)


def test_memory_in_one_piece_is_one_row_and_lengths_must_divide_it() -> None:
    view = cd.view(np.zeros((4, 6), np.float32))
    assert nixl.rows(view).rows.tolist() == [[view.ptr, 96, 0]]
    assert len(nixl.rows(cd.view(np.zeros((4, 6))[:, :3])).rows) == 4
    assert nixl.rows(view, 48).rows[:, 1].tolist() == [48, 48]
    assert nixl.strided_rows(view, 48).rows.tolist() == [[view.ptr, 48, 0, 48, 2]]


def test_axes_that_are_one_are_one_strided_row_and_windows_are_not() -> None:
    parts = cd.view(np.zeros((3, 2, 8))[:, :, :3])
    assert nixl.strided_rows(parts).rows.tolist() == [[parts.ptr, 24, 0, 64, 6]]
    windows = cd.view(np.lib.stride_tricks.sliding_window_view(np.zeros(6), 2))
    assert nixl.strided_rows(windows, 8).rows[:, 3:].tolist() == [[8, 2]] * 5


@pytest.mark.parametrize("make", [nixl.rows, nixl.strided_rows])
@pytest.mark.parametrize(
    ("length", "kind", "rule"),
    [
        (0, BufferError, "shape-override"),
        (7, BufferError, "shape-override"),
        (192, BufferError, "shape-override"),
        (-4, ValueError, "shape-extent"),
        (48.5, TypeError, "argument-type"),
    ],
)
def test_a_wrong_length_is_refused_by_rule(make: Any, length: Any, kind: type[Exception], rule: str) -> None:
    for array in (np.zeros((4, 6), np.float32), np.zeros((4, 12))[:, ::2], np.zeros((4, 8))[:, :6]):
        refused = refuse(lambda array=array: make(cd.view(array), length), kind)  # type: ignore[misc]
        assert refused.rule == rule and str(length) in refused.message


def test_memory_of_another_device_is_refused_by_rule(lazy: Machine) -> None:
    data = lazy.device_memory(32)
    view = cd.view(abi.make((4,), dtype=(2, 64, 1), device=(10, 0), data=data).capsule())
    with pytest.raises(cd.Refusal) as refused:
        nixl.rows(view)
    assert refused.value.rule == "copy-refused"


@pytest.fixture
def agents() -> tuple[Any, Any]:
    from nixl_cu12._api import nixl_agent

    return nixl_agent("one"), nixl_agent("other")


def done(agent: Any, handle: Any) -> bool:
    """Whether a transfer ends well."""
    state = agent.transfer(handle)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    agent.release_xfer_handle(handle)
    return bool(state == "DONE")


def test_two_agents_move_an_array_with_gaps(agents: tuple[Any, Any]) -> None:
    one, other = agents
    sent, received = np.arange(48.0).reshape(6, 8)[:, :4], np.zeros((6, 4))
    source = nixl.rows(cd.view(sent))
    # Both sides have rows of one length.
    target = nixl.rows(cd.view(received), length=int(source.rows[0, 1]))
    registered: list[tuple[Any, Any]] = [
        (agent, agent.register_memory(found.rows, found.memory)) for agent, found in ((one, source), (other, target))
    ]
    name = one.add_remote_agent(other.get_agent_metadata())
    descriptors = [one.get_xfer_descs(found.rows, found.memory) for found in (source, target)]
    assert done(one, one.initialize_xfer("WRITE", *descriptors, name, b"")) and np.array_equal(received, sent)
    for agent, held in registered:
        agent.deregister_memory(held)


@pytest.mark.parametrize("make", [nixl.rows, nixl.strided_rows])
def test_what_is_sent_is_read_of_the_view_and_written_to_the_other(agents: tuple[Any, Any], make: Any) -> None:
    """No end has a copy: a value that changes after the rows were made arrives, and it arrives where the view lies."""
    one, other = agents
    sent, received = np.zeros(8), np.zeros(8)
    source, target = make(cd.view(sent)), make(cd.view(received))
    assert stated("nixl", "host") == (0, 0)
    assert [int(found.rows[0, 0]) for found in (source, target)] == [sent.ctypes.data, received.ctypes.data]
    whole = [np.array([[array.ctypes.data, array.nbytes, 0]], np.uint64) for array in (sent, received)]
    held = [agent.register_memory(rows, "DRAM") for agent, rows in zip(agents, whole, strict=True)]
    name = one.add_remote_agent(other.get_agent_metadata())
    sent[:] = np.arange(8.0)
    sides = [one.get_xfer_descs(found.rows[:, :3], "DRAM") for found in (source, target)]
    assert done(one, one.initialize_xfer("WRITE", *sides, name, b"")) and np.array_equal(received, sent)
    for agent, registered in zip(agents, held, strict=True):
        agent.deregister_memory(registered)


@pytest.mark.parametrize(
    "part",
    [
        lambda whole: whole[:, :4],
        lambda whole: whole[::2],
        lambda whole: whole.T,
        lambda whole: whole[::-1, 2:4],
        lambda whole: whole.reshape(3, 2, 8)[:, :, 1::3],
        lambda whole: whole,
    ],
)
def test_two_agents_move_an_array_by_strided_rows(agents: tuple[Any, Any], part: Any) -> None:
    one, other = agents
    sent, whole = part(np.arange(48.0).reshape(6, 8)), np.zeros((6, 8))
    received = part(whole)
    source, target = (nixl.strided_rows(cd.view(array), 8) for array in (sent, received))
    number = int(source.rows[:, 4].sum())
    assert number == int(target.rows[:, 4].sum()) == sent.size
    registered: list[tuple[Any, Any]] = [
        (agent, agent.register_memory(found.span, found.memory)) for agent, found in ((one, source), (other, target))
    ]
    name = one.add_remote_agent(other.get_agent_metadata())
    sides = [one.prep_xfer_dlist(agent, found.rows, found.memory) for agent, found in (("", source), (name, target))]
    every = np.arange(number, dtype=np.int32)
    assert done(one, one.make_prepped_xfer("WRITE", sides[0], every, sides[1], every))
    assert np.array_equal(received, sent) and np.count_nonzero(whole) == np.count_nonzero(sent)
    for side in sides:
        one.release_dlist_handle(side)
    for agent, held in registered:
        agent.deregister_memory(held)
