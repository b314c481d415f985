"""The examples of docs/rules.md, run: each raises the very rule that it stands under.

| written on the page | run as |
|---|---|
| `"shape": (2.0,), "typestr": "<f4"` | these keys of an otherwise valid dict |
| `DLTensor.ndim = -1` | this field of an otherwise valid tensor |
| anything else | the call in `CALLS` beside the words that it quotes |

A rule that needs two threads, a capture or another library is left to the test that `ELSEWHERE` names, and which names
the rule. A rule of the page that is in none of these fails, and so does one whose words have changed.
"""

from __future__ import annotations

import copy
import pickle
import re
import zlib
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import cai_example_peer as peer
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import FAKE_POINTER, Dlpack, cai, interface
from conformance.tests.expectations.refusal import builtin
from conformance.tests.interpreter.process import ROOT
from conformance.tests.reach import handles
from conformance.tests.simulated.machine import Machine

LOOSE: Any = cd  # called with what its annotations forbid
PAGE = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(
    r"^### (?P<rule>\S+)\n\n`(?P<kind>\w+)`: .*?\n\n\*Source\*: .*?\n\n\*Example\*: (?P<text>.*?)(?=\n\n|\Z)",
    re.MULTILINE | re.DOTALL,
)
EXAMPLES = {found["rule"]: (found["kind"], " ".join(found["text"].split())) for found in EXAMPLE.finditer(PAGE)}
INSTEAD = {
    found[1]: " ".join(found[2].split())
    for found in re.finditer(r"^### (\S+)\n(?:(?!###).*\n)*?\*Instead\*: ((?:.+\n?)+)", PAGE, re.MULTILINE)
}
#: By rule: its hint is about the value at hand, which the page does not know.
OF_THE_VALUE = {
    "argument-count",
    "argument-missing",
    "argument-type",
    "argument-unexpected",
    "argument-value",
    "cai-unavailable",
    "device-mismatch",
    "device-unknown",
    "dtype-code",
    "dtype-override",
    "field-unknown",
    "overlap",
    "pointer-device",
    "read-only-writer",
    "shape-override",
    "transfer-refused",
    "typestr-syntax",
    "view-dtype",
    "view-in-use",
    "view-ndim",
}
FIELD = re.compile(r"`DLTensor\.(\w+) = ([^`]+)`")
KEYS = re.compile(r'`("[a-z]+": [^`]+)`')
CODES = {"kDLFloat": abi.FLOAT, "kDLBool": abi.BOOL, "kDLOpaqueHandle": abi.OPAQUE, "NULL": None}
CODES["kDLFloat4_e2m1fn"] = abi.FLOAT4_E2M1FN


def of_keys(text: str) -> Callable[[], object]:
    """A call that exports a dict with these keys by DLPack."""
    changes = eval("{" + text + "}")
    return lambda: cd.to_dlpack(cai(**changes), device_id=0)


def of_field(name: str, value: str) -> Callable[[], object]:
    changes = {name: eval(value.replace("{", "(").replace("}", ")"), dict(CODES))}
    if name == "shape" and changes[name] is None:
        changes["ndim"] = 1
    if name == "data" and changes[name] is None:
        changes["data"] = 0
    if name == "device":
        changes["data"] = FAKE_POINTER
    return lambda: made(**changes)


class Announces:
    """Exports `answer`, on a device that it announces."""

    def __init__(self, device: object, answer: Callable[[], object] = lambda: None) -> None:
        self.device, self.answer = device, answer

    def __dlpack__(self, **_: Any) -> object:
        return self.answer()

    def __dlpack_device__(self) -> Any:
        return self.device


class Method:
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return interface()


class HandleOnly:
    def __cuda_stream__(self) -> int:
        return 7


class NoDevice:
    def __dlpack__(self, **_: Any) -> object:
        return None


class Misspelt:
    @property
    def __cuda_array_interface__(self) -> Any:
        return self.intreface  # type: ignore[attr-defined]


def shown(value: object) -> Callable[[], object]:
    return lambda: cd.from_cai(type("Shown", (), {"__cuda_array_interface__": value})())


def struct() -> cd.CaiView:
    return cd.view(cai(typestr="|V8", descr=[("x", "<f4"), ("y", "<f4")]), device_id=0)


def on_device(**changes: Any) -> cd.CaiView:
    return cd.view(cai(**changes), device_id=0)


