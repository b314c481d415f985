"""NumPy's records through a view: with their own fields, or refused; never with other ones.

The generator draws dtypes with padding, titles, nesting, arrays, fields that overlap or lie out of order, fields of
ml_dtypes and of objects. NumPy itself is the oracle of what arrives.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import cai_dlpack as cd
import ml_dtypes
import numba.cuda
import numpy as np
import pytest

from conformance.tests.expectations.refusal import refuse
from conformance.tests.simulated.machine import Machine

PLAIN = ["u1", "<i2", "<f4", "<f8", ">f4", "<M8[ns]", "S3", "<U2", "V5", "<c8", "?"]
OTHER = [ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e5m2]


def drawn(choose: random.Random, depth: int = 0) -> np.dtype[Any]:
    """A dtype of records."""
    count = choose.randint(1, 4)
    names = choose.sample(["x", "y", "f0", "f1", "\N{SNOWMAN}", "a b"], count)
    formats: list[Any] = []
    for _ in names:
        kind: Any = choose.choice(PLAIN)
        if choose.random() < 0.1:
            kind = choose.choice([*OTHER, object])
        elif depth < 2 and choose.random() < 0.2:
            kind = drawn(choose, depth + 1)
        formats.append((kind, (2, 3)) if choose.random() < 0.15 and kind is not object else kind)
    form = choose.choice(["packed", "aligned", "offsets", "offsets"])
    if form == "packed":
        return np.dtype(list(zip(names, formats, strict=True)))
    if form == "aligned":
        return np.dtype(list(zip(names, formats, strict=True)), align=True)
    offsets, end = [], 0
    for kind in formats:
        start = end + choose.choice([0, 0, 3, 8])
        if end and choose.random() < 0.15:
            start = choose.randrange(end)  # overlaps
        offsets.append(start)
        end = max(end, start + np.dtype(kind).itemsize)
    if choose.random() < 0.15:
        offsets.reverse()
        end = max(start + np.dtype(kind).itemsize for start, kind in zip(offsets, formats, strict=True))
    whole = {"names": names, "formats": formats, "offsets": offsets, "itemsize": end + choose.choice([0, 0, 5])}
    try:
        return np.dtype(whole)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):  # objects that overlap, or are not aligned
        return drawn(choose, depth)


def is_said(dtype: np.dtype[Any]) -> bool:
    """Whether fields follow each other, of types of NumPy's own: the rule, by NumPy's words."""
    if dtype.subdtype:
        return is_said(dtype.subdtype[0])
    if dtype.fields is None:
        return dtype.isbuiltin != 2
    end = 0
    for name in dtype.names or ():
        kind, offset = dtype.fields[name][:2]
        if offset < end or not is_said(kind):
            return False
        end = offset + kind.itemsize
    return True


SEEDS = range(400)
DOORS: list[Callable[[Any], object]] = [cd.view, cd.from_dlpack, cd.to_dlpack, cd.split_masked]


def test_the_generator_draws_both() -> None:
    dtypes = [drawn(random.Random(seed)) for seed in SEEDS]
    said = [dtype for dtype in dtypes if is_said(dtype) and not dtype.hasobject]
    assert 100 < len(said) < 350
    assert sum(dtype.hasobject for dtype in dtypes) > 5
    assert any(np.dtype(dtype.descr) != dtype for dtype in said), "no padding"


@pytest.mark.parametrize("seed", SEEDS)
def test_records_arrive_with_their_own_fields_or_not_at_all(seed: int) -> None:
    choose = random.Random(seed)
    dtype = drawn(choose)
    memory = np.frombuffer(bytearray(choose.randbytes(dtype.itemsize * 6)), np.uint8)
    if dtype.hasobject:
        assert refuse(lambda: cd.view(np.zeros(6, dtype)), BufferError).rule == "typestr-object"
        return
    array = memory.view(dtype)[:: choose.choice([1, 2])]
    if not is_said(dtype):
        for door in DOORS:
            assert refuse(partial(door, array), BufferError).rule == "descr-unsaid", dtype
        return
    view = cd.view(array)
    assert view.fields == dtype.names
    back = np.asarray(view)
    assert back.dtype == np.dtype(view.dtype) == dtype
    assert (back.ctypes.data, back.strides, back.shape) == (array.ctypes.data, array.strides, array.shape)
    assert np.asarray(cd.view(back)).dtype == dtype


OVERLAPPING = np.dtype({"names": ["x", "y"], "formats": ["<f4", "<i4"], "offsets": [0, 0]})


def test_a_device_array_is_refused_likewise(machine: Machine) -> None:
    """Numba asks its dtype for no `descr`; the bridge does, and NumPy's raises ValueError."""
    array = numba.cuda.device_array(4, OVERLAPPING)
    for door in (cd.view, cd.from_cai, cd.to_dlpack, cd.split_masked):
        found = refuse(partial(door, array), BufferError)
        assert found.rule == "descr-unsaid", found.message


def test_one_field_is_the_remedy() -> None:
    array = np.zeros(3, OVERLAPPING)
    assert "cd.view(obj['x'])" in refuse(lambda: cd.view(array), BufferError).message
    assert np.shares_memory(np.asarray(cd.view(array["x"])), array)
    mixed = np.ones(3, [("w", ml_dtypes.bfloat16), ("n", "u2")])
    assert cd.view(mixed["w"]).dtype == ml_dtypes.bfloat16
