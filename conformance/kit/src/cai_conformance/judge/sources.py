"""The sentences of the specifications that the checks quote, each once."""

from __future__ import annotations

from cai_conformance.judge.check import Source

# Each address is that of one version, in which the sentence stands; `since` is the first that has it.
_CAI_URL = "https://github.com/NVIDIA/numba-cuda/blob/v0.30.4/docs/source/user/cuda_array_interface.rst"
_NUMPY_URL = "https://github.com/numpy/numpy/blob/v2.4.6/doc/source/reference/arrays.interface.rst"
_DLPACK_URL = "https://github.com/dmlc/dlpack/blob"
_HEADER, _PYTHON = "include/dlpack/dlpack.h", "docs/source/python_spec.rst"
#: The last version of DLPack that has a tag in the copy of its repository that was read; later ones are on main.
_LAST_TAG = (1, 1)
_ARRAY_URL = "https://data-apis.org/array-api/{}/API_specification/generated/array_api."
_EXPORT, _DEVICE, _FROM = "array.__dlpack__", "array.__dlpack_device__", "from_dlpack"


def _cai(since: str, sentence: str) -> Source:
    return Source("CAI", since, sentence, _CAI_URL)


def _numpy(sentence: str) -> Source:
    return Source("CAI", "0", sentence, _NUMPY_URL)


def _tag(since: str) -> str:
    return f"v{since}" if tuple(map(int, since.split("."))) <= _LAST_TAG else "main"


def _header(since: str, sentence: str, until: str = "") -> Source:
    return Source("DLPack", since, sentence, f"{_DLPACK_URL}/{_tag(since)}/{_HEADER}", until)


def _python(since: str, sentence: str) -> Source:
    """DLPack's page on Python, which version 0.7 is the first to have; the protocol is of the array API 2021.12."""
    return Source("DLPack", since, sentence, f"{_DLPACK_URL}/{_tag(since)}/{_PYTHON}")


def _array(since: str, sentence: str, page: str = _EXPORT) -> Source:
    return Source("array API", since, sentence, f"{_ARRAY_URL.format(since)}{page}.html")


# --- the CUDA Array Interface, and NumPy's page where it refers to it ---

CAI_DICT = _cai("0", "The __cuda_array_interface__ attribute returns a dictionary (dict)")
CAI_SHAPE = _cai("0", "A tuple of int (or long) representing the size of each dimension.")
CAI_TYPESTR = _cai("0", "The type string. This has the same definition as typestr in the NumPy array interface.")
CAI_DATA = _cai("0", "The data is a 2-tuple.")
CAI_POINTER = _cai("0", "The first element is the data pointer as a Python int (or long).")
CAI_ACCESSIBLE = _cai("0", "The data must be device-accessible.")
CAI_ZERO_SIZE = _cai("2", "For zero-size arrays, use 0 here.")
CAI_READ_ONLY = _cai("0", "The second element is the read-only flag as a Python bool.")
CAI_VERSION = _cai("0", "An integer for the version of the interface being exported.")
CAI_STRIDES_NONE = _cai("2", "If strides is not given, or it is None, the array is in C-contiguous layout.")
CAI_STRIDES = _cai(
    "0", "A tuple of int (or long) [...] representing the number of bytes to skip to access the next element"
)
CAI_DESCR = _cai("0", "This follows the same specification as in the NumPy array interface.")
CAI_MASK = _cai("1", "mask: None or object exposing the __cuda_array_interface__")
CAI_STREAM = _cai("3", "stream: None or integer")
CAI_STREAM_ZERO = _cai("3", "0: This is disallowed as it would be ambiguous between None and the default stream")
CAI_STREAM_CODES = _cai("3", "1: The legacy default stream. 2: The per-thread default stream.")
CAI_STREAM_HANDLE = _cai("3", "Any other integer: a cudaStream_t represented as a Python integer.")
CAI_STREAM_NONE = _cai("3", "When None, no synchronization is required.")
CAI_STREAM_LIFE = _cai(
    "3",
    "a Producer [...] ensures that the exported stream's lifetime is equal to or surpasses the lifetime of the object "
    "from which the interface was exported",
)
CAI_CONSUMER_SYNC = _cai(
    "3",
    "When stream is an integer, [...] the Consumer is expected to either: Synchronize on before accessing the data, or "
    "Enqueue operations in when accessing the data.",
)
CAI_LIFETIME = _cai(
    "3",
    "Obtaining the value of the __cuda_array_interface__ property of any object has no effect on the lifetime of the "
    "object from which it was created.",
)
NUMPY_TYPESTR = _numpy("The basic string format consists of 3 parts")
NUMPY_ORDER = _numpy(
    "a character describing the byteorder of the data (<: little-endian, >: big-endian, |: not-relevant)"
)
NUMPY_KIND = _numpy("a character code giving the basic type of the array")
NUMPY_SIZE = _numpy("an integer providing the number of bytes the type uses")
NUMPY_DESCR = _numpy("A list of tuples providing a more detailed description of the memory layout")
NUMPY_MASK = _numpy("The mask object should be 'broadcast-compatible' with the shape of the original array.")

