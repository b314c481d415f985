"""Checks of consumers of the CUDA Array Interface, versions 0 to 3."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from cai_conformance import abi
from cai_conformance.checks.consuming import (
    GOES,
    GOES_TOO,
    REFUSED,
    Offer,
    Profile,
    each,
    keeps_its_extent,
    keeps_its_owner,
    lets_its_owner_go,
    refuse,
    take,
)
from cai_conformance.cuda import driver
from cai_conformance.judge import sources as say
from cai_conformance.judge import trials
from cai_conformance.judge.check import NotRun, Severity, Source, broken, demand
from cai_conformance.judge.consumed import Consumer
from cai_conformance.log import Call
from cai_conformance.offers import a_stream
from cai_conformance.reference.consumers import CAI_RULES, MISSING, CaiConsumer, Refused
from cai_conformance.reference.producers import kept
from cai_conformance.sim import Sim

VIOLATION, DEVIATION, RECOMMENDATION = Severity
profile = Profile("cai-consumer")


# --- mutants ---


def without(rule: str) -> Any:
    """A consumer that does not look for one fault."""
    rules = {name: breaks for name, breaks in CAI_RULES.items() if name != rule}
    return type("Without", (CaiConsumer,), {"rules": rules})()


def refusing(when: Callable[[dict[str, Any]], bool]) -> Any:
    """A consumer that refuses arrays that it should take."""

    class Refusing(CaiConsumer):
        def attribute(self, obj: Any) -> Any:
            interface = super().attribute(obj)
            if when(interface):
                raise Refused("the mutant refuses")
            return interface

    return Refusing()


def misreading(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A consumer that takes what it is given for something else."""

    class Misreading(CaiConsumer):
        def seen(self, taken: dict[str, Any]) -> dict[str, Any]:
            return {**super().seen(taken), **change(taken)}

    return Misreading()


def overriding(**members: Any) -> Any:
    """A consumer with methods of its own."""
    return type("Overriding", (CaiConsumer,), members)()


def looking(change: Callable[[Any, Any], Any]) -> Any:
    """A consumer that makes something else of the attribute, of which the object is given too."""

    class Looking(CaiConsumer):
        def attribute(self, obj: Any) -> Any:
            found = change(getattr(obj, "__cuda_array_interface__", MISSING), obj)
            if found is MISSING:
                raise AttributeError("__cuda_array_interface__")
            if not isinstance(found, dict):
                raise Refused("cai-type")
            return found

    return Looking()


# --- what is taken ---

profile.accepts(
    "takes", "takes an array of version 3", say.CAI_DICT, "cai()", after=(), mutant=refusing(lambda d: True)
)
for _version in (0, 1, 2):
    profile.accepts(
        f"version-{_version}",
        f"takes an array of version {_version}",
        say.CAI_VERSION,
        f"cai(version={_version}, stream=...)",
        refusal=DEVIATION,
        mutant=refusing(lambda d, version=_version: d["version"] == version),  # type: ignore[misc]
    )
