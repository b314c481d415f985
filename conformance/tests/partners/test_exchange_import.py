"""Tables of others: what is taken from them, in which order, and what happens when they are wrong."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import weakref
from typing import Any, cast

import cai_dlpack as cd
import pytest
from cai_conformance import abi, exchange

from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.ownership import native
from conformance.tests.simulated.machine import Machine, one_event

# A C function that fails with an exception: for anything but a list it sets SystemError, answers -1,
# and looks at nothing else.
RAISES = ctypes.pythonapi.PyList_Append


def cuda(machine: Machine, **changes: Any) -> exchange.Producer:
    return exchange.Producer(abi.make(device=(2, 0), data=machine.device_memory(64), **changes))


def instance(producer: exchange.Producer, **members: Any) -> Any:
    return exchange.make_type(exchange.capsule(exchange.table(producer)), producer, **members)()


# --- the way in ------------------------------------------------------------------------------------------


def test_a_host_tensor_comes_by_the_table_and_asks_for_no_stream() -> None:
    producer = exchange.Producer()
    view = cd.view(instance(producer))
    assert (view.ptr, view.shape, view.dtype.name) == (producer.made.tensor.data, (2, 3), "float32")
    assert (producer.exported, producer.asked, producer.fallbacks) == (1, [], [])
    assert view.stream is None
    assert view.producer_stream is None
    del view
    gc.collect()
    assert producer.made.released == 1


@pytest.mark.parametrize(("raw", "stream"), [(0, 1), (1, 1), (2, 2), (0x5500, 0x5500)])
def test_the_work_stream_is_ready_and_producer_stream(raw: int, stream: int, machine: Machine) -> None:
    producer = cuda(machine)
    producer.stream = raw
    machine.clear_own()
    view = cd.view(instance(producer))
    assert producer.asked == [(2, 0)]
    assert (view.stream, view.producer_stream) == (stream, stream)
    assert machine.calls() == [], "an exchange import needs no driver call"


def test_the_interface_is_not_read_where_there_is_a_table(machine: Machine) -> None:
    class Forbidden:
        def __get__(self, *_: Any) -> Any:
            raise AssertionError("the table was to be taken")

    producer = cuda(machine)
    assert cd.view(instance(producer, __cuda_array_interface__=Forbidden())).device == (2, 0)


def test_the_table_is_looked_up_once_per_type() -> None:
    reads = []

    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            if name == exchange.ATTRIBUTE:
                reads.append(name)
            return super().__getattribute__(name)

    producer = exchange.Producer()
    kind = Meta("Counting", (), dict(vars(type(instance(producer)))))
    for _ in range(5):
        producer.made.released = 0
        cd.view(kind())
    assert len(reads) == 1
    assert producer.exported == 5


def test_the_type_stays_while_it_is_remembered() -> None:
    """A type that ends while it is remembered could leave its address, and its table, to another."""
    for _ in range(200):
        first, second = exchange.Producer(), exchange.Producer()
        assert cd.view(instance(first)).ptr == first.made.tensor.data
        gc.collect()
        assert cd.view(instance(second)).ptr == second.made.tensor.data


def test_remembered_types_are_bounded() -> None:
    kinds = []
    for _ in range(500):
        producer = exchange.Producer()
        thing = instance(producer)
        cd.view(thing)
        kinds.append(weakref.ref(type(thing)))
        del thing
    gc.collect()
    assert sum(kind() is not None for kind in kinds) <= 64


def test_producer_stream_knows_better(machine: Machine) -> None:
    producer, mine = cuda(machine), machine.stream()
    view = cd.view(instance(producer), producer_stream=mine)
    assert (view.stream, view.producer_stream) == (mine, mine)
    assert producer.asked == []


def test_dtype_and_read_only_apply(machine: Machine) -> None:
    view = cd.view(instance(cuda(machine, dtype=(abi.UINT, 16, 1))), dtype="bfloat16", read_only=True)
    assert (view.dtype.name, view.read_only) == ("bfloat16", True)


def test_the_read_only_flag_comes_through() -> None:
    view = cd.view(instance(exchange.Producer(abi.make(flags=abi.READ_ONLY))))
    assert view.read_only


# --- asked again at export ---------------------------------------------------------------------------------


EXPORTS: dict[str, Any] = {
    "dlpack": lambda view: view.__dlpack__(stream=view.stream, max_version=(1, 3)),
    "interface": lambda view: view.__cuda_array_interface__,
    "to_cai": lambda view: view.to_cai(),
}


@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS)
def test_a_producer_that_moved_is_waited_for(export: Any, machine: Machine) -> None:
    producer, before, after = cuda(machine), machine.stream(), machine.stream()
    producer.stream = before
    view = cd.view(instance(producer))
    machine.clear_own()
    export(view)
    assert machine.calls() == [], "it has not moved"
    producer.stream = after
    export(view)
    assert machine.order() == one_event(after, before)
    assert view.stream == before


def test_a_producer_that_moved_reaches_the_consumer(machine: Machine) -> None:
    producer, before, after, mine = cuda(machine), machine.stream(), machine.stream(), machine.stream()
    producer.stream = before
    view = cd.view(instance(producer))
    machine.clear()
    producer.stream = after
    view.on(mine)
    assert machine.order() == one_event(after, before) + one_event(before, mine)


def test_a_producer_that_moved_is_awaited(machine: Machine) -> None:
    producer, before, after, mine = cuda(machine), machine.stream(), machine.stream(), machine.stream()
    producer.stream = before
    view = cd.view(instance(producer))
    machine.clear()

    async def main() -> None:
        producer.stream = after
        await view.wait()
        assert machine.order() == [*one_event(after, before), ("cuEventRecord", before)]
        producer.stream = before
        async with view.consume(mine):
            producer.stream = after
            machine.clear()
        assert machine.order() == one_event(mine, before) + one_event(mine, after)

    asyncio.run(main())


def test_no_synchronisation_asks_nobody(machine: Machine) -> None:
    producer, before = cuda(machine), machine.stream()
    producer.stream = before
    view = cd.view(instance(producer))
    producer.stream = machine.stream()
    machine.clear_own()
    view.__dlpack__(stream=-1, max_version=(1, 3))
    assert machine.calls() == []


def test_a_view_on_my_own_stream_asks_no_more(machine: Machine) -> None:
    producer, mine = cuda(machine), machine.stream()
    producer.stream = machine.stream()
    view = cd.view(instance(producer)).on(mine)
    producer.stream = machine.stream()
    machine.clear_own()
    view.__dlpack__(stream=mine, max_version=(1, 3))
    assert machine.calls() == []


# --- what __dlpack__ would refuse -----------------------------------------------------------------------------


class Refusal(Exception):
    """The producer's own."""


