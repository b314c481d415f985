"""Managed memory on devices that must have it to themselves: no host route touches it while anything runs there.

The driver's attribute is asked for once, so each machine is a process of its own. Device 0 has no concurrent
managed access, device 1 has.
"""

from __future__ import annotations

import pytest

from conformance.tests.interpreter.process import on_the_simulator

MACHINE = """
import ctypes, pickle, sys, threading, time
import numpy as np
import cai_dlpack as cd
from cai_dlpack import pickling
from cai_conformance import Sim
from cai_conformance import abi, exchange
from conformance.tests.doubles.producers import Dlpack, cai
from conformance.tests.simulated.capture import Captures
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.race import Track, NBYTES

machine = Machine(Sim())
control = machine.control
track = Track(machine)
track.data = machine.managed_memory(NBYTES)
machine.write(track.data, bytes(NBYTES))

def first(address):
    return ctypes.c_uint8.from_address(address).value

READERS = {
    "numpy": lambda view: np.from_dlpack(view),
    "asarray": lambda view: np.asarray(view),
    "memoryview": lambda view: memoryview(view),
    "array-interface": lambda view: view.__array_interface__,
    "present-as": lambda view: view.present_as("host"),
    "synchronize": lambda view: view.synchronize(),
    "dl-device": lambda view: view.__dlpack__(dl_device=(1, 0), max_version=(1, 3)),
    "stream-none": lambda view: view.__dlpack__(max_version=(1, 3)),
    "to-dlpack": lambda view: cd.to_dlpack(view),
    "to-dlpack-of-the-producer": lambda _: cd.to_dlpack(track.producer(None)),
    "to-dlpack-host": lambda view: cd.to_dlpack(view, stream="host"),
}

def waits():
    return [name for name, _ in machine.order()]

def busy(stream):
    # Work on other memory, which nothing here orders.
    control.store(stream, track.copy, bytes(NBYTES))
"""

# Ready data, and data that is ready on a stream: a busy device is waited for as a whole.
WAITS = """
control.schedule = sys.argv[1]
for ready in (None, track.a):
    for name, read in READERS.items():
        if name == "to-dlpack-of-the-producer" and ready is not None:
            continue
        busy(track.b)
        view = cd.view(track.producer(ready))
        machine.clear()
        kept = read(view)
        assert waits() == ["cuCtxSynchronize"], (name, ready, machine.names())
        assert control.pending(track.b) == 0, name
        assert machine.current() == machine.context(0)
print("waited")
"""

# The same memory under another name: the device's, by the caller's word, a library's or ours; and the host's, in a view
# that was made while nothing ran.
NAMES = """
def called_the_devices():
    return Dlpack(abi.make(device=(abi.CUDA, 0), data=track.data))

NAMES = {
    "device-id": lambda ready: cd.view(track.producer(ready), device_id=0),
    "present-as-cuda": lambda ready: cd.view(track.producer(ready)).present_as("cuda"),
    "a-librarys": lambda ready: cd.view(called_the_devices(), producer_stream=ready),
    "host": lambda ready: cd.view(track.producer(ready)).present_as("host"),
    "host-of-cuda": lambda ready: cd.view(track.producer(ready), device_id=0).present_as("host"),
    "part-of-host": lambda ready: cd.view(cd.view(track.producer(ready)).present_as("host"), shape=(6,)),
}
OF_THE_DEVICE = {name: READERS[name] for name in ("present-as", "synchronize", "dl-device", "to-dlpack-host")}
TABLE = exchange.table_of(cd.CaiView)

def owning(view):
    out = ctypes.c_void_p()
    assert exchange.FromObject(TABLE.from_object)(id(view), ctypes.byref(out)) == 0
    return abi.read_at(out.value, versioned=True)

def lent(view):
    assert exchange.Borrow(TABLE.borrow)(id(view), ctypes.byref(abi.DLTensor())) == 0

pickling.register()
OF_THE_HOST = {name: read for name, read in READERS.items() if name != "to-dlpack-of-the-producer"}
OF_A_VIEW_OF_THE_HOST = OF_THE_HOST | {"table": owning, "borrowed": lent, "pickle": pickle.dumps}

def readers(view):
    return OF_A_VIEW_OF_THE_HOST if view.device[0] == abi.CPU else OF_THE_DEVICE
"""

UNDER_OTHER_NAMES = """
control.schedule = sys.argv[1]
for ready in (None, track.a):
    for name, make in NAMES.items():
        view = make(ready)
        for reader, read in readers(view).items():
            busy(track.b)
            machine.clear()
            kept = read(view)
            assert "cuCtxSynchronize" in waits(), (name, ready, reader, machine.names())
            assert control.pending(track.b) == 0, (name, reader)
            assert machine.current() == machine.context(0)
            if view.device[0] == abi.CUDA:
                # Memory of the device itself is not waited for.
                own = cd.view(cai(data=(track.copy, False), stream=None), device_id=0)
                if reader != "present-as":
                    machine.clear()
                    read(own)
                    assert "cuCtxSynchronize" not in waits(), reader
print("waited")
"""

