"""What a tensor says leaves as it came: pointer, shape, strides, type, flags, device, byte offset.

`test_nothing_is_changed_on_the_way` draws tensors of every kind, sends each through every way in and every way out, and
compares the structs field by field. What the way out cannot say must be refused by its rule.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import FAKE_POINTER, Dlpack
from conformance.tests.expectations import oracle
from conformance.tests.expectations.refusal import check_refusal, refuse

OPENCL, VULKAN, METAL, WEBGPU = 4, 7, 8, 15
#: The device types whose data is known to be an address; of the others the offset stays apart.
ADDRESSED = {abi.CPU, abi.CUDA, abi.CUDA_HOST, abi.ROCM, 11, abi.CUDA_MANAGED, 14}
DEVICES = [*range(1, 5), *range(7, 19)]
TYPES = sorted({(code, bits) for _, code, bits in oracle.DTYPES.values()} | {*oracle.WITHOUT_TYPESTR.values()})


@dataclass(frozen=True)
class Tensor:
    """The arguments of `abi.make`, and what of them a legacy struct or a borrowed one can say."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: tuple[int, int, int]
    device: tuple[int, int]
    data: int
    byte_offset: int
    flags: int

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape

    def expected(self) -> dict[str, Any]:
        """The fields as they must leave: data is NULL without elements, and an address has its offset added."""
        data, byte_offset = self.data, self.byte_offset
        if self.is_empty:
            data, byte_offset = 0, 0
        elif self.device[0] in ADDRESSED:
            data, byte_offset = data + byte_offset, 0
        return {
            "data": data,
            "byte_offset": byte_offset,
            "device": self.device,
            "dtype": self.dtype,
            "shape": self.shape,
            "strides": self.strides,
        }


def drawn(source: random.Random) -> Tensor:
    """Any valid tensor, often with strides that mean nothing."""
    ndim = source.choice([0, 1, 2, 2, 3, 4, 5, 7])
    shape = tuple(source.choice([1, 1, 2, 3, 5]) for _ in range(ndim))
    if ndim and source.random() < 0.2:
        shape = (*shape[:-1], 0)
    idle = [0, 1, 3, -1, -7, 2**31, 2**62, 2**63 - 1, -(2**63)]
    compact = abi.compact(shape)
    strides = tuple(
        source.choice(idle)
        if extent == 1 or 0 in shape
        else source.choice([compact[axis], compact[axis], 0, 1, 2, -1, -6, 11])
        for axis, extent in enumerate(shape)
    )
    code, bits = source.choice(TYPES)
    return Tensor(
        shape=shape,
        strides=strides,
        dtype=(code, bits, source.choice([1, 1, 1, 2, 4])),
        device=(source.choice([*DEVICES, abi.CPU, abi.CUDA]), 0),
        data=FAKE_POINTER,
        byte_offset=source.choice([0, 0, 64, 2**31]),
        flags=source.choice([0, 0, abi.READ_ONLY, abi.SUBBYTE_PADDED, abi.READ_ONLY | abi.SUBBYTE_PADDED]),
    )


# --- the ways in, and the ways out ----------------------------------------------------------------------------


#: One type for all tensors: tables are never freed.
PRODUCER = exchange.Producer()
Exporter = exchange.make_type(exchange.capsule(exchange.table(PRODUCER)), PRODUCER)


def by_table(made: abi.Made) -> Any:
    PRODUCER.made = made
    return cd.view(Exporter(), producer_stream=None)


#: By name: whether the way carries flags, and the view.
INS: dict[str, Callable[[abi.Made], Any]] = {
    "legacy capsule": lambda made: cd.from_dlpack(made.capsule()),
    "versioned capsule": lambda made: cd.from_dlpack(made.capsule()),
    "view of a capsule": lambda made: cd.view(made.capsule()),
    "__dlpack__": lambda made: cd.view(Dlpack(made)),
    "the table": by_table,
}

TABLE = exchange.table_of(cd.CaiView)
from_object = exchange.FromObject(TABLE.from_object)
borrow = exchange.Borrow(TABLE.borrow)


def owned(view: object) -> abi.Read:
    """The tensor that the table of views exports."""
    out = ctypes.c_void_p()
    assert from_object(id(view), ctypes.byref(out)) == 0
    assert out.value
    tensor = abi.read_at(out.value, versioned=True)
    abi.release(tensor)
    return replace(tensor, address=0, deleter=0)


