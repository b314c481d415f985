//! Exports views as capsules, dicts, buffers and tensors of the exchange table.

pub(crate) mod array_dict;
pub(crate) mod buffer;
pub(crate) mod cai_dict;
pub(crate) mod cai_to_capsule;
pub(crate) mod dlpack;
pub(crate) mod exchange;
pub(crate) mod numpy_array;
