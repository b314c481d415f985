"""Which library is the driver: the one that the process has loaded, else `libcuda.so.1`; a toolkit's stub is neither.

A stub is what NVIDIA's toolkits have in their `stubs` folder, to link to: a `libcuda.so` whose soname is a driver's,
`libcuda.so.1`, and whose `cuInit` returns CUDA_ERROR_STUB_LIBRARY (34).
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from cai_conformance.library import library_path

from conformance.tests.interpreter.process import environment

STUB = "unsigned cuInit(unsigned flags) { (void)flags; return 34; }\n"

BEFORE = """
import ctypes, os
import cai_dlpack as cd
from conformance.tests.doubles.producers import cai

def outcome():
    try:
        cd.view(cai())
    except cd.DriverError as error:
        return f"{error.call} {error.code}"
    except BufferError as error:  # a driver was asked, and does not know the address
        return error.rule
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stub")
    (folder / "stub.c").write_text(STUB, encoding="utf-8")
    library = folder / "stub.so"
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(folder / "stub.c")]
    subprocess.run(command, check=True, timeout=60)
    return library


def run(body: str, folder: Path, *, settings: Any = None, **libraries: Path) -> list[str]:
    """Runs `body` with these libraries on the loader's path, named `libcuda.so` and (`versioned`) `libcuda.so.1`.

    settings: of the environment.
    """
    for key, library in libraries.items():
        name = {"plain": "libcuda.so", "versioned": "libcuda.so.1"}[key]
        (folder / name).symlink_to(library)
    env = environment(LD_LIBRARY_PATH=str(folder), SIMULATOR=str(library_path()), **(settings or {}))
    env.pop("LD_PRELOAD", None)
    code = BEFORE + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_stub_under_the_linkers_name_is_passed_over(stub: Path, tmp_path: Path) -> None:
    found = run("print(outcome())", tmp_path, plain=stub, versioned=library_path())
    assert found == ["pointer-unknown"]


def test_the_stub_is_one(stub: Path, tmp_path: Path) -> None:
    """Shows that the test above can fail: whoever loads `libcuda.so` there gets 34."""
    body = 'print(ctypes.CDLL("libcuda.so").cuInit(0), outcome())'
    # A stub has a driver's soname: once it is loaded, it is the driver of the process.
    assert run(body, tmp_path, plain=stub, versioned=library_path()) == ["34 cuInit 34"]


def test_cuda_core_and_the_bridge_use_one_driver(stub: Path, tmp_path: Path) -> None:
    body = """
        from cuda.core import Device
        device = Device(0)
        device.set_current()
        buffer = device.allocate(64, stream=device.create_stream())
        by_pointer = cai(shape=(4,), data=(int(buffer.handle), False))
        print(cd.view(buffer, producer_stream=None).device, cd.view(by_pointer).device)
    """
    found = run(body, tmp_path, plain=stub, versioned=library_path())
    assert found == ["(2, 0) (2, 0)"]


def test_a_library_that_is_loaded_comes_before_the_path(stub: Path, tmp_path: Path) -> None:
    body = """
        ctypes.CDLL(os.environ["SIMULATOR"])
        print(outcome())
    """
    assert run(body, tmp_path, versioned=stub, plain=stub) == ["pointer-unknown"]
    assert run("print(outcome())", tmp_path) == ["cuInit 34"]


def test_a_driver_without_the_number_is_taken_where_there_is_no_other(tmp_path: Path) -> None:
    assert run("print(outcome())", tmp_path, plain=library_path()) == ["pointer-unknown"]


def test_a_stub_is_refused_by_name_and_not_kept(stub: Path, tmp_path: Path) -> None:
    """A stub that stays loaded would be found in place of a driver, by its soname."""
    body = """
        try:
            cd.view(cai())
        except cd.DriverError as error:
            print(error)
        ctypes.CDLL(os.environ["SIMULATOR"])
        print(outcome())
    """
    refused, after = run(body, tmp_path, plain=stub)
    assert "CUDA_ERROR_STUB_LIBRARY (34)" in refused
    assert "for linking" in refused
    assert after == "pointer-unknown"


