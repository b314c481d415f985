"""Every route of the package has its row among the driver calls of docs/streams.md, and makes these calls."""

from __future__ import annotations

import json

import cai_dlpack as cd
import pytest

from conformance.tests.interpreter.process import on_the_simulator
from conformance.tests.streams.call_routes import CONSUMERS, DLPACK, READY, ROUTES, doors
from conformance.tests.streams.call_table import HOST, copy_orders, names, parts, routes, table
from conformance.tests.streams.random_orders import FACES

ORDERS, ROUTE_CALLS, PARTS, COPY_ORDERS = table(), routes(), parts(), copy_orders()
Measured = list[tuple[list[str], list[str]]]

# What neither takes nor makes an array, nor calls the driver; `__release_buffer__` is CPython's own, from 3.12 on.
NO_ROUTE = {
    "__release_buffer__",
    "stats",
    "policy",
    "DType",
    "InterchangeWarning",
    "StreamWarning",
    "VersionWarning",
    "ConsumeWarning",
}
# What is made of an import and an order, whose rows say what is called.
COMPOSED = {"to"}
# Between two processes, once for each hand-over: `src/share/tests.rs` has their calls, each failing in turn.
BETWEEN_PROCESSES = {"share", "open"}
# The other names by which a measured route is taken.
SAME = {
    "dlpack": "__dlpack__",
    "to_dlpack": "__dlpack__",
    "interface": "__cuda_array_interface__",
    "np.asarray": "__array__",
    "memoryview": "__buffer__",
}


@pytest.fixture(scope="module")
def measured() -> Measured:
    program = "from conformance.tests.streams.call_routes import main; main()"
    done = on_the_simulator(program)
    assert done.returncode == 0, done.stderr
    found: Measured = json.loads(done.stdout)
    return found


def test_every_public_function_and_method_is_taken() -> None:
    """A new one fails here by its name until its calls are in the page and measured."""
    taken = {*doors(), *FACES}
    taken |= {SAME[name] for name in taken if name in SAME}
    of_package = {
        name for name in cd.__all__ if callable(getattr(cd, name)) and not isinstance(getattr(cd, name), type)
    }
    of_view = {
        name
        for name, member in vars(cd.CaiView).items()
        if callable(member) and (not name.startswith("__") or "dlpack" in name or "array" in name or "buffer" in name)
    }
    assert (of_package | of_view) - NO_ROUTE - COMPOSED - BETWEEN_PROCESSES - taken == set()


def test_the_page_has_no_route_that_is_not_taken() -> None:
    assert {route for route, _, _ in ROUTE_CALLS} == set(ROUTES)


@pytest.mark.parametrize("route", ROUTES)
def test_these_calls_and_no_others(route: str, measured: Measured) -> None:
    wrong, seen = [], 0
    for (name, memory, ready, door), calls in measured:
        if name == route:
            seen += 1
            expected = ROUTE_CALLS.get((route, memory, ready))
            if calls != expected:
                wrong.append(f"{door} of {memory} ready on {ready}: {calls}, but the table has {expected}")
    assert wrong == []
    memories, of_route = ROUTES[route]
    assert seen == len(memories) * len(READY) * len(of_route)


def test_every_host_reader_makes_the_calls_of_the_host(measured: Measured) -> None:
    wrong, seen = [], set()
    for (name, memory, ready, door), calls in measured:
        if name == "host":
            seen.add(door)
            if calls != order(ready, "host", memory):
                wrong.append(f"{door} of {memory} ready on {ready}: {calls}")
    assert wrong == []
    assert {"synchronize", "to_dlpack", "np.from_dlpack", "memoryview"} <= seen


NUMBERS = {"A": 100, "B": 101, "1": 1, "2": 2, "host": HOST}


def order(ready: str, consumer: str, memory: str) -> list[str]:
    """The calls of an order on devices that share managed memory with the host."""
    if ready == "None":
        row = "None", "host" if consumer == "host" else "B"
    else:
        row = names(NUMBERS[ready], NUMBERS[consumer])
    return ORDERS[(*row, "pinned" if (row[1], memory) == ("host", "managed") else memory, "A's")]


def copy_calls(ready: str, consumer: str, memory: str) -> list[str]:
    """The calls of a copy, by the page's parts and by what the list under them says."""
    is_host_now = memory == "pinned" and ready == "None"
    names_stream = consumer in ("A", "B", "1", "2")
    found: list[str] = []
    for part in COPY_ORDERS[consumer]:
        if part == "order":
            found += order(ready, consumer if names_stream else "host", memory)
        elif part in ("elements", "end") and is_host_now:
            continue
        elif part == "end" and ready != "None" and memory in ("pinned", "managed"):
            back = asked(order(consumer, ready, memory), ready, consumer, memory) if ready != consumer else []
            found += PARTS["keep", consumer, memory] + back
        elif part == "end" and ready == "None":
            found += PARTS["keep", consumer, memory]
        elif part == "end":
            found += asked(order(consumer, ready, memory), ready, consumer, memory) if ready != consumer else []
        elif part == "stream":
            found += asked(PARTS[part, consumer, memory], ready, consumer, memory)
        else:
            found += PARTS[part, consumer, memory]
    if names_stream and consumer in ("1", "2") and memory in ("pinned", "managed") and not is_host_now:
        found.append("cuCtxGetCurrent")  # the view of the copy, which is made on a default stream
    return found


def asked(calls: list[str], ready: str, consumer: str, memory: str) -> list[str]:
    """These calls, with the question about memory of a pool if the view does not remember the answer."""
    if memory != "pool" or not {ready, consumer} & {"1", "2"}:
        return calls
    first, *rest = (call for call in calls if call != "cuPointerGetAttributes")
    return [first, *["cuPointerGetAttributes"] * (ready not in ("1", "2")), *rest]


COPIES = [
    (memory, ready, consumer)
    for memory in DLPACK
    for ready in READY
    for consumer in CONSUMERS
    if consumer != "None" or memory in ("pinned", "managed")
]


@pytest.mark.parametrize(("memory", "ready", "consumer"), COPIES, ids=map("-".join, COPIES))
def test_a_copy_is_made_of_its_parts(memory: str, ready: str, consumer: str, measured: Measured) -> None:
    (found,) = [calls for what, calls in measured if what == ["copy", memory, ready, consumer]]
    assert [call for call in found if call != "cuEventCreate"] == copy_calls(ready, consumer, memory)
