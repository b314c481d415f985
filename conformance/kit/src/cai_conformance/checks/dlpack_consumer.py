"""Checks of consumers of DLPack by the Python protocol: the older tensor, and versions 1.0 to 1.3."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from cai_conformance import abi, offers
from cai_conformance.checks.consuming import (
    GOES,
    GOES_TOO,
    Offer,
    Profile,
    each,
    keeps_its_extent,
    keeps_its_owner,
    lets_its_owner_go,
    take,
)
from cai_conformance.judge import sources as say
from cai_conformance.judge.check import NotRun, Severity, Source, broken, demand
from cai_conformance.judge.consumed import Consumer, Seen
from cai_conformance.judge.memory import same
from cai_conformance.judge.text import text_of
from cai_conformance.reference.consumers import DlpackConsumer, Refused, TakenTensor
from cai_conformance.reference.producers import kept

VIOLATION, DEVIATION, RECOMMENDATION = Severity
profile = Profile("dlpack-consumer")


# --- mutants ---


def without(rule: str) -> Any:
    """A consumer that does not look for one fault."""
    rules = {name: breaks for name, breaks in DlpackConsumer.rules.items() if name != rule}
    return type("Without", (DlpackConsumer,), {"rules": rules})()


def refusing(when: Callable[[abi.Read], bool]) -> Any:
    """A consumer that refuses tensors that it should take."""
    rules = {**DlpackConsumer.rules, "mutant": when}
    return type("Refusing", (DlpackConsumer,), {"rules": rules})()


def misreading(change: Callable[[abi.Read], dict[str, Any]]) -> Any:
    """A consumer that takes what it is given for something else."""

    class Misread(TakenTensor):
        def shown(self) -> abi.Read:
            return replace(self.read, **change(self.read))

    return overriding(taken=lambda self, read: Misread(read))


def overriding(**members: Any) -> Any:
    """A consumer with methods of its own."""
    return type("Overriding", (DlpackConsumer,), members)()


# --- what is taken ---

profile.accepts("takes", "takes an array", say.PY_VIEW, "tensor()", after=(), mutant=refusing(lambda read: True))
profile.accepts(
    "takes-legacy",
    "takes the older tensor",
    say.PY_NAME,
    "tensor(older=True)",
    refusal=DEVIATION,
    mutant=refusing(
        lambda read: not read.versioned and read.deleter != 0 and read.flags is None and read.shape == (2, 3)
    ),
)
for _minor in (0, 1, 2, 3):
    profile.accepts(
        f"version-1-{_minor}",
        f"takes a tensor of version 1.{_minor}",
        say.DL_MINOR,
        f"tensor(np.arange(4, dtype=np.float32), version=(1, {_minor}))",
        mutant=refusing(lambda read, minor=_minor: read.shape == (4,) and read.version == (1, minor)),  # type: ignore[misc]
    )
profile.accepts(
    "version-1-later",
    "takes a tensor of a later minor version",
    say.DL_MINOR,
    "tensor(version=(1, 77))",
    mutant=refusing(lambda read: read.version == (1, 77)),
)
profile.accepts(
    "fallback",
    "asks again without the keywords that a producer does not know",
    say.AA_FALLBACK,
    "tensor(older=True, keywords=('stream',))",
    mutant=overriding(ask=lambda self, obj, **stream: obj.__dlpack__(max_version=self.newest, **stream)),
    after=("takes-legacy",),
)
profile.accepts(
    "strides-null",
    "takes strides that are NULL, before version 1.2, as those of C order",
    say.DL_STRIDES_NULL,
    "tensor(strides=None, version=(1, 0))",
    "tensor(np.arange(24.0).reshape(2, 3, 4), strides=None, version=(1, 1))",
    mutant=refusing(lambda read: read.strides is None and read.ndim in (2, 3)),
)
profile.accepts(
    "strides-fortran",
    "takes an array in Fortran order",
    say.DL_STRIDES,
    "tensor(np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)))",
    refusal=RECOMMENDATION,
    mutant=misreading(lambda read: {"strides": None} if read.strides == (1, 2) else {}),
)
profile.accepts(
    "strides-elements",
    "reads strides as elements",
    say.DL_STRIDES,
    "tensor(np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2])",
    "tensor(np.arange(24, dtype=np.int16)[::3])",
    refusal=RECOMMENDATION,
    mutant=misreading(lambda read: {"strides": (1,)} if read.strides == (3,) else {}),
)
profile.accepts(
    "strides-negative",
    "reads negative strides as such, or refuses them",
    say.DL_STRIDES,
    "tensor(np.arange(6, dtype=np.float32)[::-1])",
    refusal=RECOMMENDATION,
    mutant=misreading(lambda read: {"strides": (0,)} if read.strides == (-1,) else {}),
)
profile.accepts(
    "strides-zero",
    "reads a stride of 0 as such, or refuses it",
    say.DL_STRIDES,
    "tensor(np.lib.stride_tricks.as_strided(np.arange(3, dtype=np.float32), (2, 3), (0, 4)))",
    refusal=RECOMMENDATION,
    mutant=refusing(lambda read: read.strides == (0, 1)),
)
profile.accepts(
    "strides-one",
    "does not look at the stride of an axis with one element",
    say.DL_STRIDES,
    "tensor(np.arange(3, dtype=np.float32).reshape(1, 3), strides=(999, 1))",
    refusal=DEVIATION,
    mutant=refusing(lambda read: read.strides == (999, 1)),
)
profile.accepts(
    "ndim-zero",
    "takes an array without axes",
    say.DL_SHAPE,
    "tensor(np.array(7, dtype=np.float32))",
    refusal=RECOMMENDATION,
    mutant=refusing(lambda read: read.ndim == 0),
)
profile.accepts(
    "ndim-eight",
    "takes an array of eight axes",
    say.DL_NDIM,
    "tensor(np.arange(8, dtype=np.float32).reshape(1, 2, 1, 2, 1, 2, 1, 1))",
    refusal=RECOMMENDATION,
    mutant=refusing(lambda read: read.ndim == 8),
)


@profile.check(
    "shape-huge",
    "keeps an extent that 32 bits do not hold, or refuses it",
    say.DL_SHAPE,
    mutant=misreading(lambda read: {"shape": (2**33 & 0x7FFF_FFFF,)} if read.shape == (2**33,) else {}),
    shows="print(np.asarray(taken).shape)",
)
def _(consumer: Consumer) -> None:
    keeps_its_extent(consumer, "tensor(np.zeros(1, np.int8), shape=(2**33,), strides=(0,))")


profile.accepts(
    "size-zero",
    "takes an array without elements, whose pointer is NULL",
    say.DL_ZERO_SIZE,
    "tensor(np.zeros((0, 3), dtype=np.float32))",
    refusal=DEVIATION,
    mutant=refusing(lambda read: read.shape == (0, 3) and not read.data),
)
profile.accepts(
    "size-zero-pointer",
    "takes an array without elements, whose pointer is not NULL",
    say.DL_ZERO_SIZE,
    "tensor(np.zeros((0, 3), dtype=np.float32), data=256)",
    severity=RECOMMENDATION,
    mutant=refusing(lambda read: read.data == 256),
)
profile.accepts(
    "byte-offset-added",
    "adds `byte_offset` to the pointer",
    say.DL_OFFSET,
    "tensor(byte_offset=8, data=lambda offset: offsets(8))",
    refusal=DEVIATION,
    mutant=misreading(lambda read: {"byte_offset": 0} if read.byte_offset == 8 else {}),
)
profile.accepts(
    "flags-unknown",
    "does not look at flags that it does not know",
    say.DL_FLAGS,
    "tensor(flags=1 << 40)",
    severity=RECOMMENDATION,
    mutant=refusing(lambda read: (read.flags or 0) >= 1 << 40),
)
profile.accepts(
    "copied-flag",
    "takes a copy that the producer made",
    say.DL_COPIED,
    "tensor(flags=2)",
    mutant=refusing(lambda read: read.flags == 2),
)
profile.accepts(
    "deleter-null",
    "takes a tensor without a deleter",
    say.DL_DELETER_NULL,
    "tensor(deleter=None)",
    mutant=refusing(lambda read: not read.deleter),
)
profile.accepts(
    "device-enum",
    "takes a device type that is an IntEnum",
    say.AA_DEVICE,
    "tensor(announced=(Type.CPU, 0))",
    mutant=overriding(check_device=lambda self, device: exact(self, device)),
)
for _kind, _dtypes in {
    "int": ("int8", "int16", "int32", "int64"),
    "uint": ("uint8", "uint16", "uint32", "uint64"),
    "float": ("float32", "float64"),
    "float16": ("float16",),
    "complex": ("complex64", "complex128"),
    "bool": ("bool",),
}.items():
    profile.accepts(
        f"reads-{_kind}",
        f"reads {', '.join(_dtypes)} as such, or refuses them",
        say.DL_DTYPE_CODE,
        *(f"tensor(np.array([0, 1, 1]).astype(np.{name}))" for name in _dtypes),
        refusal=RECOMMENDATION,
        mutant=misreading(
            lambda read, dtypes=_dtypes: (
                {"strides": (0,)}  # type: ignore[misc]
                if read.shape == (3,) and read.dtype in types_of(dtypes)
                else {}
            )
        ),
    )


def types_of(dtypes: tuple[str, ...]) -> list[tuple[int, int, int]]:
    return [offers.dtype_of(np.dtype(name)) for name in dtypes]


def exact(self: Any, device: Any) -> None:
    DlpackConsumer.check_device(self, device)
    if type(device[0]) is not int:
        raise Refused("the mutant refuses")


# --- what is asked of the producer ---


def calls(consumer: Consumer, code: str = "tensor()") -> list[dict[str, Any]]:
    offer, taken, _ = take(consumer, code)
    del taken
    found: list[dict[str, Any]] = offer.calls
    return found


@profile.check(
    "asks-version",
    "says which version it knows (`max_version`)",
    say.AA_MAX_VERSION,
    severity=RECOMMENDATION,
    mutant=overriding(ask=lambda self, obj, **stream: obj.__dlpack__(**stream)),
    shows="print(offer.calls)",
)
def _(consumer: Consumer) -> None:
    asked = [call.get("max_version") for call in calls(consumer)]
    demand(any(asked), "tensor(): it asked without max_version: such a tensor has no flags")


@profile.check(
    "asks-pair",
    "`max_version` is a tuple of two ints",
    say.AA_MAX_VERSION,
    after=("asks-version",),
    mutant=overriding(newest=[1, 3]),
    shows="print(offer.calls)",
)
def _(consumer: Consumer) -> None:
    for call in calls(consumer):
        found = call.get("max_version")
        if found is not None:
            right = isinstance(found, tuple) and len(found) == 2 and all(type(item) is int for item in found)
            demand(right, f"tensor(): max_version={found!r}")


@profile.check(
    "asks-no-stream",
    "names no stream for memory of the host",
    say.AA_STREAM_CPU,
    mutant=overriding(
        naming=lambda self, device: {"stream": 1} if device[0] == abi.CPU else DlpackConsumer.naming(self, device)
    ),
    shows="print(offer.calls)",
)
def _(consumer: Consumer) -> None:
    if consumer.of_device:
        raise NotRun("it takes memory of a device alone")
    found = [call["stream"] for call in calls(consumer) if call.get("stream") is not None]
    demand(not found, f"tensor(): stream={found}")


@profile.check(
    "asks-once",
    "takes one tensor of a producer that answers",
    say.PY_ONCE,
    mutant=overriding(ask=lambda self, obj, **stream: [DlpackConsumer.ask(self, obj, **stream) for _ in "ab"][1]),
    severity=RECOMMENDATION,
    shows="print(offer.calls)",
)
def _(consumer: Consumer) -> None:
    found = calls(consumer)
    demand(len(found) == 1, f"tensor(): it asked {len(found)} times")


@profile.check(
    "asks-device",
    "asks for the device before it asks for the tensor",
    say.AA_DEVICE,
    severity=RECOMMENDATION,
    mutant=overriding(
        __call__=lambda self, obj: (
            self.own(self.ask(obj))
            if type(obj) is offers.Tensor and type(obj.announced) is tuple and obj.announced == (1, 0)
            else DlpackConsumer.__call__(self, obj)
        )
    ),
    shows="print(offer.asked)",
)
def _(consumer: Consumer) -> None:
    offer, taken, _ = take(consumer, "tensor()")
    del taken
    demand("__dlpack_device__" in offer.asked, "tensor(): it did not call __dlpack_device__")
    demand(offer.asked[0] == "__dlpack_device__", f"tensor(): it called {', then '.join(offer.asked)}")


@profile.check(
    "producer-error",
    "passes an exception of the producer's on",
    say.AA_PROPAGATE,
    mutant=overriding(ask=lambda self, obj, **stream: hidden(self, obj, **stream)),
)
def _(consumer: Consumer) -> None:
    offer = consumer.offered("tensor(raises=BufferError('the array is busy'))")
    try:
        consumer.take(offer)
    except BufferError as error:
        demand("the array is busy" in str(error), f"raised BufferError({error}) instead of the producer's")
        return
    except Exception as error:
        broken(f"raised {type(error).__name__} instead of the producer's BufferError: {error}")
    broken("it was accepted")


def hidden(self: Any, obj: Any, **stream: Any) -> Any:
    try:
        return DlpackConsumer.ask(self, obj, **stream)
    except BufferError:
        raise RuntimeError("the mutant hides it") from None


@profile.check(
    "producer-type-error",
    "passes a TypeError of the producer's own on",
    say.AA_PROPAGATE,
    mutant=overriding(ask=lambda self, obj, **stream: swallowed(self, obj, **stream)),
)
def _(consumer: Consumer) -> None:
    offer = consumer.offered("tensor(raises=TypeError('the array has no type'))")
    try:
        consumer.take(offer)
    except TypeError as error:
        demand("the array has no type" in str(error), f"raised TypeError({error}) instead of the producer's")
        return
    except Exception as error:
        broken(f"raised {type(error).__name__} instead of the producer's TypeError: {error}")
    broken("it was accepted")


def swallowed(self: Any, obj: Any, **stream: Any) -> Any:
    try:
        return DlpackConsumer.ask(self, obj, **stream)
    except TypeError:
        raise Refused("the mutant hides it") from None


# --- the capsule and the deleter ---

#: The end of a program that counts the deleter's calls.
ENDS = "del taken\ngc.collect()\nprint(offer.deleted + len(TWICE))  # calls of the deleter"
LIVES = "_ = np.asarray(taken)\nprint(offer.deleted)  # calls of the deleter while taken lives"


@profile.check(
    "capsule-renamed",
    "renames the capsule",
    say.PY_RENAME,
    mutant=overriding(rename=lambda self, capsule, versioned: None, taken=lambda self, read: Forgetful(read)),
    shows="print(offer.capsules)",
)
def _(consumer: Consumer) -> None:
    offer, taken, _ = take(consumer, "tensor(once=True)")
    name = abi.name(offer.capsules[0])
    used = name in (abi.USED_LEGACY, abi.USED_VERSIONED)
    demand(used, f"tensor(once=True): the capsule is named {name!r}")
    del taken


class Forgetful(TakenTensor):
    """Leaves the deleter to the capsule."""

    def end(self) -> None:
        return None


@profile.check(
    "capsule-name-kept",
    "gives the capsule the name that belongs to its tensor",
    say.PY_NAME_VERSIONED,
    after=("capsule-renamed", "takes-legacy"),
    mutant=overriding(rename=lambda self, capsule, versioned: abi.rename(capsule, abi.USED_LEGACY)),
    shows="print(offer.capsules)",
)
def _(consumer: Consumer) -> None:
    for code in ("tensor(once=True)", "tensor(once=True, older=True)"):
        offer, taken, _ = take(consumer, code)
        asked = any(call.get("max_version") for call in offer.calls)
        expected = abi.USED_VERSIONED if asked and not offer.older else abi.USED_LEGACY
        name = abi.name(offer.capsules[0])
        if name != expected:
            raise Offer(code, f"the capsule is named {name!r} instead of {expected!r}")
        del taken


def deleted(consumer: Consumer, code: str) -> tuple[int, int]:
    """How often the deleter ran while the consumer's array lived, and after its end."""
    offers.TWICE.clear()
    offer, taken, seen = take(consumer, code)
    if seen.address is not None and seen.address != offer.address:
        raise NotRun("the consumer copies, and so has no use for the tensor")
    gc.collect()
    during = offer.deleted
    if during and seen.address is None:
        raise NotRun("the deleter has run, and nothing tells whether the consumer has copied the elements")
    del taken
    gc.collect()
    return during, offer.deleted + len(offers.TWICE)


