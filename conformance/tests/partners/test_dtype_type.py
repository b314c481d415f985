"""`v.dtype`: NumPy takes it for a dtype, and it equals every spelling; the same spellings name a type for `dtype=`."""

from __future__ import annotations

import copy
import pickle
import random
import subprocess
import sys
from typing import Any

import cai_dlpack as cd
import ml_dtypes
import numba.cuda
import numpy as np
import pytest
import tvm_ffi
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, Dlpack, cai, interface
from conformance.tests.expectations import oracle
from conformance.tests.expectations.refusal import check_refusal, refuse

#: Every row of the protocol's table: name -> (code, bits).
TABLE = {name: (code, bits) for name, code, bits in oracle.DTYPES.values()} | oracle.WITHOUT_TYPESTR
#: Python's classes, and what NumPy makes of them.
BUILTIN = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}


def numpy_of(name: str) -> Any:
    """NumPy's dtype of the name, by NumPy and ml_dtypes themselves."""
    return np.dtype(getattr(ml_dtypes, name) if name in oracle.WITHOUT_TYPESTR else name)


class Textual:
    """A dtype object without a name, as torch's are."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


class Named:
    """A dtype object with a name, as TensorFlow's are."""

    def __init__(self, name: str) -> None:
        self.name = name


def spellings(name: str) -> list[Any]:
    """Every spelling of a type in the libraries that there are here; torch's, TensorFlow's and Warp's by doubles."""
    kind = numpy_of(name)
    found: list[Any] = [name, kind, kind.type, cd.DType(name)]
    found += [Textual(f"torch.{name}"), Textual(f"mlx.core.{name}"), Named(name), type(name, (), {})]
    found += [builtin for builtin, of in BUILTIN.items() if of == name]
    if name not in oracle.WITHOUT_TYPESTR:
        found += [kind.str, kind.str[1:], kind.newbyteorder("=")]
        # Not `l`: NumPy, torch and C disagree about long.
        found += {kind.char} - {*"lL"}
    if hasattr(numba, name):
        found.append(getattr(numba, name))
    if TABLE[name][1] >= 8 and "complex" not in name:
        found.append(tvm_ffi.dtype(name))
    return found


def exported(name: str) -> cd.CaiView:
    """A view of host memory, which has come by DLPack."""
    code, bits = TABLE[name]
    return cd.view(Dlpack(abi.make((8,), device=(1, 0), dtype=(code, bits, 1))))


@pytest.mark.parametrize("name", TABLE)
def test_numpy_takes_it_for_a_dtype(name: str) -> None:
    view = exported(name)
    assert np.dtype(view.dtype) == numpy_of(name)
    assert np.empty(3, view.dtype).dtype == numpy_of(name)
    assert np.zeros(3, numpy_of(name)).astype(view.dtype).dtype == numpy_of(name)
    assert np.can_cast(view.dtype, view.dtype, "no")
    assert view.dtype.dtype == view.dtype.__numpy_dtype__ == view.__numpy_dtype__ == numpy_of(name)


@pytest.mark.skipif(
    tuple(map(int, np.__version__.split(".")[:2])) < (2, 4),
    reason="not run: NumPy asks for __numpy_dtype__ from 2.4 on",
)
@pytest.mark.parametrize("name", TABLE)
def test_numpy_knows_the_views_dtype(name: str) -> None:
    view = exported(name)
    assert np.result_type(view) == np.dtype(view) == numpy_of(name)
    if name in ("float32", "int8"):
        assert np.result_type(view, np.float64) == np.float64


