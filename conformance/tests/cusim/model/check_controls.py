"""The controls: log, faults, the GIL watch, settings."""

from __future__ import annotations

import ctypes
import threading
from ctypes import byref, c_uint, c_void_p

import pytest
from cai_conformance import GilHeld, Sim

from conformance.tests.cusim.model.driver import Driver, Refused


def test_the_log_has_arguments_and_results(cu: Driver, sim: Sim) -> None:
    stream, event = cu.stream(), cu.event()
    sim.clear()
    cu.record(event, stream)
    cu.code("cuEventQuery", c_void_p(5))
    record, query = sim.calls()
    assert (record.symbol, record.result) == ("cuEventRecord", 0)
    assert record.arguments == {"event": event, "stream": stream} and record.stream == stream
    assert (query.name, query.result) == ("cuEventQuery", 400)
    assert sim.count() == 2 and sim.count("cuEventRecord") == 1
    cu.destroy_event(event)
    cu.destroy_stream(stream)


def test_the_log_can_be_switched_off(cu: Driver, sim: Sim) -> None:
    sim.set("log", 0)
    cu.synchronize()
    sim.set("log", 1)
    assert sim.count() == 0 and sim.get("log") == 1
    cu.synchronize()
    assert sim.count() == 1


def test_the_log_can_be_of_one_thread(cu: Driver, sim: Sim) -> None:
    sim.set("log", 2)
    sim.clear()
    other = threading.Thread(target=lambda: cu.code("cuCtxSynchronize"))  # it has no context
    other.start()
    other.join()
    of_the_other, setting = sim.count(), sim.get("log")
    cu.synchronize()
    of_this = sim.count()
    sim.set("log", 1)
    assert (of_the_other, of_this, setting) == (0, 1, 2)


def test_no_calls_is_an_assertion(cu: Driver, sim: Sim) -> None:
    with sim.no_calls():
        pass
    with pytest.raises(AssertionError, match="cuCtxSynchronize"), sim.no_calls():
        cu.synchronize()
    with sim.no_calls("cuEventCreate"):
        cu.synchronize()


def test_the_nth_call_fails_and_does_nothing(cu: Driver, sim: Sim) -> None:
    sim.fault("cuStreamCreate", 2, nth=2)
    stream, before = cu.stream(), sim.live()
    with pytest.raises(Refused) as refused:
        cu.stream()
    assert refused.value.code == 2 and sim.live() == before and sim.pending_faults() == 0
    cu.destroy_stream(stream)


def test_a_sticky_fault_stays(cu: Driver, sim: Sim) -> None:
    context = cu.create_context(0)
    sim.fault("cuCtxSynchronize", 700)
    assert cu.code("cuCtxSynchronize") == 700
    assert cu.code("cuStreamCreate", byref(c_void_p()), c_uint(0)) == 700
    cu("cuCtxDestroy_v2", c_void_p(context))


def test_the_gil_watch_sees_who_holds_it(cu: Driver, sim: Sim) -> None:
    holding = ctypes.PyDLL("libcuda.so.1")
    with sim.gil_watch():
        cu.synchronize()  # CDLL releases the GIL
    with sim.gil_watch():
        holding.cuCtxGetCurrent(byref(c_void_p()))  # a query may hold it
    with pytest.raises(GilHeld, match="cuCtxSynchronize"), sim.gil_watch():
        holding.cuCtxSynchronize()
    with pytest.raises(GilHeld, match="cuCtxGetCurrent"), sim.gil_watch("cuCtxGetCurrent"):
        holding.cuCtxGetCurrent(byref(c_void_p()))
    with sim.gil_watch("cuCtxGetCurrent"):
        holding.cuCtxSynchronize()  # not watched
    with pytest.raises(GilHeld, match="cuCtxGetCurrent"), sim.gil_watch("*"):
        holding.cuCtxGetCurrent(byref(c_void_p()))
    holding.sim_gil_held.restype = c_uint
    assert holding.sim_gil_held() == 1 and cu.library.sim_gil_held() == 0


def test_lookups_are_kept_apart_from_calls(cu: Driver, sim: Sim) -> None:
    sim.clear()
    cu.proc_address("cuMemAlloc", 12000)
    assert sim.calls() == [] and sim.lookups()[-1] == ("cuMemAlloc", 12000, 0, True)


def test_settings_have_names(sim: Sim) -> None:
    assert sim.get("devices") >= 2
    with pytest.raises(KeyError):
        sim.get("colour")
    with pytest.raises(RuntimeError):
        sim.set("colour", 1)


def test_memory_of_a_device_can_be_small(cu: Driver, sim: Sim) -> None:
    before = sim.get("memory")
    sim.set("memory", 1 << 20)
    with pytest.raises(Refused) as refused:
        cu.alloc((1 << 20) + 1)
    assert refused.value.code == 2
    sim.set("memory", before)


def test_reused_handles_name_the_next_object(cu: Driver, sim: Sim) -> None:
    before = sim.get("reuse")
    for reuse in (0, 1):
        sim.set("reuse", reuse)
        stale = cu.event()
        cu.destroy_event(stale)
        fresh = cu.event()
        assert (fresh == stale) == bool(reuse)
        cu.destroy_event(fresh)
        stale_memory = cu.alloc(100)
        cu.free(stale_memory)
        if reuse:
            again = cu.alloc(100)
            cu.free(again)
            last = cu.alloc(50)
            assert last == again, "the pages that were freed last"
            cu.free(last)
    sim.set("reuse", before)


CONCURRENT_MANAGED_ACCESS = 89


def test_attributes_are_set_for_one_device_or_for_all(cu: Driver, sim: Sim) -> None:
    def values() -> list[int]:
        found = []
        for device in range(2):
            value = ctypes.c_int()
            assert cu.code("cuDeviceGetAttribute", byref(value), CONCURRENT_MANAGED_ACCESS, device) == 0
            found.append(value.value)
        return found

    assert values() == [1, 1]
    sim.set_attribute(CONCURRENT_MANAGED_ACCESS, 0)
    assert values() == [0, 0]
    sim.set_attribute(CONCURRENT_MANAGED_ACCESS, 1, device=0)
    assert values() == [1, 0]
    sim.set_attribute(CONCURRENT_MANAGED_ACCESS, 1)
    for device, attribute in ((7, CONCURRENT_MANAGED_ACCESS), (0, 0)):
        with pytest.raises(RuntimeError):
            sim.set_attribute(attribute, 1, device=device)