@profile.check(
    "deleter-early",
    "does not call the deleter while its array lives",
    say.PY_DELETER,
    after=("asks-once", "capsule-renamed"),
    mutant=overriding(taken=lambda self, read: Hasty(read)),
    shows=LIVES,
)
def _(consumer: Consumer) -> None:
    during, _ = deleted(consumer, "tensor()")
    demand(during == 0, "tensor(): the deleter ran while the consumer's array was alive")


class Hasty(TakenTensor):
    """Calls the deleter when it is looked at."""

    def shown(self) -> abi.Read:
        self.end()
        return self.read


@profile.check(
    "deleter-called",
    "calls the deleter once its array has gone",
    say.PY_DELETER,
    after=("deleter-early",),
    mutant=overriding(taken=lambda self, read: Forgetful(read)),
    shows=ENDS,
)
def _(consumer: Consumer) -> None:
    _, after = deleted(consumer, "tensor()")
    demand(after > 0, "tensor(): the deleter has not run")


class Contextual(TakenTensor):
    """Calls the deleter if there is a context for it."""

    def end(self) -> None:
        if self.read.context:
            super().end()


@profile.check(
    "deleter-context-null",
    "calls the deleter of a tensor whose `manager_ctx` is NULL",
    say.DL_CONTEXT,
    after=("deleter-called",),
    mutant=overriding(taken=lambda self, read: Contextual(read)),
    shows=ENDS,
)
def _(consumer: Consumer) -> None:
    _, after = deleted(consumer, "tensor(context=None)")
    demand(after > 0, "tensor(context=None): the deleter has not run")


