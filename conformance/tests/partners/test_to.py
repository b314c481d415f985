"""Tests `cd.to`: a library's own array, by the library's table or by its call, ready where the library works."""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import gc
import random
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import cai_dlpack as cd
import cai_example_peer as peer
import numba
import numba.cuda
import numpy as np
import pytest
import tvm_ffi
from cai_conformance import abi, exchange
from cai_dlpack import _core
from cuda.core.utils import StridedMemoryView

from conformance.tests.doubles.producers import Cai, StreamObject, cai, interface
from conformance.tests.expectations.refusal import refuse
from conformance.tests.interpreter import needs
from conformance.tests.ownership.waiting import until
from conformance.tests.simulated.capture import ACTIVE, GLOBAL, QUESTIONS, RELAXED, THREAD_LOCAL, Captures
from conformance.tests.simulated.machine import Machine, one_event

HERE = {"numpy": np.ndarray, "cuda.core": StridedMemoryView, "tvm_ffi": None, "numba": None}
OF_NUMBA_CUDA = {"numba": needs.numba_cuda}
ROWS = {row["name"]: row for row in _core._partners()}


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Ends Numba's arrays, which are in cycles, with their test: later ones count what is alive."""
    yield
    gc.collect()


def on_device(machine: Machine, stream: int | None = None, **changes: Any) -> Cai:
    pointer = machine.device_memory(24)
    described: dict[str, Any] = {"shape": (2, 3), "typestr": "<f4", "data": (pointer, False), "stream": stream}
    return Cai(interface(**{**described, **changes}))


def offered(array: Cai, where: str) -> Any:
    """The array, a view of it, or a capsule of it."""
    if where == "foreign":
        return array
    view = cd.view(array)
    return view if where == "view" else view.__dlpack__(stream=-1, max_version=(1, 3))


def ordered(machine: Machine, call: Callable[[], object]) -> list[tuple[str, int]]:
    machine.clear()
    kept = call()
    calls = machine.order()
    del kept
    return calls


@pytest.mark.parametrize("library", [pytest.param(name, marks=OF_NUMBA_CUDA.get(name, ())) for name in HERE])
def test_the_library_is_named_as_one_likes(library: str) -> None:
    import importlib

    row = ROWS[library]
    array: Any = np.arange(6, dtype="f4") if library != "numba" else Cai(interface())
    names: dict[str, Any] = {}
    exec(row["calls"][0]["import"], names)
    module = importlib.import_module(row["modules"][0])
    ways = [library, row["title"], *row["aliases"], module, *([HERE[library]] if HERE[library] else [])]
    keywords: dict[str, Any] = {} if library != "numba" else {"device_id": 0}
    found = {type(cd.to(array, way, **keywords)) for way in ways}
    called = eval(row["calls"][0]["code"], {**names, "v": cd.view(array, **keywords), "s": -1})
    assert found == {type(called)}


def test_a_name_is_looked_up_once_and_an_unknown_one_refused() -> None:
    array = np.arange(3)
    for wrong in ("nompy", "", "\ud800"):
        found = refuse(lambda wrong=wrong: cd.to(array, wrong), ValueError)  # type: ignore[misc]
        assert (found.rule, found.field) == ("argument-value", "library"), found.message
        assert "numpy, numba" in found.message
    for kind in (5, None, array, b"numpy"):
        found = refuse(lambda kind=kind: cd.to(array, kind), TypeError)  # type: ignore[misc]
        assert (found.rule, found.field) == ("argument-type", "library"), found.message
    found = refuse(lambda: cd.to(array, gc), ValueError)
    assert found.rule == "argument-value", found.message
    found = refuse(lambda: cd.to(array, int), ValueError)
    assert found.rule == "argument-value", found.message


def test_a_name_that_was_made_at_run_time() -> None:
    """Equal to a name that has been looked up, and another object each time; more of them than are kept."""
    array = np.arange(3)
    for name in ("numpy", "np", "tvm_ffi") * 20:
        made = "".join(list(name))
        assert type(cd.to(array, made)) is type(cd.to(array, name)), made


def test_a_library_without_arrays_names_its_call() -> None:
    found = refuse(lambda: cd.to(np.arange(3), "mpi4py"), ValueError)
    assert found.rule == "argument-value"
    assert "comm.Send(v, dest=1)" in found.message


def test_a_library_that_is_not_installed() -> None:
    with pytest.raises(ImportError):
        cd.to(np.arange(3), "cudf")


@pytest.mark.parametrize("where", ["foreign", "view", "capsule"])
@pytest.mark.parametrize("library", ["cuda.core", StridedMemoryView, "tvm_ffi"], ids=str)
def test_ready_on_the_stream_that_the_caller_names(library: Any, where: str, machine: Machine) -> None:
    """By one event: no other stream is drawn into it, and no order is made twice."""
    ready, consumer = machine.stream(), machine.stream()
    array = offered(on_device(machine, ready), where)
    keywords: dict[str, Any] = {"producer_stream": ready} if where == "capsule" else {}
    assert ordered(machine, lambda: cd.to(array, library, stream=consumer, **keywords)) == one_event(ready, consumer)


