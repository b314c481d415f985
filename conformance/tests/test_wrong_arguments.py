"""Tests that every wrong call is refused by rule, argument, value and remedy, and changes nothing.

The calls are those that Rust declares (`signature!`), read from the same declaration as the stub; each is made with
each wrong value for each parameter. A declared function without a case here fails.
"""

from __future__ import annotations

import ast
import copy
import pickle
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import cai_dlpack as cd
import ml_dtypes
import numpy as np
import pytest
from cai_conformance import abi
from cai_dlpack import _core

from conformance.tests.doubles.producers import Cai, StreamObject, cai, interface
from conformance.tests.expectations.refusal import check_refusal, nothing_changes, refuse
from conformance.tests.interpreter.process import ROOT
from conformance.tests.simulated.machine import Machine

LOOSE: Any = cd  # called with what its annotations forbid


@dataclass(frozen=True)
class Declared:
    """A declared function: the parameters by kind, and the keywords without a default."""

    name: str
    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    required: tuple[str, ...]


def declared(line: str, name: str) -> Declared:
    function = ast.parse(line).body[0]
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    positional = [each.arg for each in arguments.posonlyargs + arguments.args if each.arg != "self"]
    keywords = [each.arg for each in arguments.kwonlyargs]
    required = [keyword for keyword, default in zip(keywords, arguments.kw_defaults, strict=True) if default is None]
    return Declared(name, tuple(positional), tuple(keywords), tuple(required))


FUNCTIONS = {name: declared(line, name) for name, line in _core._stub.items()}


@dataclass
class Call:
    """A call that succeeds: the object of the method, and the arguments by name."""

    arguments: dict[str, Any] = field(default_factory=dict)
    on: Any = cd


def structured(**changes: Any) -> Cai:
    return cai(typestr="|V8", descr=[("x", "<f4"), ("y", "<f4")], **changes)


def view() -> cd.CaiView:
    return cd.view(cai(), device_id=0)


def calls(machine: Machine) -> dict[str, Call]:
    """What makes each function succeed, so that one wrong argument is the reason of a refusal."""
    data = {"data": (machine.device_memory(64), False)}
    array, view = cai(**data), cd.view(cai(**data))
    return {
        "view": Call({"obj": array, "device_id": 0}),
        "from_cai": Call({"obj": array, "device_id": 0}),
        "from_dlpack": Call({"obj": np.zeros(3)}),
        "to_dlpack": Call({"obj": array, "device_id": 0, "stream": -1}),
        "to": Call({"obj": np.zeros(3), "library": "numpy"}),
        "explain": Call({"obj": array}),
        "join": Call({"items": [view], "on": 1}),
        "split_masked": Call({"obj": array, "device_id": 0}),
        "share": Call({"obj": array}),
        "open": Call({"handle": shared(machine)}),
        "stats": Call(),
        "policy": Call({"sync": "event"}),
        "use_stream": Call({"stream": 1, "device_id": 0}),
        "CaiView.__dlpack__": Call({"stream": -1}, view),
        "CaiView.on": Call({"stream": 1}, view),
        "CaiView.consume": Call({"stream": 1}, view),
        "CaiView.present_as": Call({"kind": "host"}, cd.view(np.zeros(3))),
        "CaiView.field": Call({"name": "x"}, cd.view(structured(**data))),
        "CaiView.synchronize": Call({}, view),
        "CaiView.wait": Call({}, Closing(view)),
        "CaiView.to_cai": Call({}, view),
        "CaiView.__dlpack_device__": Call({}, view),
    }


#: Blocks of `share` that stay open.
OPEN: list[Any] = []


def shared(machine: Machine) -> bytes:
    """A handle that can be opened for as long as the process lives."""
    if not OPEN:
        OPEN.append(cd.share(cai(data=(machine.device_memory(64), False))))
        OPEN.append(OPEN[0].__enter__())
    return bytes(OPEN[1])


class Closing:
    """A view whose coroutines are closed, as nothing awaits them."""

    def __init__(self, view: cd.CaiView) -> None:
        self.view = view

    def wait(self, *given: Any, **keywords: Any) -> None:
        LOOSE_WAIT(self.view, *given, **keywords).close()


LOOSE_WAIT: Any = cd.CaiView.wait