profile.accepts(
    "version-later",
    "takes an array of a version that is newer than it knows",
    say.CAI_VERSION,
    "cai(version=4)",
    severity=RECOMMENDATION,
    mutant=refusing(lambda d: d.get("version") == 4),
)
profile.accepts(
    "strides-missing",
    "takes an array without `strides` as one in C order",
    say.CAI_STRIDES_NONE,
    "cai(strides=...)",
    "cai(np.arange(24.0).reshape(2, 3, 4), strides=...)",
    mutant=refusing(lambda d: "strides" not in d),
)
profile.accepts(
    "strides-c",
    "takes strides that are those of C order",
    say.CAI_STRIDES,
    "cai(strides=(12, 4))",
    mutant=refusing(lambda d: d.get("strides") == (12, 4)),
)
profile.accepts(
    "strides-fortran",
    "takes an array in Fortran order",
    say.CAI_STRIDES,
    "cai(np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)))",
    refusal=RECOMMENDATION,
    mutant=misreading(lambda d: {"strides": None} if d["strides"] == (4, 8) else {}),
)
profile.accepts(
    "strides-bytes",
    "reads strides as bytes",
    say.CAI_STRIDES,
    "cai(np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2])",
    "cai(np.arange(24, dtype=np.int16)[::3])",
    refusal=RECOMMENDATION,
    mutant=misreading(lambda d: {"strides": (4,)} if d["strides"] == (6,) else {}),
)
profile.accepts(
    "strides-negative",
    "reads negative strides as such, or refuses them",
    say.CAI_STRIDES,
    "cai(np.arange(6, dtype=np.float32)[::-1])",
    refusal=RECOMMENDATION,
    mutant=misreading(lambda d: {"strides": (4,), "data": (d["data"][0] - 20, False)} if d["strides"] == (-4,) else {}),
)
profile.accepts(
    "strides-zero",
    "reads a stride of 0 as such, or refuses it",
    say.CAI_STRIDES,
    "cai(np.broadcast_to(np.arange(3, dtype=np.float32), (2, 3)))",
    refusal=RECOMMENDATION,
    mutant=refusing(lambda d: 0 in (d.get("strides") or ())),
)
profile.accepts(
    "strides-one",
    "does not look at the stride of an axis with one element",
    say.CAI_STRIDES,
    "cai(np.arange(3, dtype=np.float32).reshape(1, 3), strides=(999, 4))",
    refusal=DEVIATION,
    mutant=refusing(lambda d: 999 in (d.get("strides") or ())),
)
profile.accepts(
    "ndim-zero",
    "takes an array without axes",
    say.CAI_SHAPE,
    "cai(np.array(7, dtype=np.float32))",
    refusal=RECOMMENDATION,
    mutant=refusing(lambda d: d.get("shape") == ()),
)
profile.accepts(
    "ndim-eight",
    "takes an array of eight axes",
    say.CAI_SHAPE,
    "cai(np.arange(8, dtype=np.float32).reshape(1, 2, 1, 2, 1, 2, 1, 1))",
    refusal=RECOMMENDATION,
    mutant=refusing(lambda d: len(d["shape"]) == 8 if isinstance(d.get("shape"), tuple) else False),
)


@profile.check(
    "shape-huge",
    "keeps an extent that 32 bits do not hold, or refuses it",
    say.CAI_SHAPE,
    mutant=misreading(lambda d: {"shape": (2**33 & 0x7FFF_FFFF,)} if d["shape"] == (2**33,) else {}),
    shows='print(getattr(taken, "__cuda_array_interface__", taken)["shape"])',
)
def _(consumer: Consumer) -> None:
    keeps_its_extent(consumer, "cai(np.zeros(1, np.int8), shape=(2**33,), strides=(0,))")


profile.accepts(
    "size-zero",
    "takes an array without elements, whose pointer is 0",
    say.CAI_ZERO_SIZE,
    "cai(np.zeros((0, 3), dtype=np.float32))",
    refusal=DEVIATION,
    mutant=refusing(lambda d: d.get("data") == (0, False) and d.get("shape") == (0, 3)),
)
profile.accepts(
    "size-zero-pointer",
    "takes an array without elements, whose pointer is not 0",
    say.CAI_ZERO_SIZE,
    "cai(np.zeros((0, 3), dtype=np.float32), data=lambda data: (256, False))",
    severity=RECOMMENDATION,
    mutant=refusing(lambda d: d.get("data") == (256, False)),
)
profile.accepts(
    "stream-missing",
    "takes an array without `stream` as ready",
    say.CAI_STREAM_NONE,
    "cai(stream=...)",
    mutant=refusing(lambda d: "stream" not in d and d.get("version") == 3),
)
for _code, _name in ((1, "legacy"), (2, "per-thread")):
    profile.accepts(
        f"stream-{_name}",
        f"takes an array that is ready on the {_name} default stream",
        say.CAI_STREAM_CODES,
        f"cai(stream={_code})",
        mutant=refusing(lambda d, code=_code: d.get("stream") == code and type(d["stream"]) is int),  # type: ignore[misc]
    )
