"""Capsules that we hand out: their names, their end, and who keeps the owner alive for how long."""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import cai_dlpack as cd
import numpy as np
import pytest
from cai_conformance import abi

from conformance.tests.doubles.producers import FAKE_POINTER, Cai, Dlpack, cai, interface

KINDS = pytest.mark.parametrize("max_version", [None, (1, 3)], ids=["legacy", "versioned"])

# A release that had to wait for the GIL comes at most this long after it is free.
RELEASED_WITHIN = 1.0


def capsule_of(producer: Any, max_version: tuple[int, int] | None) -> Any:
    return cd.view(producer, device_id=0).__dlpack__(stream=-1, max_version=max_version)


def is_released(alive: weakref.ref[Any]) -> bool:
    """Waits for a release that another thread has asked for."""
    end = time.monotonic() + RELEASED_WITHIN
    while alive() is not None and time.monotonic() < end:
        time.sleep(0.001)
    return alive() is None


# --- names and versions ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_version", "versioned"),
    [
        pytest.param(None, False, id="none"),
        pytest.param((0, 0), False, id="0.0"),
        pytest.param((0, 8), False, id="0.8"),
        pytest.param((0, 999), False, id="0.999"),
        pytest.param((1, 0), True, id="1.0"),
        pytest.param((1, 3), True, id="1.3"),
        pytest.param((1, 99), True, id="1.99"),
        pytest.param((2, 0), True, id="2.0"),
        pytest.param((2**31, 2**31), True, id="far-future"),
    ],
)
def test_name_and_version(max_version: tuple[int, int] | None, versioned: bool) -> None:
    view = cd.view(cai(), device_id=0)
    for capsule in (
        view.__dlpack__(stream=-1, max_version=max_version),
        cd.to_dlpack(view, stream=-1, max_version=max_version),
    ):
        assert abi.name(capsule) == (abi.VERSIONED if versioned else abi.LEGACY)
        assert abi.read(capsule).version == ((1, 3) if versioned else None)


def test_no_arguments_at_all_is_legacy() -> None:
    assert abi.name(cd.view(cai(), device_id=0).__dlpack__()) == abi.LEGACY


def test_two_capsules_are_independent() -> None:
    view = cd.view(cai(), device_id=0)
    first, second = (view.__dlpack__(stream=-1, max_version=(1, 3)) for _ in range(2))
    one, two = abi.read(first), abi.read(second)
    assert one.address != two.address
    assert one.data == two.data == FAKE_POINTER
    del first
    gc.collect()
    assert abi.read(second) == two


# --- the end of a capsule -------------------------------------------------------------------------


@KINDS
def test_unconsumed_capsule_releases_the_owner_once(max_version: tuple[int, int] | None) -> None:
    producer = cai()
    alive = weakref.ref(producer)
    before = sys.getrefcount(producer)
    capsule = capsule_of(producer, max_version)
    assert sys.getrefcount(producer) == before + 1
    del capsule
    assert sys.getrefcount(producer) == before
    del producer
    gc.collect()
    assert alive() is None


@KINDS
def test_consumed_capsule_releases_the_owner_by_the_deleter_alone(
    max_version: tuple[int, int] | None,
) -> None:
    producer = cai()
    before = sys.getrefcount(producer)
    capsule = capsule_of(producer, max_version)
    tensor = abi.consume(capsule)
    del capsule
    gc.collect()
    assert sys.getrefcount(producer) == before + 1, "the capsule's destructor released a consumed tensor"
    assert (tensor.data, tensor.shape) == (FAKE_POINTER, (2, 3))
    assert abi.read_at(tensor.address, versioned=tensor.versioned) == tensor
    abi.release(tensor)
    assert sys.getrefcount(producer) == before


