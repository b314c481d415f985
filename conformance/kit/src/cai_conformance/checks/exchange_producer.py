"""Checks of types with DLPack's C Exchange API (`__dlpack_c_exchange_api__`)."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import numpy as np

from cai_conformance import abi, exchange, offers
from cai_conformance.checks.dlpack_producer.base import Given, Tensors
from cai_conformance.checks.dlpack_producer.lifetime import released
from cai_conformance.checks.producing import registering
from cai_conformance.judge import sources as say
from cai_conformance.judge.check import NotRun, Severity, broken, demand
from cai_conformance.judge.exported import HOST, Export
from cai_conformance.judge.memory import Array, same
from cai_conformance.judge.produced import Produced
from cai_conformance.judge.samples import FULL, SHAPES
from cai_conformance.reference.exchanger import ExchangeArray, as_object
from cai_conformance.reference.producers import DlpackArray, kept

DEVIATION, RECOMMENDATION = Severity.DEVIATION, Severity.RECOMMENDATION

#: The functions of a table by the names that the header gives them.
NAMES = {
    "allocator": "managed_tensor_allocator",
    "from_object": "managed_tensor_from_py_object_no_sync",
    "to_object": "managed_tensor_to_py_object_no_sync",
    "borrow": "dltensor_from_py_object_no_sync",
    "work_stream": "current_work_stream",
}


#: Ends of programs.
TABLE = "from cai_conformance import exchange\ntable = exchange.table_of(type(array))\n"
EXPORTED = "from cai_conformance.checks.exchange_producer import of\nprint(of(array).exported().read)"
ELEMENTS = "from cai_conformance.checks.exchange_producer import of\nprint(of(array).exported().values())"
GIVEN = """from cai_conformance.checks.exchange_producer import given, of
from cai_conformance.offers import TWICE, tensor
offer = tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
made = given(of(array), offer)
"""
ALLOCATED = """from cai_conformance.checks.exchange_producer import allocated, of
code, tensor, errors = allocated(of(array), {})
print(code, tensor and abi.read_at(tensor, versioned=True), errors)"""


class Exchanged(Tensors):
    """An array, and the table of its type."""

    @property
    def capsule(self) -> Any:
        try:
            return getattr(type(self.object), exchange.ATTRIBUTE)
        except AttributeError:
            raise NotRun(f"{type(self.object).__name__} has no {exchange.ATTRIBUTE}") from None

    @property
    def table(self) -> Any:
        return exchange.Table.from_address(abi.pointer(self.capsule))

    def call(self, name: str, prototype: Any, *arguments: Any) -> Any:
        address = getattr(self.table, name)
        if not address:
            raise NotRun(f"{NAMES[name]} is NULL")
        return prototype(address)(*arguments)

    def exported(self) -> Taken:
        out = ctypes.c_void_p()
        try:
            code = self.call("from_object", exchange.FromObject, id(self.object), ctypes.byref(out))
        except BufferError as error:
            raise NotRun(f"{NAMES['from_object']} refuses: {error}") from None
        if code != 0 or not out.value:
            raise NotRun(f"{NAMES['from_object']} returned {code}")
        return Taken(out.value)

    @property
    def device_pair(self) -> tuple[int, int]:
        """The device as two ints; it is another check's affair whether it is that."""
        try:
            kind, number = map(int, self.device)
        except (TypeError, ValueError):
            raise NotRun(f"__dlpack_device__ returns {self.device}") from None
        return kind, number

    def again(self) -> Exchanged:
        return Exchanged(Produced(self.produced.make, self.produced.sample))


class Taken(Export):
    """A tensor that a function of the table returned."""

    def __init__(self, address: int) -> None:
        self.ended = True
        self.name = abi.VERSIONED
        self.capsule = None
        self.read = abi.peek(address, versioned=True)
        self.ended = False


check = registering("exchange-producer", Exchanged)


def overriding(**members: Any) -> Any:
    """A type with functions of its own in its table."""
    return type("Exchanger", (ExchangeArray,), members)


