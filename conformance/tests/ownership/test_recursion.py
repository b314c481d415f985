"""A producer whose attributes convert the producer again: a RecursionError, before the stack ends."""

from __future__ import annotations

import pytest

from conformance.tests.ownership.subprocesses import EACH_INTERPRETER, Interpreter

BEFORE = """
    import functools, sys, threading
    import cai_dlpack as cd

    INTERFACE = {"shape": (2,), "typestr": "<f4", "data": (4096, False), "version": 3}

    class Array:
        pass

    array = Array()

    def refused():
        try:
            convert()
        except RecursionError:
            refusals.append(1)

    refusals = []
"""
# No frame of Python lies between two levels, but in the last one: CPython then counts calls of C functions alone.
RECURSIONS = {
    "view": "Array.__cuda_array_interface__ = property(cd.view); convert = lambda: cd.view(array)",
    "from_cai": "Array.__cuda_array_interface__ = property(cd.from_cai); convert = lambda: cd.from_cai(array)",
    "to_dlpack": "Array.__cuda_array_interface__ = property(cd.to_dlpack); convert = lambda: cd.to_dlpack(array)",
    "explain": "Array.__cuda_array_interface__ = property(cd.explain); convert = lambda: cd.explain(array)",
    "split_masked": "Array.__cuda_array_interface__ = property(cd.split_masked); convert = lambda: cd.view(array)",
    "dlpack-device": """Array.__dlpack__ = print
Array.__dlpack_device__ = staticmethod(functools.partial(cd.from_dlpack, array)); convert = lambda: cd.view(array)""",
    "index": """Array.__cuda_array_interface__ = dict(shape=(array,), typestr="<f4", data=(4096, False), version=3)
Array.__index__ = property(cd.view)
convert = lambda: cd.view(array)""",
    "stream": """array.__cuda_stream__ = functools.partial(cd.view, 0, producer_stream=array)
convert = lambda: cd.view(0, producer_stream=array)""",
    "dtype": """Array.name = property(functools.partial(lambda view, self: view(0, dtype=self), cd.view))
convert = lambda: cd.view(0, dtype=array)""",
    "argument-index": """sys.setrecursionlimit(10_000)
view = cd.view(dict(INTERFACE), device_id=0, owner=array)
Array.__index__ = staticmethod(functools.partial(view.on, array)); convert = lambda: view.on(array)""",
    "argument-device": """sys.setrecursionlimit(10_000)
Array.__index__ = staticmethod(functools.partial(cd.view, dict(INTERFACE), owner=array, device_id=array))
convert = lambda: cd.view(dict(INTERFACE), owner=array, device_id=array)""",
    "argument-shape": """sys.setrecursionlimit(10_000)
view = cd.view(dict(INTERFACE), device_id=0, owner=array)
Array.__index__ = staticmethod(functools.partial(cd.view, view, shape=(array,)))
convert = lambda: cd.view(view, shape=(array,))""",
    "argument-version": """sys.setrecursionlimit(10_000)
view = cd.view(dict(INTERFACE), device_id=0, owner=array)
Array.__index__ = staticmethod(functools.partial(view.__dlpack__, max_version=(array, 0)))
convert = lambda: view.__dlpack__(max_version=(array, 0))""",
    "argument-use-stream": """sys.setrecursionlimit(10_000)
Array.__index__ = staticmethod(functools.partial(cd.use_stream, array)); convert = lambda: cd.use_stream(array)""",
    "authkey": """sys.setrecursionlimit(10_000)
import multiprocessing.process
view = cd.view(dict(INTERFACE), device_id=0, owner=array)
Array.authkey = property(lambda self, share=cd.share: share(view))
multiprocessing.process.current_process = lambda: array
convert = lambda: cd.share(view)""",
    "python": """Array.__cuda_array_interface__ = property(lambda self: cd.view(self))
convert = lambda: cd.view(array)""",
}
AFTER = """
    refused()
    thread = threading.Thread(target=refused)
    thread.start()
    thread.join()
    assert refusals == [1, 1], refusals
    # The levels are given back.
    Array.__cuda_array_interface__ = INTERFACE
    assert cd.view(array, device_id=0).shape == (2,)
"""


@EACH_INTERPRETER
@pytest.mark.parametrize("recursion", RECURSIONS)
def test_a_producer_that_recurses_is_refused(recursion: str, interpreter: Interpreter) -> None:
    exit_code, printed = interpreter.run(BEFORE, RECURSIONS[recursion], AFTER)
    assert exit_code == 0, printed


#: What an object answers by, for each attribute that it is asked for, and the call with it.
ASKED = {
    "each": ("{}.get(name, cd.view)", "cd.view"),
    # RecursionErrors of what would explain a refusal, which were dropped for it.
    "a-refusal": ("{'__cuda_array_interface__': cd.from_dlpack}.get(name, cd.explain)", "cd.DType"),
    "has-dlpack": (
        "{'__cuda_array_interface__': cd.from_dlpack, '__dlpack__': cd.DType}.get(name, cd.view)",
        "cd.DType",
    ),
}


@EACH_INTERPRETER
@pytest.mark.parametrize("argument", ["max_version=(array, 0)", "dl_device=(array, 0)"])
def test_an_export_in_a_block_reads_its_arguments_once(argument: str, interpreter: Interpreter) -> None:
    """Read twice, an argument that exports the view again would have calls double at each level."""
    exit_code, printed = interpreter.run(
        BEFORE,
        f"""
        class Array:
            def __index__(self):
                calls.append(1)
                if len(calls) <= 3:
                    export()
                return {1 if "max" in argument else 2}

        calls, array = [], Array()
        view = cd.view(dict(INTERFACE), device_id=0, owner=array, producer_stream=None)
        export = lambda: view.__dlpack__({argument})
        with cd.use_stream(256, device_id=0):
            export()
        assert len(calls) == 4, calls
        """,
    )
    assert exit_code == 0, printed


@EACH_INTERPRETER
@pytest.mark.parametrize("asked", ASKED)
def test_what_explains_a_failure_does_not_convert_again_at_each_level(asked: str, interpreter: Interpreter) -> None:
    """After a RecursionError nothing is asked of the object: by two questions a level, calls would double at each."""
    answer, call = ASKED[asked]
    exit_code, printed = interpreter.run(
        BEFORE,
        f"""
        class Array:
            def __getattr__(self, name):
                calls.append(name)
                if len(calls) > 1000:
                    raise SystemExit(f"calls: {{set(calls)}}")
                if name == "__dlpack__" and "explain" in {answer!r}:
                    raise AttributeError
                return ({answer})(self)

        calls, array, convert = [], Array(), lambda: {call}(array)
        sys.setrecursionlimit(60)
        refused()
        sys.setrecursionlimit(1000)
        assert refusals == [1], refusals
        """,
    )
    assert exit_code == 0, printed