@KINDS
def test_a_consumer_that_deletes_and_leaves_the_name(max_version: tuple[int, int] | None) -> None:
    """TensorFlow does so if it refuses the device: the capsule's destructor must not call the deleter again."""
    producer = cai()
    before = sys.getrefcount(producer)
    for _ in range(100):
        capsule = capsule_of(producer, max_version)
        # The slot of its ticket, and its memory, go to another tensor, which lives.
        abi.release(abi.read(capsule))
        assert sys.getrefcount(producer) == before
        other = capsule_of(producer, max_version)
        del capsule
        assert sys.getrefcount(producer) == before + 1
        assert abi.read(other).data == FAKE_POINTER
        del other
        assert sys.getrefcount(producer) == before


@KINDS
def test_a_consumer_that_fails_and_restores_the_name(max_version: tuple[int, int] | None) -> None:
    """By a string of its own, at another address."""
    producer = cai()
    before = sys.getrefcount(producer)
    capsule = capsule_of(producer, max_version)
    name = ctypes.create_string_buffer(abi.name(capsule))
    abi.consume(capsule)
    assert ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), name) == 0
    del capsule
    assert sys.getrefcount(producer) == before


@KINDS
def test_a_consumer_that_clears_the_destructor(max_version: tuple[int, int] | None) -> None:
    """JAX and tvm-ffi do so, so that the deleter alone ends the tensor."""
    producer = cai()
    before = sys.getrefcount(producer)
    capsule = capsule_of(producer, max_version)
    tensor = abi.consume(capsule)
    assert ctypes.pythonapi.PyCapsule_SetDestructor(ctypes.py_object(capsule), None) == 0
    del capsule
    assert sys.getrefcount(producer) == before + 1
    abi.release(tensor)
    assert sys.getrefcount(producer) == before


def test_more_tensors_than_tickets() -> None:
    """Beyond 65,535 capsules at once the name alone tells, and every tensor is released once."""
    producer = cai()
    before = sys.getrefcount(producer)
    capsules = [capsule_of(producer, (1, 3)) for _ in range((1 << 16) + 1000)]
    tensors = [abi.consume(capsule) for capsule in capsules[::2]]
    del capsules
    assert sys.getrefcount(producer) == before + len(tensors)
    for tensor in tensors:
        abi.release(tensor)
    assert sys.getrefcount(producer) == before


@KINDS
def test_the_tensor_alone_keeps_the_owner(max_version: tuple[int, int] | None) -> None:
    producer = cai()
    alive = weakref.ref(producer)
    tensor = abi.consume(capsule_of(producer, max_version))
    del producer
    gc.collect()
    assert alive() is not None
    abi.release(tensor)
    assert alive() is None


def test_a_strange_name_is_left_alone() -> None:
    """A capsule with another name has another owner: the destructor releases nothing."""
    producer = cai()
    before = sys.getrefcount(producer)
    capsule = capsule_of(producer, (1, 3))
    address = abi.pointer(capsule)
    abi.rename(capsule, b"somebody_elses")
    del capsule
    gc.collect()
    assert sys.getrefcount(producer) == before + 1
    abi.call_deleter(address, versioned=True)
    assert sys.getrefcount(producer) == before


def test_the_object_is_kept_and_not_its_dict() -> None:
    class Shown(dict[str, Any]):
        pass

    shown = Shown(interface())
    producer = Cai(shown)
    view = cd.view(producer, device_id=0)
    assert view.owner is producer
    seen = weakref.ref(shown)
    producer.interface = None
    del shown
    gc.collect()
    assert seen() is None


def test_every_order_of_dropping_releases_once() -> None:
    """Capsule, view, producer and consumer's tensor, dropped in every order: a consumed capsule holds nothing."""
    for order in itertools.permutations(["producer", "view", "capsule", "tensor"]):
        producer = cai()
        alive = weakref.ref(producer)
        view = cd.view(producer, device_id=0)
        capsule = view.__dlpack__(stream=-1, max_version=(1, 3))
        held: dict[str, Any] = {"producer": producer, "view": view, "capsule": capsule}
        held["tensor"] = abi.consume(capsule)
        del producer, view, capsule
        for name in order:
            assert (alive() is None) == (set(held) == {"capsule"}), order
            gone = held.pop(name)
            if name == "tensor":
                abi.release(gone)
            del gone
            gc.collect()
        assert alive() is None, order