# --- DLPack's header ---

DL_VERSION = _header("1.0", "The API and ABI version of the current managed Tensor")
DL_MAJOR = _header(
    "1.0",
    "If an obtained DLPack tensor has a major version that disagrees [...], the consumer must call the deleter (and it "
    "is safe to do so). It is not safe to access any other fields",
)
DL_MINOR = _header("1.0", "In the case of a minor version mismatch, the tensor can be safely used")
DL_DEVICE = _header("0.2", "The device type used in the device.")
DL_DEVICE_ID = _header(
    "0.6", "The device index. For vanilla CPU memory, pinned memory, or managed memory, this is set to 0."
)
DL_DTYPE_CODE = _header("0.2", "the value should be one of DLDataTypeCode enum values")
DL_DTYPE_BITS = _header("0.2", "Number of bits, common choices are 8, 16, 32.")
DL_DTYPE_LANES = _header("0.2", "Number of lanes in the type, used for vector types.")
DL_DTYPE_BOOL = _header("0.8", "bool: type_code = 6, bits = 8, lanes = 1")
DL_DTYPE_COMPLEX = _header("0.5", "complex<float>: type_code = 5, bits = 64, lanes = 1")
DL_DTYPE_FP6 = _header("1.1", "the consumer must stop importing if the value is unexpected")
DL_NATIVE = _header(
    "0.7", "An explicit error message should be raised when attempting to export an array with non-native endianness"
)
DL_ALIGNED = _header("0.3", "This pointer is always aligned to 256 bytes as in CUDA.")
DL_DEVICE_POINTER = _header("0.2", "This will be CUDA device pointer or cl_mem handle in OpenCL.")
DL_OFFSET = _header("0.7", "The `byte_offset` field should be used to point to the beginning of the data.")
DL_ZERO_SIZE = _header("1.0", "if the tensor is of size zero, then the data pointer should be set to `NULL`")
DL_NDIM = _header("0.2", "Number of dimensions")
DL_SHAPE = _header("0.2", "The shape of the tensor")
DL_STRIDES = _header("0.3", "strides of the tensor (in number of elements, not bytes)")
DL_STRIDES_NULL = _header("0.3", "can be NULL, indicating tensor is compact and row-majored", until="1.1")
DL_STRIDES_SET = _header("1.2", "can not be NULL if ndim != 0, must points to an array of ndim elements")
DL_DELETER = _header("1.0", "Destructor - this should be called to destruct the manager_ctx")
DL_DELETER_SELF = _header("1.0", "The destructor deletes the argument self as well.")
DL_DELETER_NULL = _header("0.2", "It can be NULL if there is no way for the caller to provide a reasonable destructor.")
DL_CONTEXT = _header("0.2", "the context of the original host framework [...] It can also be NULL.")
DL_FLAGS = _header("1.0", "By default the flags should be set to 0.")
DL_READ_ONLY = _header("1.0", "bit mask to indicate that the tensor is read only.")
DL_COPIED = _header("1.0", "bit mask to indicate that the tensor is a copy made by the producer.")

