//! Parses the caller's keywords and streams, and holds the policy of a thread.

pub(crate) mod dtype;
pub(crate) mod options;
pub(crate) mod policy;
pub(crate) mod stream;