# --- where a deleter is called ---------------------------------------------------------------------


@KINDS
def test_deleter_with_the_gil_releases_at_once(max_version: tuple[int, int] | None) -> None:
    producer = cai()
    before = sys.getrefcount(producer)
    tensor = abi.consume(capsule_of(producer, max_version))
    abi.release(tensor, gil=True)
    assert sys.getrefcount(producer) == before


@KINDS
def test_deleter_without_the_gil_on_a_python_thread(max_version: tuple[int, int] | None) -> None:
    producer = cai()
    alive = weakref.ref(producer)
    tensor = abi.consume(capsule_of(producer, max_version))
    del producer
    thread = threading.Thread(target=lambda: abi.release(tensor, gil=False))
    thread.start()
    thread.join()
    assert is_released(alive)


@KINDS
def test_deleter_on_a_thread_that_python_has_never_seen(max_version: tuple[int, int] | None) -> None:
    producer = cai()
    alive = weakref.ref(producer)
    tensor = abi.consume(capsule_of(producer, max_version))
    del producer
    abi.release_on_foreign_thread(tensor)
    assert is_released(alive)


def test_deleters_on_foreign_threads_while_this_one_holds_the_gil() -> None:
    """The joining call holds the GIL: a deleter that waited for it would never come back."""
    producers = [cai() for _ in range(100)]
    alive = [weakref.ref(each) for each in producers]
    tensors = [abi.consume(capsule_of(each, (1, 3))) for each in producers]
    producers.clear()
    for tensor in tensors:
        abi.release_on_foreign_thread(tensor, gil=True)
    assert all(is_released(each) for each in alive)


def test_an_imported_tensor_is_released_by_a_foreign_thread_too() -> None:
    """Foreign deleters behind our own: they run once, and with the GIL they may want."""
    made = abi.make()
    tensor = abi.consume(cd.from_dlpack(made.capsule()).__dlpack__(max_version=(1, 3)))
    gc.collect()
    assert made.released == 0
    abi.release_on_foreign_thread(tensor)
    end = time.monotonic() + RELEASED_WITHIN
    while made.released == 0 and time.monotonic() < end:
        time.sleep(0.001)
    assert made.released == 1


def drop_on_the_way_out(make: Callable[[], object]) -> None:
    """Raises while the result of `make` is on the value stack: it is destroyed with the exception pending."""
    (make(), [][7])


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(lambda producer: capsule_of(producer, None), id="legacy-capsule"),
        pytest.param(lambda producer: capsule_of(producer, (1, 3)), id="versioned-capsule"),
        pytest.param(lambda producer: cd.view(producer, device_id=0), id="view"),
        pytest.param(lambda producer: cd.from_dlpack(capsule_of(producer, (1, 3))), id="view-of-a-view"),
    ],
)
def test_destroyed_with_an_exception_pending(what: Callable[[object], object]) -> None:
    class Owner(Cai):
        """Its end runs Python code, which must not see or eat the exception that is on its way."""

        ended = 0

        def __del__(self) -> None:
            Owner.ended += 1
            try:
                raise LookupError("swallowed in here")
            except LookupError:
                pass

    with pytest.raises(IndexError, match="list index out of range"):
        drop_on_the_way_out(lambda: what(Owner(interface())))
    gc.collect()
    assert Owner.ended == 1


def test_a_foreign_deleter_called_with_an_exception_pending() -> None:
    made = abi.make()
    with pytest.raises(IndexError, match="list index out of range"):
        drop_on_the_way_out(lambda: cd.from_dlpack(made.capsule()))
    gc.collect()
    assert made.released == 1


def test_an_owner_that_makes_views_as_it_dies() -> None:
    """The deleter runs any code: here it walks in again, and is no deadlock."""
    seen: list[object] = []

    class Owner(Cai):
        def __del__(self) -> None:
            inner = cai()
            tensor = abi.consume(capsule_of(inner, (1, 3)))
            abi.release(tensor)
            seen.append(sys.getrefcount(inner))

    tensor = abi.consume(capsule_of(Owner(interface()), (1, 3)))
    gc.collect()
    abi.release(tensor)
    assert len(seen) == 1


