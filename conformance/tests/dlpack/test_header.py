"""Looks for what an installed `dlpack.h` has and this library does not know: a number, a flag, a field, another offset.

The headers are those that installed packages ship, as they are: when one of them moves on, a test here fails by the
name of what is new. The offsets are a C compiler's.
"""

from __future__ import annotations

import ctypes
import re
import site
import subprocess
from functools import partial
from pathlib import Path

import cai_dlpack as cd
import numpy as np
import pytest

from conformance.tests.dlpack import abi
from conformance.tests.doubles.producers import FAKE_POINTER
from conformance.tests.expectations.refusal import refuse

PACKAGES = [Path(folder) for folder in site.getsitepackages()]
HEADERS = sorted(header for folder in PACKAGES for header in folder.rglob("dlpack.h"))
ENUMERATOR = re.compile(r"^\s*(kDL\w+)\s*=\s*(\d+)U?\s*,", re.MULTILINE)
FLAG = re.compile(r"^#define (DLPACK_FLAG_BITMASK_\w+)\s+\(1UL << (\d+)UL\)", re.MULTILINE)
STRUCT = re.compile(r"typedef struct(?: \w+)? \{(?P<body>.*?)\} (?P<name>\w+);", re.DOTALL)
#: A function, or the name at the end.
FIELD = re.compile(r"\(\*(?P<function>\w+)\)|(?P<name>\w+)$")

#: By struct: the fields that this library writes and reads. Those of the exchange table are functions, but for two.
FIELDS = {
    "DLPackVersion": {"major", "minor"},
    "DLDevice": {"device_type", "device_id"},
    "DLDataType": {"code", "bits", "lanes"},
    "DLTensor": {"data", "device", "ndim", "dtype", "shape", "strides", "byte_offset"},
    "DLManagedTensor": {"dl_tensor", "manager_ctx", "deleter"},
    "DLManagedTensorVersioned": {"version", "manager_ctx", "deleter", "flags", "dl_tensor"},
    "DLPackExchangeAPIHeader": {"version", "prev_api"},
    "DLPackExchangeAPI": {
        "header",
        "managed_tensor_allocator",
        "managed_tensor_from_py_object_no_sync",
        "managed_tensor_to_py_object_no_sync",
        "dltensor_from_py_object_no_sync",
        "current_work_stream",
    },
}
FLAGS = {
    "DLPACK_FLAG_BITMASK_READ_ONLY": abi.READ_ONLY,
    "DLPACK_FLAG_BITMASK_IS_COPIED": abi.IS_COPIED,
    "DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED": abi.SUBBYTE_PADDED,
}


def code_of(header: str) -> str:
    """The header without its comments."""
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", header, flags=re.DOTALL)


def enumerators(header: str, enum: str) -> dict[str, int]:
    body = re.search(r"\{([^{}]*)\}\s*" + enum + ";", code_of(header))
    assert body
    return {name: int(number) for name, number in ENUMERATOR.findall(body[1])}


def fields(header: str) -> dict[str, list[str]]:
    found = {}
    for struct in STRUCT.finditer(code_of(header)):
        names = []
        for line in filter(None, (part.strip() for part in struct["body"].split(";"))):
            named = FIELD.search(line)
            assert named, line
            names.append(named["function"] or named["name"])
        found[struct["name"]] = names
    return found


def taken(made: abi.Made) -> cd.CaiView:
    capsule = made.capsule()  # kept until the refusal has been raised: its destructor is written in Python
    return cd.view(capsule, producer_stream=None)


