//! Submitting work to a stream, and the rules of stream capture.
//!
//! The rules and codes are those of the API documentation (cuStreamBeginCapture,
//! cuThreadExchangeStreamCaptureMode, and "Prohibited and unhandled operations" in the
//! programming guide).

pub(crate) mod forbid;
pub(crate) mod route;
pub(crate) mod target;