class OfItsOwn(Exception):
    """Raised by a value's own method: passes through unchanged."""


class Raises:
    """A value whose every hook raises."""

    def __repr__(self) -> str:
        raise OfItsOwn

    def __index__(self) -> int:
        raise OfItsOwn

    def __iter__(self) -> Any:
        raise OfItsOwn

    def __bool__(self) -> bool:
        raise OfItsOwn


class Misspelt:
    """Properties with a typo inside."""

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.intreface  # type: ignore[attr-defined]

    @property
    def __cuda_stream__(self) -> Any:
        return self.handel  # type: ignore[attr-defined]


# Of every type that an argument may have, and of types that none has.
WRONG: dict[str, Any] = {
    "none": None,
    "true": True,
    "minus-two": -2,
    "two": 2,
    "huge": 2**70,
    "negative-huge": -(2**70),
    "float": 1.5,
    "nan": float("nan"),
    "text": "cuda-0",
    "empty": "",
    "surrogate": "\ud800",
    "bytes": b"cpu",
    "tuple": (),
    "one": (1,),
    "texts": ("cpu", "0"),
    "floats": (1.0, 0.0),
    "three": (1, 0, 0),
    "huge-pair": (2**70, 2**70),
    "negative-pair": (-1, -1),
    "list": [2, 3],
    "dict": {"a": 1},
    "set": {1},
    "object": object(),
    "type": int,
    "array": np.zeros(3),
    "scalar": np.float32(1),
    "bool-of-numpy": np.True_,
    "dtype": np.dtype("M8[ns]"),
    "module": np,
    "call": len,
    "ellipsis": ...,
    "raises": Raises(),
    "misspelt": Misspelt(),
    "stream-of-nothing": StreamObject("x"),  # type: ignore[arg-type]
    "items": [np.zeros(3)],
}

# Parameters for which no value is refused: `explain` describes it.
ANYTHING = {("explain", "obj")}


def call(of: Declared, case: Call, changes: dict[str, Any]) -> Callable[[], object]:
    given = {**case.arguments, **changes}
    function = getattr(case.on, of.name.rpartition(".")[2])
    positional = [given.pop(name) for name in of.positional]
    return lambda: function(*positional, **given)


def names_value(message: str, value: object) -> bool:
    """The message shows the value, an item of it, or its type."""
    parts = [value]
    if isinstance(value, tuple | list | set):
        parts += list(value)
    if isinstance(value, dict):
        parts += list(value.values())
    if isinstance(value, StreamObject):
        parts += [value.handle]
    shown = []
    for part in parts:
        shown.append(type(part).__name__)
        if not isinstance(part, Raises):
            shown += [repr(part)[:60], str(part)[:60]]
    return any(text and text in message for text in shown)


def check_error(error: BaseException, given: dict[str, Any], parameter: str) -> None:
    """The error keeps the contract: rule, field, key, value, remedy."""
    message = str(error)
    if isinstance(error, OfItsOwn):
        return
    if isinstance(error, cd.DriverError):
        assert error.call, message
        assert error.name, message
        return
    rule, key = getattr(error, "rule", None), getattr(error, "field", None)
    about = f"{parameter} of type {type(given[parameter]).__name__}: {type(error).__name__}: {message}"
    assert isinstance(error, cd.Refusal), f"no refusal: {about}"
    assert error.hint is None or error.hint in message, about
    assert isinstance(rule, str), f"no rule: {about}"
    assert isinstance(key, str), f"no field: {about}"
    assert message.endswith(f"[{rule}]"), message
    assert key in message, message
    assert f"\n### {rule}\n" in RULES, f"{rule} is not in docs/rules.md"
    # Two arguments may contradict each other: the one that is refused is named.
    assert rule in OF_ABSENCE or names_value(message, given.get(key, given[parameter])), f"no value: {about}"
    if rule in ("argument-type", "argument-value"):
        assert "; must be " in message, message


RULES = (ROOT / "docs" / "rules.md").read_text()
# What is refused is not there, so that no value is named.
OF_ABSENCE = {"owner-missing"}

PARAMETERS = [(of, name) for of in FUNCTIONS.values() for name in of.positional + of.keywords]
every_function = pytest.mark.parametrize("of", FUNCTIONS.values(), ids=FUNCTIONS)


