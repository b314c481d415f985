"""The capsule and the deleter: what lives how long."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from cai_conformance import abi
from cai_conformance.checks.dlpack_producer.base import DEVIATION, RECOMMENDATION, Tensors, check, overriding
from cai_conformance.judge import sources as say
from cai_conformance.judge.check import NotRun, demand
from cai_conformance.judge.exported import Export
from cai_conformance.judge.memory import Array, same
from cai_conformance.judge.produced import Produced
from cai_conformance.judge.samples import SHAPES, Sample
from cai_conformance.reference.producers import DELETER, DlpackArray, Exported, delete, kept


@check(
    "deleter",
    "the tensor has a deleter",
    say.DL_DELETER,
    after=("capsule-name-known",),
    severity=RECOMMENDATION,
    mutant=overriding(deleter=lambda self: None),
)
def _(t: Tensors) -> None:
    demand(t.any().read.deleter, "deleter=NULL: the memory is never given back")


#: Ends of programs that show who lives.
GOES = "watch = weakref.ref(array)\n{}\ndel array\ngc.collect()\nprint(watch())  # not None: something keeps it"
GOES_LATER = "import time\n" + GOES.replace("print", "time.sleep(1)  # a library may let go on another thread\nprint")
#: Seconds that an array may need to go if it cannot at once.
LATER = 5.0
KEEPS = """from cai_conformance.judge.exported import Export
tensor = Export(array.__dlpack__())
del array
gc.collect()
print(tensor.values())"""


def released(t: Tensors, end: Callable[[Tensors], None], within: float = 0.0) -> None:
    """Demands that the array goes once the function has ended its tensors and nothing else refers to it.

    It has that many seconds, in which this thread lets go of the GIL.
    """
    fresh = t.again()
    array = fresh.produced.given
    try:
        watch: Any = weakref.ref(fresh.object)
    except TypeError:
        watch = weakref.ref(array)
        if fresh.any().address != array.ctypes.data:
            raise NotRun("neither the producer's arrays nor their memory can be watched") from None
    end(fresh)
    del fresh, array
    gc.collect()
    deadline = time.monotonic() + within
    while watch() is not None and time.monotonic() < deadline:
        time.sleep(0.001)
    demand(watch() is None, "the array is still there: something keeps it")


class Marked(DlpackArray):
    """Overwrites its memory at its end, as an allocator does that gives it out again. Its tensors keep it."""

    def __init__(self, array: Array) -> None:
        memory = ctypes.create_string_buffer(array.tobytes(), max(array.nbytes, 1))
        kept(memory)
        self.memory = memory
        super().__init__(np.ndarray(array.shape, array.dtype, buffer=memoryview(memory).cast("B")))
        self.array.flags.writeable = array.flags.writeable

    def keep(self, array: Array) -> Any:
        return self, array

    def __del__(self) -> None:
        ctypes.memset(self.memory, 0xEE, len(self.memory))


def marked(**members: Any) -> Any:
    return type("Mutant", (Marked,), members)


@check(
    "owner-kept",
    "a tensor keeps the elements after the array has gone",
    say.PY_DELETER,
    after=("values", "deleter"),
    samples=SHAPES,
    mutant=marked(keep=lambda self, array: array),
    shows=KEEPS,
)
def _(t: Tensors) -> None:
    fresh = t.again()
    found = fresh.any()
    del fresh
    demand_kept(t, found)


def demand_kept(t: Tensors, found: Export) -> None:
    """Demands that a tensor has its elements, after others were given the memory of what has ended."""
    gc.collect()
    sizes = [t.expected.nbytes + more for more in (0, 16, 64) for _ in range(32)]
    others: list[Any] = [np.full(size, 0xEE, np.uint8) for size in sizes]
    others += [ctypes.create_string_buffer(b"\xee" * size, size) for size in sizes if size]
    got = found.values()
    del others
    demand(same(got, t.expected), f"{got.tolist()} instead of {t.expected.tolist()}")


@check(
    "deleter-releases",
    "the deleter of a consumed tensor lets the array go",
    say.DL_DELETER,
    after=("deleter",),
    mutant=overriding(keep=lambda self, array: kept(self)),
    shows=GOES.format("abi.release(abi.consume(array.__dlpack__()))  # calls the deleter"),
)
def _(t: Tensors) -> None:
    released(t, lambda fresh: fresh.any().end())


@check(
    "capsule-destructor",
    "the end of a capsule that was not consumed calls the deleter",
    say.PY_DESTRUCTOR,
    after=("deleter-releases",),
    mutant=overriding(
        keep=lambda self, array: (self, array),
        capsule=lambda self, tensor, versioned: abi.new_capsule(
            ctypes.addressof(tensor), abi.VERSIONED if versioned else abi.LEGACY, destructor=False
        ),
    ),
    shows=GOES.format("array.__dlpack__()  # a capsule that ends at once"),
)
def _(t: Tensors) -> None:
    def end(fresh: Tensors) -> None:
        capsule = fresh.ask(**fresh.usual)
        del capsule

    released(t, end)


def eager(address: int) -> None:
    """A destructor that does not look at the capsule's name."""
    name = abi.name_at(address)
    abi.call_deleter(abi.pointer_at(address), versioned=name in (abi.VERSIONED, abi.USED_VERSIONED))


