"""A source that the host can write is kept until its copy has read it: a host cache gives it away at once."""

from __future__ import annotations

import ctypes
import gc
from functools import partial

import cai_dlpack as cd
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.ownership.waiting import until
from conformance.tests.partners.copying import copy_for, memory, on_a_thread, wait
from conformance.tests.simulated.machine import Machine

SIZE = 24
OLD, REUSED = bytes([1]) * SIZE, bytes([9]) * SIZE
LEGACY, PER_THREAD = 1, 2

pytestmark = pytest.mark.usefixtures("schedule")


class Cached(Cai):
    """Memory of a host cache, which the host writes anew as soon as its owner has gone."""

    def __init__(self, machine: Machine, pointer: int, stream: int) -> None:
        super().__init__(interface(shape=(SIZE,), typestr="|u1", strides=None, data=(pointer, False), stream=stream))
        self.machine, self.pointer = machine, pointer

    def __del__(self) -> None:
        self.machine.write(self.pointer, REUSED)


@pytest.mark.parametrize("route", ["__dlpack__", "from_dlpack"])
@pytest.mark.parametrize("name", ["its-own", "device"])
@pytest.mark.parametrize("consumer", ["producer's", "handle", LEGACY, PER_THREAD])
@pytest.mark.parametrize("kind", ["managed", "pinned"])
def test_the_source_is_there_although_the_producers_stream_is_known(
    kind: str, consumer: str | int, name: str, route: str, machine: Machine
) -> None:
    pointer, ready = memory(machine, kind), machine.stream()
    stream = {"producer's": ready, "handle": machine.stream()}.get(str(consumer), consumer)
    assert isinstance(stream, int)
    device_id = 0 if name == "device" else None
    with machine.control.gate(stream):
        source = cd.view(Cached(machine, pointer, ready), device_id=device_id)
        if route == "__dlpack__":
            tensor = (
                on_a_thread(partial(copy_for, source, stream)) if stream != PER_THREAD else copy_for(source, stream)
            )
            address = tensor.data
        else:
            tensor = cd.from_dlpack(source, copy=True, stream=stream)
            address = tensor.ptr
        del source
        gc.collect()
        assert machine.read(pointer, SIZE) == OLD, "the owner went before its memory was read"
    assert wait(machine, stream) == 0
    assert machine.read(address, SIZE) == OLD

    def is_given_back() -> bool:
        # What another thread has ended goes with the next call into the package.
        cd.stats()
        gc.collect()
        return machine.read(pointer, SIZE) == REUSED

    assert until(is_given_back)
    if isinstance(tensor, abi.Read):
        abi.release(tensor)
    machine.driver.cuStreamSynchronize(ctypes.c_void_p(ready))


@pytest.mark.parametrize("is_same", [True, False], ids=["producer's", "another"])
def test_a_source_of_the_device_goes_in_the_order_of_its_stream(is_same: bool, machine: Machine) -> None:
    """What uses such memory anew is enqueued: the producer's stream waits for the copy."""
    pointer, ready = memory(machine, "device"), machine.stream()
    stream = ready if is_same else machine.stream()
    with machine.control.gate(stream):
        tensor = copy_for(cd.view(Cached(machine, pointer, ready)), stream)
        gc.collect()
        assert machine.read(pointer, SIZE) == REUSED
    assert wait(machine, stream) == 0
    abi.release(tensor)