def test_each_declared_function_has_a_case(machine: Machine) -> None:
    assert set(calls(machine)) == set(FUNCTIONS)


#: Called by CPython, `copy`, `pickle`, NumPy and notebooks, not by users.
OF_PROTOCOLS = {"__array__", "__copy__", "__deepcopy__", "__reduce__", "_repr_html_"}


def test_each_method_is_declared() -> None:
    methods = {name for name, value in vars(cd.CaiView).items() if isinstance(value, types.MethodDescriptorType)}
    declared = {name.removeprefix("CaiView.") for name in FUNCTIONS if name.startswith("CaiView.")}
    assert methods - OF_PROTOCOLS == declared


@pytest.mark.parametrize(
    ("given", "keywords", "rule", "key"),
    [
        ((), {}, "argument-missing", "spelling"),
        ((), {"spelling": "float32"}, "argument-unexpected", "spelling"),
        (("float32",), {"bogus": 1}, "argument-unexpected", "bogus"),
        (("float32", 2), {}, "argument-count", "arguments"),
        ((3,), {}, "dtype-argument-type", "dtype"),
    ],
)
def test_a_wrong_call_of_dtype(given: tuple[Any, ...], keywords: dict[str, Any], rule: str, key: str) -> None:
    error = TypeError
    check_refusal(refuse(lambda: LOOSE.DType(*given, **keywords), error), rule, key)


@pytest.mark.parametrize("number", [2**31, 2**40, 2**63, 2**70, -1, -(2**40)])
def test_a_number_of_no_device_is_refused_by_a_sentence_that_is_true(number: int) -> None:
    said = "from 0 to 2**31 - 1"
    for call in (
        lambda: cd.view(cai(), device_id=number),
        lambda: cd.use_stream(1, device_id=number),
        lambda: cd.from_dlpack(np.zeros(3), device=(1, number)),
    ):
        found = refuse(call, ValueError)
        assert found.rule in ("device-id-range", "device-id"), found.message
        assert str(number) in found.message, found.message
        assert said in found.message, found.message
    found = refuse(lambda: cd.to_dlpack(np.zeros(3), dl_device=(1, number)), BufferError)
    check_refusal(found, "transfer-refused", "dl_device", value=str(number))


@every_function
def test_the_case_succeeds(of: Declared, machine: Machine) -> None:
    call(of, calls(machine)[of.name], {})()


@pytest.mark.parametrize(("of", "parameter"), PARAMETERS, ids=lambda each: getattr(each, "name", each))
def test_a_wrong_value_is_refused_by_rule(of: Declared, parameter: str, machine: Machine) -> None:
    case = calls(machine)[of.name]
    array = case.arguments.get("obj")
    watched = [case.on] if parameter == "obj" or array is None else [case.on, array]
    if isinstance(array, Cai):
        watched.append(array.interface)
    refused = 0
    with nothing_changes(*watched):
        for value in WRONG.values():
            try:
                call(of, case, {parameter: value})()
            except Exception as error:
                check_error(error, {**case.arguments, parameter: value}, parameter)
                refused += 1
    assert bool(refused) != ((of.name, parameter) in ANYTHING or parameter == "owner")


@every_function
def test_an_unexpected_keyword(of: Declared, machine: Machine) -> None:
    case = calls(machine)[of.name]
    for name, value in {"colour": "blue", "ordinal": "cuda:0", "\N{GREEK SMALL LETTER ALPHA}": object()}.items():
        found = refuse(call(of, case, {name: value}), TypeError)
        hint = f"unexpected keyword argument '{name}'"
        check_refusal(found, "argument-unexpected", name, value=repr(value), hint=hint)
        assert all(keyword in found.message for keyword in of.keywords)