def edited(change: Callable[[Any], None]) -> Any:
    """A type whose table is changed."""
    return overriding(edit=classmethod(lambda cls, table: change(table)))


@check(
    "exchange-type",
    "the type's attribute is a capsule",
    say.EX_TYPE,
    mutant=overriding(attribute=classmethod(lambda cls, table: ctypes.addressof(table))),
)
def _(t: Exchanged) -> None:
    found = t.capsule
    demand(type(found).__name__ == "PyCapsule", f"{exchange.ATTRIBUTE} is a {type(found).__name__}")


@check(
    "exchange-name",
    "the capsule is named dlpack_exchange_api",
    say.EX_TYPE,
    after=("exchange-type",),
    mutant=overriding(attribute=classmethod(lambda cls, table: exchange.capsule(table, b"dlpack_exchange"))),
)
def _(t: Exchanged) -> None:
    found = abi.name(t.capsule)
    demand(found == exchange.NAME, f"it is named {found!r}")


class _Fresh:
    """Makes a new table at each read."""

    def __get__(self, instance: Any, owner: Any) -> Any:
        table, functions = owner.table
        copy = exchange.Table.from_buffer_copy(table)
        kept((copy, functions))
        return exchange.capsule(copy)


@check(
    "exchange-alive",
    "the table is the same at each read, and lives as long as the process",
    say.EX_ALIVE,
    after=("exchange-name",),
    mutant=overriding(attribute=classmethod(lambda cls, table: _Fresh())),
    shows="for _ in 'ab':\n    print(hex(abi.pointer(type(array).__dlpack_c_exchange_api__)))",
)
def _(t: Exchanged) -> None:
    first, second = abi.pointer(t.capsule), abi.pointer(t.capsule)
    demand(first == second, f"first {first:#x}, then {second:#x}")


@check(
    "exchange-major",
    "the table's major version is 1",
    say.EX_VERSION,
    after=("exchange-name",),
    mutant=edited(lambda table: setattr(table, "version", abi.DLPackVersion(2, 0))),
    shows=TABLE + "print(table.version.major, table.version.minor)",
)
def _(t: Exchanged) -> None:
    found = t.table.version
    demand(found.major == 1, f"version=({found.major}, {found.minor})")


@check(
    "exchange-minor",
    "the table's minor version exists, and has the table: 3",
    say.EX_VERSION,
    after=("exchange-major",),
    severity=DEVIATION,
    mutant=edited(lambda table: setattr(table, "version", abi.DLPackVersion(1, 77))),
    shows=TABLE + "print(table.version.major, table.version.minor)",
)
def _(t: Exchanged) -> None:
    found = t.table.version
    demand(found.minor in (2, 3), f"version=({found.major}, {found.minor})")


@check(
    "exchange-prev",
    "there is no older table of the same major version",
    say.EX_PREV,
    after=("exchange-major",),
    mutant=edited(lambda table: setattr(table, "prev_api", ctypes.addressof(table))),
    shows=TABLE + "print(table.prev_api)",
)
def _(t: Exchanged) -> None:
    found = t.table.prev_api
    if found:
        older = exchange.Table.from_address(found).version
        demand(older.major < t.table.version.major, f"prev_api is of version ({older.major}, {older.minor})")


for _name in ("allocator", "from_object", "to_object", "work_stream"):

    def _is_there(t: Exchanged, name: str = _name) -> None:
        demand(getattr(t.table, name), f"{NAMES[name]} is NULL")

    check(
        f"exchange-{_name.replace('_', '-')}",
        f"`{NAMES[_name]}` is not NULL",
        say.EX_NOT_NULL,
        after=("exchange-major",),
        mutant=edited(lambda table, name=_name: setattr(table, name, None)),  # type: ignore[misc]
        shows=TABLE + f"print(table.{_name})",
    )(_is_there)


