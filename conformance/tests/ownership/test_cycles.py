"""An array that keeps what was derived from its own view is collected, whatever was derived and how.

The derivations are compared with the class and the module: a new one without a case here fails.
"""

from __future__ import annotations

import asyncio
import gc
import types
import weakref
from collections.abc import Callable, Generator
from typing import Any

import cai_dlpack as cd
import pytest

from conformance.tests.doubles.producers import Cai, OwningStream, StreamObject, interface
from conformance.tests.simulated.machine import Machine
from conformance.tests.streams.race import LEGACY

Derive = Callable[[Any, int], object]


def left(view: Any, stream: int) -> object:
    with view.consume(stream) as loan:
        return loan


async def waited(view: Any) -> Any:
    return await view.wait()


METHODS: dict[str, Derive] = {
    "wait": lambda view, _: asyncio.run(waited(view)),
    "on": lambda view, stream: view.on(stream),
    "synchronize": lambda view, _: view.synchronize(),
    "present_as": lambda view, _: view.present_as("cuda"),
    "consume": left,
    "field": lambda view, _: view.field("x"),
}
FUNCTIONS: dict[str, Derive] = {
    "view": lambda view, _: cd.view(view),
    "from_cai": lambda view, _: cd.from_cai(view),
    "split_masked": lambda view, _: cd.split_masked(view),
    "join": lambda view, stream: cd.join([view], on=stream),
    "share": lambda view, _: cd.share(view),
}
MORE: dict[str, Derive] = {
    "view-with-options": lambda view, _: cd.view(view, read_only=True, shape=(6,)),
    "view-with-an-owner": lambda view, _: cd.view(view, owner=view.owner),
    "view-with-the-view-as-owner": lambda view, _: cd.view(view, owner=view),
    "stream-object": lambda view, stream: view.on(StreamObject(stream)),
    "of-a-derived-one": lambda view, stream: cd.view(view.on(stream)).on(1),
    "of-one-with-an-owner": lambda view, stream: cd.view(view, owner=[view]).on(stream),
    "memoryview": lambda view, _: memoryview(view),
    "twice": lambda view, stream: (view.on(stream), view.synchronize(), cd.view(view)),
    "block": lambda view, stream: view.consume(stream),
}
DERIVATIONS = {**METHODS, **FUNCTIONS, **MORE}

# Neither views nor blocks: numbers, text, dicts of numbers, the object itself.
FACTS = {
    *(
        "byte_offset",
        "byte_strides",
        "device",
        "dtype",
        "elem_strides",
        "fields",
        "is_c_contiguous",
        "is_f_contiguous",
        "itemsize",
        "memory",
        "nbytes",
        "ndim",
        "owner",
    ),
    *("producer_stream", "ptr", "read_only", "return_edge", "shape", "size", "stream", "to_cai", "__array_interface__"),
    *("__cuda_array_interface__", "__dlpack_device__", "__dlpack_c_exchange_api__"),
    *(
        "__copy__",
        "__deepcopy__",
        "__numpy_dtype__",
        "__reduce__",
        "__repr__",
        "_repr_html_",
        "_is_cai_view",
        "_interface",
        "_streams",
        "__doc__",
        "__module__",
    ),
}
# A managed tensor keeps the view, and the collector sees neither: docs/ownership.md.
THROUGH_A_TENSOR = {"__dlpack__", "__array__"}


def test_every_method_has_a_case() -> None:
    known = FACTS | THROUGH_A_TENSOR | set(METHODS)
    assert set(vars(cd.CaiView)) - {"__buffer__", "__release_buffer__"} == known


def test_every_function_has_a_case() -> None:
    functions = {name for name in cd.__all__ if isinstance(getattr(cd, name), types.BuiltinFunctionType)}
    assert functions == {
        "explain",
        "stats",
        "from_dlpack",
        "to",
        "to_dlpack",
        "policy",
        "use_stream",
        "open",
        *FUNCTIONS,
    }


@pytest.fixture
def array(machine: Machine) -> list[Any]:
    """A box with an array of managed memory, whose data is ready on a stream; the test takes it out."""
    pointer, stream = machine.managed_memory(64), machine.stream()
    return [Cai(interface(data=(pointer, False), stream=stream)), pointer, stream]


@pytest.mark.parametrize("name", DERIVATIONS)
def test_an_array_that_keeps_a_derived_view_is_collected(name: str, array: list[Any], machine: Machine) -> None:
    if name == "field":
        array[0].interface |= {"typestr": "|V8", "descr": [("x", "<f4"), ("y", "<f4")]}
    other, before = machine.stream(), cd.stats()["live"]
    view = cd.view(array[0])
    derived = DERIVATIONS[name](view, other)
    assert (derived is view) == (name == "view"), "nothing was derived"
    array[0].cached = (view, derived)
    alive = weakref.ref(array.pop(0))
    del view, derived
    gc.collect()
    assert alive() is None
    assert cd.stats()["live"] == before


