"""Every order in which what belongs together can end, in every state; and who releases, how often."""

from __future__ import annotations

import collections.abc
import contextlib
import ctypes
import gc
import itertools
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, cai, interface
from conformance.tests.interpreter.threads import on_stack_of
from conformance.tests.ownership import native

NAMES = ["capsule", "tensor", "view", "owner", "module"]
ORDERS = list(itertools.permutations(NAMES))


def forget_module() -> dict[str, Any]:
    """The package as if it had never been imported; what is still in use lives on."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "cai_dlpack"}


@pytest.mark.parametrize("state", ["consumed", "unconsumed", "error"])
def test_every_order_of_ending_releases_the_owner_once(state: str) -> None:
    """120 orders. `error`: the consumer refused the capsule, which is as it was."""
    for order in ORDERS:
        ends = 0

        class Owner(Cai):
            def __del__(self) -> None:
                nonlocal ends
                ends += 1

        live = cd.stats()["live"]
        owner: Any = Owner(interface())
        view = cd.view(owner, device_id=0)
        capsule = view.__dlpack__(stream=-1, max_version=(1, 3))
        tensor = None
        if state == "consumed":
            tensor = abi.consume(capsule)
        elif state == "error":
            with pytest.raises(BufferError, match="copy"):
                cd.from_dlpack(capsule, device=(1, 0), copy=False)
        held: dict[str, Any] = {"owner": owner, "view": view, "capsule": capsule, "tensor": tensor}
        del owner, view, capsule
        modules: dict[str, Any] = {}
        for name in order:
            if name == "module":
                modules = forget_module()
            elif name == "tensor" and tensor is not None:
                abi.release(tensor)
                held.pop(name)
            else:
                held.pop(name)
            gc.collect()
            # Who keeps the owner: the name itself, the view, and a tensor that is not released.
            keeps = [left for left in held if left in ("owner", "view")]
            keeps += ["tensor"] if state == "consumed" and "tensor" in held else []
            keeps += ["capsule"] if state != "consumed" and "capsule" in held else []
            assert ends == (0 if keeps else 1), (order, name)
        sys.modules.update(modules)
        assert ends == 1, order
        assert cd.stats()["live"] == live, order


def test_the_orders_are_all_there() -> None:
    assert len(ORDERS) == 120


@pytest.mark.parametrize("max_version", [None, (1, 3)], ids=["legacy", "versioned"])
@pytest.mark.parametrize("consumed", [False, True], ids=["unconsumed", "consumed"])
def test_a_consumer_that_clears_the_destructor_leaks_nothing(max_version: Any, consumed: bool) -> None:
    """jax and tvm-ffi clear it after the renaming."""
    set_destructor = ctypes.PyDLL(None).PyCapsule_SetDestructor
    set_destructor.argtypes = [ctypes.py_object, ctypes.c_void_p]
    alive = weakref.ref(producer := cai())
    capsule = cd.view(producer, device_id=0).__dlpack__(stream=-1, max_version=max_version)
    del producer
    if consumed:
        tensor = abi.consume(capsule)
        assert set_destructor(capsule, None) == 0
        del capsule
        assert alive() is not None
        abi.release(tensor)
    else:
        del capsule
    assert alive() is None


def test_tvm_ffi_leaks_nothing() -> None:
    import tvm_ffi

    count = native.figure(1_000, 100_000)
    made = abi.make()
    live = cd.stats()["live"]
    for _ in range(count):
        tvm_ffi.from_dlpack(cd.from_dlpack(made.capsule()))
    gc.collect()
    assert cd.stats()["live"] == live
    assert made.released == count


@pytest.mark.parametrize("length", [1_000, 20_000])
def test_a_chain_of_wraps_of_any_length_ends_at_once(length: int) -> None:
    """Each view keeps the tensor of the one before: their ends nest, in a bounded stack."""
    alive = weakref.ref(producer := cai())
    view: Any = cd.view(producer, device_id=0)
    del producer
    for _ in range(length):
        view = cd.from_dlpack(view.__dlpack__(stream=-1, max_version=(1, 3)))
    assert alive() is not None
    before = cd.stats()["live"]
    del view
    assert alive() is None, "released when the outermost release returns, and not later"
    # Of each wrap the tensor and the view that it keeps; and the producer.
    assert cd.stats()["live"] == before - 2 * length - 1


def test_an_error_of_a_missing_attribute_keeps_nothing() -> None:
    """The error names the object; dropped outside a call that PyO3 counts, it would keep it."""
    made = abi.make()

    class Producer:
        def __dlpack__(self, **_: Any) -> object:
            return made.capsule()

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    alive = weakref.ref(producer := Producer())
    cd.to_dlpack(producer)
    del producer
    assert alive() is None


class Raises(type):
    @property
    def __dlpack_c_exchange_api__(cls) -> object:
        raise RuntimeError(cls)


def of_mapping() -> object:
    """Makes a mapping whose KeyError holds the frame, and by it the mapping."""

    class Mapping:
        def __init__(self) -> None:
            self.values = interface(strides=..., stream=...)

        def __getitem__(self, key: str) -> object:
            return self.values[key]

        def __len__(self) -> int:
            return len(self.values)

        def keys(self) -> object:
            return self.values.keys()

    collections.abc.Mapping.register(Mapping)
    return Cai(Mapping())


def of_raising_type() -> object:
    kind = Raises("Producer", (Cai,), {})
    return kind(interface())


class Wide:
    """An `__index__` beyond every range: the overflow is an error of Python's, dropped for ours."""

    def __index__(self) -> int:
        return 1 << 70

    def __repr__(self) -> str:
        return "Wide()"  # in the names of tests, the same in every run


