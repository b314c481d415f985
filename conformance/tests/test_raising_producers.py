"""Producers whose hooks raise: an interrupt arrives as itself, from every hook and through every function.

Each hook of a producer and each part of its dict in turn raises; the oracle is whether it has been asked.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import cai_dlpack as cd
import ml_dtypes
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import Dlpack, cai, interface
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.simulated.machine import Machine


class Interrupt(BaseException):
    """Is no Exception, as KeyboardInterrupt."""


class Raises:
    """Raises by each method that Python or this library may call; counts how often."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.asked = 0

    def ask(self, *_: Any, **__: Any) -> Any:
        self.asked += 1
        raise self.error

    __index__ = __int__ = __bool__ = __len__ = __iter__ = __getitem__ = __eq__ = ask
    __hash__ = None  # type: ignore[assignment]

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.ask()

    @property
    def __cuda_stream__(self) -> Any:
        return self.ask()


def parts(address: int, evil: Raises) -> dict[str, dict[str, Any]]:
    """Dicts of which one part raises when it is asked."""
    return {
        "shape": {"shape": evil},
        "extent": {"shape": (2, evil)},
        "strides": {"strides": evil},
        "stride": {"strides": (evil, 4)},
        "pointer": {"data": (evil, False)},
        "read-only": {"data": (address, evil)},
        "pair": {"data": evil},
        "stream": {"stream": evil},
        "version": {"version": evil},
        "mask": {"mask": evil},
        "descr": {"descr": evil},
        "typestr": {"typestr": evil},
    }


PARTS = list(parts(0, Raises(Interrupt())))
HOOKS = ["__cuda_array_interface__", "__dlpack__", "__dlpack_device__", "dtype", "__dlpack_c_exchange_api__"]


def producer(address: int, hook: str, evil: Raises) -> object:
    """An object of both protocols, whose hook raises."""
    made = abi.make(device=(abi.CUDA, 0), data=address)
    members: dict[str, Any] = {
        "__cuda_array_interface__": property(lambda self: interface(data=(address, False))),
        "__dlpack__": lambda self, **keywords: made.capsule(),
        "__dlpack_device__": lambda self: (abi.CUDA, 0),
        "dtype": np.dtype("f4"),
    }
    if hook == "__dlpack_c_exchange_api__":
        meta = type("Meta", (type,), {hook: property(evil.ask)})
        return meta("Producer", (), members)()
    members[hook] = evil.ask if hook.startswith("__dlpack") else property(evil.ask)
    return type("Producer", (), members)()


FUNCTIONS: dict[str, Callable[[Any], object]] = {
    "view": cd.view,
    "view, read-only": lambda thing: cd.view(thing, read_only=True),
    "view, no stream": lambda thing: cd.view(thing, producer_stream=None),
    "from_cai": cd.from_cai,
    "from_dlpack": cd.from_dlpack,
    "to_dlpack": cd.to_dlpack,
    "explain": cd.explain,
    "explain, to": lambda thing: cd.explain(thing, to="cupy"),
}


def check(function: str, thing: Any, evil: Raises) -> None:
    """If the hook has been asked, its exception came out, as itself."""
    raised: BaseException | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            FUNCTIONS[function](thing)
    except (Interrupt, Exception) as error:
        raised = error
    assert (raised is evil.error) == bool(evil.asked), f"{raised!r}"
    assert evil.asked or isinstance(raised, (TypeError, ValueError, BufferError, type(None))), f"{raised!r}"


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("hook", HOOKS)
def test_an_interrupt_of_a_hook_arrives(hook: str, function: str, machine: Machine) -> None:
    evil = Raises(Interrupt())
    check(function, producer(machine.device_memory(64), hook, evil), evil)


@pytest.mark.parametrize("function", [name for name in FUNCTIONS if name not in ("from_dlpack",)])
@pytest.mark.parametrize("part", PARTS)
def test_an_interrupt_of_a_part_arrives(part: str, function: str, machine: Machine) -> None:
    evil, address = Raises(Interrupt()), machine.device_memory(64)
    check(function, cai(**{"data": (address, False), **parts(address, evil)[part]}), evil)