@pytest.mark.parametrize("name", TABLE)
def test_it_equals_every_spelling(name: str) -> None:
    dtype = exported(name).dtype
    others = [other for other in TABLE if other != name]
    for spelling in spellings(name):
        assert dtype == spelling, spelling
        # Numba's types answer False by themselves, and are asked first.
        assert spelling == dtype or isinstance(spelling, numba.types.Type), spelling
        assert (dtype != spelling) is False, spelling
        assert cd.DType(spelling) == dtype, spelling
        for other in others:
            assert exported(other).dtype != spelling, (other, spelling)
    assert str(dtype) == f"{dtype}" == dtype.name == name
    assert f"{dtype:>20}" == f"{name:>20}"
    assert repr(dtype) == f"DType('{name}')"
    by_name: dict[Any, int] = {name: 1}
    by_dtype: dict[Any, int] = {dtype: 1}
    assert by_name[dtype] == by_dtype[name] == 1
    assert dtype.itemsize == (TABLE[name][1] // 8 or None)


@pytest.mark.parametrize("name", TABLE)
def test_every_spelling_names_the_type_for_dtype(name: str) -> None:
    """Read back from the exported tensor: what went in by any spelling comes out as the protocol's numbers."""
    code, bits = TABLE[name]
    for spelling in spellings(name):
        if bits < 8:
            view = cd.view(cai(typestr="|u1", shape=(bits,)), device_id=0, dtype=spelling, shape=(8,))
        else:
            view = cd.view(Cai(interface(typestr=f"|V{bits // 8}", shape=(8,))), device_id=0, dtype=spelling)
        tensor = abi.read(view.__dlpack__(max_version=(1, 3)))
        assert (tensor.dtype, tensor.shape) == ((code, bits, 1), (8,)), spelling


@pytest.mark.parametrize("wrong", [None, 3, b"f4", object(), "int", "", "nonsense", np.dtype("M8[s]"), [], str])
def test_what_it_is_not_equal_to(wrong: object) -> None:
    dtype = cd.DType("float64")
    assert dtype != wrong
    assert wrong != dtype
    assert (dtype == wrong) is False


def test_the_other_byte_order_is_another_type() -> None:
    """NumPy names `>f4` "float32", which is no reason to take its bytes for native ones."""
    swapped = np.dtype("f4").newbyteorder()
    assert cd.DType("float32") != swapped
    assert swapped != cd.DType("float32")
    found = refuse(lambda: cd.view(cai(typestr="|V4"), device_id=0, dtype=swapped), ValueError)
    check_refusal(found, "dtype-argument", "dtype", hint="the other byte order")
    one_byte = np.dtype("i1").newbyteorder()
    assert cd.DType(one_byte) == "int8"


def test_short_vectors_have_a_name_and_a_subarray() -> None:
    view = cd.view(Dlpack(abi.make((2,), device=(1, 0), dtype=(2, 32, 4))))
    assert view.dtype == "float32x4" == cd.DType("float32x4")
    assert (view.dtype.itemsize, np.dtype(view.dtype)) == (16, np.dtype(("f4", (4,))))
    again = cd.view(cai(typestr="|V16", shape=(2,)), device_id=0, dtype=view.dtype)
    assert abi.read(again.__dlpack__(max_version=(1, 3))).dtype == (2, 32, 4)


def test_two_elements_in_a_byte_as_torch_names_them() -> None:
    """`torch.float4_e2m1fn_x2`; NumPy stores no two elements in a byte."""
    torch_has: Any = Textual("torch.float4_e2m1fn_x2")
    view = cd.view(cai(typestr="|u1", shape=(2,)), device_id=0, dtype=torch_has)
    assert view.dtype == "float4_e2m1fnx2"
    assert view.dtype == torch_has
    assert abi.read(view.__dlpack__(max_version=(1, 3))).dtype == (17, 4, 2)
    check_refusal(refuse(lambda: np.dtype(view.dtype), TypeError), "numpy-dtype", "dtype", hint="in one byte")


def test_a_struct_has_the_dtype_of_its_fields() -> None:
    padded = np.dtype({"names": ["a", "b"], "formats": ["<f4", ("<i2", (2, 3))], "offsets": [4, 8], "itemsize": 24})
    nested = np.dtype([("p", padded), ("s", "S3"), ("x", ">f8"), ("u", "<U2")])
    for kind in (padded, nested):
        view = cd.view(Cai(interface(typestr=kind.str, descr=kind.descr, shape=(2,))), device_id=0)
        assert np.dtype(view.dtype) == kind == view.dtype
        assert view.dtype != cd.DType("float64")
        assert view.dtype == f"void{8 * kind.itemsize}"
    dates = np.dtype([("t", "M8[25ns]"), (("a title", "d"), "<m8[D]")])
    view = cd.view(Cai(interface(typestr=dates.str, descr=dates.descr, shape=(2,))), device_id=0)
    assert np.dtype(view.dtype) == dates == view.dtype
    assert np.dtype(view.dtype).descr == dates.descr


@pytest.mark.parametrize("spelling", ["|V16", "<U5", "|S3", ">f4", ">M8[3D]", "<m8[ns]", "<f16", "<c32", ">u2"])
def test_what_dlpack_lacks_has_numpys_dtype(spelling: str) -> None:
    view = cd.view(Cai(interface(typestr=spelling, shape=(2,))), device_id=0)
    wanted = np.dtype(spelling)
    assert np.dtype(view.dtype) == wanted == view.dtype
    assert np.result_type(view) == np.result_type(wanted)
    assert (str(view.dtype), view.dtype.itemsize, view.itemsize) == (wanted.str, wanted.itemsize, wanted.itemsize)
    assert view.dtype == cd.view(view).dtype != cd.DType("float32")
    assert hash(view.dtype) == hash(wanted.str)
    bits = cd.view(Cai(interface(typestr="|t3", shape=(2,))), device_id=0)
    check_refusal(refuse(lambda: np.dtype(bits.dtype), TypeError), "numpy-dtype", "typestr", value="|t3")


LACKED = {"<c4": "complex32", "|f1": "float8_e5m2", "|t1": None, "<f10": None, "<f12": None, "<c20": None, "<c24": None}


@pytest.mark.parametrize("typestr", LACKED)
def test_what_numpy_lacks_is_refused_by_rule_and_each_remedy_leads_on(typestr: str) -> None:
    memory = numba.cuda.managed_array((64,), np.uint8)
    made = interface(shape=(2,), typestr=typestr, data=(memory.ctypes.data, False))
    view: Any = cd.view(made, owner=memory)
    for call in (
        lambda: np.asarray(view),
        lambda: np.array(view),
        lambda: view.__array__(),
        lambda: np.dtype(view.dtype),
        lambda: np.result_type(view),
        lambda: view.dtype.dtype,
    ):
        check_refusal(refuse(call, TypeError), "numpy-dtype", "typestr", value=f"'{typestr}'")
    with pytest.raises(AttributeError, match="numpy-dtype"):
        _ = view.__array_interface__
    assert view.to_cai()["typestr"] == typestr
    for call in (lambda: pickle.dumps(view), lambda: memoryview(view)):
        message = refuse(call, TypeError).message
        assert "numpy.asarray" not in message
    presented = LACKED[typestr]
    if presented is not None:
        assert f"dtype='{presented}'" in refuse(lambda: np.asarray(view), TypeError).message
        assert np.asarray(cd.view(made, owner=memory, dtype=presented)).dtype == np.dtype(getattr(ml_dtypes, presented))


def test_a_type_of_dlpack_that_lies_oddly_has_its_name() -> None:
    view = cd.view(Cai(interface(typestr="<f4", data=(4098, False))), device_id=0)
    assert view.dtype == "float32" == cd.DType("float32")
    assert pickle.loads(pickle.dumps(view.dtype)) == view.dtype


def items(choose: random.Random) -> tuple[Any, Any]:
    """A spelling of any type of NumPy's, or of nothing, and NumPy's dtype of it, if it has one."""
    spelling: Any = choose.choice([*NUMPYS, *NUMPYS, *NOTHING])
    if choose.random() < 0.3:
        spelling = [("x", choose.choice(NUMPYS)), (("a title", "y"), choose.choice(NUMPYS), (2,))][
            : choose.choice([1, 2])
        ]
    try:
        return spelling, None if spelling is None else np.dtype(spelling)
    except (TypeError, UnicodeEncodeError):
        return spelling, None


NUMPYS: list[Any] = [
    "f4",
    "<f8",
    ">f8",
    "float",
    "int_",
    "longlong",
    "S3",
    "U2",
    "V5",
    "M8[s]",
    "<m8[25ns]",
    "c16",
    "?",
    "i1",
]
NUMPYS += [
    np.float64,
    np.longdouble,
    np.clongdouble,
    np.dtype(">i2"),
    float,
    np.datetime64("2026-11-22", "s").dtype,
    "f4,i2",
]
NOTHING: list[Any] = [None, 3, "", "zz", "\ud800", object(), np.floating, (2, 32), "float32x4"]


def test_it_equals_what_numpy_takes_for_the_dtype() -> None:
    """The oracle is NumPy: two spellings mean one type, or they do not; NumPy alone reads None as float64."""
    choose, equal = random.Random(1), 0
    for _ in range(3000):
        spelling, kind = items(choose)
        if kind is None or kind.subdtype or kind.hasobject or not kind.itemsize:
            continue
        dtype = cd.view(np.zeros(2, kind)).dtype
        assert dtype == spelling, spelling
        assert kind == dtype, spelling
        other, of_other = items(choose)
        assert (dtype == other) is (of_other is not None and kind == of_other), (spelling, other)
        assert (dtype != other) is not (dtype == other)
        if of_other is not None and of_other.itemsize and not of_other.hasobject:
            assert (dtype == cd.view(np.zeros(2, of_other)).dtype) is (kind == of_other), (spelling, other)
        equal += dtype == other
    assert equal > 50


def test_it_is_copied_and_pickled() -> None:
    choose = random.Random(2)
    dtypes = [cd.DType(name) for name in (*TABLE, "float32x4")]
    kinds = [kind for _, kind in (items(choose) for _ in range(300)) if kind is not None and kind.itemsize]
    dtypes += [cd.view(np.zeros(2, kind)).dtype for kind in kinds]
    for dtype in dtypes:
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            again = pickle.loads(pickle.dumps(dtype, protocol))
            assert (again, str(again), hash(again)) == (dtype, str(dtype), hash(dtype))
            assert again.itemsize == dtype.itemsize
        assert copy.copy(dtype) is copy.deepcopy(dtype) is dtype
    for kind in kinds:
        assert np.dtype(pickle.loads(pickle.dumps(cd.view(np.zeros(2, kind)).dtype))) == kind


def test_a_typestr_is_compared_without_numpy() -> None:
    program = """if True:
        import pickle, sys, cai_dlpack as cd
        class Array:
            __cuda_array_interface__ = {"shape": (2,), "typestr": "|S3", "data": (4096, False), "version": 3}
        dtype = cd.view(Array(), device_id=0).dtype
        assert dtype == "S3" == dtype and dtype == "|S3" and dtype != "S4" and dtype != "float32" and dtype != ""
        assert pickle.loads(pickle.dumps(dtype)) == dtype
        assert "numpy" not in sys.modules
    """
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_numpy_is_imported_when_it_is_asked_for() -> None:
    program = """if True:
        import sys, cai_dlpack as cd
        class Array:
            __cuda_array_interface__ = {"shape": (2,), "typestr": "<u2", "data": (4096, False), "version": 3}
        dtype = cd.view(Array(), device_id=0, dtype="bfloat16").dtype
        assert dtype == "bfloat16" != float and hash(dtype) == hash("bfloat16") and str(dtype)
        assert "numpy" not in sys.modules and "ml_dtypes" not in sys.modules
        import numpy
        assert numpy.dtype(dtype).name == "bfloat16" and "ml_dtypes" in sys.modules
        sys.modules["ml_dtypes"] = None
        assert numpy.dtype(cd.DType("float32")) == "float32"
        try:
            dtype.dtype
        except TypeError as refused:
            assert refused.rule == "numpy-dtype" and "install ml_dtypes" in str(refused), refused
        else:
            sys.exit("accepted")
    """
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_exceptions_of_a_spelling_pass_through() -> None:
    class Odd:
        @property
        def name(self) -> str:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        cd.DType(Odd())
    with pytest.raises(RuntimeError, match="mine"):
        assert cd.DType("float32") == Odd()


def test_a_type_that_numpy_lacks_here_equals_none_of_numpys() -> None:
    lacked = {typestr for typestr in ("<f10", "<f12", "<f16") if not is_numpys(typestr)}
    assert lacked
    for typestr in lacked:
        dtype = cd.view(cai(typestr=typestr), device_id=0).dtype
        assert dtype == typestr and dtype == copy.copy(dtype)
        assert not any(dtype == np.dtype(other) for other in ("f4", "f8", np.longdouble))


def is_numpys(typestr: str) -> bool:
    try:
        return bool(np.dtype(typestr))
    except TypeError:
        return False


def test_a_record_equals_no_typestr() -> None:
    record = cd.view(cai(typestr="|V8", descr=[("x", "<f4"), ("y", "<i4")]), device_id=0).dtype
    assert not any(record == typestr for typestr in ("<f4", "|V8", "f8", "", "x"))
