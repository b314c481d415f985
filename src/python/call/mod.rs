//! What the caller says: keywords, streams, the policy of a block.

pub(crate) mod options;
pub(crate) mod policy;
pub(crate) mod stream;
