//! The error of every conversion.

use std::fmt;

use crate::driver::DriverError;
use crate::protocol::rule::Violation;

/// Every way in which this library refuses.
///
/// A refusal changes nothing: the producer's object, the capsule and the stream are as they were.
///
/// ```
/// use cai_dlpack::Error;
/// use cai_dlpack::driver::DriverError;
///
/// let error = Error::from(DriverError::ABSENT);
/// assert!(matches!(&error, Error::Driver(error) if error.is_absent()));
/// assert!(error.to_string().starts_with("no CUDA driver"));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The input breaks a rule of one of the two protocols; the value names the rule, the place and the remedy.
    Violation(Violation),
    /// The CUDA driver refused a call, or is not there.
    Driver(DriverError),
    /// The block of a managed tensor could not be allocated.
    OutOfMemory,
    /// The producer raised this when it was asked which stream it works on.
    Producer(Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation(violation) => violation.fmt(f),
            Self::Driver(error) => error.fmt(f),
            Self::OutOfMemory => f.write_str("no memory for the managed tensor"),
            Self::Producer(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Violation(violation) => Some(violation),
            Self::Driver(error) => Some(error),
            Self::OutOfMemory => None,
            Self::Producer(error) => Some(&**error),
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