EX_TYPE = _header(
    "1.3", 'This attribute must be set on the type as a Python PyCapsule with name "dlpack_exchange_api".'
)
EX_VERSION = _header("1.3", "the consumer must check major version compatibility before using this struct")
EX_PREV = _header("1.3", "It must be NULL if the framework does not support older versions.")
EX_WALK = _header(
    "1.3",
    "If the current major version is larger than the one supported by the consumer, the consumer may walk this to find "
    "an earlier supported version.",
)
EX_LOOKUP = _header(
    "1.3", "The consumer should look up the attribute on the type and may cache the result for each unique type."
)
EX_NOT_NULL = _header("1.3", "This function must not be NULL.")
EX_ALIVE = _header("1.3", "The DLPackExchangeAPI* must stay alive throughout the lifetime of the process.")
EX_FROM = _header("1.3", "Exports a PyObject* Tensor/NDArray to a DLManagedTensorVersioned.")
EX_BORROW = _header("1.3", "Exports a PyObject* Tensor/NDArray to a provided DLTensor.")
EX_BORROW_NULL = _header("1.3", "This function can be NULL when the producer does not support this function.")
EX_LENT = _header(
    "1.3", "The liveness of the DLTensor and the data it views is only guaranteed until control is returned."
)
EX_FAILURE = _header("1.3", "NULL on failure with a Python exception set")
EX_OWNING = _header("1.3", "The owning DLManagedTensorVersioned*")
EX_SAME_STREAM = _header(
    "1.3", "The consumer is also expected to run the kernel with the same stream context as the producer."
)
EX_TO = _header("1.3", "Imports a DLManagedTensorVersioned to a PyObject* Tensor/NDArray.")
EX_STOLEN = _header("1.3", "the ownership of the tensor is stolen")
EX_STREAM_CPU = _header("1.3", "When device_type is kDLCPU, [...] the producer can simply return NULL when queried.")
EX_ALLOCATE = _header("1.3", "Create a new `DLManagedTensorVersioned` within the context of the producer library.")
EX_SET_ERROR = _header("1.3", "SetError is called exactly when NULL is returned")

# --- DLPack's Python specification, and the array API ---

PY_NAME = _python("0.7", 'The producer must set the PyCapsule name to "dltensor" so that it can be inspected by name')
PY_NAME_VERSIONED = _python("1.0", "the capsule names dltensor and used_dltensor will need a _versioned suffix")
PY_DESTRUCTOR = _python(
    "0.7", 'set PyCapsule_Destructor that calls the deleter [...] when the "dltensor"-named capsule is no longer needed'
)
PY_RENAME = _python("0.7", 'It does so by renaming the capsule to "used_dltensor"')
PY_ONCE = _python("0.7", "it is consumed exactly once")
PY_DELETER = _python(
    "0.7", "the deleter of the DLManagedTensor will be called by the destructor of the consumer library object"
)
PY_IN_FLIGHT = _python("0.7", "an exception may be in-flight, we must save it in case we create another one")
PY_DELETER_ERROR = _python("0.7", "is the deleter allowed to set a python exception? [...] assert(!PyErr_Occurred());")
PY_GIL = _python("1.0", "the GIL must be acquired explicitly if it uses Python objects or API")
PY_LATE = _python(
    "1.0",
    "Leak the Python object if the Python runtime is not available. This can happen if the DLPack consumer destroys "
    "the tensor late after Python runtime finalization",
)
PY_VIEW = _python("0.7", "If possible, this must be zero-copy")
PY_STRIDES_NULL = _python(
    "0.7", "When the strides field in the DLTensor struct is NULL, it indicates a row-major compact array."
)
PY_STREAM = _python("0.7", "The consumer must pass the stream it will use to the producer")
PY_STREAM_WAIT = _python("0.7", "the producer must synchronize or wait on the stream when necessary")
PY_UNSUPPORTED = _python(
    "1.0", "a device that the requesting (consumer) library does not support, it is recommended to raise a BufferError"
)

