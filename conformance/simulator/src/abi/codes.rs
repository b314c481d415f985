//! CUresult: every code that the simulator can return, with its name and a short text.

/// A CUresult. `Code` is always a failure except for [`Code::SUCCESS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Code(pub(crate) u32);

/// The result of a call: success, or the code of its failure.
pub(crate) type Status = Result<(), Code>;

macro_rules! codes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Code {
            $(pub(crate) const $name: Code = Code($value);)*
        }

        /// One row per code: value, name as a C string, text as a C string.
        const ROWS: &[(u32, &str, &str)] = &[
            (0, "CUDA_SUCCESS\0", "no error\0"),
            $(($value, concat!("CUDA_ERROR_", stringify!($name), "\0"), concat!($text, "\0")),)*
        ];
    };
}

codes! {
    INVALID_VALUE = 1, "invalid argument";
    OUT_OF_MEMORY = 2, "out of memory";
    NOT_INITIALIZED = 3, "driver not initialised";
    DEINITIALIZED = 4, "driver is shutting down";
    NO_DEVICE = 100, "no device";
    INVALID_DEVICE = 101, "no such device ordinal";
    INVALID_CONTEXT = 201, "no usable context is current";
    MAP_FAILED = 205, "memory could not be mapped";
    ECC_UNCORRECTABLE = 214, "uncorrectable memory error";
    PEER_ACCESS_UNSUPPORTED = 217, "peer access is not supported between these devices";
    OPERATING_SYSTEM = 304, "a call to the operating system failed";
    INVALID_HANDLE = 400, "invalid handle";
    ILLEGAL_STATE = 401, "the object is not in a state for this operation";
    NOT_FOUND = 500, "named symbol not found";
    NOT_READY = 600, "not ready";
    ILLEGAL_ADDRESS = 700, "work touched memory that is not allocated";
    LAUNCH_TIMEOUT = 702, "a launch timed out";
    PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705, "peer access is not enabled";
    PRIMARY_CONTEXT_ACTIVE = 708, "the primary context is active";
    CONTEXT_IS_DESTROYED = 709, "the current context has been destroyed";
    ASSERT = 710, "a device-side assert failed";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "part of the range is registered already";
    HOST_MEMORY_NOT_REGISTERED = 713, "the pointer is not a registered range";
    HARDWARE_STACK_ERROR = 714, "hardware stack error";
    ILLEGAL_INSTRUCTION = 715, "illegal instruction";
    MISALIGNED_ADDRESS = 716, "misaligned address";
    INVALID_ADDRESS_SPACE = 717, "operation in the wrong address space";
    INVALID_PC = 718, "invalid program counter";
    LAUNCH_FAILED = 719, "a launch failed";
    NOT_PERMITTED = 800, "operation not permitted";
    NOT_SUPPORTED = 801, "operation not supported";
    STREAM_CAPTURE_UNSUPPORTED = 900, "operation not permitted while a stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, "the capture was invalidated by an earlier error";
    STREAM_CAPTURE_MERGE = 902, "the operation would merge two captures";
    STREAM_CAPTURE_UNMATCHED = 903, "the capture did not begin on this stream";
    STREAM_CAPTURE_UNJOINED = 904, "a forked stream was not joined back";
    STREAM_CAPTURE_ISOLATION = 905, "a dependency would cross the border of a capture";
    STREAM_CAPTURE_IMPLICIT = 906, "an implicit dependency of the legacy stream on a capture";
    CAPTURED_EVENT = 907, "the event was last recorded in a capture";
    STREAM_CAPTURE_WRONG_THREAD = 908, "the capture belongs to another thread";
    UNKNOWN = 999, "unknown error";
}

/// Codes after which the driver returns the same code from every further call of the context
/// ("this leaves the process in an inconsistent state", in the words of the API documentation).
const STICKY: &[Code] = &[
    Code::ECC_UNCORRECTABLE,
    Code::ILLEGAL_ADDRESS,
    Code::LAUNCH_TIMEOUT,
    Code::ASSERT,
    Code::HARDWARE_STACK_ERROR,
    Code::ILLEGAL_INSTRUCTION,
    Code::MISALIGNED_ADDRESS,
    Code::INVALID_ADDRESS_SPACE,
    Code::INVALID_PC,
    Code::LAUNCH_FAILED,
];

impl Code {
    pub(crate) const SUCCESS: Code = Code(0);

    pub(crate) fn is_sticky(self) -> bool {
        STICKY.contains(&self)
    }

    /// Returns the name with its terminating NUL, for codes of the table.
    pub(crate) fn name(self) -> Option<&'static str> {
        self.row().map(|row| row.1)
    }

    /// Returns the text with its terminating NUL, for codes of the table.
    pub(crate) fn text(self) -> Option<&'static str> {
        self.row().map(|row| row.2)
    }

    fn row(self) -> Option<&'static (u32, &'static str, &'static str)> {
        ROWS.iter().find(|row| row.0 == self.0)
    }
}

/// Converts the result of a call to a CUresult.
pub(crate) fn to_c(status: Status) -> u32 {
    match status {
        Ok(()) => Code::SUCCESS.0,
        Err(code) => code.0,
    }
}