@check(
    "from-object",
    "the exported tensor has the array's elements",
    say.EX_FROM,
    after=("exchange-from-object",),
    samples=FULL,
    mutant=overriding(
        from_object=staticmethod(
            lambda obj, out: (
                ExchangeArray.from_object(id(_zeros(as_object(obj))), out)
                if as_object(obj).array.ndim == 3
                else ExchangeArray.from_object(obj, out)
            )
        )
    ),
    shows=ELEMENTS,
)
def _(t: Exchanged) -> None:
    found = t.exported().values()
    demand(same(found, t.expected), f"{found.tolist()} instead of {t.expected.tolist()}")


def _zeros(array: Any) -> Any:
    return kept(DlpackArray(np.zeros_like(array.array)))


@check(
    "from-object-version",
    "the exported tensor has the table's major version",
    say.DL_VERSION,
    after=("exchange-from-object",),
    mutant=overriding(
        managed=lambda self, versioned, copied=False: _versioned(
            DlpackArray.managed(self, versioned, copied=copied), versioned
        )
    ),
    shows=EXPORTED,
)
def _(t: Exchanged) -> None:
    found = t.exported().read.version
    demand(found and found[0] == t.table.version.major, f"version={found}")


def _versioned(tensor: Any, versioned: bool) -> Any:
    if versioned:
        tensor.version = abi.DLPackVersion(2, 0)
    return tensor


@check(
    "from-object-device",
    "the exported tensor is on the device that `__dlpack_device__` names",
    say.DL_DEVICE,
    after=("exchange-from-object",),
    samples=SHAPES,
    mutant=overriding(from_object=staticmethod(lambda obj, out: _pinned(obj, out))),
    shows=EXPORTED,
)
def _(t: Exchanged) -> None:
    found = t.exported().read.device
    demand(found == t.device_pair, f"the tensor says {found}, __dlpack_device__ {t.device}")


def _pinned(obj: int, out: Any) -> int:
    code = ExchangeArray.from_object(obj, out)
    if code == 0 and as_object(obj).array.shape == (5,):
        abi.DLManagedTensorVersioned.from_address(out[0]).dl_tensor.device = abi.DLDevice(abi.CUDA_HOST, 0)
    return code


@check(
    "from-object-strides",
    "the strides of an exported tensor are not NULL",
    say.DL_STRIDES_SET,
    after=("exchange-from-object",),
    samples=SHAPES,
    mutant=overriding(from_object=staticmethod(lambda obj, out: _stripped(obj, out))),
    shows=EXPORTED,
)
def _(t: Exchanged) -> None:
    found = t.exported().read
    demand(found.ndim == 0 or found.strides is not None, "strides=NULL")


def _stripped(obj: int, out: Any) -> int:
    code = ExchangeArray.from_object(obj, out)
    if code == 0 and as_object(obj).array.ndim == 3:
        abi.DLManagedTensorVersioned.from_address(out[0]).dl_tensor.strides = None
    return code


@check(
    "from-object-read-only",
    "an array that must not be written is flagged as read-only",
    say.DL_READ_ONLY,
    after=("exchange-from-object",),
    samples=("read-only",),
    mutant=overriding(flags=lambda self, array, copied: 0),
    shows=EXPORTED,
)
def _(t: Exchanged) -> None:
    found = t.exported()
    if found.address != t.produced.given.ctypes.data:
        raise NotRun("the producer made a copy, which may be written")
    demand(found.flags & abi.READ_ONLY, f"flags={found.flags:#b}")


@check(
    "from-object-shared",
    "two exported tensors share the array's memory",
    say.EX_FROM,
    after=("from-object",),
    severity=DEVIATION,
    mutant=overriding(from_object=staticmethod(lambda obj, out: ExchangeArray.from_object(id(_copied(obj)), out))),
    shows=EXPORTED + "\nprint(of(array).exported().read)",
)
def _(t: Exchanged) -> None:
    first, second = t.exported(), t.exported()
    demand(first.address == second.address, f"one at {first.address:#x}, the other at {second.address:#x}")


def _copied(obj: int) -> Any:
    array = as_object(obj).array
    copy = np.array(array, order="K", copy=True)
    copy.flags.writeable = array.flags.writeable
    return kept(DlpackArray(copy))


