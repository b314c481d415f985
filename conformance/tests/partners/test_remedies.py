"""Looks for a remedy that an error offers and that fails: each is read from the text, and followed to the letter.

What is code in the advice of an error is a keyword of the call that failed, or an expression that makes another array
for it. Advice in other code than that fails the test, so that no remedy is left out.
"""

from __future__ import annotations

import copy
import ctypes
import pickle
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cai_dlpack as cd
import cai_example_peer as peer
import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from cai_conformance import abi

from conformance.tests.doubles.producers import Cai, interface
from conformance.tests.interpreter.process import ROOT
from conformance.tests.simulated.capture import GLOBAL, RELAXED, THREAD_LOCAL, Captures
from conformance.tests.simulated.machine import Machine
from conformance.tests.test_doors import borrowed, by_table

VULKAN, ROCM_HOST = 7, 11
#: The devices whose memory has streams.
STREAMED = (abi.CUDA, abi.CUDA_HOST, abi.CUDA_MANAGED, abi.ROCM, ROCM_HOST)
PAGE = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8").replace("`", "")
SENTENCES = {
    found["rule"]: " ".join(found["sentence"].split())
    for found in re.finditer(
        r"^### (?P<rule>\S+)\n\n\w+: (?P<sentence>.*?)\.\n\n\*Source\*", PAGE, re.MULTILINE | re.DOTALL
    )
}

#: A call with an array and keywords.
Call = Callable[..., object]


def of(function: Call, **given: Any) -> Call:
    return lambda array, **more: function(array, **{**given, **more})


def of_view(function: Call, **given: Any) -> Call:
    return lambda array, **more: function(cd.view(array), **{**given, **more})


def same(function: Callable[[Any], object]) -> Call:
    """Takes no keyword: what is offered as one fails."""
    return lambda array: function(cd.view(array))


class Told(BufferError):
    """What `explain` tells."""

    def __init__(self, refused: str) -> None:
        super().__init__(refused)
        self.rule = refused[refused.rindex("[") + 1 : -1] if refused.endswith("]") else None


def explained(array: Any, **given: Any) -> None:
    refused = cd.explain(array, **given).refused
    if refused is not None:
        raise Told(refused)


def to(array: Any, library: str, **given: Any) -> object:
    return cd.to(array, library, **given)


EXPORT = cd.CaiView.__dlpack__
HOST = {"dl_device": (1, 0)}
#: What can fail, by name.
DOORS: dict[str, Call] = {
    "view": cd.view,
    "view, strict": of(cd.view, strict=True),
    "view, writable": of(cd.view, read_only=False),
    "view, bounds": of(cd.view, check="bounds"),
    "from_cai": cd.from_cai,
    "split_masked": cd.split_masked,
    "from_dlpack": cd.from_dlpack,
    "from_dlpack to the CPU": of(cd.from_dlpack, device=(1, 0)),
    "from_dlpack to the GPU": of(cd.from_dlpack, device=(2, 0)),
    "from_dlpack, a copy": of(cd.from_dlpack, copy=True),
    "from_dlpack, a copy on the CPU": of(cd.from_dlpack, copy=True, device=(1, 0)),
    "from_dlpack, no copy": of(cd.from_dlpack, copy=False, device=(1, 0)),
    "to_dlpack": cd.to_dlpack,
    "to_dlpack of 1.0": of(cd.to_dlpack, max_version=(1, 0)),
    "to_dlpack to the CPU": of(cd.to_dlpack, **HOST),
    "to_dlpack, a copy": of(cd.to_dlpack, copy=True, max_version=(1, 1)),
    "__dlpack__": of_view(EXPORT),
    "__dlpack__ of 0.5": of_view(EXPORT, max_version=(0, 5)),
    "__dlpack__ of 1.0": of_view(EXPORT, max_version=(1, 0)),
    "__dlpack__ to the CPU": of_view(EXPORT, **HOST),
    "__dlpack__, a copy": of_view(EXPORT, copy=True, max_version=(1, 1)),
    "__dlpack__, no copy": of_view(EXPORT, copy=False, max_version=(1, 1), **HOST),
    "to_cai": same(cd.CaiView.to_cai),
    "__cuda_array_interface__": same(lambda view: view.__cuda_array_interface__),
    "__array_interface__": same(lambda view: view.__array_interface__),
    "a buffer": same(memoryview),
    "present_as host": same(lambda view: view.present_as("host")),
    "present_as cuda": same(lambda view: view.present_as("cuda")),
    "__array__": same(lambda view: view.__array__()),
    "synchronize": same(cd.CaiView.synchronize),
    "deepcopy": same(copy.deepcopy),
    "pickle": same(pickle.dumps),
    "a table": same(by_table),
    "a table, borrowed": same(borrowed),
    "a Rust function": peer.view_of,
    "In": peer.extract,
    "np.asarray": of_view(np.asarray),
    "np.from_dlpack": of_view(np.from_dlpack),
    "np.from_dlpack, a copy": of_view(np.from_dlpack, copy=True),
    "to numpy": of(to, library="numpy"),
    "to numpy, without order": of(to, library="numpy", stream=-1),
    "to tvm_ffi": of(to, library="tvm_ffi"),
    "to cuda.core": of(to, library="cuda.core"),
    "to numba": of(to, library="numba"),
    "to CaiView": lambda array, **given: cd.to(array, cd.CaiView, **given),
    "explain": explained,
    "explain to numpy": of(explained, to="numpy"),
}
EXPORTS: dict[str, Call] = {"__dlpack__": of_view(EXPORT), "to_dlpack": cd.to_dlpack}
#: Doors whose object is itself refused: the remedy is another call.
INSTEAD = {"deepcopy", "pickle"}

ERRORS = (TypeError, ValueError, BufferError, AttributeError)
BY_SIZE = "pass dtype= with its type, if that is a number of its size"
DTYPE = re.compile(r"\bdtype='(\w+)'")
KEYWORD = re.compile(r"\b(\w+)=(\(\d+, \d+\)|True|False)((?: of \w+(?: or \w+)*| on import)?)")
EXPRESSION = re.compile(r"\b(?:cai_dlpack|cd|numpy|np|view|v)(?:\.[\w.]+\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))+")


def advice(error: BaseException) -> str:
    rule: str = error.rule  # type: ignore[attr-defined]
    _, _, rest = str(error).replace("`", "").partition(SENTENCES[rule])
    assert rest.endswith(f"[{rule}]"), error
    return rest.removesuffix(f"[{rule}]").strip("; ")