def unknown(header: str) -> list[str]:
    """Lists what a header has and the library has not, in words."""
    lacks = []
    version = tuple(int(number) for number in re.findall(r"#define DLPACK_M\w+_VERSION (\d+)", header))
    if version > (1, 3):
        lacks.append(f"version {version}")
    for name, number in enumerators(header, "DLDeviceType").items():
        try:
            taken(abi.make((3,), device=(number, 0), data=FAKE_POINTER))
        except cd.Refusal as refused:
            lacks.append(f"{name} = {number}: {refused}")
    for name, number in enumerators(header, "DLDataTypeCode").items():
        rules = set()
        for bits in (1, 4, 6, 8, 16, 32, 64):
            try:
                taken(abi.make((8,), dtype=(number, bits, 1)))
            except cd.Refusal as refused:
                rules.add(refused.rule)
            else:
                rules.add("taken")
        if "taken" not in rules and rules != {"dtype-opaque"}:
            lacks.append(f"{name} = {number}: {rules}")
    flags = {name: 1 << int(bit) for name, bit in FLAG.findall(header)}
    lacks += [f"{name} = {value}" for name, value in flags.items() if FLAGS.get(name) != value]
    for struct, names in fields(header).items():
        lacks += [f"{struct}.{name}" for name in names if name not in FIELDS.get(struct, ())]
    return lacks


def text(header: Path) -> str:
    return header.read_text(encoding="utf-8")


def test_headers_are_installed() -> None:
    assert any("tvm_ffi" in header.parts for header in HEADERS), HEADERS


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: "-".join(header.parts[-5:-1]))
def test_nothing_in_an_installed_header_is_unknown(header: Path) -> None:
    found = fields(text(header))
    assert unknown(text(header)) == []
    assert {"DLTensor", "DLManagedTensorVersioned", "DLDataType"} <= set(found)
    assert len(enumerators(text(header), "DLDeviceType")) >= 16 and len(FLAG.findall(text(header))) >= 2


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("kDLTrn = 18,", "kDLTrn = 18,\n  kDLNew = 77,", "kDLNew = 77"),
        ("kDLBool = 6U,", "kDLBool = 6U,\n  kDLPosit = 99U,", "kDLPosit = 99"),
        ("uint64_t byte_offset;", "uint64_t byte_offset;\n  void* event;", "DLTensor.event"),
        ("uint64_t flags;", "uint64_t flags;\n  int (*sync)(void* stream);", "DLManagedTensorVersioned.sync"),
        ("(1UL << 1UL)", "(1UL << 5UL)", "DLPACK_FLAG_BITMASK_IS_COPIED = 32"),
        ("#define DLPACK_MINOR_VERSION 3", "#define DLPACK_MINOR_VERSION 4", "version (1, 4)"),
    ],
)
def test_what_is_new_fails_by_its_name(old: str, new: str, named: str) -> None:
    header = text(next(header for header in HEADERS if "tvm_ffi" in header.parts))
    assert old in header
    found = unknown(header.replace(old, new))
    assert [line for line in found if line.startswith(named)] == found and found


