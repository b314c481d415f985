//! Putting work on a stream, and what a capture makes of it.

pub(crate) mod forbid;
pub(crate) mod route;
pub(crate) mod target;
