"""Streams: of the host there is none; of CUDA devices they are codes and handles."""

from __future__ import annotations

import ctypes
from typing import Any

from cai_conformance import abi, exchange
from cai_conformance.checks.dlpack_producer.base import DEVIATION, RECOMMENDATION, Tensors, check, overriding, refusing
from cai_conformance.cuda import driver
from cai_conformance.judge import sources as say
from cai_conformance.judge import trials
from cai_conformance.judge.check import NotRun, broken, demand
from cai_conformance.judge.produced import Produced
from cai_conformance.judge.samples import Sample
from cai_conformance.offers import a_stream
from cai_conformance.reference.producers import DlpackDeviceArray
from cai_conformance.sim import Sim


@check(
    "stream-cpu",
    "for memory of the host no stream but None is accepted",
    say.AA_STREAM_CPU,
    after=("device-mismatch",),
    severity=DEVIATION,
    mutant=overriding(check_stream=lambda self, stream: None),
)
def _(t: Tensors) -> None:
    if t.device_type != abi.CPU:
        raise NotRun("the array is not in memory of the host")
    try:
        t.ask(**t.usual, stream=1)
    except Exception:
        return
    broken("stream=1 was accepted")


@check(
    "stream-none",
    "`stream=None` is accepted",
    say.AA_STREAM_NONE,
    after=("device-mismatch",),
    mutant=refusing("stream", None, ValueError),
)
def _(t: Tensors) -> None:
    try:
        t.export(stream=None)
    except (BufferError, ValueError) as error:
        broken(f"raised {type(error).__name__}: {error}")


def on_device(**members: Any) -> Any:
    """A producer in device memory with methods of its own."""
    return type("OverridingDevice", (DlpackDeviceArray,), members)


def need_cuda(t: Tensors) -> None:
    if t.device_type not in (abi.CUDA, abi.CUDA_MANAGED):
        raise NotRun("the array is not in memory of a CUDA device")


for _code, _name in ((1, "legacy"), (2, "per-thread")):

    def _accepts(t: Tensors, code: int = _code) -> None:
        need_cuda(t)
        try:
            t.export(stream=code)
        except (BufferError, ValueError) as error:
            broken(f"stream={code} raised {type(error).__name__}: {error}")

    check(
        f"stream-{_name}",
        f"`stream={_code}`, the {_name} default stream, is accepted",
        say.AA_STREAM_OPTIONAL,
        after=("device-mismatch",),
        severity=RECOMMENDATION,
        mutant=type(
            "Refusing",
            (DlpackDeviceArray,),
            {"check_stream": lambda self, stream, code=_code: refuse_stream(self, stream, code)},
        ),
    )(_accepts)


def refuse_stream(self: Any, stream: Any, code: int) -> None:
    if stream == code:
        raise ValueError("the mutant refuses")
    DlpackDeviceArray.check_stream(self, stream)


@check(
    "stream-handle",
    "the handle of a stream is accepted",
    say.AA_STREAM_OPTIONAL,
    after=("device-mismatch",),
    severity=RECOMMENDATION,
    mutant=on_device(
        check_stream=lambda self, stream: refuse_stream(self, stream, stream if stream and stream > 2 else -3)
    ),
)
def _(t: Tensors) -> None:
    need_cuda(t)
    handle = driver().stream()
    try:
        t.export(stream=handle)
    except (BufferError, ValueError) as error:
        broken(f"a stream raised {type(error).__name__}: {error}")


def must_refuse(t: Tensors, stream: Any) -> None:
    need_cuda(t)
    try:
        t.ask(**t.usual, stream=stream)
    except Exception:
        return
    broken(f"stream={stream!r} was accepted")


@check(
    "stream-zero",
    "`stream=0` is refused",
    say.AA_STREAM_ZERO,
    after=("device-mismatch",),
    severity=DEVIATION,
    mutant=on_device(check_stream=lambda self, stream: DlpackDeviceArray.check_stream(self, stream or None)),
)
def _(t: Tensors) -> None:
    must_refuse(t, 0)


@check(
    "stream-range",
    "`stream=-2` is refused",
    say.AA_STREAM_RANGE,
    after=("device-mismatch",),
    severity=DEVIATION,
    mutant=on_device(
        check_stream=lambda self, stream: DlpackDeviceArray.check_stream(self, None if stream == -2 else stream)
    ),
)
def _(t: Tensors) -> None:
    must_refuse(t, -2)


