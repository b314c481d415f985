"""Memory between processes: what cuIpc* map, how often, for how long, and what they refuse."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import byref, c_uint64

import pytest
from cai_conformance import Sim

from conformance.tests.cusim.model.check_memory import code_of
from conformance.tests.cusim.model.driver import Driver
from conformance.tests.cusim.model.other import Other

INVALID_VALUE, INVALID_CONTEXT, MAP_FAILED, INVALID_HANDLE, ILLEGAL_ADDRESS = 1, 201, 205, 400, 700
IPC_CAPABLE, ALLOWED_HANDLE_TYPES, MEMPOOL_HANDLE = 10, 14, 17


@pytest.fixture(scope="module")
def other() -> Iterator[Other]:
    """A process for the tests that do not end it."""
    with Other() as started:
        yield started


def test_both_processes_see_one_memory(cu: Driver, other: Other) -> None:
    memory = cu.alloc(1 << 20)
    cu.write(memory, b"before")
    cu.synchronize()
    there = other.cu.ipc_open(cu.ipc_memory(memory))
    assert other.cu.read(there, 6) == b"before"
    other.cu.write(there + (1 << 20) - 4, b"back")
    other.cu.synchronize()
    assert cu.read(memory + (1 << 20) - 4, 4) == b"back"
    cu.write(memory, b"after!")
    cu.synchronize()
    assert other.cu.read(there, 6) == b"after!"
    other.cu.ipc_close(there)
    cu.free(memory)


def test_exporting_moves_neither_the_address_nor_the_bytes(cu: Driver, sim: Sim) -> None:
    memory = cu.alloc(3 << 20)
    sim.poke(memory + 4095, b"over the end of a page")
    cu.ipc_memory(memory)
    assert sim.peek(memory + 4095, 22) == b"over the end of a page"
    assert sim.peek(memory, 64) == b"\xa5" * 64 and sim.peek(memory + (2 << 20), 64) == bytes(64)
    cu.free(memory)


def test_what_the_exporter_does_later_happens_to_the_shared_bytes(cu: Driver, other: Other, sim: Sim) -> None:
    """Work that was enqueued before the export too: it is not waited for."""
    stream, memory = cu.stream(), cu.alloc(4)
    cu.write(memory, b"old!")
    cu.synchronize()
    gate = sim.gate(stream)
    sim.store(stream, memory, b"new!")
    there = other.cu.ipc_open(cu.ipc_memory(memory))
    assert other.cu.read(there, 4) == b"old!"
    gate.open()
    cu.wait_for(stream)
    assert other.cu.read(there, 4) == b"new!"
    other.cu.ipc_close(there)
    cu.destroy_stream(stream)
    cu.free(memory)


def test_an_export_loses_nothing_of_what_runs_meanwhile(cu: Driver, sim: Sim) -> None:
    stream, nbytes = cu.stream(), 1 << 18
    for value in range(60):
        memory = cu.alloc(nbytes)
        for step in range(4):
            cu.fill_async(memory, (value + step) % 256, nbytes, stream)
        cu.ipc_memory(memory)
        cu.wait_for(stream)
        assert sim.peek(memory, nbytes) == bytes([(value + 3) % 256]) * nbytes
        cu.free(memory)
    cu.destroy_stream(stream)


def test_a_handle_names_the_allocation_whichever_address_it_was_asked_for(cu: Driver, other: Other) -> None:
    memory = cu.alloc(64)
    cu.write(memory, bytes(range(64)))
    cu.synchronize()
    handle = cu.ipc_memory(memory + 40)
    assert handle == cu.ipc_memory(memory)
    there = other.cu.ipc_open(handle)
    assert other.cu.read(there, 64) == bytes(range(64))
    assert other.cu.attribute(11, there + 40) == there and other.cu.attribute(12, there) == 64
    other.cu.ipc_close(there)
    cu.free(memory)


def test_opening_twice_counts_and_the_last_close_unmaps(cu: Driver, other: Other) -> None:
    memory = cu.alloc(4)
    cu.write(memory, b"data")
    cu.synchronize()
    handle = cu.ipc_memory(memory)
    live = other.sim.live().allocations
    first, second = other.cu.ipc_open(handle), other.cu.ipc_open(handle)
    assert first == second and other.sim.live().allocations == live + 1
    other.cu.ipc_close(first)
    assert other.cu.read(first, 4) == b"data"
    other.cu.ipc_close(first)
    assert other.sim.live().allocations == live
    assert code_of(cu, other.cu.ipc_close, first) == INVALID_VALUE
    assert code_of(cu, other.cu.read, first, 4) == INVALID_VALUE
    cu.free(memory)


def test_memory_that_other_processes_have_opened_stays_theirs_when_one_closes(cu: Driver, other: Other) -> None:
    memory = cu.alloc(4)
    cu.write(memory, b"data")
    cu.synchronize()
    handle = cu.ipc_memory(memory)
    with Other() as third:
        here, there = third.cu.ipc_open(handle), other.cu.ipc_open(handle)
        third.cu.ipc_close(here)
        assert other.cu.read(there, 4) == b"data" == cu.read(memory, 4)
        other.cu.ipc_close(there)
    cu.free(memory)


@pytest.mark.parametrize("free", ["cuMemFree_v2", "cuMemFreeAsync"])
def test_opened_memory_is_closed_and_not_freed(cu: Driver, free: str) -> None:
    with Other() as other:
        memory = cu.ipc_open(other.cu.ipc_memory(other.cu.alloc(4)))
        assert cu.code(free, c_uint64(memory), ctypes.c_void_p(0)) == INVALID_VALUE
        cu.ipc_close(memory)


def test_what_cannot_be_opened(cu: Driver, other: Other) -> None:
    memory = cu.alloc(8)
    handle = cu.ipc_memory(memory)
    assert code_of(cu, cu.ipc_open, handle) == INVALID_CONTEXT, "in the exporting process"
    assert code_of(cu, other.cu.ipc_open, handle, 0) == INVALID_VALUE, "without LAZY_ENABLE_PEER_ACCESS"
    assert code_of(cu, other.cu.ipc_open, bytes(64)) == INVALID_HANDLE
    assert code_of(cu, other.cu.ipc_open, handle[:9] + b"\x00\x01" + handle[11:]) == INVALID_HANDLE, "another machine"
    cu.free(memory)
    assert code_of(cu, other.cu.ipc_open, handle) == MAP_FAILED, "freed"


def test_a_new_allocation_at_the_same_address_has_another_handle(cu: Driver, other: Other) -> None:
    first = cu.alloc(64)
    handle = cu.ipc_memory(first)
    cu.free(first)
    second = cu.alloc(64)
    assert cu.ipc_memory(second) != handle
    assert code_of(cu, other.cu.ipc_open, handle) == MAP_FAILED
    cu.free(second)


def test_only_memory_of_cumemalloc_is_capable(cu: Driver, other: Other) -> None:
    stream, block = cu.stream(), ctypes.create_string_buffer(8192)
    pitched, pitch = c_uint64(), ctypes.c_size_t()
    cu("cuMemAllocPitch_v2", byref(pitched), byref(pitch), ctypes.c_size_t(10), ctypes.c_size_t(3), 4)
    registered = -(-ctypes.addressof(block) // 4096) * 4096
    cu("cuMemHostRegister_v2", ctypes.c_void_p(registered), ctypes.c_size_t(4096), 0)
    plain, managed, pinned, ordered = cu.alloc(8), cu.alloc_managed(8), cu.alloc_host(8), cu.alloc_async(8, stream)
    opened = cu.ipc_open(other.cu.ipc_memory(theirs := other.cu.alloc(8)))
    capable = {plain: 1, pitched.value: 1, managed: 0, pinned: 0, registered: 0, ordered: 0, opened: 0}
    for address, expected in capable.items():
        assert cu.attribute(IPC_CAPABLE, address, ctypes.c_uint) == expected
        assert code_of(cu, cu.ipc_memory, address) == (0 if expected else INVALID_VALUE)
        assert (cu.attribute(MEMPOOL_HANDLE, address) != 0) == (address == ordered)
        assert cu.attribute(ALLOWED_HANDLE_TYPES, address) == 0
    assert code_of(cu, cu.ipc_memory, 0x1234) == INVALID_VALUE
    cu.ipc_close(opened)
    other.cu.free(theirs)
    cu("cuMemHostUnregister", ctypes.c_void_p(registered))
    cu.free_async(ordered, stream)
    for address in (plain, pitched.value, managed):
        cu.free(address)
    cu.free_host(pinned)
    cu.wait_for(stream)
    cu.destroy_stream(stream)


def test_opened_memory_is_memory_of_the_exporters_device_and_of_this_context(cu: Driver, other: Other) -> None:
    context, theirs = cu.current(), other.cu.retain(1)
    other.cu.set_current(theirs)
    memory = cu.ipc_open(other.cu.ipc_memory(there := other.cu.alloc(24)))
    wanted = {1: c_uint64, 2: ctypes.c_uint, 9: ctypes.c_int, 12: c_uint64}
    assert cu.attributes(memory, wanted) == {1: context, 2: 2, 9: 1, 12: 24}
    cu.ipc_close(memory)
    other.cu.free(there)
    other.cu.set_current(other.cu.retain(0))


def test_one_context_of_a_device_opens_what_one_process_has_on_one(cu: Driver, other: Other) -> None:
    theirs = [other.cu.alloc(8), other.cu.alloc(8)]
    handles = [other.cu.ipc_memory(address) for address in theirs]
    first = cu.ipc_open(handles[0])
    second = cu.create_context(0)
    assert code_of(cu, cu.ipc_open, handles[1]) == INVALID_CONTEXT
    cu.pop()
    cu.ipc_close(first)
    with cu.on(second):
        opened = cu.ipc_open(handles[1])
        assert cu.read(opened, 1)
    cu("cuCtxDestroy_v2", ctypes.c_void_p(second))
    assert code_of(cu, cu.read, opened, 1) == INVALID_VALUE, "its context has ended"
    for address in theirs:
        other.cu.free(address)


def test_the_last_close_waits_for_the_work_as_a_free_does(cu: Driver, other: Other, sim: Sim) -> None:
    theirs = other.cu.alloc(8)
    there = cu.ipc_open(other.cu.ipc_memory(theirs))
    stream, out = cu.stream(), cu.alloc(8)
    cu.copy_async(out, there, 8, stream)
    cu.ipc_close(there)
    assert sim.pending(stream) == 0 and sim.peek(out, 8) == b"\xa5" * 8
    assert code_of(cu, cu.fill_async, there, 0, 8, stream) == INVALID_VALUE
    cu.destroy_stream(stream)
    cu.free(out)
    other.cu.free(theirs)


@pytest.mark.parametrize("end", ["free", "kill"])
def test_memory_whose_exporter_has_freed_it_or_ended_is_an_illegal_address(cu: Driver, end: str) -> None:
    with Other() as other, Other() as importer:
        memory = other.cu.alloc(8)
        handle = other.cu.ipc_memory(memory)
        there = importer.cu.ipc_open(handle)
        assert importer.cu.read(there, 8)
        other.cu.free(memory) if end == "free" else other.kill()
        assert code_of(cu, importer.cu.read, there, 8) == ILLEGAL_ADDRESS
    assert code_of(cu, cu.ipc_open, handle) == MAP_FAILED


def test_an_exporter_does_not_notice_the_death_of_importers(cu: Driver) -> None:
    memory = cu.alloc(8)
    with Other() as other:
        there = other.cu.ipc_open(cu.ipc_memory(memory))
        other.cu.write(there, b"12345678")
        other.cu.synchronize()
        other.kill()
    assert cu.read(memory, 8) == b"12345678"
    cu.write(memory, b"87654321")
    assert cu.read(memory, 8) == b"87654321"
    cu.free(memory)


def test_uuids_are_the_same_in_every_process_and_follow_the_visible_devices(cu: Driver) -> None:
    here = [cu.uuid(device) for device in (0, 1)]
    with Other(CUDA_VISIBLE_DEVICES="1,0") as other:
        assert [other.cu.uuid(device) for device in (0, 1)] == here[::-1]
        memory = cu.alloc(8)
        there = other.cu.ipc_open(cu.ipc_memory(memory))
        assert other.cu.attribute(9, there, ctypes.c_int) == 1, "device 0 here is device 1 there"
        cu.free(memory)