def nothing() -> cd.CaiView:
    """Of a device, without elements."""
    return on_device(shape=(0,), data=(0, False))


def made(keywords: dict[str, Any] | None = None, **changes: Any) -> cd.CaiView:
    capsule = abi.make(**changes).capsule()  # alive while it is refused: its destructor runs Python code
    return cd.view(capsule, **(keywords or {}))


def misplaced() -> cd.CaiView:
    return cd.view(abi.new_capsule(abi.moved(abi.make(), 4), abi.VERSIONED, destructor=False))


def named_otherwise() -> None:
    capsule = abi.new_capsule(FAKE_POINTER, b"tensor", destructor=False)
    cd.view(capsule)


def in_one_piece() -> None:
    view: Any = cd.view(np.zeros((2, 4))[:, ::2])
    zlib.crc32(view)


def used_twice() -> None:
    capsule = abi.make().capsule()
    cd.view(capsule)
    cd.view(capsule)


def used_after() -> None:
    with cd.view(np.zeros(3)).consume(1) as inside:
        pass
    cd.to_dlpack(inside)


def entered_twice() -> None:
    block = cd.view(np.zeros(3)).consume(1)
    with block, block:
        pass


def out_of_bounds(machine: Machine) -> None:
    data = (machine.device_memory(320), False)
    cd.view(cai(shape=(100,), data=data), check="bounds")


def in_itself() -> None:
    descr: list[Any] = []
    descr.append(("x", descr))
    cd.view(cai(typestr="|V8", descr=descr), device_id=0)


def masked(**mask: Any) -> Callable[[], object]:
    values = {"shape": (8,), "typestr": "<f4"}
    return lambda: cd.split_masked(cai(mask=cai(**mask), **values), device_id=0)


