"""The fields of a tensor: where the elements are, and of what type."""

from __future__ import annotations

import ctypes
import operator

import numpy as np

from cai_conformance import abi
from cai_conformance.checks.dlpack_producer.base import (
    DEVIATION,
    RECOMMENDATION,
    Tensors,
    check,
    filled,
    is_matrix,
    overriding,
    put,
)
from cai_conformance.judge import sources as say
from cai_conformance.judge.check import NotRun, broken, demand
from cai_conformance.judge.memory import Array, compact, same
from cai_conformance.judge.samples import DTYPES, FULL, LAYOUTS, SHAPES
from cai_conformance.reference.producers import CODES, DlpackArray

#: The beginning of a program's end that shows elements.
VALUES = "from cai_conformance.judge.exported import Export\n"


@check(
    "device-mismatch",
    "the tensor is on the device that `__dlpack_device__` names",
    say.DL_DEVICE,
    after=("device-id", "device-unknown", "capsule-name-known"),
    samples=SHAPES,
    severity=DEVIATION,
    mutant=filled(lambda tensor, array: put(tensor, device=abi.DLDevice(abi.CUDA_HOST, 0)), lambda a: a.shape == (5,)),
)
def _(t: Tensors) -> None:
    found = t.any().read.device
    demand(found == tuple(map(operator.index, t.device)), f"the tensor says {found}, __dlpack_device__ {t.device}")


@check(
    "ndim",
    "the number of dimensions is the array's",
    say.DL_NDIM,
    after=("capsule-name-known",),
    samples=SHAPES,
    mutant=filled(lambda tensor, array: put(tensor, ndim=0), lambda a: a.shape == (5,)),
)
def _(t: Tensors) -> None:
    found = t.any().read.ndim
    demand(found == t.expected.ndim, f"ndim={found}, made of {t.expected.ndim} axes")


@check(
    "shape-null",
    "the shape of an array with axes is not NULL",
    say.DL_SHAPE,
    after=("ndim",),
    samples=SHAPES,
    mutant=filled(lambda tensor, array: put(tensor, shape=None), is_matrix),
)
def _(t: Tensors) -> None:
    found = t.any().read
    demand(found.ndim == 0 or found.shape is not None, "shape=NULL")


@check(
    "shape-value",
    "the shape is the array's",
    say.DL_SHAPE,
    after=("shape-null",),
    samples=(*SHAPES, *LAYOUTS),
    mutant=filled(lambda tensor, array: poke(tensor.shape, 4), lambda a: a.shape == (1, 3)),
)
def _(t: Tensors) -> None:
    found = t.any().read.shape or ()
    demand(found == t.expected.shape, f"shape={found}, made of {t.expected.shape}")


@check(
    "shape-huge",
    "an extent that 32 bits do not hold is the array's",
    say.DL_SHAPE,
    after=("shape-value",),
    samples=("huge",),
    mutant=filled(lambda tensor, array: poke(tensor.shape, 2**33 & 0x7FFF_FFFF), lambda a: a.shape == (2**33,)),
)
def _(t: Tensors) -> None:
    found = t.any().read
    demand(found.shape == t.expected.shape, f"shape={found.shape}, made of {t.expected.shape}")
    if found.data + found.byte_offset == t.produced.given.ctypes.data:
        demand(found.strides == (0,), f"strides={found.strides}, made of {t.expected.strides}")


def poke(address: int, value: int) -> None:
    ctypes.c_int64.from_address(address).value = value


@check(
    "strides-null",
    "from version 1.2 on the strides of an array with axes are not NULL",
    say.DL_STRIDES_SET,
    after=("ndim", "dlpack-minor"),
    samples=SHAPES,
    mutant=filled(lambda tensor, array: put(tensor, strides=None), lambda a: a.ndim == 3),
)
def _(t: Tensors) -> None:
    found = t.versioned().read
    if (found.version or (0, 0)) < (1, 2):
        raise NotRun(f"the tensor is of version {found.version}")
    demand(found.ndim == 0 or found.strides is not None, "strides=NULL")


@check(
    "strides-null-compact",
    "strides are NULL for arrays in C order only",
    say.PY_STRIDES_NULL,
    after=("ndim", "shape-value"),
    samples=LAYOUTS,
    mutant=filled(lambda tensor, array: put(tensor, strides=None), lambda a: a.strides == (4, 8)),
)
def _(t: Tensors) -> None:
    found = t.any()
    if found.read.strides is None:
        demand(same(found.values(), t.expected), "strides=NULL, and the elements lie otherwise")


