"""Memory: what is given out, when copies make the host wait, what work may touch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p

import pytest
from cai_conformance import Sim

from conformance.tests.cusim.model.driver import Driver, Refused

INVALID_VALUE, OUT_OF_MEMORY, ILLEGAL_ADDRESS = 1, 2, 700


def code_of(cu: Driver, act: object, *arguments: object) -> int:
    """The CUresult that a method of the driver is refused with; 0 if it is not."""
    try:
        act(*arguments)  # type: ignore[operator]
    except Refused as refused:
        return refused.code
    return 0


def test_bytes_go_there_and_back(cu: Driver) -> None:
    memory = cu.alloc(1000)
    data = bytes(range(250)) * 4
    cu.write(memory, data)
    assert cu.read(memory, 1000) == data
    assert cu.read(memory + 10, 5) == data[10:15]
    cu.free(memory)


def test_fresh_memory_is_not_zero(cu: Driver, sim: Sim) -> None:
    memory = cu.alloc(64)
    assert sim.peek(memory, 64) == b"\xa5" * 64
    cu.free(memory)


def test_sizes_and_addresses_are_checked(cu: Driver) -> None:
    assert code_of(cu, cu.alloc, 0) == INVALID_VALUE
    assert code_of(cu, cu.alloc, 1 << 60) == OUT_OF_MEMORY
    memory = cu.alloc(64)
    assert code_of(cu, cu.write, memory, b"x" * 65) == INVALID_VALUE
    assert code_of(cu, cu.read, memory + 60, 5) == INVALID_VALUE
    assert code_of(cu, cu.free, memory + 8) == INVALID_VALUE
    cu.free(memory)
    assert code_of(cu, cu.free, memory) == INVALID_VALUE
    assert code_of(cu, cu.write, memory, b"x") == INVALID_VALUE
    assert code_of(cu, cu.free, 0) == 0


def test_used_memory_is_counted(cu: Driver) -> None:
    def free() -> int:
        left, total = c_size_t(), c_size_t()
        cu("cuMemGetInfo_v2", byref(left), byref(total))
        return left.value

    before = free()
    memory = cu.alloc(1 << 20)
    assert free() == before - (1 << 20)
    cu.free(memory)
    assert free() == before


def test_a_pageable_source_may_change_when_the_call_returns(cu: Driver, sim: Sim) -> None:
    stream, memory = cu.stream(), cu.alloc(4)
    gate = sim.gate(stream)
    source = ctypes.create_string_buffer(b"good")
    cu.write_async(memory, source, 4, stream)
    source.raw = b"evil!"
    gate.open()
    cu.wait_for(stream)
    assert sim.peek(memory, 4) == b"good"
    cu.free(memory)
    cu.destroy_stream(stream)


def test_a_pinned_source_is_read_when_the_copy_runs(cu: Driver, sim: Sim) -> None:
    stream, memory, source = cu.stream(), cu.alloc(4), cu.alloc_host(4)
    ctypes.memmove(source, b"good", 4)
    gate = sim.gate(stream)
    cu.write_async(memory, c_void_p(source), 4, stream)
    ctypes.memmove(source, b"evil", 4)
    gate.open()
    cu.wait_for(stream)
    assert sim.peek(memory, 4) == b"evil"
    cu.free(memory)
    cu.free_host(source)
    cu.destroy_stream(stream)


def test_a_copy_into_pageable_memory_blocks_and_one_into_pinned_does_not(cu: Driver, sim: Sim) -> None:
    stream, memory, pinned = cu.stream(), cu.alloc(4), cu.alloc_host(4)
    sim.store(stream, memory, b"data")
    pageable = ctypes.create_string_buffer(4)
    cu("cuMemcpyDtoHAsync_v2", pageable, c_uint64(memory), c_size_t(4), c_void_p(stream))
    assert pageable.raw == b"data"
    gate = sim.gate(stream)
    cu.read_async(pinned, memory, 4, stream)
    assert sim.pending(stream) == 2
    gate.open()
    cu.wait_for(stream)
    assert ctypes.string_at(pinned, 4) == b"data"
    cu.free(memory)
    cu.free_host(pinned)
    cu.destroy_stream(stream)


def test_memset_waits_for_managed_and_pinned_memory_only(cu: Driver, sim: Sim) -> None:
    sim_schedule, sim.schedule = sim.schedule, "lazy"
    device, managed, pinned = cu.alloc(4), cu.alloc_managed(4), cu.alloc_host(4)
    for memory, waits in ((device, False), (managed, True), (pinned, True)):
        sim.poke(memory, b"old!")
        cu("cuMemsetD8_v2", c_uint64(memory), 7, c_size_t(4))
        assert (sim.peek(memory, 4) == b"\x07" * 4) is waits
        cu.synchronize()
        assert sim.peek(memory, 4) == b"\x07" * 4
    sim.schedule = sim_schedule
    cu.free(device)
    cu.free(managed)
    cu.free_host(pinned)


def test_memset_of_wider_patterns(cu: Driver) -> None:
    memory = cu.alloc(16)
    cu("cuMemsetD32_v2", c_uint64(memory), c_uint(0x04030201), c_size_t(4))
    assert cu.read(memory, 16) == b"\x01\x02\x03\x04" * 4
    cu("cuMemsetD16_v2", c_uint64(memory), ctypes.c_uint16(0x0605), c_size_t(1))
    assert cu.read(memory, 4) == b"\x05\x06\x03\x04"
    assert cu.code("cuMemsetD32_v2", c_uint64(memory + 1), c_uint(0), c_size_t(1)) == INVALID_VALUE
    cu.free(memory)


def test_the_host_reads_managed_and_pinned_memory(cu: Driver) -> None:
    managed, pinned = cu.alloc_managed(4), cu.alloc_host(4)
    cu.write(managed, b"host")
    cu.synchronize()
    ctypes.memmove(pinned, managed, 4)
    assert ctypes.string_at(pinned, 4) == b"host"
    cu.free(managed)
    cu.free_host(pinned)


def test_registered_memory_is_pinned_until_it_is_unregistered(cu: Driver, sim: Sim) -> None:
    block = ctypes.create_string_buffer(4096)
    address = ctypes.addressof(block)
    register = ("cuMemHostRegister_v2", c_void_p(address), c_size_t(4096), c_uint(0))
    cu(*register)
    assert cu.code(*register) == 712
    assert cu.attribute(2, address + 5) == 1
    mapped = c_uint64()
    cu("cuMemHostGetDevicePointer_v2", byref(mapped), c_void_p(address), c_uint(0))
    assert mapped.value == address
    cu("cuMemHostUnregister", c_void_p(address))
    assert cu.code("cuMemHostUnregister", c_void_p(address)) == 713


def test_stream_ordered_memory_lives_from_its_allocation_to_its_free(cu: Driver, sim: Sim) -> None:
    stream = cu.stream()
    memory = cu.alloc_async(64, stream)
    sim.store(stream, memory, b"data")
    cu.wait_for(stream)
    assert sim.peek(memory, 4) == b"data"
    cu.free_async(memory, stream)
    cu.wait_for(stream)
    with pytest.raises(RuntimeError):
        sim.peek(memory, 4)
    cu.destroy_stream(stream)


def test_work_on_memory_that_is_not_there_yet_poisons_the_context(cu: Driver, sim: Sim) -> None:
    context = cu.create_context(0)
    first, second = cu.stream(), cu.stream()
    gate = sim.gate(first)
    memory = cu.alloc_async(64, first)
    sim.store(second, memory, b"data")  # not ordered after the allocation
    assert cu.code("cuStreamSynchronize", c_void_p(second)) == 700
    assert cu.code("cuCtxSynchronize") == 700, "the error stays"
    gate.open()
    cu("cuCtxDestroy_v2", c_void_p(context))
    cu.free(memory)  # memory of a pool belongs to the device, not to the context


def allocated(cu: Driver, kind: str) -> tuple[int, Callable[[int], None]]:
    """Four bytes, and the call that gives them back."""
    if kind == "pinned":
        return cu.alloc_host(4), cu.free_host
    return cu.alloc_managed(4) if kind == "managed" else cu.alloc(4), cu.free


KINDS = pytest.mark.parametrize("kind", ["device", "managed", "pinned"])


@KINDS
def test_free_waits_for_the_work_of_its_context(cu: Driver, sim: Sim, kind: str) -> None:
    stream, other, (memory, free) = cu.stream(), cu.alloc(4), allocated(cu, kind)
    sim.store(stream, other, b"done")
    free(memory)
    assert sim.pending(stream) == 0 and sim.peek(other, 4) == b"done"
    cu.free(other)
    cu.destroy_stream(stream)


@KINDS
def test_work_of_another_context_finds_the_memory_freed(cu: Driver, sim: Sim, kind: str) -> None:
    memory, free = allocated(cu, kind)
    context = cu.create_context(0)
    stream = cu.stream()
    gate = sim.gate(stream)
    sim.store(stream, memory, b"late")
    free(memory)  # with the other context current: what counts is whose the memory is
    assert sim.pending(stream) == 2, "neither waited for nor run"
    gate.open()
    assert cu.code("cuStreamSynchronize", c_void_p(stream)) == ILLEGAL_ADDRESS
    cu("cuCtxDestroy_v2", c_void_p(context))


@KINDS
def test_with_a_wait_for_it_work_of_another_context_is_in_time(cu: Driver, sim: Sim, kind: str) -> None:
    memory, free = allocated(cu, kind)
    context = cu.create_context(0)
    stream = cu.stream()
    sim.store(stream, memory, b"data")
    cu.wait_for(stream)
    free(memory)
    cu.wait_for(stream)
    cu("cuCtxDestroy_v2", c_void_p(context))


def test_sums_and_stores_are_work(cu: Driver, sim: Sim) -> None:
    stream, source, result = cu.stream(), cu.alloc(12), cu.alloc(8)
    sim.store(stream, source, b"".join(value.to_bytes(4, "little") for value in (1, 2, 39)))
    sim.sum(stream, result, source, 3, "i4")
    cu.wait_for(stream)
    assert int.from_bytes(cu.read(result, 8), "little") == 42
    cu.free(source)
    cu.free(result)
    cu.destroy_stream(stream)


def test_memory_goes_between_devices(cu: Driver, sim: Sim) -> None:
    there = cu.retain(1)
    source = cu.alloc(4)
    with cu.on(there):
        target = cu.alloc(4)
        assert cu.attribute(9, target, ctypes.c_int) == 1
    cu.write(source, b"move")
    stream = cu.stream()
    cu.synchronize()
    cu.copy_async(target, source, 4, stream)
    cu.wait_for(stream)
    assert sim.peek(target, 4) == b"move"
    cu.free(source)
    with cu.on(there):
        cu.free(target)
    cu("cuDevicePrimaryCtxRelease_v2", 1)
    cu.destroy_stream(stream)