@check(
    "from-object-released",
    "the deleter of an exported tensor lets the array go",
    say.DL_DELETER,
    after=("from-object",),
    mutant=overriding(
        keep=lambda self, array: kept(self),
    ),
    shows="""from cai_conformance.checks.exchange_producer import of
watch = weakref.ref(array)
of(array).exported().end()
del array
gc.collect()
print(watch())  # not None: something keeps it""",
)
def _(t: Exchanged) -> None:
    released(t, lambda fresh: fresh.exported().end())  # type: ignore[attr-defined]


def of(array: Any) -> Exchanged:
    """An array that no sample was made into, for programs."""
    return Exchanged(Given(array))  # type: ignore[arg-type]


@check(
    "borrow",
    "the lent tensor has the array's elements",
    say.EX_BORROW,
    after=("exchange-major",),
    samples=FULL,
    mutant=overriding(borrow=staticmethod(lambda obj, out: _lent_wrong(obj, out))),
    shows="from cai_conformance.checks.exchange_producer import lent, of\nprint(lent(of(array)))",
)
def _(t: Exchanged) -> None:
    found = lent(t)
    demand(same(found, t.expected), f"{found.tolist()} instead of {t.expected.tolist()}")


def lent(t: Exchanged) -> Array:
    """The elements of the tensor that the table lends."""
    tensor = abi.DLTensor()
    try:
        code = t.call("borrow", exchange.Borrow, id(t.object), ctypes.byref(tensor))
    except BufferError as error:
        raise NotRun(f"{NAMES['borrow']} refuses: {error}") from None
    demand(code == 0, f"{NAMES['borrow']} returned {code}")
    managed = abi.DLManagedTensorVersioned()
    managed.dl_tensor = tensor
    return Taken(ctypes.addressof(managed)).values()


def _lent_wrong(obj: int, out: Any) -> int:
    code = ExchangeArray.borrow(obj, out)
    if as_object(obj).array.shape == (5,):
        out[0].byte_offset = 8
        out[0].data = (out[0].data or 0) - 16
    return code


def given(t: Exchanged, offer: Any) -> Any:
    """Hands a tensor over to the table's import; returns the object."""
    tensor = offer.managed(True)
    out = ctypes.c_void_p()
    code = t.call("to_object", exchange.ToObject, ctypes.addressof(tensor), ctypes.byref(out))
    if code != 0 or not out.value:
        raise NotRun(f"{NAMES['to_object']} returned {code}")
    made = as_object(out.value)
    abi.decref(id(made))
    return made


@check(
    "to-object",
    "the imported array has the tensor's elements",
    say.EX_TO,
    after=("exchange-to-object",),
    mutant=overriding(to_object=staticmethod(lambda tensor, out: _imported(tensor, out))),
    shows=GIVEN + "print(of(made).any().values())",
)
def _(t: Exchanged) -> None:
    if int(t.device[0]) not in HOST:
        raise NotRun("the array is not in memory of the host")
    offer = offers.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    found = Tensors.any(Tensors(Given(given(t, offer)))).values()  # type: ignore[arg-type]
    demand(same(found, offer.array), f"{found.tolist()} instead of {offer.array.tolist()}")


def _imported(tensor: int, out: Any) -> int:
    code = ExchangeArray.to_object(tensor, out)
    as_object(out[0]).array[...] = 0
    return code


@check(
    "to-object-released",
    "the tensor's deleter is called once, when the imported array has gone",
    say.EX_STOLEN,
    after=("to-object",),
    mutant=overriding(to_object=staticmethod(lambda tensor, out: _leaked(tensor, out))),
    shows=GIVEN + "del made\ngc.collect()\nprint(offer.deleted + len(TWICE))  # calls of the deleter",
)
def _(t: Exchanged) -> None:
    offers.TWICE.clear()
    offer = offers.tensor(np.arange(6, dtype=np.float32))
    made = given(t, offer)
    gc.collect()
    during = offer.deleted
    del made
    gc.collect()
    after = offer.deleted + len(offers.TWICE)
    if during:
        raise NotRun("the array is a copy, and the tensor ended at once")
    demand(after == 1, f"the deleter ran {after} times")