@every_function
def test_a_wrong_number_of_arguments(of: Declared, machine: Machine) -> None:
    case = calls(machine)[of.name]
    function = getattr(case.on, of.name.rpartition(".")[2])
    keywords = {name: value for name, value in case.arguments.items() if name not in of.positional}
    positional = [case.arguments[name] for name in of.positional]
    found = refuse(lambda: function(*positional, 1, **keywords), TypeError)
    check_refusal(found, "argument-count", "arguments", value=str(len(positional) + 1))
    for name in of.required:
        rest = {each: value for each, value in keywords.items() if each != name}
        check_refusal(refuse(partial(function, *positional, **rest), TypeError), "argument-missing", name)
    for number, name in enumerate(of.positional):
        before = positional[:number]
        check_refusal(refuse(partial(function, *before, **keywords), TypeError), "argument-missing", name)
        by_name = {**keywords, name: case.arguments[name]}
        found = refuse(partial(function, *before, **by_name), TypeError)
        check_refusal(found, "argument-missing", name, hint="positional-only")
        found = refuse(partial(function, *positional, **by_name), TypeError)
        check_refusal(found, "argument-unexpected", name, hint="positional-only")


# --- what else a caller may do wrong ------------------------------------------------------------------------


def test_a_stream_that_is_none() -> None:
    found = refuse(lambda: LOOSE.view(cai(), device_id=0).on(None), TypeError)
    check_refusal(found, "stream-none", "stream", value="None", hint="1 is the legacy default stream")


def test_join_of_an_array() -> None:
    """An array is an item, and no iterable of items, though it can be iterated over."""
    found = refuse(lambda: LOOSE.join(np.zeros(3), on=1), TypeError)
    check_refusal(found, "argument-type", "items", value="array([0., 0., 0.])", hint="an iterable of arrays")


def test_a_copy_of_a_view() -> None:
    view = cd.view(np.zeros(3))
    assert copy.copy(view) is view
    found = refuse(lambda: copy.deepcopy(view), TypeError)
    check_refusal(found, "deep-copy", "object", hint="copy=True")
    check_refusal(refuse(lambda: pickle.dumps(view), TypeError), "pickle", "object", hint="pickle numpy.asarray(view)")


def test_a_property_with_a_typo_keeps_its_cause() -> None:
    for make in (cd.view, cd.from_cai):
        with pytest.raises(TypeError, match="'Misspelt' object has no attribute 'intreface'") as found:
            make(Misspelt())
        assert found.value.rule == "cai-unavailable"  # type: ignore[attr-defined]
        assert isinstance(found.value.__cause__, AttributeError)
        assert "CPU" not in str(found.value)
    with pytest.raises(TypeError, match="'Misspelt' object has no attribute 'handel'") as found:
        LOOSE.view(cai(), device_id=0, producer_stream=Misspelt())
    assert found.value.rule == "stream-object"  # type: ignore[attr-defined]
    assert isinstance(found.value.__cause__, AttributeError)


def test_read_only_to_a_legacy_consumer_names_what_was_passed() -> None:
    view = cd.view(cai(), device_id=0, read_only=True)
    found = refuse(view.__dlpack__, BufferError)
    check_refusal(found, "read-only-legacy", "object", hint="max_version=(1, 0)")
    assert "argument" not in found.message
    found = refuse(lambda: view.__dlpack__(max_version=(0, 8)), BufferError)
    check_refusal(found, "read-only-legacy", "max_version", value="(0, 8)", hint="writable=True")


def test_a_dict_that_is_no_interface() -> None:
    for make in (cd.view, cd.from_cai):
        found = refuse(partial(make, {"a": 1}), TypeError)
        check_refusal(found, "protocol-missing", "object", value="{'a': 1}", hint="shape, typestr, data")
    found = refuse(lambda: cd.view(interface()), TypeError)
    check_refusal(found, "owner-missing", "owner", hint="keeps the memory alive")


@pytest.mark.parametrize("typestr", ["<V2", ">V2", "=V2", "<M8[ns]"])
def test_a_typestr_is_quoted_as_it_is_written(typestr: str) -> None:
    said = f"'{typestr}'"
    view = cd.view(cai(typestr=typestr), device_id=0)
    assert said in refuse(view.__dlpack__, BufferError).message
    assert said in refuse(lambda: cd.to_dlpack(cai(typestr=typestr), device_id=0), BufferError).message
    assert said in (cd.explain(cai(typestr=typestr), device_id=0, to="torch").refused or "")
    values, _ = cd.split_masked(cai(typestr=typestr), device_id=0)
    assert said in refuse(values.__dlpack__, BufferError).message
    masked = cai(mask=cai(typestr=typestr))
    found = refuse(lambda: cd.split_masked(masked, device_id=0, mask="byte"), BufferError)
    check_refusal(found, "mask-dtype", "mask", value=said)


