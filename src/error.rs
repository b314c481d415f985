//! The error of every conversion.

use std::fmt;

use crate::driver::{DriverError, Refusal};
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
    /// The operating system refused a call: a share between processes needs a file and a lock.
    Os(std::io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation(violation) => violation.fmt(f),
            Self::Driver(error) => error.fmt(f),
            Self::OutOfMemory => f.write_str("no memory for the managed tensor"),
            Self::Producer(error) => error.fmt(f),
            Self::Os(error) => error.fmt(f),
        }
    }
}

/// Reads as what it holds, so that the source is that one's: a report of the whole chain says nothing twice.
impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Violation(violation) => violation.source(),
            Self::Driver(error) => error.source(),
            Self::OutOfMemory => None,
            Self::Producer(error) => error.source(),
            Self::Os(error) => error.source(),
        }
    }
}

impl Refusal for Error {
    fn is_end(&self) -> bool {
        matches!(self, Self::Driver(refused) if refused.is_end_of_context())
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

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::Os(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::rule::{Field, Rule};

    /// An error of a producer's, with a cause of its own.
    #[derive(Debug)]
    struct Link(u32);

    impl fmt::Display for Link {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "<link {}>", self.0)
        }
    }

    impl std::error::Error for Link {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            static LINKS: [Link; 4] = [Link(0), Link(1), Link(2), Link(3)];
            let next = (self.0 as usize).checked_sub(1)?;
            Some(LINKS.get(next)?)
        }
    }

    fn every_error() -> Vec<Error> {
        let violations = Rule::ALL.iter().map(|rule| {
            let violation = Violation::new(*rule, Field::Object, "7").with_hint("take 8");
            Error::from(violation)
        });
        let driver = (0..1000).map(|code| Error::from(DriverError::new("cuInit", code)));
        let absent = [DriverError::ABSENT, DriverError::FORKED].map(Error::from);
        let producers = (0..5).map(|link| Error::Producer(Box::new(Link(link))));
        let files = std::io::Error::from_raw_os_error(24);
        let last = [
            Error::OutOfMemory,
            DriverError::missing("cuInit").into(),
            files.into(),
        ];
        let all = violations.chain(driver).chain(absent).chain(producers);
        all.chain(last).collect()
    }

    #[test]
    fn no_error_repeats_its_source() {
        let mut sources = 0;
        for error in every_error() {
            let mut error: &dyn std::error::Error = &error;
            while let Some(source) = error.source() {
                let (text, cause) = (error.to_string(), source.to_string());
                assert!(!text.contains(&cause), "{text:?} repeats {cause:?}");
                (error, sources) = (source, sources + 1);
            }
        }
        assert!(sources > 0);
    }
}
