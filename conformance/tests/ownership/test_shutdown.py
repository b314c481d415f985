"""Interpreters that end with live tensors in every kind of hand: exit code 0, and nothing printed."""

from __future__ import annotations

import pytest

from conformance.tests.interpreter.process import on_the_simulator
from conformance.tests.ownership import native
from conformance.tests.ownership.subprocesses import EACH_INTERPRETER, Interpreter

BEFORE = """
    import atexit, ctypes, gc, os, sys, threading, time
    import cai_dlpack as cd
    import conformance.tests.interpreter.end
    from cai_conformance import abi
    from conformance.tests.ownership import native
    from conformance.tests.doubles.producers import Cai, cai, interface

    def tensor_of(producer):
        return abi.consume(cd.view(producer, device_id=0).__dlpack__(stream=-1, max_version=(1, 3)))

    def pointers(tensor):
        return ctypes.c_void_p(tensor.deleter), ctypes.c_void_p(tensor.address)

    class Released(Cai):
        def __del__(self):
            gc.isenabled()
"""

HOLDERS = {
    "a global": """
        view = cd.view(cai(), device_id=0)
        capsule = view.__dlpack__(stream=-1)
        tensor = tensor_of(Released(interface()))
        imported = cd.from_dlpack(abi.make().capsule())
    """,
    "a cycle": """
        producer = Released(interface())
        producer.me = producer
        producer.view = cd.view(producer, device_id=0)
        producer.capsule = producer.view.__dlpack__(stream=-1)
    """,
    "a daemon thread": """
        def keep():
            view = cd.view(Released(interface()), device_id=0)
            while True:
                view = cd.from_dlpack(view.__dlpack__(stream=-1))
                view = cd.view(Released(interface()), device_id=0)
        threading.Thread(target=keep, daemon=True).start()
        time.sleep(0.01)
    """,
    "a daemon thread that sleeps": """
        def keep():
            view = cd.view(Released(interface()), device_id=0)
            time.sleep(1000)
        threading.Thread(target=keep, daemon=True).start()
        time.sleep(0.01)
    """,
    "native threads that delete while it ends": """
        for i in range(40):
            native.without_gil().release_later(*pointers(tensor_of(Released(interface()))), 500 * i)
    """,
    "a storm as it ends": """
        tensors = [tensor_of(Released(interface())) for _ in range(500)]
        threading.Thread(target=lambda: native.storm(tensors, gil=False, threads=3), daemon=True).start()
    """,
    "a full queue": """
        native.storm([tensor_of(Released(interface())) for _ in range(1000)], gil=True)
    """,
    "atexit, before ours": """
        tensor = []
        atexit.register(lambda: abi.release(tensor[0]))
        tensor.append(tensor_of(Released(interface())))
    """,
    "atexit, after ours": """
        tensor = tensor_of(Released(interface()))
        atexit.register(lambda: native.storm([tensor], gil=True))
        view = cd.view(cai(), device_id=0)
        atexit.register(lambda: cd.from_dlpack(view.__dlpack__(stream=-1)))
    """,
    "atexit, without the GIL, after the gate": """
        tensors = []
        atexit.register(lambda: native.storm(tensors, gil=False))
        tensors.extend(tensor_of(Released(interface())) for _ in range(10))
    """,
    "a C static": """
        native.without_gil().keep(*pointers(tensor_of(Released(interface()))))
    """,
    "a C static, on a thread": """
        native.without_gil().keep_for_a_thread(*pointers(tensor_of(Released(interface()))))
    """,
    "an exception in flight": """
        tensor = tensor_of(Released(interface()))
        def work():
            view = cd.view(Released(interface()), device_id=0)
            raise SystemExit(0)
        work()
    """,
    "os._exit": """
        view = cd.view(Released(interface()), device_id=0)
        native.without_gil().release_later(*pointers(tensor_of(cai())), 0)
        os._exit(0)
    """,
    "an emptied atexit": """
        native.without_gil().keep(*pointers(tensor_of(Released(interface()))))
        atexit._clear()
    """,
    "an emptied atexit, and native threads that delete while it ends": """
        for i in range(40):
            native.without_gil().release_later(*pointers(tensor_of(Released(interface()))), 500 * i)
        atexit._clear()
    """,
    "nobody": "",
    "a second thread's first owner": """
        thread = threading.Thread(target=lambda: globals().update(kept=cd.view(cai(), device_id=0)))
        thread.start(); thread.join()
    """,
}