def lent(view: object) -> abi.Read:
    """The description that the table of views lends, as the tensor of a legacy struct."""
    managed = abi.DLManagedTensor()
    assert borrow(id(view), ctypes.byref(managed.dl_tensor)) == 0
    return abi.read_at(ctypes.addressof(managed), versioned=False)


#: By name: whether the way carries flags, and the struct.
OUTS: dict[str, tuple[bool, Callable[[Any], abi.Read]]] = {
    "versioned": (True, lambda view: abi.read(view.__dlpack__(stream=no_order(view), max_version=(1, 3)))),
    "legacy": (False, lambda view: abi.read(view.__dlpack__(stream=no_order(view)))),
    "to_dlpack": (True, lambda view: abi.read(cd.to_dlpack(view, stream=no_order(view), max_version=(1, 1)))),
    "the table, owned": (True, owned),
    "the table, lent": (False, lent),
}


def no_order(view: Any) -> int | None:
    """The argument by which a consumer asks for no order; None where there are no streams."""
    return -1 if view.device[0] in (abi.CUDA, abi.CUDA_HOST, abi.ROCM, 11, abi.CUDA_MANAGED) else None


def difference(tensor: Tensor, way_in: str, way_out: str) -> str | None:
    """Returns the first field that has changed, or None."""
    versioned = way_in != "legacy capsule"
    flags = tensor.flags if versioned else 0
    made = abi.make(**{**vars(tensor), "flags": flags}, versioned=versioned)
    has_flags, export = OUTS[way_out]
    is_padded = bool(flags & abi.SUBBYTE_PADDED) and tensor.dtype[1] < 8
    refused = None
    try:
        found = export(INS[way_in](made))
    except BufferError as error:
        refused = str(error), getattr(error, "rule", None)
    abi.forget(made)
    if refused is not None:
        message, rule = refused
        if not has_flags and rule in ("read-only-legacy", "read-only-writer") and flags & abi.READ_ONLY:
            return None
        return None if not has_flags and rule == "padded-legacy" and is_padded else f"refused: {message}"
    if not has_flags and (flags & abi.READ_ONLY or is_padded):
        return "a flag was dropped without a word"
    for field, wanted in tensor.expected().items():
        said = getattr(found, field)
        if (said or ()) != wanted if field in ("shape", "strides") else said != wanted:
            return f"{field} is {said}, and was {wanted}"
    # A legacy tensor cannot say whether it may be written: who can be told is not told that it may.
    stated = flags if is_padded else flags & ~abi.SUBBYTE_PADDED
    said = stated if versioned else abi.READ_ONLY
    if has_flags and found.flags != said:
        return f"flags are {found.flags}, and were {said}"
    return None


def ways() -> Iterator[Any]:
    for way_in in INS:
        for way_out in OUTS:
            yield pytest.param(way_in, way_out, id=f"{way_in} to {way_out}")


# The table exports for a default stream, which a machine without a context has not.
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("way_in", "way_out"), list(ways()))
def test_nothing_is_changed_on_the_way(way_in: str, way_out: str) -> None:
    source = random.Random(f"{way_in} {way_out}")
    for _ in range(400):
        tensor = drawn(source)
        problem = difference(tensor, way_in, way_out)
        assert problem is None, f"{tensor}: {problem}"


def test_the_comparison_can_fail() -> None:
    """Each field, told otherwise: a check that cannot fail proves nothing."""
    honest = Tensor((1, 3), (7, 1), (abi.FLOAT, 32, 1), (VULKAN, 0), FAKE_POINTER, 64, 0)
    assert difference(honest, "versioned capsule", "versioned") is None

    class Liar(Tensor):
        def expected(self) -> dict[str, Any]:
            return {**super().expected(), "strides": (3, 1)}

    assert difference(Liar(**vars(honest)), "versioned capsule", "versioned") == "strides is (7, 1), and was (3, 1)"


