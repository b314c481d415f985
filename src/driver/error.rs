//! A driver call that failed, in words that help at night.

use std::fmt;

/// The CUDA driver refused a call, or is not there.
///
/// Three words wide: results that carry one stay cheap. The producer's data, streams and the
/// caller's current context are as they were before the call that failed.
///
/// ```
/// use cai_dlpack::driver::DriverError;
///
/// let error = DriverError::ABSENT;
/// assert_eq!((error.call(), error.name()), ("cuInit", "NO_DRIVER_LIBRARY"));
/// assert!(error.is_absent() && error.code().is_none()); // no call was made
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct DriverError {
    call: &'static str,
    failure: Failure,
}

#[derive(Copy, Clone, PartialEq, Eq, Hash)]
enum Failure {
    /// The driver's own code: a `CUresult` other than 0.
    Code(u32),
    /// There is no driver library to load.
    Absent,
    /// The library is there but has no such function.
    MissingSymbol,
    /// The driver is the parent process's.
    Forked,
}

/// Makes a call, and once more if it is refused. Ends make their calls so: a single refusal proves nothing. Of two refusals it
/// returns the second, but for one that alone says that the context has ended.
pub(crate) fn twice<T, E: Refusal>(mut call: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    call().or_else(|first| {
        call().map_err(|second| match second.is_end() && !first.is_end() {
            true => first,
            false => second,
        })
    })
}

/// A refusal that may be the driver's.
pub(crate) trait Refusal {
    /// Whether it says that a context has ended.
    fn is_end(&self) -> bool;
}

impl Refusal for DriverError {
    fn is_end(&self) -> bool {
        self.is_end_of_context()
    }
}

/// Like [`twice`], of a call in a context; `None` if that has ended, by both answers ([`DriverError::is_end_of_context`]).
pub(crate) fn unless_ended<T>(
    call: impl FnMut() -> Result<T, DriverError>,
) -> Result<Option<T>, DriverError> {
    match twice(call) {
        Err(error) if error.is_end_of_context() => Ok(None),
        told => told.map(Some),
    }
}

impl DriverError {
    /// No driver library could be loaded.
    pub const ABSENT: DriverError = DriverError {
        call: "cuInit",
        failure: Failure::Absent,
    };

    /// The process was forked from one that had loaded the driver, which does not survive that.
    pub const FORKED: DriverError = DriverError {
        call: "cuInit",
        failure: Failure::Forked,
    };

    /// `call` returned `code`, a `CUresult` other than 0.
    pub(crate) const fn new(call: &'static str, code: u32) -> DriverError {
        DriverError {
            call,
            failure: Failure::Code(code),
        }
    }

    /// The driver has no function `call`.
    pub(crate) const fn missing(call: &'static str) -> DriverError {
        DriverError {
            call,
            failure: Failure::MissingSymbol,
        }
    }

