"""DLPack 1.3 as the header lays it out, built and read with ctypes and nothing of this project.

A test makes a tensor with `make`, hands its capsule to the code under test, and then asks the same
object how often its deleter ran. `read` walks the other way: capsule in, plain values out.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: Whether this process runs the program of a check alone (`judge.elsewhere`). There deleters do nothing: a function of
#: Python's cannot be called after the interpreter has ended.
ALONE = "CAI_CONFORMANCE_ALONE" in os.environ

LEGACY = b"dltensor"
VERSIONED = b"dltensor_versioned"
USED_LEGACY = b"used_dltensor"
USED_VERSIONED = b"used_dltensor_versioned"

CPU, CUDA, CUDA_HOST, ROCM, CUDA_MANAGED = 1, 2, 3, 10, 13

#: The newest version that is known, and the numbers that it and what was merged since have.
NEWEST = (1, 3)
LARGEST_DEVICE_TYPE, LARGEST_CODE = 21, 18

READ_ONLY, IS_COPIED, SUBBYTE_PADDED = 1, 2, 4

# DLDataTypeCode
INT, UINT, FLOAT, OPAQUE, BFLOAT, COMPLEX, BOOL = range(7)
FLOAT8_E3M4, FLOAT8_E4M3, FLOAT8_E4M3B11FNUZ, FLOAT8_E4M3FN = 7, 8, 9, 10
FLOAT8_E4M3FNUZ, FLOAT8_E5M2, FLOAT8_E5M2FNUZ, FLOAT8_E8M0FNU = 11, 12, 13, 14
FLOAT6_E2M3FN, FLOAT6_E3M2FN, FLOAT4_E2M1FN = 15, 16, 17


class DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLPackVersion(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)]


class DLManagedTensor(ctypes.Structure):
    _fields_ = [
        ("dl_tensor", DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("version", DLPackVersion),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", DLTensor),
    ]


assert ctypes.sizeof(DLTensor) == 48
assert ctypes.sizeof(DLManagedTensor) == 64
assert ctypes.sizeof(DLManagedTensorVersioned) == 80

# Every argument is a plain address, so that a destructor may look at an object of refcount 0. The functions are of this
# module alone: those of `ctypes.pythonapi` are everybody's, and Numba gives some of them argument types of its own.
_api = ctypes.PyDLL(None)
_api.Py_IncRef.restype = _api.Py_DecRef.restype = None
_api.Py_IncRef.argtypes = _api.Py_DecRef.argtypes = [ctypes.c_void_p]
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.c_void_p]
_api.PyCapsule_GetDestructor.restype = ctypes.c_void_p
_api.PyCapsule_GetDestructor.argtypes = [ctypes.c_void_p]
_api.PyCapsule_SetName.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]


def incref(obj: object) -> None:
    """Adds a reference to an object, which the collector of cycles cannot see."""
    _api.Py_IncRef(id(obj))


def decref(address: int) -> None:
    """Takes a reference away from the object at an address."""
    _api.Py_DecRef(address)


#: Takes a pointer, and does nothing: a function of C.
NOTHING = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value or 0

# Names handed to PyCapsule_New are kept by address, so they must outlive every capsule.
_names: dict[bytes, Any] = {}
_alive: dict[int, Made] = {}


def name(capsule: object) -> bytes:
    """The capsule's name as it is now."""
    return name_at(id(capsule))


def name_at(capsule: int) -> bytes:
    """The name of a capsule by its address, in which it may have no references left."""
    found = _api.PyCapsule_GetName(capsule)
    assert found is not None
    return bytes(found)


def rename(capsule: object, to: bytes) -> None:
    """Gives the capsule another name, as a consumer does."""
    kept = _names.setdefault(to, ctypes.c_char_p(to))
    _api.PyCapsule_SetName(id(capsule), kept)


def pointer(capsule: object) -> int:
    """The address that the capsule holds, whatever its name."""
    return pointer_at(id(capsule))


def pointer_at(capsule: int) -> int:
    """The address that a capsule holds, by the capsule's address."""
    address = _api.PyCapsule_GetPointer(capsule, _api.PyCapsule_GetName(capsule))
    assert address
    return int(address)


def destroy(capsule: int) -> None:
    """Calls the deleter of a tensor that was not consumed."""
    found = _api.PyCapsule_GetName(capsule)
    if found in (LEGACY, VERSIONED):
        call_deleter(_api.PyCapsule_GetPointer(capsule, found), versioned=found == VERSIONED)


# Without the GIL two threads that add at once may count one. A pending call may come between, on this thread.
_counting = threading.RLock()


