"""Checks that a refusal names its field, value and rule."""

from __future__ import annotations

import gc
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cai_dlpack as cd

# How the values of a dict are compared before and after; the mode `--collect-always` replaces them by equal ones.
same: Callable[[object, object], bool] = operator.is_


@dataclass(frozen=True)
class Refusal:
    """An exception, taken apart: nothing of it keeps the inputs alive."""

    kind: type[BaseException]
    message: str
    rule: object
    field: object


def builtin(error: BaseException) -> type[BaseException]:
    """The builtin class of a refusal; of any other exception its class."""
    if not isinstance(error, cd.Refusal):
        return type(error)
    _, kind = type(error).__bases__
    assert issubclass(kind, Exception)
    assert error.hint is None or error.hint in str(error)
    return kind


def refuse(call: Callable[[], object], expected: type[BaseException]) -> Refusal:
    """Runs `call`, which must raise exactly `expected`, and takes the exception apart."""
    try:
        answer = call()
    except BaseException as error:
        found = Refusal(builtin(error), str(error), getattr(error, "rule", None), getattr(error, "field", None))
    else:
        raise AssertionError(f"accepted: {answer!r}; expected {expected.__name__}")
    assert found.kind is expected, f"{found.kind.__name__}, not {expected.__name__}: {found.message}"
    return found


def check_refusal(
    found: Refusal,
    rule: str,
    field: str | None,
    *,
    value: str | None = None,
    hint: str | None = None,
) -> None:
    """The message names the field and the value and ends with the rule; the attributes agree with it."""
    assert isinstance(found.rule, str), f"no rule: {found.message}"
    assert found.message.endswith(f"[{found.rule}]"), found.message
    assert found.rule == rule, found.message
    assert isinstance(found.field, str), f"no field: {found.message}"
    assert found.field, found.message
    if field is not None:
        assert found.field == field, f"field {found.field!r}: {found.message}"
        assert field in found.message, f"{field!r} is not named: {found.message}"
    if value is not None:
        assert value in found.message, f"{value!r} is not named: {found.message}"
    if hint is not None:
        assert hint.lower() in found.message.lower(), f"no hint {hint!r}: {found.message}"


@contextmanager
def refused_or_accepted() -> Iterator[None]:
    """Accepts success or a refusal by a rule, for input that changes while it is read; any other error is raised."""
    try:
        yield
    except (TypeError, ValueError, BufferError) as error:
        rule = getattr(error, "rule", None)
        if rule is None or not str(error).endswith(f"[{rule}]"):
            raise


@contextmanager
def nothing_changes(*watched: object) -> Iterator[None]:
    """Reference counts of the objects are the same afterwards, dicts hold the very same values."""
    gc.collect()
    shown: list[tuple[dict[Any, Any], dict[Any, Any]]] = [(each, dict(each)) for each in watched if type(each) is dict]
    before = [sys.getrefcount(each) for each in watched]
    yield
    gc.collect()
    after = [sys.getrefcount(each) for each in watched]
    assert after == before, f"reference counts {before} became {after} of {watched!r}"
    for each, copy in shown:
        assert list(each) == list(copy), "the producer's dict has other keys now"
        assert all(same(each[key], copy[key]) for key in copy), "the producer's dict has other values now"
