"""A producer whose attributes convert the producer again: a RecursionError, before the stack ends."""

from __future__ import annotations

import pytest

from conformance.tests.ownership.subprocesses import EACH_INTERPRETER, Interpreter

BEFORE = """
    import functools, threading
    import cai_dlpack as cd

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
    Array.__cuda_array_interface__ = {"shape": (2,), "typestr": "<f4", "data": (4096, False), "version": 3}
    assert cd.view(array, device_id=0).shape == (2,)
"""


@EACH_INTERPRETER
@pytest.mark.parametrize("recursion", RECURSIONS)
def test_a_producer_that_recurses_is_refused(recursion: str, interpreter: Interpreter) -> None:
    exit_code, printed = interpreter.run(BEFORE, RECURSIONS[recursion], AFTER)
    assert exit_code == 0, printed
