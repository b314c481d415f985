//! Simulated memory: pages, ranges of addresses, and what work does to their bytes.

pub(crate) mod backing;
pub(crate) mod bytes;
pub(crate) mod copy;
pub(crate) mod fill;
pub(crate) mod kernel;
pub(crate) mod place;
pub(crate) mod pool_file;
pub(crate) mod ranges;
pub(crate) mod segment;