AA_KEYWORDS = _array("2021.12", "__dlpack__(*, stream: int | Any | None = None)")
AA_STREAM_CPU = _array("2021.12", "On CPU and other device types without streams, only None is accepted.")
AA_STREAM_NONE = _array("2021.12", "None: producer must assume the legacy default stream (default).")
AA_STREAM_ZERO = _array("2021.12", "0 is disallowed due to its ambiguity")
AA_STREAM_RANGE = _array("2023.12", "The pointer must be an integer larger than or equal to -1")
AA_STREAM_ROCM = _array("2021.12", "Using 1 and 2 is not supported.")
AA_STREAM_EXPLICIT = _array(
    "2021.12",
    "It is recommended that implementers explicitly handle streams. If they use the legacy default stream, specifying "
    "1 (CUDA) or 0 (ROCm) is preferred.",
)
AA_NO_SYNC = _array("2021.12", '-1 [...] signal "producer must not perform any synchronization"')
AA_MAX_VERSION = _array(
    "2023.12", "the maximum DLPack version that the consumer supports, in the form of a 2-tuple (major, minor)"
)
AA_OLDER = _array("2023.12", "If so, use that. Else, the producer should raise a BufferError")
AA_NEWER = _array(
    "2023.12",
    "if max_version >= our_own_dlpack_version: Consumer understands us, just return a Capsule with our max version",
)
AA_STREAM_OPTIONAL = _array(
    "2021.12", "Support for a stream value other than None is optional and implementation-dependent."
)
AA_KEEP = _array("2023.12", "if max_version is None: Keep and use the DLPack 0.X implementation")
AA_FALLBACK = _array("2023.12", "except TypeError: x.__dlpack__(...)")
AA_DL_DEVICE = _array(
    "2023.12", "Default is None, meaning the exported capsule should be on the same device as self is."
)
AA_DL_DEVICE_ERROR = _array(
    "2023.12", "If the device type cannot be handled by the producer, this function must raise BufferError."
)
AA_DL_DEVICE_HOST = _array(
    "2023.12",
    "a compliant library should offer a way for __dlpack__ to return a capsule referencing an array whose underlying "
    "memory is accessible to the Python interpreter (represented by the kDLCPU enumerator in DLPack)",
)
#: In 2023.12 it was ValueError; 2024.12 "resolved conflicting exception guidance".
AA_HOST_COPY_FALSE = _array(
    "2024.12",
    "If a copy must be made to enable this support but copy is set to False, the function must raise BufferError.",
)
AA_COPY_TRUE = _array("2023.12", "If True, the function must always copy")
AA_COPY_FALSE = _array("2023.12", "If False, the function must never copy, and raise a BufferError")
AA_COPY_NONE = _array("2023.12", "If None, the function must reuse the existing memory buffer if possible")
AA_COPIED = _array("2023.12", "When a copy happens, the DLPACK_FLAG_BITMASK_IS_COPIED flag must be set.")
AA_BUFFER_ERROR = _array("2022.12", "raise BufferError when the data cannot be exported as DLPack")
AA_SAME_DEVICE = _array(
    "2023.12", "If device is None and x supports DLPack, the output array must be on the same device as x.", _FROM
)
AA_FROM_COPY_TRUE = _array("2023.12", "If True, the function must always copy.", _FROM)
AA_FROM_COPY_FALSE = _array(
    "2023.12",
    "If False, the function must never copy, and raise BufferError in case a copy is deemed necessary",
    _FROM,
)
AA_FROM_DEVICE = _array(
    "2023.12",
    "a compliant library should offer a way for from_dlpack to return an array whose underlying memory is accessible "
    "to the Python interpreter, when the corresponding device is provided. If the array library does not support such "
    "cases at all, the function must raise BufferError.",
    _FROM,
)
AA_READ_ONLY = _array(
    "2023.12",
    "A consumer that does not support read-only arrays should ignore this flag (this is preferred over raising an "
    "exception; the user is then responsible for ensuring the memory isn't modified).",
)
AA_DEVICE = _array("2021.12", "a tuple (device_type, device_id) in DLPack format", _DEVICE)
AA_PROPAGATE = _array("2023.12", "from_dlpack must propagate such exceptions", _FROM)
AA_MISSING = _array("2023.12", "AttributeError If the __dlpack__ and __dlpack_device__ methods are not present", _FROM)