def refusing(self: Any, **_: Any) -> object:
    raise Refusal


FLOAT32, COMPLEX = (abi.FLOAT, 32, 1), (abi.COMPLEX, 64, 1)
STATES: dict[str, Any] = {
    "requires_grad-property": (FLOAT32, {"requires_grad": True}),
    "requires_grad-method": (COMPLEX, {"requires_grad": lambda _: True}),
    "is_sparse-method": (FLOAT32, {"is_sparse": lambda _: True}),
    "is_sparse-property": (FLOAT32, {"is_sparse": True}),
}


@pytest.mark.parametrize(("dtype", "members"), STATES.values(), ids=STATES)
def test_the_producers_own_refusal_decides(dtype: tuple[int, int, int], members: dict[str, Any]) -> None:
    """Nothing is left of what the table may have handed out; it is not called for what has no strides."""
    producer = exchange.Producer(abi.make(dtype=dtype))
    with pytest.raises((Refusal, BufferError)) as caught:
        cd.view(instance(producer, __dlpack__=refusing, **members))
    # A layout without strides is named, with the producer's refusal as the cause.
    named = getattr(caught.value, "rule", None)
    assert named in (None, "not-strided")
    assert isinstance(caught.value.__cause__ if named else caught.value, Refusal)
    assert producer.exported == producer.made.released == (0 if "is_sparse" in members else 1)


