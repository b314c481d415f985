"""The import refuses subinterpreters by an ImportError; the main one goes on as before."""

from __future__ import annotations

import pytest

from conformance.tests.ownership.subprocesses import EACH_INTERPRETER, Interpreter

# 3.10 to 3.12 call the module _xxsubinterpreters; what runs in one reports by a pipe.
BEFORE = """
    import os, sys
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters

    def in_subinterpreter(code):
        readable, writable = os.pipe()
        end = f"\\nimport os\\nos.write({writable}, answer.encode())\\n"
        new = interpreters.create()
        try:
            # A refusal inside is the answer; anything else raises, or comes back, and shows.
            failed = interpreters.run_string(new, code + end)
            assert failed is None, failed
            return os.read(readable, 1000).decode()
        finally:
            interpreters.destroy(new)

    PATHS = f"import sys; sys.path[:] = {sys.path!r}\\n"
    TRY = PATHS + '''
    try:
        import cai_dlpack
        answer = "imported"
    except ImportError as error:
        answer = "ImportError: " + str(error)
    '''
    import textwrap
    TRY = textwrap.dedent(TRY)
"""

CASES = {
    "the main one first": """
        import cai_dlpack as cd
        from cai_conformance import abi
        from conformance.tests.doubles.producers import cai
        producer = cai()
        count = sys.getrefcount(producer)
        view = cd.view(producer, device_id=0)
        for _ in range(5):
            answer = in_subinterpreter(TRY)
            assert answer.startswith("ImportError: "), answer
            assert "subinterpreter" in answer, answer
        # Where PyGILState_Check says yes for every thread from now on, releases are as before.
        from conformance.tests.ownership import native
        tensors = [abi.consume(view.__dlpack__(stream=-1, max_version=(1, 3))) for _ in range(3)]
        abi.release(tensors[0])
        native.storm(tensors[1:], gil=True)
        del view
        from conformance.tests.ownership.waiting import until
        assert until(lambda: cd.stats()["live"] == 0)
        assert sys.getrefcount(producer) == count
    """,
    "the subinterpreter first": """
        answer = in_subinterpreter(TRY)
        assert answer.startswith("ImportError: "), answer
        assert "subinterpreter" in answer, answer
        assert "cai_dlpack" not in sys.modules
    """,
    "a reference that ends while a subinterpreter runs": """
        import cai_dlpack as cd
        from cai_conformance import abi
        import ctypes
        from conformance.tests.ownership import native
        from conformance.tests.doubles.producers import cai
        from conformance.tests.ownership.waiting import until
        tensor = abi.consume(cd.view(cai(), device_id=0).__dlpack__(stream=-1, max_version=(1, 3)))
        native.without_gil().release_later(
            ctypes.c_void_p(tensor.deleter), ctypes.c_void_p(tensor.address), 20_000)
        code = "import time\\nend = time.monotonic() + 0.1\\nwhile time.monotonic() < end: pass\\nanswer = 'ran'"
        assert in_subinterpreter(code) == "ran"
        assert until(lambda: cd.stats()["live"] == 0)
    """,
}


@pytest.mark.parametrize("case", CASES)
@EACH_INTERPRETER
def test_subinterpreters(case: str, interpreter: Interpreter) -> None:
    assert interpreter.run(BEFORE, CASES[case]) == (0, "")
