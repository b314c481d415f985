"""Arrays that are alive when the interpreter ends, that end in a forked child or in a cycle: of each profile."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from cai_conformance import abi, offers
from cai_conformance.checks import cai_consumer, cai_producer, dlpack_consumer
from cai_conformance.checks.consuming import take
from cai_conformance.checks.dlpack_producer import base
from cai_conformance.judge import sources as say
from cai_conformance.judge.check import NotRun, Severity, broken, demand
from cai_conformance.judge.consumed import Consumer
from cai_conformance.judge.elsewhere import ended
from cai_conformance.judge.produced import Produced
from cai_conformance.reference.consumers import CaiConsumer, DlpackConsumer, TakenTensor
from cai_conformance.reference.producers import DELETER, CaiArray, DlpackArray

RECOMMENDATION = Severity.RECOMMENDATION

#: Where this module was imported; a copy of that process by fork is another one.
_HOME = os.getpid()


# --- mutants ---


def die(when: bool, alone: bool = abi.ALONE) -> None:
    """Ends the process, if it is one that runs the program of a check alone."""
    if when and alone:
        os.abort()


class DiesLate:
    """Cannot end while the interpreter does."""

    def __del__(self) -> None:
        die(sys.is_finalizing())


class DiesForked:
    """Cannot end in a copy of its process."""

    def __del__(self) -> None:
        die(os.getpid() != _HOME)


class LateCai(DiesLate, CaiArray):
    pass


class ForkedCai(DiesForked, CaiArray):
    pass


class LateArray(DiesLate, DlpackArray):
    pass


class ForkedArray(DiesForked, DlpackArray):
    pass


ABORT = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value or 0)


class LateDeleter(DlpackArray):
    """Its deleter aborts, of vectors and in a process that runs a program alone."""

    def deleter(self) -> Any:
        return ABORT if abi.ALONE and self.array.shape == (5,) else DELETER


def ending(consumer: type, end: type) -> Any:
    """A consumer whose arrays have something that ends with them."""

    class Ending(consumer):  # type: ignore[misc]
        def __call__(self, obj: Any, **keywords: Any) -> Any:
            taken = super().__call__(obj, **keywords)
            taken.end_of_it = end()
            return taken

    return Ending()


LATE_CAI, FORKED_CAI = ending(CaiConsumer, DiesLate), ending(CaiConsumer, DiesForked)
LATE_TENSOR, FORKED_TENSOR = ending(DlpackConsumer, DiesLate), ending(DlpackConsumer, DiesForked)


# --- programs ---


def exported(array: Any) -> list[Any]:
    """What a producer of DLPack gives out: a tensor that was taken out of its capsule, and one that was not."""
    tensors = base.of(array)
    found: list[Any] = []
    for give in (tensors.any, lambda: tensors.ask(max_version=abi.NEWEST), tensors.ask):
        with contextlib.suppress(Exception):  # other checks see to that; in a forked child there is no driver
            found.append(give())
    return found


#: The interpreter ends with what these programs have.
LATE_ARRAY = (
    "from cai_conformance.checks.ends import exported\nkept = exported(array)  # alive when the interpreter ends"
)
LATER = """from cai_conformance.checks.ends import after_the_end
after_the_end(array)  # has its deleter called once the interpreter has ended"""


def fork(drop: str, use: str = "") -> str:
    """The end of a program in which a forked child uses an array, and drops it. The parent drops it, too."""
    return f"""import os
child = os.fork()
if child == 0:
    {use or "pass"}
    {drop}
    gc.collect()
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
{drop}
raise SystemExit(status and f"the child ended with {{{{status}}}}")"""


def after_the_end(array: Any) -> None:
    """Has the C library call the deleter of a tensor after the interpreter has ended, as a destructor of C++ does."""
    tensors = base.of(array)
    tensor = tensors.any()
    tensor.ended = True
    library = ctypes.CDLL(None)
    getattr(library, "__cxa_atexit")(ctypes.c_void_p(tensor.read.deleter), ctypes.c_void_p(tensor.read.address), None)


def demand_good_end(key: str) -> None:
    """Runs the program of a check, which must end well."""
    why = ended(key)
    if why is not None:
        broken(why)


# --- the end of the interpreter, and a fork ---


@cai_producer.check(
    "exit-alive",
    "an array may be alive when the interpreter ends",
    say.CAI_LIFETIME,
    after=("pointer-unknown",),
    mutant=LateCai,
    shows="print(array.__cuda_array_interface__)  # it is alive when the interpreter ends",
)
def _(p: Produced) -> None:
    demand_good_end("cai-producer.exit-alive")