def _count(address: int) -> None:
    made = _alive[address]
    with _counting:
        made.released += 1
    if made.on_release is not None:
        made.on_release()


# Made once: each prototype is a class, which only the garbage collector ends.
_CALL_WITH_GIL = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_CALL_WITHOUT_GIL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_C_DESTROY = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(destroy)
_C_COUNT = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_count)

# Arrays of a test's own end at the end of the interpreter, which may have ended this module before.
for _function in (_C_DESTROY, _C_COUNT):
    incref(_function)


def new_capsule(address: int, as_name: bytes, *, destructor: Any = True) -> Any:
    """Makes a capsule around any address, with the destructor of the Python specification, another one, or none."""
    kept = _names.setdefault(as_name, ctypes.c_char_p(as_name))
    chosen = _C_DESTROY if destructor is True else destructor
    end = ctypes.cast(chosen, ctypes.c_void_p) if chosen else None
    return _api.PyCapsule_New(address, kept, end)


def is_ours(capsule: object) -> bool:
    """Whether a capsule has the destructor of this module."""
    found = _api.PyCapsule_GetDestructor(id(capsule))
    return bool(found == ctypes.cast(_C_DESTROY, ctypes.c_void_p).value)


def new_nameless_capsule(address: int) -> Any:
    """A capsule whose name is NULL."""
    return _api.PyCapsule_New(address, None, None)


@dataclass
class Made:
    """A managed tensor that we produced, and what became of it."""

    managed: Any
    versioned: bool
    keep: tuple[Any, ...]
    released: int = 0
    on_release: Callable[[], None] | None = None

    @property
    def address(self) -> int:
        return ctypes.addressof(self.managed)

    @property
    def tensor(self) -> DLTensor:
        found: DLTensor = self.managed.dl_tensor
        return found

    def capsule(self, as_name: bytes | None = None) -> Any:
        fallback = VERSIONED if self.versioned else LEGACY
        return new_capsule(self.address, fallback if as_name is None else as_name)


def make(
    shape: Sequence[int] | None = (2, 3),
    *,
    strides: Sequence[int] | None = None,
    null_strides: bool = False,
    dtype: tuple[int, int, int] = (FLOAT, 32, 1),
    device: tuple[int, int] = (CPU, 0),
    data: int | None = None,
    byte_offset: int = 0,
    ndim: int | None = None,
    versioned: bool = True,
    version: tuple[int, int] = (1, 3),
    flags: int = 0,
    deleter: bool = True,
    shape_off: int = 0,
    strides_off: int = 0,
) -> Made:
    """Makes a tensor: by default a valid one of 2 x 3 float32 on the host.

    `strides` are in elements and default to compact row-major; `shape=None` leaves the pointer NULL;
    `data=None` points at 4096 fresh bytes, `data=0` leaves the pointer NULL. `shape_off` and `strides_off` are
    the bytes by which the integers lie after an aligned address.
    """
    extents = tuple(shape) if shape is not None else ()
    if strides is None:
        strides = compact(extents)
    c_shape, shape_at = integers(extents, shape_off)
    c_strides, strides_at = integers(strides, strides_off)
    memory = ctypes.create_string_buffer(4096 + 256) if data is None else None
    if memory is not None:
        data = (ctypes.addressof(memory) + 255) & ~255
    managed: Any = (DLManagedTensorVersioned if versioned else DLManagedTensor)()
    tensor = managed.dl_tensor
    tensor.data = data
    tensor.device = DLDevice(*device)
    tensor.ndim = len(extents) if ndim is None else ndim
    tensor.dtype = DLDataType(*dtype)
    tensor.shape = None if shape is None else shape_at
    tensor.strides = None if null_strides else strides_at
    tensor.byte_offset = byte_offset
    managed.deleter = ctypes.cast(_C_COUNT, ctypes.c_void_p) if deleter else None
    if versioned:
        managed.version = DLPackVersion(*version)
        managed.flags = flags
    made = Made(managed, versioned, (c_shape, c_strides, memory))
    # Kept for the whole run: a second call of the deleter must be counted, not crash.
    _alive[made.address] = made
    return made


def forget(made: Made) -> None:
    """Ends a tensor that has been released, for tests that make thousands: each costs every collection of garbage."""
    assert made.released == 1
    del _alive[made.address]


def moved(made: Made, off: int) -> int:
    """Copies a tensor to `off` bytes after an aligned address; returns where the copy lies, as long as the first."""
    memory = ctypes.create_string_buffer(ctypes.sizeof(made.managed) + 16)
    at = ((ctypes.addressof(memory) + 7) & ~7) + off
    ctypes.memmove(at, made.address, ctypes.sizeof(made.managed))
    made.keep += (memory,)
    _alive[at] = made
    return at