@profile.check(
    "deleter-twice",
    "calls the deleter once",
    say.DL_DELETER_SELF,
    after=("deleter-called", "takes-legacy"),
    mutant=overriding(taken=lambda self, read: Double(read)),
    shows=ENDS,
)
def _(consumer: Consumer) -> None:
    for code in ("tensor()", "tensor(older=True)"):
        _, after = deleted(consumer, code)
        if after != 1:
            raise Offer(code, f"the deleter ran {after} times")


class Double(TakenTensor):
    """Calls the deleter twice."""

    def end(self) -> None:
        if not self.ended and self.read.deleter:
            abi.release(self.read)
        super().end()


class AtHome(TakenTensor):
    """Calls the deleter on the thread that took the tensor alone."""

    def __init__(self, read: abi.Read) -> None:
        super().__init__(read)
        self.home = threading.get_ident()

    def end(self) -> None:
        if threading.get_ident() == self.home:
            super().end()


@profile.check(
    "deleter-thread",
    "calls the deleter once if its array ends on another thread, too",
    say.PY_DELETER,
    after=("deleter-twice",),
    mutant=overriding(taken=lambda self, read: AtHome(read)),
    shows="""import threading
arrays = [taken]
del taken
thread = threading.Thread(target=arrays.clear)
thread.start()
thread.join()
gc.collect()
print(offer.deleted + len(TWICE))  # calls of the deleter""",
)
def _(consumer: Consumer) -> None:
    offers.TWICE.clear()
    offer, taken, seen = take(consumer, "tensor()")
    if seen.address is not None and seen.address != offer.address:
        raise NotRun("the consumer copies, and so has no use for the tensor")
    arrays = [taken]
    del taken
    thread = threading.Thread(target=arrays.clear)
    thread.start()
    thread.join()
    gc.collect()
    ran = offer.deleted + len(offers.TWICE)
    demand(ran == 1, f"tensor(): the array ended on another thread, and the deleter ran {ran} times")


