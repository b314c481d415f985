"""A view as an argument of Numba's kernels: Numba's own code types it and prepares it, on the simulated driver.

No kernel is compiled or launched, for which there is no compiler here: what a launch does with its arguments is all.
"""

from __future__ import annotations

import contextlib
import itertools
from types import SimpleNamespace
from typing import Any
from unittest import mock

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi
from numba import cuda

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.interpreter import needs
from conformance.tests.simulated.capture import RELAXED, Captures
from conformance.tests.simulated.machine import Machine

pytestmark = needs.numba_cuda


def launched(view: cd.CaiView, stream: Any) -> tuple[Any, list[Any]]:
    """The type that Numba compiles for, and the arguments that it passes to the driver."""
    from numba.cuda.dispatcher import _Kernel
    from numba.cuda.typing.typeof import Purpose, typeof

    kind = typeof(view, Purpose.argument)
    arguments: list[Any] = []
    _Kernel._prepare_args(SimpleNamespace(extensions=[]), kind, view, stream, [], arguments)
    return kind, arguments


def typed(view: cd.CaiView) -> None:
    """Has Numba look for the type of an argument as a launch does: in C, where a buffer is read first."""
    from numba.cuda.cext import _dispatcher
    from numba.cuda.dispatcher import CUDADispatcher

    class Known(Exception):
        pass

    kernel = cuda.jit(lambda array: None)
    with mock.patch.object(CUDADispatcher, "_compile_for_args", side_effect=Known), contextlib.suppress(Known):
        _dispatcher.Dispatcher._cuda_call(kernel, view)


def made(machine: Machine, **changes: Any) -> cd.CaiView:
    return cd.view(Cai(interface(**{"data": (machine.device_memory(4096), False), **changes})))


def streams(machine: Machine) -> dict[str, tuple[Any, int]]:
    """Returns the values that a launch may be given, each with the stream that it stands for."""
    own = machine.stream()
    return {
        "0": (0, 1),
        "default": (cuda.default_stream(), 1),
        "legacy": (cuda.legacy_default_stream(), 1),
        "per thread": (cuda.per_thread_default_stream(), 2),
        "own": (cuda.external_stream(own), own),
    }


@pytest.mark.parametrize("name", ["0", "default", "legacy", "per thread", "own"])
def test_the_launchs_stream_waits_and_the_host_does_not(machine: Machine, name: str) -> None:
    stream, number = streams(machine)[name]
    ready = machine.stream()
    view = made(machine, stream=ready)
    machine.clear()
    _, arguments = launched(view, stream)
    assert machine.order() == [("cuEventRecord", ready), ("cuStreamWaitEvent", number)]
    assert view.ptr in [int(getattr(each, "value", each) or 0) for each in arguments]


def test_as_cuda_array_makes_the_host_wait(machine: Machine) -> None:
    """The wait that a kernel's argument does without."""
    ready = machine.stream()
    view = made(machine, stream=ready)
    machine.clear()
    cuda.as_cuda_array(view)
    assert machine.order() == [("cuStreamSynchronize", ready)]


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 3, 2), (0, 3), ()])
def test_type_layout_and_flag_arrive(machine: Machine, shape: tuple[int, ...], read_only: bool) -> None:
    for typestr, order in itertools.product(["<f4", "<f8", "<i2", "|u1", "<c8", "|b1"], "CFA"):
        dtype = np.dtype(typestr)
        like = np.zeros(shape, dtype, order="F" if order == "F" else "C")
        strides = tuple(2 * step for step in like.strides) if order == "A" else like.strides
        view = made(
            machine, shape=shape, strides=strides, typestr=typestr, data=(machine.device_memory(4096), read_only)
        )
        kind, arguments = launched(view, 0)
        assert (kind.dtype.name, kind.ndim, kind.mutable) == (dtype.name, len(shape), not read_only)
        expected = cuda.as_cuda_array(view)
        assert kind.layout in ("C", "F", "A")
        assert [int(each) for each in arguments[5 : 5 + len(shape)]] == list(expected.shape)
        if expected.size:
            assert [int(each) for each in arguments[5 + len(shape) :]] == list(expected.strides)


def test_host_memory_is_not_refused_by_numba() -> None:
    """It hands the host's address to the kernel: docs/python.md says so."""
    array = np.zeros(3)
    _, arguments = launched(cd.view(array), 0)
    assert array.ctypes.data in [int(each) for each in arguments]


def test_explain_names_the_launch_before_the_import(machine: Machine) -> None:
    ready, mine = machine.stream(), machine.stream()
    told = cd.explain(made(machine, stream=ready), to="numba", stream=mine)
    (kernel,) = [line for line in str(told).splitlines() if line.startswith("in a kernel")]
    assert str(told).index("in a kernel") < str(told).index("order ") < str(told).index("as_cuda_array")
    assert kernel.startswith(
        f"in a kernel kernel[1, 1, s](v): stream {mine:#x} waits for an event on stream {ready:#x}"
    )
    assert kernel.endswith("dropped: nothing")


@pytest.mark.parametrize("name", ["0", "default", "legacy", "per thread", "own"])
@pytest.mark.parametrize("read_only", [True, False])
def test_explain_tells_the_launchs_calls_and_that_it_drops_nothing(
    machine: Machine, name: str, read_only: bool
) -> None:
    stream, number = streams(machine)[name]
    view = made(machine, stream=machine.stream(), data=(machine.device_memory(4096), read_only))
    told = cd.explain(view, to="numba", stream=number)
    assert told.launch is not None and (told.launch.call, told.launch.refused) == ("kernel[1, 1, s](v)", None)
    assert told.dropped == ("the read-only flag" if read_only else None) and told.launch.dropped is None
    machine.clear()
    kind, _ = launched(view, stream)
    assert told.launch.driver_calls == tuple(call for call, _ in machine.order())
    assert kind.mutable is not read_only
    assert cd.explain(view, to="cupy").launch is None


