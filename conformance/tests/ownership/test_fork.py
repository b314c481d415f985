"""A forked child: its parent's owners are never released there, its own are, on every kind of thread."""

from __future__ import annotations

import os
import sys
import textwrap

import pytest

from conformance.tests.interpreter.free_threaded import FREE_THREADED
from conformance.tests.ownership import native
from conformance.tests.ownership.subprocesses import EACH_INTERPRETER, Interpreter, run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="not run: this platform has no fork")

BEFORE = """
    import contextlib, ctypes, gc, os, threading, time, warnings, weakref
    import cai_dlpack as cd
    from cai_conformance import abi
    from conformance.tests.ownership import native
    from conformance.tests.interpreter.free_threaded import FREE_THREADED, elsewhere
    from conformance.tests.doubles.producers import Cai, cai, interface
    from conformance.tests.ownership.waiting import until
    warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: a process with threads forks

    # Before any fork: a child would wait for locks of the standard library that others hold at the fork.
    native.with_gil(), native.without_gil()

    def tensor_of(producer):
        return abi.consume(cd.view(producer, device_id=0).__dlpack__(stream=-1, max_version=(1, 3)))

    def in_child(body):
        child = os.fork()
        if child == 0:
            try:
                body()
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    def in_many_children(body, stop, threads):
        try:
            for _ in range(FORKS):
                in_child(body)
        finally:
            stop.set()
        for thread in threads: thread.join()

    def release_later(tensor, delay=0.0):
        import ctypes
        native.without_gil().release_later(
            ctypes.c_void_p(tensor.deleter), ctypes.c_void_p(tensor.address), int(delay * 1e6))
"""