RUNS = native.figure(20, 500)
# Of each holder, so that all together are the figure.
EACH = max(1, -(-RUNS // len(HOLDERS)))


@pytest.mark.parametrize("holder", HOLDERS)
@EACH_INTERPRETER
def test_ends_silently_with_tensors_held_by(holder: str, interpreter: Interpreter) -> None:
    for _ in range(EACH):
        assert interpreter.run(BEFORE, HOLDERS[holder]) == (0, "")


@EACH_INTERPRETER
def test_what_comes_after_the_end_is_leaked_and_counted(interpreter: Interpreter) -> None:
    """Registered first, so that it runs after the gate has closed."""
    code = """
        tensors = []

        def after():
            before = cd.stats()
            native.storm(tensors[:7], gil=False)
            after = cd.stats()
            assert after["leaked_at_exit"] - before["leaked_at_exit"] == 7, after
            assert after["pending"] == 0
            abi.release(tensors[7])
            assert cd.stats()["released"] - before["released"] == 2, "with the GIL it is released still"
            os.write(1, b"done")

        atexit.register(after)
        tensors.extend(tensor_of(cai()) for _ in range(8))
    """
    answer = interpreter.run(BEFORE, code)
    assert answer == (0, "done")


@EACH_INTERPRETER
def test_what_waits_at_the_end_is_released(interpreter: Interpreter) -> None:
    code = """
        ended = []

        class Counted(Cai):
            def __del__(self):
                ended.append(1)

        def after():
            os.write(1, str(len(ended)).encode())

        atexit.register(after)
        native.storm([tensor_of(Counted(interface())) for _ in range(300)], gil=True)
    """
    answer = interpreter.run(BEFORE, code)
    assert answer == (0, "300")


@EACH_INTERPRETER
def test_the_end_waits_for_what_the_reaper_is_at(interpreter: Interpreter) -> None:
    code = """
        class Slow(Cai):
            def __del__(self):
                started.set()
                time.sleep(0.2)
                os.write(1, b"ended ")

        started = threading.Event()
        # One: a second would keep this thread, too, until the first has ended.
        tensor = tensor_of(Slow(interface()))
        native.without_gil().release_later(*pointers(tensor), 20_000)
        # A C call, in which no pending call runs: the reaper is the one.
        native.without_gil().sit(100_000)
        assert started.is_set()
    """
    answer = interpreter.run(BEFORE, code)
    assert answer == (0, "ended ")


@EACH_INTERPRETER
def test_the_end_releases_what_neither_the_reaper_nor_a_pending_call_comes_to(interpreter: Interpreter) -> None:
    """The reaper is at something else until the gate is closed, and there is no place for a pending call."""
    code = """
        from functools import partial

        class Slow(Cai):
            def __del__(self):
                started.set()
                time.sleep(0.3)

        class Counted(Cai):
            def __del__(self):
                ended.append(1)

        started, ended = threading.Event(), []
        # Registered before ours, so that it runs after it.
        atexit.register(lambda: os.write(1, str(len(ended)).encode()))
        slow, tensors = tensor_of(Slow(interface())), [tensor_of(Counted(interface())) for _ in range(3)]
        deleters = (ctypes.c_void_p * 3)(*(tensor.deleter for tensor in tensors))
        addresses = (ctypes.c_void_p * 3)(*(tensor.address for tensor in tensors))
        took = (ctypes.c_int64 * 3)()
        # After ours, so that they run before it; and in C, since between two byte codes pending calls run.
        library = native.with_gil()
        atexit.register(partial(library.storm, deleters, addresses, took, ctypes.c_size_t(3), ctypes.c_size_t(1)))
        atexit.register(library.fill_pending_calls)
        native.without_gil().release_later(*pointers(slow), 20_000)
        native.without_gil().sit(100_000)
        assert started.is_set()
    """
    answer = interpreter.run(BEFORE, code)
    assert answer == (0, "3")


@EACH_INTERPRETER
@pytest.mark.parametrize(
    "call",
    [
        "cd.view(np.zeros(3))",
        "cd.explain(cai(), device_id=0)",
        "cd.view(cai(), device_id=0).__dlpack__(max_version=(1, 3), stream=-1)",
        "contextlib.suppress(TypeError).__exit__(*refused())",
    ],
)
def test_what_the_reaper_s_thread_has_kept_ends_with_it(call: str, interpreter: Interpreter) -> None:
    """A finaliser of `threading.local` that calls this library, and one that takes the GIL (NumPy's deleter)."""
    code = f"""
        import contextlib
        import numpy as np

        local, main = threading.local(), threading.get_ident()

        def refused():
            try:
                cd.view(3)
            except TypeError as error:
                return type(error), error, None

        class Last:
            def __del__(self):
                self.kept = {call}
                print(threading.get_ident() != main, flush=True)

        class Array(np.ndarray):
            def __del__(self):
                if threading.get_ident() != main:
                    local.last, local.cached = Last(), cd.view(np.zeros(3))

        array = np.zeros(3).view(Array)
        tensor = abi.consume(cd.to_dlpack(array, max_version=(1, 3)))
        del array
        # The main thread runs no byte code meanwhile.
        thread = threading.Thread(target=lambda: (time.sleep(0.05), native.storm([tensor], gil=False), time.sleep(0.1)))
        thread.start()
        thread.join()
    """
    answer = interpreter.run(BEFORE, code)
    assert answer == (0, "True\n")


@EACH_INTERPRETER
def test_where_no_thread_can_be_had_the_pending_call_releases(interpreter: Interpreter) -> None:
    code = """
        import pathlib, resource, weakref
        from conformance.tests.ownership.waiting import until

        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
        limits = resource.getrlimit(resource.RLIMIT_AS)
        # Room for objects, and none for the stack of a thread.
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (4 << 20), limits[1]))
        alive = weakref.ref(producer := cai())
        tensor = tensor_of(producer)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        assert "cai-dlpack" not in {
            (task / "comm").read_text().strip() for task in pathlib.Path("/proc/self/task").iterdir()
        }
        del producer
        native.storm([tensor], gil=True)
        assert until(lambda: alive() is None, 5)
    """
    answer = interpreter.run(BEFORE, code)
    assert answer == (0, "")


#: What a finaliser calls at the end of the interpreter, each in a process of its own: what is refused, what is not, and
#: what goes on until it asks for something that has ended.
CALLS = {
    "view": ["cd.view(5)", "cd.view(array, device_id=0)", "cd.view(array, device_id='x')", "cd.view()"],
    "from_cai": ["cd.from_cai(5)"],
    "from_dlpack": ["cd.from_dlpack(5)", "cd.from_dlpack(view.__dlpack__(stream=-1))"],
    "to_dlpack": ["cd.to_dlpack(5)", "cd.to_dlpack(array, device_id=0, stream=-1)"],
    "to": ["cd.to(5, 'numpy')", "cd.to(view, 'no such')"],
    "explain": ["cd.explain(5)", "cd.explain(view, to='torch')"],
    "join": ["cd.join([view], on=1)", "cd.join([5], on=1)"],
    "use_stream": ["cd.use_stream(1, device_id=0)", "cd.use_stream('x')"],
    "policy": ["cd.policy(sync='none')", "cd.policy(sync='x')"],
    "share": ["cd.share(view)", "cd.share(view, key=5)"],
    "open": ["cd.open(5)", "cd.open(b'x', key=b'y')"],
    "split_masked": ["cd.split_masked(5)"],
    "DType": ["cd.DType('x')", "cd.DType(5)"],
    "on": ["view.on(1)", "view.on('x')", "view.on(0)"],
    "consume": ["view.consume(1).__enter__()", "view.consume('x')"],
    "__dlpack__": ["view.__dlpack__(stream='x')", "view.__dlpack__(max_version=1)"],
    "dict": ["view.__cuda_array_interface__", "view.to_cai()"],
    "present_as": ["view.present_as('host')", "view.present_as(5)"],
    "parts": ["view.field('x')", "view[5]", "view.device", "view.shape", "repr(view)"],
    "synchronize": ["view.synchronize()"],
    "copies": ["cd.from_dlpack(view, copy=True)", "view.__dlpack__(copy=True)"],
    "numpy": ["view.__array__()", "memoryview(view)"],
}


@pytest.mark.parametrize("calls", CALLS)
@EACH_INTERPRETER
def test_what_a_finaliser_calls_at_the_end_is_refused_or_done(calls: str, interpreter: Interpreter) -> None:
    """PyO3 refuses to count calls by then, which must neither end the process nor lose a refusal."""
    code = """
        class Last:
            def __init__(self, code):
                self.code = code
            def __del__(self, cd=cd, eval=eval, write=os.write, Exception=Exception, array=cai()):
                try:
                    eval(self.code, {"cd": cd, "array": array, "view": cd.view(array, device_id=0)})
                except Exception as refused:
                    write(1, type(refused).__name__.encode() + b" ")
                else:
                    write(1, b"done ")

        last = [Last(code) for code in CODES]
    """
    # Nothing is converted before the end: what is made at the first call is made then.
    exit_code, printed = interpreter.run(f"CODES = {CALLS[calls]!r}\n", BEFORE, code)
    assert (exit_code, len(printed.split())) == (0, len(CALLS[calls])), printed


@pytest.mark.parametrize("call", ["cd.view(array)", "cd.view(cai(shape=5))", "cd.view(cai(typestr='x'))"])
@EACH_INTERPRETER
def test_the_first_call_of_all_may_be_a_finaliser_s(call: str, interpreter: Interpreter) -> None:
    """PyO3 looks once whether there is an interpreter, and has looked by then."""
    code = f"""
        class Last:
            def __del__(self, cd=cd, cai=cai, array=cai(), write=os.write, BaseException=BaseException):
                try:
                    {call}
                except BaseException as refused:
                    write(1, type(refused).__name__.encode())

        last = Last()
    """
    exit_code, printed = interpreter.run(BEFORE, code)
    assert exit_code == 0 and (printed == "DriverError" or printed.endswith("Refusal")), printed


OPEN_BLOCK = """
import cai_dlpack as cd
from cai_conformance import Sim
from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.simulated.machine import Machine
machine = Machine(Sim())
machine.set_current(0)
data = machine.device_memory(64)
view = cd.view(Cai(interface(data=(data, False), stream=machine.stream())), device_id=0)
block = view.consume(machine.stream())
lent = block.__enter__()
"""


def test_a_block_that_is_open_as_the_interpreter_ends_ends_silently() -> None:
    """No module is left by then to issue the warning with."""
    done = on_the_simulator(OPEN_BLOCK)
    assert (done.returncode, done.stderr) == (0, "")