def test_some_hooks_are_asked(machine: Machine) -> None:
    """The two tests above would pass if nothing were asked."""
    asked = set()
    for name, function in itertools.product([*HOOKS, *PARTS], FUNCTIONS):
        evil, address = Raises(Interrupt()), machine.device_memory(64)
        thing = (
            producer(address, name, evil)
            if name in HOOKS
            else cai(**{"data": (address, False), **parts(address, evil)[name]})
        )
        check(function, thing, evil)
        asked |= {name} if evil.asked else set()
    assert asked >= {"__cuda_array_interface__", "__dlpack__", "__dlpack_device__", "extent", "stride", "pointer"}, (
        asked
    )


def test_an_interrupt_of_the_class_arrives() -> None:
    """The class is looked at only if the object has nothing: its metaclass may raise."""
    evil = Raises(Interrupt())
    meta = type("Meta", (type,), {"__cuda_array_interface__": property(evil.ask)})
    with pytest.raises(Interrupt):
        cd.from_cai(meta("Bare", (), {})())
    assert evil.asked


@pytest.mark.parametrize("has_dlpack", [False, True])
def test_a_property_that_works_the_second_time_is_named(has_dlpack: bool) -> None:
    class Moody:
        asked = 0

        @property
        def __cuda_array_interface__(self) -> Any:
            self.asked += 1
            if self.asked == 1:
                raise AttributeError("not yet")
            return interface()

    if has_dlpack:
        Moody.__dlpack__ = lambda self: None  # type: ignore[attr-defined]
    found = refuse(lambda: cd.from_cai(Moody()), TypeError)
    check_refusal(found, "cai-unavailable", "__cuda_array_interface__", hint="a second try returned it")
    assert ("__dlpack__" in found.message) == has_dlpack


@pytest.mark.parametrize("text", ["copy() takes no keyword arguments", "C.__dlpack__() takes no keyword arguments"])
def test_an_export_without_keywords_is_called_without(text: str, machine: Machine) -> None:
    """As functions in C that take none say."""
    made, asked = abi.make(device=(abi.CUDA, 0), data=machine.device_memory(64)), []

    class Old:
        def __dlpack__(self, **keywords: Any) -> object:
            asked.append(keywords)
            if keywords:
                raise TypeError(text)
            return made.capsule()

        def __dlpack_device__(self) -> tuple[int, int]:
            return (abi.CUDA, 0)

    view = cd.view(Old(), producer_stream=None)
    assert view.ptr == made.tensor.data
    assert asked[0]
    assert asked[1:] == [{}]
    # A transfer is no keyword that may go.
    with pytest.raises(TypeError, match="no keyword"):
        cd.from_dlpack(Old(), copy=True)