@pytest.fixture(scope="module", params=HEADERS, ids=lambda header: "-".join(header.parts[-5:-1]))
def offsets(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Each field's offset, as a C compiler lays out the header; and each struct's size."""
    folder = tmp_path_factory.mktemp("header")
    lines = []
    for struct, names in fields(text(request.param)).items():
        lines.append(f'printf("{struct} %zu\\n", sizeof({struct}));')
        lines += [f'printf("{struct}.{name} %zu\\n", offsetof({struct}, {name}));' for name in names]
    program = (
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{request.param}"\nint main(void) {{ {"".join(lines)} }}'
    )
    (folder / "offsets.c").write_text(program, encoding="utf-8")
    subprocess.run(["cc", "-o", str(folder / "offsets"), str(folder / "offsets.c")], check=True, timeout=60)
    told = subprocess.run([str(folder / "offsets")], check=True, capture_output=True, text=True, timeout=60)
    return {name: int(value) for name, value in (line.split() for line in told.stdout.splitlines())}


@pytest.mark.parametrize("versioned", [False, True])
def test_a_tensor_is_laid_out_as_the_header_says(offsets: dict[str, int], versioned: bool) -> None:
    """Every field of a tensor that is exported, read at the header's offset."""
    array = np.arange(12, dtype=np.int16).reshape(3, 4)[1:]
    array.flags.writeable = not versioned
    capsule = cd.to_dlpack(array, max_version=(1, 3) if versioned else None)
    struct = "DLManagedTensorVersioned" if versioned else "DLManagedTensor"
    if struct not in offsets:
        pytest.fail(f"the header has no {struct}")
    start = abi.pointer(capsule)

    def read(kind: type[ctypes._SimpleCData[int]], *path: str) -> int | None:
        """A number at the end of a path: the struct's name, then each field's, and its struct's."""
        return int(kind.from_address(start + sum(offsets[name] for name in path)).value or 0)

    tensor = f"{struct}.dl_tensor"
    data, offset = read(ctypes.c_uint64, tensor, "DLTensor.data"), read(ctypes.c_uint64, tensor, "DLTensor.byte_offset")
    assert (data or 0) + (offset or 0) == array.ctypes.data
    device = (
        read(ctypes.c_int32, tensor, "DLTensor.device", "DLDevice.device_type"),
        read(ctypes.c_int32, tensor, "DLTensor.device", "DLDevice.device_id"),
    )
    dtype = (
        read(ctypes.c_uint8, tensor, "DLTensor.dtype", "DLDataType.code"),
        read(ctypes.c_uint8, tensor, "DLTensor.dtype", "DLDataType.bits"),
        read(ctypes.c_uint16, tensor, "DLTensor.dtype", "DLDataType.lanes"),
    )
    assert (device, dtype, read(ctypes.c_int32, tensor, "DLTensor.ndim")) == ((1, 0), (abi.INT, 16, 1), 2)
    for field, expected in (("shape", [2, 4]), ("strides", [4, 1])):
        at = read(ctypes.c_uint64, tensor, f"DLTensor.{field}")
        assert at and list((ctypes.c_int64 * 2).from_address(at)) == expected
    assert read(ctypes.c_uint64, f"{struct}.deleter")
    if versioned:
        version = "DLManagedTensorVersioned.version"
        assert read(ctypes.c_uint32, version, "DLPackVersion.major") == 1
        assert read(ctypes.c_uint32, version, "DLPackVersion.minor") == 3
        assert read(ctypes.c_uint64, "DLManagedTensorVersioned.flags") == abi.READ_ONLY


def test_the_exchange_table_is_laid_out_as_the_header_says(offsets: dict[str, int]) -> None:
    if "DLPackExchangeAPI" not in offsets:
        pytest.fail("the header has no exchange API")
    start = abi.pointer(cd.CaiView.__dlpack_c_exchange_api__)
    for name in ("major", "minor"):
        at = start + offsets["DLPackExchangeAPI.header"] + offsets["DLPackExchangeAPIHeader.version"]
        assert (
            ctypes.c_uint32.from_address(at + offsets[f"DLPackVersion.{name}"]).value == {"major": 1, "minor": 3}[name]
        )
    functions = FIELDS["DLPackExchangeAPI"] - {"header"}
    found = {
        name: ctypes.c_uint64.from_address(start + offsets[f"DLPackExchangeAPI.{name}"]).value for name in functions
    }
    assert all(found.values()) and len(set(found.values())) == len(functions), found
    assert (
        offsets["DLPackExchangeAPI"] == offsets["DLPackExchangeAPI.header"] + offsets["DLPackExchangeAPIHeader"] + 8 * 5
    )


def test_what_the_header_may_have_next_is_refused_as_newer() -> None:
    """A number beyond those that are known, not one between them, which DLPack skipped or took back."""
    for number in (22, 23, 1000, 2**31 - 1):
        refused = refuse(partial(taken, abi.make((3,), device=(number, 0))), BufferError)
        assert refused.rule == "device-unknown" and "newer than DLPack 1.3" in str(refused)
    for number in (0, 5, 6, -1):
        refused = refuse(partial(taken, abi.make((3,), device=(number, 0))), BufferError)
        assert refused.rule == "device-unknown" and "newer" not in str(refused)
    for code in (19, 99, 255):
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
