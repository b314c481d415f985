"""`dtype=` and `shape=` reinterpret the memory, in any spelling, and never cast."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import cai_dlpack as cd
import ml_dtypes
import numba.cuda
import numpy as np
import pytest
from cai_conformance import abi
from cuda.core.utils import StridedMemoryView

from conformance.tests.doubles.producers import Cai, Dlpack, cai, interface
from conformance.tests.expectations import oracle
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.simulated.machine import Machine

# Types without a typestr, as ml_dtypes names them, and those that `dtype=` cannot name without `shape=`.
REFUSED = [name for name, (_, bits) in oracle.WITHOUT_TYPESTR.items() if bits < 8]
SPECIAL = {name: row for name, row in oracle.WITHOUT_TYPESTR.items() if name not in REFUSED}
PLAIN = {name: (code, bits) for name, code, bits in oracle.DTYPES.values()}


def raw(itemsize: int, **changes: Any) -> Cai:
    """Two items of raw bytes."""
    return Cai(interface(shape=(2,), typestr=f"|V{itemsize}", **changes))


def spellings(name: str) -> list[Any]:
    """Every way to name a type that NumPy's users have. Not `l`: NumPy, torch and C disagree about long."""
    if name in SPECIAL and not hasattr(ml_dtypes, name):
        return [name]
    kind = getattr(ml_dtypes, name) if name in SPECIAL else np.dtype(name).type
    found = [name, np.dtype(kind), kind]
    return (
        found
        if name in SPECIAL
        else [*found, np.dtype(name).str, np.dtype(name).str[1:], *({np.dtype(name).char} - {*"lL"})]
    )