profile.accepts(
    "stream-handle",
    "takes an array that is ready on a stream",
    say.CAI_STREAM_HANDLE,
    "cai(stream=a_stream())",
    mutant=refusing(lambda d: type(d.get("stream")) is int and 2**70 > d["stream"] > 2 and d["stream"] < 2**63),
)
profile.accepts(
    "mask-none",
    "takes `mask=None`",
    say.CAI_MASK,
    "cai(mask=None)",
    mutant=refusing(lambda d: "mask" in d and d["mask"] is None),
)
profile.accepts(
    "descr-plain",
    "takes a `descr` that says no more than `typestr`",
    say.CAI_DESCR,
    "cai(descr=[('', '<f4')])",
    mutant=refusing(lambda d: d.get("descr") == [("", "<f4")]),
)
profile.accepts(
    "field-unknown",
    "does not look at entries that it does not know",
    say.CAI_DICT,
    "cai(later='something')",
    severity=RECOMMENDATION,
    mutant=refusing(lambda d: "later" in d),
)
profile.accepts(
    "shape-list",
    "takes a list for a tuple, as some producers export it",
    say.CAI_SHAPE,
    "cai(shape=[2, 3])",
    "cai(strides=[12, 4])",
    severity=RECOMMENDATION,
    mutant=refusing(lambda d: isinstance(d.get("strides"), list)),
)
profile.accepts(
    "shape-numpy",
    "takes NumPy's integers, as some producers export them",
    say.CAI_SHAPE,
    "cai(shape=(np.int64(2), np.int64(3)))",
    severity=RECOMMENDATION,
    mutant=refusing(
        lambda d: any(type(item).__name__ == "int64" for item in d.get("shape") or () if isinstance(d["shape"], tuple))
    ),
)
profile.accepts(
    "data-flag-int",
    "takes 0 or 1 for the read-only flag",
    say.CAI_READ_ONLY,
    "cai(data=lambda data: (data[0], 0))",
    severity=RECOMMENDATION,
    mutant=refusing(lambda d: isinstance(d.get("data"), tuple) and len(d["data"]) == 2 and type(d["data"][1]) is int),
)
profile.accepts(
    "data-inside",
    "takes a pointer into an allocation",
    say.CAI_POINTER,
    "cai(np.arange(8, dtype=np.float32), inside=3)",
    mutant=refusing(lambda d: d.get("shape") == (5,)),
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
        say.NUMPY_KIND,
        *(f"cai(np.array([0, 1, 1]).astype(np.{name}))" for name in _dtypes),
        refusal=RECOMMENDATION,
        mutant=misreading(
            lambda d, dtypes=_dtypes: (
                {"strides": (0,)}  # type: ignore[misc]
                if d["shape"] == (3,) and d["typestr"] in [np.dtype(name).str for name in dtypes]
                else {}
            )
        ),
    )
profile.accepts(
    "typestr-byte-order",
    "reads items of the other byte order as such, or refuses them",
    say.NUMPY_ORDER,
    "cai(np.arange(3).astype('>f4'))",
    refusal=RECOMMENDATION,
    mutant=misreading(lambda d: {"typestr": "<f4"} if d["typestr"] == ">f4" else {}),
)

# --- what is done with it ---

#: The calls of the driver that a consumer makes.
CALLS = """from cai_conformance.sim import Sim
{take}(offer)  # what a first use does
sim = Sim()
sim.clear()
taken = {take}(offer)
print(*sim.calls() or ["no call of the driver"], sep="\\n")"""

#: The same, and whether they are a wait for the stream of the offer.
WAITING = f"""from cai_conformance.checks.cai_consumer import waits
{CALLS}
stream = offer.__cuda_array_interface__["stream"]
kept = getattr(taken, "__cuda_array_interface__", {{{{}}}}).get("stream")
print("waits for the stream, or works in it:", waits(sim.calls(), stream) or kept == stream)"""


@profile.check(
    "data-shared",
    "does not copy the data",
    say.CAI_LIFETIME,
    severity=RECOMMENDATION,
    mutant=overriding(seen=lambda self, taken: elsewhere(self, taken)),
    shows="print(taken.__cuda_array_interface__['data'], offer.memory.address)",
)
def _(consumer: Consumer) -> None:
    offer, taken, seen = take(consumer, "cai()")
    if seen.address is None:
        raise NotRun("nothing tells where the consumer's array lies")
    demand(seen.address == offer.memory.address, f"offered at {offer.memory.address:#x}, taken at {seen.address:#x}")
    del taken