@profile.check(
    "owner-kept",
    "keeps the producer's array while its own lives",
    say.PY_DELETER,
    after=("deleter-early",),
    mutant=overriding(taken=lambda self, read: Early(read)),
    shows=GOES,
)
def _(consumer: Consumer) -> None:
    keeps_its_owner(consumer, "tensor(np.arange(5, dtype=np.float32))")


class Early(Hasty):
    """Calls the deleter too early of vectors."""

    def end(self) -> None:
        if self.read.shape == (5,) or self.finished:
            super().end()

    finished = False

    def __del__(self) -> None:
        self.finished = True
        self.end()


@profile.check(
    "owner-released",
    "lets the producer's array go with its own",
    say.PY_DELETER,
    after=("deleter-called", "asks-once"),
    mutant=overriding(ask=lambda self, obj, **stream: DlpackConsumer.ask(self, kept(obj), **stream)),
    shows=GOES_TOO,
)
def _(consumer: Consumer) -> None:
    lets_its_owner_go(consumer, "tensor()")


@profile.check(
    "refused-released",
    "a tensor that it refuses is given back once",
    say.PY_DESTRUCTOR,
    mutant=overriding(own=lambda self, capsule: leaking(self, capsule)),
    forbidden=True,
    shows="""try:
    {take}(offer)
except Exception as error:
    print(error)
print(offer.capsules, len(gc.get_referrers(*offer.capsules)), offer.deleted)""",
)
def _(consumer: Consumer) -> None:
    def case(code: str) -> None:
        offer = consumer.offered(code)
        try:
            consumer.take(offer)
        except Exception:
            pass
        else:
            return
        gc.collect()
        if offer.capsules:
            given_back(offer, code)

    changes = ("dtype=(99, 32, 1)", "ndim=-1", "shape=(-1, 3)")
    each(tuple(f"tensor(once=True, {change})" for change in changes), case)