def integers(values: Sequence[int], off: int) -> tuple[Any, int]:
    """Memory with these int64, and the address of the first, `off` bytes after an aligned one."""
    memory = (ctypes.c_int64 * (len(values) + 1))()
    at = ctypes.addressof(memory) + off
    ctypes.memmove(at, (ctypes.c_int64 * len(values))(*values), 8 * len(values))
    return memory, at


def compact(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
        step = min(step, 2**62)
    return tuple(reversed(strides))


@dataclass(frozen=True)
class Read:
    """Holds a capsule's fields as plain values; `shape` and `strides` are None if the pointer is NULL."""

    versioned: bool
    version: tuple[int, int] | None
    flags: int | None
    data: int
    device: tuple[int, int]
    ndim: int
    dtype: tuple[int, int, int]
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    byte_offset: int
    deleter: int
    address: int
    context: int = 0


def read(capsule: object) -> Read:
    """The struct behind a capsule of either kind, used or not; nothing is consumed."""
    return peek(pointer(capsule), versioned=name(capsule) in (VERSIONED, USED_VERSIONED))


def read_at(address: int, *, versioned: bool) -> Read:
    """The struct at an address."""
    managed: Any
    if versioned:
        managed = DLManagedTensorVersioned.from_address(address)
        version, flags = (managed.version.major, managed.version.minor), managed.flags
    else:
        managed, version, flags = DLManagedTensor.from_address(address), None, None
    tensor = managed.dl_tensor
    return Read(
        versioned=versioned,
        version=version,
        flags=flags,
        data=tensor.data or 0,
        device=(tensor.device.device_type, tensor.device.device_id),
        ndim=tensor.ndim,
        dtype=(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes),
        shape=_integers(tensor.shape, tensor.ndim),
        strides=_integers(tensor.strides, tensor.ndim),
        byte_offset=tensor.byte_offset,
        deleter=managed.deleter or 0,
        address=address,
        context=managed.manager_ctx or 0,
    )


#: More than any library has: a struct that says more is not believed.
MOST_AXES = 1000


def peek(address: int, *, versioned: bool) -> Read:
    """The struct at an address, of which nothing is believed: extents are read only if there can be some."""
    managed: Any = (DLManagedTensorVersioned if versioned else DLManagedTensor).from_address(address)
    ndim = managed.dl_tensor.ndim
    if 0 <= ndim <= MOST_AXES:
        return read_at(address, versioned=versioned)
    kept = managed.dl_tensor.shape, managed.dl_tensor.strides
    managed.dl_tensor.shape = managed.dl_tensor.strides = None
    found = read_at(address, versioned=versioned)
    managed.dl_tensor.shape, managed.dl_tensor.strides = kept
    return found


def _integers(address: int | None, count: int) -> tuple[int, ...] | None:
    if not address:
        return None
    return tuple((ctypes.c_int64 * count).from_address(address))


def consume(capsule: object) -> Read:
    """Takes the tensor out of a capsule as a consumer does: read, rename, own. `release` ends it."""
    found = read(capsule)
    assert name(capsule) in (LEGACY, VERSIONED), "consumed twice by the test itself"
    rename(capsule, USED_VERSIONED if found.versioned else USED_LEGACY)
    return found


def release(tensor: Read, *, gil: bool = True) -> None:
    """Calls the deleter of a consumed tensor on this thread, with the GIL held or let go."""
    assert tensor.deleter
    (_CALL_WITH_GIL if gil else _CALL_WITHOUT_GIL)(tensor.deleter)(tensor.address)


def release_on_foreign_thread(tensor: Read, *, gil: bool = False) -> None:
    """Calls the deleter as the body of a new native thread that Python has never seen, and joins it.

    With `gil` this thread keeps the GIL while it joins.
    """
    assert tensor.deleter
    libc = ctypes.PyDLL(None) if gil else ctypes.CDLL(None)
    libc.pthread_create.argtypes = [ctypes.c_void_p] * 4
    libc.pthread_join.argtypes = [ctypes.c_ulong, ctypes.c_void_p]
    thread = ctypes.c_ulong()
    assert libc.pthread_create(ctypes.byref(thread), None, tensor.deleter, tensor.address) == 0
    assert libc.pthread_join(thread, None) == 0


def call_deleter(address: int, *, versioned: bool) -> None:
    """Calls the deleter of the struct at an address, where it has one."""
    kind: Any = DLManagedTensorVersioned if versioned else DLManagedTensor
    deleter = kind.from_address(address).deleter
    if deleter:
        _CALL_WITH_GIL(deleter)(address)
