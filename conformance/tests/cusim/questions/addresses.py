"""What the driver says about addresses of every kind: CONTEXT, type, DEVICE_POINTER, HOST_POINTER, IS_MANAGED,
ORDINAL, RANGE and MAPPED."""

from __future__ import annotations

import ctypes
import mmap
from ctypes import Structure, byref, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ushort, c_void_p
from typing import Any

from conformance.tests.cusim.model.driver import Driver
from conformance.tests.cusim.questions.ask import question

PAGE = mmap.PAGESIZE

# CUpointer_attribute, as `src/driver/cuda.rs` asks for them in one call.
ASKED: dict[int, Any] = {
    1: c_uint64, 2: c_uint, 3: c_uint64, 4: c_uint64, 8: c_uint, 9: c_int, 13: c_uint, 11: c_uint64, 12: c_uint64,
}  # fmt: skip


def relative(value: int, address: int) -> str:
    return "0" if value == 0 else "same" if value == address else "start" if value < address else "other"


def told(cu: Driver, address: int) -> dict[str, object]:
    """Every attribute, with addresses and handles by what they are."""
    found = cu.attributes(address, ASKED)
    context = "0" if found[1] == 0 else "current" if found[1] == cu.current() else "other"
    return {
        "context": context,
        "type": found[2],
        "device": relative(found[3], address),
        "host": relative(found[4], address),
        "managed": found[8],
        "ordinal": found[9],
        "mapped": found[13],
        "range": (relative(found[11], address), found[12]),
    }


@question
def device_memory(cu: Driver) -> object:
    """attributes of device memory, 8 bytes into 64"""
    return told(cu, cu.alloc(64) + 8)


@question
def managed_memory(cu: Driver) -> object:
    """attributes of managed memory"""
    return told(cu, cu.alloc_managed(64))


@question
def pinned_memory(cu: Driver) -> object:
    """attributes of pinned memory, portable"""
    memory = c_void_p()
    cu("cuMemHostAlloc", byref(memory), c_size_t(64), c_uint(1))
    return told(cu, memory.value or 0)


@question
def registered_memory(cu: Driver) -> object:
    """attributes of registered host memory"""
    block = mmap.mmap(-1, PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    cu("cuMemHostRegister_v2", c_void_p(address), c_size_t(PAGE), c_uint(0))
    return told(cu, address)


@question
def system_memory(cu: Driver) -> object:
    """attributes of system-allocated memory, before and after a copy to device memory"""
    block = mmap.mmap(-1, PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    before = told(cu, address)
    cu("cuMemcpyHtoD_v2", c_uint64(cu.alloc(64)), c_void_p(address), c_size_t(64))
    return before, told(cu, address)


@question
def system_memory_on_the_device(cu: Driver) -> object:
    """does the device reach system-allocated memory: pageable access, by the host's page tables; a memset of it"""
    block = mmap.mmap(-1, PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    found = []
    for attribute in (88, 100):
        value = c_int(-1)
        cu("cuDeviceGetAttribute", byref(value), c_uint(attribute), 0)
        found.append(value.value)
    code = cu.code("cuMemsetD8_v2", c_uint64(address), c_ubyte(7), c_size_t(8))
    return found, code, block[:8] == b"\x07" * 8


@question
def pool_memory(cu: Driver) -> object:
    """attributes of memory of the default pool"""
    stream = cu.stream()
    memory = cu.alloc_async(64, stream)
    cu.wait_for(stream)
    return told(cu, memory)


@question
def pool_memory_with_another_device_current(cu: Driver) -> object:
    """the ordinal and the context of pool memory of device 0, without a current context"""
    stream = cu.stream()
    memory = cu.alloc_async(64, stream)
    cu.wait_for(stream)
    context = cu.pop()
    found = told(cu, memory)
    cu.set_current(context)
    return found["ordinal"], found["context"]


@question
def freed_memory(cu: Driver) -> object:
    """attributes of device memory that was freed"""
    memory = cu.alloc(64)
    cu.free(memory)
    return told(cu, memory)


class Location(Structure):
    _fields_ = (("type", c_uint), ("id", c_int))


class Properties(Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", c_uint),
        ("handle_types", c_uint),
        ("location", Location),
        ("windows", c_void_p),
        ("compression", c_ubyte),
        ("rdma", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    )


class Access(Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", c_uint))


@question
def mapped_memory(cu: Driver) -> object:
    """attributes of memory that virtual memory management maps: reserved, mapped, the last byte of two mappings side by
    side, unmapped again"""
    on_device = Location(1, 0)
    properties, size = Properties(type=1, location=on_device), c_size_t()
    cu("cuMemGetAllocationGranularity", byref(size), byref(properties), c_uint(0))
    address = c_uint64()
    cu("cuMemAddressReserve", byref(address), c_size_t(2 * size.value), c_size_t(0), c_uint64(0), c_uint64(0))
    found = [told(cu, address.value)]
    for half in (address.value, address.value + size.value):
        handle = c_uint64()
        cu("cuMemCreate", byref(handle), size, byref(properties), c_uint64(0))
        cu("cuMemMap", c_uint64(half), size, c_size_t(0), handle, c_uint64(0))
        cu("cuMemSetAccess", c_uint64(half), size, byref(Access(on_device, 3)), c_size_t(1))
    found += [told(cu, address.value), told(cu, address.value + 2 * size.value - 1)]
    cu("cuMemUnmap", address, c_size_t(2 * size.value))
    return [*found, told(cu, address.value)]