@pytest.mark.parametrize("library", ["cuda.core", StridedMemoryView, "tvm_ffi", "numba", cd.CaiView], ids=str)
@pytest.mark.parametrize("where", ["foreign", "view", "capsule"])
def test_without_an_order(where: str, library: Any, machine: Machine) -> None:
    """-1: the caller has ordered what it works on. Nothing is waited for, by any way."""
    array = offered(on_device(machine, machine.stream()), where)
    assert ordered(machine, lambda: cd.to(array, library, stream=-1)) == []


def test_a_library_that_waits_on_the_host_needs_no_stream(machine: Machine) -> None:
    """Numba waits for the producer: neither is the caller's stream waited for, nor its capture broken."""
    ready, consumer = machine.stream(), machine.stream()
    array = on_device(machine, ready)
    calls = ordered(machine, lambda: cd.to(array, "numba", stream=consumer))
    assert calls == [("cuStreamSynchronize", ready)]


@pytest.mark.parametrize("stream", [None, 1, 2, "other", -1])
@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED], ids=["global", "thread-local", "relaxed"])
@pytest.mark.parametrize("captured", ["the ready stream", "a blocking one", "another one"])
@pytest.mark.parametrize("where", ["foreign", "view", "capsule"])
def test_a_wait_of_the_librarys_is_refused_as_synchronize_is(
    where: str, captured: str, mode: int, stream: int | str | None, machine: Machine
) -> None:
    """Numba would break the capture within our call; by -1 it finds nothing to wait for."""
    captures, begun = Captures(machine), machine.stream()
    if captured == "a blocking one":
        begun = blocking_stream(machine)
    ready = {"the ready stream": begun, "a blocking one": 1}.get(captured) or machine.stream()
    keywords: dict[str, Any] = {"producer_stream": ready} if where == "capsule" else {}
    given: dict[str, Any] = {} if stream is None else {"stream": machine.stream() if stream == "other" else stream}
    array = offered(on_device(machine, ready), where)
    view = cd.view(on_device(machine, ready))
    captures.begin(begun, mode)
    try:
        machine.clear()
        refused = rule_of(lambda: cd.to(array, "numba", **keywords, **given))
        assert not refused or set(machine.names()) <= QUESTIONS
        assert refused == (None if stream == -1 else rule_of(view.synchronize))
        assert (refused is None) == (captured == "another one" or stream == -1)
        assert captures.state(begun) == ACTIVE
        if where == "capsule" and refused:
            assert abi.name(array) == abi.VERSIONED
    finally:
        captures.close()


