//! Functions that allocate, free, describe, copy and fill memory.

pub(crate) mod alloc;
pub(crate) mod attributes;
pub(crate) mod copy;
pub(crate) mod fill;
pub(crate) mod host;
pub(crate) mod pool;
pub(crate) mod range;
