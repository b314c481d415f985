"""Two doors, one answer: what an array says of itself is the same by `view`, `from_dlpack`, `from_cai`, `split_masked`.

Also what reaches the caller if a producer's attribute raises, and what the messages say of devices without streams.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import cai_dlpack as cd
import cai_example_peer as peer
import ml_dtypes
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import FAKE_POINTER, Cai, Dlpack, StreamObject, cai, interface
from conformance.tests.expectations.refusal import refuse
from conformance.tests.simulated.machine import Machine
from conformance.tests.test_doors import tabled

LOOSE: Any = cd  # called with what its annotations forbid


# --- whether it may be written --------------------------------------------------------------------------------


class Both:
    """Has a dict without a stream, so that `view` leaves it for `__dlpack__`."""

    def __init__(self, dict_says: bool | None, made: Callable[[], abi.Made]) -> None:
        self.made = made
        if dict_says is not None:
            self.__cuda_array_interface__ = interface(version=2, stream=..., data=(FAKE_POINTER, dict_says))

    def __dlpack__(self, **_: Any) -> object:
        return self.made().capsule()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (abi.CUDA, 0)


TENSORS: dict[str, dict[str, Any]] = {
    "says nothing": {"versioned": False},
    "says writable": {"flags": 0},
    "says read-only": {"flags": abi.READ_ONLY},
}


@pytest.mark.parametrize(("dict_says", "tensor"), [*itertools.product([None, False, True], TENSORS)])
def test_what_is_stated_twice_is_merged_by_both(dict_says: bool | None, tensor: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cd.InterchangeWarning)
        made = Both(dict_says, lambda: abi.make(device=(abi.CUDA, 0), data=FAKE_POINTER, **TENSORS[tensor]))
        seen = {door(made, producer_stream=...).read_only for door in (cd.view, cd.from_dlpack)}
    said = {dict_says, {"says nothing": None, "says writable": False, "says read-only": True}[tensor]}
    assert seen == {True if True in said else False if False in said else None}


@pytest.mark.parametrize("broken", [None, 3, {}, {"data": 3}, {"data": (1,)}, {"data": None}])
def test_a_broken_dict_is_no_reason_to_refuse_a_tensor(broken: object) -> None:
    made = Both(None, lambda: abi.make(device=(abi.CUDA, 0), data=FAKE_POINTER))
    made.__cuda_array_interface__ = broken  # type: ignore[assignment]
    assert cd.from_dlpack(made).read_only is False


OF_A_VIEW: dict[str, Callable[[Any], Any]] = {
    "view": cd.view,
    "from_dlpack": cd.from_dlpack,
    "split_masked": lambda view: cd.split_masked(view)[0],
    "from_cai": cd.from_cai,
}


@pytest.mark.parametrize(("door", "tensor"), [*itertools.product(OF_A_VIEW, TENSORS)])
def test_a_view_keeps_its_state(door: str, tensor: str, machine: Machine) -> None:
    data = machine.device_memory(64)
    view = cd.view(abi.make(device=(abi.CUDA, 0), data=data, **TENSORS[tensor]).capsule())
    assert OF_A_VIEW[door](view).read_only is view.read_only
    assert OF_A_VIEW[door](OF_A_VIEW[door](view)).read_only is view.read_only
    if door != "split_masked":
        assert LOOSE.from_cai(view, read_only=False).read_only is False
        assert LOOSE.from_dlpack(view, read_only=True).read_only is True


def test_a_copy_of_a_view_may_be_written() -> None:
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    assert cd.from_dlpack(cd.view(frozen), copy=True).read_only is False


# --- what NumPy does not export -------------------------------------------------------------------------------

OWN = [each for each in vars(ml_dtypes).values() if isinstance(each, type) and issubclass(each, np.generic)]
UNEXPORTED = [*OWN, "M8[s]", "m8[D]", ">f4", "S3", "U2", "V3", "g", object, [("x", "f4")], np.dtypes.StringDType()]


@pytest.mark.parametrize("dtype", UNEXPORTED, ids=str)
def test_from_dlpack_takes_what_view_takes_and_dlpack_has(dtype: Any) -> None:
    array = np.zeros((2, 3), dtype)
    try:
        view = cd.view(array)
    except BufferError as error:
        rule = error.rule  # type: ignore[attr-defined]
        assert refuse(lambda: cd.from_dlpack(array), BufferError).rule == rule
        assert refuse(lambda: cd.split_masked(array), BufferError).rule == rule
        return
    assert cd.split_masked(array)[0].dtype == view.dtype
    try:
        tensor = abi.read(view.__dlpack__(max_version=(1, 3)))
    except BufferError as error:
        rule = error.rule  # type: ignore[attr-defined]
        assert refuse(lambda: cd.from_dlpack(array), BufferError).rule == rule
        return
    door = cd.from_dlpack(array)
    assert (door.ptr, door.dtype, door.owner) == (view.ptr, view.dtype, view.owner)
    assert abi.read(door.__dlpack__(max_version=(1, 3))).flags == tensor.flags
    assert refuse(lambda: cd.from_dlpack(array, device=(4, 0)), BufferError).rule == "transfer-refused"
    assert tensor.flags is not None
    if not tensor.flags & abi.SUBBYTE_PADDED:
        copied = cd.from_dlpack(array, copy=True)
        assert copied.ptr != view.ptr
        assert np.asarray(copied).dtype == array.dtype


def test_a_masked_array_is_refused_by_from_dlpack_whatever_its_dtype() -> None:
    for dtype in ("f8", ml_dtypes.bfloat16, ">f4", "M8[s]"):
        masked: Any = np.ma.array(np.zeros(3, dtype), mask=[True, False, False])
        assert refuse(partial(cd.from_dlpack, masked), BufferError).rule == "mask-present"
        values, mask = cd.split_masked(masked)
        assert np.asarray(values).dtype == np.dtype(dtype)
        assert mask is not None


# --- what a producer's attribute raises -----------------------------------------------------------------------


def raising(name: str, error: Exception, **others: Any) -> Any:
    """An object of which reading one attribute raises."""

    def read(_: object) -> None:
        raise error

    return type("Raising", (), {name: property(read), **others})()


def by_dlpack(**_: Any) -> object:
    return abi.make().capsule()


HOOKS: dict[str, tuple[str, dict[str, Any], Callable[[Any], object]]] = {
    "the interface": ("__cuda_array_interface__", {}, cd.view),
    "the interface, by from_cai": ("__cuda_array_interface__", {}, cd.from_cai),
    "the tensor": ("__dlpack__", {"__dlpack_device__": lambda self: (1, 0)}, cd.view),
    "the tensor, by from_dlpack": ("__dlpack__", {"__dlpack_device__": lambda self: (1, 0)}, cd.from_dlpack),
    "the device": ("__dlpack_device__", {"__dlpack__": lambda self, **_: by_dlpack()}, cd.view),
    "the device, by from_dlpack": ("__dlpack_device__", {"__dlpack__": lambda self, **_: by_dlpack()}, cd.from_dlpack),
    "the array interface": ("__array_interface__", {}, cd.view),
    "the stream": ("__cuda_stream__", {}, lambda stream: LOOSE.view(np.zeros(3)).on(stream)),
    "the mask": ("__cuda_array_interface__", {}, lambda mask: cd.view(cai(mask=mask), device_id=0)),
    "the mask, split": ("__cuda_array_interface__", {}, lambda mask: cd.split_masked(cai(mask=mask), device_id=0)),
}
ERRORS = [AttributeError("no attribute 'shpae'"), TypeError("typo"), ValueError("v"), KeyError("k"), RuntimeError("r")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("hook", HOOKS)
def test_the_cause_reaches_the_caller(hook: str, error: Exception) -> None:
    name, others, call = HOOKS[hook]
    with pytest.raises((type(error), TypeError)) as caught:
        call(raising(name, error, **others))
    assert error in (caught.value, caught.value.__cause__), f"{caught.value!r} hides {error!r}"


# --- devices without streams ----------------------------------------------------------------------------------

WITHOUT_STREAMS = [1, 4, 7, 8, 9, 12, 14, 15, 16, 17, 18]


@pytest.mark.parametrize("device", WITHOUT_STREAMS)
def test_what_is_said_of_a_device_is_true_of_it(device: int) -> None:
    data = None if device == 1 else FAKE_POINTER
    view: Any = cd.view(abi.make(device=(device, 0), data=data).capsule())
    found = refuse(lambda: view.__dlpack__(stream=5), ValueError)
    assert found.rule == "stream-cpu"
    assert "for memory of the CPU" not in found.message
    if device == 1:
        return
    found = refuse(lambda: memoryview(view), TypeError)
    copies = "dl_device=(1, 0)" in found.message
    assert not copies, "names a remedy that is refused"
    assert refuse(lambda: view.__dlpack__(dl_device=(1, 0)), BufferError).rule == "transfer-refused"


@pytest.mark.parametrize(("flags", "word"), [(0, "packed"), (abi.SUBBYTE_PADDED, "padded")])
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_a_refused_copy_says_how_the_elements_lie(flags: int, word: str, bits: int) -> None:
    view = cd.view(abi.make((4, 4), dtype=(abi.INT, bits, 1), flags=flags).capsule())
    found = refuse(lambda: cd.from_dlpack(view, copy=True), BufferError)
    assert f"{word} int{bits}" in found.message


# --- objects in records ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", [cd.view, cd.from_cai, cd.to_dlpack, cd.split_masked], ids=lambda door: door.__name__)
@pytest.mark.parametrize(
    "descr",
    [[("x", "|O8"), ("y", "<i4")], [("p", [("n", "<i4"), ("q", [("x", "<O8")])])], [("x", "|O8", (1,)), ("y", "<i4")]],
)
def test_a_record_of_pointers_to_objects_is_refused_by_name(door: Callable[..., object], descr: list[Any]) -> None:
    array: Cai = cai(typestr="|V12", descr=descr)
    found = refuse(lambda: door(array, device_id=0), BufferError)
    assert (found.rule, "'x'" in found.message) == ("typestr-object", True), found.message


# --- addresses ------------------------------------------------------------------------------------------------

TYPES = {"<f4": (abi.FLOAT, 32, 1), "<i2": (abi.INT, 16, 1), "<c16": (abi.COMPLEX, 128, 1), "|u1": (abi.UINT, 8, 1)}
ALIGNED = {"<f4": 4, "<i2": 2, "<c16": 8, "|u1": 1}


@pytest.mark.parametrize("typestr", TYPES)
@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4, 6, 8, 12])
def test_dlpack_takes_the_same_addresses_of_cuda_as_cai_gives_it(typestr: str, offset: int) -> None:
    wanted = "data-alignment" if offset % ALIGNED[typestr] else None
    for data, byte_offset in ((FAKE_POINTER + offset, 0), (FAKE_POINTER, offset)):
        for device in (abi.CUDA, abi.CUDA_HOST, abi.CUDA_MANAGED):
            made = {"dtype": TYPES[typestr], "device": (device, 0), "data": data, "byte_offset": byte_offset}
            assert rule_of(made_by(made)) == wanted
    array = cai(typestr=typestr, data=(FAKE_POINTER + offset, False))
    assert rule_of(lambda: cd.to_dlpack(array, device_id=0)) == wanted
    # On the host, where NumPy has arrays at any address, both ends of DLPack take them.
    host = cd.view(abi.make(dtype=TYPES[typestr], byte_offset=offset).capsule())
    assert abi.read(host.__dlpack__()).data == host.ptr


def made_by(changes: dict[str, Any]) -> Callable[[], object]:
    def call() -> object:
        capsule = abi.make(**changes).capsule()  # alive while it is refused: its destructor runs Python code
        return cd.view(capsule)

    return call


def rule_of(call: Callable[[], object]) -> str | None:
    try:
        call()
    except BufferError as error:
        return str(getattr(error, "rule", error))
    return None


@pytest.mark.parametrize("handle", [0x1000, 0x1001, 3])
@pytest.mark.parametrize("byte_offset", [0, 1, 64])
def test_a_handle_has_no_alignment_for_rust_either(handle: int, byte_offset: int) -> None:
    made = abi.make(device=(7, 0), data=handle, byte_offset=byte_offset)
    view = cd.view(made.capsule())
    assert (view.ptr, view.byte_offset) == (handle, byte_offset)
    peer.extract(view)
    back = peer.view_of(view)
    assert (back.ptr, back.byte_offset) == (handle, byte_offset)


# --- a consumer that deletes the tensor and leaves the capsule's name -----------------------------------------


@pytest.mark.parametrize("max_version", [None, (1, 0)])
@pytest.mark.parametrize("door", [cd.view, cd.from_dlpack, cd.to_dlpack], ids=lambda door: door.__name__)
def test_a_capsule_whose_tensor_is_gone_is_used(door: Callable[[Any], object], max_version: Any) -> None:
    capsule = cd.to_dlpack(np.zeros(3), max_version=max_version)
    abi.call_deleter(abi.pointer(capsule), versioned=max_version is not None)
    assert refuse(lambda: door(capsule), ValueError).rule == "capsule-used"


# --- a stream of memory that has none -------------------------------------------------------------------------


def of_numpy(dtype: Any) -> Callable[[], Any]:
    return lambda: np.zeros(3, dtype)


# Every route of an import whose memory has no streams.
NO_STREAMS: dict[str, Callable[[], Any]] = {
    "a capsule": lambda: abi.make().capsule(),
    "a legacy capsule": lambda: abi.make(versioned=False).capsule(),
    "an object": lambda: Dlpack(abi.make()),
    "a table": lambda: tabled(abi.make()),
    "a view": lambda: cd.view(np.zeros(3)),
    "a view of a view": lambda: cd.view(cd.view(np.zeros(3, ml_dtypes.bfloat16))),
    "a masked array without a mask": lambda: np.ma.array([1.0]),
    "NumPy's own": of_numpy("f8"),
    "ml_dtypes": of_numpy(ml_dtypes.bfloat16),
    "padded": of_numpy(ml_dtypes.int4),
    "a handle": lambda: abi.make(device=(7, 0), data=FAKE_POINTER).capsule(),
    "an object of handles": lambda: Dlpack(abi.make(device=(7, 0), data=FAKE_POINTER)),
    "a table of handles": lambda: tabled(abi.make(device=(7, 0), data=FAKE_POINTER)),
}
#: DLPack cannot describe them, so that `from_dlpack` and `to_dlpack` refuse them for that too.
BEYOND_DLPACK: dict[str, Callable[[], Any]] = {
    "records": of_numpy([("x", "f4")]),
    "dates": of_numpy("M8[s]"),
    "the other byte order": of_numpy(">f4"),
    "a view of records": lambda: cd.view(np.zeros(3, [("x", "f4")])),
}
WITH_A_PRODUCER: dict[str, Callable[..., Any]] = {
    "view": cd.view,
    "from_dlpack": cd.from_dlpack,
    "to_dlpack": partial(cd.to_dlpack, max_version=(1, 3)),
    "explain": cd.explain,
}


@pytest.mark.parametrize("door", WITH_A_PRODUCER)
@pytest.mark.parametrize("source", [*NO_STREAMS, *BEYOND_DLPACK])
def test_a_producers_stream_of_memory_without_streams(source: str, door: str) -> None:
    make, call = {**NO_STREAMS, **BEYOND_DLPACK}[source], WITH_A_PRODUCER[door]
    if source in BEYOND_DLPACK and door not in ("view", "explain"):
        return
    for stream in (1, 2, 0x5550, StreamObject(7)):
        offered = make()  # alive while it is refused: a double's destructor runs Python code
        if door == "explain":
            told = cd.explain(offered, producer_stream=stream).refused or ""
            assert "producer_stream" in told and told.endswith("[stream-cpu]"), told
            continue
        found = refuse(lambda: call(offered, producer_stream=stream), ValueError)  # noqa: B023
        assert (found.rule, found.field) == ("stream-cpu", "producer_stream"), found.message
    # Nothing is pending: what all of it is.
    assert call(make(), producer_stream=None) is not None
    if door == "from_dlpack":
        offered = make()
        assert refuse(lambda: cd.from_dlpack(offered, stream=1), ValueError).field == "stream"
