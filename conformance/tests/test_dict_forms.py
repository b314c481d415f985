"""The form of a dict changes nothing: tuples or lists, ints of Python or of NumPy, a dict or another mapping.

One dict is drawn, valid or with a defect, and written in several forms that mean the same. The first is read by the
quick reader, others in full; what comes of them is the same view or the same rule.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import cai_dlpack as cd
import numpy as np

from conformance.tests.doubles.producers import FAKE_POINTER

TRIALS = 3_000
FORMS = 6

DEFECTS = (-1, 5, 2**63, 2**64, 2**70, "no", 1.5, None, (), (-1,), (1, 2**63), (1, 2, 3), (1.5, 2))
NUMPY_INTS = (np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64, np.longlong)


class SubInt(int):
    pass


class SubTuple(tuple[Any, ...]):
    pass


class SubList(list[Any]):
    pass


class SubDict(dict[str, Any]):
    pass


class Other(Mapping[str, Any]):
    """A mapping that is no dict."""

    def __init__(self, items: dict[str, Any]) -> None:
        self.items_ = items

    def __getitem__(self, key: str) -> Any:
        return self.items_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


def drawn(rng: random.Random) -> dict[str, Any]:
    """A dict whose values are tuples, ints, bools, strs and None, as the quick reader takes them."""
    ndim = rng.choice((0, 1, 1, 2, 2, 3, 8, 9, 33, 64, 65))
    typestr = rng.choice(("<f4", "|u1", "<i8", "<c16", "|b1", ">f4", "|V3", "f4"))
    size = int(typestr.lstrip("<>|")[1:])
    shape = tuple(rng.choice((0, 1, 1, 2, 3) if ndim < 10 else (1, 1, 1, 1, 2)) for _ in range(ndim))
    items: dict[str, Any] = {
        "shape": shape,
        "typestr": typestr,
        "data": (rng.choice((FAKE_POINTER, FAKE_POINTER, 0, 2**63 + 8)), rng.random() < 0.3),
        "version": rng.choice((0, 1, 2, 3, 3, 3, 4, 2**40)),
    }
    if rng.random() < 0.5:
        items["strides"] = tuple(size * rng.choice((-1, 0, 1, 2, 3)) for _ in range(ndim))
    if rng.random() < 0.5:
        items["stream"] = rng.choice((None, 0, 1, 2, 7, 2**40))
    for _ in range(rng.choice((0, 0, 1))):
        key = rng.choice(("shape", "strides", "data", "version", "stream"))
        items[key] = rng.choice(DEFECTS)
    return items


def number(rng: random.Random, value: int) -> Any:
    """The same int in another form."""
    kinds = [kind for kind in NUMPY_INTS if np.iinfo(kind).min <= value <= np.iinfo(kind).max]
    return rng.choice((int, SubInt, *kinds))(value)


def written(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return number(rng, value)
    if isinstance(value, tuple):
        return rng.choice((tuple, list, list, SubTuple, SubList))(written(rng, item) for item in value)
    return value


def form(rng: random.Random, items: dict[str, Any]) -> Any:
    """The same dict in another form: order, keys that are not interned, types of containers and numbers."""
    keys = rng.sample(sorted(items), len(items))
    own = rng.random() < 0.3
    made = {"".join(key) if own else key: written(rng, items[key]) for key in keys}
    return rng.choice((dict, dict, dict, SubDict, Other))(made)


def outcome(items: Any, strict: bool) -> tuple[object, ...]:
    """The view or the refusal, and what is warned of."""

    class Array:
        __cuda_array_interface__ = items

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            view = cd.view(Array(), device_id=0, strict=strict)
        except (TypeError, ValueError, BufferError) as error:
            refusal: Any = error
            return type(error), refusal.rule, refusal.field
    dict_ = view.__cuda_array_interface__
    told = [(warning.category, str(warning.message)) for warning in caught]
    return dict_["shape"], dict_["strides"], dict_["typestr"], dict_["data"], dict_["stream"], view.read_only, told


def test_the_form_of_a_dict_changes_nothing() -> None:
    outcomes, told = set(), set()
    for seed in range(TRIALS):
        rng = random.Random(seed)
        items, strict = drawn(rng), rng.random() < 0.3
        expected = outcome(items, strict)
        outcomes.add(expected[:2])
        told |= {category for category, _ in expected[6]} if len(expected) > 3 else set()  # type: ignore[attr-defined]
        for _ in range(FORMS):
            other = form(rng, items)
            assert outcome(other, strict) == expected, (seed, items, other)
    assert len(outcomes) > 200
    assert told == {cd.StreamWarning, cd.VersionWarning}
