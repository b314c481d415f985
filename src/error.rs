//! Why a conversion did not happen.

use std::fmt;

use crate::driver::DriverError;
use crate::protocol::rule::Violation;

/// Every way in which this library refuses.
///
/// A refusal changes nothing: the producer's object, the capsule and the stream are as they were.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The input breaks a rule of one of the two protocols; the value says which, where and what to do.
    Violation(Violation),
    /// The CUDA driver refused a call, or is not there.
    Driver(DriverError),
    /// The block of a managed tensor could not be allocated.
    OutOfMemory,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation(violation) => violation.fmt(f),
            Self::Driver(error) => error.fmt(f),
            Self::OutOfMemory => f.write_str("no memory for the managed tensor"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Violation(violation) => Some(violation),
            Self::Driver(error) => Some(error),
            Self::OutOfMemory => None,
        }
    }
}

impl From<Violation> for Error {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}