BESIDE_CAPTURES = """
made = ctypes.c_void_p()
assert machine.driver.cuStreamCreate(ctypes.byref(made), 0) == 0  # blocking: the legacy stream knows of it
captures = Captures(machine)
for ready in (None, track.a):
    for name, make in NAMES.items():
        view = make(ready)
        for mode in (0, 1, 2):
            captures.begin(made.value, mode)
            for reader, read in readers(view).items():
                machine.clear()
                try:
                    read(view)
                except (BufferError, AttributeError) as error:
                    assert "[capture-host-wait]" in str(error), (name, reader, error)
                else:
                    raise AssertionError(f"{reader} of {name} read beside a capture")
                assert waits() == [], (name, reader)
            captures.end(made.value)
print("refused")
"""

# The producer's stream is asked too: the legacy one tells of blocking streams alone.
PRODUCER = """
captures = Captures(machine)
own = track.a  # non-blocking
finished = cd.view(track.producer(own)).synchronize()
elsewhere = cd.view(track.producer(own)).on(track.b)
for mode in (0, 1, 2):
    captures.begin(own, mode)
    for view in (finished, elsewhere):
        for name, read in OF_THE_HOST.items():
            try:
                read(view)
            except (BufferError, AttributeError) as error:
                assert "[capture-host-wait]" in str(error), (name, error)
            else:
                raise AssertionError(name + " read beside a capture of the producer")
    captures.end(own)
# Of a stream that the library has not met there is no question: the driver refuses the wait, and the capture is lost.
captures.begin(track.b)
try:
    finished.synchronize()
except cd.DriverError as error:
    assert "cuCtxSynchronize" in str(error), error
captures.abandon(track.b)
print("refused")
"""

# The device is asked whether anything is captured there, before it is waited for; the capture goes on.
CAPTURES = """
# Copies are refused before anything is enqueued.
READERS["copy"] = lambda view: view.__dlpack__(copy=True, max_version=(1, 3))
READERS["copy-to-the-cpu"] = lambda view: view.__dlpack__(copy=True, dl_device=(1, 0), max_version=(1, 3))

made = ctypes.c_void_p()
assert machine.driver.cuStreamCreate(ctypes.byref(made), 0) == 0  # blocking: the legacy stream knows of it
blocking = made.value

def reads():
    machine.set_current(0)
    for ready in (None, track.a):
        for name, read in READERS.items():
            if name == "to-dlpack-of-the-producer" and ready is not None:
                continue
            view = cd.view(track.producer(ready))
            machine.clear()
            try:
                read(view)
            except (BufferError, AttributeError) as error:
                assert "[capture-host-wait]" in str(error), (name, error)
            else:
                raise AssertionError(name + " read beside a capture")
            assert waits() == [], name
            assert not [call for call in machine.names() if call.startswith("cuMem")], name

for elsewhere in (False, True):
    captures = Captures(machine)
    captures.begin(blocking)
    failed = []
    if elsewhere:
        def work():
            try:
                reads()
            except BaseException as error:
                failed.append(error)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    else:
        reads()
    assert not failed, failed
    captures.end(blocking)
print("refused")
"""

# Such a device wants all managed memory, whosever it is and whatever its name; one that shares it is not waited for.
MIXED = """
control.schedule = sys.argv[1]

def managed(device):
    machine.set_current(device)
    made = ctypes.c_uint64()
    assert machine.driver.cuMemAllocManaged(ctypes.byref(made), ctypes.c_size_t(NBYTES), 1) == 0
    machine.set_current(0)
    return made.value

def called(device):
    return Dlpack(abi.make(device=(abi.CUDA, device), data=track.data))

NAMES = {
    "its-own": lambda ready: cd.view(track.producer(ready)),
    "present-as-cuda": lambda ready: cd.view(track.producer(ready)).present_as("cuda"),
    **{f"device-id-{n}": lambda ready, n=n: cd.view(track.producer(ready), device_id=n) for n in (0, 1)},
    **{f"a-librarys-{n}": lambda ready, n=n: cd.view(called(n), producer_stream=ready) for n in (0, 1)},
}
EXCLUSIVE = [device for device in (0, 1) if f"{device}:89=0" in sys.argv[2]]
streams = {device: machine.stream(device) for device in (0, 1)}
scratch = {device: machine.device_memory(NBYTES, device) for device in (0, 1)}
for owner in (0, 1):
    track.data = managed(owner)
    for name, make in NAMES.items():
        for ready in (None, track.a, streams[1]):
            for current in (0, 1):
                machine.set_current(current)
                view = make(ready)
                of_device = ("present-as", "synchronize", "dl-device", "to-dlpack-host")
                for reader in of_device if view.device[0] == abi.CUDA else READERS:
                    if reader == "to-dlpack-of-the-producer":
                        continue
                    for device, stream in streams.items():
                        control.delay(stream, 0.0005)
                        control.store(stream, scratch[device], bytes(NBYTES))
                    READERS[reader](view)
                    left = [device for device in EXCLUSIVE if control.pending(streams[device])]
                    assert left == [], (owner, name, ready, current, reader)
                    assert machine.current() == machine.context(current)
                    if control.schedule == "lazy" and ready is None and EXCLUSIVE != [0, 1]:
                        (shared,) = {0, 1} - set(EXCLUSIVE)
                        assert control.pending(streams[shared]), (owner, name, reader)
print("waited")
"""