EAGER = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(eager)


@check(
    "capsule-used",
    "the end of a capsule that was consumed does not call the deleter",
    say.PY_RENAME,
    after=("deleter-releases", "owner-kept"),
    mutant=marked(
        capsule=lambda self, tensor, versioned: abi.new_capsule(
            ctypes.addressof(tensor), abi.VERSIONED if versioned else abi.LEGACY, destructor=EAGER
        ),
    ),
    shows=KEEPS.replace("del array", "tensor.capsule = None\ndel array"),
)
def _(t: Tensors) -> None:
    found = t.again().any()
    found.capsule = None
    demand_kept(t, found)


@check(
    "deleter-thread",
    "the deleter may be called on a thread that does not hold the GIL",
    say.PY_GIL,
    after=("deleter-releases",),
    mutant=overriding(keep=lambda self, array: (self, array), deleter=lambda self: here_only()),
    shows=GOES_LATER.format("abi.release_on_foreign_thread(abi.consume(array.__dlpack__()))"),
)
def _(t: Tensors) -> None:
    def elsewhere(fresh: Tensors) -> None:
        found = fresh.any()
        found.ended = True
        abi.release_on_foreign_thread(found.read)

    # A deleter that must not wait for the GIL lets go on another thread, later.
    released(t, elsewhere, within=LATER)


def _only_here(address: int) -> None:
    if threading.current_thread() is threading.main_thread():
        delete(address)


HERE = type(DELETER)(_only_here)


def here_only() -> Any:
    return HERE


class Shared(DlpackArray):
    """Gives out one struct for all its tensors."""

    def managed(self, versioned: bool, *, copied: bool = False) -> Any:
        structs: dict[Any, Any] = self.__dict__.setdefault("structs", {})
        if (versioned, copied) not in structs:
            tensor = super().managed(versioned, copied=copied)
            structs[versioned, copied] = tensor, Exported.alive[ctypes.addressof(tensor)]
        return structs[versioned, copied][0]

    def keep(self, array: Array) -> Any:
        return array


@check(
    "tensors-independent",
    "two tensors of one array are two structs",
    say.DL_DELETER_SELF,
    after=("values", "deleter"),
    severity=DEVIATION,
    mutant=Shared,
    shows="for tensor in array.__dlpack__(), array.__dlpack__():\n    print(abi.pointer(tensor))",
)
def _(t: Tensors) -> None:
    first, second = t.any(), t.any()
    same_struct = first.read.address == second.read.address
    second.ended = same_struct
    demand(not same_struct, "both are one struct, of which each deleter must be counted")


@check(
    "extents-kept",
    "shape and strides live as long as the tensor",
    say.DL_SHAPE,
    after=("values", "deleter"),
    samples=("cube", "fortran", "every-second"),
    mutant=overriding(extents=lambda self, array: overwritten(self, array)),
    shows="""tensor = abi.consume(array.__dlpack__())
others = [abi.consume(other.__dlpack__()) for other in [{call}(np.zeros((3, 4, 5))) for _ in range(32)]]
print(tensor.shape, abi.read_at(tensor.address, versioned=tensor.versioned).shape)""",
)
def _(t: Tensors) -> None:
    found = t.again().any()
    before = (found.read.shape, found.read.strides)
    gc.collect()
    others = [larger(t).any() for _ in range(32)]
    after = abi.read_at(found.read.address, versioned=found.versioned)
    del others
    demand(
        before == (after.shape, after.strides),
        f"shape and strides were {before} and are {(after.shape, after.strides)}",
    )


def larger(t: Tensors) -> Tensors:
    """Another array with as many axes, of other extents."""
    shape = tuple(extent + 1 for extent in t.expected.shape)
    return Tensors(Produced(t.produced.make, Sample("larger", f"np.zeros({shape}, dtype=np.{t.expected.dtype.name})")))


def overwritten(self: Any, array: Array) -> tuple[Any, Any]:
    """Extents whose first one is changed by the next tensor of another array that has three axes."""
    fresh = DlpackArray.extents(self, array)
    if array.ndim == 3:
        if LAST and LAST[0] is not self:
            LAST[1][0] = 1
        LAST[:] = [self, fresh[0]]
    return fresh


LAST: list[Any] = []