def doors_of(name: str, keyword: str, place: str) -> Iterator[Call]:
    """The calls that a keyword is offered for: those that the text names, of which the one that has failed is one."""
    named = re.findall(r"\w+", place.removeprefix(" of ").replace(" or ", " "))
    if place == " on import":
        yield lambda array, **given: DOORS[name](cd.view(array, **given))
    elif not place:
        yield DOORS[name]
    elif name.split()[0].strip(",") in named:
        yield DOORS[name] if keyword != "writable" else cd.to_dlpack
    else:
        yield from (EXPORTS[door] for door in named)


def remedies(text: str, array: Any, name: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Takes the remedies out of an advice; what code is left is returned as one that fails."""
    names = {"cai_dlpack": cd, "cd": cd, "numpy": np, "np": np, "obj": array}

    def made_by(code: str) -> object:
        view: Any = cd.view(array)
        if view.fields:
            code = code.replace(".field('name')", f".field({view.fields[0]!r})")
        made = eval(code, {**names, "view": view, "v": view})
        return made if isinstance(made, np.ndarray) or name in INSTEAD else DOORS[name](made)

    if BY_SIZE in text:
        size = cd.view(array).itemsize
        if size in (1, 2, 4, 8):
            yield BY_SIZE, lambda: DOORS[name](cd.view(array, dtype=f"uint{8 * size}"))
        text = text.replace(BY_SIZE, "")
    for found in EXPRESSION.finditer(text):
        yield found[0], partial(made_by, found[0])
    text = EXPRESSION.sub("", text)
    for found in DTYPE.finditer(text):
        yield found[0], partial(lambda dtype: DOORS[name](cd.view(array, dtype=dtype)), found[1])
    text = DTYPE.sub("", text)
    for found in KEYWORD.finditer(text):
        for door in doors_of(name, found[1], found[3]):
            yield found[0], partial(door, array, **{found[1]: eval(found[2])})
    text = KEYWORD.sub("", text)
    if re.search(r"\w=|\w\(", text):
        yield text, partial(pytest.fail, f"not followed: {text}")


def is_another_fault(rule: str, remedy: str, text: str) -> bool:
    """Whether a rule refuses what no remedy is about: the copy that `copy=False` forbids, the one type that a function
    takes, a wait for ROCm that the call itself asks for."""
    if rule == "rocm-order":
        return "device=(1, 0)" not in remedy or "if nothing is pending" in text
    return rule in ("copy-needed", "view-dtype")


def failing(array: Any, name: str) -> tuple[str, list[str]]:
    """The rule of what a call raises, and the remedies of its advice; raises if one of them fails."""
    try:
        DOORS[name](array)
    except (*ERRORS, RuntimeError, pickle.PicklingError) as error:
        # Not the exception, whose traceback keeps the array.
        rule, refused = getattr(error, "rule", None), str(error)
        if rule is None:
            return "in the words of a library", []
        text = advice(error)
    else:
        return "taken", []
    followed = []
    for remedy, follow in remedies(text, array, name):
        try:
            follow()
        except (*ERRORS, RuntimeError) as error:
            # NumPy's own words, an error of another class from NumPy 2.5 on: it takes the elements, and not the device.
            is_numpys = not hasattr(error, "rule") and ("numpy" in name or "np." in name)
            if is_another_fault(str(getattr(error, "rule", None)), remedy, text):
                continue
            if not is_numpys:
                raise AssertionError(f"{name}: {refused}\n  {remedy} raises {error!r}") from None
        followed.append(remedy)
    return rule, followed


TYPES = [
    (abi.FLOAT, 32, 1),
    (abi.FLOAT, 32, 2),
    (abi.FLOAT, 32, 4),
    (abi.BFLOAT, 16, 1),
    (abi.COMPLEX, 32, 1),
    (abi.INT, 8, 3),
    (abi.INT, 4, 1),
    (abi.INT, 4, 2),
    (abi.INT, 4, 3),
    (abi.FLOAT4_E2M1FN, 4, 1),
    (abi.FLOAT4_E2M1FN, 4, 2),
    (abi.FLOAT6_E2M3FN, 6, 1),
    (abi.FLOAT8_E4M3FN, 8, 1),
]


#: Items that DLPack cannot describe.
ITEMS: list[dict[str, Any]] = [
    {"typestr": ">f4"},
    {"typestr": "|V4"},
    {"typestr": "|V3"},
    {"typestr": "|S5"},
    {"typestr": "<M8[ns]"},
    {"typestr": "<f16"},
    {"typestr": "|V8", "descr": [("x", "<f4"), ("y", ">i4")]},
    {"typestr": "<f4", "strides": (13, 5)},
]
#: A copy waits for the host, as the double's stream is none.
STREAMS = {abi.CUDA: 1, abi.CUDA_MANAGED: 1}


class Foreign:
    """Exports the tensor of a view, of which nothing else is known."""

    def __init__(self, view: cd.CaiView) -> None:
        self.view = view

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.view.__dlpack_device__()

    def __dlpack__(self, **given: Any) -> object:
        return self.view.__dlpack__(**{**given, "max_version": (1, 3)})


def drawn(chosen: random.Random, places: dict[int, int | None]) -> tuple[Any, abi.Made | None]:
    """An array, and the tensor that it is the last to hold."""
    device = chosen.choice(list(places))
    if chosen.random() < 0.15:
        pointer = places[chosen.choice([abi.CUDA, abi.CUDA_HOST, abi.CUDA_MANAGED])]
        said = {"data": (pointer, False), **chosen.choice(ITEMS)}
        array = Cai(interface(**said))
        return (array if chosen.random() < 0.5 else cd.view(array)), None
    shape = chosen.choice([(), (4,), (2, 8), (0, 3), (4, 1)])
    made = abi.make(
        shape,
        dtype=chosen.choice(TYPES),
        device=(device, 0),
        data=places[device],
        flags=chosen.choice([0, abi.READ_ONLY, abi.SUBBYTE_PADDED, abi.READ_ONLY | abi.SUBBYTE_PADDED]),
        strides=tuple(2 * 8**at for at, _ in enumerate(shape))[::-1] if chosen.random() < 0.3 else None,
    )
    view = cd.view(made.capsule(), producer_stream=STREAMS.get(device))
    return (Foreign(view) if chosen.random() < 0.15 else view), made


def places_of(machine: Machine) -> dict[int, int | None]:
    """By device type: an address, or None for memory of the test's own."""
    return {
        abi.CPU: None,
        abi.CUDA: machine.device_memory(4096),
        abi.CUDA_HOST: machine.pinned_memory(4096),
        abi.CUDA_MANAGED: machine.managed_memory(4096),
        abi.ROCM: 0x7F00_0000_1000,
        ROCM_HOST: None,
        VULKAN: 0x7F00_0000_1000,
    }


def test_no_remedy_fails(machine: Machine) -> None:
    chosen, outcomes, places = random.Random(1), Counter[tuple[str, str]](), places_of(machine)
    for _ in range(12_000):
        array, made = drawn(chosen, places)
        rule, followed = failing(array, chosen.choice(list(DOORS)))
        outcomes.update((rule, remedy) for remedy in followed or ["none"])
        del array
        # What a table has given out has no end here.
        if made is not None and made.released:
            abi.forget(made)
    for rule, remedy in [
        ("read-only-legacy", "max_version=(1, 0) of __dlpack__ or to_dlpack"),
        ("read-only-legacy", "max_version=(1, 1) of __dlpack__ or to_dlpack"),
        ("read-only-legacy", "writable=True of to_dlpack"),
        ("read-only-legacy", "read_only=False on import"),
        ("read-only-legacy", "copy=True of __dlpack__ or to_dlpack"),
        ("read-only-writer", "read_only=False on import"),
        ("padded-legacy", "max_version=(1, 1) of __dlpack__ or to_dlpack"),
        ("padded-legacy", "dtype='uint8'"),
        ("packed-legacy", "max_version=(1, 1) of __dlpack__ or to_dlpack"),
        ("copy-refused", "cai_dlpack.view(view, dtype='uint8', shape=(view.nbytes,))"),
        ("copy-refused", "cai_dlpack.view(view, dtype='uint8')"),
        ("copy-refused", "cai_dlpack.from_dlpack(view, device=(1, 0), copy=True)"),
        ("copy-refused", "none"),
        ("deep-copy", "cai_dlpack.from_dlpack(view, copy=True)"),
        ("descr-fields", "cd.view(obj).field('name')"),
        ("pickle", "numpy.asarray(cai_dlpack.from_dlpack(view, device=(1, 0)))"),
        ("present-as", "cai_dlpack.from_dlpack(view, device=(1, 0))"),
        ("present-as", "none"),
        ("array-unreadable", "cai_dlpack.view(view, dtype='uint8')"),
        ("array-unreadable", "cai_dlpack.from_dlpack(view, device=(1, 0))"),
        ("array-unreadable", "none"),
    ]:
        assert outcomes[rule, remedy] > 3, (rule, remedy, sorted(outcomes.items()))


# --- views that have ended --------------------------------------------------------------------------------------

#: Further doors, of a view alone, with arguments that are wrong too: of a view that has ended that comes first.
OF_A_VIEW: dict[str, Call] = {
    "on": lambda view: view.on(1),
    "on no stream": lambda view: view.on(None),
    "consume": lambda view: view.consume(1),
    "join": lambda view: cd.join([view], on=1),
    "wait": lambda view: view.wait().send(None),
    "present_as nothing": lambda view: view.present_as("nothing"),
    "field": lambda view: view.field("x"),
    "a writable buffer": lambda view: (ctypes.c_char * 1).from_buffer(view),
    "from_dlpack to nowhere": lambda view: cd.from_dlpack(view, device=(abi.CUDA, 7)),
    "strict": lambda view: cd.view(view, strict=True),
    "split_masked": cd.split_masked,
    "an owner": lambda view: cd.view(interface(data=(1 << 40, False)), owner=view, device_id=0),
    "explain to mpi4py": lambda view: explained(view, to="mpi4py"),
}


def left(view: cd.CaiView, library: list[Call]) -> cd.CaiView | None:
    """The view of a consume block that was left; None of memory that has no stream to consume it on."""
    try:
        with view.consume(1) as lent:
            pass
    except BufferError:
        return None
    return lent


def recalled(view: cd.CaiView, library: list[Call]) -> cd.CaiView | None:
    """The view of a capsule that a library was passed and has refused; None if there is no such capsule."""
    kept: list[cd.CaiView] = []

    def refuse(given: cd.CaiView) -> object:
        kept.append(given)
        raise LookupError

    library.append(refuse)
    named = view.device[0] in STREAMED
    try:
        capsule = view.__dlpack__(stream=-1 if named else None, max_version=(1, 3))
    except BufferError:
        return None
    with pytest.raises(LookupError):
        cd.to(capsule, "pylibraft")
    return kept.pop()


@pytest.mark.parametrize("end", [left, recalled])
def test_a_view_that_has_ended_says_so_at_every_door(end: Any, machine: Machine, library: list[Call]) -> None:
    chosen, outcomes, places = random.Random(1), Counter[str](), places_of(machine)
    doors = {**DOORS, **OF_A_VIEW}
    for _ in range(6000):
        array, made = drawn(chosen, places)
        view = end(array, library) if isinstance(array, cd.CaiView) else None
        if view is not None:
            name = chosen.choice(list(doors))
            with pytest.raises(BufferError) as found:
                doors[name](view)
            assert getattr(found.value, "rule", None) == "scope-ended", (name, view, found.value)
            assert copy.copy(view) is view and view.shape == array.shape and repr(view)
            outcomes[name] += 1
            del found
        del array, view
        if made is not None and made.released:
            abi.forget(made)
    assert set(outcomes) == set(doors), sorted(set(doors) - set(outcomes))


# --- beside a capture -------------------------------------------------------------------------------------------


def converted(view: cd.CaiView) -> object:
    return tvm_ffi.convert(lambda tensor: tensor.shape)(view)


def in_a_block(function: Call) -> Call:
    def call(array: Any, stream: int, **given: Any) -> object:
        with cd.use_stream(stream):
            return function(cd.view(array, **given))

    return call


#: Ways to tvm-ffi on a stream that the caller names. Refused by the exchange table, it asks again for a legacy tensor.
TO_A_STREAM: dict[str, Call] = {
    "to": lambda array, stream, **given: cd.to(array, "tvm_ffi", stream=stream, **given),
    "to, in a block": in_a_block(lambda view: cd.to(view, "tvm_ffi")),
    "from_dlpack, in a block": in_a_block(tvm_ffi.from_dlpack),
    "an argument, in a block": in_a_block(converted),
}


def refusing(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except BufferError as error:
        return error
    return None


def test_what_a_capture_forbids_is_refused_by_name_and_has_an_end(machine: Machine) -> None:
    """Whatever else of the array a library would refuse: remedies lead to the capture, whose end is the end of it."""
    chosen, seen = random.Random(1), Counter[tuple[str, object]]()
    blocking = ctypes.c_void_p()
    assert machine.driver.cuStreamCreate(ctypes.byref(blocking), 0) == 0
    streams = [1, blocking.value or 0, machine.stream(), machine.stream()]
    places = {"device": machine.device_memory(64), "pinned": machine.pinned_memory(64)}
    places["managed"] = machine.managed_memory(64)
    for _ in range(1500):
        said = {"data": (chosen.choice(list(places.values())), chosen.random() < 0.5), "stream": chosen.choice(streams)}
        view = cd.view(Cai(interface(**said)))
        name, stream, captures = chosen.choice(list(TO_A_STREAM)), chosen.choice(streams), Captures(machine)
        captures.begin(chosen.choice(streams[1:]), chosen.choice([GLOBAL, THREAD_LOCAL, RELAXED]))
        way = partial(TO_A_STREAM[name], stream=stream)
        try:
            by_name = refusing(lambda: view.__dlpack__(stream=stream, max_version=(1, 3)))  # noqa: B023
            rule = getattr(by_name, "rule", None)
            machine.clear()
            found = refusing(lambda: way(view))  # noqa: B023
            # Memory that the host reads may be asked for without a stream, for which the host waits.
            if by_name is None or machine.order() != [("cuStreamSynchronize", said["stream"])]:
                assert (found is None) == (by_name is None), (name, said, by_name)
            assert found is None or found.rule.startswith("capture-"), found  # type: ignore[attr-defined]
            bare: Any = refusing(view.__dlpack__)
            is_other = bare is not None and not bare.rule.startswith("capture-")
            for remedy, follow in remedies(advice(bare), view, "__dlpack__") if is_other else ():
                end: Any = refusing(follow)
                # A copy needs memory, which the capture may forbid to allocate.
                assert end is None or ("copy" in remedy and end.rule.startswith("capture-")), (remedy, end)
                seen["followed", remedy] += 1
        finally:
            captures.close()
        assert refusing(lambda: way(view)) is None  # noqa: B023
        seen[name, rule] += 1
    for name in TO_A_STREAM:
        assert min(seen[name, None], seen[name, "capture-legacy"]) > 10, seen
    assert seen["followed", "read_only=False on import"] > 10, seen


# --- arrays of NumPy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["to_dlpack", "np.asarray"])
def test_no_remedy_of_an_array_of_numpy_fails(call: str) -> None:
    for dtype in (ml_dtypes.int4, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, np.float32):
        array = np.ones((2, 3), dtype)
        array.flags.writeable = False
        failing(array, call)


def follow_all(text: str, array: object) -> None:
    for _, follow in remedies(text, array, "to numpy"):
        follow()


@pytest.mark.parametrize(
    "text",
    [
        "pass stream='1'",
        "view.nothing()",
        "cd.view(v, dtype='int4') presents it",
        "ask for dtype=",
        "max_version=(1, 0) exports it",
        "copy=True of from_numpy",
    ],
)
def test_what_is_no_remedy_is_noticed(text: str) -> None:
    with pytest.raises((AttributeError, BufferError, KeyError, TypeError, pytest.fail.Exception)):
        follow_all(text, cd.view(np.zeros(3)))


# --- the records of a producer ----------------------------------------------------------------------------------

OVERLAPPING = np.dtype({"names": ["a", "b"], "formats": ["u4", "u2"], "offsets": [0, 0]})
OBJECTS = np.dtype([("x", "O"), ("y", "f4"), ("z", [("o", "O")])])
ONLY_OBJECTS = np.dtype([("x", "O"), ("z", [("o", "O")])])


class Fields:
    """A device array of records: as Numba's, whose items have no name, or as CuPy's."""

    def __init__(self, dtype: np.dtype[Any], *, by_name: bool) -> None:
        self.dtype = dtype
        self.by_name = by_name
        self.__cuda_array_interface__ = {
            "shape": (3,),
            "typestr": f"|V{dtype.itemsize}",
            "data": (0x7F00_0000_1000, False),
            "version": 3,
            "stream": None,
        }

    def __getitem__(self, name: str) -> object:
        if not self.by_name:
            raise TypeError("an index is an int")
        kind = self.dtype[name]
        made = Fields(kind, by_name=True)
        made.__cuda_array_interface__["typestr"] = kind.str
        made.__cuda_array_interface__["strides"] = (self.dtype.itemsize,)
        return made


@pytest.mark.parametrize(
    ("obj", "rule", "field"),
    [
        (np.zeros(2, OBJECTS), "typestr-object", "obj['y']"),
        (np.zeros(2, ONLY_OBJECTS), "typestr-object", None),
        (np.zeros(2, OVERLAPPING), "descr-unsaid", "obj['a']"),
        (Fields(OVERLAPPING, by_name=True), "descr-unsaid", "obj['a']"),
        (Fields(OVERLAPPING, by_name=False), "descr-unsaid", None),
    ],
)
def test_the_field_that_is_offered_is_viewed(obj: Any, rule: str, field: str | None) -> None:
    device: Any = {} if isinstance(obj, np.ndarray) else {"device_id": 0}
    with pytest.raises(BufferError) as found:
        cd.view(obj, **device)
    assert found.value.rule == rule  # type: ignore[attr-defined]
    assert advice(found.value) == ("" if field is None else f"view one field: cd.view({field})")
    if field is not None:
        assert cd.view(eval(field, {"obj": obj}), **device).shape == getattr(obj, "shape", (3,))


def test_a_field_of_a_record_of_numpy_names_its_interface() -> None:
    records = np.zeros(2, [("a", "u1"), ("p", "f4", (2, 3))])
    with pytest.raises(BufferError) as found:
        cd.to_dlpack(cd.view(records).field("p"))
    assert found.value.rule == "field-stride"  # type: ignore[attr-defined]
    assert str(found.value).startswith("__array_interface__['descr'] = ")


def test_a_packed_array_is_refused_by_the_version_that_was_passed() -> None:
    view = cd.view(abi.make((8,), dtype=(abi.INT, 4, 1)).capsule())
    with pytest.raises(BufferError, match=r"^argument 'max_version' = \(1, 0\), with packed int4 elements: "):
        view.__dlpack__(max_version=(1, 0))