MISSING: Any = ...
#: By rule: words of its example, and what they tell.
CALLS: dict[str, tuple[str, Callable[[], object]]] = {
    "protocol-missing": ("cd.view(3)", lambda: LOOSE.view(3)),
    "cai-missing": ("cd.from_cai(numpy_array)", lambda: LOOSE.from_cai(np.zeros(3))),
    "cai-unavailable": ("property raises AttributeError", lambda: cd.from_cai(Misspelt())),
    "cai-none": ("__cuda_array_interface__ = None", shown(None)),
    "cai-type": ('[("shape", (3,)), ...]', shown([("shape", (3,))])),
    "cai-method": ("without `@property`", lambda: LOOSE.from_cai(Method())),
    "cai-empty": ("__cuda_array_interface__ = {}", shown({})),
    "class-not-instance": ("cd.view(DeviceNDArray)", lambda: LOOSE.view(np.ndarray)),
    "owner-missing": ("cd.from_cai({", lambda: cd.from_cai(interface())),
    "version-missing": ("with `strict=True`", lambda: cd.view(cai(version=MISSING), device_id=0, strict=True)),
    "shape-missing": ("without `shape`", lambda: on_device(shape=MISSING)),
    "shape-alignment": ("DLTensor.shape = 0x7F0000001004", lambda: made(shape_off=4)),
    "tensor-alignment": ("`0x7F0000001004`", misplaced),
    "shape-null": ("DLTensor.shape = NULL", lambda: made(shape=None, ndim=1)),
    "typestr-missing": ("without `typestr`", lambda: on_device(typestr=MISSING)),
    "data-missing": ("without `data`", lambda: on_device(data=MISSING)),
    "descr-depth": ("contains itself", in_itself),
    "descr-unsaid": (
        "fields that overlap",
        lambda: cd.view(
            np.zeros(
                2,
                {
                    "names": ["x", "y"],
                    "formats": ["<f4", "<i4"],
                    "offsets": [0, 0],
                },
            )
        ),
    ),
    "field-unknown": ('v.field("z")', lambda: struct().field("z")),
    "field-stride": (
        "packed struct of 12 bytes",
        lambda: on_device(typestr="|V12", descr=[("x", "<f8"), ("y", "<i4")]).field("x").__dlpack__(),
    ),
    "field-none": ("an array of floats", lambda: cd.view(np.zeros(3)).field("x")),
    "mask-present": ("with nulls", lambda: on_device(mask=cai(typestr="|b1"))),
    "mask-shape": (
        "a mask of shape `(4,)`",
        lambda: cd.split_masked(cai(shape=(2, 3), mask=cai(shape=(4,), typestr="|b1")), device_id=0),
    ),
    "mask-dtype": ("a mask of typestr `<f4`", masked(shape=(8,), typestr="<f4")),
    "mask-ambiguous": (
        "fits bits and bytes",
        lambda: cd.split_masked(cai(shape=(1,), mask=cai(shape=(1,), typestr="|u1")), device_id=0),
    ),
    "stream-none": ("v.on(None)", lambda: LOOSE.view(np.zeros(3)).on(None)),
    "stream-zero": ("__dlpack__(stream=0)", lambda: on_device().__dlpack__(stream=0)),
    "stream-object": ("returns an int", lambda: LOOSE.view(np.zeros(3)).on(HandleOnly())),
    "stream-cpu": ("__dlpack__(stream=1)", lambda: made().__dlpack__(stream=1)),
    "stream-rocm": ("of a ROCm tensor", lambda: made(device=(abi.ROCM, 0), data=FAKE_POINTER).__dlpack__(stream=1)),
    "stream-unknown": (
        "of a version 2 producer",
        lambda: cd.view(cai(version=2, stream=MISSING), device_id=0).consume(1, strict=True).__enter__(),
    ),
    "rocm-order": ("view.on(stream)", lambda: made(device=(abi.ROCM, 0), data=FAKE_POINTER).on(7)),
    "dlpack-missing": ("cd.from_dlpack(object())", lambda: LOOSE.from_dlpack(object())),
    "capsule-type": ("returns `42` or `None`", lambda: cd.view(Announces((1, 0), lambda: 42))),
    "capsule-name": ('of the name `"tensor"`', named_otherwise),
    "capsule-used": ("given to two consumers", used_twice),
    "dlpack-major": ("version = {2, 0}", lambda: made(version=(2, 0))),
    "copied-unasked": ("sets IS_COPIED", lambda: cd.from_dlpack(Dlpack(abi.make(flags=abi.IS_COPIED)), copy=False)),
    "device-missing": ("without `__dlpack_device__`", lambda: LOOSE.view(NoDevice())),
    "device-pair": ("returns `(2,)`", lambda: cd.view(Announces((2,)))),
    "device-item-type": ('returns `("cuda", 0)`', lambda: cd.view(Announces(("cuda", 0)))),
    "device-unknown": ("returns `(99, 0)`", lambda: cd.view(Announces((99, 0)))),
    "device-id": ("returns `(2, -1)`", lambda: cd.view(Announces((2, -1)))),
    "device-mismatch": (
        "returns `(2, 1)`",
        lambda: cd.view(Announces((2, 1), abi.make(device=(2, 0), data=FAKE_POINTER).capsule)),
    ),
    "pointer-unknown": ("without a device number", lambda: cd.view(cai(data=(0xDEAD0000, False)))),
    "pointer-device": (
        "cd.view(tensor, device_id=1)",
        lambda: made({"device_id": 1}, device=(2, 0), data=FAKE_POINTER),
    ),
    "cai-device": ("cd.view(numpy_array).to_cai()", lambda: cd.view(np.zeros(3)).to_cai()),
    "cai-dtype": (
        "cd.view(bf16_tensor).to_cai()",
        lambda: made(dtype=(abi.BFLOAT, 16, 1), device=(2, 0), data=FAKE_POINTER).to_cai(),
    ),
    "cai-sub-byte": (
        "of a float4 tensor",
        lambda: made(dtype=(abi.FLOAT4_E2M1FN, 4, 1), device=(2, 0), data=FAKE_POINTER).to_cai(),
    ),
    "cai-lanes": (
        "{kDLFloat, 32, 4}",
        lambda: made(dtype=(abi.FLOAT, 32, 4), device=(2, 0), data=FAKE_POINTER).to_cai(),
    ),
    "read-only-writer": (
        "given to an `InOut` argument",
        lambda: peer.double(made(dtype=(abi.FLOAT, 64, 1), shape=(3,), versioned=False)),
    ),
    "read-only-legacy": ("without `max_version`", lambda: made(flags=abi.READ_ONLY).__dlpack__()),
    "padded-legacy": (
        "of padded int4",
        lambda: made(dtype=(abi.INT, 4, 1), flags=abi.SUBBYTE_PADDED).__dlpack__(max_version=(1, 0)),
    ),
    "packed-legacy": (
        "of packed int4",
        lambda: made(dtype=(abi.INT, 4, 1)).__dlpack__(max_version=(1, 0)),
    ),
    "copy-needed": ("copy=False", lambda: on_device().__dlpack__(dl_device=(1, 0), copy=False)),
    "copy-refused": ("__dlpack__(copy=True)", lambda: made(device=(8, 0), data=FAKE_POINTER).__dlpack__(copy=True)),
    "transfer-refused": ("dl_device=(8, 0)", lambda: made().__dlpack__(dl_device=(8, 0))),
    "present-as": ('present_as("host")', lambda: on_device().present_as("host")),
    "buffer-layout": (
        "every second column",
        in_one_piece,
    ),
    "array-unreadable": ("numpy.asarray(view)", lambda: np.asarray(on_device())),
    "buffer-items": ("memoryview(view)", lambda: memoryview(made(dtype=(abi.FLOAT8_E5M2, 8, 1)))),
    "numpy-dtype": ("float4_e2m1fnx2", lambda: np.dtype(made(dtype=(abi.FLOAT4_E2M1FN, 4, 2)).dtype)),
    "argument-unexpected": ("devce_id=0", lambda: LOOSE.view(np.zeros(3), devce_id=0)),
    "argument-missing": ("cd.join([v])", lambda: LOOSE.join([cd.view(np.zeros(3))])),
    "argument-count": ("cd.view(array, 0)", lambda: LOOSE.view(np.zeros(3), 0)),
    "argument-type": ('strict="yes"', lambda: LOOSE.view(np.zeros(3), strict="yes")),
    "argument-value": ('check="all"', lambda: LOOSE.view(np.zeros(3), check="all")),
    "max-version-type": ('max_version="1"', lambda: LOOSE.view(np.zeros(3)).__dlpack__(max_version="1")),
    "max-version": ("max_version=(1,)", lambda: LOOSE.view(np.zeros(3)).__dlpack__(max_version=(1,))),
    "dl-device-type": ("dl_device=2", lambda: LOOSE.view(np.zeros(3)).__dlpack__(dl_device=2)),
    "dl-device": ("dl_device=(1,)", lambda: LOOSE.view(np.zeros(3)).__dlpack__(dl_device=(1,))),
    "copy-type": ("copy=1", lambda: LOOSE.view(np.zeros(3)).__dlpack__(copy=1)),
    "dtype-argument-type": ("dtype=42", lambda: LOOSE.view(np.zeros(3), dtype=42)),
    "dtype-argument": ('dtype="float12"', lambda: cd.view(np.zeros(3), dtype="float12")),
    "dtype-override": ('dtype="int32"', lambda: cd.view(np.zeros(3, np.float32), dtype="int32")),
    "shape-override": ("of 24 bytes", lambda: cd.view(np.zeros(24, np.uint8), dtype="float32", shape=(5,))),
    "device-id-range": ("device_id=-1", lambda: cd.view(cai(), device_id=-1)),
    "scope-ended": ("used after the block", used_after),
    "consume-open": ("entered within", entered_twice),
    "view-dtype": ("given to `In<f32, 2>`", lambda: peer.extract(np.zeros((2, 2)))),
    "view-ndim": ("3 axes", lambda: peer.extract(np.zeros((2, 2, 2), np.float32))),
    "overlap": (
        "given to an `InOut` argument",
        lambda: peer.double(np.lib.stride_tricks.as_strided(np.zeros(3), (3,), (0,))),
    ),
    "view-in-use": ("of one call", lambda: peer.borrow_both(*[cd.view(np.zeros(3))] * 2)),
    "pickle": ("pickle.dumps(view)", lambda: pickle.dumps(cd.view(np.zeros(3)))),
    "share-memory": ("cd.share(numpy_array)", lambda: handles.entered(np.zeros(3))),
    "share-handle": ('key=b"another"', lambda: cd.open(handles.entered(nothing()), key=b"another")),
    "share-ended": ("after the block", lambda: cd.open(handles.entered(nothing()))),
    "share-host": ("after a restart", lambda: cd.open(handles.changed(handles.entered(nothing()), handles.BOOT))),
    "share-user": (
        "another user id",
        lambda: cd.open(handles.changed(handles.entered(nothing()), handles.USER)),
    ),
    "share-device": (
        "leaves out where it is opened",
        lambda: cd.open(handles.changed(handles.entered(nothing()), handles.DEVICE, handles.STARTED)),
    ),
    "deep-copy": ("copy.deepcopy(v)", lambda: copy.deepcopy(cd.view(np.zeros(3)))),
}
#: By rule: the test that raises it.
ELSEWHERE = {
    "rocm-device": "test_rocm.py",
    "capsule-null": "dlpack/test_untouched.py",
    "stream-undeclared": "streams/test_undeclared.py",
    "stream-thread": "streams/test_default_streams.py",
    "stream-context": "streams/test_second_context.py",
    "stream-device": "test_rust_extension.py",
    "capture-host-wait": "streams/test_capture.py",
    "capture-consumer": "streams/test_capture.py",
    "capture-producer": "streams/test_capture.py",
    "capture-other": "streams/test_capture.py",
    "capture-legacy": "streams/test_capture.py",
    "capture-invalid": "streams/test_capture.py",
    "array-deleted": "test_doors.py",
    "array-traced": "test_doors.py",
    "not-strided": "test_hostile_attributes.py",
    "producer-dtype": "test_doors.py",
    "values-lazy": "test_doors.py",
    "exchange-allocator": "partners/test_exchange_export.py",
    "buffer-format": "partners/test_buffers.py",
    "view-contiguous": "test_rust_extension.py",
    "view-device": "test_rust_extension.py",
    "view-shape": "test_rust_extension.py",
    "out-of-bounds": "test_rules_page.py",
}