NOT_FOR_THESE: dict[str, Any] = {
    "gradient of int32": ((abi.INT, 32, 1), "requires_grad"),
    "gradient of uint8": ((abi.UINT, 8, 1), "requires_grad"),
    "gradient of bool": ((abi.BOOL, 8, 1), "requires_grad"),
    "conjugate of float32": (FLOAT32, "is_conj"),
    "conjugate of int32": ((abi.INT, 32, 1), "is_conj"),
}


@pytest.mark.parametrize(("dtype", "name"), NOT_FOR_THESE.values(), ids=NOT_FOR_THESE)
def test_what_elements_cannot_have_is_not_asked(dtype: tuple[int, int, int], name: str) -> None:
    def asked(_: Any) -> bool:
        raise AssertionError(name)

    producer = exchange.Producer(abi.make(dtype=dtype))
    cd.view(instance(producer, **{name: asked}))
    assert (producer.exported, producer.fallbacks) == (1, [])


def test_plain_state_takes_the_table() -> None:
    producer = exchange.Producer(abi.make(dtype=COMPLEX))
    plain = {"requires_grad": False, "is_conj": lambda _: False, "is_neg": lambda _: False, "is_sparse": False}
    cd.view(instance(producer, **plain))
    assert (producer.exported, producer.fallbacks) == (1, [])


def test_a_negative_bit_is_refused_by_us() -> None:
    """torch's own `__dlpack__` does not look at it."""
    producer = exchange.Producer()
    thing = instance(producer, is_neg=lambda _: True)
    check_refusal(refuse(lambda: cd.view(thing), BufferError), "values-lazy", "object", hint="resolve_neg")
    assert (producer.exported, producer.made.released, producer.fallbacks) == (1, 1, [])


@pytest.mark.parametrize("name", ["is_sparse", "is_neg", "requires_grad", "is_conj", "is_pinned"])
def test_an_error_of_the_state_passes_through(name: str) -> None:
    def broken(_: Any) -> bool:
        raise Refusal

    producer = exchange.Producer(abi.make(dtype=COMPLEX))
    with pytest.raises(Refusal):
        cd.view(instance(producer, **{name: broken}))
    assert producer.exported == producer.made.released
    with pytest.raises(Refusal):
        cd.view(instance(producer, **{name: property(broken)}))
    assert (producer.exported == producer.made.released, producer.fallbacks) == (True, [])


def test_pinned_memory_goes_by_dlpack() -> None:
    """torch's table reports the CPU; its `__dlpack_device__` returns (3, 0)."""
    producer = exchange.Producer()
    members = {"is_pinned": lambda _: True, "__dlpack_device__": lambda _: (3, 0)}
    view = cd.view(instance(producer, **members))
    assert view.memory == "pinned"
    assert len(producer.fallbacks) == 1


# --- tables that are wrong ----------------------------------------------------------------------------------


def _cycle(producer: exchange.Producer) -> object:
    made = exchange.table(producer, version=(2, 0))
    made.prev_api = ctypes.addressof(made)
    return exchange.capsule(made)


def misplaced(producer: exchange.Producer) -> int:
    """Makes a table at an address where none may lie, and returns that."""
    table = exchange.table(producer)
    memory = ctypes.create_string_buffer(ctypes.sizeof(table) + 16)
    at = ((ctypes.addressof(memory) + 7) & ~7) + 4
    ctypes.memmove(at, ctypes.addressof(table), ctypes.sizeof(table))
    MISPLACED.append(memory)
    return at


