"""Stream capture: what is recorded, and the documented failures."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p

import pytest
from cai_conformance import Sim

from conformance.tests.cusim.model.driver import LEGACY, Driver, Refused

UNSUPPORTED, INVALIDATED, MERGE, UNMATCHED, UNJOINED = 900, 901, 902, 903, 904
ISOLATION, IMPLICIT, CAPTURED_EVENT, WRONG_THREAD = 905, 906, 907, 908
INVALID_VALUE = 1
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
IDLE, ACTIVE, INVALID = 0, 1, 2


class Capture:
    """A non-blocking stream that captures, a bystander, events and memory."""

    def __init__(self, cu: Driver) -> None:
        self.cu = cu
        self.memory = cu.alloc(4)
        self.stream, self.other = cu.stream(), cu.stream()
        self.event, self.second = cu.event(), cu.event()

    def begin(self, mode: int = RELAXED) -> None:
        self.cu.begin_capture(self.stream, mode)

    def fork(self) -> None:
        """Draws the bystander into the capture."""
        self.cu.record(self.event, self.stream)
        self.cu.stream_wait(self.other, self.event)

    def end_code(self, stream: int | None = None) -> int:
        """The code of ending the capture; its graph, if any, is destroyed."""
        try:
            graph = self.cu.end_capture(stream or self.stream)
        except Refused as refused:
            return refused.code
        self.cu("cuGraphDestroy", c_void_p(graph))
        return 0

    def refused(self, act: object, *arguments: object) -> int:
        with pytest.raises(Refused) as refused:
            act(*arguments)  # type: ignore[operator]
        return refused.value.code

    def close(self) -> None:
        for stream in (self.stream, self.other):
            if self.cu.capture_status(stream) != IDLE:
                self.end_code()
        self.cu.free(self.memory)
        for stream in (self.stream, self.other):
            self.cu.destroy_stream(stream)
        for event in (self.event, self.second):
            self.cu.destroy_event(event)


@pytest.fixture
def cap(cu: Driver) -> Iterator[Capture]:
    made = Capture(cu)
    yield made
    made.close()


def test_captured_work_runs_at_each_launch_and_not_before(cap: Capture, sim: Sim) -> None:
    sim.poke(cap.memory, b"old!")
    cap.begin()
    sim.store(cap.stream, cap.memory, b"new!")
    assert cap.cu.capture_status(cap.stream) == ACTIVE
    graph = cap.cu.end_capture(cap.stream)
    assert cap.cu.capture_status(cap.stream) == IDLE
    cap.cu.synchronize()
    assert sim.peek(cap.memory, 4) == b"old!"
    for _ in range(2):
        sim.poke(cap.memory, b"old!")
        cap.cu.launch(graph, cap.stream)
        cap.cu.wait_for(cap.stream)
        assert sim.peek(cap.memory, 4) == b"new!"
    cap.cu("cuGraphDestroy", c_void_p(graph))


def test_a_fork_that_joins_back_is_captured(cap: Capture, sim: Sim) -> None:
    cap.begin()
    sim.store(cap.stream, cap.memory, b"1111")
    cap.fork()
    assert cap.cu.capture_status(cap.other) == ACTIVE
    sim.store(cap.other, cap.memory, b"2222")
    cap.cu.record(cap.second, cap.other)
    cap.cu.stream_wait(cap.stream, cap.second)
    graph = cap.cu.end_capture(cap.stream)
    count = c_size_t()
    cap.cu("cuGraphGetNodes", c_void_p(graph), None, byref(count))
    assert count.value == 2 and cap.cu.capture_status(cap.other) == IDLE
    cap.cu.launch(graph, cap.stream)
    cap.cu.wait_for(cap.stream)
    assert sim.peek(cap.memory, 4) == b"2222"
    cap.cu("cuGraphDestroy", c_void_p(graph))


def test_without_its_join_a_fork_is_unjoined(cap: Capture, sim: Sim) -> None:
    cap.begin()
    cap.fork()
    sim.store(cap.other, cap.memory, b"2222")
    assert cap.end_code() == UNJOINED
    assert cap.cu.capture_status(cap.stream) == cap.cu.capture_status(cap.other) == IDLE


def test_waiting_for_an_event_from_outside_breaks_isolation(cap: Capture) -> None:
    cap.cu.record(cap.event, cap.other)
    cap.begin()
    assert cap.refused(cap.cu.stream_wait, cap.stream, cap.event) == ISOLATION
    assert cap.cu.capture_status(cap.stream) == INVALID
    assert cap.refused(cap.cu.fill_async, cap.memory, 0, 4, cap.stream) == INVALIDATED
    assert cap.end_code() == INVALIDATED


def test_two_captures_do_not_merge(cap: Capture) -> None:
    cap.begin()
    cap.cu.begin_capture(cap.other, RELAXED)
    cap.cu.record(cap.event, cap.other)
    assert cap.refused(cap.cu.stream_wait, cap.stream, cap.event) == MERGE
    assert cap.end_code(cap.other) == cap.end_code() == INVALIDATED


def test_a_capture_ends_on_the_stream_that_began_it(cap: Capture) -> None:
    cap.begin()
    cap.fork()
    assert cap.end_code(cap.other) == UNMATCHED
    assert cap.end_code() == INVALIDATED


@pytest.mark.parametrize("call", ["cuStreamSynchronize", "cuStreamQuery"])
def test_a_capturing_stream_cannot_be_waited_for(cap: Capture, call: str) -> None:
    cap.begin()
    assert cap.cu.code(call, c_void_p(cap.stream)) == UNSUPPORTED
    assert cap.end_code() == INVALIDATED


def test_nor_can_its_context(cap: Capture) -> None:
    cap.begin()
    assert cap.cu.code("cuCtxSynchronize") == UNSUPPORTED
    assert cap.end_code() == INVALIDATED


@pytest.mark.parametrize("call", ["cuEventSynchronize", "cuEventQuery"])
def test_nor_can_a_captured_event(cap: Capture, call: str) -> None:
    cap.begin()
    cap.cu.record(cap.event, cap.stream)
    assert cap.cu.code(call, c_void_p(cap.event)) == CAPTURED_EVENT
    assert cap.end_code() == INVALIDATED


def test_an_event_of_a_capture_that_has_ended_is_worth_nothing(cap: Capture) -> None:
    cap.begin()
    cap.cu.record(cap.event, cap.stream)
    assert cap.end_code() == 0
    assert cap.cu.code("cuEventSynchronize", c_void_p(cap.event)) == INVALID_VALUE
    assert cap.cu.code("cuEventQuery", c_void_p(cap.event)) == INVALID_VALUE
    assert cap.cu.code("cuStreamWaitEvent", c_void_p(cap.other), c_void_p(cap.event), c_uint(0)) == INVALID_VALUE
    cap.cu.record(cap.event, cap.stream)
    cap.cu.event_wait(cap.event)


def test_the_legacy_stream_cannot_be_used_beside_a_blocking_capture(cap: Capture) -> None:
    blocking = cap.cu.stream(0)
    cap.cu.begin_capture(blocking, RELAXED)
    assert cap.cu.code("cuStreamIsCapturing", c_void_p(LEGACY), byref(c_uint())) == IMPLICIT
    assert cap.cu.capture_status(blocking) == ACTIVE, "asking does no harm"
    assert cap.refused(cap.cu.fill_async, cap.memory, 0, 4, LEGACY) == IMPLICIT
    assert cap.end_code(blocking) == INVALIDATED
    cap.begin()
    cap.cu.fill_async(cap.memory, 0, 4, LEGACY)
    assert cap.end_code() == 0, "a non-blocking capture does not mind"
    cap.cu.destroy_stream(blocking)


def test_the_legacy_stream_cannot_capture(cap: Capture) -> None:
    assert cap.refused(cap.cu.begin_capture, LEGACY) == UNSUPPORTED


def test_a_stream_captures_once(cap: Capture) -> None:
    cap.begin()
    assert cap.refused(cap.cu.begin_capture, cap.stream) == 401
    assert cap.end_code() == 0
    assert cap.end_code() == 401


class Unsafe:
    """Each "potentially unsafe" call, of an idle stream and of memory that no capture knows."""

    def __init__(self, cu: Driver) -> None:
        self.cu, idle, event = cu, cu.stream(), cu.event()
        cu.record(event, idle)
        device, self.pooled, self.made = cu.alloc(8), cu.alloc_async(8, idle), c_uint64()
        cu.wait_for(idle)
        self.calls: dict[str, tuple[object, ...]] = {
            "cuMemAlloc_v2": (byref(c_uint64()), c_size_t(8)),
            "cuMemFree_v2": (c_uint64(device),),
            "cuMemAllocAsync": (byref(self.made), c_size_t(8), c_void_p(idle)),
            "cuMemFreeAsync": (c_uint64(self.pooled), c_void_p(idle)),
            "cuEventSynchronize": (c_void_p(event),),
            "cuEventQuery": (c_void_p(event),),
            "cuStreamSynchronize": (c_void_p(idle),),
            "cuStreamQuery": (c_void_p(idle),),
            "cuStreamSynchronize of the legacy stream": (c_void_p(LEGACY),),
            "cuStreamQuery of the legacy stream": (c_void_p(LEGACY),),
        }

    def code(self, call: str) -> int:
        return self.cu.code(call.split()[0], *self.calls[call])

    def close(self) -> None:
        """Gives back what does not end with the context: memory of a pool."""
        self.cu.synchronize()
        for address in (self.pooled, self.made.value):
            self.cu.code("cuMemFree_v2", c_uint64(address))


@pytest.fixture
def unsafe(cu: Driver) -> Iterator[Unsafe]:
    """The calls, in a context of their own, which takes with it what they leave."""
    context = cu.create_context(0)
    made = Unsafe(cu)
    yield made
    made.close()
    cu("cuCtxDestroy_v2", c_void_p(context))


UNSAFE = pytest.mark.parametrize(
    "call",
    [
        "cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocAsync", "cuMemFreeAsync", "cuEventSynchronize", "cuEventQuery",
        "cuStreamSynchronize", "cuStreamQuery", "cuStreamSynchronize of the legacy stream",
        "cuStreamQuery of the legacy stream",
    ],
)  # fmt: skip


@UNSAFE
@pytest.mark.parametrize("mode, code", [(GLOBAL, UNSUPPORTED), (THREAD_LOCAL, UNSUPPORTED), (RELAXED, 0)])
def test_unsafe_calls_by_the_mode_of_the_own_capture(
    cap: Capture, unsafe: Unsafe, call: str, mode: int, code: int
) -> None:
    cap.begin(mode)
    assert unsafe.code(call) == code
    assert cap.end_code() == (INVALIDATED if code else 0)


@UNSAFE
@pytest.mark.parametrize("mode, code", [(GLOBAL, UNSUPPORTED), (THREAD_LOCAL, 0), (RELAXED, 0)])
@pytest.mark.parametrize("own_mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_unsafe_calls_by_the_mode_of_another_threads_capture(
    cap: Capture, unsafe: Unsafe, call: str, mode: int, code: int, own_mode: int
) -> None:
    cap.begin(mode)
    context, codes = cap.cu.current(), []

    def other() -> None:
        cap.cu.set_current(context)
        cap.cu("cuThreadExchangeStreamCaptureMode", byref(c_uint(own_mode)))
        codes.append(unsafe.code(call))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    allowed = 0 if own_mode != GLOBAL else code
    assert codes == [allowed]
    assert cap.end_code() == (INVALIDATED if allowed else 0)


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_a_synchronous_copy_is_no_unsafe_call(cap: Capture, mode: int) -> None:
    cap.begin(mode)
    cap.cu.read(cap.memory, 4)
    assert cap.end_code() == 0


def test_but_it_uses_the_legacy_stream(cap: Capture) -> None:
    blocking = cap.cu.stream(0)
    cap.cu.begin_capture(blocking, RELAXED)
    assert cap.refused(cap.cu.read, cap.memory, 4) == IMPLICIT
    assert cap.end_code(blocking) == INVALIDATED
    cap.cu.destroy_stream(blocking)


def test_a_capture_ends_on_its_thread_unless_it_is_relaxed(cap: Capture) -> None:
    cap.begin(THREAD_LOCAL)
    context, codes = cap.cu.current(), []

    def other() -> None:
        cap.cu.set_current(context)
        codes.append(cap.end_code())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert codes == [WRONG_THREAD] and cap.end_code() == INVALIDATED


def test_the_capture_mode_is_exchanged(cap: Capture) -> None:
    mode = c_uint(RELAXED)
    cap.cu("cuThreadExchangeStreamCaptureMode", byref(mode))
    assert mode.value == GLOBAL
    cap.cu("cuThreadExchangeStreamCaptureMode", byref(mode))
    assert mode.value == RELAXED


def test_the_capture_has_a_number(cap: Capture) -> None:
    numbers = []
    for _ in range(2):
        cap.begin()
        status, number = c_uint(), c_uint64()
        rest = [ctypes.c_void_p() for _ in range(2)]
        outputs = [byref(value) for value in (status, number, *rest, c_size_t())]
        cap.cu("cuStreamGetCaptureInfo_v2", c_void_p(cap.stream), *outputs)
        numbers.append(number.value)
        assert status.value == ACTIVE and cap.end_code() == 0
    assert len(set(numbers)) == 2
