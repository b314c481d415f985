"""A program that embeds Python, ends it, and begins it once more: the second interpreter is refused."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

from conformance.tests.interpreter.process import environment
from conformance.tests.ownership import native

PROGRAM = """
#include <Python.h>

int main(int argc, char **argv) {
    for (int round = 1; round < argc; round++) {
        Py_InitializeEx(0);
        if (PyRun_SimpleString(argv[round]) != 0 || Py_FinalizeEx() != 0) return round;
    }
    return 0;
}
"""
#: An extension that does not register the package is refused by its first argument.
BEFORE = """
    import os
    import sys

    class Empty:
        __cuda_array_interface__ = {"shape": (0,), "typestr": "<f4", "data": (0, False), "version": 3, "stream": None}
"""
FIRST = """
    import cai_dlpack as cd
    import cai_example_peer as peer
    from cai_conformance import abi
    from conformance.tests.doubles.producers import cai
    from conformance.tests.ownership import native
    from conformance.tests.ownership.waiting import until

    view = cd.view(cai(), device_id=0)
    native.storm([abi.consume(view.__dlpack__(stream=-1, max_version=(1, 3))) for _ in range(3)], gil=False)
    del view
    assert until(lambda: cd.stats()["live"] == 0), cd.stats()
    assert peer.view_of(Empty()).shape == (0,)

    class Last:
        def __del__(self, view_of=peer.view_of, array=Empty(), write=os.write):
            write(1, f"{view_of(array).shape}".encode())

    sys.last = Last()  # whose end comes after the functions of `atexit`
"""
SECOND = """
    import cai_example_peer as peer

    array = Empty()
    before = sys.getrefcount(array)

    def refused(call, *arguments):
        try:
            call(*arguments)
        except ImportError as error:
            assert "one interpreter only" in str(error), error
            return True
        return False

    for _ in range(2):
        assert refused(__import__, "cai_dlpack")
        assert refused(peer.view_of, array)
    assert sys.getrefcount(array) == before
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        pytest.skip("not run: this CPython has no shared library to link a program to")
    folder, path = tmp_path_factory.mktemp("embedded"), sysconfig.get_config_var("LIBDIR")
    (folder / "program.c").write_text(PROGRAM)
    version = sysconfig.get_config_var("LDVERSION")
    flags = [f"-I{sysconfig.get_path('include')}", f"-L{path}", f"-Wl,-rpath,{path}", f"-lpython{version}"]
    subprocess.run(
        ["cc", "-Wall", "-Werror", "-o", folder / "program", folder / "program.c", *flags], check=True, timeout=60
    )
    return folder / "program"


def test_a_second_interpreter_is_refused(program: Path) -> None:
    """Owners that are let go of without the GIL would never end in it, as what ends them has gone with the first."""
    before = f"import sys; sys.path[:] = {sys.path!r}\n" + textwrap.dedent(BEFORE)
    parts = [before + textwrap.dedent(part) for part in (FIRST, SECOND, SECOND)]
    answer = subprocess.run(
        [program, *parts],
        env=environment(None, CAI_DLPACK_NATIVE=str(native.path()), PYTHONHOME=sys.base_prefix),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert (answer.returncode, answer.stdout) == (0, "(0,)")
