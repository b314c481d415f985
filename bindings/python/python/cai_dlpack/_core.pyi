"""The types of the extension; what each thing does is in its docstring (`help(cai_dlpack)`)."""

from collections.abc import Sequence
from types import EllipsisType
from typing import Any, Final, Literal, Protocol, TypeAlias, final

from typing_extensions import CapsuleType

__version__: Final[str]

class _CudaStream(Protocol):
    """Any library's stream object: it answers `(version, handle)`."""

    def __cuda_stream__(self) -> tuple[int, int]: ...

_Stream: TypeAlias = int | _CudaStream | None
_Check: TypeAlias = Literal["device", "bounds"]

class DriverError(RuntimeError):
    call: str
    code: int
    name: str

@final
class CaiView:
    @property
    def ndim(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def byte_strides(self) -> tuple[int, ...]: ...
    @property
    def elem_strides(self) -> tuple[int, ...]: ...
    @property
    def ptr(self) -> int: ...
    @property
    def device(self) -> tuple[int, int]: ...
    @property
    def memory(self) -> str: ...
    @property
    def stream(self) -> int | None: ...
    @property
    def producer_stream(self) -> int | None: ...
    @property
    def read_only(self) -> bool: ...
    @property
    def owner(self) -> object: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: _Stream = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def on(self, stream: _Stream) -> CaiView: ...
    def synchronize(self) -> CaiView: ...
    def to_cai(self) -> dict[str, Any]: ...

def view(
    obj: object,
    *,
    producer_stream: _Stream | EllipsisType = ...,
    dtype: str | None = None,
    shape: Sequence[int] | None = None,
    read_only: bool | None = None,
    owner: object = None,
    ordinal: int | None = None,
    check: _Check = "device",
    strict: bool = False,
) -> CaiView: ...
def from_cai(
    obj: object,
    *,
    producer_stream: _Stream | EllipsisType = ...,
    dtype: str | None = None,
    shape: Sequence[int] | None = None,
    read_only: bool | None = None,
    owner: object = None,
    ordinal: int | None = None,
    check: _Check = "device",
    strict: bool = False,
) -> CaiView: ...
def from_dlpack(
    obj: object,
    *,
    device: tuple[int, int] | None = None,
    copy: bool | None = None,
    stream: _Stream = None,
) -> CaiView: ...
def to_dlpack(
    obj: object,
    *,
    stream: _Stream = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
    writable: bool = False,
) -> CapsuleType: ...
def stats() -> dict[str, int]: ...
