"""Checks of consumers of DLPack in memory of a CUDA device: the stream that they name, and what they do in it."""

from __future__ import annotations

from typing import Any

from cai_conformance import abi
from cai_conformance.checks.consuming import Offer, take
from cai_conformance.checks.dlpack_consumer import DEVIATION, RECOMMENDATION, misreading, overriding, profile
from cai_conformance.cuda import driver
from cai_conformance.judge import sources as say
from cai_conformance.judge import trials
from cai_conformance.judge.check import NotRun
from cai_conformance.judge.consumed import Consumer
from cai_conformance.judge.text import text_of
from cai_conformance.reference.consumers import DlpackConsumer, NoSuchDevice, Refused, TakenTensor

USUAL = "device_tensor()"
#: What race trials offer: bytes that a stream has still to write.
LATE = "device_tensor(np.zeros(256, np.uint8))"
#: The same, of a producer that knows no keyword but the oldest.
LATE_OLDER = "device_tensor(np.zeros(256, np.uint8), keywords=('stream',))"
CALLS = "print(offer.calls)"


def naming(**stream: Any) -> Any:
    """A consumer that names another stream of a CUDA device than its own."""
    return overriding(naming=lambda self, device: stream if device[0] == abi.CUDA else {})


def take_usual(consumer: Consumer) -> Any:
    """Hands memory of a CUDA device over, and returns the offer.

    Raises:
        NotRun: the consumer refuses it.
    """
    offer = consumer.offered(USUAL)
    try:
        consumer.take(offer)
    except Exception as error:
        raise NotRun(f"the consumer takes no memory of a CUDA device: {text_of(error)}") from None
    return offer


@profile.check(
    "device-refusal",
    "raises BufferError for memory of a device that it does not support",
    say.PY_UNSUPPORTED,
    severity=RECOMMENDATION,
    mutant=overriding(own=lambda self, capsule: refused_otherwise(self, capsule)),
    forbidden=True,
)
def _(consumer: Consumer) -> None:
    code = "tensor(device=(8, 0))"
    try:
        consumer.take(consumer.offered(code))
    except BufferError:
        return
    except Exception as error:
        raise Offer(code, f"raised {text_of(error)}") from None
    raise NotRun("it takes memory of Metal")


def refused_otherwise(self: Any, capsule: Any) -> Any:
    try:
        return DlpackConsumer.own(self, capsule)
    except NoSuchDevice as error:
        raise Refused(str(error)) from None


@profile.check(
    "takes-device",
    "takes memory of a CUDA device as such, or refuses it, and does not read it on the host",
    say.DL_DEVICE_POINTER,
    mutant=misreading(lambda read: {"strides": (0, 0)} if read.device[0] == abi.CUDA else {}),
)
def _(consumer: Consumer) -> None:
    take_usual(consumer)
    try:
        take(consumer, USUAL)
    except Offer as found:
        if "cannot be read" not in str(found):
            raise
        raise NotRun(str(found)) from None  # it may be a library that has such memory and no driver


def named(consumer: Consumer) -> list[Any]:
    """The streams that a consumer names for memory of a CUDA device, one for each call."""
    return [call.get("stream") for call in take_usual(consumer).calls]


@profile.check(
    "stream-zero",
    "does not name stream 0",
    say.AA_STREAM_ZERO,
    after=("takes-device",),
    mutant=naming(stream=0),
    shows=CALLS,
)
def _(consumer: Consumer) -> None:
    found = [stream for stream in named(consumer) if isinstance(stream, int) and stream == 0]
    if found:
        raise Offer(USUAL, f"stream={found[0]!r}")


@profile.check(
    "stream-range",
    "names a stream by an int that is -1 or larger, or None",
    say.AA_STREAM_RANGE,
    after=("takes-device",),
    mutant=naming(stream=-2),
    shows=CALLS,
)
def _(consumer: Consumer) -> None:
    for stream in named(consumer):
        if stream is not None and not (isinstance(stream, int) and stream >= -1):
            raise Offer(USUAL, f"stream={stream!r}, a {type(stream).__name__}")


@profile.check(
    "stream-alive",
    "names a stream that exists",
    say.AA_STREAM_RANGE,
    after=("takes-device", "stream-range"),
    mutant=naming(stream=0x7F00_0000_1000),
    shows="print([driver().knows_stream(call['stream']) for call in offer.calls if call.get('stream')])",
)
def _(consumer: Consumer) -> None:
    handles = [stream for stream in named(consumer) if stream is not None and stream > 2]
    if not handles:
        raise NotRun("it names no stream of its own")
    if not driver().simulated:
        raise NotRun("a GPU's driver cannot be asked whether a stream exists")
    for stream in handles:
        if not driver().knows_stream(stream):
            raise Offer(USUAL, f"the driver has no stream {stream:#x}")


class OnLegacy(TakenTensor):
    """Works in the legacy default stream."""

    stream = 1


@profile.check(
    "stream-explicit",
    "names its stream, and does not leave the legacy default stream to the keyword's default",
    say.AA_STREAM_EXPLICIT,
    after=("takes-device",),
    severity=RECOMMENDATION,
    mutant=overriding(naming=lambda self, device: {}, taken=lambda self, read: OnLegacy(read)),
    shows=CALLS,
)
def _(consumer: Consumer) -> None:
    if all(stream is None for stream in named(consumer)):
        raise Offer(USUAL, "it named none: the producer must assume the legacy default stream")


