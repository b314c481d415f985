"""The two methods, and which tensor they return."""

from __future__ import annotations

import ctypes

from cai_conformance import abi
from cai_conformance.checks.dlpack_producer.base import (
    DEVIATION,
    RECOMMENDATION,
    Tensors,
    check,
    on_host,
    overriding,
    refusing,
)
from cai_conformance.judge import sources as say
from cai_conformance.judge import steps
from cai_conformance.judge.check import NotRun, broken, demand
from cai_conformance.judge.samples import SHAPES
from cai_conformance.judge.text import text_of
from cai_conformance.reference.producers import DlpackArray

#: A minor version that DLPack will not have for long.
LATER = 1000


@check(
    "device-missing",
    "`__dlpack_device__` is there and can be called",
    say.AA_DEVICE,
    mutant=overriding(__dlpack_device__=(abi.CPU, 0), fill=lambda self, *a: None),
)
def _(t: Tensors) -> None:
    found = getattr(t.object, "__dlpack_device__", None)
    demand(callable(found), f"__dlpack_device__ is a {type(found).__name__}")


@check(
    "device-pair",
    "`__dlpack_device__` returns a tuple of two",
    say.AA_DEVICE,
    after=("device-missing",),
    mutant=overriding(__dlpack_device__=lambda self: [abi.CPU, 0]),
)
def _(t: Tensors) -> None:
    demand(isinstance(t.device, tuple) and len(t.device) == 2, f"it returned {t.device!r}")


@check(
    "device-item-type",
    "device type and device id are ints",
    say.AA_DEVICE,
    after=("device-pair",),
    mutant=overriding(
        __dlpack_device__=lambda self: (float(abi.CPU), 0),
        fill=on_host,
    ),
)
def _(t: Tensors) -> None:
    for item in t.device:
        demand(isinstance(item, int) and not isinstance(item, bool), f"it returned {t.device!r}")


@check(
    "device-unknown",
    "the device type is one of DLPack's",
    say.DL_DEVICE,
    after=("device-item-type",),
    mutant=overriding(
        __dlpack_device__=lambda self: (99, 0),
        fill=on_host,
    ),
)
def _(t: Tensors) -> None:
    demand(0 < t.device_type <= abi.LARGEST_DEVICE_TYPE and t.device_type not in (5, 6), f"it returned {t.device!r}")


@check(
    "device-id",
    "the device id is not negative",
    say.DL_DEVICE_ID,
    after=("device-item-type",),
    mutant=overriding(
        __dlpack_device__=lambda self: (abi.CPU, -1),
        fill=on_host,
    ),
)
def _(t: Tensors) -> None:
    demand(t.device[1] >= 0, f"it returned {t.device!r}")


@check(
    "device-id-host",
    "the device id of memory of the host is 0",
    say.DL_DEVICE_ID,
    after=("device-id", "device-unknown"),
    severity=DEVIATION,
    mutant=overriding(
        __dlpack_device__=lambda self: (abi.CPU, 1),
        check_device=lambda self, dl_device: DlpackArray.check_device(self, dl_device and (dl_device[0], 0)),
    ),
)
def _(t: Tensors) -> None:
    if t.device_type not in (abi.CPU, abi.CUDA_HOST, abi.CUDA_MANAGED):
        raise NotRun("the array is in device memory")
    demand(t.device[1] == 0, f"it returned {t.device!r}")


@check(
    "dlpack-missing",
    "`__dlpack__` is there and can be called without an argument",
    say.AA_KEYWORDS,
    after=("device-missing",),
    samples=SHAPES,
    mutant=overriding(
        __dlpack__=lambda self, *, max_version, stream=None, dl_device=None, copy=None: DlpackArray.__dlpack__(
            self, max_version=max_version, stream=stream, dl_device=dl_device, copy=copy
        )
    ),
)
def _(t: Tensors) -> None:
    try:
        t.ask()
    except BufferError as error:
        raise NotRun(f"without max_version it raised {text_of(error)}, as producers may since March 2025") from None


@check(
    "capsule-type",
    "`__dlpack__` returns a capsule",
    say.PY_NAME,
    after=("dlpack-missing",),
    mutant=overriding(capsule=lambda self, tensor, versioned: [DlpackArray.capsule(self, tensor, versioned)]),
    shows="print(array.__dlpack__())",
)
def _(t: Tensors) -> None:
    found = t.ask(**t.usual)
    demand(type(found).__name__ == "PyCapsule", f"it returned a {type(found).__name__}")


