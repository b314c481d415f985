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

_StreamLike: TypeAlias = int | _CudaStream
_DTypeLike: TypeAlias = str | type | _Named
_DeviceLike: TypeAlias = tuple[int, int]
__version__: str
_stub: dict[str, str]

class DriverError(RuntimeError):
    """A call of the CUDA driver failed, or there is no driver.

    `call` is the function's name, `code` CUDA's number for the error (None without a driver), `name` CUDA's name
    for it.
    """

    call: str
    code: int | None
    name: str

@final
class CaiView:
    """A strided array in memory that CUDA (or, from DLPack, the host) can reach, and whose owner is kept
    alive. Made by `view`, `from_cai` and `from_dlpack`.

    It speaks both protocols: pass it to any consumer of `__dlpack__` or `__cuda_array_interface__`.
    It is immutable and copies nothing. It has neither a length nor items, since consumers that find
    them copy element by element.
    """

    __dlpack_c_exchange_api__: ClassVar[CapsuleType]

    @property
    def ndim(self) -> int:
        """The number of axes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents, in elements."""

    @property
    def dtype(self) -> str:
        """The name of the element type, as NumPy and ml_dtypes spell it: "float32", "bfloat16", "bool", ..."""

    @property
    def itemsize(self) -> int | None:
        """The size of an element in bytes; None for packed types smaller than a byte."""

    @property
    def nbytes(self) -> int:
        """The size of all elements in bytes, as if they were contiguous."""

    @property
    def byte_strides(self) -> tuple[int, ...] | None:
        """The strides in bytes, one for each axis; None for packed types smaller than a byte."""

    @property
    def elem_strides(self) -> tuple[int, ...]:
        """The strides in elements, one for each axis."""

    @property
    def ptr(self) -> int:
        """The address of the first element (index 0 on every axis); 0 for an array of size 0."""

    @property
    def device(self) -> _DeviceLike:
        """DLPack's device, as (type, id): 1 is the CPU, 2 CUDA, 3 pinned host memory, 13 managed memory."""

    @property
    def memory(self) -> Literal["device", "managed", "pinned", "host"]:
        """The kind of memory: "device", "pinned", "managed" or "host"."""

    @property
    def stream(self) -> int | None:
        """The stream on which the data is ready: 1 is the legacy default stream, 2 the per-thread one, any other a
        handle. None: the data is ready.
        """

    @property
    def producer_stream(self) -> int | Literal["unknown"] | None:
        """The stream on which the producer goes on working: an int, None if it has no work pending, "unknown" if it
        does not name one.
        """

    @property
    def read_only(self) -> bool:
        """Whether consumers must not write."""

    @property
    def owner(self) -> Any:
        """The Python object that keeps the memory alive; None if a DLPack tensor does."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA Array Interface, version 3: a new dict.

        Raises
        ------
        AttributeError
            If the interface has no words for the array (memory that CUDA cannot reach, bfloat16, float8, packed types),
            so that a probe goes on to DLPack. `to_cai` raises BufferError instead.
        """

    def __dlpack__(
        self,
        *,
        stream: _StreamLike | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: _DeviceLike | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Returns a DLPack capsule (array API 2024.12).

        Parameters
        ----------
        stream : StreamLike | None, default None
            The consumer's stream, which waits for the data by an event: None or 1 is the legacy default stream,
            2 the per-thread one, -1 no synchronisation, else a handle, or an object with ``__cuda_stream__``.
            For pinned and managed memory None blocks until the host may read.
        max_version : tuple[int, int] | None, default None
            (1, 0) or later gives a versioned tensor (1.3), else a legacy one.
        dl_device : DeviceLike | None, default None
            The view's own device, or (1, 0) for the CPU: shared if the host reads the memory, else a copy.
        copy : bool | None, default None
            True makes a copy, False refuses if one is needed.

        Returns
        -------
        CapsuleType
            Owns this view until it is consumed or destroyed. A copy is in C order and writable; on the device it
            runs on `stream`.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong type or value.
        BufferError
            If the array cannot be exported so.
        DriverError
            If a call of the CUDA driver fails.
        """

    def __dlpack_device__(self) -> _DeviceLike:
        """Returns DLPack's device, as (type, id)."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's array interface, version 3, of memory that the host can read. Blocks until the data is ready.

        Raises
        ------
        AttributeError
            If the host cannot read the memory, or the interface has no words for the type.
        """
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...
        def __release_buffer__(self, buffer: memoryview, /) -> None: ...

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields of a structured array; empty for any other."""

    def field(self, name: str, /, *, dtype: _DTypeLike | None = None) -> CaiView:
        """Returns one field of a structured array: a strided view of the same memory.

        Parameters
        ----------
        name : str
            One of `fields`.
        dtype : DTypeLike | None, default None
            The field's element type, if its typestr cannot say it. Reinterprets the bytes and never casts.

        Returns
        -------
        CaiView

        Raises
        ------
        ValueError
            If the array has no such field.
        BufferError
            If the array is not structured, or the distance between two items is no multiple of the field's item size.
        """

    def present_as(self, kind: Literal["cuda", "host"], /) -> CaiView:
        """Returns a view of the same memory under another device: managed, pinned and registered memory is reachable
        from the device and from the host. Copies nothing.

        Parameters
        ----------
        kind : {'cuda', 'host'}
            "cuda" for consumers that take device memory alone; "host" for consumers on the CPU, which blocks until
            the data is ready.

        Returns
        -------
        CaiView

        Raises
        ------
        BufferError
            If the memory is not reachable from there.
        """

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Returns a NumPy array of memory that the host can read (pinned, managed, the CPU's).

        Parameters
        ----------
        dtype : data-type, optional
            Converts to this type, which copies.
        copy : bool, optional
            As in `numpy.asarray`.

        Returns
        -------
        numpy.ndarray

        Raises
        ------
        TypeError
            If the array is in device memory: NumPy would copy it element by element otherwise.
        """

    def on(self, stream: _StreamLike, /) -> CaiView:
        """Returns a view that is ready on `stream`: by one event, or none if it is ready there already.

        For consumers that ignore streams: work that is enqueued on `stream` from now on finds the data ready.

        Parameters
        ----------
        stream : StreamLike
            An int or an object with ``__cuda_stream__``.

        Returns
        -------
        CaiView

        Raises
        ------
        TypeError, ValueError
            If `stream` names no stream.
        DriverError
            If a call of the CUDA driver fails.
        """

    def synchronize(self) -> CaiView:
        """Blocks until the data is ready, without the GIL.

        Returns
        -------
        CaiView
            A view with stream None.

        Raises
        ------
        DriverError
            If a call of the CUDA driver fails.
        """

    def consume(self, stream: _StreamLike, /, *, strict: bool = False) -> AbstractContextManager[CaiView, None]:
        """Returns a context manager for a consumer's work on `stream`.

        Entering gives a view that is ready on `stream`, as `on` does. Leaving makes the producer's stream wait for
        what `stream` holds by then. Both cost nothing if the streams are the same. `return_edge` of the view that it
        gives says what leaving does.

        Parameters
        ----------
        stream : StreamLike
            An int or an object with ``__cuda_stream__``.
        strict : bool, default False
            Refuses an array whose producer's stream is unknown.

        Returns
        -------
        ContextManager of CaiView

        Raises
        ------
        TypeError, ValueError
            If `stream` names no stream, or the producer's is unknown and `strict` is set.
        """

    @property
    def return_edge(self) -> Literal["event", "same-stream", "not-needed", "unknown"] | None:
        """What leaving the `consume` block of this view does; None for a view of no such block.

        "event": the producer's stream waits for an event. "same-stream": nothing needs to wait. "not-needed": the
        producer has no work in any stream. "unknown": the producer's stream is not known; order later work yourself.
        """

    def to_cai(self) -> dict[str, Any]:
        """Returns the CUDA Array Interface, version 3: a new dict. Its memory lives as long as this view.

        Returns
        -------
        dict

        Raises
        ------
        BufferError
            If the interface has no words for the array.
        """

@final
class Explanation:
    """What `explain` returns; its `str` is a text of a few lines."""

    @property
    def route(self) -> Literal["exchange", "cai", "dlpack", "capsule", "view"] | None:
        """The way that `view` would take: "exchange", "cai", "dlpack", "capsule" or "view"; None if it
        would refuse.
        """

    @property
    def order(self) -> str | None:
        """Who would wait for whom; None if that is not known without asking the producer."""

    @property
    def refused(self) -> str | None:
        """Why the import or the consumer would refuse it; None if neither would."""

@final
class policy:
    """Sets how this thread orders consumers after the data, for the duration of a `with` block.

    Parameters
    ----------
    sync : {'event', 'host', 'none'}
        "event" (the default): the consumer's stream waits for an event, the host for nothing. "host": the host
        waits for the data. "none": nothing waits; the caller has ordered the work.
    """

    def __new__(cls, *, sync: Literal["event", "host", "none"]) -> policy:
        """Create and return a new object.  See help(type) for accurate signature."""

    def __enter__(self) -> policy: ...
    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None, /
    ) -> bool: ...

@final
class use_stream:
    """Names the stream that this thread works on, for the duration of a `with` block.

    A consumer that takes views through the C Exchange API asks for a work stream without saying for which array.
    It gets this one, and every view that it takes is made ready there. Without a block it is the legacy default
    stream.

    Parameters
    ----------
    stream : StreamLike
        An int or an object with ``__cuda_stream__``.
    device_id : int | None, default None
        The CUDA device of the stream. None: the driver is asked.
    """

    def __new__(cls, stream: _StreamLike, /, *, device_id: int | None = None) -> use_stream:
        """Create and return a new object.  See help(type) for accurate signature."""

    def __enter__(self) -> use_stream: ...
    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None, /
    ) -> bool: ...

def view(
    obj: object,
    /,
    *,
    device_id: int | None = None,
    producer_stream: _StreamLike | EllipsisType | None = ...,
    dtype: _DTypeLike | None = None,
    shape: tuple[int, ...] | None = None,
    read_only: bool | None = None,
    owner: object = None,
    check: Literal["device", "bounds"] | None = None,
    strict: bool = False,
) -> CaiView:
    """Returns a view of an array that speaks CAI or DLPack. Copies nothing.

    The route is chosen by what the array offers: the C Exchange API of its type, else CAI if it names the
    producer's stream (or has version 3), else `__dlpack__`, else CAI.

    Parameters
    ----------
    obj : object
        An array with ``__cuda_array_interface__`` or ``__dlpack__``, a DLPack capsule, or a CAI dict (with
        `owner`).
    device_id : int | None, default None
        The ordinal of the CUDA device. Saves asking the driver.
    producer_stream : StreamLike | EllipsisType | None, default ...
        The stream that writes the data, if the producer does not name it: an int or an object with
        ``__cuda_stream__``. None: nothing is pending. ``...``: the stream that the producer names.
    dtype : DTypeLike | None, default None
        The element type, if the producer cannot say it. Reinterprets the bytes and never casts.
    shape : tuple[int, ...] | None, default None
        A new shape for contiguous memory, in elements of `dtype`.
    read_only : bool | None, default None
        Overrides the producer's flag. False asserts that consumers may write.
    owner : object, default None
        Keeps the memory of a bare dict alive; of any other object, is kept alive beside it.
    check : Literal['device', 'bounds'] | None, default None
        "device" asks the driver for the device of the pointer; "bounds" also whether the allocation
        holds every element. None: "device".
    strict : bool, default False
        Refuses what CAI forbids and producers send: a missing version, stream 0.

    Returns
    -------
    CaiView
        Ready on the stream that the producer names. Keeps the array alive.

    Raises
    ------
    TypeError, ValueError
        If an argument or a field of the interface has the wrong type or value.
    BufferError
        If the array is valid and cannot be exported.
    DriverError
        If a call of the CUDA driver fails.

    Examples
    --------
    >>> torch.from_dlpack(cd.view(numba_array))  # doctest: +SKIP
    """

def from_cai(
    obj: object,
    /,
    *,
    device_id: int | None = None,
    producer_stream: _StreamLike | EllipsisType | None = ...,
    dtype: _DTypeLike | None = None,
    shape: tuple[int, ...] | None = None,
    read_only: bool | None = None,
    owner: object = None,
    check: Literal["device", "bounds"] | None = None,
    strict: bool = False,
) -> CaiView:
    """Returns a view of an array by the CUDA Array Interface, and by nothing else.

    Parameters
    ----------
    obj : object
        An array with ``__cuda_array_interface__``, or such a dict (with `owner`).
    device_id : int | None, default None
        The ordinal of the CUDA device. Saves asking the driver.
    producer_stream : StreamLike | EllipsisType | None, default ...
        The stream that writes the data, if the producer does not name it: an int or an object with
        ``__cuda_stream__``. None: nothing is pending. ``...``: the stream that the producer names.
    dtype : DTypeLike | None, default None
        The element type, if the producer cannot say it. Reinterprets the bytes and never casts.
    shape : tuple[int, ...] | None, default None
        A new shape for contiguous memory, in elements of `dtype`.
    read_only : bool | None, default None
        Overrides the producer's flag. False asserts that consumers may write.
    owner : object, default None
        Keeps the memory of a bare dict alive; of any other object, is kept alive beside it.
    check : Literal['device', 'bounds'] | None, default None
        "device" asks the driver for the device of the pointer; "bounds" also whether the allocation
        holds every element. None: "device".
    strict : bool, default False
        Refuses what CAI forbids and producers send: a missing version, stream 0.

    Returns
    -------
    CaiView
        Ready on the stream that the interface names.

    Raises
    ------
    TypeError, ValueError, BufferError, DriverError
        As `view` does.
    """

def from_dlpack(
    obj: object,
    /,
    *,
    device: _DeviceLike | None = None,
    copy: bool | None = None,
    stream: _StreamLike | None = None,
    device_id: int | None = None,
    producer_stream: _StreamLike | EllipsisType | None = ...,
    dtype: _DTypeLike | None = None,
    shape: tuple[int, ...] | None = None,
    read_only: bool | None = None,
    owner: object = None,
    check: Literal["device", "bounds"] | None = None,
    strict: bool = False,
) -> CaiView:
    """Returns a view of an array by `__dlpack__`, or of a capsule.

    Parameters
    ----------
    obj : object
        An array with ``__dlpack__`` and ``__dlpack_device__``, or a DLPack capsule.
    device : DeviceLike | None, default None
        The device for the data, as (type, id). None: where the array is. The producer makes the transfer.
    copy : bool | None, default None
        Passed to the producer: True must copy, False must not.
    stream : StreamLike | None, default None
        The stream on which the data is to be ready. None: the legacy default stream; for pinned and managed
        memory the host.
    device_id : int | None, default None
        The ordinal of the CUDA device. Saves asking the driver.
    producer_stream : StreamLike | EllipsisType | None, default ...
        The stream that writes the data, if the producer does not name it: an int or an object with
        ``__cuda_stream__``. None: nothing is pending. ``...``: the stream that the producer names.
    dtype : DTypeLike | None, default None
        The element type, if the producer cannot say it. Reinterprets the bytes and never casts.
    shape : tuple[int, ...] | None, default None
        A new shape for contiguous memory, in elements of `dtype`.
    read_only : bool | None, default None
        Overrides the producer's flag. False asserts that consumers may write.
    owner : object, default None
        Keeps the memory of a bare dict alive; of any other object, is kept alive beside it.
    check : Literal['device', 'bounds'] | None, default None
        "device" asks the driver for the device of the pointer; "bounds" also whether the allocation
        holds every element. None: "device".
    strict : bool, default False
        Refuses what CAI forbids and producers send: a missing version, stream 0.

    Returns
    -------
    CaiView
        Ready on `stream`. Owns the managed tensor.

    Raises
    ------
    TypeError, ValueError, BufferError, DriverError
        As `view` does. A refused capsule is not consumed.
    """

def to_dlpack(
    obj: object,
    /,
    *,
    stream: _StreamLike | Literal["host"] | None = None,
    max_version: tuple[int, int] | None = None,
    dl_device: _DeviceLike | None = None,
    copy: bool | None = None,
    writable: bool = False,
    device_id: int | None = None,
    producer_stream: _StreamLike | EllipsisType | None = ...,
    dtype: _DTypeLike | None = None,
    shape: tuple[int, ...] | None = None,
    read_only: bool | None = None,
    owner: object = None,
    check: Literal["device", "bounds"] | None = None,
    strict: bool = False,
) -> CapsuleType:
    """Returns a DLPack capsule of an array.

    A capsule cannot negotiate. Pass `view(obj)` to a consumer that calls `__dlpack__` itself.

    Parameters
    ----------
    obj : object
        Any array that `view` takes.
    stream : StreamLike | Literal['host'] | None, default None
        The consumer's stream, as in `CaiView.__dlpack__`. "host" blocks until the data is ready, for
        consumers whose stream cannot be named.
    max_version : tuple[int, int] | None, default None
        As in `CaiView.__dlpack__`.
    dl_device : DeviceLike | None, default None
        As in `CaiView.__dlpack__`.
    copy : bool | None, default None
        As in `CaiView.__dlpack__`.
    writable : bool, default False
        Asserts that the consumer may write, though the array is read-only.
    device_id : int | None, default None
        The ordinal of the CUDA device. Saves asking the driver.
    producer_stream : StreamLike | EllipsisType | None, default ...
        The stream that writes the data, if the producer does not name it: an int or an object with
        ``__cuda_stream__``. None: nothing is pending. ``...``: the stream that the producer names.
    dtype : DTypeLike | None, default None
        The element type, if the producer cannot say it. Reinterprets the bytes and never casts.
    shape : tuple[int, ...] | None, default None
        A new shape for contiguous memory, in elements of `dtype`.
    read_only : bool | None, default None
        Overrides the producer's flag. False asserts that consumers may write.
    owner : object, default None
        Keeps the memory of a bare dict alive; of any other object, is kept alive beside it.
    check : Literal['device', 'bounds'] | None, default None
        "device" asks the driver for the device of the pointer; "bounds" also whether the allocation
        holds every element. None: "device".
    strict : bool, default False
        Refuses what CAI forbids and producers send: a missing version, stream 0.

    Returns
    -------
    CapsuleType
        Named ``dltensor_versioned``, or ``dltensor`` without `max_version`. Owns the array until it is
        consumed or destroyed.

    Raises
    ------
    TypeError, ValueError, BufferError, DriverError
        As `view` and `CaiView.__dlpack__` do.
    """

def explain(obj: object, /, *, to: str | None = None, stream: _StreamLike | None = None) -> Explanation:
    """Describes what `view` would do with an array, without doing it: the route, the order, the consumer's call.

    No GPU is needed; without a driver the device is not known.

    Parameters
    ----------
    obj : object
        Any array that `view` takes.
    to : str | None, default None
        The consumer's library by any of its names, such as "torch" or "pytorch": its zero-copy call is shown,
        with what it refuses.
    stream : StreamLike | None, default None
        The consumer's stream, as in `CaiView.__dlpack__`.

    Returns
    -------
    Explanation
        Prints as a text of a few lines.

    Raises
    ------
    ValueError
        If `to` names no library of the table of partners, or `stream` no stream.
    """

def join(items: Iterable[CaiView | _StreamLike], /, *, on: _StreamLike) -> list[CaiView]:
    """Makes a stream wait for many streams or views: one event for each distinct stream.

    For a producer that works on several streams: join them, then import with ``producer_stream=on``. For
    many arrays that go to one stream: the events are as many as the streams, not as the arrays.

    Parameters
    ----------
    items : Iterable[CaiView | StreamLike]
        Views, of which the ready stream is meant, and streams: ints or objects with ``__cuda_stream__``.
    on : StreamLike
        The stream that waits.

    Returns
    -------
    list of CaiView
        The views among `items`, in order, ready on `on`.
    """

def split_masked(
    obj: object, /, *, mask: Literal["auto", "bit", "byte"] = "auto", device_id: int | None = None
) -> tuple[CaiView, CaiView | None]:
    """Returns the values and the mask of a masked array as two views. Copies nothing.

    Parameters
    ----------
    obj : object
        An array with ``__cuda_array_interface__``.
    mask : Literal['auto', 'bit', 'byte'], default "auto"
        The form of the mask: "bit", "byte", or "auto" to find out by its type and shape.
    device_id : int | None, default None
        The ordinal of the CUDA device. Saves asking the driver.

    Returns
    -------
    tuple of CaiView and (CaiView or None)
        The values, and the mask; None if the array has none. A mask of bytes is a view of `bool`, of the values'
        shape or one that broadcasts to it; a mask of bits a view of `uint8`, whose lowest bit belongs to the
        first value. A value is valid if its mask is not 0.

    Raises
    ------
    TypeError, ValueError, BufferError, DriverError
        As `view` does; ValueError if both forms of mask fit and `mask` is "auto".
    """

def stats() -> dict[str, int]:
    """Returns the counters of ownership.

    Returns
    -------
    dict
        live: owners that are alive. pending: releases that wait for the GIL. released: releases so far.
        leaked_at_exit: owners given up at the interpreter's end. panics: Rust panics that were caught.
        open_guards: consume blocks that are open.
    """

def _partners() -> list[dict[str, Any]]:
    """The table of partners: a dict for each."""
