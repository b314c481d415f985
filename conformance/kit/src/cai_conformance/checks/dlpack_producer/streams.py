"""Streams: of the host there is none; of CUDA devices they are codes and handles."""

from __future__ import annotations

from typing import Any

from cai_conformance import abi
from cai_conformance.checks.dlpack_producer.base import DEVIATION, RECOMMENDATION, Tensors, check, overriding, refusing
from cai_conformance.cuda import driver
from cai_conformance.judge import sources as say
from cai_conformance.judge import trials
from cai_conformance.judge.check import NotRun, broken, demand
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
