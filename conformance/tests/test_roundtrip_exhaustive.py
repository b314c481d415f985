"""Every small array, all the way round: CAI dict, view, DLPack struct, view, CAI dict, against the oracle.

One plain loop; the first difference is printed with the whole case. The number of cases is asserted,
so that the loop cannot run empty.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import FAKE_POINTER, Cai
from conformance.tests.expectations import oracle

pytestmark = pytest.mark.long

Case = tuple[tuple[int, ...], tuple[int, ...] | None, str, bool]

EXTENTS = {0: (0,), 1: (0, 1, 2, 3), 2: (0, 1, 2, 3), 3: (0, 1, 2, 3), 4: (0, 1, 2, 3)}
# In items; `None` among them stands for the step of C order.
STEPS: dict[int, tuple[int | None, ...]] = {
    0: (),
    1: (None, -2, -1, 0, 1, 2, 3),
    2: (None, -2, -1, 0, 1, 2, 3),
    3: (None, -2, -1, 0, 1, 2, 3),
    4: (None, -1, 0, 1, 2),
}


def cases(ndim: int) -> Iterator[Case]:
    """All shapes x all strides; all dtypes up to 3 axes, and each in turn above."""
    typestrs = itertools.cycle(oracle.DTYPES)
    read_only = itertools.cycle((False, False, True))
    for shape in itertools.product(EXTENTS[ndim], repeat=ndim):
        for steps in [None, *itertools.product(STEPS[ndim], repeat=ndim)]:
            for typestr in oracle.DTYPES if ndim <= 3 else (next(typestrs),):
                yield shape, strides_of(shape, steps, itemsize(typestr)), typestr, next(read_only)
    # Byte strides that are no multiple of the item size: refused by DLPack, or meaningless.
    for shape in itertools.product((0, 1, 2), repeat=ndim):
        for axis in range(ndim):
            for typestr in oracle.DTYPES:
                size = itemsize(typestr)
                strides = list(oracle.row_major(shape, size))
                for odd in (1, size - 1, size + 1, -size - 1, 3):
                    strides[axis] = odd
                    yield shape, tuple(strides), typestr, next(read_only)


def itemsize(typestr: str) -> int:
    return int(typestr[2:])


def strides_of(shape: Sequence[int], steps: Sequence[int | None] | None, size: int) -> tuple[int, ...] | None:
    if steps is None:
        return None
    compact = oracle.row_major(shape, size)
    return tuple(whole if step is None else step * size for step, whole in zip(steps, compact, strict=True))


def difference(case: Case) -> str | None:
    """Returns the first difference between the code under test and the oracle, or None."""
    shape, strides, typestr, read_only = case
    name, code, bits = oracle.DTYPES[typestr]
    size = bits // 8
    want = oracle.expect(shape, strides, size)
    shown: dict[str, Any] = {
        "shape": shape,
        "strides": strides,
        "typestr": typestr,
        "data": (FAKE_POINTER, read_only),
        "version": 3,
    }
    view = cd.view(Cai(shown), device_id=0)
    try:
        capsule = view.__dlpack__(stream=-1, max_version=(1, 3))
    except BufferError as error:
        found = getattr(error, "rule", None)
        if found != want.refused:
            return f"refused by {found}: {error}"
        # What DLPack cannot say leaves by the interface as it came.
        left = without_stream(view.__cuda_array_interface__)
        return None if left == shown else f"cai: {left}, expected {shown}"
    if want.refused is not None:
        return f"accepted; expected {want.refused}"

    if view.byte_strides is None:
        return "byte_strides is None"
    if view.elem_strides is None:
        return "elem_strides is None"
    tensor = abi.read(capsule)
    back = cd.from_dlpack(capsule, stream=1)
    ptr = FAKE_POINTER if want.size else 0
    cai = {
        "shape": shape,
        "typestr": typestr,
        "data": (ptr, read_only),
        "strides": None if want.c_contiguous else cai_strides(shape, view.byte_strides, want, size),
        "version": 3,
    }
    for told, said, expected in (
        ("view.ndim", view.ndim, len(shape)),
        ("view.shape", view.shape, shape),
        ("view.dtype", str(view.dtype), name),
        ("view.itemsize", view.itemsize, size),
        ("view.nbytes", view.nbytes, want.size * size),
        ("view.ptr", view.ptr, ptr),
        ("view.device", view.device, (2, 0)),
        ("view.read_only", view.read_only, read_only),
        ("view.stream", view.stream, None),
        ("view.byte_strides", pick(view.byte_strides, want), pick(want.byte_strides, want)),
        ("view.elem_strides", pick(view.elem_strides, want), pick(want.elem_strides, want)),
        ("len(view.byte_strides)", len(view.byte_strides), len(shape)),
        ("len(view.elem_strides)", len(view.elem_strides), len(shape)),
        ("version", tensor.version, (1, 3)),
        ("flags", tensor.flags, abi.READ_ONLY if read_only else 0),
        ("data", tensor.data, ptr),
        ("device", tensor.device, (2, 0)),
        ("ndim", tensor.ndim, len(shape)),
        ("dtype", tensor.dtype, (code, bits, 1)),
        ("byte_offset", tensor.byte_offset, 0),
        ("shape", tensor.shape or (), shape),
        ("strides are there", tensor.strides is not None or not shape, True),
        ("strides", pick(tensor.strides or (), want), pick(want.elem_strides, want)),
        ("strides as they came", *as_they_came(tensor.strides or (), strides, size)),
        ("back.elem_strides", back.elem_strides, tensor.strides or ()),
        ("cai", without_stream(view.__cuda_array_interface__), cai),
        ("cai stream", view.__cuda_array_interface__["stream"], None),
        ("back.cai", without_stream(back.__cuda_array_interface__), cai),
        ("back.cai stream", back.__cuda_array_interface__["stream"], 1),
        ("back.to_cai", back.to_cai(), back.__cuda_array_interface__),
    ):
        if said != expected or type(said) is not type(expected):
            return f"{told}: {said!r}, expected {expected!r}"
    return None


def pick(strides: Sequence[int], want: oracle.Expected) -> tuple[int, ...]:
    """Returns the strides of the axes whose stride has a meaning."""
    return tuple(strides[axis] for axis in want.told)


def as_they_came(
    said: Sequence[int], given: Sequence[int] | None, size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the strides that are numbers of elements, those that mean nothing included: said, and given."""
    whole = [axis for axis, step in enumerate(given or ()) if step % size == 0]
    return tuple(said[axis] for axis in whole), tuple((given or ())[axis] // size for axis in whole)


def cai_strides(shape: Sequence[int], said: Sequence[int], want: oracle.Expected, size: int) -> tuple[int, ...]:
    """The strides that the dict must show: those of Fortran order if the array is in it, else the view's own."""
    fortran = tuple(reversed(oracle.row_major(tuple(reversed(shape)), size)))
    in_order = all(want.byte_strides[axis] == fortran[axis] for axis in want.told)
    return fortran if in_order else tuple(said)


def without_stream(shown: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in shown.items() if key != "stream"}


COUNTS = {0: 28, 1: 658, 2: 12460, 3: 313894, 4: 182936}


@pytest.mark.parametrize("ndim", range(5))
def test_every_small_array(ndim: int) -> None:
    count = 0
    for case in cases(ndim):
        problem = difference(case)
        if problem is not None:
            pytest.fail(f"shape, strides, typestr, read_only = {case}: {problem}")
        count += 1
    assert count == COUNTS[ndim]


@pytest.mark.parametrize("ndim", range(4))
def test_the_oracle_agrees_with_numpy(ndim: int) -> None:
    """NumPy's own strides and contiguity, wherever it has an opinion."""
    count = 0
    memory = np.zeros(1 << 12, np.uint8)
    for shape, strides, typestr, _ in cases(ndim):
        array = np.ndarray(shape, typestr, memory, 1 << 11, strides if strides is not None else None)
        want = oracle.expect(shape, strides, array.itemsize)
        assert array.size == want.size
        assert want.c_contiguous == array.flags.c_contiguous, (shape, strides, typestr)
        if strides is None:
            assert pick(array.strides, want) == pick(want.byte_strides, want)
        count += 1
    assert count == COUNTS[ndim]


def test_the_comparison_can_fail() -> None:
    """The oracle, lied to: a check that cannot fail proves nothing."""
    honest = oracle.DTYPES["|u1"]
    oracle.DTYPES["|u1"] = ("uint8", 0, 8)
    try:
        assert difference(((2, 3), None, "|u1", False)) is not None
    finally:
        oracle.DTYPES["|u1"] = honest
    assert difference(((2, 3), None, "|u1", False)) is None