@pytest.mark.parametrize("error", [None, RuntimeError("broken"), Interrupt()], ids=["old", "error", "interrupt"])
def test_an_ml_dtypes_that_lacks_a_type(error: BaseException | None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lacking(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise error or AttributeError(name)

    monkeypatch.setitem(sys.modules, "ml_dtypes", Lacking("ml_dtypes"))
    values = np.zeros(6, "u1")
    dtype = cd.view(values, dtype="float8_e5m2").dtype
    if error is None:
        with pytest.raises((TypeError, BufferError), match="update it"):
            np.dtype(dtype)
    else:
        with pytest.raises(type(error)):
            np.dtype(dtype)


@pytest.mark.parametrize("dtype", ["f8", ml_dtypes.bfloat16])
@pytest.mark.parametrize("read_only", [None, False, True])
def test_a_copy_for_the_host_is_as_writable_as_was_asked(read_only: bool | None, dtype: Any) -> None:
    """Also of a type that NumPy itself does not export."""
    values = np.arange(6.0).astype(dtype)
    values.flags.writeable = False
    view = cd.from_dlpack(values, device=(abi.CPU, 0), copy=True, read_only=read_only)
    assert np.asarray(view).tolist() == values.tolist()
    assert view.ptr != values.ctypes.data
    assert view.read_only is bool(read_only)


@pytest.mark.parametrize("dtype", ["f8", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("copy", [None, False, True])
def test_an_array_of_a_view_is_a_copy_if_one_was_asked_for(copy: bool | None, dtype: Any) -> None:
    values = np.arange(6.0).astype(dtype)
    array = cd.view(values).__array__(copy=copy)
    assert array.dtype == values.dtype
    assert array.tolist() == values.tolist()
    assert np.shares_memory(array, values) is not bool(copy)


@pytest.mark.parametrize(
    ("inner", "rule"),
    [({"shape": 7}, "typestr-missing"), ({}, "cai-empty"), (7, "cai-type"), (None, "cai-none")],
)
def test_a_malformed_mask_is_refused_by_its_own_defect(inner: Any, rule: str) -> None:
    class Mask:
        __cuda_array_interface__ = inner

    with pytest.raises((TypeError, ValueError)) as found:
        cd.view(cai(mask=Mask()), device_id=0)
    assert found.value.rule == rule  # type: ignore[attr-defined]


@pytest.mark.parametrize("device", ["cpu", "cuda:1", (1, 0)], ids=str)
@pytest.mark.parametrize("copy", [None, True, False])
@pytest.mark.parametrize("memory", ["device_memory", "pinned_memory"])
def test_what_a_producer_refuses_by_dlpack_is_not_taken_by_its_dict(
    memory: str, copy: bool | None, device: Any, machine: Machine
) -> None:
    """A `BufferError` may be about the device; one that is raised without a device is not."""
    data, kind = getattr(machine, memory)(64), {"device_memory": abi.CUDA, "pinned_memory": abi.CUDA_HOST}[memory]

    class Pending:
        __cuda_array_interface__ = interface(data=(data, False))

        def __dlpack_device__(self) -> tuple[int, int]:
            return kind, 0

        def __dlpack__(self, **_: Any) -> object:
            raise BufferError("values to be resolved first")

    with pytest.raises(BufferError, match="values to be resolved first"):
        cd.from_dlpack(Pending(), device=device, copy=copy)


@pytest.mark.parametrize("error", [TypeError("mine"), ValueError("mine")], ids=repr)
def test_an_error_of_an_iterable_or_of_a_stream_arrives_as_it_is(error: Exception) -> None:
    """A TypeError, too, which CPython raises of what is no iterable, and of a class that is called."""

    class Broken:
        def __iter__(self) -> Any:
            raise error

        def __cuda_stream__(self) -> Any:
            raise error

    class OfClass:
        @classmethod
        def __cuda_stream__(cls) -> Any:
            raise ValueError("mine")

    for call in (lambda: cd.join(Broken(), on=1), lambda: cd.use_stream(Broken())):
        with pytest.raises(type(error)) as raised:
            call()
        assert raised.value is error
    with pytest.raises(ValueError, match="mine"):
        cd.use_stream(OfClass)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), TimeoutError("mine")], ids=repr)
def test_an_error_of_tensorflow_s_that_refuses_no_stream_arrives(error: BaseException, machine: Machine) -> None:
    """Its refusal of a stream is a RuntimeError, and the export without one waits."""

    def export(self: Dlpack, **keywords: Any) -> Any:
        if "stream" in keywords:
            raise error
        return Dlpack.__dlpack__(self)

    members = {"__module__": "tensorflow.python.framework.ops", "__dlpack__": export}
    tensor = type("EagerTensor", (Dlpack,), members)(abi.make(device=(abi.CUDA, 0), data=machine.device_memory(24)))
    with pytest.raises(type(error)) as raised:
        cd.view(tensor)
    assert raised.value is error


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_an_interrupt_of_any_reading_of_explain_arrives(nth: int, machine: Machine) -> None:
    address, asked = machine.device_memory(24), [0]

    class Array(Dlpack):
        @property
        def __cuda_array_interface__(self) -> Any:
            asked[0] += 1
            if asked[0] == nth:
                raise Interrupt
            return interface(version=2, stream=..., data=(address, False))

    array = Array(abi.make(device=(abi.CUDA, 0), data=address))
    with pytest.raises(Interrupt):
        cd.explain(array)
    assert asked[0] == nth
