//! Putting work on a stream, and the rules of stream capture.

pub(crate) mod forbid;
