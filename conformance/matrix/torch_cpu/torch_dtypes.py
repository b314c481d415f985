"""torch's dtypes and the names that a view has for them."""

from __future__ import annotations

import torch

DTYPES = {
    "bool": "bool",
    "uint8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float32": "float32",
    "float64": "float64",
    "complex32": "complex32",
    "complex64": "complex64",
    "complex128": "complex128",
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e4m3fnuz": "float8_e4m3fnuz",
    "float8_e5m2": "float8_e5m2",
    "float8_e5m2fnuz": "float8_e5m2fnuz",
    "float8_e8m0fnu": "float8_e8m0fnu",
    "float4_e2m1fn_x2": "float4_e2m1fnx2",
}


def filled(name: str) -> torch.Tensor:
    """2 x 3 elements of known bytes: 0 and 1 alone, which every dtype has."""
    dtype: torch.dtype = getattr(torch, name)
    plain = torch.zeros(2 * 3 * dtype.itemsize, dtype=torch.uint8)
    plain[:: dtype.itemsize] = 1
    return plain.view(dtype).reshape(2, 3)


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal in every bit, also where a dtype has no comparison."""
    return bool(torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)))
