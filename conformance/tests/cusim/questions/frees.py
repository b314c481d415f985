"""What giving memory back waits for: the end of a copy relies on it."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p

from conformance.tests.cusim.model.driver import Driver
from conformance.tests.cusim.questions.ask import (
    MODES,
    RELAXED,
    another_context,
    beside_a_capture,
    has_waited,
    on_another_thread,
    question,
    second_device,
)

Free = Callable[[], int]


def freeing(cu: Driver, free: Callable[[], Free]) -> dict[str, str]:
    """Which work a free waits for. `free` allocates, and returns the call that gives the memory back."""
    found = {"of its own context": has_waited(cu, free())}
    with another_context(cu) as other:
        pass
    found["of another context of the device"] = has_waited(cu, free(), other)
    second = second_device(cu)
    if second is None:
        return found | {"of another device": "not asked: one device"}
    found["of another device"] = has_waited(cu, free(), second)
    peer = cu.code("cuCtxEnablePeerAccess", c_void_p(second), c_uint(0))
    found[f"of a peer (enabled: {peer})"] = has_waited(cu, free(), second)
    return found


def device_memory(cu: Driver) -> Free:
    memory = cu.alloc(64)
    return lambda: cu.code("cuMemFree_v2", c_uint64(memory))


def managed_memory(cu: Driver) -> Free:
    memory = cu.alloc_managed(64)
    return lambda: cu.code("cuMemFree_v2", c_uint64(memory))


def pinned_memory(cu: Driver) -> Free:
    memory = cu.alloc_host(64)
    return lambda: cu.code("cuMemFreeHost", c_void_p(memory))


def pool_memory(cu: Driver) -> Free:
    stream = cu.stream()
    memory = cu.alloc_async(64, stream)
    cu.wait_for(stream)
    return lambda: cu.code("cuMemFree_v2", c_uint64(memory))


@question
def free_of_device_memory(cu: Driver) -> object:
    """which work cuMemFree of device memory waits for"""
    return freeing(cu, lambda: device_memory(cu))


@question
def free_of_managed_memory(cu: Driver) -> object:
    """which work cuMemFree of managed memory waits for"""
    return freeing(cu, lambda: managed_memory(cu))


@question
def free_of_pinned_memory(cu: Driver) -> object:
    """which work cuMemFreeHost waits for"""
    return freeing(cu, lambda: pinned_memory(cu))


@question
def free_of_pool_memory(cu: Driver) -> object:
    """which work cuMemFree of stream-ordered memory waits for"""
    return freeing(cu, lambda: pool_memory(cu))


@question
def free_in_stream_order(cu: Driver) -> object:
    """whether cuMemFreeAsync on an idle stream waits for another stream, and whether it may follow that by an event"""
    idle, ordered = cu.stream(), cu.stream()
    memory, later = cu.alloc_async(64, idle), cu.alloc_async(64, idle)
    cu.wait_for(idle)
    found = has_waited(cu, lambda: cu.code("cuMemFreeAsync", c_uint64(memory), c_void_p(idle)))
    cu.order(idle, ordered)
    return found, cu.code("cuMemFreeAsync", c_uint64(later), c_void_p(ordered))


@question
def free_with_another_context_current(cu: Driver) -> object:
    """cuMemFree of device memory while another context of the device is current, and while none is"""
    first, second = cu.alloc(8), cu.alloc(8)
    with another_context(cu):
        elsewhere = cu.code("cuMemFree_v2", c_uint64(first))
    context = cu.pop()
    nowhere = cu.code("cuMemFree_v2", c_uint64(second))
    cu.set_current(context)
    return elsewhere, nowhere


def allocations(cu: Driver) -> dict[str, Callable[[], object]]:
    """Calls that a capture may forbid; what they give back was allocated before."""
    stream = cu.stream()
    device, host, pool = cu.alloc(8), cu.alloc_host(8), cu.alloc_async(8, stream)
    cu.wait_for(stream)
    return {
        "alloc": lambda: cu.code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(8)),
        "alloc_host": lambda: cu.code("cuMemHostAlloc", byref(c_void_p()), c_size_t(8), c_uint(0)),
        "alloc_async": lambda: cu.code("cuMemAllocAsync", byref(c_uint64()), c_size_t(8), c_void_p(stream)),
        "free": lambda: cu.code("cuMemFree_v2", c_uint64(device)),
        "free_host": lambda: cu.code("cuMemFreeHost", c_void_p(host)),
        "free_async": lambda: cu.code("cuMemFreeAsync", c_uint64(pool), c_void_p(stream)),
    }


def beside(cu: Driver, mode: int | None) -> object:
    """Each call on another thread, in its mode, beside a capture of each mode: its code, and the capture's end."""
    return {
        name: {
            label: beside_a_capture(cu, capture, lambda call=call: on_another_thread(cu, call, mode))  # type: ignore[misc]
            for label, call in allocations(cu).items()
        }
        for name, capture in MODES.items()
    }


@question
def relaxed_frees_beside_a_capture(cu: Driver) -> object:
    """allocating and freeing on another thread in RELAXED mode, beside a capture of each mode"""
    return beside(cu, RELAXED)


@question
def frees_beside_a_capture(cu: Driver) -> object:
    """allocating and freeing on another thread in its own mode, beside a capture of each mode"""
    return beside(cu, None)