CASES = {
    "the parent's owners are leaked by the child and counted": """
        alive = weakref.ref(producer := cai())
        view, tensor = cd.view(producer, device_id=0), tensor_of(producer)
        del producer
        live = cd.stats()["live"]

        def child():
            global view
            abi.release(tensor)
            del view
            gc.collect()
            assert alive() is not None
            # The view, and the tensor's own reference to its view: all that were held here.
            assert cd.stats()["leaked_at_exit"] == 2, cd.stats()
            assert cd.stats()["live"] == live - 2

        in_child(child)
        assert cd.stats()["live"] == live
        abi.release(tensor)
        del view
        assert alive() is None
    """,
    "the child's own owners are released": """
        tensor_of(cai())

        def child():
            released = cd.stats()["released"]
            for release in (
                abi.release,
                lambda tensor: native.storm([tensor], gil=True),
                lambda tensor: native.storm([tensor], gil=False),
                release_later,
            ):
                alive = weakref.ref(producer := cai())
                tensor = tensor_of(producer)
                del producer
                release(tensor)
                assert until(lambda: alive() is None, 5), release

        in_child(child)
    """,
    "in a finaliser that the main thread runs": """
        class Forks(Cai):
            def __del__(self):
                children.append(os.fork())

        children, held = [], [tensor_of(Forks(interface())), *(tensor_of(cai()) for _ in range(5))]
        parent = os.getpid()
        native.storm(held, gil=True)
        ctypes.pythonapi.Py_MakePendingCalls()  # before 3.13 the reaper would come first
        assert until(lambda: children, 5)
        if os.getpid() == parent:
            assert os.waitpid(children[0], 0)[1] == 0
        alive = weakref.ref(producer := cai())
        own = tensor_of(producer)
        del producer
        native.storm([own], gil=True)
        # The parent's are pending in the parent alone, and this one, unless it has ended at once.
        pending = cd.stats()["pending"]
        ended = until(lambda: alive() is None, 5)
        if os.getpid() != parent:
            os._exit(0 if pending <= 1 and ended else 1)
        assert ended and until(lambda: cd.stats()["pending"] == 0, 5)
    """,
    "in a finaliser that the reaper runs, whose thread is the child's only one": """
        class Forks(Cai):
            def __del__(self):
                children.append(os.fork())

        children, held = [], [tensor_of(Forks(interface())), *(tensor_of(cai()) for _ in range(5))]
        with contextlib.suppress(cd.Refusal):
            cd.view(cai())  # the driver is asked, so that the main thread ends nothing from here on
        native.storm(held, gil=True)
        native.without_gil().sit(300_000)
        assert until(lambda: children, 5)
        late = time.monotonic() + 10
        while (ended := os.waitpid(children[0], os.WNOHANG)) == (0, 0) and time.monotonic() < late:
            time.sleep(0.01)
        assert ended == (children[0], 0), ended
    """,
    "a child of a child": """
        tensor_of(cai())

        def grandchild():
            alive = weakref.ref(producer := cai())
            release_later(tensor_of(producer))
            del producer
            assert until(lambda: alive() is None, 5)

        def child():
            release_later(tensor_of(cai()))
            assert until(lambda: cd.stats()["pending"] == 0, 5)
            in_child(grandchild)

        in_child(child)
    """,
    "what the parent had queued is not the child's": """
        tensors = [tensor_of(cai()) for _ in range(1000)]
        live = cd.stats()["live"]
        hold = threading.Lock()

        def child():
            assert cd.stats()["pending"] == 0
            # Whatever was queued at the fork is given up; the rest is held by what the child has.
            assert cd.stats()["released"] >= released
            tensor = tensor_of(cai())
            release_later(tensor)
            assert until(lambda: cd.stats()["pending"] == 0, 5)

        released = cd.stats()["released"]
        native.storm(tensors, gil=True)
        in_child(child)
        assert until(lambda: cd.stats()["pending"] == 0, 5)
        assert cd.stats()["released"] == released + 2000
    """,
    "a fork while something waits": """
        import sys
        tensors = [tensor_of(cai()) for _ in range(10)]

        def child():
            assert cd.stats()["pending"] == 0
            alive = weakref.ref(producer := cai())
            release_later(tensor_of(producer))
            del producer
            assert until(lambda: alive() is None, 5), "nobody is told where the queue was not empty"
            own = [tensor_of(cai()) for _ in range(3)]

            def count():
                native.storm(own, gil=True)
                waits = cd.stats()["pending"]
                assert waits == 3 or FREE_THREADED and waits < 3, "what the parent had queued is counted here too"

            thread = threading.Thread(target=count)
            thread.start(); thread.join()

        def keep_the_gil():
            native.storm(tensors, gil=True)
            # Without a GIL to keep, the reaper need not wait.
            assert cd.stats()["pending"] == 10 or FREE_THREADED
            in_child(child)

        # A thread that runs no pending calls, and is not asked for the GIL.
        interval = sys.getswitchinterval()
        sys.setswitchinterval(10)
        thread = threading.Thread(target=keep_the_gil)
        thread.start(); thread.join()
        sys.setswitchinterval(interval)
        assert until(lambda: cd.stats()["live"] == 0, 5)
    """,
    "a child that sits in a C call": """
        tensor_of(cai())

        def child():
            ended = []

            class Owner(Cai):
                def __del__(self): ended.append(time.monotonic())

            release_later(elsewhere(lambda: tensor_of(Owner(interface()))), 0.02)
            native.without_gil().sit(300_000)
            woke = time.monotonic()
            assert ended and ended[0] < woke - 0.1, "only a reaper does this"

        in_child(child)
    """,
    "forks while other threads release": """
        stop = threading.Event()

        # Large storms, so that few threads end: glibc frees a thread's memory a second time in a child that
        # is forked as the thread ends, with whatever library that has values of a thread.
        def churn():
            while not stop.is_set():
                native.storm([tensor_of(cai()) for _ in range(5000)], gil=False, threads=2)

        threads = [threading.Thread(target=churn) for _ in range(2)]
        for thread in threads: thread.start()

        def child():
            alive = weakref.ref(producer := cai())
            release_later(tensor_of(producer))
            del producer
            assert until(lambda: alive() is None, 5)

        in_many_children(child, stop, threads)
        assert until(lambda: cd.stats()["pending"] == 0, 5)
    """,
    "a child that ends as a program does": """
        tensor = tensor_of(cai())
        child = os.fork()
        if child == 0:
            kept = cd.view(cai(), device_id=0)
            abi.release(tensor)
            raise SystemExit(0)
        assert os.waitpid(child, 0)[1] == 0
    """,
    "a child of a parent that has imported only": """
        def child():
            alive = weakref.ref(producer := cai())
            release_later(tensor_of(producer))
            del producer
            assert until(lambda: alive() is None, 5)

        in_child(child)
    """,
    "a child is refused the driver, whoever was inside it at the fork": """
        from cai_conformance import Sim
        from conformance.tests.simulated.machine import Machine

        machine = Machine(Sim())
        ready, waiting, memory = machine.stream(), machine.stream(), machine.device_memory(64)
        producer = Cai(interface(data=(memory, False), stream=ready))
        view = cd.view(producer)
        stop = threading.Event()

        def order():
            while not stop.is_set():
                view.on(waiting)

        def copy():
            while not stop.is_set():
                abi.release(abi.consume(view.__dlpack__(stream=waiting, max_version=(1, 3), copy=True)))

        threads = [threading.Thread(target=work) for work in (order, order, copy)]
        for thread in threads: thread.start()

        def child():
            for ask in (
                lambda: cd.view(producer),
                lambda: view.on(waiting),
                lambda: view.__dlpack__(stream=waiting),
                lambda: view.__dlpack__(stream=waiting, max_version=(1, 3), copy=True),
                lambda: view.synchronize(),
                lambda: cd.join([view], on=waiting),
            ):
                try:
                    ask()
                except cd.DriverError as error:
                    assert error.name == "NO_DRIVER_AFTER_FORK" and error.code is None, error
                    assert "forked" in str(error), error
                else:
                    raise AssertionError("accepted")
            # What asks the driver nothing goes on.
            assert cd.view(producer, device_id=0).ptr == memory
            assert cd.from_dlpack(abi.make().capsule()).memory == "host"

        in_many_children(child, stop, threads)
        assert view.on(waiting).stream == waiting
    """,
    "an imported tensor's deleter is not called by the child": """
        made = abi.make()
        view = cd.from_dlpack(made.capsule())

        def child():
            global view
            del view
            assert made.released == 0
            assert cd.stats()["leaked_at_exit"] == 1

        in_child(child)
        del view
        assert made.released == 1
    """,
}


