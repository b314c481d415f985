"""torch as the consumer of views of the CPU: by its function, by its own table, by capsules."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
import torch
from cai_conformance import exchange

from conformance.matrix.torch_cpu.torch_dtypes import DTYPES, filled, same_bytes


def by_function(view: cd.CaiView) -> torch.Tensor:
    return torch.from_dlpack(view)


def by_capsule(view: cd.CaiView) -> torch.Tensor:
    return torch.utils.dlpack.from_dlpack(cd.to_dlpack(view, max_version=(1, 3)))


def by_old_capsule(view: cd.CaiView) -> torch.Tensor:
    return torch.utils.dlpack.from_dlpack(cd.to_dlpack(view))


def by_table(view: cd.CaiView) -> torch.Tensor:
    """Hands over by both tables, as a C extension does: ours gives a managed tensor, torch's makes a tensor of it."""
    ours, torchs = exchange.table_of(cd.CaiView), exchange.table_of(torch.Tensor)
    managed, made = ctypes.c_void_p(), ctypes.c_void_p()
    assert ours.from_object and torchs.to_object
    assert exchange.FromObject(ours.from_object)(id(view), ctypes.byref(managed)) == 0
    assert exchange.ToObject(torchs.to_object)(managed.value, ctypes.byref(made)) == 0
    tensor = ctypes.cast(made, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(tensor))  # the reference that the table gave
    assert isinstance(tensor, torch.Tensor)
    return tensor


WAYS = pytest.mark.parametrize("way", [by_function, by_table, by_capsule, by_old_capsule])


@WAYS
@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_there_and_back(name: str, way: Callable[[cd.CaiView], torch.Tensor]) -> None:
    tensor = filled(name)
    again = way(cd.view(tensor))
    assert (again.data_ptr(), again.shape, again.dtype) == (tensor.data_ptr(), tensor.shape, tensor.dtype)
    assert same_bytes(again, tensor)


HOST = np.arange(12, dtype=np.float32).reshape(3, 4)
LAYOUTS = {
    "whole": HOST,
    "fortran": np.asfortranarray(HOST),
    "every second column": HOST[:, ::2],
    "window": HOST[1:, 1:3],
    "no axes": np.array(3.0),
    "broadcast": np.broadcast_to(np.ones(1), (3,)),
}


