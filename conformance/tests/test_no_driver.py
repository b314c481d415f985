"""Tests a machine without a CUDA driver: calls that need one raise DriverError, the others work."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from conformance.tests.interpreter.process import environment

BEFORE = """
import ctypes
import sys

for name in ("libcuda.so", "libcuda.so.1"):
    try:
        ctypes.CDLL(name)
    except OSError:
        pass
    else:
        raise SystemExit(f"{name} can be loaded: this process proves nothing")

from cai_conformance import abi
from conformance.tests.doubles.producers import FAKE_POINTER, Cai, Dlpack, cai, interface

import cai_dlpack as cd

def refused(call):
    try:
        answer = call()
    except cd.DriverError as error:
        return error
    raise AssertionError(f"accepted: {answer!r}")
"""

#: The deleters of the doubles are written in Python: ctypes does not run them once the interpreter's end has taken its
#: own state, at which a debug build of CPython crashes. Arrays end before.
AFTER = """
del view, tensor, both
print("done")
"""


def run(body: str, tmp_path: Path) -> None:
    """Runs `body` in a process whose loader finds no driver, whatever this machine has."""
    for name in ("libcuda.so", "libcuda.so.1"):
        (tmp_path / name).touch()  # not a library: the search ends here, with an error
    without = environment(LD_LIBRARY_PATH=str(tmp_path))
    without.pop("LD_PRELOAD", None)
    code = BEFORE + "view = tensor = both = None\n" + textwrap.dedent(body) + AFTER
    answer = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code],
        env=without,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (answer.returncode, answer.stdout) == (0, "done\n"), answer.stdout + answer.stderr


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            """
            view = cd.view(cai(), device_id=0)
            assert (view.shape, view.dtype, view.ptr) == ((2, 3), "float32", FAKE_POINTER)
            assert (view.device, view.memory) == ((2, 0), "device")
            assert view.__cuda_array_interface__ == interface()
            """,
            id="import-parse-and-show",
        ),
        pytest.param(
            """
            capsule = cd.to_dlpack(cd.view(cai(), device_id=0), max_version=(1, 3))
            tensor = abi.read(capsule)
            assert (tensor.data, tensor.shape, tensor.device) == (FAKE_POINTER, (2, 3), (2, 0))
            """,
            id="to-dlpack-with-the-ordinal",
        ),
        pytest.param(
            """
            view = cd.from_dlpack(Dlpack(abi.make(device=(2, 1), data=FAKE_POINTER)))
            assert (view.device, view.stream) == ((2, 1), 1)
            assert cd.view(view).ptr == FAKE_POINTER
            view.__dlpack__(stream=1, max_version=(1, 3))
            view.__dlpack__(stream=-1, max_version=(1, 3))
            """,
            id="from-dlpack-of-a-gpu",
        ),
        pytest.param(
            """
            import cai_example_peer as peer

            class Both(Dlpack):
                @property
                def __cuda_array_interface__(self):
                    return interface(data=(FAKE_POINTER, read_only), stream=stream)

            for stream in (None, 1, 7):
                for read_only in (False, True):
                    both = lambda: Both(abi.make(shape=(2, 3), device=(2, 1), data=FAKE_POINTER))
                    for entry in (cd.view, peer.view_of):
                        view = entry(both())
                        assert (view.device, view.ptr, view.shape) == ((2, 1), FAKE_POINTER, (2, 3))
                        assert view.__cuda_array_interface__["data"] == (FAKE_POINTER, read_only)
                        assert view.stream == 1, "what __dlpack__ was asked for"
                    assert peer.address(both(), 0, 0) == FAKE_POINTER
                    tensor = abi.read(cd.to_dlpack(both(), max_version=(1, 3)))
                    assert (tensor.device, tensor.data) == ((2, 1), FAKE_POINTER)
                    # The caller names a device, or asks for more than that: the interface.
                    assert cd.view(both(), device_id=0).device == (2, 0)
                    refused(lambda: cd.view(both(), check="bounds"))
                    refused(lambda: cd.from_cai(both()))
            """,
            id="an-interface-whose-device-dlpack-states",
        ),
        pytest.param(
            """
            torch = type("Tensor", (Dlpack,), {"__module__": "torch"})
            producer = torch(abi.make(device=(2, 1), data=FAKE_POINTER))
            assert cd.view(producer).device == (2, 1)
            with cd.use_stream(7), cd.use_stream(1):
                assert cd.view(producer).stream == 1
            """,
            id="a-producer-that-wants-its-device-current-and-a-stream-without-a-device",
        ),
        pytest.param(
            """
            import numpy as np
            array = np.arange(6).reshape(2, 3)
            assert np.from_dlpack(cd.from_dlpack(array)).tolist() == array.tolist()
            """,
            id="host-memory",
        ),
        pytest.param(
            """
            for changes, error in (
                ({"typestr": "|O8"}, BufferError),
                ({"shape": (-1,)}, ValueError),
                ({"stream": "1"}, TypeError),
            ):
                for entry in (cd.view, cd.from_cai, cd.to_dlpack):
                    try:
                        entry(cai(**changes))
                    except error as found:
                        assert found.rule, found
                    else:
                        raise AssertionError(changes)
            """,
            id="refusals-come-before-the-query",
        ),
    ],
)
def test_works_without_a_driver(body: str, tmp_path: Path) -> None:
    run(body, tmp_path)


@pytest.mark.parametrize(
    "needs",
    [
        pytest.param("cd.view(cai())", id="the-device-of-a-pointer"),
        pytest.param("cd.to_dlpack(cai())", id="the-device-of-a-pointer-on-export"),
        pytest.param("cd.view(cai(), device_id=0, check='bounds')", id="bounds"),
        pytest.param(
            "cd.view(Dlpack(abi.make(device=(2, 0), data=FAKE_POINTER)), check='bounds')", id="bounds-of-dlpack"
        ),
        pytest.param("cd.view(cai(stream=7), device_id=0).__dlpack__(stream=9, max_version=(1, 3))", id="an-event"),
        pytest.param("cd.view(cai(stream=7), device_id=0).on(9)", id="on"),
        pytest.param("cd.view(cai(stream=7), device_id=0).synchronize()", id="a-host-wait"),
    ],
)
def test_says_that_the_driver_is_missing(needs: str, tmp_path: Path) -> None:
    run(
        f"""
        for _ in range(2):
            error = refused(lambda: {needs})
            assert isinstance(error, RuntimeError)
            assert error.code is None, error.code
            assert isinstance(error.name, str) and error.name
            assert isinstance(error.call, str) and error.call
            assert "driver" in str(error), error
        assert cd.view(cai(), device_id=0).shape == (2, 3)
        """,
        tmp_path,
    )


def test_an_extension_says_that_the_driver_is_missing(tmp_path: Path) -> None:
    """cudarc panics if it finds no driver library: an extension that opens its device by `context` raises."""
    run(
        """
        import cai_example
        there = [Dlpack(abi.make(device=(2, 0), shape=(3,), data=FAKE_POINTER)) for _ in range(2)]
        for call in (lambda: cai_example.zeros(4), lambda: cai_example.stack(*there)):
            try:
                call()
            except RuntimeError as error:
                assert type(error) is cd.DriverError, type(error)
                assert error.name == "NO_DRIVER_LIBRARY", error
            else:
                raise AssertionError("accepted")
        """,
        tmp_path,
    )


def test_without_the_package_an_error_is_named_by_its_own_module(tmp_path: Path) -> None:
    run(
        """
        for name in [name for name in sys.modules if name.split(".")[0] == "cai_dlpack"]:
            del sys.modules[name]
        import cai_example
        try:
            cai_example.zeros(4)
        except RuntimeError as error:
            assert (type(error).__module__, type(error).__name__) == ("cai_example.cai_example", "DriverError")
        else:
            raise AssertionError("accepted")
        """,
        tmp_path,
    )


def test_a_package_that_is_imported_later_shares_its_class(tmp_path: Path) -> None:
    """The first error is of the extension's own class, which a user may have by name: both catch the later ones."""
    run(
        """
        package = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "cai_dlpack"}
        import cai_example

        def caught():
            try:
                cai_example.zeros(4)
            except RuntimeError as error:
                return error
            raise AssertionError("accepted")

        own = type(caught())
        assert not issubclass(own, cd.DriverError) and type(caught()) is own
        sys.modules.update(package)
        error = caught()
        assert isinstance(error, cd.DriverError) and isinstance(error, own), type(error).__mro__
        assert (type(error).__module__, type(error).__name__) == ("cai_example.cai_example", "DriverError")
        assert error.name == "NO_DRIVER_LIBRARY" and type(caught()) is type(error)
        """,
        tmp_path,
    )


def test_a_refusal_by_the_missing_driver_keeps_nothing(tmp_path: Path) -> None:
    run(
        """
        import gc, sys
        producer = cai()
        before = sys.getrefcount(producer)
        for _ in range(50):
            refused(lambda: cd.view(producer))
        gc.collect()
        assert sys.getrefcount(producer) == before
        """,
        tmp_path,
    )


def test_the_check_can_fail(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="accepted: 5"):
        run("refused(lambda: 5)", tmp_path)
