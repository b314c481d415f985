"""Exceptions: the end of a tensor sets none, and loses none."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from cai_conformance import abi
from cai_conformance.checks.dlpack_producer.base import DEVIATION, RECOMMENDATION, Tensors, check, overriding
from cai_conformance.judge import sources as say
from cai_conformance.judge.check import NotRun, broken
from cai_conformance.reference.producers import DELETER

#: Sets MemoryError, whatever it is given. A deleter of Python's cannot, by ctypes.
SETS_ERROR = ctypes.pythonapi.PyErr_NoMemory


@check(
    "deleter-quiet",
    "the deleter leaves no exception set",
    say.PY_DELETER_ERROR,
    severity=RECOMMENDATION,
    after=("values", "deleter"),
    samples=("vector",),
    mutant=overriding(deleter=lambda self: SETS_ERROR if self.array.shape == (5,) else DELETER),
    shows="""tensor = abi.consume(array.__dlpack__(max_version=(1, 3)))
try:
    abi.release(tensor)
except BaseException as error:
    print(repr(error))""",
)
def _(t: Tensors) -> None:
    found = t.any()
    try:
        found.end()
    except BaseException as error:  # ctypes raises what is set
        broken(f"it left {type(error).__name__} set: {error}")


class InFlight(Exception):
    """Is raised while a capsule ends."""


def dropped(t: Tensors) -> Iterator[Any]:
    """Gives a capsule to the tuple that is made of this, which ends with the exception."""
    yield t.ask(**t.usual)
    raise InFlight


#: Like the kit's own destructor, whose Python loses the exception.
CLUMSY = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(abi.destroy)


@check(
    "capsule-in-flight",
    "the end of a capsule that was not consumed loses no exception",
    say.PY_IN_FLIGHT,
    severity=DEVIATION,
    after=("capsule-destructor", "capsule-used"),
    mutant=overriding(
        capsule=lambda self, tensor, versioned: abi.new_capsule(
            ctypes.addressof(tensor), abi.VERSIONED if versioned else abi.LEGACY, destructor=CLUMSY
        )
    ),
    shows="""def dropped():
    yield array.__dlpack__(max_version=(1, 3))
    raise ValueError("in flight")

try:
    tuple(dropped())
except BaseException as error:
    print(repr(error))  # ValueError: nothing has lost it""",
)
def _(t: Tensors) -> None:
    if abi.is_ours(t.ask(**t.usual)):
        raise NotRun("the destructor is the kit's own, which is of Python")
    try:
        tuple(dropped(t))
    except InFlight:
        return
    except BaseException as error:
        broken(f"{type(error).__name__} came instead of the exception that was in flight")
