"""The types of the extension; what each thing does is in its docstring (`help(cai_dlpack)`)."""

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import EllipsisType, TracebackType
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, final

from typing_extensions import CapsuleType

__all__ = [
    "CaiView",
    "DriverError",
    "Explanation",
    "__version__",
    "explain",
    "from_cai",
    "from_dlpack",
    "join",
    "policy",
    "split_masked",
    "stats",
    "to_dlpack",
    "use_stream",
    "view",
]

class _CudaStream(Protocol):
    """Any library's stream object: it answers `(version, handle)`."""

    def __cuda_stream__(self) -> tuple[int, int]: ...

class _Named(Protocol):
    """A dtype object of NumPy, or of a library that names its dtypes as NumPy does."""

    @property
    def name(self) -> str: ...

_Stream: TypeAlias = int | _CudaStream
_DType: TypeAlias = str | type | _Named
_Device: TypeAlias = tuple[int, int]

__version__: str

class DriverError(RuntimeError):
    call: str
    code: int | None
    name: str

@final
class CaiView:
    __dlpack_c_exchange_api__: ClassVar[CapsuleType]
    @property
    def ndim(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def itemsize(self) -> int | None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def byte_strides(self) -> tuple[int, ...] | None: ...
    @property
    def elem_strides(self) -> tuple[int, ...]: ...
    @property
    def ptr(self) -> int: ...
    @property
    def device(self) -> _Device: ...
    @property
    def memory(self) -> Literal["device", "managed", "pinned", "host"]: ...
    @property
    def stream(self) -> int | None: ...
    @property
    def producer_stream(self) -> int | Literal["unknown"] | None: ...
    @property
    def read_only(self) -> bool: ...
    @property
    def owner(self) -> Any: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: _Stream | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: _Device | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> _Device: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...
        def __release_buffer__(self, buffer: memoryview, /) -> None: ...

    @property
    def fields(self) -> tuple[str, ...]: ...
    def field(self, name: str, /, *, dtype: _DType | None = None) -> CaiView: ...
    def present_as(self, kind: Literal["cuda", "host"], /) -> CaiView: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any: ...
    def on(self, stream: _Stream, /) -> CaiView: ...
    def synchronize(self) -> CaiView: ...
    def consume(self, stream: _Stream, /, *, strict: bool = False) -> AbstractContextManager[CaiView, None]: ...
    @property
    def return_edge(self) -> Literal["event", "same-stream", "not-needed", "unknown"] | None: ...
    def to_cai(self) -> dict[str, Any]: ...

@final
class Explanation:
    @property
    def route(self) -> Literal["exchange", "cai", "dlpack", "capsule", "view"] | None: ...
    @property
    def order(self) -> str | None: ...
    @property
    def refused(self) -> str | None: ...

@final
class policy:
    def __new__(cls, *, sync: Literal["event", "host", "none"]) -> policy: ...
    def __enter__(self) -> policy: ...
    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
        /,
    ) -> bool: ...

@final
class use_stream:
    def __new__(cls, stream: _Stream, /, *, ordinal: int | None = None) -> use_stream: ...
    def __enter__(self) -> use_stream: ...
    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
        /,
    ) -> bool: ...

def view(
    obj: object,
    /,
    *,
    producer_stream: _Stream | EllipsisType | None = ...,
    dtype: _DType | None = None,
    shape: tuple[int, ...] | None = None,
    read_only: bool | None = None,
    owner: object = None,
    ordinal: int | None = None,
    check: Literal["device", "bounds"] | None = None,
    strict: bool = False,
) -> CaiView: ...
def from_cai(
    obj: object,
    /,
    *,
    producer_stream: _Stream | EllipsisType | None = ...,
    dtype: _DType | None = None,
    shape: tuple[int, ...] | None = None,
    read_only: bool | None = None,
    owner: object = None,
    ordinal: int | None = None,
    check: Literal["device", "bounds"] | None = None,
    strict: bool = False,
) -> CaiView: ...
def from_dlpack(
    obj: object,
    /,
    *,
    device: _Device | None = None,
    copy: bool | None = None,
    stream: _Stream | None = None,
    producer_stream: _Stream | EllipsisType | None = ...,
    dtype: _DType | None = None,
    shape: tuple[int, ...] | None = None,
    read_only: bool | None = None,
) -> CaiView: ...
def to_dlpack(
    obj: object,
    /,
    *,
    stream: _Stream | Literal["host"] | None = None,
    max_version: tuple[int, int] | None = None,
    dl_device: _Device | None = None,
    copy: bool | None = None,
    writable: bool = False,
    ordinal: int | None = None,
) -> CapsuleType: ...
def explain(obj: object, /, *, to: str | None = None, stream: _Stream | None = None) -> Explanation: ...
def join(items: Iterable[CaiView | _Stream], /, *, on: _Stream) -> list[CaiView]: ...
def split_masked(
    obj: object, /, *, mask: Literal["auto", "bit", "byte"] = "auto", ordinal: int | None = None
) -> tuple[CaiView, CaiView | None]: ...
def stats() -> dict[str, int]: ...