def lost(consumer: Consumer, code: str, read: trials.Read) -> str | None:
    """What was read before the work that an array is ready after; None if that came first.

    Raises:
        NotRun: the consumer asks for no order, and does no work.
    """
    take_usual(consumer)
    offer = consumer.offered(code)
    taken = consumer.take(offer)
    if offer.calls[-1].get("stream") == -1 and is_view(consumer, taken, offer):
        raise NotRun("it names -1, and does no work: the order is left to who calls it")
    del taken
    return trials.lost(consumer, lambda: consumer.offered(code), read)


def is_view(consumer: Consumer, taken: Any, offer: Any) -> bool:
    """Whether the consumer's array lies where it was offered, as far as anything tells."""
    try:
        address = consumer.see(taken).address
    except Exception:
        return True
    return address is None or address == offer.address


def demand_own(consumer: Consumer, code: str) -> None:
    """Demands that the stream in which the consumer works waits for the producer's."""
    found = lost(consumer, code, trials.in_its_stream)
    if found is not None:
        raise Offer(code, f"its work did not wait in the stream that it named: {found}")


#: What the consumer named, and in which stream its array is ready.
WORKS = """_ = [{take}(offer)]  # what a first use does
print([call.get("stream") for call in offer.calls])
print(getattr(_[0], "__cuda_array_interface__", {{}}).get("stream"))"""


@profile.check(
    "stream-order",
    "works in the stream that it names, or makes its own wait for that",
    say.PY_STREAM,
    after=("takes-device", "stream-alive"),
    mutant=naming(stream=1),
    shows=WORKS,
)
def _(consumer: Consumer) -> None:
    demand_own(consumer, LATE)


@profile.check(
    "stream-fallback",
    "names its stream to a producer that knows no keyword but `stream`, too",
    say.PY_STREAM,
    after=("fallback", "stream-order"),
    mutant=overriding(ask=lambda self, obj, **stream: forgetful(self, obj, stream)),
    shows=WORKS,
)
def _(consumer: Consumer) -> None:
    demand_own(consumer, LATE_OLDER)


def forgetful(self: Any, obj: Any, stream: dict[str, Any]) -> Any:
    try:
        return obj.__dlpack__(max_version=self.newest, **stream)
    except TypeError:
        return obj.__dlpack__()


class Careless(TakenTensor):
    """Passes its tensor on to others as if it were ready in any stream."""

    def order(self, stream: int | None) -> None:
        return None


@profile.check(
    "stream-passed-on",
    "makes the stream wait that is named to the `__dlpack__` of its own array",
    say.PY_STREAM_WAIT,
    after=("stream-order",),
    severity=DEVIATION,  # "support for a stream value other than None is optional"
    mutant=overriding(taken=lambda self, read: Careless(read)),
    shows="""from cai_conformance.sim import Sim
sim = Sim()
sim.clear()
taken.__dlpack__(stream=driver().stream())
print(*sim.calls("cuEventRecord", "cuStreamWaitEvent", "cuStreamSynchronize", "cuCtxSynchronize"), sep="\\n")""",
)
def _(consumer: Consumer) -> None:
    found = lost(consumer, LATE, trials.passed_on)
    if found is not None:
        raise Offer(LATE, f"who asked its array for a tensor on a stream read too early: {found}")


@profile.check(
    "device-version",
    "says which version it knows (`max_version`) for memory of a device, too",
    say.AA_MAX_VERSION,
    after=("takes-device", "asks-version"),
    severity=RECOMMENDATION,
    mutant=overriding(
        ask=lambda self, obj, **stream: obj.__dlpack__(**stream) if stream else DlpackConsumer.ask(self, obj)
    ),
    shows=CALLS,
)
def _(consumer: Consumer) -> None:
    if not any(call.get("max_version") for call in take_usual(consumer).calls):
        raise Offer(USUAL, "it asked without max_version: such a tensor has no flags")


@profile.check(
    "device-number",
    "keeps the number of the device",
    say.AA_SAME_DEVICE,
    after=("takes-device",),
    mutant=misreading(lambda read: {"device": (abi.CUDA, 0)} if read.device[0] == abi.CUDA else {}),
    shows="print(taken.__dlpack_device__())",
)
def _(consumer: Consumer) -> None:
    code = "device_tensor(number=1)"
    take_usual(consumer)
    if driver().devices < 2:
        raise NotRun("there is one device")
    try:
        taken = consumer.take(consumer.offered(code))
    except Exception as error:
        raise Offer(code, f"raised {text_of(error)}", RECOMMENDATION) from None
    if not hasattr(taken, "__dlpack_device__"):
        raise NotRun("what it returned has no __dlpack_device__")
    found = tuple(map(int, taken.__dlpack_device__()))
    if found != (abi.CUDA, 1):
        raise Offer(code, f"what it returned is on device {found}")


@profile.check(
    "stream-rocm",
    "names neither 1 nor 2 for memory of a ROCm device",
    say.AA_STREAM_ROCM,
    mutant=overriding(
        naming=lambda self, device: {"stream": 1} if device[0] == abi.ROCM else DlpackConsumer.naming(self, device)
    ),
    shows=CALLS,
)
def _(consumer: Consumer) -> None:
    code = "tensor(device=(10, 0))"
    offer = consumer.offered(code)
    try:
        consumer.take(offer)
    except Exception as error:
        refusal = text_of(error)
    else:
        refusal = ""
    found = [call.get("stream") for call in offer.calls if call.get("stream") in (1, 2)]
    if found:
        raise Offer(code, f"stream={found[0]!r}")
    if refusal:
        raise NotRun(f"the consumer takes no memory of ROCm: {refusal}")
