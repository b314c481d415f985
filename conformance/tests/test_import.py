"""Tests the import by `__dlpack__`: keywords, checks, releases."""

from __future__ import annotations

import gc
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import FAKE_POINTER, Cai, Dlpack, Legacy, StreamOnly, interface
from conformance.tests.simulated.machine import Machine


def on_cuda(**changes: Any) -> abi.Made:
    return abi.make(device=(abi.CUDA, 0), data=FAKE_POINTER, **changes)


# --- the call ---------------------------------------------------------------------------------------


def test_one_call_with_an_explicit_stream_and_our_version() -> None:
    producer = Dlpack(on_cuda())
    view = cd.from_dlpack(producer)
    assert len(producer.calls) == 1
    sent = producer.calls[0]
    assert sent["stream"] == 1
    assert type(sent["stream"]) is int
    assert sent["max_version"] == (1, 3)
    assert view.stream == 1
    assert sent.get("copy") is None
    assert sent.get("dl_device") is None


@pytest.mark.parametrize("stream", [1, 2, 0x5500])
def test_the_callers_stream_is_sent_and_is_the_ready_stream(stream: int) -> None:
    producer = Dlpack(on_cuda())
    view = cd.from_dlpack(producer, stream=stream)
    assert producer.calls[0]["stream"] == stream
    assert view.stream == stream


def test_no_stream_for_the_host() -> None:
    producer = Dlpack(abi.make())
    view = cd.from_dlpack(producer)
    assert producer.calls[0].get("stream") is None
    assert view.stream is None
    assert view.memory == "host"


@pytest.mark.parametrize("copy", [None, False])
def test_copy_is_sent_where_it_is_asked(copy: bool | None) -> None:
    producer = Dlpack(on_cuda())
    cd.from_dlpack(producer, copy=copy)
    assert producer.calls[0].get("copy") is copy


def test_the_producer_stream_is_unknown() -> None:
    assert cd.from_dlpack(Dlpack(on_cuda())).producer_stream == "unknown"


# --- producers that know less ------------------------------------------------------------------------


def test_a_producer_that_knows_no_keyword() -> None:
    producer = Legacy(on_cuda(versioned=False))
    view = cd.from_dlpack(producer)
    assert (view.shape, view.ptr) == ((2, 3), FAKE_POINTER)
    assert len(producer.calls) == 1


def test_a_producer_that_knows_no_keyword_is_called_a_few_times_at_most() -> None:
    class Counting:
        def __init__(self) -> None:
            self.made = on_cuda(versioned=False)
            self.calls: list[set[str]] = []

        def __dlpack__(self, *arguments: Any, **keywords: Any) -> object:
            self.calls.append(set(keywords))
            if keywords:
                name = sorted(keywords)[0]
                raise TypeError(f"__dlpack__() got an unexpected keyword argument '{name}'")
            return self.made.capsule()

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    producer = Counting()
    assert cd.from_dlpack(producer).shape == (2, 3)
    assert 2 <= len(producer.calls) <= 3
    for more, less in zip(producer.calls, producer.calls[1:], strict=False):
        assert less < more
        assert len(more - less) == 1, "one keyword is dropped per try"


def test_a_producer_that_knows_only_stream() -> None:
    producer = StreamOnly(on_cuda(versioned=False))
    view = cd.from_dlpack(producer)
    assert producer.calls == [{"stream": 1}]
    assert view.stream == 1


def test_a_legacy_answer_to_a_versioned_request() -> None:
    made = on_cuda(versioned=False)
    producer = Dlpack(made)
    view = cd.from_dlpack(producer)
    assert producer.calls[0]["max_version"] == (1, 3)
    assert (view.shape, view.read_only) == ((2, 3), None)
    del view
    gc.collect()
    assert made.released == 1


@pytest.mark.parametrize("made", [on_cuda(versioned=False), on_cuda(version=(1, 0)), on_cuda(version=(1, 99))])
def test_versions_that_are_read(made: abi.Made) -> None:
    assert cd.from_dlpack(Dlpack(made)).byte_strides == (12, 4)


# --- the tensor --------------------------------------------------------------------------------------


def test_byte_offset_is_added_once() -> None:
    assert cd.from_dlpack(on_cuda(byte_offset=32).capsule()).ptr == FAKE_POINTER + 32


def test_read_only_is_carried() -> None:
    view = cd.from_dlpack(on_cuda(flags=abi.READ_ONLY).capsule())
    assert view.read_only is True
    assert view.__cuda_array_interface__["data"] == (FAKE_POINTER, True)