@WAYS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, way: Callable[[cd.CaiView], torch.Tensor]) -> None:
    array = LAYOUTS[layout]
    tensor = way(cd.from_dlpack(array, read_only=False))
    assert tensor.data_ptr() == array.ctypes.data
    assert tensor.tolist() == array.tolist()
    assert tensor.stride() == tuple(step // array.itemsize for step in array.strides)


@WAYS
def test_strides_of_one_element_are_preserved(way: Callable[[cd.CaiView], torch.Tensor]) -> None:
    """`test_dlpack_normalize_strides` of torch's test/test_dlpack.py, through a view. Older torch normalised the stride
    to 1 on export, and its test wants that; "stride normalization has been removed" since, and the test of torch
    2.15 wants the 3 of the slice."""
    one = torch.rand(16)[::3][:1]
    assert (one.shape, one.stride(), torch.from_dlpack(one).stride()) == ((1,), (3,), (3,))
    again = way(cd.view(one))
    assert (again.shape, again.stride(), again.data_ptr()) == ((1,), (3,), one.data_ptr())
    assert torch.equal(again, one)


@WAYS
def test_channels_last_of_one_channel_is_kept(way: Callable[[cd.CaiView], torch.Tensor]) -> None:
    """The strides of the axis of extent 1 say the memory format, in which conv2d then answers."""
    image = torch.rand(2, 1, 4, 4).to(memory_format=torch.channels_last)
    image = image.as_strided(image.shape, (16, 1, 4, 1))
    again = way(cd.view(image))
    assert again.stride() == image.stride()
    weight = torch.rand(3, 1, 2, 2)
    wanted, found = (torch.nn.functional.conv2d(each, weight) for each in (image, again))
    assert found.stride() == wanted.stride() and torch.equal(found, wanted)


@WAYS
def test_an_empty_array(way: Callable[[cd.CaiView], torch.Tensor]) -> None:
    assert way(cd.view(np.zeros((0, 3)))).shape == (0, 3)


@pytest.mark.parametrize("way", [by_function, by_capsule])
def test_torch_does_not_take_negative_strides(way: Callable[[cd.CaiView], torch.Tensor]) -> None:
    view = cd.view(np.arange(4.0)[::-1])
    with pytest.raises(RuntimeError):
        way(view)
    gc.collect()
    assert np.from_dlpack(view).tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize("library", ["torch", torch, torch.Tensor])
@pytest.mark.parametrize("given", [cd.view, cd.to_dlpack, lambda array: array])
def test_what_ends_the_process_in_some_versions_of_torch_is_refused_before(given: Any, library: Any) -> None:
    array = np.arange(4.0)[::-1]
    handed = given(array)
    with pytest.raises(cd.BufferRefusal, match=r"torch.*negative strides") as refused:
        cd.to(handed, library)
    assert refused.value.rule == "transfer-refused"
    if given is cd.to_dlpack:
        assert cd.from_dlpack(handed).ptr == array.ctypes.data, "the capsule is as it was"


def constant() -> np.ndarray[Any, Any]:
    array = np.arange(3.0)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("way", [by_function, by_table, by_capsule])
def test_torch_drops_the_read_only_flag(way: Callable[[cd.CaiView], torch.Tensor]) -> None:
    """torch has no read-only tensors, and ignores the flag."""
    array = constant()
    view = cd.view(array)
    assert view.read_only
    assert way(view).data_ptr() == array.ctypes.data


def test_a_capsule_without_the_flag_needs_the_callers_word() -> None:
    view = cd.view(constant())
    with pytest.raises(BufferError, match="writable") as refused:
        cd.to_dlpack(view)
    assert refused.value.rule == "read-only-legacy"  # type: ignore[attr-defined]
    tensor = torch.utils.dlpack.from_dlpack(cd.to_dlpack(view, writable=True))
    assert tensor.data_ptr() == view.ptr


@WAYS
def test_the_owner_lives_as_long_as_the_tensor(way: Callable[[cd.CaiView], torch.Tensor]) -> None:
    class Kept(np.ndarray[Any, Any]):
        pass

    owner = np.arange(3.0).view(Kept)
    alive = weakref.ref(owner)
    tensor = way(cd.view(owner))
    del owner
    gc.collect()
    assert alive() is not None
    part = tensor[1:]
    del tensor
    gc.collect()
    assert alive() is not None
    assert part.tolist() == [1, 2]
    del part
    gc.collect()
    assert alive() is None


def test_no_copy_where_torch_is_asked_for_none() -> None:
    view = cd.view(HOST)
    assert torch.from_dlpack(view, copy=False).data_ptr() == view.ptr
    assert torch.from_dlpack(view, device="cpu").data_ptr() == view.ptr
    assert torch.asarray(view).data_ptr() == view.ptr
    assert torch.as_tensor(view).data_ptr() == view.ptr


def test_a_copy_where_torch_asks_for_one() -> None:
    view = cd.view(HOST)
    copy = torch.from_dlpack(view, copy=True)
    assert copy.data_ptr() != view.ptr
    assert copy.tolist() == HOST.tolist()


def test_a_thousand_rounds_leave_nothing() -> None:
    tensor = torch.ones(8)
    before = (cd.stats()["live"], sys.getrefcount(tensor))
    for _ in range(1000):
        for way in (by_function, by_table, by_capsule, by_old_capsule):
            way(cd.view(tensor))
    gc.collect()
    assert (cd.stats()["live"], sys.getrefcount(tensor)) == before
