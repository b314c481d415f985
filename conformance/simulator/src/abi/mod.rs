//! The driver API's C types: results, and the arguments of its prototypes.

pub(crate) mod arguments;
pub(crate) mod codes;
