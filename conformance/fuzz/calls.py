"""The calls of the second grammar, with every argument that they take, and the arrays that ask the library back."""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cai_dlpack as cd
import numpy as np
from cai_conformance import abi
from cai_conformance.cuda import driver

from conformance.fuzz import foreign
from conformance.fuzz.evil import Case, Evil, Shown, a_dict, an_int, bare, exporter, ints, shown
from conformance.tests.doubles.producers import StreamObject, interface

#: Memory and a stream of the simulated driver, for the whole run.
MEMORY, STREAM = driver().allocate(4096), driver().stream()
LOOP = asyncio.new_event_loop()
logging.getLogger("cai_dlpack").addHandler(logging.NullHandler())
logging.getLogger("cai_dlpack").propagate = False


class Evasive:
    """Raises when it is asked whether it is true, or for its version, device or handle."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __bool__(self) -> bool:
        raise self.case.raised

    def __iter__(self) -> Any:
        self.case.strike()
        raise self.case.raised

    def __cuda_stream__(self) -> Any:
        self.case.strike()
        raise self.case.raised


def recursing(case: Case) -> Any:
    """An object whose attributes call the library with itself, without a frame of Python: the interpreter may count
    such calls by ten thousands."""

    class Fresh:
        pass

    value: Any = Fresh()
    plain = cd.view(interface(), device_id=0, owner=MEMORY)
    converts: Any = case.source.one_of(
        [
            functools.partial(cd.use_stream, value),
            functools.partial(cd.view, interface(), owner=MEMORY, device_id=value),
            functools.partial(cd.view, plain, shape=(value,)),
            functools.partial(plain.on, value),
            functools.partial(plain.__dlpack__, max_version=(value, 0)),
            functools.partial(plain.__dlpack__, dl_device=(value, 0)),
        ]
    )
    # From 3.14 on a partial function of a class is bound to its object.
    Fresh.__index__ = staticmethod(converts)  # type: ignore[attr-defined]
    sys.setrecursionlimit(10_000)
    return value


def a_stream(case: Case) -> Any:
    return case.source.made_by(
        [
            lambda: None,
            lambda: STREAM,
            lambda: case.source.one_of([1, 2, STREAM]),
            lambda: an_int(case),
            lambda: -1,
            lambda: StreamObject(STREAM),
            lambda: StreamObject(an_int(case), case.source.byte() % 3),
            lambda: Evasive(case),
            lambda: case.source.one_of(["host", "x", "\ud800", 1.5, ...]),
            lambda: recursing(case),
        ]
    )


def a_device(case: Case) -> Any:
    return case.source.made_by(
        [
            lambda: None,
            lambda: case.source.one_of([(1, 0), (2, 0), (2, 1), (3, 0), (13, 0), (10, 0)]),
            lambda: case.source.one_of(["cpu", "cuda:1", "rocm:0", "cuda:99999999999", "x", "\ud800:0", "cuda:\0"]),
            lambda: (an_int(case), an_int(case)),
            lambda: an_int(case),
            lambda: (recursing(case), 0),
            lambda: Evasive(case),
        ]
    )


def a_version(case: Case) -> Any:
    return case.source.made_by(
        [
            lambda: case.source.one_of([(1, 0), (1, 3), None, (0, 8), (2, 0)]),
            lambda: (an_int(case), an_int(case)),
            lambda: ints(case),
            lambda: (recursing(case), 0),
            lambda: Evasive(case),
        ]
    )


def a_shape(case: Case) -> Any:
    return case.source.made_by(
        [lambda: ints(case), lambda: (-1,), lambda: [6], lambda: (recursing(case),), lambda: Evasive(case)]
    )


def a_dtype(case: Case) -> Any:
    names = ["float32", "int8", "bfloat16", "|V8", "\ud800", "float4_e2m1fn", np.float32, np.dtype("f8"), int, 5]
    return case.source.one_of([*names, cd.DType("int32"), Evasive(case)])


def a_flag(case: Case) -> Any:
    return case.source.one_of([None, True, False, 5, Evasive(case)])


VALUES: dict[str, Callable[[Case], Any]] = {
    "stream": a_stream,
    "producer_stream": a_stream,
    "device": a_device,
    "dl_device": a_device,
    "device_id": a_device,
    "max_version": a_version,
    "shape": a_shape,
    "dtype": a_dtype,
    "copy": a_flag,
    "read_only": a_flag,
    "writable": a_flag,
    "strict": a_flag,
    "owner": lambda case: case.source.one_of([None, MEMORY, Evasive(case)]),
    "check": lambda case: case.source.one_of([None, "device", "bounds", "x", "\ud800", 5]),
    "mask": lambda case: case.source.one_of(["auto", "bit", "byte", "x", "\ud800", None]),
    "to": lambda case: case.source.one_of([None, "torch", "numpy", "cupy", "pyarrow", "x", "\ud800", 5]),
    "sync": lambda case: case.source.one_of([None, "event", "host", "none", "x", "\ud800", 5]),
    "trace": a_flag,
    "key": lambda case: case.source.one_of([None, b"key", b"", "x", Evasive(case)]),
}
OF_VIEW = ["device_id", "producer_stream", "dtype", "shape", "read_only", "owner", "check", "strict"]
OF_DLPACK = ["stream", "max_version", "dl_device", "copy"]


#: What has memory copied, which must be there: of an array that lies about it a copy may end the process.
COPIES = ["dl_device", "device", "copy"]


def keywords(case: Case, *names: str) -> dict[str, Any]:
    """Returns some of the keywords, and rarely one that no function has."""
    source = case.source
    chosen: dict[str, Any] = {name: VALUES[name](case) for name in names if source.rarely()}
    if not case.has_memory:
        chosen = {name: value for name, value in chosen.items() if name not in COPIES}
    if source.byte() == 255:
        chosen[source.one_of(["x", "\ud800", "".join(["stre", "am"])])] = None
    return chosen


class Subclass(str):
    """No exact str."""


#: Any other SystemError would be CPython's word on this library.
WITHOUT_A_WORD = "an exchange table failed without an exception"
LIBRARIES: list[Any] = [
    "numpy",
    np,
    np.ndarray,
    "torch",
    "cupy",
    "no such",
    "\ud800",
    Subclass("numpy"),
    types.ModuleType("torch.no"),
    types.ModuleType("no.such"),
    dict,
    cd.CaiView,
    5,
    None,
    *foreign.LASTING,
]


def to(case: Case, array: Any) -> Any:
    # What a library makes of the view is the library's, which may fail without a word.
    try:
        cd.to(array, case.source.one_of(LIBRARIES), **keywords(case, "stream", *OF_VIEW))
    except SystemError as error:
        if str(error) != WITHOUT_A_WORD:
            raise


def handed_on(case: Case, capsule: Any) -> Any:
    """Consumes a capsule, has it imported, or leaves it to its destructor."""
    match case.source.byte() % 4:
        case 1:
            abi.release(abi.consume(capsule))
        case 2:
            view = cd.from_dlpack(capsule, **keywords(case, "stream", "copy", "device"))
            case.opaque.add(id(view))
            return view
    return None


def in_a_block(case: Case, block: Any, body: Callable[[], Any]) -> Any:
    """Enters a block, and leaves it; or not in this order."""
    how = case.source.byte() % 8
    if how == 7:
        block.__exit__(None, None, None)
    with block:
        if how == 6:
            block.__enter__()
        if how == 5:
            raise case.raised
        return body()


def shared(case: Case, array: Any) -> Any:
    def opened() -> Any:
        name = bytearray(handle)
        if case.source.rarely():
            name[case.source.byte() % len(name)] ^= 1 << case.source.byte() % 8
        return cd.open(bytes(name), **keywords(case, "stream", "key"))

    block = cd.share(array, **keywords(case, "key"))
    with block as handle:
        result = opened()
    if case.source.rarely():
        opened()
    return result


def by_hand(case: Case, awaitable: Any) -> None:
    """Calls what an event loop calls, in any order, and without a loop."""
    calls: list[Callable[[], Any]] = [
        lambda: awaitable.send(None),
        lambda: awaitable.send(5),
        lambda: awaitable.close(),
        lambda: awaitable.throw(case.raised),
        lambda: next(awaitable.__await__()),
        lambda: awaitable.__await__().close(),
        lambda: getattr(awaitable.cr_frame, "f_locals", None),
    ]
    for _ in range(case.source.byte() % 4):
        with suppress(StopIteration, case.raised):
            case.source.one_of(calls)()
    if hasattr(awaitable, "close"):
        awaitable.close()


def asynchronous(case: Case, view: Any) -> Any:
    block = view.consume(a_stream(case), **keywords(case, "strict"))
    how = case.source.byte() % 8
    if how < 4:
        awaitables: list[Callable[[], Any]] = [block.__aenter__, lambda: block.__aexit__(None, None, None), view.wait]
        for _ in range(1 + how):
            by_hand(case, case.source.one_of(awaitables)())
        return None

    async def body() -> Any:
        if how == 4:
            return await asyncio.wait_for(view.wait(), 20)
        # Evil ends here: a task keeps the exception that it ends with.
        with suppress(Evil):
            async with block as array:
                if how == 5:
                    raise case.raised
                return array

    return LOOP.run_until_complete(body())


def sources(case: Case, array: Any) -> Any:
    items: Any = [array, *(a_stream(case) for _ in range(case.source.byte() % 3))]
    case.containers.append(items)
    return items if case.source.byte() % 8 else Evasive(case)


OF_AN_ARRAY: list[Callable[[Case, Any], Any]] = [
    lambda case, array: cd.view(array, **keywords(case, *OF_VIEW)),
    lambda case, array: cd.from_cai(array, **keywords(case, *OF_VIEW)),
    lambda case, array: cd.from_dlpack(array, **keywords(case, "device", "copy", "stream", *OF_VIEW)),
    lambda case, array: handed_on(case, cd.to_dlpack(array, **keywords(case, *OF_DLPACK, "writable", *OF_VIEW))),
    to,
    lambda case, array: cd.explain(array, **keywords(case, "to", "stream", *OF_VIEW)),
    lambda case, array: cd.split_masked(array, **keywords(case, "mask", "device_id")),
    lambda case, array: tuple(cd.join(sources(case, array), on=a_stream(case))),
    shared,
    lambda case, array: cd.open(array, **keywords(case, "stream", "key")),
    lambda case, array: in_a_block(
        case, cd.policy(**keywords(case, "sync", "strict", "trace")), lambda: cd.view(array, device_id=0)
    ),
    lambda case, array: in_a_block(
        case, cd.use_stream(a_stream(case), **keywords(case, "device_id")), lambda: cd.view(array, device_id=0)
    ),
    lambda case, array: in_a_block(
        case, cd.use_stream(STREAM), lambda: handed_on(case, cd.view(array).__dlpack__(**keywords(case, *OF_DLPACK)))
    ),
    lambda case, array: cd.DType(array),
    lambda case, array: cd.view(array, device_id=0),
]
OF_A_VIEW: list[Callable[[Case, Any], Any]] = [
    lambda case, view: handed_on(case, view.__dlpack__(**keywords(case, *OF_DLPACK))),
    to,
    shared,
    asynchronous,
    lambda case, view: in_a_block(case, view.consume(a_stream(case), **keywords(case, "strict")), lambda: None),
    lambda case, view: view.on(a_stream(case)),
    lambda case, view: view.synchronize(),
    lambda case, view: view.__array__(a_dtype(case), a_flag(case)) if case.has_memory else view.__array__(),
    lambda case, view: view.field(case.source.one_of(["x", ""]), **keywords(case, "dtype")),
    lambda case, view: cd.view(view, **keywords(case, *OF_VIEW)),
    lambda case, view: cd.explain(view, **keywords(case, "to", "stream", *OF_VIEW)),
    lambda case, view: tuple(cd.join(sources(case, view), on=a_stream(case))),
    lambda case, view: (view.return_edge, view.producer_stream, view.memory, view._repr_html_(), hash(view.dtype)),
]


def asking(case: Case) -> Any:
    """An object that answers each question about it by a call of the library with itself."""
    source = case.source
    answers: list[Callable[[Any], Any]] = [
        lambda array: a_missing(),
        cd.view,
        lambda array: cd.view(array, device_id=0),
        cd.from_cai,
        cd.from_dlpack,
        cd.to_dlpack,
        cd.explain,
        cd.split_masked,
        lambda array: cd.to(array, "numpy"),
        lambda array: cd.join([array], on=1),
        lambda array: cd.DType(array),
        lambda array: case.strike(),
        lambda array: interface(),
        lambda array: 5,
    ]
    names = {name: source.one_of(answers) for name in ("__cuda_array_interface__", "__dlpack__", "__dlpack_device__")}
    other = source.one_of(answers)

    def a_missing() -> Any:
        raise AttributeError

    class Fresh:
        def __getattr__(self, name: str) -> Any:
            if case.is_too_much():
                raise case.raised
            if name in ("__dlpack__", "__dlpack_device__") and source.byte() % 2:
                return lambda **_: names[name](self)
            return names.get(name, other)(self)

    return Fresh()


def on_the_device(case: Case) -> Any:
    at = MEMORY + case.source.one_of([0, 0, 0, 4, 1, 4096, 2**40])
    stream = case.source.one_of([None, None, 1, 2, STREAM, 0, -1])
    return Shown({**a_dict(case), "data": (at, False), "stream": stream})


def a_view(case: Case) -> Any:
    stream = case.source.one_of([None, 1, 2, STREAM])
    case.has_memory = True
    return cd.view(interface(data=(MEMORY, False), stream=stream), device_id=0, owner=MEMORY)


ARRAYS: list[Callable[[Case], Any]] = [
    on_the_device,
    foreign.exchanger,
    asking,
    foreign.under_the_other_name,
    a_view,
    exporter,
    shown,
    recursing,
    bare,
]