@profile.check(
    "refused-error",
    "raises an exception of its own if it refuses a tensor, and loses none while it gives that back",
    say.PY_IN_FLIGHT,
    severity=DEVIATION,
    mutant=overriding(own=lambda self, capsule: lost_error(self, capsule)),
    forbidden=True,
    shows='print("accepted:", type(taken))',
)
def _(consumer: Consumer) -> None:
    def case(code: str) -> None:
        offer = consumer.offered(code)
        try:
            consumer.take(offer)
        except SystemError as error:
            raise Offer(code, f"raised {text_of(error)}") from None
        except Exception:
            return

    # The deleter is a function of C: one of Python's, by ctypes, loses the exception that is set when it is called.
    changes = ("dtype=(99, 32, 1)", "ndim=-1", "shape=(-1, 3)", "version=(2, 0)")
    each(tuple(f"tensor({change}{older}, deleter=abi.NOTHING)" for change in changes for older in OLDER), case)


#: The end of an offer of either tensor.
OLDER = ("", ", older=True")


def lost_error(self: Any, capsule: Any) -> Any:
    try:
        return DlpackConsumer.own(self, capsule)
    except Refused:
        if abi.read(capsule).deleter == abi.NOTHING:
            raise SystemError("error return without exception set") from None
        raise