def elsewhere(self: Any, taken: dict[str, Any]) -> dict[str, Any]:
    usual = CaiConsumer.seen(self, taken)
    if usual["shape"] != (2, 3) or usual["strides"] is not None or not usual["data"][0]:
        return usual
    copy = driver().allocate(24)
    driver().write(copy, driver().read(usual["data"][0], 24, wait=False))
    return {**usual, "data": (copy, usual["data"][1])}


@profile.check(
    "read-only",
    "does not present an array that must not be written as one that may",
    say.CAI_READ_ONLY,
    # A violation, unlike by DLPack: no text lets a consumer of CAI ignore the flag.
    mutant=misreading(lambda d: {"data": (d["data"][0], False)}),
)
def _(consumer: Consumer) -> None:
    code = "cai(data=lambda data: (data[0], True))"
    offer = consumer.offered(code)
    try:
        seen = consumer.see(consumer.take(offer))
    except NotRun:
        raise
    except Exception:
        return  # a clear refusal
    if seen.writable is None:
        raise NotRun("nothing tells whether the consumer's array may be written")
    if seen.address is not None and seen.address != offer.memory.address:
        return  # a copy may be written
    if seen.writable:
        raise Offer(code, "what it returned says that it may be written")


#: Calls by which a consumer waits for a stream, or makes another one wait.
WAITS = ("cuStreamSynchronize", "cuEventRecord", "cuStreamWaitEvent", "cuCtxSynchronize", "cuEventSynchronize")


def waits(calls: list[Call], stream: int) -> bool:
    """Whether calls wait for a stream: themselves, or for an event that was recorded in it."""
    recorded = False
    for call in calls:
        if call.name == "cuCtxSynchronize" or (call.name == "cuStreamSynchronize" and call.stream == stream):
            return True
        if recorded and call.name in ("cuStreamWaitEvent", "cuEventSynchronize"):
            return True
        recorded |= call.name == "cuEventRecord" and call.stream == stream
    return False


#: What race trials offer: bytes that a stream has still to write.
LATE = "cai(np.zeros(256, np.uint8), stream=a_stream())"


@profile.check(
    "stream-wait",
    "waits for the stream, makes its own stream wait, or works in it",
    say.CAI_CONSUMER_SYNC,
    after=("stream-handle",),
    mutant=overriding(order=lambda self, whole: None),
    shows=WAITING,
)
def _(consumer: Consumer) -> None:
    if not driver().simulated:
        found = trials.lost(consumer, lambda: consumer.offered(LATE))
        if found is not None:
            raise Offer(LATE, found)
        return
    sim, stream = Sim(), a_stream()
    consumer.take(consumer.offered("cai()"))  # what a first use does
    offer = consumer.offered("cai(stream=a_stream())")
    sim.clear()
    taken = consumer.take(offer)
    calls = sim.calls(*WAITS)
    if waits(calls, stream):
        return
    try:
        seen = consumer.see(taken)
    except NotRun:
        seen = None
    if seen is None or seen.stream != stream:
        made = ", ".join(f"{call.symbol}({call.stream})" for call in calls) or "no such call"
        raise Offer("cai(stream=a_stream())", f"the stream is {stream:#x}, and it made {made}")


for _code, _name in ((1, "legacy"), (2, "per-thread")):

    def _waits(consumer: Consumer, code: int = _code) -> None:
        offered = LATE.replace("a_stream()", str(code))
        take(consumer, offered)
        found = trials.lost(consumer, lambda: consumer.offered(offered), stream=code)
        if found is not None:
            raise Offer(offered, found)

    profile.check(
        f"stream-wait-{_name}",
        f"waits for the {_name} default stream, too",
        say.CAI_STREAM_CODES,
        after=(f"stream-{_name}", "stream-wait"),
        mutant=overriding(
            order=lambda self, whole, code=_code: None if whole["stream"] == code else CaiConsumer.order(self, whole)
        ),
        shows=CALLS,
    )(_waits)


