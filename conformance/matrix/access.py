"""Whether an array may be written, as its own library shows it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd

from conformance.matrix.calls import CALLS, PARTNERS

# Of libraries whose arrays can be either. The others have no such property.
SHOWN: dict[str, Callable[[Any], bool | None]] = {
    "numpy": lambda array: array.flags.writeable,
    "array_api_strict": lambda array: array._array.flags.writeable,
    "cuda": lambda memory: not memory.readonly,
    "pyarrow": lambda memory: getattr(memory, "is_mutable", False),
    "conformance": lambda argument: getattr(argument, "mutable", None),
}
# By the table of partners, the arrays that tensors without flags are of.
BY_TABLE = {"mutable": True, "immutable": False}
# What a call drops, by the table.
FLAG = "the read-only flag"
FLAG_OF_EMPTY = "the read-only flag of an array without elements"


def shown(array: Any) -> bool | None:
    """What the library of the array shows; None if its arrays are all alike."""
    look = SHOWN.get(type(array).__module__.partition(".")[0])
    return look(array) if look else None


def stated(array: Any) -> bool | None:
    """What the array states, of itself or by being of its library; None if it cannot."""
    own = shown(array)
    if own is not None:
        return own
    if interface := getattr(array, "__cuda_array_interface__", None):
        return not interface["data"][1]
    module = type(array).__module__
    for row in PARTNERS.values():
        if any(module == name or module.startswith(f"{name}.") for name in row["modules"]):
            return BY_TABLE.get(row["untold"])
    return None


def lost(before: bool | None, after: bool | None) -> str | None:
    """What of the one statement the other does not have; None if it is all there."""
    if after is None or after == before:
        return None
    if after:
        return f"the consumer may write what is {'read-only' if before is False else 'of unknown access'}"
    return "the consumer may not write what is writable" if before else None


def untold(consumer: str, bridge: str, view: Any, taken: Any) -> str | None:
    """What the call made of the read-only flag, if the table tells something else."""
    call = CALLS.get((consumer, bridge))
    if call is None or view.read_only is not True:
        return None
    may_write = shown(taken)
    if may_write is None:
        may_write = written(taken)
    if may_write is None or may_write == may_be_written(call, view):
        return None
    return f"the read-only flag is {'dropped' if may_write else 'kept'}, and the table tells otherwise"


def may_be_written(call: dict[str, Any], view: Any) -> bool:
    """Whether the array that a call makes of a read-only view can be written, by the table."""
    is_empty = 0 in view.shape
    return FLAG in call["drops"] or (is_empty and FLAG_OF_EMPTY in call["drops"])


def written(found: Any) -> bool | None:
    """Whether a consumer's array can be written, as it is told by the array; None if it cannot tell."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read_only = cd.view(found).read_only
        return None if read_only is None else not read_only
    except Exception:
        try:
            return not memoryview(found).readonly
        except TypeError:
            return None