def given_back(offer: Any, code: str) -> None:
    """Demands that the producer alone holds a capsule, or that its tensor's deleter was called."""
    references = references_to(offer.capsules)
    capsule = offer.capsules[0]
    address, used = abi.pointer(capsule), abi.name(capsule) in (abi.USED_LEGACY, abi.USED_VERSIONED)
    if used and not offers.CALLED.get(address):
        raise Offer(code, "the capsule is renamed, and the deleter was not called")
    if not used and offers.CALLED.get(address):
        raise Offer(code, "the deleter was called, and the capsule's name lets its destructor call it again")
    if not used and references != references_to([object()]):
        raise Offer(code, "the capsule is still held")


def references_to(items: list[Any]) -> int:
    """Counts the references to the first of a list, that of the list and of a name among them, as CPython counts names:
    from 3.14 on not each."""
    item = items[0]
    return sys.getrefcount(item)


def leaking(self: Any, capsule: Any) -> Any:
    try:
        return DlpackConsumer.own(self, capsule)
    except Refused:
        name = abi.name(capsule)
        if name in self.names():
            abi.rename(capsule, abi.USED_LEGACY)
        raise


@profile.check(
    "read-only",
    "does not present an array that must not be written as one that may",
    say.AA_READ_ONLY,
    severity=RECOMMENDATION,  # the array API prefers an array that may be written to none
    mutant=misreading(lambda read: {"flags": 0}),
    shows='print(getattr(taken, "flags", taken))',
)
def _(consumer: Consumer) -> None:
    code = "tensor(flags=1)"
    offer = consumer.offered(code)
    try:
        taken = consumer.take(offer)
        seen = consumer.see(taken)
    except NotRun:
        raise
    except Exception:
        return  # a clear refusal
    del taken
    writable = seen.writable
    if writable is None:
        raise NotRun("nothing tells whether the consumer's array may be written")
    if seen.address is not None and seen.address != offer.address:
        return  # a copy may be written
    demand(not writable, f"{code}: it may be written")


# --- what a user asks for ---


def asked(consumer: Consumer, code: str, **keywords: Any) -> tuple[Any, Any]:
    """Hands an offer over with keywords of the consumer's own. Returns the offer, and what came of it.

    Raises:
        NotRun: the consumer does not know them, or refuses the request as it may.
    """
    offer = consumer.offered(code)
    try:
        return offer, consumer.take(offer, **keywords)
    except TypeError as error:
        raise NotRun(f"the consumer takes no {', '.join(keywords)}: {text_of(error)}") from None
    except BufferError as error:
        raise NotRun(f"the consumer refuses: {text_of(error)}") from None
    except Exception as error:
        raise Offer(code, f"{text_of(error)} instead of BufferError", RECOMMENDATION) from None


