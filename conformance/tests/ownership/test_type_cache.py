"""The cache of what a type offers keeps no class alive, and takes no class for a dead one of the same address."""

from __future__ import annotations

import ctypes
import gc
import random
import weakref
from typing import Any

import cai_dlpack as cd
import pytest
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.interpreter.free_threaded import FREE_THREADED


class Cargo:
    """Something that a class refers to."""


def test_a_class_ends_with_its_last_object() -> None:
    ended = []
    for _ in range(100):
        cargo = Cargo()
        kind: Any = type("Producer", (), {"__cuda_array_interface__": interface(), "cargo": cargo})
        assert cd.view(kind(), device_id=0).shape == (2, 3)
        ended += [weakref.ref(kind), weakref.ref(cargo)]
    del kind, cargo
    gc.collect()
    assert [each() for each in ended] == [None] * 200


@pytest.mark.parametrize("living", [0, 200])
def test_a_class_at_the_address_of_a_dead_one_is_examined_anew(living: int) -> None:
    """With a table and without in turn: a table of the one before would be called with the wrong object.

    Beside so many living types that its slot is another one than the first that is looked at.
    """
    crowd: list[Any] = [type("Living", (), {"__cuda_array_interface__": interface()}) for _ in range(living)]
    for each in crowd:
        cd.view(each(), device_id=0)
    addresses: dict[int, int] = {}
    for turn in range(300):
        if turn % 2:
            producer = exchange.Producer()
            kind = exchange.make_type(exchange.capsule(exchange.table(producer)), producer)
            view = cd.view(kind())
            assert producer.exported == 1
        else:
            kind = type("Exchanger", (), {"__cuda_array_interface__": interface()})
            view = cd.view(kind(), device_id=0)
        assert view.device == ((abi.CPU, 0) if turn % 2 else (abi.CUDA, 0))
        addresses[id(kind)] = addresses.get(id(kind), 0) + 1
        del view, kind
        gc.collect()
    assert max(addresses.values()) > 1, "no address was used again"


def test_a_class_that_is_used_while_it_is_collected_is_forgotten_all_the_same() -> None:
    """A finaliser of an object of the class brings the class back into the cache after its weak references."""
    seen = []

    class Last:
        __cuda_array_interface__ = interface()

        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            seen.append(cd.view(self, device_id=0).shape)

    Last()
    alive = weakref.ref(Last)
    del Last
    gc.collect()
    gc.collect()
    assert (seen, alive()) == ([(2, 3)], None)


def test_no_class_is_taken_for_one_whose_end_nobody_was_told_of() -> None:
    """A finaliser brings the class back into the cache while it is collected: CPython 3.14 then clears the new weak
    reference without its callback. The program does so itself, so that each version does."""
    clear = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("_PyWeakref_ClearRef", ctypes.pythonapi))
    again = 0
    for _ in range(200):
        producer = exchange.Producer()
        table = exchange.make_type(exchange.capsule(exchange.table(producer)), producer)

        class Last(table):  # type: ignore[misc, valid-type]
            def __init__(self) -> None:
                self.me = self

            def __del__(self) -> None:
                cd.view(self)
                for reference in weakref.getweakrefs(type(self)):
                    clear(reference)

        Last()
        address = id(Last)
        del Last
        gc.collect()
        exported = producer.exported
        others: list[Any] = []
        while len(others) < 50 and not (others and id(others[-1]) == address):
            others.append(type("Other", (), {"__cuda_array_interface__": interface()}))
        if id(others[-1]) == address:
            again += 1
            assert cd.view(others[-1](), device_id=0).device == (abi.CUDA, 0)
            assert producer.exported == exported, "the table of a dead class was called with an object of another"
    assert again, "no address was used again"


def test_types_in_use_together_are_examined_once() -> None:
    """Whatever their addresses are: types that share their slots in the cache do not displace each other for ever."""
    examined = []

    class Counting(type):
        @property
        def __dlpack_c_exchange_api__(cls) -> Any:
            examined.append(cls)
            raise AttributeError

    kinds: list[Any] = [Counting("Producer", (), {"__cuda_array_interface__": interface()}) for _ in range(400)]
    choose = random.Random(5)
    for _ in range(100):
        together = [kind() for kind in choose.sample(kinds, 8)]
        for _ in range(50):
            before = len(examined)
            for producer in together:
                cd.view(producer, device_id=0)
            if len(examined) == before:
                break
        else:
            raise AssertionError("examined again and again")
    assert len(examined) >= len(set(examined)) > 8


def test_whether_a_type_has_dlpack_is_as_python_reads_it() -> None:
    """From a base, a metaclass or its `__getattr__`, given to the class later, or `None`, by which it has none."""
    choose = random.Random(7)
    answers = set()

    def dlpack(*_: Any, **__: Any) -> Any:
        raise LookupError("asked")

    def asks(producer: Any) -> bool:
        try:
            return cd.view(producer, device_id=0).shape != (2, 3)
        except LookupError:
            return True

    def missing(_cls: Any, name: str) -> Any:
        if name == "__dlpack__":
            return dlpack
        raise AttributeError(name)

    for _ in range(300):
        value = choose.choice([dlpack, dlpack, None])
        name = choose.choice(["__dlpack__", "__dlpack__", "other"])
        own = {"__dlpack__": dlpack, "__dlpack_device__": lambda _: (2, 0)}
        # What the metaclass has is found on the class, and called as the object's.
        of_meta: dict[str, Any] = choose.choice([{}, {}, {name: value}, {"__getattr__": missing}])
        meta: Any = type("Meta", (type,), of_meta) if of_meta or choose.random() < 0.3 else type
        base: Any = meta("Base", (), choose.choice([{}, {name: value}]))
        # Of version 2, whose dict does not say whether work is pending.
        items = {
            "__cuda_array_interface__": interface(version=2, stream=...),
            "__dlpack_device__": own["__dlpack_device__"],
        }
        kind: Any = meta("Producer", (base,), items)
        producer = kind()
        producer.__dict__["__dlpack__"] = dlpack
        had = False
        for _ in range(3):
            if choose.random() < 0.3:
                # Its metaclass too, which no later question may pass over.
                given = [kind, base] if meta is type else [kind, base, meta]
                setattr(choose.choice(given), name, value)
            has = getattr(kind, "__dlpack__", None) is not None
            had = had or has
            # What a type once had is remembered; without the GIL a type that was changed itself is examined again.
            asked = asks(producer)
            assert has <= asked <= had if FREE_THREADED else asked == had
            answers.add(asked)
    assert answers == {True, False}


def test_a_lack_of_memory_is_not_remembered() -> None:
    """Neither as a type without a table, nor as a flag that is none."""
    producer = exchange.Producer()
    capsule = exchange.capsule(exchange.table(producer))
    lacks = [True]

    class Meta(type):
        @property
        def __dlpack_c_exchange_api__(cls) -> object:
            if lacks:
                lacks.clear()
                raise MemoryError
            return capsule

    made = exchange.make_type(capsule, producer)
    kind: Any = Meta("Producer", (), {name: vars(made)[name] for name in ("__dlpack__", "__dlpack_device__")})
    for expected in (0, 1):
        try:
            cd.view(kind())
        except MemoryError:
            assert expected == 0
        assert producer.exported == expected

    class Flag:
        def __bool__(self) -> bool:
            raise MemoryError

    with pytest.raises(MemoryError):
        cd.view(Cai(interface(data=(4096, Flag()))), device_id=0)
