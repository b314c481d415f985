"""The types of arguments, for annotations.

>>> def mean(array: cai_dlpack.typing.ArrayLike) -> float: ...  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import CapsuleType
else:
    from ._core import CaiView

    # `types.CapsuleType` from Python 3.13 on.
    CapsuleType = type(CaiView.__dlpack_c_exchange_api__)

__all__ = [
    "ArrayLike",
    "DTypeLike",
    "DeviceLike",
    "StreamLike",
    "SupportsCai",
    "SupportsCudaStream",
    "SupportsDlpack",
    "SupportsExchange",
]


class SupportsCai(Protocol):
    """An array of the CUDA Array Interface."""

    @property
    def __cuda_array_interface__(self) -> Any: ...


class SupportsDlpack(Protocol):
    """An array of DLPack."""

    def __dlpack__(self, *arguments: Any, **keywords: Any) -> Any: ...


class SupportsExchange(Protocol):
    """An array whose type has DLPack's C Exchange API."""

    @property
    def __dlpack_c_exchange_api__(self) -> Any: ...


class SupportsCudaStream(Protocol):
    """Any library's stream object: it returns `(version, handle)`."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


class _Named(Protocol):
    """A dtype object of NumPy, or of a library that names its dtypes as NumPy does."""

    @property
    def name(self) -> str: ...


class _Described(Protocol):
    """A dtype object of torch or of a library like it, known by its text."""

    @property
    def itemsize(self) -> int: ...


class _Device(Protocol):
    """A device object of torch, or of a library like it."""

    @property
    def type(self) -> str: ...
    @property
    def index(self) -> int | None: ...


#: What `view` takes: an array, a DLPack capsule, or a dict of the CUDA Array Interface (with `owner=`).
ArrayLike: TypeAlias = SupportsCai | SupportsDlpack | SupportsExchange | CapsuleType | Mapping[str, Any]
#: A stream: its number or handle, or an object.
StreamLike: TypeAlias = int | SupportsCudaStream
#: An element type: its name, or an object of any library.
DTypeLike: TypeAlias = str | type | _Named | _Described
#: A device: DLPack's (type, id), "cpu", "cuda", "cuda:1", or an object of torch.
DeviceLike: TypeAlias = tuple[int, int] | str | _Device
