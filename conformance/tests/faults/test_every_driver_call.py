"""Every driver call of every route failing in turn: the error names the call, and all is as before.

The calls are found by making them fail: the first, the second, ... of each function, until the route makes no such
call any more. Two hundred routes reach the driver.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cai_dlpack as cd
import pytest
from cai_conformance import Sim as Control

from conformance.tests.faults import routes
from conformance.tests.faults.routes import PRODUCERS, ROUTES, Route
from conformance.tests.faults.world import Simulated
from conformance.tests.partners.copying import settled
from conformance.tests.simulated.machine import Machine

pytestmark = pytest.mark.long

OUT_OF_MEMORY, INVALID_HANDLE, NOT_SUPPORTED, UNKNOWN = 2, 400, 801, 999
EVERY_THREAD, THIS_THREAD = 1, 2
CODES = (UNKNOWN, OUT_OF_MEMORY, INVALID_HANDLE, NOT_SUPPORTED)


@dataclass(frozen=True)
class Survived:
    """A failure that a route survives: of these codes (none: of any), by one of these calls (none: by no call)."""

    why: str
    codes: tuple[int, ...] = ()
    by: tuple[str, ...] = ()
    is_at_once: bool = False
    """Whether that call is the next one."""


WITHOUT_POOL = Survived(
    "the copy is allocated without a pool", (OUT_OF_MEMORY, NOT_SUPPORTED), ("cuMemAlloc", "cuMemAllocManaged")
)
NEW_EVENT = Survived("an event whose context is gone is replaced", (INVALID_HANDLE,), ("cuEventCreate",))
HOST_WAITS = Survived("the host waits for a copy of a ready array instead of an event", (), ("cuStreamSynchronize",))
SURVIVED: dict[str, list[Survived]] = {
    "cuCtxGetCurrent": [HOST_WAITS],
    "cuCtxGetDevice": [WITHOUT_POOL, HOST_WAITS],
    "cuCtxGetId": [HOST_WAITS],
    # Beside code of others it is asked first what is current.
    "cuCtxPopCurrent": [
        Survived(
            "the caller's context is made current once more",
            (),
            ("cuCtxPopCurrent", "cuCtxGetCurrent"),
            is_at_once=True,
        )
    ],
    "cuDevicePrimaryCtxRelease": [Survived("one reference to the context too many, after the copy")],
    "cuEventCreate": [HOST_WAITS],
    "cuEventRecord": [NEW_EVENT, HOST_WAITS],
    "cuMemAllocAsync": [WITHOUT_POOL],
    "cuStreamIsCapturing": [HOST_WAITS],
    "cuStreamDestroy": [Survived("one stream too many, after the copy")],
    "cuStreamGetId": [Survived("the copy is freed after the device's own wait")],
    "cuThreadExchangeStreamCaptureMode": [Survived("the mode cannot be put back: the copy is made")],
}
#: The last call that makes a handle of `share`. Leaving the block cannot be refused: at worst its event is left.
SHARED = "cuIpcGetEventHandle"
OF_A_SHARES_END = ("cuCtxGetId", "cuCtxPushCurrent", "cuEventDestroy", "cuCtxPopCurrent")
#: Foresees what an export would do, and answers also if the driver cannot be asked: by naming what was not answered.
TOLD = ("explain", "explain, numpy", "explain, no consumer", "explain a dict, owner")


def is_of_no_elements(route: routes.Route, function: str) -> bool:
    """The address of an array without elements may be any: no array is refused for what the driver says of it."""
    is_empty = route.producer == "device, empty" and not route.use.endswith("a dict, owner")
    return is_empty and function == "cuPointerGetAttributes"


class State:
    """What a route must leave as it was, once the thread that frees copies and keeps owners has done so."""

    def __init__(self, world: Simulated, control: Control) -> None:
        self.world, self.control = world, control
        self.before = self.now()

    def now(self) -> dict[str, int]:
        live, stats = self.control.live(), cd.stats()
        return {
            "current context": self.world.current(),
            "live": stats["live"],
            "open guards": stats["open_guards"],
            "panics": stats["panics"],
            "allocations": live.allocations,
            "contexts": live.contexts,
        }

    def assert_as_before(self, what: str, held: int = 0, is_let_go: Callable[[], bool] = lambda: True) -> None:
        """Waits until all is as before but for the owners that an array holds, to which nothing else refers."""
        end, before = time.monotonic() + 2, self.before | {"live": self.before["live"] + held}
        while (now := self.now()) != before or not is_let_go():
            assert time.monotonic() < end, f"{what}: {before} became {now}, array let go: {is_let_go()}"
            time.sleep(0.0005)

    def lose(self, what: str) -> int:
        """Waits until all else is as before; returns how many are lost, which are then left out.

        What a thread was refused to wait for is tried again, which may take long on a busy machine.
        """
        end = time.monotonic() + 0.5
        while self.now() != self.before and time.monotonic() < end:
            time.sleep(0.0005)
        lost = self.now()[what] - self.before[what]
        self.before[what] += lost
        self.assert_as_before("all else")
        return lost


@pytest.fixture(scope="module")
def state(simulated: Machine) -> Iterator[State]:
    simulated.set_current(0)
    world = Simulated(simulated.control.library)
    settled(simulated)  # what the tests of before have made
    state = State(world, simulated.control)
    for route in ROUTES:  # what is made once: events, the stream of host copies
        route.run(world, route.make(world))
    state.assert_as_before("every route")
    yield state
    world.close()


@pytest.fixture(autouse=True)
def every_fault_ends(simulated: Machine) -> Iterator[None]:
    before = simulated.control.get("log")
    yield
    simulated.control.clear_faults()
    simulated.control.set("log", before)


def calls_of(route: Route, state: State) -> tuple[object, list[str]]:
    """Returns what comes of a route, and the functions that it calls, with those of freeing what it made."""
    array = route.make(state.world)
    state.control.clear()
    result = route.run(state.world, array)
    state.assert_as_before(f"{route}", route.held)
    return result, sorted({call.name for call in state.control.calls()})


def with_a_fault(route: Route, world: Simulated, array: Any) -> Any:
    try:
        return route.take(world, array)
    except cd.DriverError as error:
        return error
    except Exception as error:  # each library has a class of its own
        if not route.is_foreign:
            raise
        return error.with_traceback(None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("producer", PRODUCERS)
def test_every_call_of_every_route(producer: str, state: State) -> None:
    # One code and another in turn: all codes with all producers take twice as long, and make the same calls fail.
    codes = (UNKNOWN, CODES[1 + list(PRODUCERS).index(producer) % (len(CODES) - 1)])
    for route in [route for route in ROUTES if route.producer == producer]:
        expected, functions = calls_of(route, state)
        for function in functions:
            for code in codes:
                nth = 1
                while fails_rightly(route, state, (function, code, nth), expected):
                    again = route.run(state.world, route.make(state.world))
                    assert again == expected, f"{route}: after {function} = {code}"
                    nth += 1


def is_survived(fault: tuple[str, int, int], calls: list[str]) -> bool:
    """Whether the table has the failure, and the call is there that the route makes instead.

    A lack of memory makes a copy wait for what has ended and ask again, whichever of its calls said so.
    """
    function, code, nth = fault
    places = [place for place, name in enumerate(calls) if name == function]
    after = calls[places[nth - 1] + 1 :]
    if code == OUT_OF_MEMORY and function in after:
        return True
    if SHARED in calls and function in OF_A_SHARES_END:
        return True
    for way in SURVIVED.get(function, []):
        calls_after = after[:1] if way.is_at_once else after
        if (not way.codes or code in way.codes) and (not way.by or set(way.by) & set(calls_after)):
            return True
    return False


def fails_rightly(route: Route, state: State, fault: tuple[str, int, int], expected: object) -> bool:
    """Takes a route with a fault and checks what came of it; returns whether there was such a call."""
    function, code, nth = fault
    what = f"{route}: call {nth} of {function} = {code}"
    array = route.make(state.world)
    state.assert_as_before(f"before {what}", route.held)
    references = sys.getrefcount(array)
    state.control.set("log", THIS_THREAD)  # the thread that frees copies may still be in a call of the one before
    state.control.clear()
    state.control.fault(function, code, nth, by="this")
    result = with_a_fault(route, state.world, array)
    is_reached = state.control.pending_faults() == 0
    state.control.clear_faults()
    calls = [call.name for call in state.control.calls()]
    state.control.set("log", EVERY_THREAD)
    if isinstance(result, cd.DriverError):
        assert is_reached, f"{what}: {result}"
        assert (result.call, result.code) == (function, code), f"{what}: {result}"
        assert function in str(result), f"{what}: {result}"
    elif isinstance(result, Exception):
        assert is_reached, f"{what}: {result!r}"
    elif is_reached and route.use in TOLD and not is_of_no_elements(route, function):
        assert "offers" in str(result) and function in str(result), f"{what}: {result}"
    else:
        found = routes.told(result)
        assert found == expected, f"{what}: {found} for {expected}"
        is_any = is_of_no_elements(route, function)
        assert is_any or not is_reached or is_survived(fault, calls), f"{what}: not raised, {calls}"
    del result
    state.assert_as_before(what, route.held, lambda: sys.getrefcount(array) == references)
    return is_reached


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("by", ["this", "other"])
@pytest.mark.parametrize("use", ["view: __dlpack__, copy", "view: __dlpack__, host copy", "view: consume"])
def test_a_failure_while_something_is_freed(by: Any, use: str, state: State) -> None:
    """A deleter cannot raise: the failure is survived, and at worst the driver's memory of one copy is lost."""
    world, control, lost = state.world, state.control, 0
    for producer in ("device", "device, ready", "pinned", "managed"):
        route = Route(producer, use)
        expected, functions = calls_of(route, state)
        for function in functions:
            for nth in (1, 2):
                result = route.take(world, route.make(world))
                control.fault(function, UNKNOWN, nth, by=by)
                del result
                time.sleep(0.002)
                control.clear_faults()
                again = route.run(world, route.make(world))
                assert again == expected, f"{route}: {function} {nth} by {by}"
                lost += state.lose("allocations")
    assert lost <= 8, "some faults lose the memory of their copy, and no more"