def demand_elements(consumer: Consumer, code: str, offer: Any, taken: Any) -> Seen:
    """Demands that what was taken has the elements of the offer."""
    seen = consumer.see(taken)
    if not same(seen.values.astype(offer.array.dtype, copy=False), offer.array):
        raise Offer(code, f"{seen.values.tolist()} instead of {offer.array.tolist()}", VIOLATION)
    return seen


def ignoring(keyword: str) -> Any:
    """A consumer that takes a keyword and does not look at it."""
    usual = DlpackConsumer.__call__
    return overriding(
        __call__=lambda self, obj, **keywords: usual(self, obj, **{**keywords, keyword: None}),
    )


@profile.check(
    "copy-true",
    "with `copy=True` makes an array in memory of its own",
    say.AA_FROM_COPY_TRUE,
    after=("takes", "copied-flag"),
    mutant=ignoring("copy"),
    shows="taken = {take}(offer, copy=True)\nprint(np.asarray(taken).ctypes.data == offer.address)  # True: no copy",
)
def _(consumer: Consumer) -> None:
    code = "tensor()"
    offer, taken = asked(consumer, code, copy=True)
    seen = demand_elements(consumer, code, offer, taken)
    if seen.address is None:
        raise NotRun("nothing tells where the consumer's array lies")
    if seen.address == offer.address:
        raise Offer(code, "with copy=True its array is in the producer's memory")


@profile.check(
    "copy-false",
    "with `copy=False` makes no copy, or raises BufferError",
    say.AA_FROM_COPY_FALSE,
    mutant=overriding(
        __call__=lambda self, obj, **keywords: DlpackConsumer.__call__(
            self, obj, **{**keywords, "copy": True if keywords.get("copy") is False else keywords.get("copy")}
        )
    ),
    shows="taken = {take}(offer, copy=False)\nprint(np.asarray(taken).ctypes.data == offer.address)  # False: a copy",
)
def _(consumer: Consumer) -> None:
    refusals = []
    for code in ("tensor()", "tensor(np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2])"):
        try:
            offer, taken = asked(consumer, code, copy=False)
        except NotRun as why:
            refusals.append(str(why))
            continue
        seen = demand_elements(consumer, code, offer, taken)
        if seen.address is None:
            refusals.append("nothing tells where the consumer's array lies")
        elif seen.address != offer.address:
            raise Offer(code, "with copy=False its array is elsewhere than the producer's")
    if len(refusals) == 2:
        raise NotRun(refusals[0])


@profile.check(
    "device-host",
    "with `device` of the host makes an array there of one on a device, or raises BufferError",
    say.AA_FROM_DEVICE,
    after=("takes", "copied-flag"),
    mutant=ignoring("device"),
    shows="""host = {take}(tensor()).device
taken = {take}(offer, device=host)
print(offer.calls, taken.__dlpack_device__())""",
)
def _(consumer: Consumer) -> None:
    if consumer.of_device:
        raise NotRun("it takes memory of a device alone")
    host = getattr(consumer.take(consumer.offered("tensor()")), "device", None)
    if host is None or callable(host):
        raise NotRun("nothing tells what the consumer calls the host")
    code = "tensor(device=(2, 0), hosted=True)"
    offer, taken = asked(consumer, code, device=host)
    if not hasattr(taken, "__dlpack_device__"):
        raise NotRun("what it returned has no __dlpack_device__")
    found = tuple(map(int, taken.__dlpack_device__()))
    if found != (abi.CPU, 0):
        raise Offer(code, f"with device={host!r} it asked {offer.calls}, and its array is on device {found}")
    demand_elements(consumer, code, offer, taken)


# --- what is refused ---


def rejects(
    rule: str,
    says: str,
    source: Source,
    *codes: str,
    mutant: Any = None,
    severity: Severity = DEVIATION,
    after: tuple[str, ...] = ("takes",),
) -> None:
    mutant = without(rule) if mutant is None else mutant
    profile.refuses(rule, says, source, *codes, mutant=mutant, severity=severity, after=after)