@pytest.mark.parametrize("name", DERIVATIONS)
def test_a_derived_view_alone_keeps_the_array(name: str, array: list[Any], machine: Machine) -> None:
    if name == "field":
        array[0].interface |= {"typestr": "|V8", "descr": [("x", "<f4"), ("y", "<f4")]}
    derived = DERIVATIONS[name](cd.view(array[0]), machine.stream())
    alive = weakref.ref(array.pop(0))
    gc.collect()
    assert alive() is not None
    assert not isinstance(derived, cd.CaiView) or "owner" in name or root(derived) is alive()
    del derived
    gc.collect()
    assert alive() is None


def root(view: cd.CaiView) -> object:
    """Returns the array: a view by `from_cai` has the view as its owner."""
    owner = view.owner
    return root(owner) if isinstance(owner, cd.CaiView) else owner


def test_views_that_are_derived_again_and_again_make_no_chain(array: list[Any], machine: Machine) -> None:
    view, streams = cd.view(array[0]), [machine.stream(), machine.stream()]
    first, alive = view.on(streams[0]), []
    for step in range(100):
        view = view.on(streams[step % 2]).synchronize()
        alive.append(weakref.ref(view))
    gc.collect()
    assert [each() is not None for each in alive] == [False] * 99 + [True]
    assert view.owner is first.owner is array[0]


def test_an_open_block_keeps_its_array_until_it_is_left(array: list[Any], machine: Machine) -> None:
    """The collector would finalise the array, and with it the producer's stream, before the return edge."""
    block = array[0].block = cd.view(array[0]).consume(machine.stream())
    array[0].loan = block.__enter__()
    alive = weakref.ref(array.pop(0))
    gc.collect()
    assert alive() is not None
    block.__exit__(None, None, None)
    del block
    gc.collect()
    assert alive() is None


def test_a_generator_inside_an_open_block_keeps_its_array_until_it_is_closed(
    array: list[Any], machine: Machine
) -> None:
    """The exception that SECURITY.md names."""

    def suspended(view: cd.CaiView) -> Generator[cd.CaiView, None, None]:
        with view.consume(machine.stream()) as loan:
            yield loan

    generator = array[0].generator = suspended(cd.view(array[0]))
    next(generator)
    alive = weakref.ref(array.pop(0))
    gc.collect()
    assert alive() is not None
    generator.close()
    del generator
    gc.collect()
    assert alive() is None


#: A block for which the object of a stream is the consumer's, or the producer's by the caller's word.
OPEN_BLOCKS: dict[str, Callable[[int, Any, int], Any]] = {
    "consumer": lambda data, own, _: cd.view(array_at(data), producer_stream=LEGACY).consume(own),
    "producer": lambda data, own, other: cd.view(array_at(data), producer_stream=own).consume(other),
}


def array_at(data: int) -> Cai:
    return Cai(interface(data=(data, False)))


@pytest.mark.parametrize("whose", OPEN_BLOCKS)
def test_an_open_block_keeps_its_stream_objects_until_it_is_left(whose: str, machine: Machine) -> None:
    """A cycle through them alone: the array has no part in it."""
    own: Any = OwningStream(machine.stream(), machine.destroy_stream)
    alive, handle, other = weakref.ref(own), own.handle, machine.stream()
    block = OPEN_BLOCKS[whose](machine.device_memory(64), own, other)
    own.kept = block, block.__enter__()
    del own, block
    machine.clear()
    gc.collect()
    kept = alive()
    assert kept is not None
    kept.kept[0].__exit__(None, None, None)
    del kept
    gc.collect()
    assert alive() is None
    edge = {"consumer": "cuEventRecord", "producer": "cuStreamWaitEvent"}[whose]
    assert [name for name, of in machine.calls() if of == handle and name in (edge, "cuStreamDestroy")] == [
        edge,
        "cuStreamDestroy",
    ]


def test_a_view_that_cannot_be_in_a_cycle_is_not_tracked() -> None:
    assert not gc.is_tracked(cd.view(interface(), owner=bytearray(4), device_id=0, producer_stream=None))
    assert gc.is_tracked(cd.view(interface(), owner=[bytearray(4)], device_id=0, producer_stream=None))
    assert gc.is_tracked(cd.view(Cai(interface()), device_id=0))


def test_a_view_without_keywords_of_a_view_is_that_view(machine: Machine) -> None:
    stream = machine.stream()
    view = cd.view(Cai(interface(data=(machine.managed_memory(64), False), stream=stream)))
    assert cd.view(view) is view
    assert cd.view(view, read_only=True) is not view
    held = view.on(StreamObject(machine.stream()))
    assert cd.view(held) is not held
    with view.consume(machine.stream()) as inside:
        other = cd.view(inside)
        assert other is not inside
    with pytest.raises(BufferError, match="scope-ended"):
        cd.view(inside)
    with pytest.raises(BufferError, match="scope-ended"):
        cd.view(other)
