"""Looks for what an installed `dlpack.h` has and this library does not know: a number, a flag, a field, another offset.

The headers are those that installed packages ship, as they are: when one of them moves on, a test here fails by the
name of what is new. Numbers, sizes and offsets are a C compiler's; any other word that is not known is new.
"""

from __future__ import annotations

import ctypes
import re
import site
import subprocess
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cai_dlpack as cd
import pytest
from cai_conformance import abi, exchange

from conformance.tests.doubles.producers import FAKE_POINTER
from conformance.tests.expectations.refusal import refuse
from conformance.tests.interpreter.process import ROOT

PACKAGES = [Path(folder) for folder in site.getsitepackages()]
#: DLPack's own text, under whatever name; other files of that name declare functions of a library.
HEADERS = sorted(
    header
    for folder in PACKAGES
    for header in folder.rglob("*dlpack*.h")
    if re.search(r"\bkDLCPU = 1\b", header.read_text(encoding="utf-8"))
)

#: The structs that the tests build and read by.
STRUCTS = [
    abi.DLPackVersion,
    abi.DLDevice,
    abi.DLDataType,
    abi.DLTensor,
    abi.DLManagedTensor,
    abi.DLManagedTensorVersioned,
]
#: The functions of the exchange table: the name in `exchange`, and the types of the parameters as they are called here.
FUNCTIONS = {
    "managed_tensor_allocator": (
        "allocator",
        "DLTensor *, DLManagedTensorVersioned **, void *, void (*)(void *, const char *, const char *)",
    ),
    "managed_tensor_from_py_object_no_sync": ("from_object", "void *, DLManagedTensorVersioned **"),
    "managed_tensor_to_py_object_no_sync": ("to_object", "DLManagedTensorVersioned *, void **"),
    "dltensor_from_py_object_no_sync": ("borrow", "void *, DLTensor *"),
    "current_work_stream": ("work_stream", "DLDeviceType, int32_t, void **"),
}
FLAGS = {
    "DLPACK_FLAG_BITMASK_READ_ONLY": abi.READ_ONLY,
    "DLPACK_FLAG_BITMASK_IS_COPIED": abi.IS_COPIED,
    "DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED": abi.SUBBYTE_PADDED,
}
VERSION = {"DLPACK_MAJOR_VERSION": 1, "DLPACK_MINOR_VERSION": 3}
#: What else a header is written with.
WORDS = """
DLDeviceType DLDataTypeCode DLPackExchangeAPI DLPackExchangeAPIHeader DLPackManagedTensorAllocator
DLPackManagedTensorFromPyObjectNoSync DLPackManagedTensorToPyObjectNoSync DLPackDLTensorFromPyObjectNoSync
DLPackCurrentWorkStream DLPACK_DLPACK_H_ DLPACK_EXTERN_C DLPACK_DLL DLPACK_EXPORTS _WIN32 __cplusplus __declspec
dllexport dllimport define defined if else endif extern ifdef ifndef include C stddef stdint h typedef enum struct
TORCH_STABLE_ONLY TORCH_TARGET_VERSION
void int int32_t int64_t uint8_t uint16_t uint32_t uint64_t U UL
"""


