"""Looks for a remedy that an error offers and that fails: each is read from the text, and followed to the letter.

What is code in the advice of an error is a keyword of the call that failed, or an expression that makes another array
for it. Advice in other code than that fails the test, so that no remedy is left out.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cai_dlpack as cd
import ml_dtypes
import numpy as np
import pytest

from conformance.tests.dlpack import abi
from conformance.tests.interpreter.process import ROOT
from conformance.tests.simulated.machine import Machine

VULKAN = 7
PAGE = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8").replace("`", "")
SENTENCES = {
    found["rule"]: " ".join(found["sentence"].split())
    for found in re.finditer(
        r"^### (?P<rule>\S+)\n\n\w+: (?P<sentence>.*?)\.\n\n\*Source\*", PAGE, re.MULTILINE | re.DOTALL
    )
}

#: A call with an array and keywords.
Call = Callable[..., object]

#: What can fail, by name. A copy waits for the host, as the double's stream is none.
CALLS: dict[str, Call] = {
    "__dlpack__": lambda view, **given: cd.view(view).__dlpack__(**given),
    "__dlpack__ of 1.0": lambda view, **given: cd.view(view).__dlpack__(**{"max_version": (1, 0), **given}),
    "__dlpack__ of 0.5": lambda view, **given: cd.view(view).__dlpack__(**{"max_version": (0, 5), **given}),
    "__dlpack__ to the CPU": lambda view, **given: cd.view(view).__dlpack__(**{"dl_device": (1, 0), **given}),
    "a copy": lambda view, **given: cd.view(view).__dlpack__(**{"copy": True, "max_version": (1, 1), **given}),
    "to_dlpack": cd.to_dlpack,
    "from_dlpack to the CPU": lambda view, **given: cd.from_dlpack(view, **{"device": (1, 0), **given}),
    "present_as": lambda view, **given: cd.view(view).present_as("host"),
    "np.asarray": lambda view, **given: np.asarray(view),
    "__array_interface__": lambda view, **given: view.__array_interface__,
    "a buffer": lambda view, **given: memoryview(view),
}

DTYPE = re.compile(r"\bdtype='(\w+)'")
KEYWORD = re.compile(r"\b(max_version|copy|dl_device)=(\(\d+, \d+\)|True)")
EXPRESSION = re.compile(r"\b(?:cai_dlpack|cd|numpy|np|view|v)\.[\w.]+\((?:[^()]|\([^()]*\))*\)")


def advice(error: BaseException) -> str:
    rule: str = error.rule  # type: ignore[attr-defined]
    _, _, rest = str(error).replace("`", "").partition(SENTENCES[rule])
    assert rest.endswith(f"[{rule}]"), error
    return rest.removesuffix(f"[{rule}]").strip("; ")


def remedies(text: str, array: Any, call: Call) -> Iterator[tuple[str, Callable[[], object]]]:
    """Takes the remedies out of an advice; what code is left is returned as one that fails."""
    names = {"cai_dlpack": cd, "cd": cd, "numpy": np, "np": np, "view": array, "v": array, "obj": array}

    def made_by(code: str) -> object:
        made = eval(code, names)
        return made if isinstance(made, np.ndarray) else call(made)

    for part in re.split(r"; | or ", text):
        rest = part
        if "writable=True of to_dlpack" in rest:
            yield "writable=True", lambda: cd.to_dlpack(array, writable=True)
            rest = rest.replace("writable=True of to_dlpack", "")
        if "read_only=False on import" in rest:
            yield "read_only=False", lambda: call(cd.view(array, read_only=False))
            rest = rest.replace("read_only=False on import", "")
        for found in re.finditer(r"__dlpack__\(dl_device=\(1, 0\)\)", rest):
            yield found[0], lambda: array.__dlpack__(dl_device=(1, 0))
            rest = rest.replace(found[0], "")
        for found in EXPRESSION.finditer(rest):
            yield found[0], partial(made_by, found[0])
        rest = EXPRESSION.sub("", rest)
        for found in DTYPE.finditer(rest):
            yield found[0], partial(lambda dtype: call(cd.view(array, dtype=dtype)), found[1])
        rest = DTYPE.sub("", rest)
        for found in KEYWORD.finditer(rest):
            yield found[0], partial(call, array, **{found[1]: eval(found[2])})
        rest = KEYWORD.sub("", rest)
        if re.search(r"\w=|\w\(", rest):
            yield rest, partial(pytest.fail, f"not followed: {rest}")


def failing(array: Any, name: str) -> tuple[str, list[str]]:
    """The rule of what a call raises, and the remedies of its advice; raises if one of them fails."""
    call = CALLS[name]
    try:
        call(array)
    except (TypeError, ValueError, BufferError, AttributeError) as error:
        # Not the exception, whose traceback keeps the array.
        rule, refused, text = str(getattr(error, "rule", None)), str(error), advice(error)
    else:
        return "taken", []
    followed = []
    for remedy, follow in remedies(text, array, call):
        try:
            follow()
        except (TypeError, ValueError, BufferError, AttributeError) as error:
            raise AssertionError(f"{name}: {refused}\n  {remedy} raises {error!r}") from None
        followed.append(remedy)
    return rule, followed


TYPES = [
    (abi.FLOAT, 32, 1),
    (abi.FLOAT, 32, 2),
    (abi.FLOAT, 32, 4),
    (abi.BFLOAT, 16, 1),
    (abi.COMPLEX, 32, 1),
    (abi.INT, 8, 3),
    (abi.INT, 4, 1),
    (abi.INT, 4, 2),
    (abi.INT, 4, 3),
    (abi.FLOAT4_E2M1FN, 4, 1),
    (abi.FLOAT4_E2M1FN, 4, 2),
    (abi.FLOAT6_E2M3FN, 6, 1),
    (abi.FLOAT8_E4M3FN, 8, 1),
]


def test_no_remedy_fails(machine: Machine) -> None:
    chosen, outcomes = random.Random(1), Counter[tuple[str, str]]()
    places = {
        abi.CPU: None,
        abi.CUDA: machine.device_memory(4096),
        abi.CUDA_HOST: machine.pinned_memory(4096),
        abi.CUDA_MANAGED: machine.managed_memory(4096),
        abi.ROCM: 0x7F00_0000_1000,
        VULKAN: 0x7F00_0000_1000,
    }
    for _ in range(6000):
        device = chosen.choice(list(places))
        shape = chosen.choice([(), (4,), (2, 8), (0, 3), (4, 1)])
        made = abi.make(
            shape,
            dtype=chosen.choice(TYPES),
            device=(device, 0),
            data=places[device],
            flags=chosen.choice([0, abi.READ_ONLY, abi.SUBBYTE_PADDED, abi.READ_ONLY | abi.SUBBYTE_PADDED]),
            strides=tuple(2 * 8**at for at, _ in enumerate(shape))[::-1] if chosen.random() < 0.3 else None,
        )
        view = cd.view(made.capsule(), producer_stream=1 if device in (abi.CUDA, abi.CUDA_MANAGED) else None)
        name = chosen.choice(list(CALLS))
        rule, followed = failing(view, name)
        outcomes.update((rule, remedy) for remedy in followed or ["none"])
        del view
        abi.forget(made)
    for rule, remedy in [
        ("read-only-legacy", "max_version=(1, 0)"),
        ("read-only-legacy", "max_version=(1, 1)"),
        ("read-only-legacy", "writable=True"),
        ("read-only-legacy", "read_only=False"),
        ("read-only-legacy", "copy=True"),
        ("padded-legacy", "max_version=(1, 1)"),
        ("padded-legacy", "dtype='uint8'"),
        ("packed-legacy", "max_version=(1, 1)"),
        ("copy-refused", "cai_dlpack.view(view, dtype='uint8', shape=(view.nbytes,))"),
        ("copy-refused", "cai_dlpack.view(view, dtype='uint8')"),
        ("copy-refused", "none"),
        ("present-as", "__dlpack__(dl_device=(1, 0))"),
        ("present-as", "none"),
        ("array-unreadable", "cai_dlpack.view(view, dtype='uint8')"),
        ("array-unreadable", "cai_dlpack.from_dlpack(view, device=(1, 0))"),
        ("array-unreadable", "none"),
    ]:
        assert outcomes[rule, remedy] > 3, (rule, remedy, sorted(outcomes.items()))


@pytest.mark.parametrize("call", ["to_dlpack", "np.asarray"])
def test_no_remedy_of_an_array_of_numpy_fails(call: str) -> None:
    for dtype in (ml_dtypes.int4, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, np.float32):
        array = np.ones((2, 3), dtype)
        array.flags.writeable = False
        failing(array, call)


def follow_all(text: str, array: object) -> None:
    for _, follow in remedies(text, array, CALLS["to_dlpack"]):
        follow()


@pytest.mark.parametrize(
    "text", ["pass stream=1", "view.nothing()", "cd.view(v, dtype='int4') presents it", "ask for dtype="]
)
def test_what_is_no_remedy_is_noticed(text: str) -> None:
    with pytest.raises((AttributeError, BufferError, pytest.fail.Exception)):
        follow_all(text, cd.view(np.zeros(3)))


# --- the records of a producer ----------------------------------------------------------------------------------

OVERLAPPING = np.dtype({"names": ["a", "b"], "formats": ["u4", "u2"], "offsets": [0, 0]})
OBJECTS = np.dtype([("x", "O"), ("y", "f4"), ("z", [("o", "O")])])
ONLY_OBJECTS = np.dtype([("x", "O"), ("z", [("o", "O")])])


class Fields:
    """A device array of records: as Numba's, whose items have no name, or as CuPy's."""

    def __init__(self, dtype: np.dtype[Any], *, by_name: bool) -> None:
        self.dtype = dtype
        self.by_name = by_name
        self.__cuda_array_interface__ = {
            "shape": (3,),
            "typestr": f"|V{dtype.itemsize}",
            "data": (0x7F00_0000_1000, False),
            "version": 3,
            "stream": None,
        }

    def __getitem__(self, name: str) -> object:
        if not self.by_name:
            raise TypeError("an index is an int")
        kind = self.dtype[name]
        made = Fields(kind, by_name=True)
        made.__cuda_array_interface__["typestr"] = kind.str
        made.__cuda_array_interface__["strides"] = (self.dtype.itemsize,)
        return made


@pytest.mark.parametrize(
    ("obj", "rule", "field"),
    [
        (np.zeros(2, OBJECTS), "typestr-object", "obj['y']"),
        (np.zeros(2, ONLY_OBJECTS), "typestr-object", None),
        (np.zeros(2, OVERLAPPING), "descr-unsaid", "obj['a']"),
        (Fields(OVERLAPPING, by_name=True), "descr-unsaid", "obj['a']"),
        (Fields(OVERLAPPING, by_name=False), "descr-unsaid", None),
    ],
)
def test_the_field_that_is_offered_is_viewed(obj: Any, rule: str, field: str | None) -> None:
    device: Any = {} if isinstance(obj, np.ndarray) else {"device_id": 0}
    with pytest.raises(BufferError) as found:
        cd.view(obj, **device)
    assert found.value.rule == rule  # type: ignore[attr-defined]
    assert advice(found.value) == ("" if field is None else f"view one field: cd.view({field})")
    if field is not None:
        assert cd.view(eval(field, {"obj": obj}), **device).shape == getattr(obj, "shape", (3,))


def test_a_field_of_a_record_of_numpy_names_its_interface() -> None:
    records = np.zeros(2, [("a", "u1"), ("p", "f4", (2, 3))])
    with pytest.raises(BufferError) as found:
        cd.to_dlpack(cd.view(records).field("p"))
    assert found.value.rule == "field-stride"  # type: ignore[attr-defined]
    assert str(found.value).startswith("__array_interface__['descr'] = ")


def test_a_packed_array_is_refused_by_the_version_that_was_passed() -> None:
    view = cd.view(abi.make((8,), dtype=(abi.INT, 4, 1)).capsule())
    with pytest.raises(BufferError, match=r"^argument 'max_version' = \(1, 0\), with packed int4 elements: "):
        view.__dlpack__(max_version=(1, 0))