def is_taken(view: cd.CaiView) -> bool:
    try:
        launched(view, 0)
    except Exception:
        return False
    return True


def is_said_to_be_taken(view: cd.CaiView) -> bool:
    told = str(cd.explain(view, to="numba")).splitlines()
    (line,) = [line for line in told if line.startswith("in a kernel")]
    return "refused: " not in line


def test_a_kernel_takes_the_types_that_explain_says(machine: Machine) -> None:
    data, seen = machine.device_memory(4096), set()
    for dtype in itertools.product(range(20), (1, 2, 4, 6, 8, 16, 32, 64, 80, 96, 128, 256), (1, 2)):
        capsule = abi.make((4,), dtype=dtype, device=(2, 0), data=data).capsule()
        try:
            view = cd.view(capsule)
        except (BufferError, ValueError):
            continue
        taken = is_taken(view)
        assert taken == is_said_to_be_taken(view), dtype
        seen.add(taken)
    assert seen == {True, False}


@pytest.mark.parametrize("kind", range(1, 20))
def test_a_kernel_takes_the_memory_that_explain_says(machine: Machine, kind: int) -> None:
    """But for the host's own, whose address Numba hands to a kernel that cannot read it."""
    memory = {3: machine.pinned_memory, 13: machine.managed_memory}.get(kind, machine.device_memory)
    capsule = abi.make((4,), dtype=(2, 32, 1), device=(kind, 0), data=memory(16)).capsule()
    try:
        view = cd.view(capsule)
    except BufferError:
        return
    machine.clear()
    assert is_said_to_be_taken(view) == (kind != 1 and is_taken(view))


@pytest.mark.parametrize("memory", ["pinned_memory", "managed_memory"])
@pytest.mark.parametrize("ready", ["own", "another", "none"])
@pytest.mark.parametrize("name", ["0", "default", "legacy", "per thread", "own"])
def test_explain_tells_a_launchs_calls_with_memory_that_the_host_reads(
    machine: Machine, name: str, ready: str, memory: str
) -> None:
    """Numba asks it for its buffer, for the type: the host waits. Then the launch's stream is made to wait."""
    stream, number = streams(machine)[name]
    on = {"own": number, "another": machine.stream(), "none": None}[ready]
    view = made(machine, stream=on, data=(getattr(machine, memory)(4096), False))
    told = cd.explain(view, to="numba", stream=number).launch
    assert told is not None and told.refused is None
    machine.clear()
    typed(view)
    launched(view, stream)
    calls = tuple(call for call, _ in machine.order())
    if number == 1 and ready != "none":
        # By stream=1 alone it is not known which of two calls follows.
        assert told.driver_calls is None and told.unknown is not None and calls[0] == "cuStreamSynchronize"
    else:
        assert told.driver_calls == calls


@pytest.mark.parametrize("policy", ["event", "host", "none"])
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("memory", ["device_memory", "pinned_memory", "managed_memory"])
@pytest.mark.parametrize("name", ["0", "default", "legacy", "per thread", "own"])
@pytest.mark.parametrize("ready", ["own", "another"])
def test_so_it_does_by_every_policy_and_in_a_capture(
    machine: Machine, ready: str, name: str, memory: str, captured: bool, policy: Any
) -> None:
    """Of a buffer that is refused Numba asks for the tensor, whose order is then the only one."""
    stream, number = streams(machine)[name]
    on = {"own": number, "another": machine.stream()}[ready]
    view = made(machine, stream=on, data=(getattr(machine, memory)(4096), False))
    captures = Captures(machine)
    if captured and number > 2:
        captures.begin(number, RELAXED)
    with cd.policy(sync=policy):
        told = cd.explain(view, to="numba", stream=number).launch
        assert told is not None
        machine.clear()
        refused = ""
        try:
            typed(view)
            launched(view, stream)
        except Exception as error:
            refused = str(error)
        assert (told.refused or "").rsplit("[")[-1] == refused.rsplit("[")[-1]
        if refused:
            return
        if told.driver_calls is not None:
            assert told.driver_calls == tuple(call for call, _ in machine.order())
        else:
            assert number == 1 and memory != "device_memory"


@pytest.mark.parametrize("typestr", ["<M8[s]", "|S4", "<U2", "|V12", ">f4", "<f4"])
def test_a_kernel_takes_the_items_that_explain_says(machine: Machine, typestr: str) -> None:
    view = made(machine, typestr=typestr)
    assert is_taken(view) == is_said_to_be_taken(view)


@pytest.mark.parametrize("steps", range(1, 10))
def test_a_kernel_reads_strided_views_as_strided(machine: Machine, steps: int) -> None:
    """Numba takes the dict of a stride of eight items for C order; a view is typed by DLPack."""
    view = made(machine, shape=(4,), typestr="<f4", strides=(4 * steps,))
    kind, arguments = launched(view, 0)
    assert kind.layout == ("C" if steps == 1 else "A") and int(arguments[-1]) == 4 * steps

    class Bare:
        __cuda_array_interface__ = view.__cuda_array_interface__

    from numba.cuda.typing.typeof import Purpose, typeof

    assert typeof(Bare(), Purpose.argument).layout == ("C" if steps in (1, 8) else "A")
