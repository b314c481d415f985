"""Tests a process on the simulator: exit, fork, a forbidden access, the wrong driver."""

from __future__ import annotations

import signal
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest

from conformance.tests.interpreter.process import environment, on_the_simulator

BOTH = pytest.mark.parametrize("schedule", ["threaded", "lazy"])

START = """
import ctypes, os, threading
from ctypes import byref, c_uint, c_uint64, c_void_p
from cai_conformance import Sim
from conformance.tests.cusim.model.driver import Driver, HOST_FUNCTION
sim, cu = Sim(), Driver()
cu.set_current(cu.retain(0))
"""


@BOTH
def test_exit_with_pending_work_is_clean(schedule: str) -> None:
    text = """
stream, memory = cu.stream(), cu.alloc(1 << 20)
gate = sim.gate(stream)
keep = []
@HOST_FUNCTION
def late(_):
    keep.append(1)
for _ in range(100):
    cu.fill_async(memory, 1, 1 << 20, stream)
    cu.host_function(stream, late)
assert sim.pending() == 201
"""
    done = on_the_simulator(START + text, "--schedule", schedule)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("round_number", range(5))
def test_exit_while_host_functions_want_the_gil_is_clean(round_number: int) -> None:
    """The workers call into Python while the interpreter goes down."""
    text = """
streams, keep = [cu.stream() for _ in range(4)], []
@HOST_FUNCTION
def busy(_):
    keep.append(sum(range(1000)))
for stream in streams * 500:
    cu.host_function(stream, busy)
"""
    done = on_the_simulator(START + text, "--schedule", "threaded")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


SLOW = """
#include <stdlib.h>
#include <unistd.h>
static void slow(void) { usleep(400000); }
__attribute__((constructor)) static void start(void) { atexit(slow); }
"""


@pytest.mark.parametrize("kit", [True, False], ids=["with the kit", "without it"])
def test_a_host_function_whose_turn_comes_after_the_interpreter_is_passed_over(kit: bool, tmp_path: Path) -> None:
    """Its turn comes after 200 ms, when the interpreter has ended and the process has not."""
    source, library = tmp_path / "slow.c", tmp_path / "slow.so"
    source.write_text(SLOW)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    text = f"""
stream = cu.stream()
@HOST_FUNCTION
def late(_):
    print("called")
wait = ctypes.CDLL("libcuda.so.1").sim_delay
wait.argtypes = [c_uint64, c_uint64]
wait(stream, 200_000)
cu.host_function(stream, late)
ctypes.CDLL({str(library)!r})
"""
    start = START if kit else START.replace("sim, cu = Sim(), Driver()", "cu = Driver()")
    done = on_the_simulator(start + text, "--schedule", "threaded")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_ending_host_functions_waits_for_the_one_that_runs() -> None:
    text = """
stream, said = cu.stream(), []
inside = threading.Event()
@HOST_FUNCTION
def slow(_):
    inside.set()
    threading.Event().wait(0.1)
    said.append(1)
@HOST_FUNCTION
def passed_over(_):
    said.append(2)
cu.host_function(stream, slow)
inside.wait()
sim.library.sim_end_host_functions()
assert said == [1]
cu.host_function(stream, passed_over)
cu.synchronize()
assert said == [1]
"""
    done = on_the_simulator(START + text, "--schedule", "threaded")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


LATE = """
#include <dlfcn.h>
#include <stdio.h>
__attribute__((destructor)) static void late(void) {
    int (*synchronize)(void) = (int (*)(void))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuCtxSynchronize");
    fprintf(stderr, "%d", synchronize());
}
"""