def code_of(header: str) -> str:
    """The header without its comments, and without the parameters of its functions."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*|#error[^\n]*", "", header, flags=re.DOTALL)
    return re.sub(r"(\(\*\w+\))\s*\([^;]*\);", r"\1;", code)


def words(header: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", code_of(header)))


def layout() -> Iterator[tuple[str, str, int]]:
    """Each struct's size, and each field's offset and size: struct, what is asked in C, and the answer."""
    for struct in STRUCTS:
        name = struct.__name__
        yield name, f"sizeof({name})", ctypes.sizeof(struct)
        for field, *_ in struct._fields_:
            yield from placed(name, field, getattr(struct, field))
    table = exchange.Table
    for field in ("version", "prev_api"):
        yield from placed("DLPackExchangeAPIHeader", field, getattr(table, field))
    for field, (ours, _) in FUNCTIONS.items():
        yield from placed("DLPackExchangeAPI", field, getattr(table, ours))
    yield "DLPackExchangeAPI", "offsetof(DLPackExchangeAPI, header)", 0
    yield "DLPackExchangeAPI", "sizeof(DLPackExchangeAPI)", ctypes.sizeof(table)


def placed(struct: str, name: str, field: Any) -> Iterator[tuple[str, str, int]]:
    yield struct, f"offsetof({struct}, {name})", field.offset
    yield struct, f"sizeof((({struct} *)0)->{name})", field.size


def compiled(header: str, asked: list[str], folder: Path) -> dict[str, int] | str:
    """The numbers of a header by a C compiler, which compares the functions too; or why it does not compile."""
    (folder / "dlpack.h").write_text(header, encoding="utf-8")
    lines = [f'printf("%lld\\n", (long long)({question}));' for question in asked]
    deleters = {"DLManagedTensor": "DLManagedTensor *", "DLManagedTensorVersioned": "DLManagedTensorVersioned *"}
    same = [("void", struct, "deleter", types) for struct, types in deleters.items()]
    same += [("int", "DLPackExchangeAPI", field, types) for field, (_, types) in FUNCTIONS.items()]
    same = [function for function in same if function[1] in words(header)]
    for number, (result, struct, field, types) in enumerate(same):
        lines.append(f"{result} (*f{number})({types}) = (({struct} *)here)->{field}; (void)f{number};")
    program = f"static char here[256];\nint main(void) {{ {' '.join(lines)} }}"
    includes = '#include <stddef.h>\n#include <stdio.h>\n#include "dlpack.h"\n'
    # Before 1.2 it has a tag, and the name of a type in C++ alone.
    includes += "typedef struct DLManagedTensorVersioned DLManagedTensorVersioned;\n"
    (folder / "asked.c").write_text(includes + program, encoding="utf-8")
    command = ["cc", "-Werror=incompatible-pointer-types", "-o", "asked", "asked.c"]
    made = subprocess.run(command, cwd=folder, timeout=60, capture_output=True, text=True)
    if made.returncode:
        return str(re.findall(r"error: (.*)", made.stderr)[0])
    told = subprocess.run([str(folder / "asked")], check=True, capture_output=True, text=True, timeout=60)
    return dict(zip(asked, map(int, told.stdout.split()), strict=True))


def taken(made: abi.Made) -> cd.CaiView:
    capsule = made.capsule()  # kept until the refusal has been raised: its destructor is written in Python
    return cd.view(capsule, producer_stream=None)


def device_name(number: int) -> str:
    """The library's name for a type of device."""
    of_cuda = {abi.CUDA: "cuda", abi.CUDA_HOST: "cuda_host", abi.CUDA_MANAGED: "cuda_managed"}
    if number in of_cuda:
        return of_cuda[number]
    view = taken(abi.make((3,), device=(number, 0), data=FAKE_POINTER))
    refused = refuse(lambda: view.__cuda_array_interface__, AttributeError)
    return str(re.findall(r"= (\w+):0", str(refused))[0])


def differs(name: str, number: int) -> str | None:
    """What the library takes an enumerator's number for, if not for what its name says."""
    wanted = name.removeprefix("kDL").lower()
    try:
        device = device_name(number)
    except cd.Refusal as refused:
        device = str(refused)
    if device.replace("_", "") == wanted:
        return None
    found = {device}
    for bits in (1, 4, 6, 8, 16, 32, 64):
        try:
            found.add(str(taken(abi.make((8,), dtype=(number, bits, 1))).dtype))
        except cd.Refusal as refused:
            found.add(refused.rule)
    named = any(re.fullmatch(re.escape(wanted) + r"\d*", each) for each in found)
    return None if named or (wanted, "dtype-opaque" in found) == ("opaquehandle", True) else f"{sorted(found)}"


def unknown(header: str, folder: Path) -> list[str]:
    """Lists what a header has and the library has not, in words."""
    named = words(header)
    known = [name for name in (*FLAGS, *VERSION) if name in named]
    enumerators = sorted(name for name in named if name.startswith("kDL"))
    facts = [fact for fact in layout() if fact[0] in named]
    found = compiled(header, [*known, *enumerators, *(question for _, question, _ in facts)], folder)
    fields = {field for struct in STRUCTS for field, *_ in struct._fields_} | {"header", "prev_api", *FUNCTIONS}
    structs = {struct.__name__ for struct in STRUCTS}
    lacks = sorted(named - set(WORDS.split()) - fields - structs - {*enumerators, *FLAGS, *VERSION})
    if isinstance(found, str):
        return [*lacks, found]
    lacks += [f"{name} = {found[name]}" for name, value in FLAGS.items() if name in named and found[name] != value]
    version = tuple(found[name] for name in VERSION)
    if version > tuple(VERSION.values()):
        lacks.append(f"version {version}")
    for name in enumerators:
        if other := differs(name, found[name]):
            lacks.append(f"{name} = {found[name]}: {other}")
    lacks += [
        f"{question} is {found[question]}, and not {size}" for _, question, size in facts if found[question] != size
    ]
    return lacks