    /// Returns the driver function that failed, such as `cuEventRecord`.
    pub const fn call(&self) -> &'static str {
        self.call
    }

    /// Returns the driver's number (`CUresult`); `None` if no call was made.
    pub const fn code(&self) -> Option<u32> {
        match self.failure {
            Failure::Code(code) => Some(code),
            Failure::Absent | Failure::MissingSymbol | Failure::Forked => None,
        }
    }

    /// Whether there was not enough memory.
    pub(crate) const fn is_out_of_memory(&self) -> bool {
        matches!(self.failure, Failure::Code(2))
    }

    /// Whether an event was recorded in a capture: it is never reached, nor told of.
    pub(crate) const fn is_of_capture(&self) -> bool {
        matches!(self.failure, Failure::Code(907))
    }

    /// Whether the device, or a driver older than the call, cannot do this.
    pub(crate) const fn is_unsupported(&self) -> bool {
        matches!(self.failure, Failure::Code(801) | Failure::MissingSymbol)
    }

    /// Whether the driver does not know the context, and so has done nothing.
    pub(crate) const fn is_loss_of_context(&self) -> bool {
        matches!(self.failure, Failure::Code(201 | 709))
    }

    /// Whether the context is gone, or has failed for good: nothing runs there any more. The driver then has ended
    /// (4), does not know the context (201, 709), or returns the error of a kernel, or of the device (214, 220, 700, 702,
    /// 710, 714 to 719), to each call from then on: one answer alone proves nothing ([`unless_ended`]).
    pub(crate) const fn is_end_of_context(&self) -> bool {
        matches!(
            self.failure,
            Failure::Code(4 | 201 | 214 | 220 | 700 | 702 | 709 | 710 | 714..=719)
        )
    }

    /// Returns the driver's name for the number, such as `CUDA_ERROR_INVALID_HANDLE`; for a number newer
    /// than this library, and if no call was made, a name of the same form.
    pub fn name(&self) -> &'static str {
        match self.failure {
            Failure::Code(code) => code_name(code),
            Failure::Absent => "NO_DRIVER_LIBRARY",
            Failure::MissingSymbol => "NO_DRIVER_FUNCTION",
            Failure::Forked => "NO_DRIVER_AFTER_FORK",
        }
    }

    /// Whether the driver cannot be used at all here, as opposed to having refused one call.
    pub const fn is_absent(&self) -> bool {
        matches!(self.failure, Failure::Absent | Failure::Forked)
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = self.call;
        match self.failure {
            Failure::Code(code) => {
                write!(f, "CUDA driver: {call} failed with {} ({code})", self.name())?;
                advice(code).map_or(Ok(()), |advice| write!(f, ": {advice}"))
            }
            Failure::Absent => f.write_str(
                "no CUDA driver: the driver library (libcuda.so.1, on Windows nvcuda.dll) could not be loaded; \
                 parsing and validating work without it, ordering streams and asking about pointers do not",
            ),
            Failure::MissingSymbol => {
                write!(f, "the CUDA driver has no {call}: it is older than this operation needs")
            }
            Failure::Forked => f.write_str(
                "no CUDA driver: this process was forked from one that had started it, which no driver survives; \
                 start processes by \"spawn\", or before the first use of CUDA",
            ),
        }
    }
}

impl fmt::Debug for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DriverError({self})")
    }
}

impl std::error::Error for DriverError {}

fn code_name(code: u32) -> &'static str {
    match NAMES.binary_search_by_key(&code, |&(number, _)| number) {
        Ok(at) => NAMES[at].1,
        Err(_) => "CUDA_ERROR_NOT_NAMED_HERE",
    }
}

/// The usual cause of a code, if its name does not tell it.
const fn advice(code: u32) -> Option<&'static str> {
    match code {
        3 => Some("a process that forks after the driver started cannot use it in the child"),
        4 => Some("the process is shutting down"),
        34 => Some(
            "a toolkit's stub was loaded, which is for linking: no libcuda.so.1 was found before it",
        ),
        100 => Some("the driver is installed and sees no device"),
        400 => Some("a stream or event that does not exist, any more or in this context"),
        700 | 719 => Some("an earlier kernel failed; every call of this context fails from now on"),
        _ => None,
    }
}