#: Tables are static.
MISPLACED: list[object] = []
WRONG: dict[str, Any] = {
    "none": lambda producer: None,
    "an-int": lambda producer: ctypes.addressof(exchange.table(producer)),
    "another-name": lambda producer: exchange.capsule(exchange.table(producer), b"dltensor"),
    "major-2": lambda producer: exchange.capsule(exchange.table(producer, version=(2, 0))),
    "major-0": lambda producer: exchange.capsule(exchange.table(producer, version=(0, 8))),
    "a-cycle": _cycle,
    "no-export": lambda producer: exchange.capsule(exchange.table(producer, from_object=None)),
    "no-work-stream": lambda producer: exchange.capsule(exchange.table(producer, work_stream=None)),
    "not-aligned": lambda producer: abi.new_capsule(misplaced(producer), exchange.NAME, destructor=False),
    "a-method": lambda producer: lambda self: None,
    "a-raising-property": lambda producer: _Raising(),
}


class _Raising:
    def __get__(self, *_: Any) -> Any:
        raise KeyError("no table today")


@pytest.mark.parametrize("attribute", WRONG.values(), ids=WRONG)
def test_a_wrong_table_degrades_to_dlpack(attribute: Any) -> None:
    producer = exchange.Producer()
    thing = exchange.make_type(attribute(producer), producer)()
    view = cd.view(thing)
    assert view.ptr == producer.made.tensor.data
    assert (producer.exported, len(producer.fallbacks)) == (0, 1)
    assert sys.exc_info() == (None, None, None)


def test_the_chain_is_walked_to_a_version_we_know() -> None:
    wrong, right = exchange.Producer(), exchange.Producer()
    old = exchange.table(right, version=(1, 3))
    middle = exchange.table(wrong, version=(2, 1), prev=old)
    newest = exchange.table(wrong, version=(3, 0), prev=middle)
    view = cd.view(exchange.make_type(exchange.capsule(newest), wrong)())
    assert view.ptr == right.made.tensor.data
    assert (wrong.exported, right.exported) == (0, 1)


def test_a_chain_ends_at_a_table_that_is_not_aligned() -> None:
    producer = exchange.Producer()
    newest = exchange.table(producer, version=(2, 0))
    newest.prev_api = misplaced(producer)
    cd.view(exchange.make_type(exchange.capsule(newest), producer)())
    assert (producer.exported, len(producer.fallbacks)) == (0, 1)


def test_a_tensor_that_is_not_aligned_is_refused_unread() -> None:
    producer = exchange.Producer()

    def export(_object: int, out: Any) -> int:
        out[0] = abi.moved(producer.made, 4)
        return 0

    broken = exchange.table(producer, from_object=exchange.FromObject(export))
    thing = exchange.make_type(exchange.capsule(broken), producer)()
    found = refuse(lambda: cd.view(thing), ValueError)
    check_refusal(found, "tensor-alignment", "__dlpack_c_exchange_api__", value="0x")
    assert (producer.made.released, producer.fallbacks) == (0, [])


def test_a_newer_minor_version_is_ours() -> None:
    producer = exchange.Producer()
    cd.view(exchange.make_type(exchange.capsule(exchange.table(producer, version=(1, 99))), producer)())
    assert producer.exported == 1


@pytest.mark.parametrize("answer", ["minus-one", "null"])
def test_a_failure_without_an_exception_degrades(answer: str) -> None:
    producer = exchange.Producer()

    def export(_object: int, out: Any) -> int:
        out[0] = None
        return -1 if answer == "minus-one" else 0

    broken = exchange.table(producer, from_object=exchange.FromObject(export))
    view = cd.view(exchange.make_type(exchange.capsule(broken), producer)())
    assert view.ptr == producer.made.tensor.data
    assert len(producer.fallbacks) == 1


def test_a_work_stream_that_fails_degrades_and_releases(machine: Machine) -> None:
    producer = cuda(machine)
    broken = exchange.table(producer, work_stream=exchange.WorkStream(lambda *_: -1))
    view = cd.view(exchange.make_type(exchange.capsule(broken), producer)())
    assert len(producer.fallbacks) == 1
    assert producer.made.released == 1, "the table's tensor; the double hands the same one out again"
    del view


