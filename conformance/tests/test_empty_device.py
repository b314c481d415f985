"""An array without elements has one device, which every door into the library tells."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import cai_example_peer as peer
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import FAKE_POINTER, Cai, interface
from conformance.tests.simulated.machine import Machine

Device = tuple[int, int]
FIRST = (abi.CUDA, 0)

# The address in the dict: what the driver says of it, if it knows it.
MEMORY: dict[str, tuple[Callable[[Machine], int | None], Device | None]] = {
    "0": (lambda _: 0, None),
    "None": (lambda _: None, None),
    "unknown": (lambda _: FAKE_POINTER + 1, None),
    "the first GPU": (lambda machine: machine.device_memory(64), FIRST),
    "the second GPU": (lambda machine: machine.device_memory(64, 1), (abi.CUDA, 1)),
    "managed": (lambda machine: machine.managed_memory(64), (abi.CUDA_MANAGED, 0)),
    "pinned": (lambda machine: machine.pinned_memory(64), (abi.CUDA_HOST, 0)),
}
ANNOUNCED: list[Device] = [FIRST, (abi.CUDA, 1), (abi.CUDA_MANAGED, 0), (abi.CUDA_HOST, 0)]


class Both(Cai):
    """Shows the dict and, by DLPack, a tensor of the same shape on a device."""

    def __init__(self, shown: dict[str, Any], device: Device) -> None:
        super().__init__(shown)
        self.device = device

    def __dlpack__(self, **_: Any) -> object:
        return abi.make(self.interface["shape"], device=self.device, data=0).capsule()

    def __dlpack_device__(self) -> Device:
        return self.device


class Mute(Cai):
    """Its `__dlpack_device__` raises."""

    def __dlpack__(self, **_: Any) -> object:
        raise BufferError("not now")

    def __dlpack_device__(self) -> Device:
        raise BufferError("not now")


def of_capsule(capsule: Any) -> Device:
    """The device in a capsule, which has no address."""
    tensor = abi.read(capsule)
    assert tensor.data == 0
    return tensor.device


# Into the library, for any object with the interface; each returns a view, or the device.
DOORS: dict[str, Callable[[Any], Any]] = {
    "view": cd.view,
    "view with bounds": lambda obj: cd.view(obj, check="bounds"),
    "view of a producer's stream": lambda obj: cd.view(obj, producer_stream=1),
    "from_cai": cd.from_cai,
    "split_masked": lambda obj: cd.split_masked(obj)[0],
    "a Rust function": peer.view_of,
    "to_dlpack": lambda obj: of_capsule(cd.to_dlpack(obj, stream=-1, max_version=(1, 3))),
    "its dict": lambda obj: cd.view(obj.__cuda_array_interface__, owner=obj),
}
OF_DLPACK: dict[str, Callable[[Any], Any]] = {**DOORS, "from_dlpack": cd.from_dlpack}


def device_of(answer: Any) -> Device:
    if isinstance(answer, tuple):
        return answer
    assert answer.ptr == 0
    return (answer.device[0], answer.device[1])


def drawn_dict(rng: random.Random, address: int | None) -> dict[str, Any]:
    """A dict without elements: of the fast forms and of those that are read in full."""
    shape: Any = rng.choice([(0,), (3, 0), (0, 2, 5), (*[1] * 9, 0)])
    shown = interface(shape=shape, data=(address, rng.random() < 0.5), stream=rng.choice([None, 1, 2]))
    if rng.random() < 0.3:
        shown["shape"] = list(shape)
    if rng.random() < 0.3:
        shown["strides"] = tuple(rng.choice([4, -8, 0]) for _ in shape)
    if rng.random() < 0.2:
        shown |= {"version": 2}
        del shown["stream"]
    return shown


@pytest.mark.parametrize("seed", range(200))
def test_every_door_tells_one_device(seed: int, machine: Machine) -> None:
    rng = random.Random(seed)
    name = rng.choice([*MEMORY])
    make, wanted = MEMORY[name]
    shown = drawn_dict(rng, make(machine))
    doors, array = DOORS, Cai(shown)
    if rng.random() < 0.5:
        # A true word: it is asked, and the address need not be known.
        wanted = wanted or rng.choice(ANNOUNCED)
        doors, array = OF_DLPACK, Both(shown, wanted)
    elif rng.random() < 0.3:
        array = Mute(shown)
        if shown["version"] == 2:
            shown |= {"version": 3}  # else `__dlpack__` is called, which refuses
    wanted = wanted or FIRST
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cd.InterchangeWarning)
        found = {door: device_of(call(array)) for door, call in doors.items()}
        views = [call(array) for door, call in doors.items() if door != "to_dlpack"]
        again = {f"{door} of a view": device_of(call(view)) for view in views for door, call in OF_DLPACK.items()}
    everything = found | again
    assert set(everything.values()) == {wanted}, (name, shown, everything)


@pytest.mark.parametrize("memory", MEMORY)
def test_what_the_caller_says_counts(memory: str, machine: Machine) -> None:
    array = Cai(interface(shape=(0,), data=(MEMORY[memory][0](machine), False)))
    for check in ("device", "bounds"):
        for door in (cd.view, cd.from_cai):
            assert tuple(door(array, device_id=1, check=check).device) == (abi.CUDA, 1)


def test_the_cpu_is_no_device_of_an_interface(machine: Machine) -> None:
    """cuda.core announces it for every array without elements."""
    address = machine.device_memory(64, 1)
    array = Both(interface(shape=(0,), data=(address, False)), (abi.CPU, 0))
    assert tuple(cd.view(array).device) == (abi.CUDA, 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, RecursionError])
@pytest.mark.parametrize("door", DOORS)
def test_an_error_of_the_process_passes_through(door: str, error: type[BaseException], machine: Machine) -> None:
    """Else the array would be another device's, for want of memory."""

    class Interrupted(Mute):
        def __dlpack_device__(self) -> Device:
            raise error

    with pytest.raises(error):
        DOORS[door](Interrupted(interface(shape=(0,), data=(machine.device_memory(64, 1), False))))


def test_numpy_reads_an_array_without_elements_in_pinned_memory(machine: Machine) -> None:
    array = Cai(interface(shape=(0, 3), data=(machine.pinned_memory(64), False)))
    assert np.asarray(cd.view(array)).shape == (0, 3)


def test_an_array_with_elements_asks_only_the_driver(machine: Machine) -> None:
    array = Mute(interface(data=(machine.device_memory(64, 1), False)))
    assert tuple(cd.view(array).device) == (abi.CUDA, 1)
