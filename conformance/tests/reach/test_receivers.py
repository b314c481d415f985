"""Whose memory takes what arrives: of a library that is imported already, in order of its stream.

Numba and cuda.core are those installed. rmm, CuPy and torch are doubles: rmm's demands what its `device_buffer.pyx`
does (read at 072518d7), the others what CuPy and torch document of `cupy.asarray`, `torch.from_numpy` and `Tensor.to`.
Their memory and their streams are the simulated driver's, which does what is pending when somebody waits for it, and
not before.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_dlpack import _receive, _wire

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.interpreter import needs
from conformance.tests.reach.arrays import lazy
from conformance.tests.simulated.machine import Machine

__all__ = ["lazy"]

CONTENT = np.arange(6.0)
LEGACY = 1
#: Imported before they are hidden, and once: a second module of that name would not know the arrays of the first.
INSTALLED = {
    name: importlib.import_module(name) for name in ("cuda.core", "numba.cuda") if importlib.util.find_spec(name)
}


@pytest.fixture(autouse=True)
def _none_imported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in _receive.LIBRARIES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    caplog.set_level(logging.DEBUG, "cai_dlpack")


def arrived(content: Any = CONTENT) -> cd.CaiView:
    header = {"on_device": True, "dtype": "float64", "shape": content.shape, "read_only": False}
    return _wire.of_bytes(header, content.tobytes())


def stored(machine: Machine, flat: Any, stream: int) -> int:
    """Device memory that `stream` has still to fill."""
    data = machine.device_memory(flat.nbytes)
    machine.write(data, b"\xee" * flat.nbytes)
    machine.control.store(stream, data, flat.tobytes())
    return data


class Stream:
    """rmm's stream: legacy or not."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine, self.number = machine, number

    def synchronize(self) -> None:
        self.machine._call("cuStreamSynchronize", self.number)


def rmm(machine: Machine, *, is_full: bool = False) -> Any:
    class DeviceBuffer:
        def __init__(self, ptr: int, size: int) -> None:
            self.ptr, self.size = ptr, size
            self.__cuda_array_interface__ = {
                "data": (ptr, False),
                "shape": (size,),
                "strides": None,
                "typestr": "|u1",
                "version": 0,
            }

        @staticmethod
        def to_device(b: Any, stream: Any) -> DeviceBuffer:
            # `const unsigned char[::1] b`, and a stream of rmm's own.
            given = memoryview(b)
            assert (given.format, given.ndim, given.c_contiguous) == ("B", 1, True)
            assert isinstance(stream, Stream)
            if is_full:
                raise MemoryError("std::bad_alloc: out_of_memory: RMM failure")
            return DeviceBuffer(stored(machine, np.frombuffer(b, np.uint8), stream.number), given.nbytes)

    streams = SimpleNamespace(LEGACY_DEFAULT_STREAM=Stream(machine, LEGACY))
    return SimpleNamespace(DeviceBuffer=DeviceBuffer, pylibrmm=SimpleNamespace(stream=streams))


def cupy(machine: Machine) -> Any:
    """Arrays of CuPy's name the current stream, which the copy is on."""
    stream = machine.stream()

    def asarray(flat: np.ndarray[Any, Any]) -> Cai:
        assert isinstance(flat, np.ndarray)
        data = stored(machine, flat, stream)
        return Cai(interface(shape=flat.shape, typestr=flat.dtype.str, data=(data, False), stream=stream))

    return SimpleNamespace(asarray=asarray, stream=stream)


def torch(machine: Machine, *, is_initialized: bool = True) -> Any:
    """`to("cuda")` waits for its copy; a dict of torch's names no stream, as its version is 2."""

    class Tensor:
        def __init__(self, array: np.ndarray[Any, Any]) -> None:
            self.array = array

        def to(self, device: str) -> Cai:
            assert device == "cuda"
            data = machine.device_memory(self.array.nbytes)
            machine.write(data, self.array.tobytes())
            return Cai(interface(shape=self.array.shape, typestr="|u1", data=(data, False), version=2, stream=...))

    def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
        assert array.flags.writeable, "torch warns"
        return Tensor(array)

    return SimpleNamespace(from_numpy=from_numpy, cuda=SimpleNamespace(is_initialized=lambda: is_initialized))


def install(monkeypatch: pytest.MonkeyPatch, **modules: Any) -> None:
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name.replace("_", "."), module)


def is_right(view: cd.CaiView) -> bool:
    return np.array_equal(np.from_dlpack(view, device="cpu"), CONTENT)