def of_wide_extent() -> object:
    return cai(shape=(Wide(), 3))


def of_masked() -> object:
    return cai(mask=cai())


@pytest.mark.parametrize("make", [of_mapping, of_raising_type, of_wide_extent, of_masked, object, cai])
@pytest.mark.parametrize(
    "keywords", [{}, {"device_id": 0}, {"device_id": Wide()}, {"producer_stream": Wide()}], ids=repr
)
def test_what_is_dropped_on_the_way_is_dropped_now(make: Any, keywords: Any) -> None:
    """Not when PyO3 is called next, which may be never: nothing of ours is called before the last line."""
    producer: Any = make()
    kept = [producer, getattr(producer, "interface", producer)]

    def counted() -> tuple[list[int], int]:
        exceptions = sum(isinstance(each, BaseException) for each in gc.get_objects())
        return [sys.getrefcount(each) for each in kept], exceptions

    gc.collect()
    before = counted()
    with contextlib.suppress(TypeError, ValueError, BufferError, cd.DriverError):
        cd.view(producer, **keywords)
    assert counted() == before


def test_an_exception_that_is_a_rust_panic_is_put_aside_like_any_other() -> None:
    """PyO3 goes on panicking when it fetches one; a deleter must not."""
    import cai_dlpack._core  # noqa: F401

    panic = next((c for c in BaseException.__subclasses__() if c.__name__ == "PanicException"), None)
    if panic is None:  # made by PyO3 at its first panic, and by this project never
        panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    alive = weakref.ref(producer := cai())

    def throw() -> object:
        raise panic("from another extension")

    def drop_on_the_way_out(owner: Any) -> None:
        (cd.view(owner, device_id=0).__dlpack__(stream=-1), throw())

    with pytest.raises(panic):
        drop_on_the_way_out(producer)
    del producer
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("pending", [False, True])
def test_an_exception_that_a_deleter_leaves_is_reported_and_not_raised(
    pending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deleter is `PyErr_NoMemory`, a C function that sets an exception and ignores its argument."""
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(report.exc_type))
    made = abi.make((2,))
    made.managed.deleter = ctypes.cast(ctypes.pythonapi.PyErr_NoMemory, ctypes.c_void_p)

    def throw() -> object:
        if pending:
            raise KeyError("pending")
        return None

    def drop_on_the_way_out() -> None:
        (cd.view(made.capsule()), throw())

    with pytest.raises(KeyError) if pending else contextlib.nullcontext():
        drop_on_the_way_out()
    assert reported == [MemoryError]


def said_at_the_end(make: Callable[[Callable[[str], Any]], Any], end: Callable[[Any], None]) -> list[str]:
    """Returns which of the objects that `make` names end, in this order, with what it returns."""
    said: list[str] = []

    class Says(Cai):
        def __init__(self, word: str) -> None:
            super().__init__(interface())
            self.word = word

        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 1

        def __del__(self) -> None:
            said.append(self.word)

    made = make(Says)
    gc.collect()
    assert not said, "kept"
    end(made)
    del made
    late = time.monotonic() + 20
    while len(said) < 2 and time.monotonic() < late:
        time.sleep(0.001)
    return said


KEPT_BESIDE: dict[str, Callable[[Callable[[str], Any]], Any]] = {
    "owner= of an object": lambda says: cd.view(says("memory"), device_id=0, owner=says("beside")),
    "owner= of a tensor": lambda says: cd.from_dlpack(
        cd.view(says("memory"), device_id=0).__dlpack__(stream=-1), owner=says("beside"), producer_stream=None
    ),
    "producer_stream= of an object": lambda says: cd.view(says("memory"), device_id=0, producer_stream=says("beside")),
    "producer_stream= of a tensor": lambda says: cd.from_dlpack(
        cd.view(says("memory"), device_id=0).__dlpack__(stream=-1), producer_stream=says("beside")
    ),
}


def dropped(view: list[Any]) -> None:
    view.clear()


def exported_without_the_gil(view: list[Any]) -> None:
    """The reaper ends what the capsule keeps."""
    tensor = abi.consume(view.pop().__dlpack__(stream=-1, max_version=(1, 3)))
    abi.release(tensor, gil=False)


@pytest.mark.parametrize("end", [dropped, exported_without_the_gil])
@pytest.mark.parametrize("kept", KEPT_BESIDE)
def test_what_is_kept_beside_the_memory_ends_after_it(kept: str, end: Callable[[list[Any]], None]) -> None:
    """The end of the memory may use it: a pool frees on the stream that was named."""
    assert said_at_the_end(lambda says: [KEPT_BESIDE[kept](says)], end) == ["memory", "beside"]


@pytest.mark.parametrize("stack", [0, 512 << 10])
@pytest.mark.parametrize(
    "kept", ["owner= of a tensor", "producer_stream= of an object", "producer_stream= of a tensor"]
)
def test_so_it_does_at_any_depth(kept: str, stack: int) -> None:
    """Ends that are too deep for the stack wait, and what comes after them waits, too."""

    def nested(depth: int) -> Callable[[Callable[[str], Any]], list[Any]]:
        def make(says: Callable[[str], Any]) -> list[Any]:
            view = KEPT_BESIDE[kept](says)
            for _ in range(depth):
                capsule = view.__dlpack__(stream=-1, max_version=(1, 3))
                view = cd.from_dlpack(capsule, producer_stream=None)
            return [view]

        return make

    def said() -> None:
        for depth in [*range(140), 1_000]:
            found[depth] = said_at_the_end(nested(depth), dropped)

    found: dict[int, list[str]] = {}
    on_stack_of(stack, said)
    wrong = {depth: words for depth, words in found.items() if words != ["memory", "beside"]}
    assert len(found) == 141 and wrong == {}


def test_a_chain_that_is_too_deep_keeps_nothing_else_waiting() -> None:
    """A finaliser that waited for another end would wait for ever."""
    ended: list[str] = []

    class Says(Cai):
        def __init__(self, word: str) -> None:
            super().__init__(interface())
            self.word = word

        def __del__(self) -> None:
            ended.append(self.word)

    def chain(word: str, length: int) -> Any:
        view = cd.view(Says(word), device_id=0)
        for _ in range(length):
            view = cd.from_dlpack(view.__dlpack__(stream=-1, max_version=(1, 3)))
        return view

    class Outer(Cai):
        def __del__(self) -> None:
            held.clear()
            cd.view(Says("after"), device_id=0)
            ended.append("outer")

    held = [chain("chain", 30_000)]
    view = cd.view(Outer(interface()), device_id=0)
    del view
    assert ended == ["chain", "after", "outer"]
