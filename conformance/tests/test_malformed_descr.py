"""Random `descr` lists with one defect at a random place: the rule is the defect's, wherever it stands."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import pytest

from conformance.tests.doubles.producers import cai
from conformance.tests.expectations.refusal import check_refusal, refuse

SIZES = {"<f4": 4, "<i8": 8, "|u1": 1, "<c8": 8, "|V3": 3, "|b1": 1, "<M8[ns]": 8}


def fields(draw: random.Random, depth: int, names: Any) -> tuple[list[Any], int]:
    """Returns a list of fields, each with a name of its own, and the bytes of one record."""
    found, size = [], 0
    for _ in range(draw.randint(1, 3)):
        kind: Any = draw.choice(list(SIZES))
        of_one = SIZES[kind] if draw.random() < 0.7 or not depth else 0
        if not of_one:
            kind, of_one = fields(draw, depth - 1, names)
        number = next(names)
        name: Any = f"field {number}"
        if draw.random() < 0.3:
            name = (draw.choice([f"title {number}", None]), name)
        shape = draw.choice([None, None, 2, (2,), (2, 3), ()])
        count = {None: 1, 2: 2, (2,): 2, (2, 3): 6, (): 1}[shape]
        found.append((name, kind) if shape is None else (name, kind, shape))
        size += of_one * count
    return found, size


def places(descr: list[Any]) -> list[tuple[list[Any], int]]:
    """Returns every field, as its list and its number there."""
    inner = [place for field in descr if isinstance(field[1], list) for place in places(field[1])]
    return [*((descr, number) for number in range(len(descr))), *inner]


# What one defect makes of a field, and the rule that it breaks.
DEFECTS: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "a list for a field": (list, TypeError, "descr-type"),
    "a str for a field": (lambda field: "x", TypeError, "descr-type"),
    "no type": (lambda field: field[:1], ValueError, "descr-syntax"),
    "nothing": (lambda field: (), ValueError, "descr-syntax"),
    "four parts": (lambda field: (*field, 1, 2)[:4], ValueError, "descr-syntax"),
    "a number for a name": (lambda field: (7, *field[1:]), TypeError, "descr-type"),
    "a number for a title": (lambda field: ((7, "x"), *field[1:]), TypeError, "descr-type"),
    "a number for a named name": (lambda field: (("title", 7), *field[1:]), TypeError, "descr-type"),
    "a name that is no text": (lambda field: ("\udc80", *field[1:]), ValueError, "descr-syntax"),
    "a number for a type": (lambda field: (field[0], 7, *field[2:]), TypeError, "descr-type"),
    "a tuple for a type": (lambda field: (field[0], ("<f4",), *field[2:]), TypeError, "descr-type"),
    "a type that is no text": (lambda field: (field[0], "\udc80", *field[2:]), ValueError, "descr-syntax"),
    "a str for a shape": (lambda field: (*field[:2], "2"), TypeError, "descr-type"),
    "a float for an extent": (lambda field: (*field[:2], (1, 2.0)), TypeError, "descr-type"),
    "a list for an extent": (lambda field: (*field[:2], (1, [2])), TypeError, "descr-type"),
    "an extent too large": (lambda field: (*field[:2], (1, 1 << 63)), ValueError, "shape-range"),
}


def drawn(seed: int) -> tuple[random.Random, list[Any], int]:
    draw = random.Random(seed)
    descr, size = fields(draw, 3, iter(range(10_000)))
    return draw, descr, size


def view(descr: list[Any], size: int) -> cd.CaiView:
    return cd.view(cai(typestr=f"|V{size}", descr=descr), device_id=0)


@pytest.mark.parametrize("seed", range(40))
def test_a_descr_without_a_defect_is_read(seed: int) -> None:
    _, descr, size = drawn(seed)
    found = view(descr, size)
    assert found.dtype.itemsize == size
    names = [name[1] if isinstance(name, tuple) else name for name, *_ in descr]
    assert list(found.fields) == names
    check_refusal(refuse(lambda: view(descr, size + 1), ValueError), "descr-size", "descr")


@pytest.mark.parametrize("defect", DEFECTS)
def test_one_defect_is_found_wherever_it_stands(defect: str) -> None:
    change, kind, rule = DEFECTS[defect]
    for seed in range(40):
        draw, descr, size = drawn(seed)
        where, number = draw.choice(places(descr))
        where[number] = change(where[number])
        check_refusal(refuse(lambda: view(descr, size), kind), rule, "descr")  # noqa: B023


@pytest.mark.parametrize(
    ("descr", "rule"),
    [
        ([("", "<f4")], None),
        ([("", "<f4", (1,))], None),
        ([], "descr-size"),
        ([("", "<f4"), ("", "<f4")], "descr-size"),
        ([("", "<f8")], "descr-size"),
        ([["", "<f4"]], "descr-type"),
        ([("",)], "descr-syntax"),
        ([("", "<f4", "x")], "descr-type"),
    ],
)
def test_a_descr_beside_a_plain_typestr(descr: Any, rule: str | None) -> None:
    thing = cai(typestr="<f4", descr=descr)
    if rule is None:
        assert cd.view(thing, device_id=0).dtype.itemsize == 4
    else:
        with pytest.raises((TypeError, ValueError)) as found:
            cd.view(thing, device_id=0)
        assert found.value.rule == rule  # type: ignore[attr-defined]
