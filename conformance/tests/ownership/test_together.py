"""Threads that convert, claim, change and drop at once. With the GIL they take turns; on free-threaded
Python they do not, and what holds here is the library's own work.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import textwrap
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import cai_dlpack as cd
import cai_example_peer
import numpy as np
import pytest
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import FAKE_POINTER, Cai, Dlpack, cai, host_memory, interface
from conformance.tests.interpreter.free_threaded import FREE_THREADED
from conformance.tests.ownership import native
from conformance.tests.ownership.subprocesses import run
from conformance.tests.ownership.together import ROUNDS, THREADS, meanwhile, switching_often, together
from conformance.tests.ownership.waiting import until


@pytest.fixture(autouse=True)
def _often() -> Iterator[None]:
    with switching_often():
        yield


@pytest.mark.skipif(not FREE_THREADED, reason="not run: about a free-threaded interpreter")
def test_the_import_leaves_the_gil_off() -> None:
    """A module without `Py_mod_gil` turns the GIL on, with a warning."""
    code = "import sys, cai_dlpack, cai_example, cai_example_peer; print(sys._is_gil_enabled())"
    assert run([sys.executable, "-W", "error"], code) == (0, "False\n")


def ways(array: Any) -> list[Callable[[], object]]:
    """Every conversion of one object, each with what a consumer would do next."""
    return [
        lambda: cd.view(array),
        lambda: cd.view(array, device_id=0).__cuda_array_interface__["shape"],
        lambda: cd.from_dlpack(cd.view(array, device_id=0).__dlpack__(stream=-1, max_version=(1, 3))),
        lambda: cd.from_dlpack(cd.to_dlpack(array, device_id=0, stream=-1)),
        lambda: abi.release(abi.consume(cd.to_dlpack(array, stream=-1, device_id=0, max_version=(1, 3)))),
        lambda: weakref.ref(cd.view(array, device_id=0))(),
        lambda: cd.view(cd.view(array, device_id=0), read_only=True),
        lambda: cd.to_dlpack(array, device_id=0),  # and nobody consumes it
    ]


def test_one_object_is_converted_by_all() -> None:
    array = cai(data=(0, False), shape=(0, 3))  # without elements, so that no driver is asked
    references, before = sys.getrefcount(array), cd.stats()
    conversions = ways(array)

    def work() -> None:
        for number in range(ROUNDS):
            conversions[number % len(conversions)]()

    together(*[work] * THREADS)
    conversions.clear()
    gc.collect()
    assert sys.getrefcount(array) == references
    assert cd.stats() == {**before, "released": cd.stats()["released"]}


def test_one_view_is_exported_by_all() -> None:
    """Its count is shared, and the last to let go releases: once."""
    made = abi.make()
    view: Any = cd.from_dlpack(made.capsule())
    exports: list[Callable[[], object]] = [
        lambda: view.__dlpack__(),
        lambda: cd.from_dlpack(view),
        lambda: cd.view(view),
        lambda: view.present_as("host"),
        lambda: np.from_dlpack(view),
        lambda: memoryview(view).release(),
        lambda: cd.explain(view),
        lambda: repr(view),
    ]

    def work() -> None:
        for number in range(ROUNDS // 2):
            exports[number % len(exports)]()

    together(*[work] * THREADS)
    assert made.released == 0
    exports.clear()
    view = None
    gc.collect()
    assert until(lambda: made.released == 1)


# Two arrays: whoever mixes them up reads outside of one. Fresh values each time, which nobody else keeps.
def first() -> dict[str, Any]:
    return {"shape": (2000, 3), "typestr": "<f4", "data": (FAKE_POINTER, False), "strides": None, "version": 3}


def second() -> dict[str, Any]:
    return {"shape": (5000,), "typestr": "<f8", "data": (2 * FAKE_POINTER, True), "strides": (16,), "version": 2}


def usual(values: dict[str, Any]) -> dict[str, Any]:
    return values


def with_descr(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "descr": [("", values["typestr"])]}


def careful(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "shape": list(values["shape"])}


class Subclass(dict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize("kind", [dict, Subclass])
@pytest.mark.parametrize("written", [usual, with_descr, careful])
def test_a_dict_that_another_thread_changes_is_read_at_one_moment(written: Any, kind: Any) -> None:
    shown = kind(written(first()))
    array = cai()
    array.interface = shown
    seen: set[tuple[object, ...]] = set()

    def change() -> None:
        shown.update(written(second()))
        shown.update(written(first()))

    def read() -> None:
        for _ in range(ROUNDS):
            view = cd.view(array, device_id=0)
            seen.add((view.shape, view.dtype, view.ptr, view.read_only, view.byte_strides))
            seen.add(("capsule", abi.read(cd.to_dlpack(array, device_id=0, writable=True)).data))

    with meanwhile(change):
        together(*[read] * (THREADS // 2))
    assert seen <= {
        ((2000, 3), "float32", FAKE_POINTER, False, (12, 4)),
        ((5000,), "float64", 2 * FAKE_POINTER, True, (16,)),
        ("capsule", FAKE_POINTER),
        ("capsule", 2 * FAKE_POINTER),
    }


def test_the_descr_of_a_dict_is_changed_by_another_thread() -> None:
    """Its one item is taken out of the list while it is looked at."""
    typestr = "<f4"
    descr: list[Any] = [("", typestr)]
    array = cai(descr=descr)

    def change() -> None:
        descr[0] = ("", typestr)  # nobody else's
        descr.clear()
        descr.append(("", typestr))

    def read() -> None:
        for _ in range(ROUNDS):
            with contextlib.suppress(ValueError):
                cd.view(array, device_id=0)

    with meanwhile(change):
        together(*[read] * (THREADS // 2))


def test_the_class_of_an_object_is_changed_by_another_thread() -> None:
    class Other(Cai):
        pass

    array = cai()

    def change() -> None:
        array.__class__ = Other
        array.__class__ = Cai

    def read() -> None:
        for _ in range(ROUNDS):
            assert cd.view(array, device_id=0).shape == (2, 3)

    with meanwhile(change):
        together(*[read] * (THREADS // 2))


def test_views_are_dropped_by_other_threads() -> None:
    """Some views have a weak reference that a third thread reads or drops, or whose callback it runs."""
    ended, called = deque[int](), deque[int]()

    class Owner(Cai):
        def __del__(self) -> None:
            ended.append(1)

    views: deque[Any] = deque()
    references: deque[Any] = deque()
    rounds = ROUNDS // 4

    def make() -> None:
        for number in range(rounds):
            view = cd.view(Owner(interface()), device_id=0)
            if number % 2:
                references.append(weakref.ref(view, lambda _: called.append(1)))
            references.append(weakref.ref(view))
            views.append(view)
            views.append(abi.consume(view.__dlpack__(stream=-1)))

    def drop() -> None:
        taken = 0
        while taken < 2 * rounds:
            try:
                held = views.popleft()
            except IndexError:
                continue
            taken += 1
            if isinstance(held, abi.Read):
                abi.release(held, gil=taken % 3 != 0)

    def look() -> None:
        while references:
            try:
                references.popleft()()
            except IndexError:
                return

    before = cd.stats()["live"]
    with meanwhile(look), meanwhile(gc.collect):
        together(*[make] * (THREADS // 2), *[drop] * (THREADS // 2))
    references.clear()
    gc.collect()
    assert until(lambda: len(ended) == rounds * (THREADS // 2))
    assert cd.stats()["live"] == before
    assert cd.stats()["pending"] == 0


def test_native_threads_delete_while_python_threads_convert() -> None:
    def work() -> None:
        for _ in range(max(1, ROUNDS // 400)):
            tensors = [abi.consume(cd.view(cai(), device_id=0).__dlpack__(stream=-1)) for _ in range(100)]
            native.storm(tensors, gil=False, threads=2)

    before = cd.stats()["live"]
    together(*[work] * (THREADS // 2))
    gc.collect()
    assert until(lambda: cd.stats()["live"] == before and cd.stats()["pending"] == 0)


def test_an_argument_that_is_written_is_one_threads_alone() -> None:
    """And what several read may be read by all, unless one of them writes."""
    memory, address = host_memory(64)
    row = cd.from_dlpack(abi.make((4,), dtype=(abi.FLOAT, 64, 1), data=address).capsule())
    square = cd.from_dlpack(abi.make((2, 2), dtype=(abi.FLOAT, 64, 1), data=address).capsule())
    inside, counts = [0], deque[str]()

    def called_back() -> None:
        inside[0] += 1
        assert inside[0] == 1
        inside[0] -= 1

    def work() -> None:
        for number in range(ROUNDS // 4):
            try:
                if number % 2:
                    cai_example_peer.borrow_and_call(row, called_back)
                else:
                    cai_example_peer.elements(square)
                counts.append("taken")
            except BufferError as error:
                counts.append(error.rule)  # type: ignore[attr-defined]

    together(*[work] * THREADS)
    assert set(counts) <= {"taken", "view-in-use"}
    cai_example_peer.borrow_and_call(row, called_back)  # and nothing is left in the ledger
    assert memory


def test_types_come_and_go() -> None:
    """More than are remembered: each is known by its own table, or as having none."""
    tables = [exchange.table(exchange.Producer(abi.make((number + 1,)))) for number in range(4)]

    def work() -> None:
        for number in range(ROUNDS // 20):
            shape = (number % len(tables) + 1,)
            capsule = exchange.capsule(tables[number % len(tables)])
            body = {exchange.ATTRIBUTE: capsule}
            assert cd.view(type("Exchanger", (), body)()).shape == shape
            plain = type("Plain", (Cai,), {})(interface(shape=shape))
            assert cd.view(plain, device_id=0).shape == shape
            assert cd.from_dlpack(type("Speaker", (Dlpack,), {})(abi.make(shape))).shape == shape
            del plain

    with meanwhile(gc.collect):
        together(*[work] * THREADS)


def threads_that_warn() -> None:
    """Run by the test below: converts, and explains meanwhile, so that both have the warnings of the other's arrays."""
    arrays = [type(f"Kind{number}", (Cai,), {})(interface(stream=0)) for number in range(500)]
    issued = deque[tuple[type, str]]()
    warnings.showwarning = lambda message, category, *_: issued.append((category, str(message)))
    told: set[int] = set()

    def work() -> None:
        for array in arrays:
            cd.view(array, device_id=0)

    def explain() -> None:
        for array in arrays:
            told.add(len(cd.explain(array, device_id=0).warnings))

    together(*[work] * 4, *[explain] * 2)
    named = {text.split("Kind")[1].split()[0].strip("'.:;,") for _, text in issued}
    print(len(issued), {kind for kind, _ in issued} == {cd.StreamWarning}, len(named), told)