def test_a_contradiction_about_writing_is_refused() -> None:
    for obj in (np.zeros(3), cd.view(np.zeros(3)), cd.to_dlpack(np.zeros(3))):
        found = refuse(partial(cd.to_dlpack, obj, read_only=True, writable=True), ValueError)
        check_refusal(found, "argument-value", "writable", value="read_only=True")
        assert cd.to_dlpack(obj, read_only=True, writable=False, max_version=(1, 0)) is not None


@pytest.mark.parametrize("device", [(2, 7), (2, 2**31 - 1), (1, 3), (4, 0)])
def test_the_callers_own_name_of_the_device_is_named(device: tuple[int, int]) -> None:
    view = cd.view(np.zeros(3))
    found = refuse(lambda: cd.from_dlpack(view, device=device), BufferError)
    check_refusal(found, "transfer-refused", "device", value=str(device))
    assert "dl_device" not in found.message
    found = refuse(lambda: view.__dlpack__(dl_device=device), BufferError)
    check_refusal(found, "transfer-refused", "dl_device", value=str(device))


def test_array_takes_two_arguments_by_position_or_by_name() -> None:
    view: Any = cd.view(np.arange(3.0))
    for given, named in ((("f4", True), {}), (("f4",), {"copy": True}), ((), {"dtype": "f4", "copy": True})):
        made = view.__array__(*given, **named)
        assert (made.dtype, made.tolist()) == (np.float32, [0.0, 1.0, 2.0])
    assert view.__array__(None, None).ctypes.data == view.ptr
    found = refuse(lambda: view.__array__(x=1), TypeError)
    check_refusal(found, "argument-unexpected", "x", value="1")
    check_refusal(refuse(lambda: view.__array__("f4", dtype="f4"), TypeError), "argument-unexpected", "dtype")
    check_refusal(refuse(lambda: view.__array__("f4", True, 3), TypeError), "argument-count", None, value="3 pos")


@pytest.mark.parametrize("copy", [np.True_, np.False_])
def test_numpys_bool_is_a_bool_by_every_door(copy: Any) -> None:
    array = np.zeros(3)
    for made in (cd.from_dlpack(array, copy=copy), cd.view(cd.to_dlpack(array, copy=copy))):
        assert (made.ptr != array.ctypes.data) == bool(copy)


def test_a_block_is_entered_once() -> None:
    block = cd.view(np.zeros(3)).consume(1)
    with block:
        found = refuse(block.__enter__, RuntimeError)
    check_refusal(found, "consume-open", "object", hint="consume()")


@pytest.mark.parametrize(
    ("make", "name", "rule"),
    [
        (lambda: cd.view(np.zeros(3)), "__cuda_array_interface__", "cai-device"),
        (lambda: cd.view(np.zeros(3, "S4")), "__cuda_array_interface__", "cai-device"),
        (lambda: cd.view(structured(), device_id=0), "__array_interface__", "array-unreadable"),
        (view, "__array_interface__", "array-unreadable"),
        (lambda: cd.from_dlpack(abi.make(dtype=(abi.BFLOAT, 16, 1)).capsule()), "__array_interface__", "cai-dtype"),
    ],
)
def test_a_probed_property_names_its_rule(make: Callable[[], Any], name: str, rule: str) -> None:
    made = make()
    found = refuse(lambda: getattr(made, name), AttributeError)
    check_refusal(found, rule, None)


@pytest.mark.parametrize("copy_", [None, True, False])
@pytest.mark.parametrize("device", [(abi.CUDA_HOST, 0), (abi.CUDA_MANAGED, 0), (abi.ROCM, 0)])
def test_an_array_that_numpy_does_not_export_is_asked_for_where_it_is(device: tuple[int, int], copy_: Any) -> None:
    """Its type is known here, and its memory is the CPU's."""
    array = np.zeros(3, ml_dtypes.bfloat16)
    found = refuse(lambda: cd.from_dlpack(array, device=device, copy=copy_), BufferError)
    check_refusal(found, "transfer-refused", "device", hint="the data is on (1, 0)")
