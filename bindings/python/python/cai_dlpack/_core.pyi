"""The types of the extension; what each thing does is in its docstring (`help(cai_dlpack)`)."""

from collections.abc import Coroutine, Iterable
from contextlib import AbstractContextManager
from types import EllipsisType, ModuleType, TracebackType
from typing import Any, ClassVar, Literal, final

from typing_extensions import CapsuleType

from .typing import ArrayLike, DeviceLike, DTypeLike, StreamLike

__all__ = [
    "AttributeRefusal",
    "BufferRefusal",
    "CaiView",
    "Consume",
    "ConsumeWarning",
    "DType",
    "DriverError",
    "Explanation",
    "Handle",
    "InterchangeWarning",
    "Refusal",
    "RuntimeRefusal",
    "StreamWarning",
    "TypeRefusal",
    "ValueRefusal",
    "VersionWarning",
    "__version__",
    "explain",
    "from_cai",
    "from_dlpack",
    "join",
    "open",
    "policy",
    "share",
    "split_masked",
    "stats",
    "to",
    "to_dlpack",
    "use_stream",
    "view",
]
__version__: str
_stub: dict[str, str]

class DriverError(RuntimeError):
    """A call of the CUDA driver failed, or no driver is installed.

    Attributes
    ----------
    call : str
        The name of the driver's function.
    code : int | None
        CUDA's number of the error; None without a driver.
    name : str
        CUDA's name of the error.
    """

    call: str
    code: int | None
    name: str

class Refusal(Exception):
    """The base class of every refusal; each is also a builtin exception.

    Attributes
    ----------
    rule : str
        The id of the rule, an anchor in docs/rules.md.
    field : str
        What breaks it: a key, an attribute, an argument.
    hint : str | None
        What to do instead; None if there is nothing to do.
    """

    rule: str
    field: str
    hint: str | None

class TypeRefusal(Refusal, TypeError):
    """A refusal, caught as `TypeError` too."""

class ValueRefusal(Refusal, ValueError):
    """A refusal, caught as `ValueError` too."""

class BufferRefusal(Refusal, BufferError):
    """A refusal, caught as `BufferError` too."""

class RuntimeRefusal(Refusal, RuntimeError):
    """A refusal, caught as `RuntimeError` too."""

class AttributeRefusal(Refusal, AttributeError):
    """A refusal, caught as `AttributeError` too."""

class Handle(bytes):
    """What `share` returns and `open` takes: bytes that name memory of another process.

    It pickles, and travels by whatever carries bytes. It is a capability: do not publish it.
    """

@final
class Consume:
    """The context manager that `CaiView.consume` returns, for `with` and `async with`.

    Entering makes the consumer's stream wait for the data, and returns a view that is ready there. Leaving makes the
    producer's stream wait for the work on the consumer's stream, also if the body raises.

    Raises
    ------
    RuntimeError
        If the block is entered while it is open.

    Examples
    --------
    >>> with view.consume(stream) as array:  # doctest: +SKIP
    ...     kernel(array, stream)
    """

    def __enter__(self) -> CaiView: ...
    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None, /
    ) -> Literal[False]: ...
    def __aenter__(self) -> Coroutine[Any, Any, CaiView]: ...
    def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None, /
    ) -> Coroutine[Any, Any, Literal[False]]: ...

class InterchangeWarning(UserWarning):
    """The base class of this package's warnings."""

class StreamWarning(InterchangeWarning):
    """A producer does not declare the stream that its data is ready on, or declares stream 0."""

class VersionWarning(InterchangeWarning):
    """A producer exports a newer version of the CUDA Array Interface than the one that is known."""

class ConsumeWarning(InterchangeWarning, ResourceWarning):
    """A consume block was never left. Also a ResourceWarning, which Python's default filters ignore."""

@final
class DType:
    """An element type, which compares equal to every spelling of it.

    NumPy and JAX take it for a dtype: `np.dtype(v.dtype)`, `np.empty(3, v.dtype)`. Its `str` and its hash are those of
    its name.

    Parameters
    ----------
    spelling : DTypeLike
        A name ("bfloat16", "<f4"), a class (`np.float32`, `jnp.bfloat16`, `float`), or a dtype object of NumPy,
        ml_dtypes, torch, TensorFlow, Paddle or Numba.

    Raises
    ------
    TypeError, ValueError
        If `spelling` names no type.

    Examples
    --------
    >>> cd.DType("float32") == np.float32
    True
    """

    def __new__(cls, spelling: DTypeLike, /) -> DType:
        """Create and return a new object.  See help(type) for accurate signature."""

    @property
    def name(self) -> str:
        """The name, as NumPy and ml_dtypes spell it: "float32", "bfloat16", "bool"; of short vectors "float32x4", of
        records "void96", of other items that DLPack has not the typestr.
        """

    @property
    def itemsize(self) -> int | None:
        """The size of an element in bytes; None for packed types smaller than a byte."""

    @property
    def dtype(self) -> Any:
        """NumPy's dtype. Imports NumPy, and ml_dtypes for types that NumPy has not. Of short vectors a subarray; of a
        packed type the one that ml_dtypes stores in a byte each.

        Raises
        ------
        TypeError
            If NumPy has no such dtype.
        """

    @property
    def __numpy_dtype__(self) -> Any:
        """NumPy's dtype, as `dtype`: what NumPy 2.4 asks for."""

    def __copy__(self) -> DType:
        """A type is a value: what cannot change is its own copy."""

    def __deepcopy__(self, _memo: object) -> DType: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __format__(self, spec: str, /) -> str: ...
    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]: ...

