"""A Rust extension that holds the GIL: each call of the driver that the library makes for it is made without, also if
one of them is refused.

The routes are those of bindings/example-attached, on streams of cudarc's. None has cudarc make a call for the extension
itself, which would be made with the GIL.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator

import cai_example_attached as attached
import pytest

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.simulated.machine import Machine

LEGACY, PER_THREAD = 1, 2
#: No answer of the driver by which it tells that a context is gone.
REFUSED = 999
#: cudarc panics if it can make no event, as the function's documentation says.
PANICS = "lend untracked"
PRODUCERS = ["handle", "legacy", "per-thread", "none"]


@pytest.fixture(name="machine")
def threaded(machine: Machine) -> Iterator[Machine]:
    machine.control.schedule = "threaded"
    attached.start()
    yield machine
    machine.control.clear_faults()


def array(machine: Machine, stream: int | None) -> Cai:
    memory = machine.managed_memory(16) if stream is None else machine.device_memory(16)
    return Cai(interface(shape=(4,), typestr="<f4", data=(memory, False), stream=stream))


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("route", attached.routes())
def test_no_call_is_made_with_the_gil(route: str, producer: str, machine: Machine) -> None:
    stream = {"legacy": LEGACY, "per-thread": PER_THREAD, "none": None}.get(producer, machine.stream())

    def take(name: str = "", nth: int = 0) -> bool:
        """Takes the route. The `nth` call of a function is refused, and the next one, as most are made again.

        Returns whether so many were made.
        """
        read, written = array(machine, stream), array(machine, stream)
        for refused in (nth, nth + 1) if name else ():
            machine.control.fault(name, REFUSED, refused)
        with machine.control.gil_watch("*"):
            try:
                attached.take(route, read, written)
            except BaseException as refused:
                is_panic = route == PANICS and type(refused).__name__ == "PanicException"
                if not (name and (is_panic or isinstance(refused, RuntimeError))):
                    raise
        was_made = machine.control.pending_faults() == 0
        machine.control.clear_faults()
        return was_made

    take()
    machine.clear()
    take()
    for name in sorted(set(machine.names())):
        for nth in itertools.count(1):
            if not take(name, nth):
                break


PANIC_WITHIN = """
import cai_dlpack as cd
import cai_example_attached as attached
import numpy as np

def refused():
    try:
        attached.refuse(np.zeros(3, np.float32))
    except BaseException as error:
        return type(error).__name__

def raising(panic):
    def raises(self, *arguments):
        raise panic("within")
    return raises

assert refused() == "TypeRefusal"
# Each extension has a class of its own, which PyO3 makes when it first looks whether an exception is one.
for panic in [each for each in BaseException.__subclasses__() if each.__name__ == "PanicException"]:
    cd.TypeRefusal.__init__ = raising(panic)
    print(refused())
    del cd.TypeRefusal.__init__
    print(refused())
"""


def test_after_a_panic_where_the_library_took_the_gil_it_is_free() -> None:
    """PyO3 goes on panicking where it finds its own exception: here on a thread that held no GIL before."""
    done = subprocess.run([sys.executable, "-c", PANIC_WITHIN], capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout.split()
    assert (done.returncode, set(said[::2]), set(said[1::2])) == (0, {"PanicException"}, {"TypeRefusal"}), done.stderr
