"""`copy` and `dl_device`."""

from __future__ import annotations

from typing import Any

from cai_conformance import abi
from cai_conformance.checks.dlpack_producer.base import DEVIATION, RECOMMENDATION, Tensors, check, overriding, refusing
from cai_conformance.judge import sources as say
from cai_conformance.judge.check import NotRun, broken, demand
from cai_conformance.judge.exported import HOST
from cai_conformance.judge.memory import same
from cai_conformance.judge.text import text_of
from cai_conformance.reference.producers import DlpackArray, DlpackDeviceArray


@check(
    "copy-none",
    "`copy=None` is as if it were left out",
    say.AA_COPY_NONE,
    after=("values",),
    mutant=refusing("copy", None),
)
def _(t: Tensors) -> None:
    try:
        t.export(copy=None)
    except (BufferError, ValueError) as error:
        broken(f"raised {type(error).__name__}: {error}")


@check(
    "copy-false",
    "`copy=False` gives the array's own memory",
    say.AA_COPY_FALSE,
    after=("view", "values-legacy"),
    mutant=overriding(is_copied=lambda self, copy: copy is not None),
)
def _(t: Tensors) -> None:
    found, usual = t.export(copy=False), t.export()
    demand(found.address == usual.address, "the memory is other than without the keyword")


@check(
    "copy-true",
    "`copy=True` gives memory of its own, with the same elements",
    say.AA_COPY_TRUE,
    after=("copy-false",),
    mutant=overriding(
        managed=lambda self, versioned, copied=False: DlpackArray.managed(self, versioned),
    ),
)
def _(t: Tensors) -> None:
    try:
        found, usual = t.export(copy=True), t.export()
    except BufferError as error:
        raise NotRun(f"the producer makes no copies: {error}") from None
    except NotRun:
        raise
    except Exception as error:
        broken(f"raised {type(error).__name__} instead of BufferError: {error}", RECOMMENDATION)
    demand(found.address != usual.address, "the memory is the array's")
    demand(same(found.values(), t.expected), f"{found.values().tolist()} instead of {t.expected.tolist()}")


@check(
    "copied-flag",
    "the flag for a copy is set if one was made",
    say.AA_COPIED,
    after=("copy-true",),
    mutant=overriding(flags=lambda self, array, copied: DlpackArray.flags(self, array, False)),
)
def _(t: Tensors) -> None:
    try:
        found = t.export(copy=True, max_version=abi.NEWEST)
    except BufferError as error:
        raise NotRun(f"the producer makes no copies: {error}") from None
    if not found.versioned:
        raise NotRun("the producer exports the older tensor only")
    demand(found.flags & abi.IS_COPIED, f"flags={found.flags:#b}")


@check(
    "dl-device-none",
    "`dl_device=None` is as if it were left out",
    say.AA_DL_DEVICE,
    after=("device-mismatch",),
    mutant=refusing("dl_device", None),
)
def _(t: Tensors) -> None:
    try:
        found = t.export(dl_device=None)
    except (BufferError, ValueError) as error:
        broken(f"raised {type(error).__name__}: {error}")
    demand(found.read.device == t.export().read.device, f"the tensor is on {found.read.device}")


@check(
    "dl-device-own",
    "`dl_device` may be the array's own device",
    say.AA_DL_DEVICE,
    after=("dl-device-none",),
    severity=DEVIATION,
    mutant=refusing("dl_device", (abi.CPU, 0)),
)
def _(t: Tensors) -> None:
    try:
        t.export(dl_device=t.device)
    except (BufferError, ValueError) as error:
        broken(f"dl_device={t.device} raised {type(error).__name__}: {error}")


@check(
    "dl-device",
    "`dl_device` of a device that the producer does not have raises BufferError",
    say.AA_DL_DEVICE_ERROR,
    after=("dl-device-own",),
    mutant=overriding(check_device=lambda self, dl_device: None),
)
def _(t: Tensors) -> None:
    try:
        found = t.export(dl_device=(9, 0))
    except BufferError:
        return
    except NotRun:
        raise
    except Exception as error:
        broken(f"raised {type(error).__name__} instead: {error}", DEVIATION)
    broken(f"a tensor on {found.read.device} was returned")


class Ignorant(DlpackDeviceArray):
    """Takes the host for a device that it may leave the array on."""

    def __dlpack__(self, *, dl_device: Any = None, **keywords: Any) -> Any:
        other = dl_device if dl_device is None or tuple(map(int, dl_device)) != (abi.CPU, 0) else None
        return super().__dlpack__(dl_device=other, **keywords)


@check(
    "dl-device-host",
    "`dl_device` of the host gives memory of the host with the same elements",
    say.AA_DL_DEVICE_HOST,
    after=("values",),
    mutant=Ignorant,
)
def _(t: Tensors) -> None:
    if t.device_type in HOST:
        raise NotRun("the array is in memory that the host reads")
    try:
        found = t.export(dl_device=(abi.CPU, 0))
    except BufferError as error:
        broken(f"raised BufferError: {error}", RECOMMENDATION)
    except NotRun:
        raise
    except Exception as error:
        broken(f"raised {text_of(error)} instead of BufferError", DEVIATION)
    demand(found.read.device == (abi.CPU, 0), f"the tensor is on {found.read.device}")
    demand(same(found.values(), t.expected), f"{found.values().tolist()} instead of {t.expected.tolist()}")


class CopiesAnyway(DlpackDeviceArray):
    """Copies to the host, whatever is said of copies."""

    def __dlpack__(self, *, dl_device: Any = None, copy: Any = None, **keywords: Any) -> Any:
        to_host = dl_device is not None and tuple(map(int, dl_device)) == (abi.CPU, 0)
        return super().__dlpack__(dl_device=dl_device, copy=None if to_host else copy, **keywords)


@check(
    "dl-device-host-copy-false",
    "`dl_device` of the host with `copy=False` raises BufferError, if the host cannot read the memory",
    say.AA_HOST_COPY_FALSE,
    after=("dl-device-host",),
    severity=DEVIATION,
    mutant=CopiesAnyway,
)
def _(t: Tensors) -> None:
    if t.device_type in HOST:
        raise NotRun("the array is in memory that the host reads")
    try:
        found = t.export(dl_device=(abi.CPU, 0), copy=False)
    except BufferError:
        return
    except NotRun:
        raise
    except Exception as error:
        broken(f"raised {text_of(error)}", RECOMMENDATION)
    broken(f"a tensor on {found.read.device} was returned")