def text(header: Path) -> str:
    return header.read_text(encoding="utf-8")


def test_headers_are_installed() -> None:
    assert any("tvm_ffi" in header.parts for header in HEADERS), HEADERS
    for name in ("torch", "tensorflow", "pyarrow"):
        if find_spec(name):
            assert any(name in header.parts for header in HEADERS), name


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: "-".join(header.parts[-5:-1]))
def test_nothing_in_an_installed_header_is_unknown(header: Path, tmp_path: Path) -> None:
    named = words(text(header))
    assert unknown(text(header), tmp_path) == []
    if version(text(header)) < tuple(VERSION.values()):
        return  # it has less
    assert {struct for struct, *_ in layout()} <= named
    assert len([name for name in named if name.startswith("kDL")]) >= 34 and len(named & set(FLAGS)) >= 2
    # Those that the page says no header has: from then on the page is stale, and the number is a header's.
    assert [name for name in newer() if name in named] == []


def newer() -> list[str]:
    """The enumerators on docs/mapping.md that are newer than any installed header."""
    page = (ROOT / "docs" / "mapping.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `(kDL\w+)` = \d+ \|", page, re.MULTILINE)


def test_the_page_names_what_no_header_has() -> None:
    """Each number of the page is the library's, and no header's of those that are installed."""
    page = (ROOT / "docs" / "mapping.md").read_text(encoding="utf-8")
    numbers = {name: int(number) for name, number in re.findall(r"^\| `(kDL\w+)` = (\d+) \|", page, re.MULTILINE)}
    assert {name: differs(name, number) for name, number in numbers.items()} == dict.fromkeys(numbers)
    assert numbers == {"kDLTPU": 19, "kDLTPUHost": 20, "kDLAscend": 21, "kDLBcomplex": 18}
    assert [name for name in numbers for header in HEADERS if name in words(text(header))] == []


def version(header: str) -> tuple[int, ...]:
    found = re.findall(r"#define DLPACK_(?:MAJOR|MINOR)_VERSION (\d+)", header)
    return tuple(map(int, found))


