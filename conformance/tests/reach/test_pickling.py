"""Views pickled by a copy, where a process has asked for it: the same values, ready, and refused without."""

from __future__ import annotations

import copyreg
import math
import multiprocessing
import pickle
import random
from collections.abc import Iterator
from typing import Any

import cai_dlpack as cd
import ml_dtypes
import numpy as np
import pytest
from cai_dlpack import pickling

from conformance.tests.reach.arrays import drawn, lazy, on_device
from conformance.tests.simulated.machine import Machine

__all__ = ["lazy"]


@pytest.fixture
def registered() -> Iterator[None]:
    pickling.register()
    yield
    del copyreg.dispatch_table[cd.CaiView]


def test_it_is_refused_unless_asked_for() -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(cd.view(np.zeros(3)))


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_is_loaded_is_what_was_pickled_and_was_ready(lazy: Machine, protocol: int) -> None:
    chosen, stream = random.Random(protocol), lazy.stream()
    for _ in range(60):
        array, read_only = drawn(chosen), chosen.random() < 0.5
        view = cd.view(array, read_only=True) if read_only else on_device(lazy, array, stream, False)
        buffers: list[Any] = []
        apart = buffers.append if protocol == 5 and chosen.random() < 0.5 else None
        found = pickle.loads(pickle.dumps(view, protocol, buffer_callback=apart), buffers=buffers)
        assert (found.shape, str(found.dtype), found.read_only) == (array.shape, str(view.dtype), read_only)
        assert found.device[0] == (view.device[0] if array.size else 1)
        assert np.from_dlpack(found, device="cpu").tobytes() == array.tobytes()


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("shape", [(), (0,), (1,), (1, 1), (2,), (3,)], ids=str)
@pytest.mark.parametrize("name", ["int4", "uint2", "float4_e2m1fn"])
def test_padded_elements_are_not_sent_as_packed_ones(name: str, shape: tuple[int, ...]) -> None:
    """One or none of them takes as many bytes as if it were packed."""
    padded = cd.view(np.zeros(shape, getattr(ml_dtypes, name)))
    assert padded.itemsize == 1
    with pytest.raises((BufferError, ValueError)):
        pickle.dumps(padded)
    size = math.prod(shape)
    packed = cd.view(np.zeros(size, np.uint8), dtype=name, shape=(packed_in(name, size),))
    assert pickle.loads(pickle.dumps(packed)).shape == packed.shape


def packed_in(name: str, nbytes: int) -> int:
    """How many packed elements fill so many bytes."""
    return nbytes * 8 // {"int4": 4, "uint2": 2, "float4_e2m1fn": 4}[name]


@pytest.mark.usefixtures("registered")
def test_what_is_loaded_is_written_without_touching_bytes_that_python_shares() -> None:
    view = cd.view(np.zeros(1, np.uint8))
    buffers: list[Any] = []
    content = pickle.dumps(view, 5, buffer_callback=buffers.append)
    for given in ([b"\0"], [bytearray(1)]):
        found = pickle.loads(content, buffers=given)
        np.asarray(found)[0] = 7
        assert bytes(1) == b"\0" and bytes([0])[0] == 0


@pytest.mark.usefixtures("registered")
def test_host_memory_is_not_copied_where_buffers_are_taken() -> None:
    array, buffers = np.arange(1000.0), list[Any]()
    content = pickle.dumps(cd.view(array), 5, buffer_callback=buffers.append)
    assert len(content) < 500
    (buffer,) = buffers
    assert np.frombuffer(buffer, np.uint8).ctypes.data == array.ctypes.data


def doubled(view: cd.CaiView) -> tuple[float, Any]:
    pickling.register()
    return 2 * float(np.from_dlpack(view, device="cpu").sum()), view


@pytest.mark.usefixtures("registered", "machine")
def test_a_pool_of_processes_takes_and_returns_views(machine: Machine) -> None:
    views = [
        cd.view(np.arange(9.0)),
        on_device(machine, np.arange(5.0), machine.stream(), False),
    ]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.map(doubled, views)
    assert [total for total, _ in found] == [72.0, 20.0]
    assert [view.device[0] for _, view in found] == [1, 2]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("shape", [(3,), (0,), (2, 2), ()])
def test_a_view_of_a_block_that_was_left_is_not_pickled(shape: tuple[int, ...], lazy: Machine) -> None:
    stream = lazy.stream()
    for array in (np.zeros(shape), on_device(lazy, np.zeros(shape), stream, False)):
        with cd.view(array).consume(stream) as view:
            pass
        with pytest.raises(cd.Refusal) as refused:
            pickle.dumps(view)
        assert refused.value.rule == "scope-ended"