/// The driver's codes by number (`CUresult`, CUDA 11.4 to 13.4).
///
/// A table instead of `cuGetErrorName`: an error can be printed without a driver, while the
/// process ends, and by a script.
const NAMES: &[(u32, &str)] = &[
    (1, "CUDA_ERROR_INVALID_VALUE"),
    (2, "CUDA_ERROR_OUT_OF_MEMORY"),
    (3, "CUDA_ERROR_NOT_INITIALIZED"),
    (4, "CUDA_ERROR_DEINITIALIZED"),
    (5, "CUDA_ERROR_PROFILER_DISABLED"),
    (6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED"),
    (7, "CUDA_ERROR_PROFILER_ALREADY_STARTED"),
    (8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED"),
    (34, "CUDA_ERROR_STUB_LIBRARY"),
    (36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER"),
    (46, "CUDA_ERROR_DEVICE_UNAVAILABLE"),
    (47, "CUDA_ERROR_MULTICAST_RESOURCE_FULL"),
    (100, "CUDA_ERROR_NO_DEVICE"),
    (101, "CUDA_ERROR_INVALID_DEVICE"),
    (102, "CUDA_ERROR_DEVICE_NOT_LICENSED"),
    (200, "CUDA_ERROR_INVALID_IMAGE"),
    (201, "CUDA_ERROR_INVALID_CONTEXT"),
    (202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT"),
    (205, "CUDA_ERROR_MAP_FAILED"),
    (206, "CUDA_ERROR_UNMAP_FAILED"),
    (207, "CUDA_ERROR_ARRAY_IS_MAPPED"),
    (208, "CUDA_ERROR_ALREADY_MAPPED"),
    (209, "CUDA_ERROR_NO_BINARY_FOR_GPU"),
    (210, "CUDA_ERROR_ALREADY_ACQUIRED"),
    (211, "CUDA_ERROR_NOT_MAPPED"),
    (212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY"),
    (213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER"),
    (214, "CUDA_ERROR_ECC_UNCORRECTABLE"),
    (215, "CUDA_ERROR_UNSUPPORTED_LIMIT"),
    (216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE"),
    (217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"),
    (218, "CUDA_ERROR_INVALID_PTX"),
    (219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT"),
    (220, "CUDA_ERROR_NVLINK_UNCORRECTABLE"),
    (221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND"),
    (222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
    (223, "CUDA_ERROR_JIT_COMPILATION_DISABLED"),
    (224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY"),
    (225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC"),
    (226, "CUDA_ERROR_CONTAINED"),
    (227, "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION"),
    (300, "CUDA_ERROR_INVALID_SOURCE"),
    (301, "CUDA_ERROR_FILE_NOT_FOUND"),
    (302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND"),
    (303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED"),
    (304, "CUDA_ERROR_OPERATING_SYSTEM"),
    (400, "CUDA_ERROR_INVALID_HANDLE"),
    (401, "CUDA_ERROR_ILLEGAL_STATE"),
    (402, "CUDA_ERROR_LOSSY_QUERY"),
    (500, "CUDA_ERROR_NOT_FOUND"),
    (600, "CUDA_ERROR_NOT_READY"),
    (700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    (701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
    (702, "CUDA_ERROR_LAUNCH_TIMEOUT"),
    (703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING"),
    (704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"),
    (705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"),
    (708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE"),
    (709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"),
    (710, "CUDA_ERROR_ASSERT"),
    (711, "CUDA_ERROR_TOO_MANY_PEERS"),
    (712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"),
    (713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"),
    (714, "CUDA_ERROR_HARDWARE_STACK_ERROR"),
    (715, "CUDA_ERROR_ILLEGAL_INSTRUCTION"),
    (716, "CUDA_ERROR_MISALIGNED_ADDRESS"),
    (717, "CUDA_ERROR_INVALID_ADDRESS_SPACE"),
    (718, "CUDA_ERROR_INVALID_PC"),
    (719, "CUDA_ERROR_LAUNCH_FAILED"),
    (720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"),
    (721, "CUDA_ERROR_TENSOR_MEMORY_LEAK"),
    (800, "CUDA_ERROR_NOT_PERMITTED"),
    (801, "CUDA_ERROR_NOT_SUPPORTED"),
    (802, "CUDA_ERROR_SYSTEM_NOT_READY"),
    (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    (804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"),
    (805, "CUDA_ERROR_MPS_CONNECTION_FAILED"),
    (806, "CUDA_ERROR_MPS_RPC_FAILURE"),
    (807, "CUDA_ERROR_MPS_SERVER_NOT_READY"),
    (808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"),
    (809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED"),
    (810, "CUDA_ERROR_MPS_CLIENT_TERMINATED"),
    (811, "CUDA_ERROR_CDP_NOT_SUPPORTED"),
    (812, "CUDA_ERROR_CDP_VERSION_MISMATCH"),
    (900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
    (901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"),
    (902, "CUDA_ERROR_STREAM_CAPTURE_MERGE"),
    (903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"),
    (904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"),
    (905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"),
    (906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"),
    (907, "CUDA_ERROR_CAPTURED_EVENT"),
    (908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"),
    (909, "CUDA_ERROR_TIMEOUT"),
    (910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"),
    (911, "CUDA_ERROR_EXTERNAL_DEVICE"),
    (912, "CUDA_ERROR_INVALID_CLUSTER_SIZE"),
    (913, "CUDA_ERROR_FUNCTION_NOT_LOADED"),
    (914, "CUDA_ERROR_INVALID_RESOURCE_TYPE"),
    (915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"),
    (916, "CUDA_ERROR_KEY_ROTATION"),
    (917, "CUDA_ERROR_STREAM_DETACHED"),
    (918, "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE"),
    (919, "CUDA_ERROR_FABRIC_NOT_READY"),
    (999, "CUDA_ERROR_UNKNOWN"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_three_words() {
        assert!(size_of::<DriverError>() <= 24);
        assert!(size_of::<Result<(), DriverError>>() <= 24);
    }

    /// Two refusals are an end only if both say so; that is what [`unless_ended`] returns nothing for.
    #[test]
    fn a_context_has_ended_by_two_answers() {
        for (first, then, told) in [
            (1, 2, Some(2)),
            (201, 1, Some(1)),
            (1, 201, Some(1)),
            (400, 709, Some(400)),
            (201, 709, None),
            (4, 4, None),
        ] {
            let mut codes = [first, then].into_iter();
            let mut call = || Err::<(), _>(DriverError::new("", codes.next().expect("two calls")));
            let found = unless_ended(&mut call);
            let expected = match told {
                Some(code) => Err(DriverError::new("", code)),
                None => Ok(None),
            };
            assert_eq!(found, expected, "{first}, {then}");
        }
        assert_eq!(twice(|| Ok::<_, DriverError>(1)), Ok(1));
    }

    #[test]
    fn the_names_are_sorted_and_unique() {
        assert!(NAMES.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn it_says_call_name_number_and_advice() {
        let error = DriverError::new("cuEventRecord", 400);
        assert_eq!(
            error.to_string(),
            "CUDA driver: cuEventRecord failed with CUDA_ERROR_INVALID_HANDLE (400): \
             a stream or event that does not exist, any more or in this context"
        );
        assert_eq!((error.call(), error.code()), ("cuEventRecord", Some(400)));
        assert_eq!(error.name(), "CUDA_ERROR_INVALID_HANDLE");
    }

    /// Every number, of this driver and of later ones: the text has the call, the name and the number, and the advice
    /// of those that have one is no other's.
    #[test]
    fn every_number_has_its_text() {
        let mut advices = Vec::new();
        for code in 0..1100 {
            let error = DriverError::new("cuInit", code);
            let text = error.to_string();
            let start = format!("CUDA driver: cuInit failed with {} ({code})", error.name());
            let advice = text.strip_prefix(&start).expect("call, name and number");
            assert_eq!(format!("{error:?}"), format!("DriverError({text})"));
            if let Some(advice) = advice.strip_prefix(": ") {
                assert!(!advice.is_empty());
                advices.push((code, advice.to_owned()));
            }
        }
        let codes: Vec<_> = advices.iter().map(|(code, _)| *code).collect();
        assert_eq!(codes, [3, 4, 34, 100, 400, 700, 719]);
        advices.dedup_by(|(_, one), (_, other)| one == other);
        assert_eq!(advices.len(), codes.len() - 1, "700 and 719 are one thing");
        let failures = [
            DriverError::ABSENT,
            DriverError::FORKED,
            DriverError::missing("cuInit"),
        ];
        let names: std::collections::HashSet<_> = failures.iter().map(DriverError::name).collect();
        assert!(names.len() == 3 && names.iter().all(|name| name.starts_with("NO_DRIVER_")));
    }

    #[test]
    fn a_code_newer_than_this_library_keeps_its_number() {
        let text = DriverError::new("cuInit", 4242).to_string();
        assert!(text.contains("CUDA_ERROR_NOT_NAMED_HERE (4242)"), "{text}");
    }

    #[test]
    fn absence_says_what_is_absent() {
        assert!(DriverError::ABSENT.to_string().contains("libcuda.so.1"));
        assert!(DriverError::FORKED.to_string().contains("\"spawn\""));
        let missing = DriverError::missing("cuStreamGetCaptureInfo");
        assert!(
            missing
                .to_string()
                .contains("has no cuStreamGetCaptureInfo")
        );
        let absent = [DriverError::ABSENT, DriverError::FORKED];
        assert!(
            absent
                .iter()
                .all(|error| error.is_absent() && error.code().is_none())
        );
        assert!(!missing.is_absent() && missing.code().is_none());
    }
}
