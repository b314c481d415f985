//! The class `CaiView`: the struct, the memory of its objects, the consume blocks.

pub(crate) mod alloc;
pub(crate) mod awaiting;
pub(crate) mod beside;
pub(crate) mod consume;
pub(crate) mod dtype;
pub(crate) mod order;
pub(crate) mod recall;
pub(crate) mod scope;
pub(crate) mod view;