@check(
    "stream-type",
    "a stream that is no int is refused",
    say.AA_STREAM_RANGE,
    after=("device-mismatch",),
    severity=DEVIATION,
    mutant=on_device(
        check_stream=lambda self, stream: (
            None if isinstance(stream, str) else DlpackDeviceArray.check_stream(self, stream)
        )
    ),
)
def _(t: Tensors) -> None:
    must_refuse(t, "1")


#: Calls that make the host, or another stream, wait.
WAITS = ("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuStreamWaitEvent")


@check(
    "stream-no-sync",
    "`stream=-1` makes nothing wait",
    say.AA_NO_SYNC,
    after=("device-mismatch",),
    mutant=on_device(
        check_stream=lambda self, stream: (
            driver().synchronize() if stream == -1 else DlpackDeviceArray.check_stream(self, stream)
        )
    ),
    shows="""from cai_conformance.sim import Sim
sim = Sim()
sim.clear()
array.__dlpack__(stream=-1)
print(*sim.calls(), sep="\\n")""",
)
def _(t: Tensors) -> None:
    need_cuda(t)
    if not driver().simulated:
        waited = trials.waits(lambda: t.export(stream=-1), a_stream(), 1)
        demand(not waited, "it waited for work of other streams")
        return
    sim, _ = Sim(), t.usual  # the keywords are asked for before
    sim.clear()
    t.export(stream=-1)
    made = [call.symbol for call in sim.calls(*WAITS)]
    demand(not made, f"it called {', '.join(made)}")


# --- the order ---


def work_stream(t: Tensors) -> int:
    """The stream in which the array is ready, by what the producer says elsewhere.

    Raises:
        NotRun: it says nothing, or that no work is pending.
    """
    interface = getattr(t.object, "__cuda_array_interface__", None)
    if interface is not None:
        found = interface.get("stream")
        if not found:
            raise NotRun("by __cuda_array_interface__ no work is pending in a stream")
        return int(found)
    if not hasattr(type(t.object), exchange.ATTRIBUTE):
        raise NotRun("nothing tells in which stream it works")
    out = ctypes.c_void_p()
    table = exchange.table_of(type(t.object))
    device_type, device_id = map(int, t.device)
    if exchange.WorkStream(table.work_stream)(device_type, device_id, ctypes.byref(out)):
        raise NotRun("current_work_stream failed")
    return out.value or 1


#: An array that is written late.
LATE = Sample("late", "np.zeros(256, dtype=np.uint8)")


def demand_order(t: Tensors, stream: int | None) -> None:
    """Demands that a consumer's stream waits for the producer's."""
    need_cuda(t)
    own = work_stream(t)
    arrays: list[Any] = []

    def made() -> trials.Late:
        fresh = Tensors(Produced(t.produced.make, LATE))
        arrays.append(fresh)
        return trials.Late(fresh.object, fresh.any().address, fresh.expected.nbytes)

    found = trials.raced(made, lambda array: trials.read_after_export(array, stream), own)
    if found is not None:
        named = hex(stream) if stream is not None and stream > 2 else repr(stream)
        broken(f"its work is in stream {own:#x}, and a consumer that named stream={named} read too early: {found}")


#: What is called for a consumer that names its stream.
ORDERED = """from cai_conformance.sim import Sim
sim = Sim()
sim.clear()
array.__dlpack__({})
print(array.__dlpack_device__())
print(*sim.calls("cuEventRecord", "cuStreamWaitEvent", "cuStreamSynchronize", "cuCtxSynchronize"), sep="\\n")"""


@check(
    "stream-order",
    "`stream=None` makes the legacy default stream wait for the producer's work",
    say.AA_STREAM_NONE,
    after=("device-mismatch", "stream-none"),
    mutant=on_device(order=lambda self, stream: DlpackDeviceArray.order(self, -1 if stream is None else stream)),
    shows=ORDERED.format(""),
)
def _(t: Tensors) -> None:
    demand_order(t, None)


@check(
    "stream-order-named",
    "the stream that a consumer names waits for the producer's work",
    say.PY_STREAM_WAIT,
    after=("device-mismatch", "stream-no-sync"),
    severity=DEVIATION,  # "support for a stream value other than None is optional"
    mutant=on_device(order=lambda self, stream: DlpackDeviceArray.order(self, -1 if stream else stream)),
    shows=ORDERED.format("stream=driver().stream()"),
)
def _(t: Tensors) -> None:
    need_cuda(t)
    for stream in (trials.another_stream(), 1, 2):
        demand_order(t, stream)
