"""Checks of consumers that import by DLPack's C Exchange API."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cai_conformance import abi, exchange, offers
from cai_conformance import exchanged as exchanging
from cai_conformance.checks.consuming import Offer, Profile, each, take
from cai_conformance.judge import sources as say
from cai_conformance.judge.check import NotRun, Severity, demand
from cai_conformance.judge.consumed import Consumer
from cai_conformance.judge.memory import same
from cai_conformance.reference.consumers import DlpackConsumer, Refused
from cai_conformance.reference.exchange_consumer import ExchangeConsumer, ExchangeEcho, Taken

VIOLATION, DEVIATION, RECOMMENDATION = Severity
profile = Profile("exchange-consumer")


# --- mutants ---


def overriding(base: type = ExchangeConsumer, **members: Any) -> Any:
    """A consumer with methods of its own."""
    return type("Overriding", (base,), members)()


def without(rule: str) -> Any:
    """A consumer that does not look for one fault."""
    return overriding(rules={name: breaks for name, breaks in DlpackConsumer.rules.items() if name != rule})


def misreading(change: Callable[[abi.Read], dict[str, Any]]) -> Any:
    """A consumer that takes what it is given for something else."""

    class Misread(Taken):
        def shown(self) -> abi.Read:
            return replace(self.read, **change(self.read))

    return overriding(taken=lambda self, read: Misread(read))


def refusing(when: Callable[[Any], bool]) -> Any:
    """A consumer that refuses tables that it should use."""

    def known(self: Any, table: Any) -> Any:
        found = ExchangeConsumer.known(self, table)
        if found is not None and when(found):
            raise Refused("the mutant refuses")
        return found

    return overriding(known=known)


class Kept(Taken):
    """Never calls the deleter."""

    def end(self) -> None:
        return None


class Hasty(Taken):
    """Calls the deleter when it is looked at."""

    def shown(self) -> abi.Read:
        self.end()
        return self.read


class Borrowing(ExchangeConsumer):
    """Keeps a tensor that was lent."""

    def exported(self, table: Any, obj: Any) -> int:
        if not table.borrow or table.borrow == exchanging.RAISES or obj.array.shape != (5,):
            return ExchangeConsumer.exported(self, table, obj)
        managed = abi.DLManagedTensorVersioned()
        exchange.Borrow(table.borrow)(id(obj), ctypes.byref(managed.dl_tensor))
        managed.version = abi.DLPackVersion(*abi.NEWEST)
        self.held = managed
        return ctypes.addressof(managed)


class Caching(ExchangeConsumer):
    """Remembers tables by the addresses of types."""

    def __init__(self) -> None:
        self.tables: dict[int, Any] = {}

    def newest(self, obj: Any) -> Any:
        if obj.array.shape != (7,):
            return super().newest(obj)
        return self.tables.setdefault(id(type(obj)), super().newest(obj))


_WHOLE = exchanging.table(abi.NEWEST)


# --- the table ---


@profile.check(
    "takes",
    "takes an array by the table of its type",
    say.EX_FROM,
    after=(),
    mutant=DlpackConsumer(),
)
def _(consumer: Consumer) -> None:
    offer, taken, _ = take(consumer, "exchanged()")
    del taken
    demand(offer.used, f"exchanged(): it did not use the table, and called __dlpack__ {len(offer.tensor.calls)} times")


@profile.check(
    "on-type",
    "looks the table up on the type, not on the object",
    say.EX_LOOKUP,
    severity=RECOMMENDATION,
    mutant=overriding(attribute=lambda self, obj: getattr(obj, exchange.ATTRIBUTE, None)),
)
def _(consumer: Consumer) -> None:
    code = "exchanged(instance=object())"
    offer, taken, _ = take(consumer, code)
    del taken
    if not offer.used:
        raise Offer(code, "it did not use the type's table")


def unused(consumer: Consumer, code: str, why: str) -> None:
    """Demands that no function of a table is called; refusing the array is right, and so is `__dlpack__`."""
    offer = consumer.offered(code)
    with contextlib.suppress(Exception):
        consumer.take(offer)
    if offer.misused:
        raise Offer(code, why)


#: Whether a table was used.
USED = """try:
    {take}(offer)
except Exception as error:
    print(error)