#: A header's line, what it may be one day, and by which word that is told.
NEW = [
    ("kDLTrn = 18,", "kDLTrn = 18,\n  kDLNew = 77,", "kDLNew = 77"),
    ("kDLTrn = 18,", "kDLTrn = 18,\n  kDLNew = 77", "kDLNew = 77"),
    ("kDLTrn = 18,", "kDLTrn = 18, kDLNew = 0x4d,", "kDLNew = 77"),
    ("kDLTrn = 18,", "kDLTrn = 18,\n  kDLNew = kDLTrn + 59,", "kDLNew = 77"),
    ("kDLTrn = 18,", "kDLTrn = 18, kDLOther = 76, kDLNew,", "kDLNew = 77"),
    ("kDLTrn = 18,", "kDLTrn = 18,\n  DLDeviceNew = 77,", "DLDeviceNew"),
    ("kDLTrn = 18,", "kDLTrn = 17,", "kDLTrn = 17"),
    ("kDLROCMHost = 11,", "kDLROCMHost = 10,", "kDLROCMHost = 10"),
    ("kDLBool = 6U,", "kDLBool = 6U,\n  kDLPosit = 99U,", "kDLPosit = 99"),
    ("kDLBool = 6U,", "kDLBool = 5U,", "kDLBool = 5"),
    ("#define DLPACK_MINOR_VERSION 3", "#define DLPACK_MINOR_VERSION 4", "version (1, 4)"),
    ("(1UL << 1UL)", "(1UL << 5UL)", "DLPACK_FLAG_BITMASK_IS_COPIED = 32"),
    ("#define DLPACK_MINOR", "# define DLPACK_FLAG_NEW ((uint64_t)8)\n#define DLPACK_MINOR", "DLPACK_FLAG_NEW"),
    ("uint64_t byte_offset;", "uint64_t byte_offset;\n  void* event;", "event"),
    ("uint64_t byte_offset;", "union { uint64_t byte_offset; void* event; };", "event"),
    ("uint64_t flags;", "uint64_t flags;\n  int (*sync)(void* stream);", "sync"),
    ("uint64_t flags;", "uint8_t reserved[8];\n  uint64_t flags;", "reserved"),
    ("uint64_t flags;", "uint64_t reserved, flags;", "reserved"),
    ("uint64_t flags;", "uint32_t flags;", "sizeof(((DLManagedTensorVersioned *)0)->flags) is 4"),
    ("uint64_t byte_offset;", "uint32_t byte_offset;", "sizeof(((DLTensor *)0)->byte_offset) is 4"),
    ("uint16_t lanes;", "uint8_t lanes;", "sizeof(((DLDataType *)0)->lanes) is 1"),
    ("int32_t ndim;", "int64_t ndim;", "sizeof(((DLTensor *)0)->ndim) is 8"),
    ("void * manager_ctx;", "int : 32; void * manager_ctx;", "offsetof(DLManagedTensor, manager_ctx) is 56"),
    ("void *manager_ctx;", "int : 32; void *manager_ctx;", "offsetof(DLManagedTensorVersioned, manager_ctx) is 16"),
    ("DLPackExchangeAPIHeader header;", "int : 32; DLPackExchangeAPIHeader header;", "offsetof(DLPackExchangeAPI, "),
    ("DLPackManagedTensorAllocator managed_", "DLPackCurrentWorkStream managed_", "initialization of"),
    ("(*DLPackCurrentWorkStream)(", "(*DLPackCurrentWorkStream)(void *where, ", "initialization of"),
    ("DLPackCurrentWorkStream current", "DLPackCurrentWorkStream other;\n  DLPackCurrentWorkStream current", "other"),
    ("typedef struct {", "#pragma pack(1)\ntypedef struct {", "pack"),
    ("typedef struct {", "struct DLExtra { int flags; };\ntypedef struct {", "DLExtra"),
]


@pytest.mark.parametrize(("old", "new", "told"), NEW)
def test_what_is_new_is_told(old: str, new: str, told: str, tmp_path: Path) -> None:
    header = text(next(header for header in HEADERS if "tvm_ffi" in header.parts))
    assert old in header
    changed = header.replace(old, new, 1)
    assert any(line.startswith(told) for line in unknown(changed, tmp_path))


def test_what_the_header_may_have_next_is_refused_as_newer() -> None:
    """A number beyond those that are known, not one between them, which DLPack skipped or took back."""
    for number in (abi.LARGEST_DEVICE_TYPE + 1, abi.LARGEST_DEVICE_TYPE + 2, 1000, 2**31 - 1):
        refused = refuse(partial(taken, abi.make((3,), device=(number, 0))), BufferError)
        assert refused.rule == "device-unknown" and "newer than DLPack 1.3" in str(refused)
    for number in (0, 5, 6, -1):
        refused = refuse(partial(taken, abi.make((3,), device=(number, 0))), BufferError)
        assert refused.rule == "device-unknown" and "newer" not in str(refused)
    for code in (abi.LARGEST_CODE + 1, 99, 255):
        refused = refuse(partial(taken, abi.make((3,), dtype=(code, 8, 1))), BufferError)
        assert refused.rule == "dtype-code" and "newer than DLPack 1.3" in str(refused)


@pytest.mark.parametrize("device", [19, 20, 21])
@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ((18, 32, 1), "bcomplex32"),
        ((18, 32, 2), "bcomplex32x2"),
        ((17, 4, 1), "float4_e2m1fn"),
        ((2, 16, 4), "float16x4"),
    ],
)
def test_what_was_added_after_1_3_passes_from_dlpack_to_dlpack(
    device: int, dtype: tuple[int, int, int], name: str
) -> None:
    made = abi.make((2, 8), dtype=dtype, device=(device, 3), data=FAKE_POINTER, byte_offset=64)
    view = taken(made)
    assert (view.device, str(view.dtype), view.shape) == ((device, 3), name, (2, 8))
    sent = abi.read(cd.to_dlpack(view, max_version=(1, 3)))
    assert (sent.device, sent.dtype, sent.data, sent.byte_offset) == ((device, 3), dtype, FAKE_POINTER, 64)
    assert not hasattr(view, "__cuda_array_interface__")
