"""torch's CPU tensors as producers: by their own C Exchange table, by `__dlpack__`, and what is refused."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
import torch
import tvm_ffi
from cai_conformance import abi, exchange

from conformance.matrix.torch_cpu.torch_dtypes import DTYPES, filled

VALUES = torch.arange(12, dtype=torch.float32).reshape(3, 4)


class Methods:
    """Wraps a tensor without its table: `__dlpack__` and `__dlpack_device__` alone."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **keywords: Any) -> object:
        return self.tensor.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


def by_methods(tensor: torch.Tensor) -> cd.CaiView:
    """By `__dlpack__` alone."""
    return cd.from_dlpack(Methods(tensor))


def by_table(tensor: torch.Tensor) -> cd.CaiView:
    """Imports by `cd.view`, which takes the table first."""
    return cd.view(tensor)


ROUTES = pytest.mark.parametrize("route", [by_table, by_methods])


def test_torch_has_a_table_and_it_is_the_route() -> None:
    assert exchange.table_of(torch.Tensor).version.major == 1
    assert cd.explain(VALUES).route == "exchange"


def test_the_table_is_called_and_the_method_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> object:
        raise AssertionError("the table was to be taken")

    monkeypatch.setattr(torch.Tensor, "__dlpack__", forbidden)
    assert cd.view(VALUES).ptr == VALUES.data_ptr()


@ROUTES
@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(name: str, route: Callable[[torch.Tensor], cd.CaiView]) -> None:
    tensor = filled(name)
    view = route(tensor)
    assert (view.ptr, view.shape, view.dtype.name) == (tensor.data_ptr(), (2, 3), DTYPES[name])
    assert view.itemsize == tensor.itemsize
    assert view.device == (1, 0)
    assert view.stream is None
    assert view.read_only is False


LAYOUTS = {
    "whole": VALUES,
    "transposed": VALUES.t(),
    "every second column": VALUES[:, ::2],
    "window": VALUES[1:, 1:3],
    "broadcast": torch.ones(1).expand(3),
    "one axis of extent 1": VALUES[:1],
    "no axes": torch.tensor(3.0),
    "channels last": torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
}


@ROUTES
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, route: Callable[[torch.Tensor], cd.CaiView]) -> None:
    tensor = LAYOUTS[layout]
    view = route(tensor)
    assert (view.ptr, view.shape) == (tensor.data_ptr(), tuple(tensor.shape))
    told = [axis for axis, extent in enumerate(view.shape) if extent > 1]
    assert view.elem_strides is not None
    assert [view.elem_strides[axis] for axis in told] == [tensor.stride(axis) for axis in told]
    assert np.from_dlpack(view).tolist() == tensor.tolist()


@ROUTES
def test_an_empty_tensor(route: Callable[[torch.Tensor], cd.CaiView]) -> None:
    view = route(torch.ones(0, 3))
    assert (view.shape, view.ptr, view.nbytes) == ((0, 3), 0, 0)


@ROUTES
@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        pytest.param(torch.ones(3, requires_grad=True), "require gradient", id="requires_grad"),
        pytest.param(torch.nn.Parameter(torch.ones(3)), "require gradient", id="parameter"),
        pytest.param(torch.eye(3).to_sparse(), "strided", id="sparse"),
    ],
)
def test_what_torch_refuses_in_its_own_words(
    tensor: torch.Tensor, words: str, route: Callable[[torch.Tensor], cd.CaiView]
) -> None:
    with pytest.raises(BufferError, match=words):
        route(tensor)


def test_the_negative_bit_is_refused_where_torch_forgets_it() -> None:
    negative = torch.tensor([1 + 2j]).conj().imag
    assert negative.is_neg() and negative.item() == -2
    assert by_methods(negative).ptr == negative.data_ptr(), "torch's own __dlpack__ hands out +2"
    with pytest.raises(BufferError, match="resolve_neg") as refused:
        cd.view(negative)
    assert refused.value.rule == "values-lazy"  # type: ignore[attr-defined]
    assert np.from_dlpack(cd.view(negative.resolve_neg())).tolist() == [-2]


@ROUTES
def test_materialised_tensors_pass(route: Callable[[torch.Tensor], cd.CaiView]) -> None:
    assert np.from_dlpack(route(torch.tensor([1 + 2j]).conj().resolve_conj())).tolist() == [1 - 2j]
    assert route(torch.ones(3, requires_grad=True).detach()).shape == (3,)
    with torch.inference_mode():
        assert route(torch.ones(3)).shape == (3,)


@ROUTES
@pytest.mark.parametrize("device", ["meta"])
def test_a_tensor_without_memory_is_refused_by_torch(device: str, route: Callable[[torch.Tensor], cd.CaiView]) -> None:
    with pytest.raises((RuntimeError, ValueError, BufferError), match=r"meta|device type"):
        route(torch.ones(3, device=device))


