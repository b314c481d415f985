"""A daemon thread that the interpreter kills inside our code: the process ends as if it were not there.

Before 3.14 CPython ends such a thread by `pthread_exit`, and Rust cannot be unwound. Each of these threads
is inside Python code that we have called, for ever, so that it is killed there in every run.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from conformance.tests.ownership import native
from conformance.tests.ownership.subprocesses import EACH_INTERPRETER, Interpreter, run

BEFORE = """
    import ctypes, os, sys, threading, time
    import cai_dlpack as cd
    import conformance.tests.interpreter.end
    from cai_conformance import abi
    from conformance.tests.ownership import native
    from conformance.tests.interpreter.free_threaded import elsewhere
    from conformance.tests.doubles.producers import Cai, Dlpack, cai, interface

    inside = threading.Event()

    def stay():
        inside.set()
        while True: pass

    class InAttribute:
        @property
        def __cuda_array_interface__(self): stay()

    class InDel(Cai):
        def __del__(self): stay()

    class InDlpack(Dlpack):
        def __dlpack__(self, **keywords): stay()

    class InDevice(Dlpack):
        def __dlpack_device__(self): stay()

    class InStream:
        def __cuda_stream__(self): stay()

    class InRepr:
        def __repr__(self): stay()

    def tensor_of(producer):
        return abi.consume(cd.view(producer, device_id=0).__dlpack__(stream=-1, max_version=(1, 3)))

    def end(kept):
        kept.clear()

    def in_thread(body, *arguments):
        threading.Thread(target=body, args=arguments, daemon=True).start()
        assert inside.wait(60)