# --- ours consumed by ours, and by numpy ------------------------------------------------------------


def test_our_own_import_consumes_our_own_capsule_once() -> None:
    producer = cai()
    capsule = capsule_of(producer, (1, 3))
    view = cd.from_dlpack(capsule)
    assert abi.name(capsule) == abi.USED_VERSIONED
    with pytest.raises(ValueError, match="capsule-used"):
        cd.from_dlpack(capsule)
    assert view.ptr == FAKE_POINTER
    alive = weakref.ref(producer)
    del producer, capsule
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None


def test_a_long_chain_of_views_keeps_one_owner() -> None:
    producer = cai()
    alive = weakref.ref(producer)
    view: Any = cd.view(producer, device_id=0)
    del producer
    for _ in range(50):
        view = cd.from_dlpack(view.__dlpack__(stream=-1, max_version=(1, 3)))
    gc.collect()
    assert alive() is not None
    assert view.ptr == FAKE_POINTER
    del view
    gc.collect()
    assert alive() is None


def test_numpy_releases_at_once_outside_any_call_of_ours() -> None:
    made = abi.make()
    array = np.from_dlpack(cd.from_dlpack(Dlpack(made)))
    assert array.ctypes.data == made.tensor.data
    assert array.shape == (2, 3)
    gc.collect()
    assert made.released == 0
    del array
    assert made.released == 1


# --- the view as an object ----------------------------------------------------------------------------


def test_a_view_is_weak_referenceable_and_frozen() -> None:
    view = cd.view(cai(), device_id=0)
    alive = weakref.ref(view)
    for name in ("shape", "ptr", "stream", "colour"):
        with pytest.raises(AttributeError):
            setattr(view, name, 1)
    with pytest.raises(AttributeError):
        del view.shape
    del view
    gc.collect()
    assert alive() is None


def test_a_view_has_no_length_and_no_items() -> None:
    view = cd.view(cai(), device_id=0)
    for name in ("__len__", "__getitem__", "__iter__"):
        assert not hasattr(view, name), name


def test_a_view_is_not_picklable_and_says_why() -> None:
    import copy
    import pickle

    view = cd.view(cai(), device_id=0)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(view, protocol)
    with pytest.raises(TypeError):
        copy.deepcopy(view)


def test_no_view_can_be_made_by_hand() -> None:
    with pytest.raises(TypeError):
        cd.CaiView()
    with pytest.raises(TypeError):
        type("Mine", (cd.CaiView,), {})


def left(loan: Any) -> Any:
    with loan:
        pass
    return loan


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(lambda view: view, id="view"),
        pytest.param(cd.view, id="view-of-a-view"),
        pytest.param(lambda view: (view, cd.view(view, shape=view.shape)) and view, id="view-that-was-shared"),
        pytest.param(lambda view: view.on(7), id="on-a-stream"),
        pytest.param(lambda view: view.consume(1), id="loan"),
        pytest.param(lambda view: left(view.consume(1)), id="loan-that-was-left"),
        pytest.param(lambda view: cd.view(view, producer_stream=Keeper(view.owner)), id="stream-object"),
    ],
)
def test_a_cycle_through_the_owner_is_collected(kept: Callable[[cd.CaiView], object]) -> None:
    """The owner holds its own view, or what has the view, as a library that caches would do."""
    producer = cai()
    producer.cached = kept(cd.view(producer, device_id=0))  # type: ignore[attr-defined]
    alive = weakref.ref(producer)
    del producer
    gc.collect()
    assert alive() is None


class Keeper:
    """A stream object that keeps something."""

    def __init__(self, kept: object) -> None:
        self.kept = kept

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 7)


def test_a_stream_object_that_keeps_its_own_block_is_collected() -> None:
    stream = Keeper(None)
    stream.kept = cd.use_stream(stream, device_id=0)
    alive = weakref.ref(stream)
    del stream
    gc.collect()
    assert alive() is None