def panics() -> list[type[BaseException]]:
    """The class of a Rust panic of each extension that is loaded: PyO3 goes on panicking where it finds its own."""
    with pytest.raises(TypeError):
        cd.view(cast(Any, 5))
    found = [each for each in BaseException.__subclasses__() if each.__name__ == "PanicException"]
    assert found
    return found


@pytest.mark.parametrize("kind", ["an error", "an interrupt", "a panic"])
def test_a_work_stream_that_raises_later_leaves_no_edge_unmade(kind: str, machine: Machine) -> None:
    of_kind: dict[str, list[type[BaseException]]] = {"an error": [KeyError], "an interrupt": [KeyboardInterrupt]}
    classes = of_kind.get(kind) or panics()
    library = native.with_gil()
    asked = exchange.table(producer := cuda(machine))
    asked.work_stream = ctypes.cast(library.work_stream_or_raise, ctypes.c_void_p).value
    thing = exchange.make_type(exchange.capsule(asked), producer)()
    described = {"shape": (2,), "typestr": "<f4", "data": (producer.made.tensor.data, False), "version": 3}
    for raised in classes:
        view = cd.view(thing)
        block = view.consume(machine.stream())
        block.__enter__()
        before = cd.stats()["live"]
        library.set_raised(ctypes.py_object(raised))
        try:
            with pytest.raises(raised):
                cd.view(described, owner=view)
            assert cd.stats()["live"] == before
            machine.clear()
            with pytest.warns(cd.ConsumeWarning):
                del block
        finally:
            library.set_raised(None)
        assert machine.control.calls("cuStreamSynchronize"), "the host has waited"
        view.synchronize()


def test_the_producers_exception_passes_through() -> None:
    producer = exchange.Producer()
    raising = exchange.table(producer, from_object=RAISES)
    thing = exchange.make_type(exchange.capsule(raising), producer)()
    with pytest.raises(SystemError, match="bad argument to internal function"):
        cd.view(thing)
    assert producer.fallbacks == []


def test_a_broken_tensor_is_refused_and_released() -> None:
    producer = exchange.Producer(abi.make(shape=(-1, 3)))
    thing = instance(producer)
    check_refusal(refuse(lambda: cd.view(thing), ValueError), "shape-extent", "shape")
    assert producer.made.released == 1
    producer = exchange.Producer(abi.make(version=(2, 0)))
    thing = instance(producer)
    check_refusal(refuse(lambda: cd.view(thing), BufferError), "dlpack-major", "version")
    assert producer.made.released == 1


# --- our own views -----------------------------------------------------------------------------------------------


def test_a_view_of_a_view_costs_no_call_and_keeps_its_streams(machine: Machine) -> None:
    producer = cuda(machine)
    producer.stream = ready = machine.stream()
    first = cd.view(instance(producer))
    machine.clear_own()
    second = cd.view(first, read_only=True)
    assert machine.calls() == []
    assert (second.stream, second.producer_stream, second.ptr) == (ready, ready, first.ptr)
    assert (first.read_only, second.read_only) == (False, True)
    producer.stream = moved = machine.stream()
    machine.clear_own()
    second.to_cai()
    assert machine.order() == one_event(moved, ready), "it still asks the producer"
    mine = machine.stream()
    assert cd.view(first, producer_stream=mine).stream == mine


def test_a_view_of_a_lent_view_ends_with_the_loan(machine: Machine) -> None:
    producer = cuda(machine)
    with cd.view(instance(producer)).consume(machine.stream()) as lent:
        again = cd.view(lent)
        again.to_cai()
    check_refusal(refuse(again.to_cai, BufferError), "scope-ended", "object")
    check_refusal(refuse(lambda: cd.view(lent), BufferError), "scope-ended", "object")