@pytest.mark.parametrize(("filtered", "issued"), [("always", 2000), ("default", 500)])
def test_each_warning_is_issued_as_often_as_the_filter_admits(filtered: str, issued: int) -> None:
    """Always: once for each conversion, on whichever thread. By default: once for each text and line, of all threads
    together. What `explain` collects is its own thread's, and no warning of another is among it."""
    code = f"from {__name__} import threads_that_warn; threads_that_warn()"
    for _ in range(native.figure(2, 30)):
        assert run([sys.executable, "-W", filtered], code) == (0, f"{issued} True 500 {{1}}\n")


FIRST = {
    "view": "cd.view(cai(), device_id=0)",
    "from_dlpack": "cd.from_dlpack(abi.make())",
    "to_dlpack": "cd.to_dlpack(cai(), device_id=0, stream=-1)",
    "__dlpack__": "cd.view(cai(), device_id=0).__dlpack__()",
    "an error": "cd.from_cai(cai(version='3'))",
    "the driver's error": "cd.view(cai())",
    "explain": "cd.explain(cai())",
    "an extension's own copy": "cai_example_peer.count(cd.from_dlpack(abi.make()))",
}


@pytest.mark.parametrize("what", FIRST)
def test_the_first_calls_come_at_once(what: str) -> None:
    """Names, layouts, the reaper and the classes of errors are made once, on first use."""
    code = """
        import threading
        import cai_dlpack as cd
        import cai_example_peer
        from cai_conformance import abi
        from conformance.tests.doubles.producers import cai
        from conformance.tests.ownership.together import together

        abi.Made.__dlpack__ = lambda made, **_: made.capsule()
        abi.Made.__dlpack_device__ = lambda made: (1, 0)

        def first():
            try:
                {what}
            except Exception as error:
                seen.add(type(error))

        seen = set()
        together(*[first] * 16)
        assert len(seen) <= 1, seen
        assert cd.stats()["live"] == 0, cd.stats()
        assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
    """
    code = textwrap.dedent(code).format(what=FIRST[what])
    for _ in range(native.figure(3, 100)):
        assert run([sys.executable], code) == (0, "")