# A device that nothing uses is not waited for, nor brought to life.
UNUSED = """
from conformance.tests.simulated.machine import Machine
machine = Machine(Sim())
machine.set_current(0)
address = machine.managed_memory(NBYTES)
view = cd.view(Cai(interface(data=(address, False), stream=None)))
machine.clear()
view.synchronize()
assert "cuCtxSynchronize" not in machine.names(), machine.names()
active, flags = ctypes.c_int(), ctypes.c_uint()
assert machine.driver.cuDevicePrimaryCtxGetState(1, ctypes.byref(flags), ctypes.byref(active)) == 0
assert active.value == 0
print("unused")
"""

NONE = """
for name, read in READERS.items():
    view = cd.view(track.producer(None))
    read(view)
    machine.clear()
    read(view)
    asked = [call for call in machine.names() if call != "cuPointerGetAttributes"]
    assert asked == [], (name, asked)
print("nothing")
"""

# A copy for a host is read there: the device is waited for before it is made, and once more when it is.
COPIES = """
control.schedule = sys.argv[1]
for ready in (None, track.a):
    view = cd.view(track.producer(ready))
    if ready is not None:
        control.store(ready, track.data, bytes([7]) * NBYTES)
    busy(track.b)
    machine.clear()
    array = np.from_dlpack(view, copy=True)
    found = waits()
    assert (found[0], found[-1], len(found)) == ("cuCtxSynchronize", "cuCtxSynchronize", 3), found
    assert control.pending(track.b) == 0
    assert first(array.ctypes.data) == (0 if ready is None else 7)
print("copied")
"""

EXCLUSIVE = ("--attribute", "0:89=0")


@pytest.mark.parametrize("schedule", ["lazy", "threaded"])
def test_every_host_route_waits_for_the_device(schedule: str) -> None:
    done = on_the_simulator(MACHINE + WAITS.replace("sys.argv[1]", repr(schedule)), *EXCLUSIVE)
    assert (done.returncode, done.stdout) == (0, "waited\n"), done.stderr


@pytest.mark.parametrize("schedule", ["lazy", "threaded"])
def test_a_copy_for_a_host_waits_for_the_device(schedule: str) -> None:
    done = on_the_simulator(MACHINE + COPIES.replace("sys.argv[1]", repr(schedule)), *EXCLUSIVE)
    assert (done.returncode, done.stdout) == (0, "copied\n"), done.stderr


def test_every_host_route_asks_about_captures_first() -> None:
    done = on_the_simulator(MACHINE + CAPTURES, *EXCLUSIVE)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


@pytest.mark.parametrize("schedule", ["lazy", "threaded"])
def test_the_memory_stays_known_under_every_name(schedule: str) -> None:
    done = on_the_simulator(MACHINE + NAMES + UNDER_OTHER_NAMES.replace("sys.argv[1]", repr(schedule)), *EXCLUSIVE)
    assert (done.returncode, done.stdout) == (0, "waited\n"), done.stderr


def test_captures_are_asked_about_under_every_name() -> None:
    done = on_the_simulator(MACHINE + NAMES + BESIDE_CAPTURES, *EXCLUSIVE)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


def test_a_capture_of_the_producers_stream_is_asked_about() -> None:
    done = on_the_simulator(MACHINE + NAMES + PRODUCER, *EXCLUSIVE)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


@pytest.mark.parametrize("exclusive", ["0:89=0", "1:89=0", "0:89=0,1:89=0"])
@pytest.mark.parametrize("schedule", ["lazy", "threaded"])
def test_every_device_that_wants_managed_memory_is_waited_for(schedule: str, exclusive: str) -> None:
    program = MACHINE + MIXED.replace("sys.argv[1]", repr(schedule)).replace("sys.argv[2]", repr(exclusive))
    options = [option for each in exclusive.split(",") for option in ("--attribute", each)]
    done = on_the_simulator(program, *options)
    assert (done.returncode, done.stdout) == (0, "waited\n"), done.stderr


def test_a_device_that_nothing_uses_is_not_waited_for() -> None:
    imports = MACHINE.split("machine = ")[0] + "from conformance.tests.doubles.producers import Cai, interface\n"
    done = on_the_simulator(imports + UNUSED, "--attribute", "1:89=0")
    assert (done.returncode, done.stdout) == (0, "unused\n"), done.stderr


def test_where_every_device_shares_ready_data_costs_no_call() -> None:
    done = on_the_simulator(MACHINE + NONE)
    assert (done.returncode, done.stdout) == (0, "nothing\n"), done.stderr