@needs.numba_cuda
@pytest.mark.parametrize("where", ["foreign", "view", "capsule"])
def test_a_stream_is_ordered_where_the_librarys_wait_is_switched_off(
    where: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting is asked at each call: nobody else would order the caller's stream."""
    ready, consumer = machine.stream(), machine.stream()
    keywords: dict[str, Any] = {"producer_stream": ready} if where == "capsule" else {}
    source = on_device(machine, ready)
    waits, event = [("cuStreamSynchronize", ready)], one_event(ready, consumer)
    for is_on, expected in ((True, waits), (False, event), (True, waits)):
        monkeypatch.setattr(numba.config, "CUDA_ARRAY_INTERFACE_SYNC", is_on)
        array, made = offered(source, where), list[Any]()
        calls = ordered(machine, lambda: made.append(cd.to(array, "numba", stream=consumer, **keywords)))  # noqa: B023
        assert calls == expected, is_on
        # What is ready needs no stream of Numba's.
        assert made[0].stream == 0 if is_on else int(made[0].stream.handle) == consumer
        assert ordered(machine, lambda: cd.to(offered(source, where), "numba", **keywords)) == waits * is_on
        plan = cd.explain(source, to="numba")
        assert plan.order is not None and plan.order.startswith("the host waits" if is_on else "nobody waits")


@needs.numba_cuda
def test_the_capture_mode_is_set_back_though_the_driver_refuses_once(machine: Machine) -> None:
    array = on_device(machine, machine.stream())
    machine.control.fault("cuThreadExchangeStreamCaptureMode", 999, 2)
    cd.to(array, "numba")
    assert machine.control.pending_faults() == 0
    assert machine.set_capture_mode(GLOBAL) == GLOBAL


@needs.numba_cuda
@pytest.mark.parametrize("current", ["none", "the memory's", "another"])
@pytest.mark.parametrize("ready", [1, 2])
@pytest.mark.parametrize("named", [False, True])
def test_a_default_stream_is_the_memory_s_whatever_context_is_current(
    named: bool, ready: int, current: str, machine: Machine
) -> None:
    """The library alone would wait for the default stream of the current context, and break a capture there."""
    pointer, consumer = machine.device_memory(16, 1), machine.stream()
    captured, captures = blocking_stream(machine), Captures(machine)
    machine.control.schedule = "lazy"
    machine.set_current(1)
    machine.control.store(ready, pointer, b"\1" * 16)
    machine.set_current(0)
    captures.begin(captured, GLOBAL)
    contexts = {"none": None, "the memory's": machine.context(1), "another": machine.context(0)}
    assert machine.driver.cuCtxSetCurrent(ctypes.c_void_p(contexts[current])) == 0
    try:
        made = cd.to(
            Cai(interface(shape=(4,), data=(pointer, False), stream=ready)), "numba", stream=consumer if named else None
        )
        assert machine.control.peek(pointer, 16) == b"\1" * 16
        assert captures.state(captured) == ACTIVE
        del made
    finally:
        machine.control.schedule = "threaded"
        machine.set_current(0)
        captures.close()


def blocking_stream(machine: Machine) -> int:
    """A stream that waits for the legacy one, and the legacy one for it."""
    made = ctypes.c_void_p()
    assert machine.driver.cuStreamCreate(ctypes.byref(made), ctypes.c_uint(0)) == 0
    assert made.value
    return made.value


def rule_of(call: Callable[[], object]) -> str | None:
    """The rule by which a call is refused; None if it is not."""
    try:
        call()
    except (BufferError, TypeError, ValueError) as error:
        return str(error.rule)  # type: ignore[union-attr]
    return None


@pytest.mark.parametrize("where", ["foreign", "view", "capsule"])
def test_a_view_is_ready_on_the_stream_that_the_caller_names(where: str, machine: Machine) -> None:
    """A view tells the streams of its array, which a table does not: it is made as `view` makes it."""
    ready, consumer = machine.stream(), StreamObject(machine.stream())
    keywords: dict[str, Any] = {"producer_stream": ready} if where == "capsule" else {}
    source = on_device(machine, ready)
    plain = cd.to(offered(source, where), cd.CaiView, **keywords)
    assert (plain.stream, plain.producer_stream) == (ready, ready)
    array = offered(source, where)
    moved: list[cd.CaiView] = []
    calls = ordered(machine, lambda: moved.append(cd.to(array, cd.CaiView, stream=consumer, **keywords)))
    assert calls == one_event(ready, consumer.handle)
    assert (moved[0].stream, moved[0].producer_stream) == (consumer.handle, ready)


@pytest.mark.parametrize("where", ["foreign", "view", "capsule"])
def test_a_view_keeps_the_object_of_that_stream(where: str, machine: Machine) -> None:
    consumer = StreamObject(machine.stream())
    keywords: dict[str, Any] = {"producer_stream": machine.stream()} if where == "capsule" else {}
    moved = cd.to(offered(on_device(machine, machine.stream()), where), cd.CaiView, stream=consumer, **keywords)
    alive = weakref.ref(consumer)
    del consumer
    assert alive() is not None
    del moved
    assert alive() is None


def test_an_undeclared_order_stays_undeclared(machine: Machine) -> None:
    tensor = tvm_ffi.from_dlpack(cd.view(on_device(machine)))
    with pytest.warns(cd.StreamWarning):
        view = cd.to(tensor, cd.CaiView)
    found = refuse(lambda: cd.view(view, strict=True), BufferError)
    assert found.rule == "stream-undeclared"


class Taker:
    """A class whose table takes tensors, and makes an object of the class."""

    def __init__(self) -> None:
        self.producer = exchange.Producer()
        self.tensors: list[int] = []
        table = exchange.table(self.producer, to_object=exchange.ToObject(self._take))
        self.kind = exchange.make_type(exchange.capsule(table), self.producer)
        self.made = self.kind()

    def _take(self, tensor: int, out: Any) -> int:
        self.tensors.append(tensor)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.made))
        out[0] = id(self.made)
        return 0

    def close(self) -> None:
        for tensor in self.tensors:
            abi.call_deleter(tensor, versioned=True)


@pytest.fixture
def taker() -> Iterator[Taker]:
    made = Taker()
    yield made
    made.close()


def test_ready_where_the_table_works(machine: Machine, taker: Taker) -> None:
    """NULL is the legacy default stream, whatever `use_stream` names: that is where the library works."""
    ready, work, block = machine.stream(), machine.stream(), machine.stream()
    array = on_device(machine, ready)
    taker.producer.stream = work
    assert ordered(machine, lambda: cd.to(array, taker.kind)) == one_event(ready, work)
    taker.producer.stream = 0
    assert ordered(machine, lambda: cd.to(array, taker.kind)) == one_event(ready, 1)
    with cd.use_stream(block, device_id=0):
        assert ordered(machine, lambda: cd.to(array, taker.kind)) == one_event(ready, 1)
    assert len(taker.tensors) == 3


def test_where_a_table_always_names_null_the_block_is_asked(machine: Machine) -> None:
    ready, block = machine.stream(), machine.stream()
    array = on_device(machine, ready)
    with cd.use_stream(block, device_id=0):
        assert ordered(machine, lambda: cd.to(array, StridedMemoryView)) == one_event(ready, block)
    assert ordered(machine, lambda: cd.to(array, StridedMemoryView)) == one_event(ready, 1)