@profile.check(
    "stream-none",
    "makes nothing wait if the stream is None",
    say.CAI_STREAM_NONE,
    severity=RECOMMENDATION,
    mutant=overriding(
        order=lambda self, whole: driver().synchronize() if whole["stream"] is None else driver().wait(whole["stream"])
    ),
    shows=CALLS,
)
def _(consumer: Consumer) -> None:
    if not driver().simulated:
        offer = consumer.offered("cai()")
        demand(
            not trials.waits(lambda: consumer.take(offer), a_stream(), 1), "cai(): it waited for work of other streams"
        )
        return
    sim = Sim()
    kept = consumer.take(consumer.offered("cai()"))
    offer = consumer.offered("cai()")
    sim.clear()
    taken = consumer.take(offer)
    made = sim.calls("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize")
    demand(not made, f"cai(): it called {', '.join(call.symbol for call in made)}")
    del kept, taken


@profile.check(
    "owner-kept",
    "keeps the object while its own array lives",
    say.CAI_LIFETIME,
    severity=RECOMMENDATION,
    mutant=overriding(owner=lambda self, obj: obj.memory),
    shows=GOES,
)
def _(consumer: Consumer) -> None:
    keeps_its_owner(consumer, "cai()")


@profile.check(
    "owner-released",
    "lets the object go with its own array",
    say.CAI_LIFETIME,
    mutant=overriding(owner=lambda self, obj: kept(obj)),
    shows=GOES_TOO,
)
def _(consumer: Consumer) -> None:
    lets_its_owner_go(consumer, "cai()")


class Opaque:
    """Keeps an object as C code does that the collector of cycles cannot see through."""

    def __init__(self, obj: Any) -> None:
        self.address = id(obj)
        abi.incref(obj)

    def __del__(self) -> None:
        abi.decref(self.address)


@profile.check(
    "cycle-released",
    "lets the object go if nothing but a cycle of the two keeps it",
    say.CAI_LIFETIME,
    after=("owner-released",),
    severity=RECOMMENDATION,
    mutant=overriding(owner=lambda self, obj: Opaque(obj)),
    shows="""watch = weakref.ref(offer)
offer.taken = taken
del offer, taken
gc.collect()
print(watch())  # not None: it is never freed""",
)
def _(consumer: Consumer) -> None:
    offer, taken, _ = take(consumer, "cai()")
    watch = weakref.ref(offer)
    offer.taken = taken
    del offer, taken
    gc.collect()
    demand(watch() is None, "cai(): the object and the consumer's array keep each other for ever")


@profile.check(
    "refused-released",
    "lets an object go that it refused",
    say.CAI_LIFETIME,
    mutant=looking(
        lambda found, obj: (
            found
            if found["version"] != "3"
            else kept(obj).interface
            if type(found) is dict and "version" in found
            else found
        )
    ),
    forbidden=True,
    shows=REFUSED,
)
def _(consumer: Consumer) -> None:
    code = "cai(version='3')"
    offer = consumer.offered(code)
    watch = weakref.ref(offer)
    try:
        consumer.take(offer)
    except Exception:
        pass
    else:
        raise NotRun("it takes such an array")
    del offer
    gc.collect()
    demand(watch() is None, f"{code}: the object was still there after the refusal")


@profile.check(
    "cai-unchanged",
    "does not change the dict",
    say.CAI_DICT,
    mutant=looking(lambda found, obj: (type(found) is dict and found.setdefault("mask", None)) or found),
    severity=RECOMMENDATION,
    shows="print(offer.interface)",
)
def _(consumer: Consumer) -> None:
    offer = consumer.offered("cai()")
    before = dict(offer.interface)
    taken = consumer.take(offer)
    demand(offer.interface == before, f"cai(): {before} became {offer.interface}")
    del taken


@profile.check(
    "cai-once",
    "reads the attribute once, as each read may give another answer",
    say.CAI_DICT,
    severity=RECOMMENDATION,
    mutant=overriding(attribute=lambda self, obj: [CaiConsumer.attribute(self, obj) for _ in "ab"][1]),
    shows="print(offer.reads)",
)
def _(consumer: Consumer) -> None:
    offer = consumer.offered("cai()")
    taken = consumer.take(offer)
    demand(offer.reads == 1, f"cai(): it read the attribute {offer.reads} times")
    del taken