print("calls of functions of that table:", offer.misused)"""


@profile.check(
    "table-name",
    "does not use a table whose capsule has another name",
    say.EX_TYPE,
    mutant=overriding(is_named=lambda self, name: True),
    shows=USED,
)
def _(consumer: Consumer) -> None:
    unused(consumer, "exchanged(name=b'dlpack_exchange')", "it called a function of that table")


@profile.check(
    "table-major",
    "does not use a table of another major version",
    say.EX_VERSION,
    mutant=overriding(
        known=lambda self, table: (
            table if table is not None and not table.prev_api else ExchangeConsumer.known(self, table)
        )
    ),
    shows=USED,
)
def _(consumer: Consumer) -> None:
    unused(consumer, "exchanged(table=(2, 0))", "it called a function of that table")


profile.accepts(
    "table-minor",
    "uses a table of a later minor version",
    say.EX_VERSION,
    "exchanged(table=(1, 77))",
    mutant=refusing(lambda table: bool(table.version.minor == 77)),
)


@profile.check(
    "table-prev",
    "finds the table that it knows behind a newer one",
    say.EX_WALK,
    severity=RECOMMENDATION,
    after=("takes", "table-major"),
    mutant=overriding(
        known=lambda self, table: table if table is not None and table.version.major == 1 else None,
    ),
)
def _(consumer: Consumer) -> None:
    take(consumer, "exchanged(table=(2, 0), prev=(1, 3), only=True)", RECOMMENDATION)


@profile.check(
    "table-cached",
    "does not take the table of a type that has ended for another type's",
    say.EX_LOOKUP,
    severity=VIOLATION,
    mutant=Caching(),
    shows="""ended = set()
for _ in range(64):
    first = exchanged(np.arange(7, dtype=np.float32))
    {take}(first)
    ended.add(id(type(first)))
del first
gc.collect()
others = [offer]
while id(type(others[-1])) not in ended and len(others) < 500:
    others.append(exchanged(np.arange(7, dtype=np.float32), other=True))
{take}(others[-1])
print(others[-1].by_other)  # False: it was taken by the table of a type that has ended""",
)
def _(consumer: Consumer) -> None:
    code = "exchanged(np.arange(7, dtype=np.float32), other=True)"
    ended = {}
    for _ in range(64):
        offer, taken, _ = take(consumer, code.replace(", other=True", ""))
        ended[id(type(offer))] = weakref.ref(type(offer))
    del offer, taken
    gc.collect()
    if all(kind() is not None for kind in ended.values()):
        return  # the consumer keeps the types: no others can have their addresses
    others: list[Any] = []
    while not others or id(type(others[-1])) not in ended:
        if len(others) == 500:
            raise NotRun("no new type had the address of one that ended")
        others.append(consumer.offered(code))
    consumer.take(others[-1])
    if others[-1].exported and not others[-1].by_other:
        raise Offer(code, "it called a function of the table of a type that had ended")


profile.accepts(
    "borrow-null",
    "takes an array whose table cannot lend it",
    say.EX_BORROW_NULL,
    "exchanged(missing=('borrow',))",
    mutant=refusing(lambda table: not table.borrow),
)
profile.refuses(
    "from-object-null",
    "a table without the function that exports",
    say.EX_NOT_NULL,
    "exchanged(missing=('from_object', 'borrow'), only=True)",
    severity=RECOMMENDATION,
    mutant=overriding(
        exported=lambda self, table, obj: ExchangeConsumer.exported(
            self, _WHOLE if not table.from_object else table, obj
        )
    ),
)


@profile.check(
    "error",
    "passes on the exception that a function of the table has set",
    say.EX_FAILURE,
    mutant=overriding(exported=lambda self, table, obj: hidden(self, table, obj)),
)
def _(consumer: Consumer) -> None:
    code = "exchanged(raises=BufferError('the array is busy'))"
    offer = consumer.offered(code)
    try:
        consumer.take(offer)
    except Exception as error:
        if not isinstance(error, BufferError) or "the array is busy" not in str(error):
            raise Offer(code, f"raised {type(error).__name__}({error}) instead of the producer's BufferError") from None
        return
    raise Offer(code, "was accepted")


def hidden(self: Any, table: Any, obj: Any) -> int:
    try:
        return ExchangeConsumer.exported(self, table, obj)
    except BufferError:
        raise RuntimeError("the mutant hides it") from None


# --- the tensor ---

profile.accepts(
    "strides-elements",
    "reads strides as elements",
    say.DL_STRIDES,
    "exchanged(np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2])",
    refusal=RECOMMENDATION,
    mutant=misreading(lambda read: {"strides": (2, 1)} if read.strides == (4, 2) else {}),
)
profile.accepts(
    "byte-offset-added",
    "adds `byte_offset` to the pointer",
    say.DL_OFFSET,
    "exchanged(byte_offset=8, data=lambda offset: offsets(8))",
    refusal=DEVIATION,
    mutant=misreading(lambda read: {"byte_offset": 0} if read.byte_offset == 8 else {}),
)
profile.refuses(
    "dlpack-major",
    "a tensor of another major version",
    say.DL_MAJOR,
    "exchanged(version=(2, 0), only=True)",
    severity=VIOLATION,
    mutant=without("dlpack-major"),
)