@pytest.mark.parametrize(("platform", "device_id"), [(7, 1), (8, 0)], ids=["vulkan", "metal"])
def test_a_table_takes_memory_that_cuda_does_not_know(platform: int, device_id: int, taker: Taker) -> None:
    cd.to(abi.make(device=(platform, device_id)).capsule(), taker.kind)
    assert [abi.read_at(tensor, versioned=True).device for tensor in taker.tensors] == [(platform, device_id)]


def test_a_table_takes_the_padding_flag(taker: Taker) -> None:
    cd.to(abi.make((4, 4), dtype=(abi.INT, 4, 1), flags=abi.SUBBYTE_PADDED).capsule(), taker.kind)
    assert abi.read_at(taker.tensors[0], versioned=True).flags == abi.SUBBYTE_PADDED


def test_what_dlpack_cannot_describe_is_refused_by_name(taker: Taker) -> None:
    """As `to_dlpack` refuses it, also by a class that has no call."""
    for array in (np.zeros(3, ">f4"), np.zeros(3, "U2"), np.zeros(3, "f4,i4")):
        expected = refuse(lambda array=array: cd.to_dlpack(array), BufferError)  # type: ignore[misc]
        for library in (taker.kind, StridedMemoryView):
            found = refuse(lambda array=array, library=library: cd.to(array, library), BufferError)  # type: ignore[misc]
            assert found.rule == expected.rule, found.message


@pytest.mark.parametrize("kind", [np.float32, np.matrix, np.ma.MaskedArray, np.random.Generator])
def test_a_class_that_the_library_does_not_return_is_refused(kind: type) -> None:
    found = refuse(lambda: cd.to(np.arange(3), kind), ValueError)
    assert (found.rule, found.field) == ("argument-value", "library")
    assert "np.from_dlpack(v) makes an object of type" in found.message