@check(
    "strides-elements",
    "strides count elements, and not bytes",
    say.DL_STRIDES,
    after=("shape-value", "strides-null"),
    samples=FULL,
    mutant=filled(lambda tensor, array: poke(tensor.strides, array.strides[0]), lambda a: a.shape == (5,)),
)
def _(t: Tensors) -> None:
    found = t.any().read
    if found.strides is None or 0 in t.expected.shape:
        return
    for extent, stride in zip(found.shape or (), found.strides, strict=True):
        if extent > 1 and abs(stride) >= t.expected.itemsize > 1:
            in_bytes = tuple(s * t.expected.itemsize for s in compact(found.shape or (), 1))
            demand(found.strides != in_bytes, f"strides={found.strides}, which are those of C order in bytes")


@check(
    "dtype-code",
    "the type code is one of DLPack's",
    say.DL_DTYPE_CODE,
    after=("capsule-name-known",),
    samples=DTYPES,
    mutant=filled(lambda tensor, array: put(tensor.dtype, code=77), lambda a: a.dtype == np.uint16),
)
def _(t: Tensors) -> None:
    found = t.any().read.dtype
    demand(found[0] <= abi.LARGEST_CODE, f"(code, bits, lanes)={found}")


@check(
    "dtype-lanes",
    "types that are no vectors have one lane",
    say.DL_DTYPE_LANES,
    after=("dtype-code",),
    samples=DTYPES,
    mutant=filled(
        lambda tensor, array: put(tensor.dtype, bits=8, lanes=2),
        lambda a: a.dtype == np.float16,
    ),
)
def _(t: Tensors) -> None:
    found = t.any().read.dtype
    demand(found[2] == 1, f"(code, bits, lanes)={found}")


@check(
    "dtype-kind",
    "the type code is that of the array's items",
    say.DL_DTYPE_CODE,
    after=("dtype-lanes",),
    samples=tuple(name for name in DTYPES if name != "bool"),
    mutant=filled(lambda tensor, array: put(tensor.dtype, code=abi.INT), lambda a: a.dtype == np.uint32),
)
def _(t: Tensors) -> None:
    found = t.any().read.dtype
    demand(found[0] == CODES[t.expected.dtype.kind], f"(code, bits, lanes)={found}, made of {t.expected.dtype}")


@check(
    "dtype-bool",
    "bool has code 6 and 8 bits",
    say.DL_DTYPE_BOOL,
    after=("dtype-lanes",),
    samples=("bool",),
    severity=DEVIATION,
    mutant=filled(lambda tensor, array: put(tensor.dtype, code=abi.UINT), lambda a: a.dtype == np.bool_),
)
def _(t: Tensors) -> None:
    found = t.any().read.dtype
    demand(found == (abi.BOOL, 8, 1), f"(code, bits, lanes)={found}")


@check(
    "dtype-bits",
    "the bits are those of the array's items, of complex ones both halves",
    say.DL_DTYPE_COMPLEX,
    after=("dtype-lanes",),
    samples=DTYPES,
    mutant=filled(lambda tensor, array: put(tensor.dtype, bits=32), lambda a: a.dtype == np.complex64),
)
def _(t: Tensors) -> None:
    found = t.any().read.dtype
    demand(found[1] * found[2] == t.expected.itemsize * 8, f"(code, bits, lanes)={found}, made of {t.expected.dtype}")


@check(
    "data-pointer-null",
    "the pointer of an array with elements is not NULL",
    say.DL_OFFSET,
    after=("shape-value",),
    samples=FULL,
    mutant=filled(
        lambda tensor, array: put(tensor, byte_offset=tensor.data, data=None),
        lambda a: a.ndim == 3,
    ),
)
def _(t: Tensors) -> None:
    demand(t.any().read.data, "data=NULL")


@check(
    "data-zero-size",
    "the pointer of an array without elements is NULL",
    say.DL_ZERO_SIZE,
    after=("shape-value",),
    samples=("empty",),
    severity=RECOMMENDATION,
    mutant=filled(lambda tensor, array: put(tensor, data=array.ctypes.data), lambda a: a.size == 0),
)
def _(t: Tensors) -> None:
    found = t.any().read.data
    demand(not found, f"data={found:#x}")