"""

PLACES = {
    "view": "in_thread(cd.view, InAttribute())",
    "from_cai": "in_thread(cd.from_cai, InAttribute())",
    "to_dlpack": "in_thread(cd.to_dlpack, InAttribute())",
    "explain": "in_thread(cd.explain, InAttribute())",
    "split_masked": "in_thread(cd.split_masked, InAttribute())",
    "from_dlpack": "in_thread(cd.from_dlpack, InDlpack(abi.make()))",
    "view of DLPack": "in_thread(cd.view, InDlpack(abi.make()))",
    "__dlpack_device__": "in_thread(cd.from_dlpack, InDevice(abi.make()))",
    "__dlpack__": "in_thread(lambda: cd.view(cai(), device_id=0).__dlpack__(stream=InStream()))",
    "on": "in_thread(cd.view(cai(), device_id=0).on, InStream())",
    "consume": "in_thread(cd.view(cai(), device_id=0).consume, InStream())",
    "join": "in_thread(lambda: cd.join([], on=InStream()))",
    "use_stream": "in_thread(cd.use_stream, InStream())",
    "policy": "in_thread(lambda: cd.policy(sync=InRepr()))",
    "the end of a view": "in_thread(lambda: end([cd.view(InDel(interface()), device_id=0)]))",
    "the end of a capsule": "in_thread(lambda: end([cd.view(InDel(interface()), device_id=0).__dlpack__(stream=-1)]))",
    "a deleter with the GIL": "in_thread(lambda: abi.release(tensor_of(InDel(interface())), gil=True))",
    "a loop": """
        def keep():
            view = cd.view(Cai(interface()), device_id=0)
            while True:
                view = cd.from_dlpack(view.__dlpack__(stream=-1))
                view = cd.view(Cai(interface()), device_id=0)
                inside.set()
        in_thread(keep)
    """,
    "several at once": """
        for _ in range(4):
            in_thread(cd.view, InAttribute())
            inside.clear()
    """,
    "a thread of a forked child": """
        in_thread(cd.view, InAttribute())
        inside.clear()
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: a process with threads forks
        child = os.fork()
        in_thread(cd.view, InAttribute())
        if child: assert os.waitpid(child, 0)[1] == 0
    """,
    # It empties glibc's list of handlers, which is filled again when threads take turns.
    "after a longjmp": """
        def jump_and_stay():
            cd.view(cai(), device_id=0)
            native.without_gil().jump()
            other = threading.Thread(target=cd.view, args=(cai(),), kwargs={"device_id": 0})
            other.start()
            other.join()
            cd.view(InAttribute())
        in_thread(jump_and_stay)
    """,
    # C's own regions leave a handler alone that has come after them.
    "the first call, in a region of C": """
        in_thread(native.with_gil().call_in_region, ctypes.py_object(lambda: cd.view(InAttribute())))
    """,
    "after a region of C": """
        def convert_and_stay():
            native.with_gil().call_in_region(ctypes.py_object(lambda: cd.view(cai(), device_id=0)))
            cd.view(InAttribute())
        in_thread(convert_and_stay)
    """,
    # Its end takes the handler away, which comes back when threads take turns.
    "after a first call in pthread_once": """
        def convert_and_stay():
            native.with_gil().call_in_once(ctypes.py_object(lambda: cd.view(cai(), device_id=0)))
            other = threading.Thread(target=cd.view, args=(cai(),), kwargs={"device_id": 0})
            other.start()
            other.join()
            cd.view(InAttribute())
        in_thread(convert_and_stay)
    """,
    # The reaper's own; our function at exit would wait for it.
    "the reaper": """
        import atexit
        entered = ctypes.c_int()
        class InReaper(Cai):
            def __del__(self): entered.value = 1; stay()
        tensor = elsewhere(lambda: tensor_of(InReaper(interface())))
        native.without_gil().release_later(ctypes.c_void_p(tensor.deleter), ctypes.c_void_p(tensor.address), 50_000)
        # The main thread sits in a C call, so that the reaper is the one.
        native.without_gil().sit_until(ctypes.byref(entered))
        atexit._clear()
        assert entered.value
    """,
}

RUNS = native.figure(1, 20)


@pytest.mark.parametrize("place", PLACES)
@EACH_INTERPRETER
def test_a_thread_that_is_killed_inside(place: str, interpreter: Interpreter) -> None:
    for _ in range(RUNS):
        assert interpreter.run(BEFORE, PLACES[place]) == (0, "")


def test_a_thread_that_is_killed_inside_and_not_unwound(tmp_path: Path) -> None:
    """As by musl: its frames are gone, and nothing waits for what they held."""
    library = tmp_path / "like_musl.so"
    source = Path(__file__).with_name("like_musl.c")
    subprocess.run(["cc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    for place in PLACES.values():
        code = textwrap.dedent(BEFORE) + textwrap.dedent(place)
        assert run(["env", f"LD_PRELOAD={library}", sys.executable], code) == (0, ""), place


def test_a_thread_that_is_killed_inside_another_extension() -> None:
    """One that takes its arguments by our `In`: PyO3's function is its own, and so is its copy of us."""
    code = textwrap.dedent(BEFORE) + "import cai_example\nin_thread(cai_example.add, InAttribute(), InAttribute())"
    assert run([sys.executable], code) == (0, "")


ENDS_BY_ITSELF = {
    "while the interpreter runs": """
        native.without_gil().exit_now(ctypes.py_object(convert))
        assert converted == [1]
    """,
    "after the interpreter": "native.without_gil().exit_at_the_end(ctypes.py_object(convert))",
}


@pytest.mark.parametrize("when", ENDS_BY_ITSELF)
@EACH_INTERPRETER
def test_a_thread_that_ends_itself_outside_is_let_go(when: str, interpreter: Interpreter) -> None:
    """A C library's thread that has called us ends by `pthread_exit` with nothing of ours on its stack, and is
    joined."""
    code = """
        converted = []

        def convert():
            cd.view(cai(), device_id=0)
            converted.append(1)
    """
    assert interpreter.run(BEFORE, code, ENDS_BY_ITSELF[when]) == (0, "")
