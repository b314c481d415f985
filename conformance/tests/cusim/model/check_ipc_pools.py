"""Memory pools between processes: handles, pointers, and what is left when one side frees or ends."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from cai_conformance import Sim

from conformance.tests.cusim.model.check_memory import code_of
from conformance.tests.cusim.model.driver import Driver
from conformance.tests.cusim.model.other import Other

INVALID_VALUE, INVALID_DEVICE, MAP_FAILED, INVALID_HANDLE, ILLEGAL_ADDRESS, NOT_SUPPORTED = 1, 101, 205, 400, 700, 801
IPC_CAPABLE, ALLOWED_HANDLE_TYPES, MEMPOOL_HANDLE = 10, 14, 17


@pytest.fixture(scope="module")
def other() -> Iterator[Other]:
    """A process for the tests that do not end it."""
    with Other() as started:
        yield started


def given(maker: Driver, taker: Other, pool: int, process: int) -> int:
    """The pool as another process knows it."""
    descriptor = maker.export_pool(pool)
    there = taker.sim.take_descriptor(process, descriptor)
    imported: int = taker.cu.import_pool(there)
    taker.sim.close_descriptor(there)
    if process == os.getpid():
        os.close(descriptor)
    return imported


@pytest.fixture
def pool(cu: Driver) -> Iterator[int]:
    made = cu.create_pool()
    yield made
    cu.destroy_pool(made)


@pytest.fixture
def stream(cu: Driver, sim: Sim) -> Iterator[int]:
    made = cu.stream()
    yield made
    sim.open_gates()
    cu.wait_for(made)
    cu.destroy_stream(made)


def test_both_processes_see_one_memory(cu: Driver, other: Other, sim: Sim, pool: int, stream: int) -> None:
    there = given(cu, other, pool, os.getpid())
    memory = cu.alloc_from_pool(100, pool, stream)
    sim.store(stream, memory, b"before")
    cu.wait_for(stream)
    mapped = other.cu.import_pointer(there, cu.export_pointer(memory))
    assert other.cu.read(mapped, 6) == b"before"
    other.cu.write(mapped + 94, b"after!")
    other.cu.synchronize()
    assert sim.peek(memory + 94, 6) == b"after!"
    other.cu.free(mapped)
    other.cu.destroy_pool(there)
    cu.free_async(memory, stream)


def test_what_the_attributes_tell(cu: Driver, other: Other, pool: int, stream: int) -> None:
    there = given(cu, other, pool, os.getpid())
    memory = cu.alloc_from_pool(64, pool, stream)
    cu.wait_for(stream)
    mapped = other.cu.import_pointer(there, cu.export_pointer(memory))
    for process, address, handle in ((cu, memory, pool), (other.cu, mapped, there)):
        assert process.attribute(IPC_CAPABLE, address) & 0xFFFFFFFF == 0
        assert process.attribute(ALLOWED_HANDLE_TYPES, address) == 1
        assert process.attribute(MEMPOOL_HANDLE, address) == handle
        assert process.attribute(12, address) == 64
    other.cu.free(mapped)
    other.cu.destroy_pool(there)
    cu.free_async(memory, stream)


def test_memory_that_is_not_allocated_yet_must_not_be_touched(cu: Driver, sim: Sim, pool: int, stream: int) -> None:
    """ "The imported memory must not be accessed before the allocation operation completes"."""
    with Other() as early, Other() as late:
        pools = [given(cu, process, pool, os.getpid()) for process in (early, late)]
        gate = sim.gate(stream)
        memory = cu.alloc_from_pool(64, pool, stream)
        data = cu.export_pointer(memory)
        mapped = [process.cu.import_pointer(known, data) for process, known in zip((early, late), pools, strict=True)]
        assert code_of(cu, early.cu.read, mapped[0], 1) == ILLEGAL_ADDRESS
        gate.open()
        cu.wait_for(stream)
        assert late.cu.read(mapped[1], 1) == b"\xa5"
    cu.free_async(memory, stream)


def test_only_pools_with_the_handle_type_and_their_memory_are_exported(cu: Driver, other: Other, stream: int) -> None:
    plain, exportable = cu.create_pool(handle_types=0), cu.create_pool()
    memory, legacy = cu.alloc_from_pool(64, plain, stream), cu.alloc(64)
    mine = cu.alloc_from_pool(64, exportable, stream)
    assert code_of(cu, cu.export_pool, plain) == INVALID_VALUE
    assert code_of(cu, cu.export_pool, exportable, 8) == INVALID_VALUE
    assert code_of(cu, cu.create_pool, 0, 8) == NOT_SUPPORTED, "fabric handles"
    for address in (memory, legacy, mine + 8):
        assert code_of(cu, cu.export_pointer, address) == INVALID_VALUE
    assert code_of(cu, cu.ipc_memory, mine) == INVALID_VALUE, "it is no memory of cuMemAlloc"
    there = given(cu, other, exportable, os.getpid())
    assert code_of(cu, other.cu.export_pool, there) == INVALID_VALUE, "imported"
    assert code_of(cu, other.cu.alloc_from_pool, 64, there, 0) == INVALID_VALUE, "imported"
    assert code_of(cu, other.cu.set_pool, 0, there) == INVALID_VALUE, "imported"
    other.cu.destroy_pool(there)
    for address in (memory, mine):
        cu.free_async(address, stream)
    cu.free(legacy)
    cu.wait_for(stream)
    cu.destroy_pool(plain)
    cu.destroy_pool(exportable)


def test_what_cannot_be_imported(cu: Driver, other: Other, pool: int, stream: int) -> None:
    second = cu.create_pool()
    there, wrong = given(cu, other, pool, os.getpid()), given(cu, other, second, os.getpid())
    memory = cu.alloc_from_pool(64, pool, stream)
    cu.wait_for(stream)
    data = cu.export_pointer(memory)
    assert code_of(cu, other.cu.import_pointer, wrong, data) == INVALID_VALUE, "another pool's"
    assert code_of(cu, other.cu.import_pointer, there, bytes(64)) == INVALID_VALUE
    assert code_of(cu, cu.import_pointer, pool, data) == INVALID_VALUE, "not an imported pool"
    assert code_of(cu, other.cu.ipc_open, data) == INVALID_HANDLE
    with open("/dev/null") as nothing:
        assert code_of(cu, cu.import_pool, nothing.fileno()) == INVALID_VALUE
    assert code_of(cu, cu.import_pool, 1 << 20) == INVALID_VALUE, "no descriptor"
    cu.free_async(memory, stream)
    cu.wait_for(stream)
    assert code_of(cu, other.cu.import_pointer, there, data) == MAP_FAILED, "freed"
    for imported in (there, wrong):
        other.cu.destroy_pool(imported)
    cu.destroy_pool(second)


def test_the_first_free_ends_a_pointer_that_was_imported_twice(
    cu: Driver, other: Other, pool: int, stream: int
) -> None:
    """A known defect of drivers (5570902), which a program has to know."""
    there = given(cu, other, pool, os.getpid())
    memory = cu.alloc_from_pool(64, pool, stream)
    cu.wait_for(stream)
    data = cu.export_pointer(memory)
    first, second = other.cu.import_pointer(there, data), other.cu.import_pointer(there, data)
    assert first == second
    other.cu.free(first)
    assert code_of(cu, other.cu.free, second) == INVALID_VALUE
    again = other.cu.import_pointer(there, data)
    assert other.cu.read(again, 1)
    other.cu.free(again)
    other.cu.destroy_pool(there)
    cu.free_async(memory, stream)


@pytest.mark.parametrize("end", ["free", "kill"])
def test_memory_whose_exporter_has_freed_it_or_ended_is_an_illegal_address(cu: Driver, end: str) -> None:
    with Other() as maker, Other() as taker:
        pool = maker.cu.create_pool()
        memory = maker.cu.alloc_from_pool(64, pool, 0)
        maker.cu.synchronize()
        there = given(maker.cu, taker, pool, maker.process.pid)
        mapped = taker.cu.import_pointer(there, maker.cu.export_pointer(memory))
        assert taker.cu.read(mapped, 1)
        maker.cu.free(memory) if end == "free" else maker.kill()
        assert code_of(cu, taker.cu.read, mapped, 1) == ILLEGAL_ADDRESS


def test_a_free_over_there_is_ordered_by_its_stream(cu: Driver, other: Other, pool: int, stream: int) -> None:
    there = given(cu, other, pool, os.getpid())
    memory = cu.alloc_from_pool(64, pool, stream)
    cu.wait_for(stream)
    mapped, theirs, out = (
        other.cu.import_pointer(there, cu.export_pointer(memory)),
        other.cu.stream(),
        other.cu.alloc(8),
    )
    other.cu.copy_async(out, mapped, 8, theirs)
    other.cu.free_async(mapped, theirs)
    other.cu.wait_for(theirs)
    assert other.cu.read(out, 8) == b"\xa5" * 8
    assert code_of(cu, other.cu.free, mapped) == INVALID_VALUE
    other.cu.free(out)
    other.cu.destroy_stream(theirs)
    other.cu.destroy_pool(there)
    cu.free_async(memory, stream)


# --- which devices reach a pool ---

NONE, READ_WRITE = 0, 3


def primary(cu: Driver, device: int) -> int:
    context = cu.retain(device)
    cu("cuDevicePrimaryCtxRelease_v2", device)
    return context


@pytest.fixture
def on_two_devices(cu: Driver, sim: Sim) -> Iterator[tuple[int, int]]:
    """A pool of device 0 and memory of it; the current context is of device 1."""
    first, second = (primary(cu, device) for device in (0, 1))
    pool = cu.create_pool()
    stream = cu.stream()
    memory = cu.alloc_from_pool(64, pool, stream)
    cu.wait_for(stream)
    cu.set_current(second)
    yield pool, memory
    cu.set_current(first)
    cu.free_async(memory, stream)
    cu.wait_for(stream)
    cu.destroy_stream(stream)
    cu.destroy_pool(pool)


def test_another_device_reaches_a_pool_that_was_granted_to_it_alone(
    cu: Driver, on_two_devices: tuple[int, int]
) -> None:
    pool, memory = on_two_devices
    stream, own = cu.stream(), cu.alloc(64)
    reading = (cu.copy_async, own, memory, 64, stream)
    writing = (cu.fill_async, memory, 1, 64, stream)
    assert (cu.pool_access(pool, 0), cu.pool_access(pool, 1)) == (READ_WRITE, NONE)
    assert code_of(cu, *reading) == code_of(cu, *writing) == INVALID_VALUE
    cu.set_pool_access(pool, {1: READ_WRITE})
    assert cu.pool_access(pool, 1) == READ_WRITE
    cu.fill_async(memory, 1, 64, stream)
    cu.copy_async(own, memory, 64, stream)
    cu.wait_for(stream)
    assert cu.read(own, 64) == b"\1" * 64
    cu.set_pool_access(pool, {1: NONE})
    assert code_of(cu, *reading) == INVALID_VALUE
    cu.free(own)
    cu.destroy_stream(stream)


def test_a_copy_between_contexts_needs_no_access(cu: Driver, on_two_devices: tuple[int, int]) -> None:
    _, memory = on_two_devices
    own = cu.alloc(64)
    cu.copy_between(own, cu.current(), memory, primary(cu, 0), 64)
    assert cu.read(own, 64) == b"\xa5" * 64
    cu.free(own)


def test_a_pool_under_the_handle_of_one_that_is_gone_refuses_nothing_of_that(cu: Driver, sim: Sim) -> None:
    before = sim.get("reuse")
    sim.set("reuse", 1)
    cu.set_current(primary(cu, 0))
    gone, stream = cu.create_pool(), cu.stream()
    memory = cu.alloc_from_pool(64, gone, stream)
    cu.destroy_pool(gone)
    other = cu.create_pool(1)
    assert other == gone
    cu.fill_async(memory, 1, 64, stream)
    cu.free_async(memory, stream)
    cu.wait_for(stream)
    cu.destroy_stream(stream)
    cu.destroy_pool(other)
    sim.set("reuse", before)


def test_grants_are_made_together_or_not_at_all(cu: Driver, on_two_devices: tuple[int, int]) -> None:
    pool, _ = on_two_devices
    assert code_of(cu, cu.set_pool_access, pool, {1: READ_WRITE, 0: NONE}) == INVALID_VALUE, "its own device's"
    assert code_of(cu, cu.set_pool_access, pool, {1: READ_WRITE, 9: NONE}) == INVALID_DEVICE
    assert code_of(cu, cu.set_pool_access, pool, {1: 1}) == NOT_SUPPORTED, "reading alone"
    assert cu.pool_access(pool, 1) == NONE


def test_an_imported_pool_has_grants_of_its_own(cu: Driver, other: Other, pool: int) -> None:
    cu.set_pool_access(pool, {1: READ_WRITE})
    there = given(cu, other, pool, os.getpid())
    assert other.cu.pool_access(there, 1) == NONE
    other.cu.set_pool_access(there, {1: READ_WRITE})
    cu.set_pool_access(pool, {1: NONE})
    assert other.cu.pool_access(there, 1) == READ_WRITE
    other.cu.destroy_pool(there)