@cai_producer.check(
    "fork-dropped",
    "an array may end in a forked child",
    say.CAI_LIFETIME,
    after=("pointer-unknown",),
    severity=RECOMMENDATION,
    mutant=ForkedCai,
    shows=fork("del array"),
)
def _(p: Produced) -> None:
    demand_good_end("cai-producer.fork-dropped")


@base.check(
    "exit-alive",
    "an array and its tensors may be alive when the interpreter ends",
    say.PY_DELETER,
    after=("capsule-name-known", "deleter"),
    mutant=LateArray,
    shows=LATE_ARRAY,
)
def _(t: base.Tensors) -> None:
    demand_good_end("dlpack-producer.exit-alive")


@base.check(
    "deleter-late",
    "the deleter may be called after the interpreter has ended",
    say.PY_LATE,
    after=("exit-alive",),
    samples=("vector",),
    severity=RECOMMENDATION,
    mutant=LateDeleter,
    shows=LATER,
)
def _(t: base.Tensors) -> None:
    t.any()
    demand_good_end("dlpack-producer.deleter-late")


@base.check(
    "fork-dropped",
    "an array may be exported and end in a forked child",
    say.PY_DELETER,
    after=("capsule-name-known", "deleter"),
    severity=RECOMMENDATION,
    mutant=ForkedArray,
    shows="from cai_conformance.checks.ends import exported\n" + fork("del array", "exported(array)"),
)
def _(t: base.Tensors) -> None:
    demand_good_end("dlpack-producer.fork-dropped")


for _profile, _offer, _late, _forked, _source in (
    (cai_consumer.profile, "cai()", LATE_CAI, FORKED_CAI, say.CAI_LIFETIME),
    (dlpack_consumer.profile, "tensor()", LATE_TENSOR, FORKED_TENSOR, say.PY_DELETER),
):

    def _alone(rule: str, profile: Any = _profile, offer: str = _offer) -> Callable[[Consumer], None]:
        def run(consumer: Consumer) -> None:
            consumer.offered(offer)
            demand_good_end(f"{profile.name}.{rule}")

        return run

    _profile.check(
        "exit-alive",
        "lets its array be alive when the interpreter ends",
        _source,
        mutant=_late,
        shows="print(type(taken))  # it is alive when the interpreter ends",
    )(_alone("exit-alive"))
    _profile.check(
        "fork-dropped",
        "lets its array end in a forked child",
        _source,
        severity=RECOMMENDATION,
        mutant=_forked,
        shows=fork("del taken, offer"),
    )(_alone("fork-dropped"))


# --- cycles ---


class Looped:
    """Keeps itself, if it is told to, as an object of C does that the collector of cycles cannot see through."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "loop" and value is self:
            abi.incref(value)
        else:
            super().__setattr__(name, value)


class LoopedArray(Looped, DlpackArray):
    pass


class LoopedTensor(Looped, TakenTensor):
    pass


def looped(array: Any) -> None:
    """Has an array refer to itself.

    Raises:
        NotRun: it takes no attributes.
    """
    try:
        array.loop = array
    except Exception:
        raise NotRun("the array takes no attributes") from None


@base.check(
    "cycle-released",
    "an array that nothing but a cycle keeps is let go",
    say.PY_DELETER,
    after=("deleter-releases",),
    severity=RECOMMENDATION,
    mutant=LoopedArray,
    shows="""from cai_conformance.checks.ends import exported
exported(array)
array.loop = array
watch = weakref.ref(array)
del array
gc.collect()
print(watch())  # not None: it is never freed""",
)
def _(t: base.Tensors) -> None:
    fresh = t.again()
    fresh.any().end()
    looped(fresh.object)
    try:
        watch = weakref.ref(fresh.object)
    except TypeError:
        raise NotRun("the producer's arrays cannot be watched") from None
    del fresh
    gc.collect()
    demand(watch() is None, "an array that refers to itself is never freed")


@dlpack_consumer.profile.check(
    "cycle-released",
    "calls the deleter if nothing but a cycle keeps its array",
    say.PY_DELETER,
    after=("deleter-twice",),
    severity=RECOMMENDATION,
    mutant=dlpack_consumer.overriding(taken=lambda self, read: LoopedTensor(read)),
    shows="""taken.loop = taken
del taken
gc.collect()
print(offer.deleted + len(TWICE))  # calls of the deleter""",
)
def _(consumer: Consumer) -> None:
    offers.TWICE.clear()
    offer, taken, seen = take(consumer, "tensor()")
    if seen.address is not None and seen.address != offer.address:
        raise NotRun("the consumer copies, and so has no use for the tensor")
    looped(taken)
    del taken
    gc.collect()
    ran = offer.deleted + len(offers.TWICE)
    demand(ran == 1, f"tensor(): an array that refers to itself has gone, and the deleter ran {ran} times")