@pytest.mark.parametrize(
    ("device", "memory"),
    [((1, 0), "host"), ((2, 0), "device"), ((2, 1), "device"), ((3, 0), "pinned"), ((13, 0), "managed")],
    ids=lambda each: str(each),
)
def test_device_and_memory(device: tuple[int, int], memory: str) -> None:
    view = cd.from_dlpack(Dlpack(abi.make(device=device)))
    assert (view.device, view.memory) == (device, memory)


def test_the_metadata_is_copied_out_of_the_struct() -> None:
    made = on_cuda()
    view = cd.from_dlpack(made.capsule())
    shape = made.keep[0]
    shape[0] = shape[1] = 99
    made.tensor.data = 0
    assert (view.shape, view.ptr) == ((2, 3), FAKE_POINTER)


def test_the_import_keeps_the_tensor_and_its_deleter_runs_once() -> None:
    made = on_cuda()
    producer = Dlpack(made)
    view = cd.from_dlpack(producer)
    del producer
    capsule = view.__dlpack__(stream=1, max_version=(1, 3))
    del view
    gc.collect()
    assert made.released == 0
    del capsule
    gc.collect()
    assert made.released == 1


# --- numpy as a producer -----------------------------------------------------------------------------


def test_numpy_is_read_and_given_back() -> None:
    array = np.arange(12, dtype=np.int16).reshape(3, 4)[::-1, ::2]
    view = cd.from_dlpack(array)
    assert (view.ptr, view.shape, view.dtype.name) == (array.ctypes.data, array.shape, "int16")
    assert view.byte_strides == array.strides
    back = np.from_dlpack(view)
    assert back.ctypes.data == array.ctypes.data
    assert back.tolist() == array.tolist()


def test_numpys_read_only_flag_goes_round() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    view = cd.from_dlpack(array)
    assert view.read_only is True
    assert not np.from_dlpack(view).flags.writeable


# --- which route `view` takes --------------------------------------------------------------------------


class Both(Dlpack):
    """Speaks both protocols; the interface has a stream or none."""

    def __init__(self, made: abi.Made, **changes: Any) -> None:
        super().__init__(made)
        self.shown = Cai(interface(**changes))

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.shown.__cuda_array_interface__


def test_the_interface_with_a_stream_is_preferred() -> None:
    producer = Both(on_cuda(), stream=7)
    view = cd.view(producer, device_id=0)
    assert (view.stream, view.producer_stream, producer.calls) == (7, 7, [])


def test_dlpack_is_preferred_to_an_interface_that_names_no_stream() -> None:
    producer = Both(on_cuda(), stream=..., version=2)
    view = cd.view(producer, device_id=0)
    assert len(producer.calls) == 1
    assert view.stream == 1
    assert producer.shown.reads <= 1


def test_an_interface_that_says_none_is_believed() -> None:
    """Version 3 with `stream: None` is a statement: nothing is pending."""
    producer = Both(on_cuda(), stream=None)
    assert cd.view(producer, device_id=0).stream is None
    assert producer.calls == []


def test_from_cai_and_from_dlpack_take_their_own_route_only() -> None:
    producer = Both(on_cuda(), stream=..., version=2)
    assert cd.from_cai(producer, device_id=0).stream is None
    assert producer.calls == []
    reads = producer.shown.reads
    # By DLPack alone; the dict is asked for its read-only flag, which `view` merges too.
    cd.from_dlpack(producer)
    assert (len(producer.calls), producer.shown.reads) == (1, reads + 1)


def test_an_interface_that_is_absent_falls_through_to_dlpack() -> None:
    class OnTheCpu(Dlpack):
        @property
        def __cuda_array_interface__(self) -> Any:
            raise AttributeError("not on a GPU")

    assert cd.view(OnTheCpu(abi.make())).device == (1, 0)


def test_a_view_of_a_view() -> None:
    first = cd.view(Cai(interface(stream=7)), device_id=0)
    second = cd.view(first)
    assert (second.ptr, second.shape, second.stream) == (first.ptr, first.shape, 7)
    assert second.device == first.device


def test_the_import_of_our_own_export_makes_no_driver_call(machine: Machine) -> None:
    view = cd.view(Cai(interface()), device_id=0)
    machine.clear_own()
    cd.from_dlpack(view.__dlpack__(stream=-1, max_version=(1, 3)))
    cd.from_dlpack(view)
    assert machine.calls() == []