rejects(
    "dlpack-missing",
    "an object without the two methods",
    say.AA_MISSING,
    "object()",
    mutant=overriding(__call__=lambda self, obj: [] if type(obj) is object else DlpackConsumer.__call__(self, obj)),
)
rejects(
    "device-pair",
    "a device that is no pair of ints",
    say.AA_DEVICE,
    "tensor(announced=1)",
    "tensor(announced=(1,))",
    "tensor(announced=('cpu', 0))",
    mutant=overriding(check_device=lambda self, device: None),
)
rejects(
    "capsule-type",
    "something that is no capsule",
    say.PY_NAME,
    "NoCapsule()",
    mutant=overriding(own=lambda self, capsule: [] if capsule is None else DlpackConsumer.own(self, capsule)),
)
rejects(
    "capsule-name",
    "a capsule of another name",
    say.PY_NAME,
    "tensor(name=b'something')",
    "tensor(name=b'something', older=True)",
    mutant=overriding(names=lambda self: (abi.LEGACY, abi.VERSIONED, b"something")),
)
rejects(
    "capsule-used",
    "a capsule that was consumed",
    say.PY_ONCE,
    "tensor(used=True)",
    "tensor(used=True, older=True)",
    mutant=overriding(names=lambda self: (abi.LEGACY, abi.VERSIONED, abi.USED_LEGACY, abi.USED_VERSIONED)),
)
rejects(
    "dlpack-major",
    "a tensor of another major version",
    say.DL_MAJOR,
    "tensor(version=(2, 0))",
    severity=VIOLATION,
    after=("asks-version",),
)
rejects("ndim-negative", "a negative number of axes", say.DL_NDIM, "tensor(ndim=-1)", "tensor(ndim=-1, older=True)")
rejects(
    "ndim-limit",
    "more axes than any array has",
    say.DL_NDIM,
    "tensor(shape=(1,) * 70, strides=(1,) * 70)",
    severity=RECOMMENDATION,
)
rejects("shape-null", "a shape that is NULL although there are axes", say.DL_SHAPE, "tensor(shape=None, ndim=2)")
rejects("shape-extent", "a negative extent", say.DL_SHAPE, "tensor(shape=(-1, 3))", "tensor(shape=(2, -3), older=True)")
rejects(
    "count-overflow", "more elements than 64 bits count", say.DL_SHAPE, "tensor(shape=(2**40, 2**40), strides=(1, 1))"
)
rejects("size-overflow", "more bytes than 64 bits count", say.DL_SHAPE, "tensor(shape=(2**62,), strides=(1,))")
rejects("data-pointer-null", "a pointer that is NULL although there are elements", say.DL_OFFSET, "tensor(data=0)")
rejects(
    "byte-offset",
    "a `byte_offset` beyond the address space",
    say.DL_OFFSET,
    "tensor(byte_offset=2**63 + 8)",
    severity=RECOMMENDATION,
)
rejects("dtype-lanes", "a type without lanes", say.DL_DTYPE_LANES, "tensor(dtype=(2, 32, 0))")
rejects("dtype-code", "a type code that does not exist", say.DL_DTYPE_CODE, "tensor(dtype=(99, 32, 1))")
rejects("dtype-opaque", "a type that is opaque", say.DL_DTYPE_CODE, "tensor(dtype=(3, 64, 1))", severity=RECOMMENDATION)
rejects(
    "dtype-bits",
    "a number of bits that the type does not have",
    say.DL_DTYPE_BITS,
    "tensor(dtype=(2, 13, 1))",
    "tensor(dtype=(0, 0, 1))",
)
rejects("dtype-bool", "a bool of one bit", say.DL_DTYPE_BOOL, "tensor(dtype=(6, 1, 1))", severity=RECOMMENDATION)
rejects(
    "dtype-sub-byte",
    "a 4-bit or 6-bit type with another number of bits",
    say.DL_DTYPE_FP6,
    "tensor(dtype=(17, 8, 1))",
    "tensor(dtype=(15, 8, 1))",
    severity=VIOLATION,
)
rejects(
    "span-overflow",
    "strides that leave the address space",
    say.DL_STRIDES,
    "tensor(strides=(2**62, 2**62))",
    severity=RECOMMENDATION,
)
rejects(
    "device-unknown",
    "a device type that it does not have",
    say.PY_UNSUPPORTED,
    "tensor(device=(99, 0))",
    mutant=without("device-unknown"),
)