# Each is refused by a rule of ours, before or after the capsule has been read.
REFUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "no stream": (StridedMemoryView, {"stream": "x"}),
    "no number": ("tvm_ffi", {"stream": -5}),
    "zero": ("cuda.core", {"stream": 0}),
    "no library": ("nompy", {}),
    "no arrays": ("mpi4py", {}),
    "keyword": ("numpy", {"producer_stream": 0}),
    "device": ("numpy", {"device_id": 3}),
    "captured": (StridedMemoryView, {"producer_stream": 1}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_capsule_is_as_it_was(case: str, machine: Machine) -> None:
    library, keywords = REFUSED[case]
    made = abi.make(device=(abi.CUDA, 0), data=machine.device_memory(24))
    capsule, captures = made.capsule(), Captures(machine)
    if case.startswith("captured"):
        keywords = {**keywords, "stream": machine.stream()}
        captures.begin(keywords["stream"])
    try:
        with pytest.raises((TypeError, ValueError, BufferError, ImportError)):
            cd.to(capsule, library, **keywords)
    finally:
        captures.close()
    assert made.released == 0
    cd.from_dlpack(capsule)
    del capsule


def drawn_capsule(draw: random.Random, machine: Machine) -> abi.Made:
    """A tensor that some library, or some of our rules, refuses."""
    device = draw.choice([(abi.CPU, 0), (abi.CUDA, 0), (abi.CUDA_HOST, 0), (abi.ROCM, 0), (7, 0)])
    memory = {abi.CUDA: machine.device_memory, abi.CUDA_HOST: machine.pinned_memory}.get(device[0])
    versioned = draw.random() < 0.8
    types = [(abi.FLOAT, 32, 1), (abi.INT, 4, 1), (abi.FLOAT4_E2M1FN, 4, 1), (abi.FLOAT, 32, 4), (abi.BFLOAT, 16, 1)]
    return abi.make(
        draw.choice([(4, 4), (), (0, 2), (2, 8)]),
        dtype=draw.choice(types),
        device=device,
        data=memory(256) if memory else None,
        versioned=versioned,
        flags=draw.choice([0, abi.READ_ONLY, abi.SUBBYTE_PADDED]) if versioned else 0,
    )


@pytest.mark.parametrize("seed", range(4))
def test_whatever_refuses_a_capsule_leaves_it_as_it_was(seed: int, machine: Machine, taker: Taker) -> None:
    """Drawn arrays, libraries, options and captures. Already while the error lives, and its traceback with it."""
    draw, refused = random.Random(seed), dict[str | None, int]()
    a, b = machine.stream(), machine.stream()
    other = exchange.make_type(getattr(StridedMemoryView, exchange.ATTRIBUTE), exchange.Producer())
    libraries: list[Any] = ["numpy", "numba", "cuda.core", "tvm_ffi", "mpi4py", np.ndarray, np.matrix, other, int]
    libraries += [StridedMemoryView, taker.kind, cd.CaiView, tvm_ffi.Tensor]
    options: dict[str, list[Any]] = {
        "stream": [None, -1, 0, 1, 2, a, b, -5, "x"],
        "producer_stream": [1, a, b, 0],
        "device_id": [0, 1],
        "dtype": ["float32", "uint8", "int4", "no such"],
        "shape": [(4, 4), (2,), (1000,)],
        "read_only": [True, False],
        "check": ["bounds", "device"],
        "strict": [True, False],
        "owner": [object()],
    }
    for _ in range(400):
        made = drawn_capsule(draw, machine)
        capsule, library = made.capsule(), draw.choice(libraries)
        before = abi.name(capsule)
        names = draw.sample(sorted(options), draw.choice([0, 0, 1, 1, 2]))
        keywords = {name: draw.choice(options[name]) for name in names}
        captures = Captures(machine)
        if draw.random() < 0.3:
            captures.begin(draw.choice([a, b]))
        with contextlib.closing(captures), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                kept = cd.to(capsule, library, **keywords)
            except Exception as error:
                rule = getattr(error, "rule", None)
                refused[rule] = refused.get(rule, 0) + 1
                found, story = (abi.name(capsule), made.released), (repr(error), library, keywords)
                assert found == (before, 0), story
            else:
                del kept
        taker.close()
        taker.tensors.clear()
        assert abi.name(capsule) != before or made.released == 0
    assert {None, "argument-value", "packed-legacy", "padded-legacy"} <= set(refused), refused


class Hostile(Exception):
    """Raises whenever it is looked at."""

    def __getattribute__(self, name: str) -> Any:
        raise KeyboardInterrupt(name)


class Refusing:
    """A library of drawn steps: it uses the view, keeps what it likes, and fails."""

    TAKES = ("a tensor", "a bare tensor", "a derived view", "a buffer")
    TELLS = ("the dict", "the address", "the dict once")
    BARE = ("a bare capsule", "a bare tensor that ends", "a deleter, and the name left")
    #: Which the host waits for: a stream that copies keeps the source until it is done.
    COPIES = ("a copy", "a bare copy", "a copy that it keeps")
    USES = (
        "nothing",
        "attributes",
        "a refused export",
        "a refused view",
        "a capsule",
        "a tensor that ends",
        *BARE,
        *COPIES,
        *TAKES,
        *TELLS,
    )
    ON_THE_ERROR = ("args", "notes", "obj", "list obj", "value", "cause", "hostile")
    KEEPS = (*ON_THE_ERROR, "closure", "generator", "comprehension", "group")

    def __init__(self, draw: random.Random, handled: Exception) -> None:
        self.uses = draw.sample(self.USES, draw.choice([0, 1, 1, 2]))
        self.keeps = draw.sample(self.KEEPS, draw.choice([0, 1, 2]))
        self.ours, self.interrupts = draw.random() < 0.3, draw.random() < 0.1
        self.drops_the_view = draw.random() < 0.3
        self.handled, self.draw = handled, draw
        self.copies: list[Any] = []
        self.view: weakref.ref[Any] | None = None
        self.taken: list[abi.Read] = []
        self.generator: Any = None

    def __call__(self, view: Any) -> Any:
        self.view, used = weakref.ref(view), [self.use(view, each) for each in self.uses]
        error = self.error(view, used)
        if self.drops_the_view:
            view = None
        raise error

    def use(self, view: Any, how: str) -> Any:
        match how:
            case "attributes":
                return view.shape, view.dtype, view.device, view.read_only, repr(view)
            case "a refused export":
                with contextlib.suppress(Exception):
                    view.__dlpack__(stream=-5)
            case "a refused view":
                refused: list[Callable[[], object]] = [
                    lambda: view.field("x"),
                    lambda: view.present_as("host"),
                    lambda: view.consume(object()),
                    lambda: cd.view(view, shape=(7,)),
                    lambda: cd.join([view, ""], on=1),  # type: ignore[list-item]
                ]
                with contextlib.suppress(ValueError, TypeError, BufferError):
                    raise AssertionError(self.draw.choice(refused)())
            case "a capsule":
                return view.__dlpack__(stream=-1, max_version=(1, 3))
            case "a tensor that ends":
                abi.release(abi.consume(view.__dlpack__(stream=-1)))
            case "a tensor":
                self.taken.append(abi.consume(view.__dlpack__(stream=-1)))
            case "a bare capsule":
                return cd.to_dlpack(view, stream="host")
            case "a bare tensor that ends":
                abi.release(abi.consume(cd.to_dlpack(view, max_version=(1, 3), shape=(6,))))
            case "a deleter, and the name left":
                capsule = cd.to_dlpack(view, stream="host")
                abi.release(abi.read(capsule))
                return capsule
            case "a copy":
                return view.__dlpack__(dl_device=(1, 0))
            case "a bare copy":
                return cd.to_dlpack(view, stream="host", copy=True)
            case "a copy that it keeps":
                door = self.draw.choice([cd.to_dlpack, lambda view, **keywords: view.__dlpack__(**keywords)])
                self.copies.append(door(view, dl_device=(1, 0)))
            case "a bare tensor":
                self.taken.append(abi.consume(cd.to_dlpack(view, stream="host")))
            case "a derived view":
                return view.on(1)
            case "a buffer":
                return tvm_ffi.from_dlpack(view)
            case "the dict":
                return view.__cuda_array_interface__
            case "the dict once":
                assert hasattr(view, "__cuda_array_interface__")
            case "the address":
                return view.ptr
        return None

    def error(self, view: Any, used: list[Any]) -> BaseException:
        if self.ours:
            try:
                view.__dlpack__(stream=-5)
            except ValueError as refused:
                error: BaseException = refused
        else:
            error = KeyboardInterrupt() if self.interrupts else ValueError("no")
        group = getattr(builtins, "ExceptionGroup", None)
        for how in self.keeps:
            match how:
                case "args":
                    error.args = (view, used)
                case "notes":
                    error.__notes__ = [view, used]  # type: ignore[list-item]
                case "obj":
                    error = AttributeError(name="x", obj=view)
                case "list obj":
                    error = AttributeError(name="x", obj=[view])
                case "closure":
                    error.closure = lambda: view  # type: ignore[attr-defined]
                case "generator":
                    self.generator = (each for each in [view, used])
                    next(self.generator)
                case "comprehension":
                    error.all = [[each for each in [view] if each] for _ in range(2)]  # type: ignore[attr-defined]
                case "group" if group is not None and isinstance(error, Exception):
                    error = group("some", [error, AttributeError(name="x", obj=view)])
                case "value":
                    stop = StopIteration(view)
                    stop.__context__, error = error, stop
                case "cause":
                    error.__cause__ = AttributeError(name="x", obj=view)
                    error.__cause__.__context__ = self.handled
                case "hostile":
                    error.__context__ = Hostile(view)
        return error

    @property
    def has_taken(self) -> bool:
        """Whether it keeps the memory, or may: it has read the address and has the view."""
        assert self.view is not None
        return any(each in self.TAKES for each in self.uses) or (
            any(each in self.TELLS for each in self.uses) and self.view() is not None
        )

    def end(self) -> None:
        while self.taken:
            abi.release(self.taken.pop())


@pytest.mark.parametrize("seed", range(4))
def test_a_capsule_that_a_library_refuses_is_put_back_while_the_error_lives(
    seed: int, machine: Machine, library: list[Callable[[Any], Any]]
) -> None:
    """However the error keeps the view: the view has ended. Unless the library keeps the memory."""
    draw, seen, name = random.Random(seed), {True: 0, False: 0}, "pylibraft"

    def step() -> Iterator[int]:
        yield 1
        raise LookupError

    def outer() -> None:
        marker = object()  # noqa: F841
        next(walk)
        next(walk)

    for _ in range(300):
        made, walk = abi.make(device=(abi.CUDA, 0), data=machine.device_memory(24)), step()
        capsule = made.capsule()
        before = abi.name(capsule)
        try:
            outer()
        except LookupError as handled:
            refusing = Refusing(draw, handled)
            library.append(refusing)
            try:
                cd.to(capsule, name if draw.random() < 0.5 else sys.modules[name])
            except BaseException as error:
                story, taken = (refusing.uses, refusing.keeps, refusing.drops_the_view), refusing.has_taken
                seen[taken] += 1
                assert (abi.name(capsule) == before, made.released) == (not taken, 0), story
                view: Any = refusing.view() if refusing.view else None
                if not taken and view is not None:
                    uses = [view.__dlpack__, view.to_cai, lambda: view.ptr, lambda: view.on(1), lambda: cd.view(view)]  # noqa: B023
                    for use in uses:
                        assert refuse(use, BufferError).rule == "scope-ended"
                    with pytest.raises(BufferError):
                        view.__cuda_array_interface__  # noqa: B018
                    with pytest.raises(BufferError):
                        tvm_ffi.from_dlpack(view)
                if refusing.generator is not None:
                    assert refusing.generator.gi_frame is not None, story
                frames = [frame for frame, _ in traceback.walk_tb(handled.__traceback__)]
                assert "marker" in frames[1].f_locals
                del error, view, frames
            else:
                raise AssertionError(story)
        if not taken:
            again = cd.from_dlpack(capsule)
            assert made.released == 0
            del again
        for copy in refusing.copies:
            assert abi.name(copy) == b"dltensor", "a copy is the library's own"
        refusing.end()
        refusing.generator = None
        del refusing, capsule
        library.clear()
        gc.collect()
        assert made.released == 1, story
    assert min(seen.values()) > 20, seen


class LikeTensorFlow:
    """A library that takes bare capsules, and fails at a point of its call."""

    #: Whether the library has the memory then.
    POINTS: ClassVar = {"before": False, "deleted": False, "consumed and deleted": False, "consumed": True}

    def __init__(self, point: str) -> None:
        self.point, self.kept = point, list[abi.Read]()
        # As the code of the library's row: the lambda's frame, which the traceback keeps, has the view.
        self.call = lambda v: self.from_dlpack(cd.to_dlpack(v, stream="host"))

    def from_dlpack(self, capsule: Any) -> Any:
        match self.point:
            case "deleted":  # of a device that it does not have: the capsule keeps its name
                abi.release(abi.read(capsule))
            case "consumed":
                self.kept.append(abi.consume(capsule))
            case "consumed and deleted":
                abi.release(abi.consume(capsule))
        raise NotImplementedError(self.point)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("point", LikeTensorFlow.POINTS)
def test_a_library_that_refuses_a_bare_capsule(
    point: str, seed: int, machine: Machine, library: list[Callable[[Any], Any]]
) -> None:
    """Its deleter lets go of the view's share alone: the tensor is put back once, and ends once."""
    gc.collect()
    draw, live = random.Random(seed), cd.stats()["live"]
    for _ in range(100):
        is_legacy, on_host = draw.random() < 0.5, draw.random() < 0.5
        flags = 0 if is_legacy else draw.choice([0, abi.READ_ONLY])
        placed: dict[str, Any] = {} if on_host else {"device": (abi.CUDA, 0), "data": machine.device_memory(24)}
        made = abi.make(versioned=not is_legacy, flags=flags, **placed)
        like, capsule = LikeTensorFlow(point), made.capsule()
        before, pointer = abi.name(capsule), abi.pointer(capsule)
        library.append(like.call)
        # A read-only tensor is refused before the library is called.
        expected: Any = BufferError if flags else NotImplementedError
        is_taken = like.POINTS[point] and not flags
        with pytest.raises(expected) as raised:
            cd.to(capsule, "pylibraft")
        assert (abi.name(capsule) == before, made.released) == (not is_taken, 0)
        del raised
        gc.collect()
        assert (abi.name(capsule) == before, made.released) == (not is_taken, 0)
        if not is_taken:
            assert abi.pointer(capsule) == pointer
            again = cd.from_dlpack(capsule)
            assert again.ptr == made.tensor.data
            del again
        for tensor in like.kept:
            assert made.released == 0
            abi.release(tensor)
        del capsule
        assert made.released == 1
        library.clear()
        assert cd.stats()["live"] == live


KEPT_AS_OWNER: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "without a stream": lambda view, of: cd.view(of | {"stream": None}, owner=view),
    "with a stream": lambda view, of: cd.view(of, owner=view),
    "with the producer's": lambda view, of: cd.view(of, owner=view, producer_stream=of["stream"]),
    "of an object": lambda view, of: cd.view(Cai(of), owner=view),
    "of a view": lambda view, of: cd.view(cd.view(Cai(of)), owner=view),
    "of another copy's": lambda view, of: cd.view(peer.view_of(Cai(of)), owner=view),
    "by from_cai": lambda view, of: cd.from_cai(of, owner=view),
}


