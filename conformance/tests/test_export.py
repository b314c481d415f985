"""Tests the exports: the DLPack struct, the arguments of `__dlpack__`, the interface's dict."""

from __future__ import annotations

import enum
import json
from functools import partial
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import FAKE_POINTER, Cai, Dlpack, StreamObject, cai, interface
from conformance.tests.expectations import oracle
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.simulated.machine import Machine


def exported(view: Any, **keywords: Any) -> abi.Read:
    keywords.setdefault("stream", -1)
    keywords.setdefault("max_version", (1, 3))
    return abi.read(view.__dlpack__(**keywords))


def view_of(**changes: Any) -> Any:
    return cd.view(cai(**changes), device_id=0)


# --- the struct ------------------------------------------------------------------------------------


@pytest.mark.parametrize("typestr", oracle.DTYPES)
def test_dtype(typestr: str) -> None:
    name, code, bits = oracle.DTYPES[typestr]
    view = view_of(typestr=typestr)
    assert exported(view).dtype == (code, bits, 1)
    assert (view.dtype, view.itemsize) == (name, bits // 8)
    assert view.__cuda_array_interface__["typestr"] == typestr
    assert str(np.dtype(view.dtype).str) == typestr


@pytest.mark.parametrize("max_version", [None, (1, 3)], ids=["legacy", "versioned"])
@pytest.mark.parametrize(
    ("changes", "shape", "strides", "data"),
    [
        pytest.param({}, (2, 3), (3, 1), FAKE_POINTER, id="contiguous"),
        pytest.param({"strides": (24, 8)}, (2, 3), (6, 2), FAKE_POINTER, id="every-second"),
        pytest.param({"strides": (4, 8)}, (2, 3), (1, 2), FAKE_POINTER, id="transposed"),
        pytest.param({"strides": (-12, -4)}, (2, 3), (-3, -1), FAKE_POINTER, id="negative"),
        pytest.param({"strides": (0, 0)}, (2, 3), (0, 0), FAKE_POINTER, id="broadcast"),
        pytest.param({"shape": (0, 3)}, (0, 3), None, 0, id="size-0"),
        pytest.param({"shape": (0, 3), "data": (0, False)}, (0, 3), None, 0, id="size-0-null"),
        pytest.param({"shape": (2, 0), "strides": (99, 7)}, (2, 0), None, 0, id="size-0-strides"),
        pytest.param({"shape": ()}, (), (), FAKE_POINTER, id="0-d"),
    ],
)
def test_layout(
    changes: dict[str, Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    data: int,
    max_version: tuple[int, int] | None,
) -> None:
    tensor = exported(view_of(**changes), max_version=max_version)
    assert tensor.ndim == len(shape)
    assert (tensor.shape or ()) == shape
    if shape:
        assert tensor.strides is not None, "DLPack 1.2: strides must not be NULL where ndim > 0"
    if strides is not None:
        assert (tensor.strides or ()) == strides
    assert (tensor.data, tensor.byte_offset) == (data, 0)
    assert tensor.device == (abi.CUDA, 0)
    assert tensor.deleter != 0


def test_byte_offset_of_an_import_is_resolved_once() -> None:
    made = abi.make(byte_offset=64, device=(abi.CUDA, 0), data=FAKE_POINTER)
    view = cd.from_dlpack(made.capsule())
    assert view.ptr == FAKE_POINTER + 64
    assert view.__cuda_array_interface__["data"] == (FAKE_POINTER + 64, False)
    again = exported(view)
    assert (again.data, again.byte_offset) == (FAKE_POINTER + 64, 0)


@pytest.mark.parametrize("code", range(18))
def test_every_dtype_code_goes_through_dlpack_unchanged(code: int) -> None:
    """DLPack in, DLPack out; opaque handles are the one code that is refused."""
    bits = {0: 32, 1: 32, 2: 32, 3: 64, 4: 16, 5: 64, 15: 6, 16: 6, 17: 4}.get(code, 8)
    made = abi.make((8,), dtype=(code, bits, 1), device=(abi.CUDA, 0))
    if code == abi.OPAQUE:
        assert refuse(partial(cd.from_dlpack, made.capsule()), BufferError).rule == "dtype-opaque"
        return
    view = cd.from_dlpack(made.capsule())
    tensor = exported(view)
    assert (tensor.dtype, tensor.shape, tensor.strides) == ((code, bits, 1), (8,), (1,))


def test_vector_lanes_go_through_dlpack_unchanged() -> None:
    made = abi.make((4,), dtype=(abi.FLOAT, 32, 4), device=(abi.CUDA, 0))
    view = cd.from_dlpack(made.capsule())
    assert exported(view).dtype == (abi.FLOAT, 32, 4)
    assert view.nbytes == 64


# --- flags -----------------------------------------------------------------------------------------


def test_read_only_is_said_where_it_can_be_said() -> None:
    view = view_of(data=(FAKE_POINTER, True))
    assert exported(view).flags == abi.READ_ONLY
    assert view.__cuda_array_interface__["data"] == (FAKE_POINTER, True)
    found = refuse(lambda: view.__dlpack__(), BufferError)
    check_refusal(found, "read-only-legacy", None)


def test_writable_is_said_where_it_is_so() -> None:
    assert exported(view_of()).flags == 0
    assert abi.name(view_of().__dlpack__()) == abi.LEGACY


def test_the_caller_may_assert_that_writing_is_fine() -> None:
    producer = cai(data=(FAKE_POINTER, True))
    asserted = cd.view(producer, device_id=0, read_only=False)
    assert asserted.read_only is False
    assert abi.name(asserted.__dlpack__(stream=-1)) == abi.LEGACY
    assert exported(asserted).flags == 0
    view = cd.view(producer, device_id=0)
    assert abi.name(cd.to_dlpack(view, stream=-1, writable=True)) == abi.LEGACY
    assert abi.read(cd.to_dlpack(view, stream=-1, max_version=(1, 3), writable=True)).flags == 0
    assert view.read_only is True, "the assertion holds for one export"


def test_the_caller_may_take_writing_away() -> None:
    view = cd.view(cai(), device_id=0, read_only=True)
    assert view.read_only is True
    assert exported(view).flags == abi.READ_ONLY


def test_flags_of_an_import_are_carried_and_a_copy_is_not_claimed() -> None:
    made = abi.make(flags=abi.READ_ONLY | abi.IS_COPIED | 1 << 40, device=(abi.CUDA, 0))
    view = cd.from_dlpack(made.capsule())
    assert exported(view).flags == abi.READ_ONLY, "the view and the tensor share the data: nobody is its sole owner"
    padded = abi.make((8,), dtype=(abi.FLOAT4_E2M1FN, 4, 1), flags=abi.SUBBYTE_PADDED, device=(abi.CUDA, 0))
    assert exported(cd.from_dlpack(padded.capsule())).flags == abi.SUBBYTE_PADDED


# --- arguments --------------------------------------------------------------------------------------


class Device(enum.IntEnum):
    CUDA = 2


def test_dlpack_device() -> None:
    device = view_of().__dlpack_device__()
    assert device == (2, 0)
    assert type(device) is tuple
    assert view_of().device == (2, 0)


@pytest.mark.parametrize("dl_device", [None, (2, 0), (Device.CUDA, 0)], ids=["none", "own", "enum"])
def test_dl_device_own(dl_device: Any) -> None:
    assert exported(view_of(), dl_device=dl_device).device == (2, 0)


@pytest.mark.parametrize(
    "dl_device", [(2, 1), (1, 0), (3, 0), (13, 0), (10, 0), (99, 0)], ids=lambda each: f"{each[0]}-{each[1]}"
)
def test_dl_device_other(dl_device: tuple[int, int]) -> None:
    found = refuse(lambda: exported(view_of(), dl_device=dl_device, copy=False, stream=None), BufferError)
    assert found.rule in ("transfer-refused", "copy-needed", "device-unknown"), found.message
    check_refusal(found, str(found.rule), None)


@pytest.mark.parametrize("copy", [None, False], ids=["none", "false"])
def test_copy_not_asked(copy: bool | None) -> None:
    tensor = exported(view_of(), copy=copy)
    assert tensor.flags == 0
    assert tensor.data == FAKE_POINTER


def test_all_arguments_of_the_array_api_at_once() -> None:
    tensor = exported(view_of(), stream=None, max_version=(1, 0), dl_device=(2, 0), copy=False)
    assert tensor.version == (1, 3)


@pytest.mark.parametrize("stream", [None, -1, 1, 2, 0x5500], ids=["none", "-1", "1", "2", "handle"])
def test_every_stream_is_taken_where_nothing_is_pending(stream: int | None, machine: Machine) -> None:
    """With `stream: None` in the interface nothing is pending, so that no call is made."""
    view = view_of()
    machine.clear_own()
    assert exported(view, stream=stream).data == FAKE_POINTER
    assert machine.calls() == []


# --- the dict --------------------------------------------------------------------------------------

KEYS = {"shape", "typestr", "data", "strides", "stream", "version"}


def test_the_dict_is_plain_fresh_and_exact() -> None:
    view = view_of(strides=(24, 8), stream=7)
    shown = view.__cuda_array_interface__
    assert type(shown) is dict
    assert set(shown) == KEYS
    assert shown is not view.__cuda_array_interface__
    shown["shape"] = None
    assert view.__cuda_array_interface__ == {
        "shape": (2, 3),
        "typestr": "<f4",
        "data": (FAKE_POINTER, False),
        "strides": (24, 8),
        "stream": 7,
        "version": 3,
    }
    assert view.to_cai() == view.__cuda_array_interface__


def test_the_dict_holds_exact_types() -> None:
    shown = view_of(
        shape=[np.int64(2), np.int64(3)],
        strides=[np.int64(24), np.int64(8)],
        data=[np.uint64(FAKE_POINTER), np.bool_(True)],
        stream=np.int64(7),
    ).__cuda_array_interface__
    assert type(shown["shape"]) is tuple
    assert {type(each) for each in shown["shape"]} == {int}
    assert type(shown["strides"]) is tuple
    assert {type(each) for each in shown["strides"]} == {int}
    assert type(shown["data"]) is tuple
    assert [type(each) for each in shown["data"]] == [int, bool]
    assert type(shown["stream"]) is int
    assert type(shown["version"]) is int
    assert type(shown["typestr"]) is str
    assert json.loads(json.dumps(shown))["shape"] == [2, 3], "xgboost writes the whole dict as JSON"


@pytest.mark.parametrize(
    ("changes", "strides"),
    [
        pytest.param({"strides": (12, 4)}, None, id="contiguous-explicit"),
        pytest.param({"strides": None}, None, id="contiguous-none"),
        pytest.param({"shape": (1, 3), "strides": (777, 4)}, None, id="extent-1"),
        pytest.param({"shape": (0, 3), "strides": (77, 7)}, None, id="size-0"),
        pytest.param({"shape": (), "strides": ()}, None, id="0-d"),
        pytest.param({"strides": (4, 8)}, (4, 8), id="transposed"),
        pytest.param({"strides": (0, 4)}, (0, 4), id="broadcast"),
        pytest.param({"shape": (5,), "strides": (0,)}, (0,), id="broadcast-1-d"),
    ],
)
def test_the_dicts_strides(changes: dict[str, Any], strides: tuple[int, ...] | None) -> None:
    shown = view_of(**changes).__cuda_array_interface__
    assert "strides" in shown
    assert shown["strides"] == strides


def test_size_0_shows_pointer_0() -> None:
    for changes in ({"shape": (0,)}, {"shape": (3, 0), "data": (FAKE_POINTER, True)}):
        shown = view_of(**changes).__cuda_array_interface__
        assert shown["data"][0] == 0
        assert shown["strides"] is None


@pytest.mark.parametrize("stream", [None, 1, 2, 7, 2**64 - 1])
def test_the_stream_passes_through(stream: int | None) -> None:
    assert view_of(stream=stream).__cuda_array_interface__["stream"] == stream


def test_stream_0_is_never_shown() -> None:
    with pytest.warns(UserWarning, match="stream"):
        view = cd.view(type("Zero", (Cai,), {})(interface(stream=0)), device_id=0)
    assert view.__cuda_array_interface__["stream"] == 1


@pytest.mark.parametrize("producer_stream", [7, StreamObject(7)], ids=["int", "object"])
def test_the_caller_names_the_producers_stream(producer_stream: Any) -> None:
    view = cd.view(cai(version=2, stream=...), device_id=0, producer_stream=producer_stream)
    assert (view.stream, view.producer_stream) == (7, 7)
    assert view.__cuda_array_interface__["stream"] == 7


# --- memory kinds, as the driver knows them ----------------------------------------------------------


def test_the_driver_tells_device_and_memory(machine: Machine) -> None:
    for pointer, device, memory in (
        (machine.device_memory(24, ordinal=0), (2, 0), "device"),
        (machine.device_memory(24, ordinal=1), (2, 1), "device"),
        (machine.managed_memory(24), (13, 0), "managed"),
        (machine.pinned_memory(24), (3, 0), "pinned"),
    ):
        view = cd.view(cai(data=(pointer, False)))
        assert (view.device, view.memory, view.ptr) == (device, memory, pointer)
        assert view.__dlpack_device__() == device
        assert exported(view).device == device


def test_one_query_where_the_device_is_unknown_and_none_where_it_is_known(machine: Machine) -> None:
    pointer = machine.device_memory(24)
    producer = cai(data=(pointer, False))
    cd.view(producer)
    machine.clear_own()
    cd.view(producer)
    assert machine.names() == ["cuPointerGetAttributes"]
    machine.clear_own()
    cd.view(producer, device_id=0)
    cd.from_dlpack(Dlpack(abi.make(device=(abi.CUDA, 0), data=pointer)))
    assert machine.calls() == []
    cd.view(cai(shape=(0,), data=(0, False)), device_id=0)
    assert machine.calls() == []
    cd.view(producer, device_id=0, check="bounds")
    assert machine.names() == ["cuPointerGetAttributes"]


@pytest.mark.parametrize("max_version", [None, (1, 3)], ids=["legacy", "versioned"])
def test_to_dlpack_asks_for_the_pointer_once_whichever_way_it_takes(
    max_version: tuple[int, int] | None, machine: Machine
) -> None:
    """Straight to a capsule where nothing has to wait, else by a view."""
    ready, other = machine.stream(), machine.stream()
    data = (machine.device_memory(24), False)
    idle, busy = cai(data=data), cai(data=data, stream=ready)
    asked: list[tuple[Any, Any]] = [
        *((idle, stream) for stream in (None, -1, 1, other)),
        *((busy, stream) for stream in (None, -1, 1, ready, other, "host")),
    ]
    for producer, stream in asked:
        for ordinal, queries in ((None, 1), (0, 0)):
            machine.clear()
            cd.to_dlpack(producer, stream=stream, max_version=max_version, device_id=ordinal)
            # A default stream is found by the memory's context: a question of the order's own.
            order = int(producer is busy and stream in (None, 1))
            assert machine.names().count("cuPointerGetAttributes") == queries + order, (stream, ordinal)


@pytest.mark.parametrize("ordinal", [0, 1])
def test_size_0_asks_for_no_pointer(ordinal: int, machine: Machine) -> None:
    machine.clear()
    view = cd.view(cai(shape=(0, 3), data=(0, False)), device_id=ordinal, check="bounds")
    assert view.device == (2, ordinal)
    assert "cuPointerGetAttributes" not in machine.names()


def test_the_callers_current_context_stays(machine: Machine) -> None:
    ready, mine = machine.stream(ordinal=1), machine.stream(ordinal=0)
    machine.set_current(0)
    before = machine.current()
    view = cd.view(cai(data=(machine.device_memory(24, ordinal=1), False), stream=ready))
    assert view.device == (2, 1)
    view.__dlpack__(stream=mine, max_version=(1, 3))
    view.on(mine)
    assert machine.current() == before


# --- numpy reads what the host can read ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["managed", "pinned"])
def test_numpy_reads_managed_and_pinned_memory(kind: str, machine: Machine) -> None:
    pointer = {"managed": machine.managed_memory, "pinned": machine.pinned_memory}[kind](24)
    machine.write(pointer, np.arange(6, dtype="<f4").tobytes())
    producer = cai(data=(pointer, False), stream=machine.stream())
    view = cd.view(producer)
    array = np.from_dlpack(view)
    assert array.ctypes.data == pointer
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert array.flags.writeable
    array[0, 0] = 9
    assert machine.read(pointer, 4) == np.float32(9).tobytes()


def test_numpy_keeps_read_only(machine: Machine) -> None:
    view = cd.view(cai(data=(machine.managed_memory(24), True)))
    assert not np.from_dlpack(view).flags.writeable


def test_numpy_takes_strides_of_all_signs(machine: Machine) -> None:
    pointer = machine.managed_memory(24)
    machine.write(pointer, np.arange(6, dtype="<f4").tobytes())
    view = cd.view(cai(data=(pointer + 12, False), strides=(-12, 4)))
    assert np.from_dlpack(view).tolist() == [[3, 4, 5], [0, 1, 2]]
    view = cd.view(cai(data=(pointer, False), strides=(0, 4)))
    assert np.from_dlpack(view).tolist() == [[0, 1, 2], [0, 1, 2]]


def test_numpy_cannot_read_device_memory(machine: Machine) -> None:
    view = cd.view(cai(data=(machine.device_memory(24), False)))
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(view)
    with pytest.raises(TypeError):
        np.asarray(view)


def test_numpy_waits_for_the_pending_work(machine: Machine) -> None:
    """NumPy names no stream and reads on the host: the host waits for the producer's stream."""
    stream = machine.stream()
    view = cd.view(cai(data=(machine.managed_memory(24), False), stream=stream))
    machine.clear()
    np.from_dlpack(view)
    assert machine.order() == [("cuStreamSynchronize", stream)]


@pytest.mark.parametrize("versioned", [False, True])
def test_every_tensor_has_a_context(versioned: bool) -> None:
    """Paddle calls no deleter of a tensor whose `manager_ctx` is NULL, and keeps its memory for good."""
    array, layout = np.ones(3), abi.DLManagedTensorVersioned if versioned else abi.DLManagedTensor
    keywords: dict[str, Any] = {"max_version": (1, 3)} if versioned else {}
    view = cd.view(array)
    for capsule in (cd.to_dlpack(array, **keywords), cd.to_dlpack(view, **keywords), view.__dlpack__(**keywords)):
        assert layout.from_address(abi.pointer(capsule)).manager_ctx