@check(
    "byte-offset",
    "`byte_offset` is 0, as some consumers forget to add it",
    say.DL_OFFSET,
    after=("data-pointer-null",),
    samples=FULL,
    severity=RECOMMENDATION,
    mutant=filled(lambda tensor, array: put(tensor, byte_offset=4, data=tensor.data - 4), is_matrix),
)
def _(t: Tensors) -> None:
    found = t.any().read.byte_offset
    demand(found == 0, f"byte_offset={found}")


@check(
    "data-alignment",
    "the elements are aligned to their size",
    say.DL_ALIGNED,
    after=("data-pointer-null", "dtype-bits"),
    samples=DTYPES,
    severity=RECOMMENDATION,
    mutant=overriding(
        __init__=lambda self, array: DlpackArray.__init__(self, odd(array) if array.ndim == 3 else array)
    ),
    shows="print(abi.read(array.__dlpack__()).data % array.itemsize)",
)
def _(t: Tensors) -> None:
    found = t.any().address
    demand(found % t.expected.dtype.alignment == 0, f"data={found:#x} with items of {t.expected.dtype.alignment} bytes")


def odd(array: Array) -> Array:
    """A copy of an array at an odd address."""
    memory = np.empty(array.nbytes + 2, np.uint8)
    at = 1 - memory.ctypes.data % 2
    found: Array = np.ndarray(array.shape, array.dtype, buffer=memory[at:].data)
    found[...] = array
    return found


@check(
    "values",
    "the elements are where pointer, offset, shape, strides and type say",
    say.DL_STRIDES,
    after=(
        "data-pointer-null",
        "strides-elements",
        "strides-null-compact",
        "dtype-bits",
        "dtype-kind",
        "dtype-bool",
        "dtype-lanes",
        "device-mismatch",
    ),
    samples=tuple(dict.fromkeys((*FULL, *DTYPES))),
    mutant=filled(lambda tensor, array: poke(tensor.strides, 0), lambda a: a.strides == (4, 8)),
    shows=VALUES + "print(Export(array.__dlpack__()).values())",
)
def _(t: Tensors) -> None:
    found = t.any().values()
    demand(same(found, t.expected), f"{found.tolist()} instead of {t.expected.tolist()}")


@check(
    "values-legacy",
    "the older tensor shows the same elements",
    say.AA_KEEP,
    after=("values",),
    samples=FULL,
    mutant=overriding(
        managed=lambda self, versioned, copied=False: DlpackArray.managed(
            self if versioned else DlpackArray(np.zeros_like(self.array)), versioned, copied=copied
        )
    ),
    shows=VALUES
    + "print(Export(array.__dlpack__()).values())\nprint(Export(array.__dlpack__(max_version=(1, 3))).values())",
)
def _(t: Tensors) -> None:
    found = t.older().values()
    demand(same(found, t.expected), f"{found.tolist()} instead of {t.expected.tolist()}")


@check(
    "view",
    "two tensors of one array share its memory",
    say.PY_VIEW,
    after=("values",),
    samples=FULL,
    severity=RECOMMENDATION,
    mutant=overriding(
        managed=lambda self, versioned, copied=False: DlpackArray.managed(
            DlpackArray(self.array.copy(order="K")), versioned, copied=True
        )
    ),
)
def _(t: Tensors) -> None:
    first, second = t.any(), t.any()
    demand(first.address == second.address, f"one at {first.address:#x}, the other at {second.address:#x}")


@check(
    "byte-order",
    "items of the other byte order are refused with BufferError",
    say.DL_NATIVE,
    after=("capsule-name-known",),
    samples=("big-endian",),
    mutant=overriding(
        managed=lambda self, versioned, copied=False: DlpackArray.managed(
            DlpackArray(self.array.view(self.array.dtype.newbyteorder("="))), versioned, copied=copied
        )
    ),
)
def _(t: Tensors) -> None:
    try:
        found = t.any()
    except (BufferError, NotRun):
        return
    except Exception as error:
        broken(f"raised {type(error).__name__} instead: {error}", RECOMMENDATION)
    try:
        right = same(found.values(), t.expected.astype(t.expected.dtype.newbyteorder("=")))
    except NotRun:
        right = False
    demand(right, "it was exported, with its bytes in the wrong order")