@pytest.mark.parametrize("way", KEPT_AS_OWNER)
def test_a_view_that_is_kept_as_owner_keeps_its_tensor(
    way: str, machine: Machine, library: list[Callable[[Any], Any]]
) -> None:
    """The library refuses what it has kept so: the capsule does not get it back."""
    data, stream, kept = machine.managed_memory(24), machine.stream(0), list[Any]()
    of = interface(data=(data, False), stream=stream)

    def keeping(view: Any) -> None:
        kept.append(KEPT_AS_OWNER[way](view, of))
        raise BufferError("no")

    made = abi.make(device=(abi.CUDA_MANAGED, 0), data=data)
    capsule = made.capsule()
    library.append(keeping)
    with pytest.raises(BufferError, match="no"):
        cd.to(capsule, "pylibraft")
    assert abi.name(capsule) == b"used_dltensor_versioned"
    assert made.released == 0
    kept.clear()
    gc.collect()
    assert until(lambda: made.released == 1)
    machine.destroy_stream(stream)


class Exporting(threading.Thread):
    """Exports a view some times, and then keeps a tensor of it, until it is refused."""

    def __init__(self, times: int) -> None:
        super().__init__(daemon=True)
        self.times, self.begun, self.tensors = times, threading.Event(), list[abi.Read]()
        self.views: list[Any] = []

    def run(self) -> None:
        view = self.views.pop()
        self.begun.set()
        with contextlib.suppress(BufferError):
            for _ in range(self.times):
                abi.release(abi.consume(view.__dlpack__(stream=-1)))
            self.tensors.append(abi.consume(view.__dlpack__(stream=-1)))

    def refuse(self, view: Any) -> None:
        self.views.append(view)
        self.start()
        self.begun.wait()
        raise ValueError("no")