def test_without_a_driver_an_array_without_elements_is_not_searched_for(tmp_path: Path) -> None:
    """A search of the loader's path costs hundreds of imports; what is loaded later is asked all the same."""
    body = """
        import timeit
        empty = cai(shape=(0, 3), data=(4096, False))
        view = lambda array: min(timeit.repeat(lambda: cd.view(array), number=300, repeat=7))
        print(cd.view(empty).device, view(empty) < 30 * view(cai(shape=(0, 3), data=(0, False))))
        driver = ctypes.CDLL(os.environ["SIMULATOR"])
        memory, context = ctypes.c_uint64(), ctypes.c_void_p()
        assert driver.cuInit(0) == driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1) == 0
        assert driver.cuCtxSetCurrent(context) == driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64)) == 0
        print(cd.view(cai(shape=(0, 3), data=(memory.value, False))).device)
    """
    assert run(body, tmp_path) == ["(2, 0) True", "(2, 1)"]


def test_a_driver_that_is_not_there_is_searched_for_once(tmp_path: Path) -> None:
    """By the loader's own account: a search of its path costs hundreds of imports."""
    body = """
        with open("searches", "w") as file:
            os.dup2(file.fileno(), 2)
        for _ in range(5):
            assert outcome() == "cuInit None"
        print(open("searches").read().count("find library=libcuda.so"))
        ctypes.CDLL(os.environ["SIMULATOR"])
        print(outcome())
    """
    found = run(f"os.chdir({str(tmp_path)!r})\n{textwrap.dedent(body)}", tmp_path, settings={"LD_DEBUG": "libs"})
    assert found == ["2", "pointer-unknown"]


# What a name on the loader's path, or the library that the process has loaded, may be.
LIBRARIES = [None, "stub", "driver"]
OUTCOMES = {None: "cuInit None", "stub": "cuInit 34", "driver": "pointer-unknown"}


@pytest.mark.parametrize(("plain", "versioned", "loaded"), [*itertools.product(LIBRARIES, repeat=3)])
def test_every_order_of_loading(
    plain: str | None, versioned: str | None, loaded: str | None, stub: Path, tmp_path: Path
) -> None:
    """What is loaded, else `libcuda.so.1`, else `libcuda.so`; what was refused is found by none later."""
    paths = {"stub": stub, "driver": library_path()}
    names = {"plain": plain, "versioned": versioned}
    body = f"""
        loaded = {str(paths[loaded]) if loaded else None!r}
        if loaded:
            ctypes.CDLL(loaded)
        print(outcome())
        ctypes.CDLL(os.environ["SIMULATOR"])
        print(outcome())
    """
    found = run(body, tmp_path, **{name: paths[kind] for name, kind in names.items() if kind})
    taken = loaded or versioned or plain
    # A driver that comes later is taken, unless the process itself has loaded a stub before it.
    assert found == [OUTCOMES[taken], OUTCOMES["stub" if loaded == "stub" else "driver"]]


def test_no_view_that_needs_no_driver_loads_one(tmp_path: Path) -> None:
    body = """
        cd.view(cai(), device_id=0)
        cd.to_dlpack(cai(), device_id=0, stream=-1)
        print("libcuda" in open("/proc/self/maps").read())
        outcome()
        print("libcusim" in open("/proc/self/maps").read())
    """
    assert run(body, tmp_path, versioned=library_path()) == ["False", "True"]


def test_a_view_is_passed_to_another_module_without_a_driver(tmp_path: Path) -> None:
    """No context can be told, whose the default stream is."""
    body = """
        import cai_example_peer as peer
        view = cd.view(cai(stream=1), device_id=0)
        passed = peer.view_of(view)
        print(passed.stream, passed.producer_stream)
    """
    assert run(body, tmp_path) == ["1 1"]