# --- strides --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        pytest.param((1,), (3,), id="one-of-every-third"),
        pytest.param((2, 1, 4, 4), (16, 1, 4, 1), id="channels-last"),
        pytest.param((1, 3, 2, 2), (12, 1, 6, 3), id="channels-last-of-one-image"),
        pytest.param((0, 3), (7, -1), id="empty"),
        pytest.param((1, 1), (2**63 - 1, -(2**63)), id="extreme"),
    ],
)
def test_strides_are_as_they_came(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    view = cd.view(abi.make(shape, strides=strides).capsule())
    assert view.elem_strides == strides
    again = cd.from_dlpack(view)
    assert again.elem_strides == strides
    assert abi.read(again.__dlpack__(max_version=(1, 3))).strides == strides


def test_strides_of_numpy_through_a_view() -> None:
    """Slices to one element, and to none: as they are, by DLPack and in a buffer of any strides."""
    whole = np.arange(24.0).reshape(2, 3, 4)
    for array in (whole[::-1][:1], whole[:, ::2][:, :1], whole.T[:1], whole[:1].T):
        assert np.from_dlpack(cd.view(array)).strides == np.from_dlpack(array).strides
        assert np.asarray(cd.view(array)).strides == array.strides
    empty = whole[:0, ::2]
    assert cd.view(empty).byte_strides == empty.strides


@pytest.mark.parametrize(
    ("strides", "shown"),
    [
        pytest.param((96, 12, 3, 1), None, id="C-order"),
        pytest.param((1, 99, 2, 8), (4, 8, 8, 32), id="Fortran-order"),
        pytest.param((24, 5, 6, 2), (96, 20, 24, 8), id="neither"),
        pytest.param((24, 2**62, 6, 2), (96, 0, 24, 8), id="no-number-of-bytes"),
    ],
)
def test_the_dict_has_strides_of_an_order(strides: tuple[int, ...], shown: tuple[int, ...] | None) -> None:
    """CAI's readers compare strides: an array in order says so, whatever an axis of extent 1 says in DLPack."""
    shape = (2, 1, 4, 3) if strides[0] != 96 else (2, 8, 4, 3)
    view = cd.view(abi.make(shape, strides=strides, device=(abi.CUDA, 0), data=FAKE_POINTER).capsule())
    assert view.elem_strides == strides
    assert view.__cuda_array_interface__["strides"] == shown


# --- the padding flag -------------------------------------------------------------------------------------------


def padded(**changes: Any) -> Any:
    made = abi.make((4, 4), dtype=(abi.INT, 4, 1), flags=abi.SUBBYTE_PADDED, **changes)
    return cd.view(made.capsule())


def test_padding_is_said_or_refused() -> None:
    view = padded()
    assert view.nbytes == 16
    for version in ((1, 1), (1, 3), (2, 0)):
        assert abi.read(view.__dlpack__(max_version=version)).flags == abi.SUBBYTE_PADDED
    assert owned(view).flags == abi.SUBBYTE_PADDED
    # The flag came with 1.1: a consumer of 1.0 would take the elements for packed ones.
    for passed in (None, (0, 8), (1, 0)):
        for door in (view.__dlpack__, partial(cd.to_dlpack, view)):
            found = refuse(partial(door, max_version=passed) if passed else door, BufferError)
            said = "padded int4 elements"
            value = f"{passed}, with {said}" if passed else f"{said}, for a consumer that passes no max_version"
            check_refusal(found, "padded-legacy", "max_version" if passed else "object", value=value)
            assert "max_version=(1, 1)" in found.message and "dtype='uint8' presents the bytes" in found.message
    # A consumer of the table passes no version.
    found = refuse(partial(lent, view), BufferError)
    check_refusal(found, "padded-legacy", "__dlpack_c_exchange_api__", hint="dtype='uint8'")
    assert "max_version" not in found.message
    assert abi.read(cd.view(view, dtype="uint8").__dlpack__()).dtype == (abi.UINT, 8, 1)


@pytest.mark.parametrize("bits", [1, 2, 4, 6])
def test_packed_elements_are_refused_to_a_reader_that_counts_bytes(bits: int) -> None:
    """The size by DLPack 1.0 is a byte for each, past the end of the memory; mpi4py takes it."""
    code = abi.FLOAT6_E2M3FN if bits == 6 else abi.INT
    for lanes in (1, 2, 4):
        view: Any = cd.view(abi.make((8,), dtype=(code, bits, lanes)).capsule())
        for export in (view.__dlpack__, partial(cd.to_dlpack, view), partial(view.__dlpack__, copy=False)):
            for version in ((1, 1), (1, 3), (2, 0)):
                assert abi.read(export(max_version=version)).dtype == (code, bits, lanes)
            if bits * lanes % 8 == 0:
                assert abi.read(export(max_version=(1, 0))).dtype == (code, bits, lanes)
                continue
            found = refuse(partial(export, max_version=(1, 0)), BufferError)
            check_refusal(
                found, "packed-legacy", "max_version", value=f"packed {view.dtype}", hint="max_version=(1, 1)"
            )
            assert "shape=(view.nbytes,)" in found.message
        presented = cd.view(view, dtype="uint8", shape=(view.nbytes,))
        assert abi.read(presented.__dlpack__(max_version=(1, 0))).shape == (8 * bits * lanes // 8,)


@pytest.mark.parametrize(("bits", "lanes", "size"), [(4, 1, 1), (2, 1, 1), (6, 1, 1), (4, 2, 2)])
def test_padded_elements_have_strides_in_bytes(bits: int, lanes: int, size: int) -> None:
    code = abi.FLOAT6_E2M3FN if bits == 6 else abi.INT
    made = partial(abi.make, (3, 5), strides=(7, 1), dtype=(code, bits, lanes))
    view = cd.view(made(flags=abi.SUBBYTE_PADDED).capsule())
    assert (view.itemsize, view.byte_strides, view.nbytes) == (size, (7 * size, size), 15 * size)
    whole = bits * lanes % 8 == 0
    packed = cd.view(made().capsule())
    assert (packed.itemsize, packed.byte_strides) == ((bits * lanes // 8, (7, 1)) if whole else (None, None))


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_padded_elements_are_not_copied(lanes: int) -> None:
    """Whose size is not that of their type, though that of two int4 is a whole byte."""
    view: Any = cd.view(abi.make((3,), dtype=(abi.INT, 4, lanes), flags=abi.SUBBYTE_PADDED).capsule())
    for copy in (
        partial(view.__dlpack__, copy=True, max_version=(1, 1)),
        partial(cd.to_dlpack, view, copy=True, max_version=(1, 1)),
        partial(cd.from_dlpack, view, copy=True),
    ):
        assert refuse(copy, BufferError).rule == "copy-refused"


@pytest.mark.parametrize("flags", [0, abi.READ_ONLY])
@pytest.mark.parametrize("dtype", [(abi.FLOAT, 32, 1), (abi.INT, 16, 1), (abi.UINT, 8, 2), (abi.COMPLEX, 64, 1)])
def test_the_flag_of_padding_is_dropped_for_whole_bytes(dtype: tuple[int, int, int], flags: int) -> None:
    """It states nothing, and consumers drop the other flags with it, or refuse it."""

    def made(shape: tuple[int, ...] = (2, 3)) -> abi.Made:
        return abi.make(shape, flags=flags | abi.SUBBYTE_PADDED, dtype=dtype)

    # Within four axes, beyond them, and through the table.
    for view in (cd.view(made().capsule()), cd.view(made((1, 2, 1, 2, 1, 2)).capsule()), by_table(made())):
        for name, (has_flags, export) in OUTS.items():
            if has_flags:
                assert export(view).flags == flags, name
        if not flags:
            assert abi.name(view.__dlpack__()) == abi.LEGACY


# --- opaque handles ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device_type", [OPENCL, VULKAN, METAL, WEBGPU])
def test_a_handle_keeps_its_offset_apart(device_type: int) -> None:
    made = abi.make(device=(device_type, 0), data=0x1000, byte_offset=64, strides=(-3, 1))
    view = cd.view(made.capsule())
    assert (view.ptr, view.byte_offset, view.device) == (0x1000, 64, (device_type, 0))
    tensor = abi.read(view.__dlpack__(max_version=(1, 3)))
    assert (tensor.data, tensor.byte_offset, tensor.strides) == (0x1000, 64, (-3, 1))
    assert lent(view).byte_offset == 64
    assert cd.from_dlpack(cd.view(view)).byte_offset == 64
    assert refuse(partial(view.present_as, "cuda"), BufferError).rule == "present-as"
    assert refuse(view.to_cai, BufferError).rule == "cai-device"


def test_a_handle_may_be_any_number_but_0() -> None:
    """No span is computed from it: neither an end of memory nor an alignment."""
    largest = abi.make(device=(VULKAN, 0), data=2**64 - 1, byte_offset=2**63 - 1, dtype=(abi.UINT, 8, 1), shape=(8,))
    view = cd.view(largest.capsule(), dtype="float64", shape=(1,))
    assert (view.ptr, view.byte_offset, view.dtype.name) == (2**64 - 1, 2**63 - 1, "float64")
    null = abi.make(device=(VULKAN, 0), data=0, byte_offset=64)
    assert refuse(partial(cd.view, null.capsule()), ValueError).rule == "data-pointer-null"


def test_of_an_address_the_offset_is_0() -> None:
    view = cd.view(abi.make(device=(abi.CUDA, 0), data=FAKE_POINTER, byte_offset=64).capsule())
    assert (view.ptr, view.byte_offset) == (FAKE_POINTER + 64, 0)
