"""Tests behaviour of single producers that the protocol leaves open, each by a double."""

from __future__ import annotations

import warnings
from typing import Any

import cai_dlpack as cd
import cuda.core
import numba.cuda
import numpy as np
import pytest
from cai_conformance import abi, exchange
from cai_dlpack import _core
from cuda.core.utils import StridedMemoryView
from numba.cuda.cudadrv.devicearray import DeviceNDArray

from conformance.tests.doubles.producers import Dlpack
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.simulated.machine import Machine

PARTNERS = _core._partners()


def modules(quirk: str, has: bool = True) -> list[str]:
    """The modules of the partners with (or without) a quirk, each with one below it."""
    chosen = [row["modules"] for row in PARTNERS if (quirk in row["quirks"]) == has]
    return [name for names in chosen for module in names for name in (module, f"{module}._core.core")]


def test_the_table_has_each_quirk() -> None:
    assert all(modules(quirk) for quirk in ("wants its device current", "ignores `stream`", "mislabels bfloat16"))


@pytest.mark.parametrize("library", modules("wants its device current"))
def test_the_arrays_device_is_current_while_it_is_asked(library: str, machine: Machine) -> None:
    """torch refuses, and CuPy takes another device's stream, where another device is current."""
    seen = []

    class Insists(Dlpack):
        def __dlpack__(self, **keywords: Any) -> object:
            seen.append(machine.current())
            return super().__dlpack__(**keywords)

    Insists.__module__ = library
    producer = Insists(abi.make(device=(2, 1), data=machine.device_memory(64, 1)))
    assert cd.view(producer).device == (2, 1)
    assert seen == [machine.context(1)]
    assert machine.current() == machine.context(0)


def test_the_callers_device_comes_back_where_the_producer_raises(machine: Machine) -> None:
    class Insists(Dlpack):
        def __dlpack__(self, **keywords: Any) -> object:
            raise RuntimeError("not today")

    Insists.__module__ = "torch"
    with pytest.raises(RuntimeError, match="not today"):
        cd.view(Insists(abi.make(device=(2, 1), data=machine.device_memory(64, 1))))
    assert machine.current() == machine.context(0)


@pytest.mark.parametrize("library", ["mytorch", *modules("wants its device current", has=False)])
def test_other_producers_cost_no_context(library: str, machine: Machine) -> None:
    class Modest(Dlpack):
        pass

    Modest.__module__ = library
    producer = Modest(abi.make(device=(2, 1), data=machine.device_memory(64, 1)))
    machine.clear_own()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cd.view(producer)
    assert machine.calls() == []


@pytest.mark.parametrize("library", modules("ignores `stream`"))
def test_a_stream_that_is_ignored_is_unknown(library: str, machine: Machine) -> None:
    class Deaf(Dlpack):
        pass

    Deaf.__module__ = library
    with pytest.warns(cd.StreamWarning, match="stream-undeclared"):
        view = cd.view(Deaf(abi.make(device=(2, 0), data=machine.device_memory(64))))
    assert (view.stream, view.producer_stream) == (1, "unknown")


@pytest.mark.parametrize(
    ("library", "dtype"), [(name, "bfloat16") for name in modules("mislabels bfloat16")] + [("cupy", "float16")]
)
def test_a_typestr_that_may_lie_is_checked(library: str, dtype: str) -> None:
    class Mislabels:
        dtype = "bfloat16"
        __cuda_array_interface__ = {"shape": (3,), "typestr": "<f2", "data": (0x1000, False), "version": 3}  # noqa: RUF012

    Mislabels.__module__ = library
    assert cd.view(Mislabels(), device_id=0).dtype == dtype


def test_cuda_core_says_no_stream_and_that_is_said(machine: Machine) -> None:
    device = cuda.core.Device(0)
    device.set_current()
    stream = device.create_stream()
    buffer = device.allocate(64, stream=stream)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        view = cd.view(buffer)
        between = cd.view(StridedMemoryView.from_dlpack(buffer, stream_ptr=-1))
        cd.view(buffer, producer_stream=stream)
    assert (view.stream, view.producer_stream) == (1, "unknown")
    assert (between.stream, between.producer_stream) == (1, "unknown")
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 2, "not where the caller names the stream"
    assert all("producer_stream=" in text and "[stream-undeclared]" in text for text in texts)


def test_strided_memory_view_comes_by_its_table(machine: Machine) -> None:
    assert exchange.table_of(StridedMemoryView).version.major == 1
    host = np.arange(6, dtype=np.float32)
    view = cd.view(StridedMemoryView.from_dlpack(host, stream_ptr=-1))
    assert (view.ptr, view.device, view.stream) == (host.ctypes.data, (1, 0), None)


# --- Numba: an axis of stride 0 is taken for a contiguous one, and the export has no strides --------------------


def test_a_broadcast_array_of_numbas_leaves_its_memory(machine: Machine) -> None:
    """The dict does not show it; the driver has the size of the allocation."""
    whole = numba.cuda.to_device(np.arange(2.0))
    repeated = DeviceNDArray((3, 2), (0, 8), np.float64, gpu_data=whole.gpu_data)
    assert repeated.__cuda_array_interface__["strides"] is None
    found = refuse(lambda: cd.view(repeated, check="bounds"), BufferError)
    check_refusal(found, "out-of-bounds", "data", hint="allocation")
    assert cd.view(whole, check="bounds").shape == (2,)
