"""The view keeps the producing object, and by that the memory: of libraries that move, free or reuse it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import cai_dlpack as cd
import numba.cuda
import numpy as np
import pytest
from cai_conformance import Sim, abi

from conformance.tests.doubles.producers import interface
from conformance.tests.simulated.machine import Machine

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def numbas_managed() -> Any:
    array = numba.cuda.managed_array((2, 3), np.float32)
    array[:] = VALUES
    return array


@pytest.mark.parametrize("make", [lambda: numba.cuda.to_device(VALUES), numbas_managed], ids=["device", "managed"])
def test_numbas_memory_is_freed_after_the_last_view_and_not_before(make: Callable[[], Any], machine: Machine) -> None:
    context, control = numba.cuda.current_context(), Sim()

    def live() -> int:
        gc.collect()
        context.deallocations.clear()
        context.memory_manager.deallocations.clear()
        return int(control.live().allocations)

    before = live()
    view: Any = cd.view(make())
    assert live() == before + 1
    tensor = abi.consume(view.__dlpack__(stream=-1, max_version=(1, 3)))
    pointer = view.ptr
    del view
    assert live() == before + 1
    numba.cuda.synchronize()  # `to_device` does not wait for its copy
    assert control.peek(pointer, VALUES.nbytes) == VALUES.tobytes()
    abi.release(tensor)
    assert live() == before


class Spillable:
    """cuDF's buffer: it may be moved to the host until its pointer is read, which brings it back."""

    class Data:
        def __init__(self, buffer: Spillable) -> None:
            self.buffer = buffer

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            if index == 1:
                return False
            if index:
                raise IndexError(index)
            return self.buffer.expose()

        def __iter__(self) -> Iterator[Any]:
            return iter((self[0], self[1]))

    def __init__(self) -> None:
        self.reads = 0
        self.pointer: int | None = None

    @property
    def is_spillable(self) -> bool:
        return self.reads == 0

    def expose(self) -> int:
        self.reads += 1
        self.pointer = self.pointer or 0x7F00_0000_2000
        return self.pointer

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return interface(data=Spillable.Data(self))


def test_a_spilled_buffer_is_brought_back_once_and_stays() -> None:
    import collections.abc

    collections.abc.Sequence.register(Spillable.Data)
    buffer = Spillable()
    view = cd.view(buffer, device_id=0)
    assert buffer.reads == 1
    assert not buffer.is_spillable
    assert view.ptr == buffer.pointer
    assert view.owner is buffer


class Reused:
    """JAX's array: donated or deleted, its memory is reused, unless the array's buffer is held; the hold ends with
    the tensor that its `__dlpack__` has returned."""

    def __init__(self) -> None:
        self.made = abi.make()
        self.holds = 0
        self.made.on_release = self.let_go

    def let_go(self) -> None:
        self.holds -= 1

    def __dlpack__(self, **_: Any) -> object:
        self.holds += 1
        return self.made.capsule()

    def __dlpack_device__(self) -> tuple[int, int]:
        tensor = self.made.tensor
        return tensor.device.device_type, tensor.device.device_id


def test_a_hold_on_a_buffer_lasts_as_long_as_the_last_view() -> None:
    array = Reused()
    view: Any = cd.from_dlpack(array)
    again: Any = cd.view(view)
    tensor = abi.consume(again.__dlpack__(stream=None, max_version=(1, 3)))
    for name in ("view", "again"):
        assert array.holds == 1, name
        if name == "view":
            del view
        else:
            del again
    assert array.holds == 1
    abi.release(tensor)
    assert array.holds == 0
