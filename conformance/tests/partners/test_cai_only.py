"""Tests that what came by the CUDA Array Interface leaves by it, whatever DLPack can say of it.

`test_it_leaves_as_it_came` draws dicts of every kind: every typestr, fields within fields, any strides and address.
What a dict says must leave unchanged in meaning; DLPack's side exports the same array, or refuses it by the rule of an
oracle.
"""

from __future__ import annotations

import copy
import ctypes
import random
import re
import string
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import cai_dlpack as cd
import numba.cuda
import numpy as np
import pytest
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import FAKE_POINTER, Cai, interface
from conformance.tests.expectations import oracle
from conformance.tests.expectations.refusal import check_refusal, refuse
from conformance.tests.simulated.machine import Machine, one_event

Dict = dict[str, Any]
FOREIGN = ">" if oracle.NATIVE == "<" else "<"
UNITS = ["", "[ns]", "[25s]", "[D]", "[3D/2]", "[generic]"]

# The sizes of each kind, and the rule by which DLPack refuses those that are no row of docs/mapping.md.
KINDS: dict[str, tuple[tuple[int, ...], str]] = {
    "b": ((1,), ""),
    "i": ((1, 2, 4, 8), ""),
    "u": ((1, 2, 4, 8), ""),
    "f": ((2, 4, 8, 16), "typestr-long-double"),
    "c": ((8, 16, 32), "typestr-long-double"),
    "S": ((0, 1, 3, 20), "typestr-bytes"),
    "U": ((0, 1, 3, 20), "typestr-unicode"),
    "V": ((1, 2, 3, 16, 70_000), "typestr-void"),
    "M": ((8,), "typestr-datetime"),
    "m": ((8,), "typestr-datetime"),
    "t": ((1, 8, 12), "typestr-bit"),
}


def kind_and_size(typestr: str) -> tuple[str, int]:
    kind, size = re.fullmatch(r".(.)(\d+)(?:\[.*\])?", typestr, re.DOTALL).groups()  # type: ignore[union-attr]
    return kind, int(size)