@profile.check(
    "read-only",
    "does not present an array that must not be written as one that may",
    say.AA_READ_ONLY,
    severity=RECOMMENDATION,  # it is the same flag of the same struct as by `__dlpack__`
    mutant=misreading(lambda read: {"flags": 0}),
)
def _(consumer: Consumer) -> None:
    code = "exchanged(flags=1)"
    offer = consumer.offered(code)
    try:
        taken = consumer.take(offer)
    except Exception:
        return  # a clear refusal
    seen = consumer.see(taken)
    del taken
    if seen.writable is None:
        raise NotRun("nothing tells whether the consumer's array may be written")
    if seen.address is not None and seen.address != offer.address:
        return  # a copy may be written
    if seen.writable:
        raise Offer(code, "it may be written")


@profile.check(
    "deleter-early",
    "does not call the deleter while its array lives",
    say.EX_OWNING,
    mutant=overriding(taken=lambda self, read: Hasty(read)),
)
def _(consumer: Consumer) -> None:
    offer, taken, seen = take(consumer, "exchanged()")
    gc.collect()
    if seen.address is not None and seen.address != offer.address:
        raise NotRun("the consumer copies, and so has no use for the tensor")
    demand(offer.deleted == 0, "exchanged(): the deleter ran while the consumer's array was alive")
    del taken


@profile.check(
    "deleter",
    "calls the deleter once, when its array has gone",
    say.EX_OWNING,
    after=("deleter-early",),
    mutant=overriding(taken=lambda self, read: Kept(read)),
)
def _(consumer: Consumer) -> None:
    offers.TWICE.clear()
    offer, taken, seen = take(consumer, "exchanged()")
    del taken, seen
    gc.collect()
    ran = offer.deleted + len(offers.TWICE)
    demand(ran == offer.exported, f"exchanged(): {offer.exported} tensors, and the deleter ran {ran} times")


@profile.check(
    "refused-released",
    "gives a tensor back that it refuses",
    say.EX_OWNING,
    mutant=overriding(refused=lambda self, address: None),
    shows="""try:
    {take}(offer)
except Exception as error:
    print(error)
print(offer.exported, "tensors,", offer.deleted, "given back")""",
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
        if not all(map(offers.CALLED.get, offer.addresses)):
            raise Offer(code, "the deleter was not called")

    each(("exchanged(dtype=(99, 32, 1))", "exchanged(ndim=-1)", "exchanged(shape=(-1, 3))"), case, VIOLATION)


@profile.check(
    "borrow-kept",
    "does not keep what was lent to it for the time of a call",
    say.EX_LENT,
    after=("takes",),
    mutant=Borrowing(),
    shows="for copy in offer.lent:\n    copy[...] = -1\nprint(np.asarray(taken))",
)
def _(consumer: Consumer) -> None:
    code = "exchanged(np.arange(5, dtype=np.float32))"
    offer, taken, _ = take(consumer, code)
    for copy in offer.lent:
        copy[...] = -1
    found = consumer.see(taken).values
    if not same(found, offer.array):
        raise Offer(code, f"{found.tolist()} instead of {offer.array.tolist()}, once what was lent had changed")
    del taken


@profile.check(
    "to-object",
    "leaves a tensor to the function that makes an object of it",
    say.EX_STOLEN,
    mutant=overriding(ExchangeEcho, returned=lambda self, table, address: twice(self, table, address)),
    shows="del taken\ngc.collect()\nprint(offer.exported, 'tensors, given back', offer.deleted + len(TWICE), 'times')",
)
def _(consumer: Consumer) -> None:
    code = "exchanged(np.arange(4, dtype=np.float32))"
    offers.TWICE.clear()
    exchanging.IMPORTED.clear()
    offer, taken, _ = take(consumer, code)
    if not exchanging.IMPORTED:
        raise NotRun("the consumer makes no object by the table")
    during = offer.deleted
    del taken
    gc.collect()
    ran = offer.deleted + len(offers.TWICE)
    if during:
        raise Offer(code, "the deleter ran while the object lived that was made of the tensor")
    if ran != offer.exported:
        raise Offer(code, f"{offer.exported} tensors, and the deleter ran {ran} times")


def twice(self: Any, table: Any, address: int) -> Any:
    made = ExchangeEcho.returned(self, table, address)
    if made.array.shape == (4,):
        offers.TWICE.append(address)
    return made


# --- the stream ---


@profile.check(
    "work-stream",
    "asks for the work stream of the array's device",
    say.EX_SAME_STREAM,
    severity=DEVIATION,
    mutant=overriding(order=lambda self, table, device: None),
    shows="from cai_conformance.exchanged import ASKED\nprint(ASKED)  # the devices whose stream it asked for",
)
def _(consumer: Consumer) -> None:
    code = "exchanged(on_device=True)"
    offer = consumer.offered(code)
    exchanging.ASKED.clear()
    try:
        taken = consumer.take(offer)
    except Exception as error:
        raise NotRun(f"the consumer takes no memory of a device: {error}") from None
    if not offer.used:
        raise NotRun("the consumer does not use the table for memory of a device")
    asked = list(exchanging.ASKED)
    del taken
    if (abi.CUDA, 0) not in asked:
        raise Offer(code, f"it asked for {asked or 'no stream'}")
