"""Conversions leave nothing behind: no block, no reference, no owner; on success and on every refusal."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import dlpack_abi as abi
import native
import pytest
from producers import Cai, Dlpack, Legacy, StreamOnly, cai, interface
from test_malformed_cai import ROWS as CAI_ROWS
from test_malformed_dlpack import TENSOR_ROWS

# In one test; each path once more in `test_every_refusal`.
COUNT = native.figure(10_000, 1_000_000)


class Mallinfo2(ctypes.Structure):
    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


_libc = ctypes.CDLL(None)
_libc.mallinfo2.restype = Mallinfo2


def check_nothing_is_left(convert: Callable[[], object], watched: list[object], count: int) -> None:
    """Runs `convert` often and compares all that can be counted before and after.

    The heap is the whole process's, other threads and caches included: what it has grown by is looked at
    once more. A leak grows it every time.
    """
    for _ in range(3):
        heap = growth(convert, watched, count)
        if heap < 16384:
            return
    raise AssertionError(f"{heap} bytes")


def growth(convert: Callable[[], object], watched: list[object], count: int) -> int:
    """The bytes by which the heap has grown after so many times; all else that can be counted is checked."""
    for _ in range(100):
        convert()
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        references = [sys.getrefcount(each) for each in watched]
        live = cd.stats()["live"]
        heap = _libc.mallinfo2().uordblks
        blocks = sys.getallocatedblocks()
        for _ in range(count):
            convert()
        blocks = sys.getallocatedblocks() - blocks
        heap = _libc.mallinfo2().uordblks - heap
        assert cd.stats()["live"] == live
        assert [sys.getrefcount(each) for each in watched] == references
    finally:
        if was_enabled:
            gc.enable()
    # Caches fill and empty by up to 200, however often this runs; a leak would be one each time.
    assert abs(blocks) < count // 4, f"{blocks} blocks after {count} times"
    return int(heap)


def exported(view: cd.CaiView, max_version: tuple[int, int] | None, *, consumed: bool) -> None:
    capsule = view.__dlpack__(stream=-1, max_version=max_version)
    if consumed:
        cd.from_dlpack(capsule)


def successes() -> dict[str, tuple[Callable[[], object], list[object]]]:
    producer, plain = cai(), interface()
    versioned, legacy = abi.make(), abi.make(versioned=False)
    view = cd.view(producer, ordinal=0)
    everything: list[object] = [producer, producer.interface, plain, versioned, view, cd.CaiView]
    paths: dict[str, Callable[[], object]] = {
        "view of CAI": lambda: cd.view(producer, ordinal=0),
        "view with producer_stream": lambda: cd.view(producer, ordinal=0, producer_stream=7),
        "view with producer_stream=...": lambda: cd.view(producer, ordinal=0, producer_stream=...),
        "from_dlpack with producer_stream": lambda: cd.from_dlpack(Dlpack(versioned), producer_stream=None),
        "from_cai": lambda: cd.from_cai(producer, ordinal=0),
        "dict with owner": lambda: cd.from_cai(plain, owner=producer, ordinal=0),
        "object with owner": lambda: cd.view(producer, owner=versioned, ordinal=0),
        "from_dlpack": lambda: cd.from_dlpack(Dlpack(versioned)),
        "from_dlpack of a legacy producer": lambda: cd.from_dlpack(Legacy(legacy)),
        "from_dlpack of one that knows streams": lambda: cd.from_dlpack(StreamOnly(legacy)),
        "from_dlpack of a capsule": lambda: cd.from_dlpack(versioned.capsule()),
        "view of a capsule": lambda: cd.view(legacy.capsule()),
        "to_dlpack": lambda: cd.to_dlpack(Dlpack(versioned), max_version=(1, 3)),
        "to_dlpack consumed": lambda: cd.from_dlpack(cd.to_dlpack(Dlpack(versioned))),
        "view of DLPack": lambda: cd.view(Dlpack(versioned)),
        "view of a legacy producer": lambda: cd.view(Legacy(legacy)),
        "view of one that knows streams": lambda: cd.view(StreamOnly(legacy)),
        "to_dlpack of a legacy producer": lambda: cd.to_dlpack(Legacy(legacy)),
        "view of a view": lambda: cd.view(view),
        "dict": lambda: view.__cuda_array_interface__,
        "to_cai": view.to_cai,
        "attributes": lambda: (view.shape, view.byte_strides, view.owner, view.device, repr(view)),
    }
    for max_version in (None, (1, 3)):
        for consumed in (False, True):
            name = f"__dlpack__ {max_version} {'consumed' if consumed else 'dropped'}"
            paths[name] = lambda version=max_version, consumed=consumed: exported(  # type: ignore[misc]
                view, version, consumed=consumed
            )
    return {name: (path, everything) for name, path in paths.items()}


SUCCESSES = successes()


@pytest.mark.parametrize("name", SUCCESSES)
def test_a_success_leaves_nothing(name: str) -> None:
    convert, watched = SUCCESSES[name]
    check_nothing_is_left(convert, watched, COUNT)


def refused(call: Callable[[], object]) -> None:
    with contextlib.suppress(TypeError, ValueError, BufferError, cd.DriverError, AttributeError):
        call()
        raise AssertionError("accepted")


@pytest.mark.parametrize("row", CAI_ROWS, ids=lambda row: row.id)
def test_a_refused_dict_leaves_nothing(row: Any) -> None:
    producer = Cai(interface(**{row.key: row.value}))
    count = max(COUNT // len(CAI_ROWS), 1000)
    check_nothing_is_left(lambda: refused(lambda: cd.view(producer, ordinal=0)), [producer], count)


@pytest.mark.parametrize("versioned", [False, True], ids=["legacy", "versioned"])
@pytest.mark.parametrize("row", TENSOR_ROWS, ids=lambda row: row.id)
def test_a_refused_tensor_leaves_nothing_and_is_released_by_its_capsule(row: Any, versioned: bool) -> None:
    made = abi.make(versioned=versioned, **row.changes)
    producer = Dlpack(made, device=(abi.CPU, 0))
    count = max(COUNT // len(TENSOR_ROWS), 1000)

    def refuse() -> None:
        producer.calls.clear()
        producer.handed.clear()
        refused(lambda: cd.from_dlpack(producer))

    before = made.released
    check_nothing_is_left(refuse, [producer, made], count)
    assert made.released == before + 100 + count


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda view, _: view.__dlpack__(stream=0), id="stream-zero"),
        pytest.param(lambda view, _: view.__dlpack__(stream="1"), id="stream-type"),
        pytest.param(lambda view, _: view.__dlpack__(stream=-1, max_version=(1,)), id="max-version"),
        pytest.param(lambda view, _: view.__dlpack__(stream=-1, dl_device=(1, 0)), id="transfer"),
        pytest.param(lambda view, _: view.__dlpack__(stream=-1, copy=1), id="copy"),
        pytest.param(lambda view, _: view.__array__(), id="array"),
        pytest.param(lambda view, _: view.__reduce__(), id="pickle"),
        pytest.param(lambda view, _: view.__dlpack__(nonsense=1), id="keyword"),
        pytest.param(lambda _, __: cd.view(object()), id="no-protocol"),
        pytest.param(lambda _, __: cd.from_dlpack(42), id="no-dlpack"),
        pytest.param(lambda _, made: cd.from_dlpack(Dlpack(made, device="x")), id="device-pair"),
        pytest.param(lambda _, made: cd.from_dlpack(Dlpack(made, device=(2, 0))), id="device-mismatch"),
    ],
)
def test_another_refusal_leaves_nothing(call: Callable[[cd.CaiView, abi.Made], object]) -> None:
    producer, made = cai(), abi.make()
    view = cd.view(producer, ordinal=0)
    check_nothing_is_left(lambda: refused(lambda: call(view, made)), [producer, view, made], COUNT // 10)


def offer(made: abi.Made, name: bytes) -> None:
    """A capsule that is refused; it ends when nothing is raised any more, as our double of it must."""
    capsule = made.capsule(name)
    refused(lambda: cd.from_dlpack(capsule))


@pytest.mark.parametrize("name", [b"strange", abi.USED_VERSIONED, abi.USED_LEGACY])
def test_a_refused_capsule_leaves_nothing(name: bytes) -> None:
    made = abi.make()
    check_nothing_is_left(lambda: offer(made, name), [made], COUNT // 10)
    assert made.released == 0


def test_another_major_version_is_deleted_and_leaves_nothing() -> None:
    made = abi.make(version=(2, 0))
    check_nothing_is_left(lambda: offer(made, abi.VERSIONED), [made], COUNT // 10)
    assert made.released == 100 + COUNT // 10
