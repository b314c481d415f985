"""The caller names both streams: the one on which the data was written, and the one on which it is wanted."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, Dlpack, interface
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.simulated.machine import one_event
from conformance.tests.streams.race import LEGACY, NBYTES, PER_THREAD, Track

BEFORE, WRITTEN = 0xEE, 0x11

Kind = Callable[[Track], Any]


#: DLPack's devices of the memory that a stream writes.
MEMORIES = {"device": (abi.CUDA, 0), "pinned": (abi.CUDA_HOST, 0), "managed": (abi.CUDA_MANAGED, 0)}


def tensor(track: Track, **changes: Any) -> abi.Made:
    return abi.make(device=MEMORIES[kind_of_memory(track)], data=track.data, **changes)


KINDS: dict[str, Kind] = {
    "a capsule": lambda track: tensor(track).capsule(),
    "a legacy capsule": lambda track: tensor(track, versioned=False).capsule(),
    "a view that is ready": lambda track: cd.view(tensor(track).capsule(), producer_stream=None),
    "a view that is undeclared": lambda track: cd.view(tensor(track).capsule()),
    "a view that is ready elsewhere": lambda track: track.view(track.b),
    "an object with a dict": lambda track: Cai(interface(data=(track.data, False))),
    "an object of DLPack": lambda track: Dlpack(tensor(track)),
}
#: Every function that takes both streams.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "from_dlpack": cd.from_dlpack,
    "from_dlpack, a copy": lambda array, **streams: cd.from_dlpack(array, copy=True, **streams),
    "from_dlpack, on this device": lambda array, **streams: cd.from_dlpack(array, device=own(array), **streams),
    "to_dlpack": cd.to_dlpack,
    "to_dlpack, a copy": lambda array, **streams: cd.to_dlpack(array, copy=True, **streams),
    "to": lambda array, **streams: cd.to(array, cd.CaiView, **streams),
    "view, then on": lambda array, producer_stream, stream: cd.view(array, producer_stream=producer_stream).on(stream),
}


def own(array: Any) -> tuple[int, int]:
    """The device of an array, or of a view of a capsule or of a dict."""
    if hasattr(array, "__dlpack_device__"):
        device: tuple[int, int] = array.__dlpack_device__()
        return device
    return abi.read(array).device if not isinstance(array, Cai) else cd.view(array).device


def kind_of_memory(track: Track) -> str:
    return next((kind for kind, at in OTHER.items() if at == track.data), "device")


#: The other memory of a test.
OTHER: dict[str, int] = {}


@pytest.fixture
def memory(request: pytest.FixtureRequest, lazily: Track) -> Iterator[Track]:
    """The race on memory of each kind."""
    before = lazily.data
    if request.param != "device":
        lazily.data = getattr(lazily.machine, f"{request.param}_memory")(NBYTES)
        OTHER[request.param] = lazily.data
    yield lazily
    OTHER.clear()
    lazily.data = before


def address(made: Any) -> int:
    return made.ptr if isinstance(made, cd.CaiView) else abi.read(made).data


def read_on(track: Track, stream: int, made: Any) -> int:
    """The value that work on this stream reads."""
    source, size = ctypes.c_uint64(address(made)), ctypes.c_size_t(NBYTES)
    track.control.poke(track.copy, b"\xa5" * NBYTES)
    code = track.machine.driver.cuMemcpyAsync(ctypes.c_uint64(track.copy), source, size, ctypes.c_void_p(stream))
    assert code == 0
    track.wait(stream)
    return track.seen()


def pending(track: Track, stream: int) -> None:
    """Memory that the stream has yet to write."""
    track.machine.write(track.data, bytes([BEFORE]) * NBYTES)
    track.write(stream, WRITTEN)


@pytest.mark.parametrize("memory", MEMORIES, indirect=True)
@pytest.mark.parametrize("policy", ["event", "host"])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_consumer_finds_what_the_producer_has_written(kind: str, function: str, policy: Any, memory: Track) -> None:
    lazily = memory
    if (kind, function) == ("an object with a dict", "from_dlpack"):
        # Not copied, such an object is not for this function.
        call = partial(FUNCTIONS[function], KINDS[kind](lazily), producer_stream=lazily.a, stream=lazily.b)
        check_refusal(refuse(call, TypeError), "dlpack-missing", "__dlpack__")
        return
    for producer, consumer in itertools.product((lazily.a, LEGACY, PER_THREAD), (lazily.b, LEGACY, PER_THREAD)):
        array = KINDS[kind](lazily)
        pending(lazily, producer)
        with cd.policy(sync=policy):
            made = FUNCTIONS[function](array, producer_stream=producer, stream=consumer)
        assert read_on(lazily, consumer, made) == WRITTEN, (producer, consumer)
        if isinstance(made, cd.CaiView) and policy == "event":
            assert made.stream == consumer


def test_without_the_producer_s_stream_it_does_not(lazily: Track) -> None:
    """A capsule's stream that is named alone is the word of the caller: the data is ready there."""
    pending(lazily, lazily.a)
    made = cd.from_dlpack(tensor(lazily).capsule(), stream=lazily.b)
    assert (read_on(lazily, lazily.b, made), made.stream) == (BEFORE, lazily.b)
    lazily.wait(lazily.a)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("copy", [None, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_on_another_device(kind: str, copy: bool | None, named: bool, lazily: Track) -> None:
    """The producer's stream is of its own device, and the consumer's of the other."""
    there = lazily.machine.stream(1) if named else LEGACY
    array = KINDS[kind](lazily)
    pending(lazily, lazily.a)
    stream = there if named else None
    made = cd.from_dlpack(array, device="cuda:1", copy=copy, producer_stream=lazily.a, stream=stream)
    assert (made.device, made.stream) == ((2, 1), there)
    lazily.machine.set_current(1)
    lazily.wait(there)
    assert lazily.machine.read(made.ptr, NBYTES) == bytes([WRITTEN]) * NBYTES
    lazily.machine.set_current(0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_for_the_host(kind: str, lazily: Track) -> None:
    array = KINDS[kind](lazily)
    pending(lazily, lazily.a)
    made = cd.from_dlpack(array, device="cpu", producer_stream=lazily.a)
    assert np.from_dlpack(made).tobytes() == bytes([WRITTEN]) * NBYTES


def test_one_event_and_both_streams_are_named(track: Track) -> None:
    capsule = tensor(track).capsule()
    track.machine.clear()
    made = cd.from_dlpack(capsule, producer_stream=track.a, stream=track.b)
    assert track.machine.order() == one_event(track.a, track.b)
    assert (made.stream, made.producer_stream) == (track.b, track.a)


@pytest.mark.parametrize("memory", MEMORIES, indirect=True)
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "an object with a dict"])
def test_the_producer_s_stream_stays_the_one_of_the_next_write(
    kind: str, device: bool, named: bool, memory: Track
) -> None:
    """Also where the array's own device is asked for; and without a consumer's stream no call makes an order."""
    array = KINDS[kind](memory)
    asked: dict[str, Any] = {"device": own(array)} if device else {}
    if named:
        asked["stream"] = memory.b
    memory.machine.clear_own()
    made = cd.from_dlpack(array, producer_stream=memory.a, **asked)
    assert memory.machine.order() == (one_event(memory.a, memory.b) if named else [])
    assert (made.stream, made.producer_stream) == (memory.b if named else memory.a, memory.a)
    assert made.ptr == memory.data


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "view" in kind])
def test_nothing_is_pending_by_the_caller_s_word(kind: str, track: Track) -> None:
    """A copy is made on the stream that is named, without a wait of the host."""
    array = KINDS[kind](track)
    track.machine.clear_own()
    made = cd.from_dlpack(array, producer_stream=None)
    assert (made.stream, track.machine.calls()) == (None, [])
    copied = cd.from_dlpack(array, producer_stream=None, stream=track.b, copy=True)
    assert copied.stream == track.b
    # The source is kept until the copy is made.
    assert track.machine.order() == [("cuEventRecord", track.b)]