def calls_of(rule: str, text: str) -> list[Callable[[], object]]:
    """What runs the example: one call, or one for each defect that the page writes out."""
    if rule in CALLS:
        words, call = CALLS[rule]
        assert words in text, f"the example of {rule} has changed: {text}"
        return [call]
    calls = [of_field(*found) for found in FIELD.findall(text)] + [of_keys(found) for found in KEYS.findall(text)]
    assert calls, f"nothing runs the example of {rule}: {text}"
    return calls


def test_the_page_is_read_whole() -> None:
    assert sorted(EXAMPLES) == sorted(re.findall(r"^### (\S+)$", PAGE, re.MULTILINE))
    assert set(CALLS) | set(ELSEWHERE) <= set(EXAMPLES)
    assert not set(CALLS) & set(ELSEWHERE)


def test_a_keyword_of_the_page_is_one_that_some_call_takes() -> None:
    calls = [getattr(cd, name) for name in cd.__all__] + [getattr(cd.CaiView, name) for name in dir(cd.CaiView)]
    taken = {name for call in calls for name in re.findall(r"\w+", getattr(call, "__text_signature__", None) or "")}
    keywords = set(re.findall(r"`(\w+)=`", PAGE))
    assert {"dtype", "stream"} <= taken
    assert keywords <= taken, keywords - taken