def itemsize(typestr: str) -> int:
    kind, size = kind_and_size(typestr)
    return {"U": 4 * size, "t": -(-size // 8)}.get(kind, size)


def has_order(typestr: str) -> bool:
    kind, size = kind_and_size(typestr)
    return kind == "U" or (kind not in "bSVt" and size > 1)


def is_swapped(typestr: str) -> bool:
    """Raw bytes of the other order are of a type of ml_dtypes: NumPy writes none for its own."""
    is_raw = kind_and_size(typestr)[0] == "V" and itemsize(typestr) > 1
    return typestr[0] == FOREIGN and (has_order(typestr) or is_raw)


def meaning(said: Dict) -> Any:
    """What typestr and descr say, as NumPy reads them: bit fields, which it has not, by their text."""
    if kind_and_size(said["typestr"])[0] == "t":
        return said["typestr"][1:]
    return record_of(said["descr"]) if is_record(said) else np.dtype(said["typestr"])


def is_record(said: Dict) -> bool:
    """Whether there are fields: one without a name that repeats the typestr is none."""
    match said.get("descr"):
        case None:
            return False
        case [("", str() as kind)]:
            return bool(np.dtype(kind) != np.dtype(said["typestr"])) or is_swapped(kind) != is_swapped(said["typestr"])
        case _:
            return True


def record_of(descr: list[Any]) -> np.dtype[Any]:
    """NumPy's dtype of the fields, but for bytes without a name, which are padding (NumPy writes them so)."""
    # A copy: NumPy borrows what is in the list, and finalisers of `--collect-always` empty the other one meanwhile.
    numpys = np.dtype(copy.deepcopy(descr))
    fields: dict[str, tuple[Any, ...]] = {}
    for (said, kind, *shape), name in zip(descr, numpys.names or (), strict=True):
        is_padding = said == "" and isinstance(kind, str) and kind[1] == "V"
        if not is_padding:
            _, offset, *title = numpys.fields[name]  # type: ignore[index]
            inner = record_of(kind) if isinstance(kind, list) else np.dtype(kind)
            fields[name] = (np.dtype((inner, *shape)) if shape else inner, offset, *title)
    if not fields:
        return np.dtype((np.void, numpys.itemsize))
    columns = zip(*((kind, offset, (*title, None)[0]) for kind, offset, *title in fields.values()), strict=True)
    formats, offsets, titles = columns
    parts = {"names": list(fields), "formats": list(formats), "offsets": list(offsets), "itemsize": numpys.itemsize}
    whole: Any = {**parts, "titles": list(titles)} if any(titles) else parts
    made: np.dtype[Any] = np.dtype(whole)
    return made


def alignment(typestr: str) -> int:
    kind, size = kind_and_size(typestr)
    scalar = {"c": size // 2, "U": 4}.get(kind, size if kind in "iufmM" else 1)
    return scalar & -scalar


# --- draws ------------------------------------------------------------------------------------------------------


def a_typestr(draw: random.Random, kinds: str) -> str:
    kind = draw.choice(kinds)
    orders = "|" if kind in "bSt" else "<>=|"
    return f"{draw.choice(orders)}{kind}{draw.choice(KINDS[kind][0])}" + (draw.choice(UNITS) if kind in "Mm" else "")


def a_descr(draw: random.Random, depth: int = 0) -> list[Any]:
    """Fields: named, unnamed, titled, arrays, padding, and records again. `S0` and `U0` have no place in an item."""
    fields: list[Any] = []
    names = draw.sample([*string.ascii_letters, "über", "a name"], 6)
    for place in range(draw.randint(1, 4)):
        name: Any = draw.choice([names[place]] * 4 + [""])
        if depth < 3 and draw.random() < 0.2:
            kind: Any = a_descr(draw, depth + 1)
        else:
            kind = a_typestr(draw, "biufcSUVMm")
            if itemsize(kind) in (0, 70_000):
                kind = "|V2"
        if name and draw.random() < 0.1:
            name = (f"title of {name}", name)
        shape = draw.choice([(), (), (), (2,), (3, 1)])
        fields.append((name, kind, shape) if shape else (name, kind))
    return fields


def strides_of(draw: random.Random, shape: tuple[int, ...], size: int) -> tuple[int, ...] | None:
    compact = oracle.row_major(shape, size)
    steps: dict[str, Callable[[], tuple[int, ...] | None]] = {
        "absent": lambda: None,
        "C": lambda: compact,
        "Fortran": lambda: tuple(reversed(oracle.row_major(tuple(reversed(shape)), size))),
        "items": lambda: tuple(draw.randint(-3, 3) * size for _ in shape),
        "odd": lambda: tuple(draw.randint(-40, 40) for _ in shape),
        "gap": lambda: tuple(step + draw.choice([0, size, 1]) for step in compact),
    }
    return steps[draw.choice([*steps, "absent"])]()


def drawn(draw: random.Random) -> Dict:
    shape = tuple(draw.choice([0, 1, 2, 2, 3, 3, 5]) for _ in range(draw.randint(0, 5)))
    said: Dict = {"shape": shape}
    if draw.random() < 0.3:
        descr = a_descr(draw)
        said["typestr"] = f"|V{np.dtype(descr).itemsize}"
        said["descr"] = descr
    else:
        said["typestr"] = a_typestr(draw, "".join(KINDS))
        if draw.random() < 0.3 and "t" not in said["typestr"]:
            said["descr"] = draw.choice([None, [("", said["typestr"])]])
    address = FAKE_POINTER + draw.choice([0, 0, 256, 8, 4, 1, draw.randint(0, 99)])
    said["data"] = (address, draw.random() < 0.3)
    strides = strides_of(draw, shape, itemsize(said["typestr"]))
    if strides is not None or draw.random() < 0.5:
        said["strides"] = strides
    said["version"] = draw.choice([3, 3, 2])
    stream = draw.choice([None, 1, 2, 0x5EED])
    if stream is not None or said["version"] == 3:
        said["stream"] = stream
    else:
        said["stream"] = 1  # an older dict that names none leaves it open
    if draw.random() < 0.3:
        said["mask"] = None
    keys = draw.sample(list(said), len(said))
    return {key: said[key] for key in keys}


# --- the oracle -------------------------------------------------------------------------------------------------


def expected_layout(said: Dict) -> oracle.Expected:
    return oracle.expect(said["shape"], said.get("strides"), max(itemsize(said["typestr"]), 1))


def refusal_by_dlpack(said: Dict) -> str | None:
    """The rule by which DLPack's side refuses the array."""
    typestr = said["typestr"]
    kind, _ = kind_and_size(typestr)
    if is_record(said):
        return "descr-fields"
    if is_swapped(typestr):
        return "typestr-byte-order"
    if canonical(typestr) not in oracle.DTYPES:
        return KINDS[kind][1]
    want = expected_layout(said)
    if want.refused is not None:
        return want.refused
    return "data-alignment" if want.size and said["data"][0] % alignment(typestr) else None


def canonical(typestr: str) -> str:
    order = oracle.NATIVE if has_order(typestr) else "|"
    return order + typestr[1:]


# --- the property ------------------------------------------------------------------------------------------------

INS: dict[str, Callable[[Dict], cd.CaiView]] = {
    "view": lambda said: cd.view(Cai(said), device_id=0),
    "from_cai": lambda said: cd.from_cai(Cai(said), device_id=0),
    "a bare dict": lambda said: cd.view(said, owner=object(), device_id=0),
    "a mapping": lambda said: cd.view(Cai(MappingProxyType(said)), device_id=0),
    "a view of a view": lambda said: cd.view(cd.view(Cai(said), device_id=0)),
    "split_masked": lambda said: cd.split_masked(Cai(said), device_id=0)[0],
}
OUTS: dict[str, Callable[[cd.CaiView], Dict]] = {
    "the attribute": lambda view: view.__cuda_array_interface__,
    "to_cai": lambda view: view.to_cai(),
    "another view": lambda view: cd.view(Cai(view.to_cai()), device_id=0).to_cai(),
    "a view of the view": lambda view: cd.view(view).__cuda_array_interface__,
}


def difference(said: Dict, way_in: str, way_out: str) -> str | None:
    """The first thing that the dict says and does not say any more, or None."""
    view = INS[way_in](dict(said))
    left = OUTS[way_out](view)
    size, want = itemsize(said["typestr"]), expected_layout(said)
    address, read_only = said["data"]
    address = address if want.size else 0
    shape = said["shape"]

    def told(strides: Sequence[int]) -> tuple[int, ...]:
        return tuple(strides[axis] for axis in want.told) if size else ()

    out_strides = oracle.row_major(shape, size) if left["strides"] is None else left["strides"]
    pairs: list[tuple[str, Any, Any]] = [
        ("keys", set(left) - {"descr"}, {"shape", "typestr", "data", "strides", "stream", "version"}),
        ("shape", left["shape"], shape),
        ("data", left["data"], (address, read_only)),
        ("meaning", meaning(left), meaning(said)),
        ("itemsize", itemsize(left["typestr"]), size),
        ("strides", told(out_strides), told(want.byte_strides)),
        ("C order", left["strides"] is None or not want.size or not want.c_contiguous or not size, True),
        ("stream", left["stream"], said.get("stream")),
        ("version", left["version"], 3),
        ("descr", "descr" in left, is_record(said)),
        ("view.shape", view.shape, shape),
        ("view.ptr", view.ptr, address),
        ("view.itemsize", view.itemsize, size),
        ("view.read_only", view.read_only, read_only),
    ]
    if kind_and_size(said["typestr"])[0] != "t":
        pairs.append(("np.dtype(view.dtype)", np.dtype(view.dtype), meaning(said)))
        pairs.append(("nbytes", view.nbytes, want.size * size))
    for what, found, wanted in pairs:
        if found != wanted:
            return f"{what} is {found!r}, and was {wanted!r}"
    return fields_differ(said, view) or by_dlpack(said, view)


def fields_differ(said: Dict, view: cd.CaiView) -> str | None:
    if not is_record(said):
        return None if view.fields == () else f"fields {view.fields}"
    whole = record_of(said["descr"])
    if view.fields != (whole.names or ()):
        return f"fields {view.fields}"
    for name in view.fields:
        kind, offset = whole.fields[name][:2]  # type: ignore[index]
        part = view.field(name)
        left = part.to_cai()
        shape = (*view.shape, *kind.shape)
        ptr = view.ptr + offset if view.ptr and 0 not in shape else 0
        if (part.ptr, part.shape, meaning(left)) != (ptr, shape, kind.base):
            return f"field {name!r}: {left}"
        if ptr and left["strides"] is not None:
            told = [axis for axis, extent in enumerate(view.shape) if extent > 1]
            strides = view.byte_strides or ()
            if [left["strides"][axis] for axis in told] != [strides[axis] for axis in told]:
                return f"field {name!r}: strides {left['strides']}"
    return None


def owned(view: cd.CaiView) -> object:
    """What the table returns; a tensor that it makes leaks, for none is made here that is not refused."""
    return exchange.FromObject(exchange.table_of(cd.CaiView).from_object)(id(view), ctypes.byref(ctypes.c_void_p()))


def by_dlpack(said: Dict, view: cd.CaiView) -> str | None:
    """DLPack's doors, against the oracle."""
    wanted = refusal_by_dlpack(said)
    doors: dict[str, Callable[[], object]] = {
        "__dlpack__": lambda: view.__dlpack__(stream=-1, max_version=(1, 3)),
        "to_dlpack": lambda: cd.to_dlpack(Cai(dict(said)), device_id=0, stream=-1, max_version=(1, 3)),
        "to_dlpack of the view": lambda: cd.to_dlpack(view, stream=-1, max_version=(1, 3)),
    }
    if wanted is not None:
        doors["the table"] = lambda: owned(view)
        doors["a copy"] = lambda: view.__dlpack__(copy=True, max_version=(1, 3))
        doors["a legacy tensor"] = lambda: cd.to_dlpack(view, stream=-1, writable=True)
    for name, door in doors.items():
        try:
            capsule: Any = door()
        except BufferError as error:
            if error.rule != wanted:  # type: ignore[attr-defined]
                return f"{name} refuses by {error.rule}, not {wanted}: {error}"  # type: ignore[attr-defined]
            continue
        if wanted is not None:
            return f"{name} exports, not refused by {wanted}"
        tensor, want = abi.read(capsule), expected_layout(said)
        _, code, bits = oracle.DTYPES[canonical(said["typestr"])]
        found = (tensor.data, tensor.shape or (), tensor.dtype, tensor.flags)
        address, read_only = said["data"]
        flags = abi.READ_ONLY if read_only else 0
        if found != (address if want.size else 0, said["shape"], (code, bits, 1), flags):
            return f"{name}: {found}"
        if any((tensor.strides or ())[axis] != want.elem_strides[axis] for axis in want.told):
            return f"{name}: strides {tensor.strides}"
    return None


@pytest.mark.parametrize("way_out", OUTS)
@pytest.mark.parametrize("way_in", INS)
def test_it_leaves_as_it_came(way_in: str, way_out: str) -> None:
    draw = random.Random(f"{way_in} {way_out}")
    refused = set()
    for _ in range(600):
        said = drawn(draw)
        problem = difference(said, way_in, way_out)
        assert problem is None, f"{said}: {problem}"
        refused.add(refusal_by_dlpack(said))
    wanted = {rule for _, rule in KINDS.values() if rule} | {"descr-fields", "typestr-byte-order"}
    assert refused == wanted | {None, "strides-multiple", "data-alignment"}, "the draw has lost a kind"


@pytest.mark.parametrize(
    "lie",
    [
        {"typestr": ">f4"},
        {"typestr": "<f8"},
        {"data": (FAKE_POINTER + 1, False)},
        {"data": (FAKE_POINTER, True)},
        {"strides": (13, 4)},
        {"stream": 1},
        {"descr": [("x", "<f4")]},
    ],
    ids=str,
)
def test_the_comparison_can_fail(lie: Dict, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = interface()
    assert difference(honest, "view", "to_cai") is None
    monkeypatch.setitem(OUTS, "to_cai", lambda view: {**view.to_cai(), **lie})
    assert difference(honest, "view", "to_cai") is not None


# --- order, owner, libraries -----------------------------------------------------------------------------------


def test_order_and_owner_go_with_it(machine: Machine) -> None:
    made, asked = machine.stream(), machine.stream()
    source = Cai(interface(typestr="<U5", stream=made, data=(machine.device_memory(120), False)))
    view = cd.view(source)
    assert (view.stream, view.owner, view.to_cai()["stream"]) == (made, source, made)
    machine.clear()
    refuse(lambda: view.__dlpack__(stream=asked), BufferError)
    refuse(lambda: view.__dlpack__(dl_device=(1, 0)), BufferError)
    assert machine.order() == [], "refused, and so untouched"
    moved = view.on(asked)
    assert machine.order() == one_event(made, asked)
    assert moved.to_cai() == {**view.to_cai(), "stream": asked}
    assert moved.owner is source
    ready = view.synchronize()
    assert (ready.stream, ready.to_cai()["stream"]) == (None, None)


@pytest.mark.parametrize(
    "kind",
    [
        np.dtype([("x", "<f4"), ("id", "u1"), ("t", ">i8")]),
        np.dtype([("a", "u1"), ("b", [("c", ">i4"), ("d", "S3")], (2,))], align=True),
        np.dtype("V16"),
        np.dtype(">f8"),
        np.dtype("S5"),
        np.dtype("U3"),
        np.dtype("M8[us]"),
    ],
    ids=str,
)
def test_a_numba_array_returns_to_numba(kind: np.dtype[Any], machine: Machine) -> None:
    values = np.frombuffer(random.Random(str(kind)).randbytes(12 * kind.itemsize), kind).reshape(3, 4)
    array = numba.cuda.to_device(values)
    for part in (array, array[::2], array[:, 1:]):
        view = cd.view(part)
        assert np.dtype(view.dtype) == kind
        back = numba.cuda.as_cuda_array(view)
        assert back.device_ctypes_pointer.value == part.device_ctypes_pointer.value
        assert (back.shape, back.strides, back.dtype.itemsize) == (part.shape, part.strides, kind.itemsize)
        if kind.names is None:
            assert back.dtype == kind
    assert numba.cuda.as_cuda_array(cd.view(array)).copy_to_host().tobytes() == values.tobytes()
    # Numba reads the typestr alone, of its own arrays too; the interface says the fields.
    assert meaning(cd.view(array).to_cai()) == kind


def test_numpy_reads_what_the_host_reads(machine: Machine) -> None:
    """NumPy asks the array interface; managed memory has both."""
    draw = random.Random("managed")
    count = 0
    while count < 200:
        said = drawn(draw)
        want = expected_layout(said)
        size = itemsize(said["typestr"])
        if "t" in said["typestr"] or not 0 < size < 99 or not want.size or min(want.byte_strides, default=0) < 0:
            continue
        reach = sum((extent - 1) * step for extent, step in zip(said["shape"], want.byte_strides, strict=True))
        pointer = machine.managed_memory(max(reach, 0) + size + 128)
        said = {**said, "data": (pointer + said["data"][0] % 64, said["data"][1]), "stream": None, "version": 3}
        view = cd.view(Cai(said))
        array = np.asarray(view)
        assert array.dtype == meaning(said), said
        if canonical(said["typestr"]) not in oracle.DTYPES or is_record(said):
            assert view.__array__().dtype == meaning(said), said
        assert array.shape == said["shape"]
        assert array.flags.writeable is not said["data"][1]
        assert array.ctypes.data == said["data"][0], said
        assert all(array.strides[axis] == want.byte_strides[axis] for axis in want.told), said
        count += 1


def test_references_to_objects_are_no_data() -> None:
    found = refuse(lambda: cd.view(Cai(interface(typestr="|O8")), device_id=0), BufferError)
    check_refusal(found, "typestr-object", "typestr", value="|O8")