@check(
    "capsule-name",
    "without `max_version` the capsule is named dltensor",
    say.PY_NAME,
    after=("capsule-type",),
    mutant=overriding(is_versioned=lambda self, max_version: max_version is None or max_version[0] >= 1),
    shows="print(array.__dlpack__())",
)
def _(t: Tensors) -> None:
    if t.usual:
        raise NotRun("it gives no tensor without max_version")
    found = abi.name(t.ask())
    demand(found == abi.LEGACY, f"it is named {found!r}")


@check(
    "capsule-name-known",
    "the capsule has one of the two names",
    say.PY_NAME_VERSIONED,
    after=("capsule-name",),
    mutant=overriding(
        capsule=lambda self, tensor, versioned: abi.new_capsule(
            ctypes.addressof(tensor), b"dltensor_v1" if versioned else abi.LEGACY
        )
    ),
    shows="print(array.__dlpack__(max_version=(1, 3)))",
)
def _(t: Tensors) -> None:
    try:
        capsule = t.ask(max_version=abi.NEWEST)
        found = abi.name(capsule)
    except TypeError as error:
        raise NotRun(f"the producer takes no max_version: {error}") from None
    demand(found in (abi.LEGACY, abi.VERSIONED), f"it is named {found!r}")
    if found == abi.LEGACY:
        first = abi.DLPackVersion.from_address(abi.pointer(capsule))
        versioned = first.major == 1 and first.minor <= LATER  # or data, an address
        demand(not versioned, f"it is named dltensor, and holds a tensor of version ({first.major}, {first.minor})")


@check(
    "max-version",
    "`__dlpack__` takes `max_version`",
    say.AA_MAX_VERSION,
    after=("capsule-name-known",),
    severity=DEVIATION,
    mutant=overriding(
        __dlpack__=lambda self, *, stream=None, dl_device=None, copy=None: DlpackArray.__dlpack__(
            self, stream=stream, dl_device=dl_device, copy=copy
        )
    ),
)
def _(t: Tensors) -> None:
    try:
        t.ask(max_version=abi.NEWEST)
    except TypeError as error:
        broken(f"raised TypeError: {error}")


@check(
    "max-version-1",
    "with `max_version=(1, 0)` the capsule is named dltensor_versioned",
    say.PY_NAME_VERSIONED,
    after=("max-version",),
    severity=RECOMMENDATION,
    mutant=overriding(is_versioned=lambda self, max_version: max_version is not None and max_version >= (1, 3)),
)
def _(t: Tensors) -> None:
    found = t.export(max_version=(1, 0))
    demand(found.versioned, "it is named dltensor: there is no place for flags")


@check(
    "max-version-0",
    "with `max_version=(0, 8)` the capsule is named dltensor, or BufferError is raised",
    say.AA_OLDER,
    after=("max-version",),
    severity=DEVIATION,
    mutant=overriding(is_versioned=lambda self, max_version: max_version is not None),
)
def _(t: Tensors) -> None:
    try:
        found = t.export(max_version=(0, 8))
    except BufferError:
        return
    demand(not found.versioned, "it is named dltensor_versioned, which the consumer said not to know")


@check(
    "max-version-later",
    "a consumer of a later version than the producer's is served",
    say.AA_NEWER,
    after=("max-version",),
    severity=DEVIATION,
    mutant=refusing("max_version", (2, 0)),
)
def _(t: Tensors) -> None:
    try:
        t.export(max_version=(2, 0))
    except (BufferError, ValueError) as error:
        broken(f"raised {type(error).__name__}: {error}")


@check(
    "max-version-none",
    "`max_version=None` is as if it were left out",
    say.AA_KEEP,
    after=("max-version",),
    mutant=refusing("max_version", None),
)
def _(t: Tensors) -> None:
    if t.usual:
        raise NotRun("it gives no tensor without max_version")
    try:
        found = t.export(max_version=None)
    except (BufferError, ValueError) as error:
        broken(f"raised {type(error).__name__}: {error}")
    demand(not found.versioned, "it is named dltensor_versioned")


@check(
    "keyword-only",
    "the arguments of `__dlpack__` are passed by name only",
    say.AA_KEYWORDS,
    after=("dlpack-missing",),
    severity=RECOMMENDATION,
    mutant=overriding(
        __dlpack__=lambda self, stream=None, max_version=None, dl_device=None, copy=None: DlpackArray.__dlpack__(
            self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )
    ),
)
def _(t: Tensors) -> None:
    steps.tell("call", "array.__dlpack__(None)")
    try:
        t.object.__dlpack__(None)
    except TypeError:
        return
    except BufferError:
        broken("it took an argument by its place, and raised BufferError")
    broken("it took an argument by its place")