def test_a_thread_that_exports_while_the_library_fails(machine: Machine, library: list[Callable[[Any], Any]]) -> None:
    """It has the memory, or the capsule has it: never both."""
    for turn in range(200):
        made = abi.make(device=(abi.CUDA, 0), data=machine.device_memory(24))
        capsule, thread = made.capsule(), Exporting(turn % 20)
        before = abi.name(capsule)
        library.append(thread.refuse)
        with pytest.raises(ValueError, match="no"):
            cd.to(capsule, "pylibraft")
        is_back = abi.name(capsule) == before
        thread.join(60)
        assert not (is_back and thread.tensors)
        assert made.released == (not is_back and not thread.tensors)
        for tensor in thread.tensors:
            abi.release(tensor)
        library.clear()
        del capsule, thread
        gc.collect()
        assert made.released == 1


@pytest.mark.parametrize("deletes", [False, True])
def test_a_table_that_fails_leaves_nothing(deletes: bool, machine: Machine) -> None:
    """DLPack does not state who owns the tensor after a failure: it is released exactly once."""
    producer = exchange.Producer()

    def fail(tensor: int, _: Any) -> int:
        if deletes:
            abi.call_deleter(tensor, versioned=True)
        return -1

    kind = exchange.make_type(exchange.capsule(exchange.table(producer, to_object=exchange.ToObject(fail))), producer)
    before, array = cd.stats(), on_device(machine)
    with pytest.raises(SystemError, match="without an exception"):
        cd.to(array, kind)
    after = cd.stats()
    assert after["live"] == before["live"] and after["released"] == before["released"] + 1


