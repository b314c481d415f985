"""All that an import reads of an array about writing is merged: by every door, and told by `explain`."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import cai_example_peer as peer
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import interface
from conformance.tests.simulated.machine import Machine
from conformance.tests.test_one_answer import TENSORS


class Watched:
    """States its access by a dict and by a tensor, and records which of them is read."""

    def __init__(self, flag: Any, version: int, tensor: dict[str, Any], data: int) -> None:
        self.read: set[str] = set()
        self.flag, self.tensor = flag, {"device": (abi.CUDA, 0), "data": data, **tensor}
        self.dict = interface(version=version, data=(data, flag), **({} if version >= 3 else {"stream": ...}))

    @property
    def __cuda_array_interface__(self) -> Any:
        self.read.add("dict")
        return self.dict

    def __dlpack__(self, **_: Any) -> object:
        self.read.add("tensor")
        return abi.make(**self.tensor).capsule()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (abi.CUDA, 0)

    def said(self) -> bool | None:
        """What all that has been read says together."""
        of_tensor = {False: None, True: bool(self.tensor.get("flags"))}[self.tensor.get("versioned", True)]
        said = {of_tensor if "tensor" in self.read else None, self.flag if "dict" in self.read else None}
        return True if True in said else False if False in said else None


def flag_of(capsule: Any) -> bool:
    """As a consumer is told: unknown counts as read-only."""
    return bool(abi.read(capsule).flags)


OF_BOTH: dict[str, tuple[Callable[[Any], Any], set[str] | None]] = {
    "view": (lambda obj: cd.view(obj).read_only, None),
    # The dict is all that is needed of an array whose stream the caller names: its tensor is not made.
    "view of a named stream": (lambda obj: cd.view(obj, producer_stream=1).read_only, {"dict"}),
    "from_dlpack of a named stream": (lambda obj: cd.from_dlpack(obj, producer_stream=1).read_only, {"dict", "tensor"}),
    "from_dlpack": (lambda obj: cd.from_dlpack(obj).read_only, {"dict", "tensor"}),
    "from_cai": (lambda obj: cd.from_cai(obj).read_only, {"dict"}),
    "split_masked": (lambda obj: cd.split_masked(obj)[0].read_only, {"dict"}),
    "to_dlpack": (lambda obj: flag_of(cd.to_dlpack(obj, stream=-1, max_version=(1, 3))), None),
    "a Rust function": (lambda obj: peer.view_of(obj).read_only, None),
    "asserted": (lambda obj: cd.view(obj, read_only=False).read_only, None),
}


@pytest.mark.parametrize("door", OF_BOTH)
def test_all_that_is_read_is_merged(door: str, machine: Machine) -> None:
    """Which of the two is read is the route's affair: a dict that names the stream is all that `view` reads."""
    call, reads = OF_BOTH[door]
    data = machine.device_memory(64)
    for flag, version, tensor in itertools.product([None, False, True], [2, 3], TENSORS.values()):
        made = Watched(flag, version, tensor, data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cd.InterchangeWarning)
            found = call(made)
            wanted = made.said()
            assert made.read == (reads or ({"dict"} if version == 3 else {"dict", "tensor"})), (flag, version, tensor)
            if door == "to_dlpack":
                wanted = wanted is not False
            if door == "asserted":
                wanted = False
            assert found is wanted, (flag, version, tensor, made.read)
            if door == "view":
                assert (version == 3) == ("so that nothing else is asked" in str(cd.explain(made)))


@pytest.mark.parametrize("memory", ["pinned_memory", "managed_memory"])
@pytest.mark.parametrize("takes_device", [False, True])
@pytest.mark.parametrize("keywords", [{}, {"device": "cpu"}, {"device": (1, 0), "copy": False}], ids=str)
def test_so_it_is_of_memory_that_is_wanted_as_the_cpus(
    keywords: Any, takes_device: bool, memory: str, machine: Machine
) -> None:
    """If the producer refuses the CPU, or knows no such keyword, the library imports it, and shares."""
    data = getattr(machine, memory)(64)
    kind = {"pinned_memory": 3, "managed_memory": 13}[memory]

    class Producer:
        def __init__(self, of_dict: bool, of_tensor: bool) -> None:
            self.tensor = {"device": (kind, 0), "data": data, "flags": int(of_tensor)}
            self.__cuda_array_interface__ = interface(data=(data, of_dict))

        def __dlpack_device__(self) -> tuple[int, int]:
            return kind, 0

    def refusing(self: Any, *, dl_device: Any = None, **_: Any) -> object:
        if dl_device not in (None, (kind, 0)):
            raise BufferError("no other device")
        return abi.make(**self.tensor).capsule()

    def unknowing(self: Any, *, stream: Any = None, max_version: Any = None) -> object:
        return abi.make(**self.tensor).capsule()

    kept = type("Array", (Producer,), {"__dlpack__": refusing if takes_device else unknowing})
    for of_dict, of_tensor in itertools.product([False, True], [False, True]):
        view = cd.from_dlpack(kept(of_dict, of_tensor), **keywords)
        assert (view.read_only, view.ptr) == (of_dict or of_tensor, data), (of_dict, of_tensor)