def _leaked(tensor: int, out: Any) -> int:
    code = ExchangeArray.to_object(tensor, out)
    kept(as_object(out[0]))
    return code


@check(
    "work-stream",
    "`current_work_stream` of a CPU is NULL",
    say.EX_STREAM_CPU,
    after=("exchange-work-stream",),
    severity=DEVIATION,
    mutant=overriding(work_stream=staticmethod(lambda kind, number, out: out.__setitem__(0, 1) or 0)),
    shows=TABLE
    + "out = ctypes.c_void_p()\nprint(exchange.WorkStream(table.work_stream)(1, 0, ctypes.byref(out)), out)",
)
def _(t: Exchanged) -> None:
    out = ctypes.c_void_p(99)
    code = t.call("work_stream", exchange.WorkStream, abi.CPU, 0, ctypes.byref(out))
    demand(code == 0 and not out.value, f"it returned {code}, stream {out.value}")


def allocated(t: Exchanged, device: tuple[int, int]) -> tuple[int, int, list[tuple[bytes, bytes]]]:
    """Asks the table for a tensor of 2 x 3 float32: what it returned, the tensor's address, the errors that it set."""
    shape = (ctypes.c_int64 * 2)(2, 3)
    prototype = abi.DLTensor()
    prototype.device = abi.DLDevice(*device)
    prototype.ndim = 2
    prototype.dtype = abi.DLDataType(abi.FLOAT, 32, 1)
    prototype.shape = ctypes.addressof(shape)
    errors: list[tuple[bytes, bytes]] = []
    set_error = exchange.SetError(lambda context, kind, message: errors.append((kind, message)))
    out = ctypes.c_void_p()
    try:
        code = t.call("allocator", exchange.Allocator, ctypes.addressof(prototype), ctypes.byref(out), None, set_error)
    except NotRun:
        raise
    except Exception:  # what SetError would set, too
        code = -1
    return code, out.value or 0, errors


@check(
    "allocate",
    "the allocator makes a tensor as it is asked, or sets an error",
    say.EX_ALLOCATE,
    after=("exchange-allocator",),
    mutant=overriding(allocate=staticmethod(lambda *arguments: _small(*arguments))),
    shows=ALLOCATED.format("array.__dlpack_device__()"),
)
def _(t: Exchanged) -> None:
    code, address, errors = allocated(t, t.device_pair)
    if code != 0:
        demand(errors, f"it returned {code} and set no error")
        return
    found = Taken(address).read
    demand(
        found.shape == (2, 3) and found.dtype == (abi.FLOAT, 32, 1),
        f"shape={found.shape}, dtype={found.dtype}, asked for (2, 3) and (2, 32, 1)",
    )


def _small(prototype: int, out: Any, context: Any, set_error: Any) -> int:
    asked = abi.DLTensor.from_address(prototype)
    if asked.device.device_type != abi.CPU:
        return ExchangeArray.allocate(prototype, out, context, set_error)
    out[0] = ctypes.addressof(DlpackArray(np.zeros(2, np.float32)).managed(True))
    return 0


@check(
    "allocate-error",
    "the allocator sets an error exactly if it makes no tensor",
    say.EX_SET_ERROR,
    after=("allocate",),
    mutant=overriding(allocate=staticmethod(lambda *arguments: _silent(*arguments))),
    shows=ALLOCATED.format("(9, 0)"),
)
def _(t: Exchanged) -> None:
    code, address, errors = allocated(t, (9, 0))
    if code == 0:
        made = Taken(address)
        demand(not errors, f"it made a tensor and set {errors}")
        del made
        raise NotRun("it makes tensors of any device")
    if len(errors) != 1:
        broken(f"it returned {code}, and set an error {len(errors)} times")


def _silent(prototype: int, out: Any, context: Any, set_error: Any) -> int:
    if abi.DLTensor.from_address(prototype).device.device_type != abi.CPU:
        return -1
    return ExchangeArray.allocate(prototype, out, context, set_error)