@pytest.mark.parametrize("rule", sorted(set(EXAMPLES) - set(ELSEWHERE)))
def test_the_example_raises_its_rule(rule: str, machine: Machine) -> None:
    kind, text = EXAMPLES[rule]
    for call in calls_of(rule, text):
        # An argument of a Rust function raises the builtin class itself.
        with pytest.raises((cd.Refusal, BufferError, TypeError)) as caught:
            call()
        assert (builtin(caught.value).__name__, getattr(caught.value, "rule", None)) == (kind, rule), caught.value
        hint = getattr(caught.value, "hint", None)
        assert hint or rule not in OF_THE_VALUE
        if hint and rule not in OF_THE_VALUE:
            assert hint in INSTEAD[rule].replace("`", ""), f"the page tells otherwise than the hint: {hint}"


def test_each_rule_tells_what_to_do_instead() -> None:
    """Words of its own, or those of the hint; if there is nothing to do, why."""
    assert sorted(INSTEAD) == sorted(EXAMPLES)
    for rule, text in INSTEAD.items():
        assert text.endswith(".") and not text.startswith("nothing."), rule


@pytest.mark.parametrize(("rule", "file"), ELSEWHERE.items())
def test_another_test_raises_it(rule: str, file: str) -> None:
    assert re.search(rf'["\[]{rule}["\]]', (ROOT / "conformance" / "tests" / file).read_text(encoding="utf-8"))


def test_bounds_are_those_of_the_allocation(machine: Machine) -> None:
    """ "out-of-bounds": the example's allocation is made here."""
    with pytest.raises(BufferError) as caught:
        out_of_bounds(machine)
    assert getattr(caught.value, "rule", None) == "out-of-bounds"