@needs.numba_cuda
def test_numba_owns_what_arrives(
    lazy: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cuda = INSTALLED["numba.cuda"]
    install(monkeypatch, numba_cuda=cuda)
    found = arrived()
    assert isinstance(found.owner.array, cuda.cudadrv.devicearray.DeviceNDArray)
    assert (found.device, is_right(found)) == ((2, 0), True)
    assert "48 bytes are in memory of numba.cuda" in caplog.text


def test_cuda_core_owns_what_arrives_in_order_of_its_stream(
    lazy: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    core = INSTALLED["cuda.core"]
    core.Device(0).set_current()
    install(monkeypatch, cuda_core=core)
    lazy.clear()
    found = arrived()
    logged = lazy.calls()
    allocated = next(at for at, (name, _) in enumerate(logged) if name.startswith("cuMemAlloc"))
    copied = next(at for at, (name, _) in enumerate(logged) if name.startswith("cuMemcpy"))
    waited = next(at for at, (name, _) in enumerate(logged) if name == "cuStreamSynchronize")
    assert allocated < copied < waited
    assert {logged[at][1] for at in (allocated, copied, waited)} == {LEGACY}
    assert isinstance(found.owner, core.Buffer)
    assert (found.device, found.stream, is_right(found)) == ((2, 0), LEGACY, True)
    assert "48 bytes are in memory of cuda.core" in caplog.text


@pytest.mark.parametrize("name", [pytest.param("numba.cuda", marks=needs.numba_cuda), "cuda.core"])
def test_what_ends_on_a_thread_without_a_context_gives_its_memory_back(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    module = INSTALLED[name]
    if name == "cuda.core":
        module.Device(0).set_current()
    monkeypatch.setitem(sys.modules, name, module)
    held = [arrived()]
    owners = type(held[0].owner)
    before = machine.control.live().allocations

    def end() -> None:
        machine.enter(0)
        held.clear()

    # Numba puts off frees; so many that it does not put off all of them.
    for _ in range(30):
        held.append(arrived())
        thread = threading.Thread(target=end)
        thread.start()
        thread.join()
    assert owners is not cd.CaiView
    assert machine.control.live().allocations <= before + 10


def test_rmm_owns_what_arrives_in_order_of_its_stream(
    lazy: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    double = rmm(lazy)
    install(monkeypatch, rmm=double, torch=torch(lazy))
    found = arrived()
    assert isinstance(found.owner, double.DeviceBuffer)
    # Freed on that stream, behind what its readers do: they order themselves before it.
    assert (found.stream, lazy.read(found.ptr, 48)) == (LEGACY, CONTENT.tobytes())
    assert is_right(found)
    assert "48 bytes are in memory of rmm" in caplog.text


def test_cupys_array_is_ready_on_the_stream_that_it_names(lazy: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    double = cupy(lazy)
    install(monkeypatch, cupy=double)
    found = arrived()
    assert found.stream == double.stream
    assert lazy.read(found.ptr, 48) != CONTENT.tobytes(), "nothing is pending: the order is not tested"
    assert is_right(found)


def test_torch_owns_what_arrives_if_it_uses_a_device(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, torch=torch(machine))
    assert is_right(arrived())
    assert "48 bytes are in memory of torch" in caplog.text
    caplog.clear()
    install(monkeypatch, torch=torch(machine, is_initialized=False))
    assert is_right(arrived())
    assert "48 bytes are in memory of the driver's pool" in caplog.text


def test_the_next_library_takes_what_the_first_has_no_room_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, rmm=rmm(machine, is_full=True), cupy=cupy(machine))
    assert is_right(arrived())
    assert "rmm has no memory for 48 bytes: std::bad_alloc" in caplog.text
    assert "48 bytes are in memory of cupy" in caplog.text


def test_a_pool_that_owns_the_device_leaves_the_drivers_pool_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why a library's memory is taken first: without it what arrives stays on the host."""
    before = machine.control.get("memory")
    content = np.arange(float(1 << 14))
    taken = machine.device_memory(content.nbytes)
    machine.control.set("memory", content.nbytes)
    try:
        assert arrived(content).device == (1, 0)
        double = rmm(machine)
        monkeypatch.setattr(double.DeviceBuffer, "to_device", lambda flat, _: in_pool(machine, double, taken, flat))
        install(monkeypatch, rmm=double)
        found = arrived(content)
        assert (found.device, found.ptr) == ((2, 0), taken)
    finally:
        machine.control.set("memory", before)
        machine.free(taken)


def in_pool(machine: Machine, double: Any, data: int, flat: Any) -> Any:
    machine.write(data, flat.tobytes())
    return double.DeviceBuffer(data, flat.nbytes)


def test_nothing_is_imported_for_it(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    before = set(sys.modules)
    found = arrived()
    assert (found.device, is_right(found)) == ((2, 0), True)
    assert not {name for name in set(sys.modules) - before if name in _receive.LIBRARIES}
    assert "48 bytes are in memory of the driver's pool" in caplog.text


def test_a_module_of_another_kind_is_passed_over(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _receive.LIBRARIES:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert arrived().device == (2, 0)