def test_after_its_destructor_the_driver_answers_deinitialized(tmp_path: Path) -> None:
    """A library that was loaded later has its destructor run later, and calls the driver there."""
    source, library = tmp_path / "late.c", tmp_path / "late.so"
    source.write_text(LATE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    done = on_the_simulator(START + f"cu.synchronize()\nctypes.CDLL({str(library)!r})")
    assert (done.returncode, done.stderr) == (0, "4")


@BOTH
def test_a_forked_child_gets_not_initialized_from_every_call(schedule: str) -> None:
    text = """
stream, memory = cu.stream(), cu.alloc(8)
gate = sim.gate(stream)
stop = threading.Event()
def busy():
    cu.set_current(cu.retain(0))
    while not stop.is_set():
        cu.free(cu.alloc(64))
threads = [threading.Thread(target=busy) for _ in range(2)]
for thread in threads:
    thread.start()
bad = 0
for _ in range(20):
    child = os.fork()
    if child == 0:
        codes = [
            cu.code("cuInit", 0),
            cu.code("cuCtxSynchronize"),
            cu.code("cuMemFree_v2", c_uint64(memory)),
            cu.code("cuCtxGetCurrent", byref(c_void_p())),
            cu.code("cuStreamSynchronize", c_void_p(stream)),
        ]
        os._exit(0 if codes == [3] * 5 else 1)
    bad += os.waitpid(child, 0)[1] != 0
stop.set()
gate.open()  # freeing waits for the device, and so for the gate
for thread in threads:
    thread.join()
cu.synchronize()
print(bad)
"""
    done = on_the_simulator("import warnings; warnings.simplefilter('ignore')\n" + START + text, "--schedule", schedule)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_a_child_forked_before_initialisation_may_use_the_driver() -> None:
    text = """
import os
from conformance.tests.cusim.model.driver import Driver
child = os.fork()
cu = Driver()
cu.set_current(cu.retain(0))
cu.free(cu.alloc(8))
if child == 0:
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    done = on_the_simulator(text)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


@pytest.mark.parametrize("protect", [False, True])
@pytest.mark.parametrize("access", ["ctypes.string_at(memory, 1)", "ctypes.memset(memory, 0, 1)"])
def test_protected_device_memory_cannot_be_touched_by_the_host(protect: bool, access: str) -> None:
    text = f"memory = cu.alloc(8)\ncu.write(memory, b'x' * 8)\n{access}\nprint('touched')"
    done = on_the_simulator(START + text, *(["--protect"] if protect else []))
    assert done.returncode == (-signal.SIGSEGV if protect else 0)
    assert done.stdout == ("" if protect else "touched\n")


def test_freed_memory_cannot_be_touched_in_any_mode() -> None:
    done = on_the_simulator(START + "memory = cu.alloc(8)\ncu.free(memory)\nctypes.string_at(memory, 1)")
    assert done.returncode == -signal.SIGSEGV


def test_calls_before_initialisation_are_refused() -> None:
    text = """
import ctypes
from cai_conformance.library import require_simulator
library = require_simulator()
print(library.cuDeviceGetCount(ctypes.byref(ctypes.c_int())), library.cuCtxSynchronize())
print(library.cuDriverGetVersion(ctypes.byref(ctypes.c_int())), library.cuInit(1), library.cuInit(0))
"""
    done = on_the_simulator(text)
    assert done.stdout == "3 3\n0 1 0\n", done.stderr


def test_no_device_is_an_error_of_initialisation() -> None:
    done = on_the_simulator(
        "from cai_conformance.library import *\nprint(require_simulator().cuInit(0))", "--devices", "0"
    )
    assert done.stdout == "100\n", done.stderr


def outside(tmp_path: Path, pretend: str | None, text: str) -> subprocess.CompletedProcess[str]:
    """Runs a program that is not on the simulator: with no driver, or with something else that
    has its name."""
    if pretend:
        (tmp_path / "libcuda.so.1").symlink_to(pretend)
    found = environment(LD_LIBRARY_PATH=str(tmp_path))
    env = {key: value for key, value in found.items() if not key.startswith("CUSIM_")}
    return subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, check=False)


def a_library_that_is_not_the_simulator() -> str:
    """The C mathematics library stands in for a real driver: it has no `sim_abi`."""
    name = find_library("m")
    assert name
    text = "import ctypes, re; ctypes.CDLL('%s'); print(re.search(r'/\\S*/%s', open('/proc/self/maps').read())[0])"
    return subprocess.check_output([sys.executable, "-c", text % (name, name)], text=True).strip()


def test_on_another_driver_the_controls_refuse(tmp_path: Path) -> None:
    real = a_library_that_is_not_the_simulator()
    done = outside(tmp_path, real, "from cai_conformance import Sim, is_simulated; print(is_simulated()); Sim()")
    assert done.stdout == "False\n" and "NotSimulated: libcuda.so.1 is a real CUDA driver" in done.stderr


@pytest.mark.parametrize("fixture, on_simulator", [("sim", True), ("gpu", False)])
def test_a_fixture_fails_on_the_wrong_driver(tmp_path: Path, fixture: str, on_simulator: bool) -> None:
    """`sim` on a driver that is not simulated and `gpu` on the simulator: failures, not skips."""
    (tmp_path / "test_it.py").write_text(f"def test_it({fixture}): pass\n")
    text = (
        "import pytest, sys\n"
        f"sys.exit(pytest.main(['-q', '-p', 'cai_conformance.plugin', '-p', 'no:cacheprovider', {str(tmp_path)!r}]))"
    )
    right, wrong = on_the_simulator(text), outside(tmp_path, a_library_that_is_not_the_simulator(), text)
    if not on_simulator:
        right, wrong = wrong, right
    assert "1 passed" in right.stdout
    assert "1 error" in wrong.stdout and "NotSimulated" in wrong.stdout