@profile.check(
    "producer-error",
    "passes an exception of the producer's on",
    say.CAI_DICT,
    severity=RECOMMENDATION,
    mutant=overriding(attribute=lambda self, obj: hidden(self, obj)),
    shows="print(taken)",
)
def _(consumer: Consumer) -> None:
    offer = consumer.offered("Showing(RuntimeError('the array is busy'))")
    try:
        consumer.take(offer)
    except RuntimeError as error:
        demand("the array is busy" in str(error), f"raised RuntimeError({error}) instead of the producer's")
        return
    except Exception as error:
        broken(f"raised {type(error).__name__} instead of the producer's RuntimeError: {error}")
    broken("it was accepted")


def hidden(self: Any, obj: Any) -> Any:
    try:
        return CaiConsumer.attribute(self, obj)
    except RuntimeError:
        raise TypeError("the mutant hides it") from None


# --- what is refused ---


EMPTY = {"shape": (0,), "typestr": "<f4", "data": (0, False), "version": 3}


def rejects(
    rule: str, says: str, source: Source, *codes: str, mutant: Any = None, severity: Severity = DEVIATION
) -> None:
    profile.refuses(rule, says, source, *codes, mutant=without(rule) if mutant is None else mutant, severity=severity)


rejects(
    "cai-type",
    "an attribute that is no dict",
    say.CAI_DICT,
    "Showing(list(cai().interface.items()))",
    mutant=looking(lambda found, obj: dict(found) if type(found) is list else found),
)
rejects(
    "cai-none",
    "an attribute that is None",
    say.CAI_DICT,
    "Showing(None)",
    mutant=looking(lambda found, obj: EMPTY if found is None else found),
)
rejects(
    "cai-missing",
    "an object without the attribute",
    say.CAI_DICT,
    "object()",
    mutant=looking(lambda found, obj: EMPTY if type(obj) is object else found),
)
rejects("version-missing", "a missing `version`", say.CAI_VERSION, "cai(version=...)", severity=RECOMMENDATION)
rejects(
    "version-type",
    "a `version` that is no int",
    say.CAI_VERSION,
    "cai(version='3')",
    "cai(version=None)",
    "cai(version=3.5)",
)
rejects("version-range", "a negative `version`", say.CAI_VERSION, "cai(version=-1)")
rejects("shape-missing", "a missing `shape`", say.CAI_SHAPE, "cai(shape=...)")
rejects("shape-type", "a `shape` that is no tuple", say.CAI_SHAPE, "cai(shape=3)", "cai(shape=None)", "cai(shape='33')")
rejects(
    "shape-item-type",
    "an extent that is no int",
    say.CAI_SHAPE,
    "cai(shape=(2.0, 3))",
    "cai(shape=('2', 3))",
    "cai(shape=((2, 3),))",
)
rejects("shape-extent", "a negative extent", say.CAI_SHAPE, "cai(shape=(-1,))", "cai(shape=(2, -3))")
rejects("shape-range", "an extent beyond 64 bits", say.CAI_SHAPE, "cai(shape=(2**63,))", "cai(shape=(2**200,))")
rejects("count-overflow", "more elements than 64 bits count", say.CAI_SHAPE, "cai(shape=(2**40, 2**40))")
rejects("size-overflow", "more bytes than 64 bits count", say.CAI_SHAPE, "cai(shape=(2**62,))")
rejects("typestr-missing", "a missing `typestr`", say.CAI_TYPESTR, "cai(typestr=...)")
rejects("typestr-type", "a `typestr` that is no str", say.CAI_TYPESTR, "cai(typestr=None)", "cai(typestr=4)")
rejects(
    "typestr-syntax",
    "a `typestr` without kind or size",
    say.NUMPY_TYPESTR,
    "cai(typestr='')",
    "cai(typestr='<f')",
    "cai(typestr='#f4')",
    "cai(typestr='<f4x')",
)
rejects(
    "typestr-size",
    "a size that the kind does not have",
    say.NUMPY_SIZE,
    "cai(typestr='<f3')",
    "cai(typestr='<f99999999999')",
    "cai(typestr='<i0')",
)
rejects("typestr-kind", "a kind that does not exist", say.NUMPY_KIND, "cai(typestr='<q8')")
rejects("typestr-object", "items that are Python objects", say.NUMPY_KIND, "cai(np.arange(3.0), typestr='|O8')")
rejects("data-missing", "a missing `data`", say.CAI_DATA, "cai(data=...)")
rejects("data-type", "`data` that is no tuple", say.CAI_DATA, "cai(data=None)", "cai(data=5)")
rejects(
    "data-length",
    "`data` that has not two items",
    say.CAI_DATA,
    "cai(data=lambda data: (*data, 0))",
    "cai(data=lambda data: data[:1])",
    severity=RECOMMENDATION,
)
rejects("data-pointer-none", "a pointer that is None", say.CAI_POINTER, "cai(data=(None, False))")
rejects(
    "data-pointer-type",
    "a pointer that is no int",
    say.CAI_POINTER,
    "cai(data=('0x7f00', False))",
    "cai(data=(1.5, False))",
)
rejects(
    "data-pointer-range",
    "a pointer that is no 64-bit address",
    say.CAI_POINTER,
    "cai(data=(-1, False))",
    "cai(data=(2**64, False))",
)
rejects("data-pointer-null", "a pointer of 0 with elements", say.CAI_ACCESSIBLE, "cai(data=(0, False))")
rejects(
    "pointer-unknown",
    "a pointer that is no memory of the driver's",
    say.CAI_ACCESSIBLE,
    "cai(data=(64, False))",
    severity=RECOMMENDATION,
)
rejects("strides-type", "`strides` that are no tuple", say.CAI_STRIDES, "cai(strides=4)", "cai(strides='12')")
rejects(
    "strides-item-type", "a stride that is no int", say.CAI_STRIDES, "cai(strides=(12.0, 4))", "cai(strides=('12', 4))"
)
rejects(
    "strides-length",
    "`strides` of another length than `shape`",
    say.CAI_STRIDES,
    "cai(strides=(4,))",
    "cai(strides=(24, 12, 4))",
)
rejects(
    "strides-range", "a stride beyond 64 bits", say.CAI_STRIDES, "cai(strides=(2**63, 4))", "cai(strides=(-(2**70), 4))"
)
rejects(
    "span-overflow",
    "strides that leave the address space",
    say.CAI_STRIDES,
    "cai(strides=(2**62, 2**62))",
    severity=RECOMMENDATION,
)
rejects("mask-type", "a `mask` that is no array", say.CAI_MASK, "cai(mask=5)")
rejects(
    "mask-present",
    "a mask that it would forget",
    say.CAI_MASK,
    "cai(mask=cai(np.zeros((2, 3), dtype=np.bool_)))",
)
rejects("stream-type", "a `stream` that is no int", say.CAI_STREAM, "cai(stream='1')", "cai(stream=1.5)")
rejects("stream-zero", "`stream=0`", say.CAI_STREAM_ZERO, "cai(stream=0)")
rejects("stream-range", "a `stream` that is no handle", say.CAI_STREAM_HANDLE, "cai(stream=-1)", "cai(stream=2**64)")
rejects("descr-type", "a `descr` that is no list", say.NUMPY_DESCR, "cai(descr=42)", severity=RECOMMENDATION)
rejects(
    "descr-size",
    "a `descr` of another size than `typestr`",
    say.NUMPY_DESCR,
    "cai(descr=[('', '<f8')])",
    severity=RECOMMENDATION,
)


@profile.check(
    "refusal-class",
    "raises TypeError, ValueError, BufferError or another documented exception, and no error of its own making",
    say.CAI_DICT,
    severity=RECOMMENDATION,
    mutant=overriding(__call__=lambda self, obj: blundering(self, obj)),
    forbidden=True,
)
def _(consumer: Consumer) -> None:
    def case(code: str) -> None:
        try:
            _, error = refuse(consumer, code)
        except Offer:
            return
        if isinstance(error, AttributeError | IndexError | AssertionError | NameError | SystemError):
            raise Offer(code, f"raised {type(error).__name__}: {error}")

    each(("cai(shape=(-1,))", "cai(typestr=4)", "cai(data=5)", "cai(strides=4)"), case)


def blundering(self: Any, obj: Any) -> Any:
    try:
        return CaiConsumer.__call__(self, obj)
    except Refused as error:
        raise IndexError(str(error)) from None