@pytest.mark.parametrize("name", [*SPECIAL, *PLAIN])
def test_every_spelling_of(name: str) -> None:
    code, bits = {**SPECIAL, **PLAIN}[name]
    for dtype in spellings(name):
        view = cd.view(raw(bits // 8), device_id=0, dtype=dtype)
        assert view.dtype == name, dtype
        tensor = abi.read(view.__dlpack__(max_version=(1, 3)))
        assert (tensor.dtype, tensor.data, tensor.shape) == ((code, bits, 1), view.ptr, (2,))
        if name in PLAIN:
            assert view.__cuda_array_interface__["typestr"] == np.dtype(name).str
        else:
            assert not hasattr(view, "__cuda_array_interface__")


def test_numpy_is_not_imported_for_it() -> None:
    program = """if True:
        import sys, cai_dlpack as cd
        class Dtype:
            name = "bfloat16"
        class float8_e4m3fn: pass
        class Array:
            __cuda_array_interface__ = {"shape": (2,), "typestr": "<u2", "data": (4096, False), "version": 3}
        for dtype in ("bfloat16", Dtype()):
            assert cd.view(Array(), device_id=0, dtype=dtype).dtype == "bfloat16"
        Array.__cuda_array_interface__["typestr"] = "|u1"
        assert cd.view(Array(), device_id=0, dtype=float8_e4m3fn).dtype == "float8_e4m3fn"
        cd.view(Array(), device_id=0).__dlpack__()
        sys.exit("numpy" in sys.modules or "ml_dtypes" in sys.modules)
    """
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# --- reinterprets, never casts ----------------------------------------------------------------------------


def allowed(source: str, target: str) -> bool:
    """Raw unsigned ints as anything of their size, and the one alias that libraries are known to use."""
    sizes = {name: bits for name, (_, bits) in {**SPECIAL, **PLAIN}.items()}
    is_alias = (source, target) == ("float16", "bfloat16")
    return sizes[source] == sizes[target] and (source == target or source.startswith("uint") or is_alias)


@pytest.mark.parametrize("typestr", oracle.DTYPES)
def test_what_it_may_be_taken_for(typestr: str) -> None:
    source = oracle.DTYPES[typestr][0]
    for target in [*SPECIAL, *PLAIN]:
        if allowed(source, target):
            assert cd.view(cai(typestr=typestr), device_id=0, dtype=target).dtype == target
        else:
            found = refuse(lambda name=target: cd.view(cai(typestr=typestr), device_id=0, dtype=name), BufferError)  # type: ignore[misc]
            check_refusal(found, "dtype-override", "dtype", value=target)


def test_bits_are_shown_as_ints(machine: Machine) -> None:
    """Dtypes without a typestr pass through the interface as unsigned ints."""
    memory = machine.device_memory(64)
    for name, (code, bits) in SPECIAL.items():
        tensor = abi.make((8,), device=(2, 0), data=memory, dtype=(code, bits, 1))
        view = cd.view(Dlpack(tensor), producer_stream=1)
        assert view.dtype == name
        found = cd.view(view, dtype=f"uint{bits}")
        array = numba.cuda.as_cuda_array(found)
        assert (array.dtype.name, array.device_ctypes_pointer.value) == (f"uint{bits}", memory)


def test_ticks_of_dates_are_ints() -> None:
    for typestr in ("<M8[ns]", "<m8[us]"):
        assert cd.view(cai(typestr=typestr, shape=(2,)), device_id=0, dtype="int64").dtype == "int64"
        found = refuse(lambda text=typestr: cd.to_dlpack(cai(typestr=text, shape=(2,)), device_id=0), BufferError)  # type: ignore[misc]
        check_refusal(found, "typestr-datetime", "typestr", value=typestr, hint="dtype='int64'")


@pytest.mark.parametrize("dtype", REFUSED)
def test_types_that_are_named_in_the_refusal(dtype: str) -> None:
    for source in (raw(1), raw(4), cai(typestr="|u1")):
        found = refuse(lambda each=source: cd.view(each, device_id=0, dtype=dtype), BufferError)  # type: ignore[misc]
        check_refusal(
            found,
            "dtype-override",
            "dtype",
            value=dtype,
            hint="with shape= contiguous bytes",
        )


@pytest.mark.parametrize("name", [name for name in REFUSED if hasattr(ml_dtypes, name)])
def test_ml_dtypes_objects_of_packed_types(name: str) -> None:
    kind = getattr(ml_dtypes, name)
    for dtype in (kind, np.dtype(kind)):
        found = refuse(lambda each=dtype: cd.view(raw(1), device_id=0, dtype=each), BufferError)  # type: ignore[misc]
        check_refusal(found, "dtype-override", "dtype", value=name)


@pytest.mark.parametrize(
    ("dtype", "raises", "rule"),
    [
        (42, TypeError, "dtype-argument-type"),
        pytest.param(object(), TypeError, "dtype-argument-type", id="object()"),
        ("float31", ValueError, "dtype-argument"),
        (">f4", ValueError, "dtype-argument"),
        (np.dtype([("a", "f4")]), ValueError, "dtype-argument"),
        (np.dtype("V4"), ValueError, "dtype-argument"),
        (np.dtype("M8[ns]"), ValueError, "dtype-argument"),
        (str, ValueError, "dtype-argument"),
    ],
    ids=repr,
)
def test_what_names_no_type(dtype: Any, raises: type[Exception], rule: str) -> None:
    check_refusal(refuse(lambda: cd.view(raw(4), device_id=0, dtype=dtype), raises), rule, "dtype")


def test_an_alignment_that_bytes_do_not_need() -> None:
    odd = raw(4, data=(4098, False))
    check_refusal(refuse(lambda: cd.view(odd, device_id=0, dtype="float32"), BufferError), "data-alignment", "data")
    record = Cai(interface(shape=(2,), typestr="|V4", descr=[("a", "|V4")], data=(4098, False)))
    whole = cd.view(record, device_id=0)
    check_refusal(refuse(lambda: cd.view(whole, dtype="float32"), BufferError), "data-alignment", "data")
    check_refusal(refuse(lambda: whole.field("a", dtype="float32"), BufferError), "data-alignment", "data")


# --- shape= -----------------------------------------------------------------------------------------------


def test_bytes_of_a_buffer_become_an_array(machine: Machine) -> None:
    """RMM's and cuda.core's buffers are bytes, which `dtype=` and `shape=` reinterpret."""
    memory = machine.device_memory(24)
    machine.write(memory, np.arange(6, dtype=np.float32).tobytes())
    view = cd.view(Cai(interface(shape=(24,), typestr="|u1", data=(memory, False))), dtype=np.float32, shape=(2, 3))
    assert (view.shape, view.dtype.name, view.ptr, view.byte_strides) == ((2, 3), "float32", memory, (12, 4))
    assert np.from_dlpack(view, device="cpu").tolist() == [[0, 1, 2], [3, 4, 5]]
    taken = StridedMemoryView.from_dlpack(cd.view(view, dtype="float32", shape=(3, 2)), stream_ptr=1)
    assert taken.shape == (3, 2)
    again = cd.from_dlpack(view, shape=(6,))
    assert (again.shape, again.dtype.name) == ((6,), "float32")
    assert cd.view(Cai(interface(shape=(0,), typestr="|u1")), device_id=0, dtype="float64", shape=(0, 5)).shape == (
        0,
        5,
    )


@pytest.mark.parametrize(
    ("changes", "options", "rule"),
    [
        ({"shape": (24,)}, {"dtype": "float32", "shape": (7,)}, "shape-override"),
        ({"shape": (24,)}, {"shape": (5, 5)}, "shape-override"),
        ({"shape": (12,), "strides": (2,)}, {"shape": (3, 4)}, "shape-override"),
        ({"shape": (24,), "data": (4097, False)}, {"dtype": "float32", "shape": (6,)}, "data-alignment"),
        ({"shape": (6,), "typestr": "<f4"}, {"dtype": "float64", "shape": (3,)}, "dtype-override"),
        ({"shape": (24,)}, {"dtype": "float4_e2m1fn", "shape": (49,)}, "shape-override"),
        ({"shape": (6,), "typestr": "<f4"}, {"dtype": "float4_e2m1fn", "shape": (48,)}, "dtype-override"),
    ],
    ids=["too-many", "too-many-bytes", "not-contiguous", "misaligned", "not-bytes", "packed", "packed-not-bytes"],
)
def test_shapes_that_do_not_fit(changes: dict[str, Any], options: dict[str, Any], rule: str) -> None:
    source = Cai(interface(**{"typestr": "|u1", **changes}))
    found = refuse(lambda: cd.view(source, device_id=0, **options), BufferError)
    assert found.rule == rule, found.message


def test_shape_is_a_tuple_or_list_of_ints() -> None:
    wrong: Any
    for wrong in ({6}, 6, (2.0, 3), ("2", 3)):
        assert refuse(lambda each=wrong: cd.view(cai(), device_id=0, shape=each), TypeError).rule == "argument-type"  # type: ignore[misc]
    assert refuse(lambda: cd.view(cai(), device_id=0, shape=(-2, -3)), ValueError).rule == "shape-extent"
