//! Parses the caller's keywords and streams, and holds the policy and the work streams of a context.

pub(crate) mod blocks;
pub(crate) mod choice;
pub(crate) mod device;
pub(crate) mod dtype;
pub(crate) mod library;
pub(crate) mod options;
pub(crate) mod policy;
pub(crate) mod stream;
pub(crate) mod use_stream;