class Pinned(Dlpack):
    """Announces pinned memory, and sends it as the CPU's; a copy is of the CPU's."""

    def __init__(self, marks: bool) -> None:
        self.marks = marks
        super().__init__(abi.make(), device=(abi.CUDA_HOST, 0))

    def __dlpack__(self, **keywords: Any) -> Any:
        self.made = abi.make(flags=abi.IS_COPIED if self.marks and keywords.get("copy") else 0)
        return self.made.capsule()


@pytest.mark.parametrize("marks", [True, False])
def test_a_copy_of_pinned_memory_is_not_pinned(marks: bool) -> None:
    assert cd.from_dlpack(Pinned(marks)).device == (abi.CUDA_HOST, 0)
    assert cd.from_dlpack(Pinned(marks), device=(3, 0)).device == (abi.CUDA_HOST, 0)
    assert cd.from_dlpack(Pinned(marks), copy=True).device == (abi.CPU, 0)
    found = refuse(lambda: cd.from_dlpack(Pinned(marks), copy=True, device=(3, 0)), BufferError)
    check_refusal(found, "device-mismatch", None)


def test_memory_of_the_cpu_has_neither() -> None:
    for streams, name in (
        ({"producer_stream": 7, "stream": 1}, "producer_stream"),
        ({"producer_stream": None, "stream": 7}, "stream"),
    ):
        for array in (np.ones(3), cd.view(np.ones(3)), np.ones(3).__dlpack__()):
            check_refusal(refuse(partial(FUNCTIONS["from_dlpack"], array, **streams), ValueError), "stream-cpu", name)