# One in some thousand met a lock of CPython's, when the reaper attached anew each time.
FORKS = native.figure(30, 300)


@pytest.mark.parametrize("case", CASES)
@EACH_INTERPRETER
def test_fork(case: str, interpreter: Interpreter) -> None:
    if case == "forks while other threads release" and (FREE_THREADED or interpreter.name.endswith("t")):
        pytest.skip("not run: free-threaded CPython's child keeps the locks of objects that were taken at the fork")
    assert interpreter.run(f"FORKS = {FORKS}\n", BEFORE, CASES[case], seconds=120 + FORKS) == (0, "")


# What makes something on first use, in C all the way: a thread that is inside is not asked for the GIL.
FIRST = {
    "a view": "partial(cd.view, producer, device_id=0)",
    "a view of DLPack": "partial(cd.from_dlpack, numpy.zeros(3))",
    "a capsule": "partial(cd.to_dlpack, producer, device_id=0)",
    "a dict": "partial(getattr, cd.view(producer, device_id=0), '__cuda_array_interface__')",
    "a description": "partial(cd.explain, producer)",
    "a loan": "partial(cd.view(producer, device_id=0).consume, 1)",
    "a policy": "partial(cd.policy, sync='event')",
    "a warning": "partial(cd.view, zero, device_id=0)",
    "a mapping": "partial(cd.view, mapping, device_id=0)",
    "a coroutine": "partial(cd.view(producer, device_id=0).consume(1).__aenter__)",
    "an array of a library": "partial(cd.to, numpy.zeros(3), 'numpy')",
}

PREPARED = """
    import asyncio, gc, os, signal, sys, threading, types, warnings
    from functools import partial
    import numpy
    import cai_dlpack as cd
    from conformance.tests.ownership import native
    from conformance.tests.doubles.producers import interface
    warnings.simplefilter("ignore")

    class Producer:
        __cuda_array_interface__ = interface()

    class Zero:
        __cuda_array_interface__ = interface(stream=0)

    class Mapping:
        __cuda_array_interface__ = types.MappingProxyType(interface())

    producer, zero, mapping = Producer(), Zero(), Mapping()
    use = USE
"""

FIRST_USE = """
    sit = partial(native.with_gil().sit, 100_000)
    each, inside = partial.__call__, threading.Lock()

    def first():
        inside.release()
        list(map(each, [sit, use]))

    inside.acquire()
    thread = threading.Thread(target=first)
    thread.start()
    # The GIL comes back here where the other thread lets go of it: in the midst of its first use, or after it.
    inside.acquire()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        use()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
"""


@pytest.mark.parametrize("use", FIRST)
def test_a_fork_in_the_midst_of_a_first_use(use: str) -> None:
    """The child is not left waiting for a thread that it does not have."""
    code = textwrap.dedent(PREPARED).replace("USE", FIRST[use]) + textwrap.dedent(FIRST_USE)
    assert run([sys.executable], code) == (0, "")


# A collection runs Python code in the midst of what allocates: it lets go of the GIL, and another thread forks.
FIRST_COLLECTED = """
    collecting, forked, forks = threading.Event(), threading.Event(), []

    def collect(phase, _):
        if phase == "start" and threading.current_thread() is thread and len(forks) < 30:
            forked.clear()
            collecting.set()
            forked.wait()

    def first():
        kept = [{} for _ in range(300)]  # none is left that could be used again
        gc.set_threshold(1, 1, 1)
        use()
        gc.set_threshold(700, 10, 10)
        gc.callbacks.clear()
        collecting.set()

    thread = threading.Thread(target=first)
    gc.callbacks.append(collect)
    thread.start()
    while collecting.wait() and gc.callbacks:
        collecting.clear()
        child = os.fork()
        if child == 0:
            gc.callbacks.clear()
            signal.alarm(20)
            use()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        forks.append(child)
        forked.set()
    thread.join()
    assert forks
"""


@pytest.mark.skipif(
    FREE_THREADED, reason="not run: free-threaded, CPython collects after 512 objects of a thread, not at one"
)
@pytest.mark.parametrize("use", FIRST)
def test_a_fork_in_a_collection_of_a_first_use(use: str) -> None:
    code = textwrap.dedent(PREPARED).replace("USE", FIRST[use]) + textwrap.dedent(FIRST_COLLECTED)
    assert run([sys.executable], code) == (0, "")