@final
class CaiView:
    """A view of a strided array in memory that CUDA (or, from DLPack, the host) can access; keeps the owner alive.

    Made by `view`, `from_cai` and `from_dlpack`. It exports by both protocols: pass it to any consumer of `__dlpack__`
    or `__cuda_array_interface__`. It is immutable and copies nothing. It has neither a length nor items, as consumers
    that find them copy element by element.

    Attributes
    ----------
    shape : tuple of int
        The extents, in elements.
    dtype : DType
        The element type. Equals every spelling of it, such as "float32" and `np.float32`. Of records, text, dates and
        other items that DLPack has not, which leave by CAI alone, it is NumPy's: `np.dtype(v.dtype)`.
    device : tuple of int
        DLPack's device, as (type, id).
    stream : int | None
        The stream on which the data is ready; None if the data is ready.
    read_only : bool | None
        Whether consumers must not write; None if the producer could not state it.
    owner : object | None
        The Python object that keeps the memory alive; None if a DLPack tensor does.

    Examples
    --------
    >>> array = torch.from_dlpack(cd.view(numba_array))  # doctest: +SKIP
    """

    __dlpack_c_exchange_api__: ClassVar[CapsuleType]

    @property
    def ndim(self) -> int:
        """The number of axes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents, in elements."""

    @property
    def size(self) -> int:
        """The number of elements: 1 for an array without axes."""

    @property
    def dtype(self) -> DType:
        """The element type. Equals every spelling of it: "float32", `np.float32`, `torch.float32`."""

    @property
    def __numpy_dtype__(self) -> Any:
        """NumPy's dtype of the elements, by which `np.result_type(v)` and `jnp.asarray(v)` know it (from NumPy 2.4 on).

        Raises
        ------
        TypeError
            If NumPy has no such dtype.
        """

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
    def elem_strides(self) -> tuple[int, ...] | None:
        """The strides in elements, one for each axis; None if one is no whole number, which only CAI can say."""

    @property
    def is_c_contiguous(self) -> bool:
        """Whether the elements are adjacent, the last axis fastest; so are those of an array without elements."""

    @property
    def is_f_contiguous(self) -> bool:
        """Whether the elements are adjacent, the first axis fastest; so are those of an array without elements."""

    @property
    def ptr(self) -> int:
        """The address of the first element (index 0 on every axis); 0 for an array of size 0. On a device whose memory
        has handles instead of addresses (OpenCL, Vulkan, Metal, WebGPU), the handle.
        """

    @property
    def byte_offset(self) -> int:
        """The distance in bytes from a handle to the first element; 0 if `ptr` is an address."""

    @property
    def device(self) -> tuple[int, int]:
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
        does not name one. A producer that can be asked (by DLPack's C Exchange API) is asked each time.
        """

    @property
    def read_only(self) -> bool | None:
        """Whether consumers must not write: True, False, or None if the producer could not state it. Consumers that can
        be told are then told not to.
        """

    @property
    def owner(self) -> Any:
        """The Python object that keeps the memory alive; None if a DLPack tensor does."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA Array Interface, version 3: a new dict.

        Raises
        ------
        AttributeError
            If the interface cannot represent the array (memory that CUDA cannot access, bfloat16, float8, packed
            types, another thread's default stream), so that a probe goes on to DLPack. `to_cai` raises BufferError
            instead.
        """

    def __dlpack__(
        self,
        *,
        stream: StreamLike | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: DeviceLike | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Returns a DLPack capsule (array API 2024.12).

        Parameters
        ----------
        stream : StreamLike | None, default None
            The consumer's stream, which waits for the data by an event: None or 1 is the legacy default stream, 2 the
            per-thread one, -1 no synchronisation, else a handle, or an object with ``__cuda_stream__``. For pinned and
            managed memory None blocks until the host may read.
        max_version : tuple[int, int] | None, default None
            (1, 0) or later: a versioned tensor (1.3), else a legacy one.
        dl_device : DeviceLike | None, default None
            The view's own device; (1, 0) for the CPU: without a copy if the host can read the memory, else a copy; or
            another CUDA device, by a copy.
        copy : bool | None, default None
            True makes a copy, False refuses an export that needs one.

        Returns
        -------
        CapsuleType
            Owns this view until it is consumed or destroyed. A copy is in C order and writable, and is made on `stream`
            if it is on the device.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong type or value.
        BufferError
            If the array cannot be exported with these arguments.
        DriverError
            If a call of the CUDA driver fails.
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns DLPack's device, as (type, id).

        Returns
        -------
        tuple of int and int
        """

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's array interface, version 3, for memory that the host can read. Blocks until the data is ready.

        Raises
        ------
        AttributeError
            If the host cannot read the memory, or the interface cannot represent the type.
        """

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...
    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields of a structured array; empty for any other."""

    def field(self, name: str, /, *, dtype: DTypeLike | None = None) -> CaiView:
        """Returns one field of a structured array: a strided view of the same memory.

        Parameters
        ----------
        name : str
            One of `fields`.
        dtype : DTypeLike | None, default None
            The field's element type, if its typestr cannot state it. Reinterprets the bytes and never casts.

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
        """Returns a view of the same memory under another device. Copies nothing.

        The device and the host can both access managed, pinned and registered memory.

        Parameters
        ----------
        kind : Literal['cuda', 'host']
            "cuda" for consumers of device memory; "host" for consumers on the CPU, which blocks until the data is
            ready.

        Returns
        -------
        CaiView

        Raises
        ------
        BufferError
            If that side cannot access the memory.
        """

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Returns a NumPy array of memory that the host can read: pinned, managed or CPU memory.

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
            If the array is in device memory, which NumPy would copy element by element.
        """

    def on(self, stream: StreamLike, /) -> CaiView:
        """Returns a view that is ready on `stream`, by one event, or none if it is ready there already.

        For consumers that take no stream: the data is ready for work that is enqueued on `stream` from now on.

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

    def wait(self) -> Coroutine[Any, Any, CaiView]:
        """Waits as `synchronize` does, without blocking the event loop: `await view.wait()`.

        For asyncio. The task may be cancelled at any time.

        Returns
        -------
        Coroutine of CaiView
            A view with stream None.

        Raises
        ------
        DriverError
            If a call of the CUDA driver fails.
        """

    def consume(self, stream: StreamLike, /, *, strict: bool = False) -> Consume:
        """Returns a context manager for a consumer's work on `stream`, for `with` and for `async with`.

        Entering returns a view that is ready on `stream`, as `on` does. Leaving makes the producer's stream wait for
        the work on `stream`; `return_edge` of that view tells how. Neither makes an event if the streams are the same.
        `async with` does the same, and never blocks the event loop.

        Parameters
        ----------
        stream : StreamLike
            An int or an object with ``__cuda_stream__``.
        strict : bool, default False
            Refuses an array whose producer's stream is unknown.

        Returns
        -------
        ContextManager and AsyncContextManager of CaiView

        Raises
        ------
        TypeError, ValueError
            If `stream` names no stream.
        BufferError
            If the producer's stream is unknown and `strict` is set.

        Examples
        --------
        >>> with view.consume(stream) as array:  # doctest: +SKIP
        ...     kernel(array, stream)
        """

    @property
    def return_edge(self) -> Literal["event", "same-stream", "not-needed", "unknown"] | None:
        """The effect of leaving the `consume` block of this view; None for a view of no block.

        "event": the producer's stream waits for an event; if the block was entered under `policy(sync="none")`, that
        order is yours to make. "same-stream": nothing needs to wait. "not-needed": the producer has no work on any
        stream. "unknown": the producer's stream is unknown; order later work yourself.
        Raises BufferError on a thread on which leaving the block would be refused `[stream-thread]`.
        """

    def to_cai(self) -> dict[str, Any]:
        """Returns the CUDA Array Interface, version 3: a new dict. Its memory lives as long as this view.

        Returns
        -------
        dict

        Raises
        ------
        BufferError
            If the interface cannot represent the array.
        """

    def _repr_html_(self) -> str:
        """The view in a notebook: its facts, and where its first elements lie, in elements from the first one."""

    def __copy__(self) -> CaiView:
        """Returns the view itself, which is immutable."""

    def __deepcopy__(self, _memo: object, /) -> None: ...

@final
class Explanation:
    """The description of an import, returned by `explain`; its `str` is a text of a few lines.

    Attributes
    ----------
    route
    ready
    order
    refused
    call
    launch
    dropped
    remedies
    driver_calls
    warnings
    unknown
    """

    @property
    def route(self) -> Literal["exchange", "cai", "dlpack", "array_interface", "capsule", "view"] | None:
        """The route of `view`: "exchange", "cai", "dlpack", "array_interface", "capsule" or "view"; None if it would
        refuse the array.
        """

    @property
    def ready(self) -> str | None:
        """Where the data is ready: "now", "on" a stream, or "undeclared" with the stream that is taken; None if the
        producer makes it ready on the stream that it is passed.
        """

    @property
    def order(self) -> str | None:
        """Which stream would wait for which; None if the order depends on the producer."""

    @property
    def refused(self) -> str | None:
        """The error that the import or the consumer would raise; None if neither would, as far as is `unknown`."""

    @property
    def call(self) -> str | None:
        """The consumer's call, in which `v` is the view; None without `to`."""

    @property
    def launch(self) -> Explanation | None:
        """Explains the launch of a kernel of the library with the view as its argument: the call, the order, the
        driver's calls, and what is refused and dropped. None if the library has no kernels that take a view.
        """

    @property
    def remedies(self) -> tuple[str, ...]:
        """The calls that the consumer takes instead of a refused one; what the error of a refused import advises."""

    @property
    def driver_calls(self) -> tuple[str, ...] | None:
        """The driver's calls that make the order, such as "cuEventRecord"; None if they depend on the producer, or on a
        stream that is not named. Questions are not among them.
        """

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings that `view` would give."""

    @property
    def dropped(self) -> str | None:
        """What the consumer's call takes and its array does not have, such as "the read-only flag": it can be written,
        although the view's memory is read-only, or may be. None if nothing is known.
        """

    @property
    def unknown(self) -> str | None:
        """What cannot be known, and without what: a call of a `__dlpack__` that would make a stream wait, or the
        consumer's stream. None if nothing.
        """

def policy(
    *, sync: Literal["event", "host", "none"] | None = None, strict: bool | None = None, trace: bool | None = None
) -> AbstractContextManager[object]:
    """Sets how consumers are ordered after the data, what is refused, and what is traced, during a `with` block.

    The block belongs to the current context (`contextvars`): to the asyncio task, or to the thread outside of tasks.
    Tasks that are created inside it inherit the setting.

    Parameters
    ----------
    sync : Literal['event', 'host', 'none'] | None, default None
        "event" (the default): the consumer's stream waits for an event; the host does not wait. "host": the host
        waits for the data. "none": nothing waits; the caller has ordered the work.
    strict : bool | None, default None
        True: every import is strict (`view`), and so is `CaiView.consume`.
    trace : bool | None, default None
        True: each conversion writes a line to the logger `cai_dlpack`, at level debug.

    Returns
    -------
    ContextManager

    Raises
    ------
    TypeError, ValueError
        If `sync` is no str, or none of these; if no argument is given.
    RuntimeError
        If the block is left in another context than it was entered in.

    Examples
    --------
    >>> with cd.policy(sync="host"):  # doctest: +SKIP
    ...     array = torch.from_dlpack(cd.view(obj))
    """

def use_stream(stream: StreamLike, /, *, device_id: int | None = None) -> AbstractContextManager[object]:
    """Names the stream that the caller works on, during a `with` block.

    A consumer that imports views through the C Exchange API reads the work stream without naming an array. It
    gets this stream, and every view that it imports is made ready there. Without a block it gets the legacy default
    stream. A consumer of `__dlpack__` that names no stream finds device memory ready on this one and on the legacy
    default stream; in a capture, which forbids the latter, on this one alone. A producer of DLPack without that API
    is asked for its data on the same stream. The block belongs to the current context, as that of `policy` does.

    Parameters
    ----------
    stream : StreamLike
        An int or an object with ``__cuda_stream__``.
    device_id : int | None, default None
        The id of the stream's CUDA device. None: the driver is queried.

    Returns
    -------
    ContextManager

    Raises
    ------
    TypeError, ValueError
        If `stream` names no stream, or `device_id` no device.
    RuntimeError
        If the block is left in another context than it was entered in.
    DriverError
        If a call of the CUDA driver fails.
    """

def view(
    obj: ArrayLike,
    /,
    *,
    device_id: int | DeviceLike | None = None,
    producer_stream: StreamLike | EllipsisType | None = ...,
    dtype: DTypeLike | None = None,
    shape: tuple[int, ...] | list[int] | None = None,
    read_only: bool | None = None,
    owner: object = None,
    check: Literal["device", "bounds"] | None = None,
    strict: bool = False,
) -> CaiView:
    """Returns a view of an array that speaks CAI or DLPack. Copies nothing.

    The route is the first that the array offers: the C Exchange API of its type, CAI if it names the producer's
    stream (or has version 3), `__dlpack__`, CAI.

    Parameters
    ----------
    obj : ArrayLike
        An array with ``__cuda_array_interface__`` or ``__dlpack__``, a DLPack capsule, or a CAI dict (with
        `owner`).
    device_id : int | DeviceLike | None, default None
        The device of the memory: the number of the CUDA device; or a device of CUDA or ROCm, as ``"rocm:0"`` or the
        (type, id) pair ``(10, 0)``. Saves a call of the driver.
    producer_stream : StreamLike | EllipsisType | None, default ...
        The stream that writes the data, if the producer does not name it: an int or an object with
        ``__cuda_stream__``. None: nothing is pending. ``...``: the stream that the producer names.
    dtype : DTypeLike | None, default None
        The element type, if the producer cannot state it. Reinterprets the bytes and never casts.
    shape : tuple[int, ...] | list[int] | None, default None
        A new shape for contiguous memory, in elements of `dtype`. One extent may be -1: the rest.
    read_only : bool | None, default None
        Overrides the producer's flag, or its lack. False asserts that consumers may write.
    owner : object, default None
        Keeps the memory of a bare dict alive; of any other object, is kept alive beside it.
    check : Literal['device', 'bounds'] | None, default None
        "device" queries the driver for the device of the pointer; "bounds" also checks that the allocation
        holds every element. None: "device".
    strict : bool, default False
        Refuses data whose producer declares no stream, and what CAI forbids and producers send: a missing
        version, stream 0. False: as `policy` has it.

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
    obj: ArrayLike,
    /,
    *,
    device_id: int | DeviceLike | None = None,
    producer_stream: StreamLike | EllipsisType | None = ...,
    dtype: DTypeLike | None = None,
    shape: tuple[int, ...] | list[int] | None = None,
    read_only: bool | None = None,
    owner: object = None,
    check: Literal["device", "bounds"] | None = None,
    strict: bool = False,
) -> CaiView:
    """Returns a view of an array by the CUDA Array Interface, and by nothing else.

    Parameters
    ----------
    obj : ArrayLike
        An array with ``__cuda_array_interface__``, or such a dict (with `owner`).
    device_id : int | DeviceLike | None, default None
        The device of the memory: the number of the CUDA device; or a device of CUDA or ROCm, as ``"rocm:0"`` or the
        (type, id) pair ``(10, 0)``. Saves a call of the driver.
    producer_stream : StreamLike | EllipsisType | None, default ...
        The stream that writes the data, if the producer does not name it: an int or an object with
        ``__cuda_stream__``. None: nothing is pending. ``...``: the stream that the producer names.
    dtype : DTypeLike | None, default None
        The element type, if the producer cannot state it. Reinterprets the bytes and never casts.
    shape : tuple[int, ...] | list[int] | None, default None
        A new shape for contiguous memory, in elements of `dtype`. One extent may be -1: the rest.
    read_only : bool | None, default None
        Overrides the producer's flag, or its lack. False asserts that consumers may write.
    owner : object, default None
        Keeps the memory of a bare dict alive; of any other object, is kept alive beside it.
    check : Literal['device', 'bounds'] | None, default None
        "device" queries the driver for the device of the pointer; "bounds" also checks that the allocation
        holds every element. None: "device".
    strict : bool, default False
        Refuses data whose producer declares no stream, and what CAI forbids and producers send: a missing
        version, stream 0. False: as `policy` has it.

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
    obj: ArrayLike,
    /,
    *,
    device: DeviceLike | None = None,
    copy: bool | None = None,
    stream: StreamLike | None = None,
    device_id: int | DeviceLike | None = None,
    producer_stream: StreamLike | EllipsisType | None = ...,
    dtype: DTypeLike | None = None,
    shape: tuple[int, ...] | list[int] | None = None,
    read_only: bool | None = None,
    owner: object = None,
    check: Literal["device", "bounds"] | None = None,
    strict: bool = False,
) -> CaiView:
    """Returns a view of an array by `__dlpack__`, or of a capsule.

    Parameters
    ----------
    obj : ArrayLike
        An array with ``__dlpack__`` and ``__dlpack_device__``, or a DLPack capsule. Any array if it is to be
        copied.
    device : DeviceLike | None, default None
        The device for the data: "cpu", "cuda:1", a torch.device, or (type, id). None: where the array is. The
        producer makes the transfer; if it refuses, this package copies, and so it does with a capsule.
    copy : bool | None, default None
        Passed to the producer: True must copy, False must not. This package copies what is in a capsule.
    stream : StreamLike | None, default None
        The stream on which the data will be ready: the producer's call has it wait, and with `producer_stream` this
        package. None: the legacy default stream; for pinned and managed memory the host waits.
    device_id : int | DeviceLike | None, default None
        The device of the memory: the number of the CUDA device; or a device of CUDA or ROCm, as ``"rocm:0"`` or the
        (type, id) pair ``(10, 0)``. Saves a call of the driver.
    producer_stream : StreamLike | EllipsisType | None, default ...
        The stream that writes the data, if the producer does not name it: an int or an object with
        ``__cuda_stream__``. None: nothing is pending. ``...``: the stream that the producer names.
    dtype : DTypeLike | None, default None
        The element type, if the producer cannot state it. Reinterprets the bytes and never casts.
    shape : tuple[int, ...] | list[int] | None, default None
        A new shape for contiguous memory, in elements of `dtype`. One extent may be -1: the rest.
    read_only : bool | None, default None
        Overrides the producer's flag, or its lack. False asserts that consumers may write.
    owner : object, default None
        Keeps the memory of a bare dict alive; of any other object, is kept alive beside it.
    check : Literal['device', 'bounds'] | None, default None
        "device" queries the driver for the device of the pointer; "bounds" also checks that the allocation
        holds every element. None: "device".
    strict : bool, default False
        Refuses data whose producer declares no stream, and what CAI forbids and producers send: a missing
        version, stream 0. False: as `policy` has it.

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
    obj: ArrayLike,
    /,
    *,
    stream: StreamLike | Literal["host"] | None = None,
    max_version: tuple[int, int] | None = None,
    dl_device: DeviceLike | None = None,
    copy: bool | None = None,
    writable: bool = False,
    device_id: int | DeviceLike | None = None,
    producer_stream: StreamLike | EllipsisType | None = ...,
    dtype: DTypeLike | None = None,
    shape: tuple[int, ...] | list[int] | None = None,
    read_only: bool | None = None,
    owner: object = None,
    check: Literal["device", "bounds"] | None = None,
    strict: bool = False,
) -> CapsuleType:
    """Returns a DLPack capsule of an array.

    A capsule cannot negotiate. Pass `view(obj)` to a consumer that calls `__dlpack__` itself.

    Parameters
    ----------
    obj : ArrayLike
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
    device_id : int | DeviceLike | None, default None
        The device of the memory: the number of the CUDA device; or a device of CUDA or ROCm, as ``"rocm:0"`` or the
        (type, id) pair ``(10, 0)``. Saves a call of the driver.
    producer_stream : StreamLike | EllipsisType | None, default ...
        The stream that writes the data, if the producer does not name it: an int or an object with
        ``__cuda_stream__``. None: nothing is pending. ``...``: the stream that the producer names.
    dtype : DTypeLike | None, default None
        The element type, if the producer cannot state it. Reinterprets the bytes and never casts.
    shape : tuple[int, ...] | list[int] | None, default None
        A new shape for contiguous memory, in elements of `dtype`. One extent may be -1: the rest.
    read_only : bool | None, default None
        Overrides the producer's flag, or its lack. False asserts that consumers may write.
    owner : object, default None
        Keeps the memory of a bare dict alive; of any other object, is kept alive beside it.
    check : Literal['device', 'bounds'] | None, default None
        "device" queries the driver for the device of the pointer; "bounds" also checks that the allocation
        holds every element. None: "device".
    strict : bool, default False
        Refuses data whose producer declares no stream, and what CAI forbids and producers send: a missing
        version, stream 0. False: as `policy` has it.

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

def to(
    obj: ArrayLike,
    library: str | ModuleType | type,
    /,
    *,
    stream: StreamLike | None = None,
    device_id: int | DeviceLike | None = None,
    producer_stream: StreamLike | EllipsisType | None = ...,
    dtype: DTypeLike | None = None,
    shape: tuple[int, ...] | list[int] | None = None,
    read_only: bool | None = None,
    owner: object = None,
    check: Literal["device", "bounds"] | None = None,
    strict: bool = False,
) -> Any:
    """Returns a library's own array of the same memory, made by the best way that the library has.

    The data is ready where the library works: on its current stream, if its exchange table names one, else as the
    library's own call requests it. Copies nothing, unless the library's call does.

    Parameters
    ----------
    obj : ArrayLike
        Any array that `view` takes.
    library : str | ModuleType | type
        The library: its name ("torch"), its module (``torch``), or its class of arrays (``torch.Tensor``).
    stream : StreamLike | None, default None
        The stream that the library will work on, by the numbers of `CaiView.__dlpack__`: -1 makes no order. None: the
        library's own.
    device_id : int | DeviceLike | None, default None
        The device of the memory: the number of the CUDA device; or a device of CUDA or ROCm, as ``"rocm:0"`` or the
        (type, id) pair ``(10, 0)``. Saves a call of the driver.
    producer_stream : StreamLike | EllipsisType | None, default ...
        The stream that writes the data, if the producer does not name it: an int or an object with
        ``__cuda_stream__``. None: nothing is pending. ``...``: the stream that the producer names.
    dtype : DTypeLike | None, default None
        The element type, if the producer cannot state it. Reinterprets the bytes and never casts.
    shape : tuple[int, ...] | list[int] | None, default None
        A new shape for contiguous memory, in elements of `dtype`. One extent may be -1: the rest.
    read_only : bool | None, default None
        Overrides the producer's flag, or its lack. False asserts that consumers may write.
    owner : object, default None
        Keeps the memory of a bare dict alive; of any other object, is kept alive beside it.
    check : Literal['device', 'bounds'] | None, default None
        "device" queries the driver for the device of the pointer; "bounds" also checks that the allocation
        holds every element. None: "device".
    strict : bool, default False
        Refuses data whose producer declares no stream, and what CAI forbids and producers send: a missing
        version, stream 0. False: as `policy` has it.

    Returns
    -------
    Any
        What the library's call returns: a `torch.Tensor`, a `jax.Array`. Keeps the array alive.

    Raises
    ------
    TypeError, ValueError
        If an argument or a field of the interface has the wrong type or value, or the library is not known.
    BufferError
        If the array is valid and cannot be exported.
    DriverError
        If a call of the CUDA driver fails.
    ImportError
        If the library is not installed.
    Exception
        What the library raises if it refuses the array; `explain` tells before.

    Examples
    --------
    >>> cd.to(numba_array, torch)  # doctest: +SKIP
    """

def explain(
    obj: object,
    /,
    *,
    to: str | ModuleType | type | None = None,
    stream: StreamLike | None = None,
    device_id: int | DeviceLike | None = None,
    producer_stream: StreamLike | EllipsisType | None = ...,
    dtype: DTypeLike | None = None,
    shape: tuple[int, ...] | list[int] | None = None,
    read_only: bool | None = None,
    owner: object = None,
    check: Literal["device", "bounds"] | None = None,
    strict: bool = False,
) -> Explanation:
    """Describes what `view` and the consumer's call would do with an array: the route, the order, what is refused.

    Takes the keywords of `view`. Imports the array as `view` does, and drops it; makes nothing wait. A producer whose
    `__dlpack__` would make a stream wait is not called, and `unknown` says so.

    Parameters
    ----------
    obj : object
        Any array that `view` takes.
    to : str | ModuleType | type | None, default None
        The consumer's library: one of its names ("torch", "pytorch"), its module, or its class of arrays. Adds its
        zero-copy call, and what the call refuses.
    stream : StreamLike | None, default None
        The consumer's stream, as in `CaiView.__dlpack__`.
    device_id : int | DeviceLike | None, default None
        The device of the memory: the number of the CUDA device; or a device of CUDA or ROCm, as ``"rocm:0"`` or the
        (type, id) pair ``(10, 0)``. Saves a call of the driver.
    producer_stream : StreamLike | EllipsisType | None, default ...
        The stream that writes the data, if the producer does not name it: an int or an object with
        ``__cuda_stream__``. None: nothing is pending. ``...``: the stream that the producer names.
    dtype : DTypeLike | None, default None
        The element type, if the producer cannot state it. Reinterprets the bytes and never casts.
    shape : tuple[int, ...] | list[int] | None, default None
        A new shape for contiguous memory, in elements of `dtype`. One extent may be -1: the rest.
    read_only : bool | None, default None
        Overrides the producer's flag, or its lack. False asserts that consumers may write.
    owner : object, default None
        Keeps the memory of a bare dict alive; of any other object, is kept alive beside it.
    check : Literal['device', 'bounds'] | None, default None
        "device" queries the driver for the device of the pointer; "bounds" also checks that the allocation
        holds every element. None: "device".
    strict : bool, default False
        Refuses data whose producer declares no stream, and what CAI forbids and producers send: a missing
        version, stream 0. False: as `policy` has it.

    Returns
    -------
    Explanation
        Prints as a text of a few lines.

    Raises
    ------
    TypeError, ValueError
        If `to` names no library of the table of partners, `stream` no stream, or a keyword of `view` has the wrong
        type or value.
    RecursionError, MemoryError
        What tells of the process rather than of the array.
    """

def join(items: Iterable[ArrayLike | StreamLike], /, *, on: StreamLike) -> list[CaiView]:
    """Makes a stream wait for many streams or arrays, by one event for each distinct stream.

    If a producer works on several streams, join them, then import with ``producer_stream=on``. For many arrays that
    go to one stream the number of events is that of the streams, not of the arrays. If `on` is a default stream, it
    is that of the views' context, which must be one; without views it is that of the current context. A default stream
    among the items is that of the context that is current as it is handed out.

    Parameters
    ----------
    items : Iterable[ArrayLike | StreamLike]
        Views and arrays, for their ready streams, and streams: ints or objects with ``__cuda_stream__``.
    on : StreamLike
        The stream that waits.

    Returns
    -------
    list of CaiView
        The views among `items`, and views of the arrays, in order, ready on `on`.

    Raises
    ------
    TypeError, ValueError
        If an item is neither an array nor a stream, or `on` names no stream; those of `view`.
    DriverError
        If a call of the CUDA driver fails.
    """

def split_masked(
    obj: ArrayLike, /, *, mask: Literal["auto", "bit", "byte"] = "auto", device_id: int | DeviceLike | None = None
) -> tuple[CaiView, CaiView | None]:
    """Returns the values and the mask of a masked array as two views. Copies nothing.

    Parameters
    ----------
    obj : ArrayLike
        An array with ``__cuda_array_interface__``, a masked array of NumPy, or any array without a mask.
    mask : Literal['auto', 'bit', 'byte'], default "auto"
        The form of the mask: "bit", "byte", or "auto" to infer it from type and shape.
    device_id : int | DeviceLike | None, default None
        The id of the CUDA device. Saves a call of the driver.

    Returns
    -------
    tuple of CaiView and (CaiView or None)
        The values, and the mask; None if the array has none. A mask of bytes is a view of `bool`, of the values'
        shape or one that broadcasts to it; a mask of bits a view of `uint8`, whose lowest bit belongs to the
        first value. A value is valid if its mask is not 0. NumPy's masks state the opposite: of a masked array of
        NumPy the mask is a read-only copy, inverted.

    Raises
    ------
    TypeError, ValueError, BufferError, DriverError
        As `view` does; ValueError if both forms of mask fit and `mask` is "auto".
    """

def share(obj: ArrayLike, /, *, key: bytes | None = None) -> AbstractContextManager[Handle]:
    """Lets another process of this machine use the memory of an array, during a `with` block. Copies nothing.

    Entering returns a handle, for `open` in a process of the same user: it pickles, and it is bytes. By CUDA IPC,
    so that the memory is of `cuMemAlloc` (`cudaMalloc`), or a `Buffer` of cuda.core from a pool that was made for
    IPC: the buffer itself, or a view that has it as its owner. The process that opens it finds the data ready: an
    event travels with it. Leaving has later calls of `open` refused, and does not block; the array is kept until
    the last process that has opened the handle has let go of it, or has died.

    A handle is a capability: who has it, and the key, can read and write the memory, also if the array is read-only,
    which no hardware enforces. Whether the other process is done with the data, only a message of your own tells.

    Parameters
    ----------
    obj : ArrayLike
        Any array that `view` takes.
    key : bytes | None, default None
        The secret that both processes have. None: `multiprocessing.current_process().authkey`, which the children of
        multiprocessing inherit.

    Returns
    -------
    ContextManager of Handle

    Raises
    ------
    TypeError, ValueError
        As `view` does; if `key` is no bytes, or empty.
    BufferError
        If CUDA IPC does not share this memory; as `view` does.
    DriverError
        If a call of the CUDA driver fails.

    Examples
    --------
    >>> with cd.share(array) as handle:  # doctest: +SKIP
    ...     queue.put(handle)
    ...     done.wait()
    """

def open(handle: bytes, /, *, stream: StreamLike | None = None, key: bytes | None = None) -> CaiView:
    """Opens a handle of `share`: returns a view of the other process's memory. Copies nothing.

    The handle's tag is checked before anything in it is used. The view keeps the memory in both processes, as all that
    is made of it does; when the last of it is gone, this process waits for the device on a thread of its own, and lets
    go. In the process that shares, it is a view of the same array. The exporter must not die meanwhile: what is left
    then is what CUDA leaves.

    Parameters
    ----------
    handle : bytes
        What the block of `share` has returned: the handle, or the same bytes.
    stream : StreamLike | None, default None
        The stream on which the data will be ready. None: that of `use_stream`, else the legacy default stream.
    key : bytes | None, default None
        As in `share`.

    Returns
    -------
    CaiView
        Ready on `stream`. On the device that this process knows under the same UUID.

    Raises
    ------
    TypeError, ValueError
        If `stream` names no stream; if `handle` is none of this key.
    BufferError
        If the block of `share` has been left; if the handle is of another machine, user or container, or of a device
        that is not visible here.
    DriverError
        If a call of the CUDA driver fails.

    Examples
    --------
    >>> view = cd.open(queue.get(), stream=stream)  # doctest: +SKIP
    """

def stats() -> dict[str, int]:
    """Returns the counters of ownership.

    Returns
    -------
    dict
        live: living owners. pending: releases that wait for the GIL. released: releases so far. leaked_at_exit:
        owners leaked at the interpreter's end. panics: caught Rust panics. open_guards: open consume blocks.
    """

def _partners() -> list[dict[str, Any]]:
    """The table of partners: a dict for each."""
