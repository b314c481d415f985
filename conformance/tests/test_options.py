"""Tests the keywords of an import: each has a case here and an entry in docs/python.md, and each function takes all.

A keyword is declared once, in `option_keywords!` (src/python/call/options.rs).
"""

from __future__ import annotations

import gc
import inspect
import pydoc
import unittest.mock
import weakref
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import FAKE_POINTER, Cai, Dlpack, interface
from conformance.tests.expectations.refusal import refuse
from conformance.tests.interpreter.process import ROOT
from conformance.tests.simulated.machine import Machine

View = cd.CaiView
Call = Callable[..., View]


def cai(**changes: Any) -> Cai:
    return Cai(interface(**changes))


def dlpack(**changes: Any) -> Dlpack:
    return Dlpack(abi.make(device=(abi.CUDA, 0), data=FAKE_POINTER, **changes))


def exported(obj: Any, **keywords: Any) -> View:
    return cd.from_dlpack(cd.to_dlpack(obj, max_version=(1, 0), stream=-1, **keywords))


def handed(obj: Any, **keywords: Any) -> View:
    """To our own class, whose table makes a view of the tensor."""
    found: View = cd.to(obj, View, **keywords)
    return found


#: How each function makes a view of the same array.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Call, Callable[[], object]]] = {
    "view": (cd.view, cd.view, cai),
    "view of DLPack": (cd.view, cd.view, dlpack),
    "from_cai": (cd.from_cai, cd.from_cai, cai),
    "from_dlpack": (cd.from_dlpack, cd.from_dlpack, dlpack),
    "to_dlpack": (cd.to_dlpack, exported, cai),
    "to_dlpack of DLPack": (cd.to_dlpack, exported, dlpack),
    "to": (cd.to, handed, cai),
    "to, of DLPack": (cd.to, handed, dlpack),
}


def keywords(function: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}


SHARED = sorted(keywords(cd.view))


def device_id(call: Call, make: Callable[[], Any], machine: Machine) -> None:
    assert call(make(), device_id=0).device == (2, 0)
    found = refuse(lambda: call(make(), device_id=-1), ValueError)
    assert found.rule == "device-id-range", found.message


def producer_stream(call: Call, make: Callable[[], Any], machine: Machine) -> None:
    stream = machine.stream()
    view = call(make(), device_id=0, producer_stream=stream)
    assert call in (exported, handed) or view.producer_stream == stream
    assert call(make(), device_id=0, producer_stream=...).shape == (2, 3)


def dtype(call: Call, make: Callable[[], Any], machine: Machine) -> None:
    assert call(make(), device_id=0, dtype="float32").dtype == "float32"
    found = refuse(lambda: call(make(), device_id=0, dtype="int32"), BufferError)
    assert found.rule == "dtype-override", found.message


def shape(call: Call, make: Callable[[], Any], machine: Machine) -> None:
    assert call(make(), device_id=0, shape=(6,)).shape == (6,)


def read_only(call: Call, make: Callable[[], Any], machine: Machine) -> None:
    assert call(make(), device_id=0, read_only=True).read_only
    assert not call(make(), device_id=0, read_only=False).read_only


class Kept:
    """Something to keep alive."""


def owner(call: Call, make: Callable[[], Any], machine: Machine) -> None:
    kept = Kept()
    alive = weakref.ref(kept)
    view = call(make(), device_id=0, owner=kept)
    del kept
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None


def check(call: Call, make: Callable[[], Any], machine: Machine) -> None:
    found = refuse(lambda: call(make(), check="bounds"), BufferError)
    assert found.rule == "pointer-unknown", found.message


def strict(call: Call, make: Callable[[], Any], machine: Machine) -> None:
    if make is dlpack:
        assert call(make(), strict=True).shape == (2, 3)
        return
    lenient = cai(version=...)
    assert call(lenient, device_id=0).shape == (2, 3)
    found = refuse(lambda: call(lenient, device_id=0, strict=True), ValueError)
    assert found.rule == "version-missing", found.message


#: What each keyword does.
CASES: dict[str, Callable[[Call, Callable[[], Any], Machine], None]] = {
    case.__name__: case for case in (device_id, producer_stream, dtype, shape, read_only, owner, check, strict)
}


def test_each_keyword_has_a_case() -> None:
    missing = [name for name in SHARED if name not in CASES]
    assert not missing, f"keywords of `view` without a case in {__file__}: {missing}"


def test_each_keyword_is_on_the_page() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    missing = [name for name in SHARED if f"\n- `{name}`: " not in page]
    assert not missing, f"keywords of `view` without an entry `- `name`: ...` in docs/python.md: {missing}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_takes_the_same(name: str) -> None:
    function = FUNCTIONS[name][0]
    assert set(SHARED) <= keywords(function)
    shown = inspect.signature(function).parameters
    for keyword in SHARED:
        assert shown[keyword].default == inspect.signature(cd.view).parameters[keyword].default
        assert f"\n{keyword} : " in (function.__doc__ or ""), f"{name}: {keyword} is not in the docstring"


def test_python_can_show_all_that_is_public() -> None:
    """`help` and `unittest.mock` read every signature, and refuse one that is no Python."""
    assert "class CaiView" in pydoc.plain(pydoc.render_doc(cd))
    methods = [value for value in vars(cd.CaiView).values() if callable(value)]
    functions = [value for name in cd.__all__ if callable(value := getattr(cd, name))]
    shown = [value for value in methods + functions if getattr(value, "__text_signature__", None)]
    for value in shown:
        inspect.signature(value)
        pydoc.render_doc(value)
    assert {cd.view, cd.CaiView.on, cd.CaiView.consume} <= set(shown)
    assert str(inspect.signature(cd.CaiView.on)).startswith("(self, stream, /")
    unittest.mock.create_autospec(cd.CaiView)


@pytest.mark.parametrize("keyword", SHARED)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_it_does(name: str, keyword: str, machine: Machine) -> None:
    _, call, make = FUNCTIONS[name]
    CASES[keyword](call, make, machine)


def test_keywords_in_any_order_and_by_any_string() -> None:
    """Not only in the order of declaration, in one pass: in another order, and by strings that are not interned."""
    given = {"strict": False, "read_only": True, "shape": (6,), "device_id": 0}
    assert list(given) != [name for name in SHARED if name in given]
    copies = {"".join(list(name)): value for name, value in given.items()}
    for each in (given, dict(reversed(given.items())), copies):
        view = cd.view(cai(), **each)  # type: ignore[arg-type]
        assert (view.shape, view.read_only, view.device) == ((6,), True, (2, 0))
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        cd.view(cai(), strict=False, colour="blue")  # type: ignore[call-arg]
