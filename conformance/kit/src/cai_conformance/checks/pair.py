"""A producer and a consumer together: each array of the producer's arrives with its elements, or is refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from cai_conformance.checks.dlpack_consumer import misreading
from cai_conformance.judge import sources as say
from cai_conformance.judge.check import CHECKS, Check, NotRun, Severity, broken
from cai_conformance.judge.consumed import Consumer, Pair
from cai_conformance.judge.memory import same
from cai_conformance.judge.samples import DTYPES, LAYOUTS, PLAIN, SAMPLES, SHAPES
from cai_conformance.judge.text import text_of
from cai_conformance.reference.consumers import take_dlpack
from cai_conformance.reference.producers import DlpackArray


def another_array(name: str) -> Pair:
    """A mutant: its producer makes another array of one sample."""
    wanted = described(SAMPLES[name].array())

    def make(array: Any) -> DlpackArray:
        return DlpackArray(np.arange(9, dtype=np.int8) if described(array) == wanted else array)

    return Pair(make, Consumer(take_dlpack))


def described(array: Any) -> tuple[Any, ...]:
    """What tells the samples apart."""
    return array.dtype, array.shape, array.strides, array.flags.writeable


#: A mutant whose consumer takes no notice of the flag for arrays that must not be written.
FORGETFUL = Pair(DlpackArray, Consumer(misreading(lambda read: {"flags": 0})))


def _values(pair: Pair, name: str) -> None:
    given = SAMPLES[name].array()
    expected = np.array(given)
    try:
        made = pair.make(given)
    except Exception as error:
        raise NotRun(f"the producer raised {text_of(error)}") from None
    taken = pair.consumer.take(made)
    seen = pair.consumer.see(taken)
    if not same(seen.values.astype(expected.dtype, copy=False), expected):
        broken(f"{seen.values.tolist()} instead of {expected.tolist()}", Severity.VIOLATION)
    if name == "read-only" and seen.writable and seen.address == given.ctypes.data:
        broken("the array must not be written, and what was taken may be", Severity.DEVIATION)
    del taken


for _name in dict.fromkeys((*SHAPES, *LAYOUTS, "read-only", *DTYPES)):
    _plain = _name == PLAIN[0]

    def _arrives(pair: Pair, name: str = _name) -> None:
        _values(pair, name)

    CHECKS.add(
        Check(
            "pair",
            _name,
            f"the array {_name!r} arrives with its elements" + ("" if _plain else ", or is refused"),
            say.DL_READ_ONLY if _name == "read-only" else say.PY_VIEW,
            Severity.VIOLATION if _plain else Severity.RECOMMENDATION,
            _arrives,
            samples=(_name,),
            mutant=FORGETFUL if _name == "read-only" else another_array(_name),
        )
    )