def test_the_interpreter_ends_while_threads_convert() -> None:
    """None of them makes a class: free-threaded CPython 3.14.4 hangs at its end where one does, without us.

    Nor does one release what another has made: it then hangs in one of some thousand runs (docs/ownership.md).
    """
    code = """
        import gc, threading, time
        import cai_dlpack as cd
        import conformance.tests.interpreter.end
        from cai_conformance import abi
        from conformance.tests.ownership import native
        from conformance.tests.doubles.producers import Cai, cai, interface

        class Owner(Cai):
            def __del__(self):
                gc.isenabled()

        class Still:
            __cuda_array_interface__ = interface(data=(0, False), shape=(0,))  # `Cai` counts how often it is read

        shared = Still()
        kinds = [type("Exchanger", (Cai,), {{}}) for _ in range(6)]

        def work(number):
            while True:
                cd.view(Owner(interface()), device_id=0)
                cd.from_dlpack(cd.view(shared).__dlpack__())
                cd.view(kinds[number](interface()), device_id=0)
                if number == 0:
                    native.storm([abi.consume(cd.to_dlpack(cai(), device_id=0, stream=-1))], gil=False)

        for number in range(6):
            threading.Thread(target=work, args=(number,), daemon=True).start()
        time.sleep({delay})
    """
    for number in range(native.figure(10, 300)):
        delay = 0.005 * (number % 10)
        assert run([sys.executable], textwrap.dedent(code).format(delay=delay)) == (0, "")