# What torch refuses, each by its own class and one sentence.
REFUSED: dict[str, Callable[[], torch.Tensor]] = {
    "meta": lambda: torch.ones(3, device="meta"),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "mkldnn": lambda: torch.zeros(3).to_mkldnn(),
    "quantized": lambda: torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
}
DOORS: dict[str, Callable[[torch.Tensor], object]] = {
    "view": cd.view,
    "from_dlpack": cd.from_dlpack,
    "to_dlpack": cd.to_dlpack,
    "split_masked": cd.split_masked,
}
#: Layouts without strides, which are refused with the remedy.
NOT_STRIDED = {
    "csr": lambda: torch.eye(4).to_sparse_csr(),
    "csc": lambda: torch.eye(4).to_sparse_csc(),
    "coo": lambda: torch.eye(4).to_sparse(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "bsc": lambda: torch.eye(4).to_sparse_bsc((2, 2)),
    "mkldnn": lambda: torch.zeros(3).to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layout", NOT_STRIDED)
def test_a_layout_without_strides_is_refused_with_the_remedy(layout: str) -> None:
    tensor = NOT_STRIDED[layout]()
    for door in DOORS.values():
        with pytest.raises(BufferError, match=r"obj\.to_dense\(\)") as refused:
            door(tensor)
        assert refused.value.rule == "not-strided"  # type: ignore[attr-defined]
    assert cd.view(tensor.to_dense()).shape == tuple(tensor.shape)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_each_door_refuses_in_the_same_words_without_a_backtrace(make: Callable[[], torch.Tensor]) -> None:
    """torch's table raises RuntimeError with a backtrace of C++, its method an exception of one sentence."""
    tensor, found = make(), set()
    for door in DOORS.values():
        with pytest.raises(Exception) as refused:  # noqa: PT011
            door(tensor)
        found.add((type(refused.value), str(refused.value)))
    assert len(found) == 1, found
    assert "\n" not in next(iter(found))[1]
    assert "\n" not in (cd.explain(tensor).refused or "")


@pytest.mark.parametrize("lazy", ["neg", "conj"])
@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_values_that_are_not_the_bytes_are_refused_by_each_door(
    door: Callable[[torch.Tensor], object], lazy: str
) -> None:
    conjugate = torch.tensor([1 + 2j]).conj()
    with pytest.raises(BufferError, match=f"resolve_{lazy}") as refused:
        door(conjugate.imag if lazy == "neg" else conjugate)
    assert refused.value.rule == "values-lazy"  # type: ignore[attr-defined]


def test_a_subclass_has_the_table_too() -> None:
    class Mine(torch.Tensor):  # type: ignore[misc]
        pass

    tensor = VALUES.as_subclass(Mine)
    assert cd.explain(tensor).route == "exchange"
    assert cd.view(tensor).ptr == VALUES.data_ptr()


def test_a_tensor_of_the_cpu_has_no_interface() -> None:
    with pytest.raises(TypeError, match="from_dlpack") as refused:
        cd.from_cai(VALUES)
    assert refused.value.rule == "cai-unavailable"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="CUDA Array Interface"):
        cd.view(VALUES).__cuda_array_interface__  # noqa: B018


class Kept(np.ndarray[Any, Any]):
    """Memory that can be watched: arrays of NumPy itself take no weak reference to their base."""


@ROUTES
def test_the_memory_lives_until_the_last_export(route: Callable[[torch.Tensor], cd.CaiView]) -> None:
    memory = np.arange(3.0).view(Kept)
    alive = weakref.ref(memory)
    tensor = torch.from_numpy(memory)
    del memory
    view = route(tensor)
    del tensor
    gc.collect()
    assert alive() is not None
    held = abi.consume(view.__dlpack__(max_version=(1, 3)))
    del view
    gc.collect()
    assert alive() is not None
    abi.release(held)
    gc.collect()
    assert alive() is None


def test_written_through_a_view_is_seen_by_torch() -> None:
    tensor = torch.zeros(4)
    np.from_dlpack(cd.view(tensor))[2] = 5
    assert tensor.tolist() == [0, 0, 5, 0]


def test_through_the_bridge_to_tvm_ffi() -> None:
    tensor = filled("bfloat16")
    other = tvm_ffi.from_dlpack(cd.view(tensor))
    assert other.data_ptr() == tensor.data_ptr()
    assert str(other.dtype) == "bfloat16"


def test_explain_is_told_by_torchs_table() -> None:
    """By its description on loan: nothing is exported."""
    found = cd.explain(torch.zeros(2, 3), to="numpy")
    assert found.route == "exchange" and "(2, 3) float32 on (1, 0)" in str(found)
    lazily = cd.explain(torch.ones(2, requires_grad=True))
    assert lazily.route is None and "gradient" in (lazily.refused or "")


@pytest.mark.parametrize("name", DTYPES)
def test_its_dtypes_spell_the_type(name: str) -> None:
    dtype = getattr(torch, name)
    view = cd.view(filled(name))
    assert view.dtype == dtype
    assert dtype == view.dtype
    assert cd.DType(dtype) == DTYPES[name]
    assert all(view.dtype != getattr(torch, other) for other in DTYPES if other != name)
    raw = filled(name).reshape(6).view(torch.uint8).numpy().view(f"V{dtype.itemsize}")
    assert cd.view(raw, dtype=dtype).dtype == dtype


def test_torchs_aliases_are_those_of_its_text() -> None:
    for alias, name in {
        "half": "float16",
        "float": "float32",
        "double": "float64",
        "long": "int64",
        "cfloat": "complex64",
    }.items():
        assert cd.DType(getattr(torch, alias)) == name
    for other in (torch.qint8, torch.int3, torch.bits8, torch.strided):
        with pytest.raises((TypeError, ValueError), match=r"\[dtype-argument(-type)?\]"):
            cd.DType(other)