def test_what_a_table_raises_passes_through(machine: Machine) -> None:
    """cuda.core's table, by a class that the table of partners does not know: it has no dtype of 4 bits."""
    producer = exchange.Producer()
    kind = exchange.make_type(getattr(StridedMemoryView, exchange.ATTRIBUTE), producer)
    before, array = cd.stats(), on_device(machine, shape=(12,), typestr="|u1")
    with pytest.raises(ValueError, match=r"makes an object of type .*StridedMemoryView"):
        cd.to(array, kind, dtype="int4", shape=(24,))
    with pytest.raises(Exception, match="int4") as raised:
        cd.to(array, StridedMemoryView, dtype="int4", shape=(24,)).dtype  # noqa: B018
    assert not hasattr(raised.value, "rule")
    del raised
    gc.collect()
    after = cd.stats()
    assert after["live"] == before["live"] and after["released"] == before["released"] + 2


def test_what_goes_in_comes_out(machine: Machine) -> None:
    """Through a table: our own, whose view shows everything."""
    array = on_device(machine, strides=(4, 8), version=3)
    found = cd.to(array, cd.CaiView, read_only=True)
    assert found.byte_strides == (4, 8)
    assert found.shape == (2, 3) and found.dtype == "float32" and found.read_only
    assert found.ptr == array.interface["data"][0]
    del array
    gc.collect()
    assert cd.stats()["live"] > 0


def test_in_a_consume_block(machine: Machine) -> None:
    ready, consumer = machine.stream(), machine.stream()
    view = cd.view(on_device(machine, ready))
    with view.consume(consumer) as loan:
        assert ordered(machine, lambda: cd.to(loan, StridedMemoryView, stream=consumer)) == []
    found = refuse(lambda: cd.to(loan, StridedMemoryView, stream=consumer), BufferError)
    assert found.rule == "scope-ended", found.message


@pytest.mark.parametrize("library", ["tvm_ffi", "numba"])
@pytest.mark.parametrize("where", ["foreign", "view", "capsule"])
def test_a_stream_object_stays_with_what_a_call_has_made(where: str, library: str, machine: Machine) -> None:
    """The view that the library holds names the stream."""
    stream = StreamObject(machine.stream())
    array: Any = on_device(machine)
    array = cd.view(array, producer_stream=stream) if where == "view" else offered(array, where)
    keywords: dict[str, Any] = {} if where == "view" else {"producer_stream": stream}
    alive = weakref.ref(stream)
    made = cd.to(array, library, stream=machine.stream(), **keywords)
    del stream, keywords, array
    gc.collect()
    assert alive() is not None
    del made


@pytest.mark.parametrize("library", ["cuda.core", "tvm_ffi"])
@pytest.mark.parametrize("where", ["foreign", "view"])
def test_a_stream_object_goes_with_what_was_made(where: str, library: str, machine: Machine) -> None:
    """Not before, and not at some later call."""
    stream = StreamObject(machine.stream())
    array: Any = on_device(machine)
    array = cd.view(array, producer_stream=stream) if where == "view" else array
    keywords: dict[str, Any] = {"producer_stream": stream} if where == "foreign" else {}
    gone = weakref.ref(stream)
    made = cd.to(array, library, stream=machine.stream(), **keywords)
    del stream, keywords, array
    gc.disable()
    try:
        del made
        assert gone() is None
    finally:
        gc.enable()


def handed(obj: Any, library: str = "numba") -> Any:
    """The error of a library's call."""
    try:
        cd.to(obj, library)
    except Exception as error:
        return error
    raise AssertionError("accepted")


def test_an_error_of_a_library_has_our_reason_as_a_note(machine: Machine) -> None:
    """Numba finds no interface, and tells that alone; the view has none, for a reason that only we know."""
    given = cai(data=(machine.device_memory(64), False), typestr="<u2")
    for view in (cd.view(given, dtype="bfloat16"), cd.view(np.zeros(3))):
        for error in (handed(view), handed(cd.to_dlpack(view))):
            reason = refuse(view.to_cai, BufferError)
            if sys.version_info >= (3, 11):
                assert [reason.message in note for note in error.__notes__] == [True], error
    # A refusal of `__dlpack__` is ours, and tells its reason itself.
    assert not getattr(handed(given, "numpy"), "__notes__", [])
