"""Pointer attributes, one and many, and cuGetProcAddress."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_uint, c_uint64

import pytest
from cai_conformance import Sim

from conformance.tests.cusim.model.driver import Driver, Refused

CONTEXT, MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER = 1, 2, 3, 4
BUFFER_ID, IS_MANAGED, DEVICE_ORDINAL, RANGE_START, RANGE_SIZE, MAPPED = 7, 8, 9, 11, 12, 13
WANTED = {
    CONTEXT: c_uint64,
    MEMORY_TYPE: c_uint,
    DEVICE_POINTER: c_uint64,
    HOST_POINTER: c_uint64,
    BUFFER_ID: c_uint64,
    IS_MANAGED: c_uint,
    DEVICE_ORDINAL: c_int,
    RANGE_START: c_uint64,
    RANGE_SIZE: c_uint64,
    MAPPED: c_uint,
}
HOST, DEVICE = 1, 2


@pytest.mark.parametrize(
    "kind, memory_type, managed, on_host",
    [("alloc", DEVICE, 0, False), ("alloc_managed", DEVICE, 1, True), ("alloc_host", HOST, 0, True)],
)
def test_known_memory(cu: Driver, kind: str, memory_type: int, managed: int, on_host: bool) -> None:
    memory = getattr(cu, kind)(256)
    found = cu.attributes(memory + 16, WANTED)
    buffer = found.pop(BUFFER_ID)
    assert buffer > 0
    assert found == {
        CONTEXT: cu.current(),
        MEMORY_TYPE: memory_type,
        DEVICE_POINTER: memory + 16,
        HOST_POINTER: memory + 16 if on_host else 0,
        IS_MANAGED: managed,
        DEVICE_ORDINAL: 0,
        RANGE_START: memory,
        RANGE_SIZE: 256,
        MAPPED: 1,
    }
    for number, value in found.items():
        if number != HOST_POINTER or on_host:
            assert cu.attribute(number, memory + 16, WANTED[number]) == value
    (cu.free_host if kind == "alloc_host" else cu.free)(memory)


def test_device_memory_has_no_host_pointer(cu: Driver) -> None:
    memory = cu.alloc(16)
    with pytest.raises(Refused) as refused:
        cu.attribute(HOST_POINTER, memory)
    assert refused.value.code == 1
    cu.free(memory)


def test_memory_of_a_pool_has_no_context(cu: Driver) -> None:
    stream = cu.stream()
    memory = cu.alloc_async(16, stream)
    found = cu.attributes(memory, WANTED)
    assert (found[CONTEXT], found[MEMORY_TYPE], found[DEVICE_ORDINAL]) == (0, DEVICE, 0)
    cu.free_async(memory, stream)
    cu.wait_for(stream)
    cu.destroy_stream(stream)


def test_unknown_addresses_are_refused_one_by_one_and_nulled_together(cu: Driver) -> None:
    block = ctypes.create_string_buffer(64)
    address = ctypes.addressof(block)
    for number, kind in WANTED.items():
        with pytest.raises(Refused) as refused:
            cu.attribute(number, address, kind)
        assert refused.value.code == 1
    found = cu.attributes(address, WANTED)
    assert found.pop(DEVICE_ORDINAL) == -2
    assert found.pop(HOST_POINTER) == address
    assert found.pop(RANGE_START) == found.pop(RANGE_SIZE) == 77, "left as they were"
    assert set(found.values()) == {0}


def test_an_address_is_known_to_its_last_byte_and_until_it_is_freed(cu: Driver) -> None:
    memory = cu.alloc(100)
    assert cu.attribute(RANGE_SIZE, memory + 99) == 100
    assert cu.attributes(memory + 100, WANTED)[MEMORY_TYPE] == 0
    cu.free(memory)
    assert cu.attributes(memory, WANTED)[MEMORY_TYPE] == 0


def test_buffers_are_numbered_for_ever(cu: Driver) -> None:
    numbers = []
    for _ in range(3):
        memory = cu.alloc(64)
        numbers.append(cu.attribute(BUFFER_ID, memory))
        cu.free(memory)
    assert len(set(numbers)) == 3


def test_attributes_need_no_context(cu: Driver) -> None:
    memory = cu.alloc(16)
    context = cu.pop()
    assert cu.attribute(RANGE_SIZE, memory) == 16
    cu.set_current(context)
    cu.free(memory)


def test_the_version_chooses_the_function(cu: Driver) -> None:
    old, new = cu.proc_address("cuCtxCreate", 3020), cu.proc_address("cuCtxCreate", 13000)
    assert old[0] == new[0] == 0 and old[1] != new[1]
    address = ctypes.cast(cu.library.cuCtxCreate_v2, ctypes.c_void_p).value
    assert old[1] == address
    assert cu.proc_address("cuMemAlloc", 3000) == (500, 0, 2), "the version is too old"
    assert cu.proc_address("cuNoSuchCall", 13000) == (500, 0, 1)
    per_thread = ctypes.cast(cu.library.cuStreamQuery_ptsz, ctypes.c_void_p).value
    assert cu.proc_address("cuStreamQuery", 7000, 2)[1] == per_thread


def test_an_older_driver_does_not_know_newer_functions(cu: Driver, sim: Sim) -> None:
    before = sim.get("driver_version")
    sim.set("driver_version", 12000)
    assert cu.proc_address("cuCtxCreate", 13000)[1] == cu.proc_address("cuCtxCreate", 11040)[1]
    sim.set("driver_version", before)


def test_what_is_not_modelled_says_so_and_is_logged(cu: Driver, sim: Sim) -> None:
    assert cu.code("cuModuleLoadData", None, None) == 801
    assert sim.count("cuModuleLoadData") == 1
