//! The targets: each takes bytes, makes something of them, and panics if a promise is broken.

pub mod bytes;
pub mod descriptor;
pub mod interface;
pub mod plan;
pub mod tensor;
pub mod typestr;

/// A target's function.
pub type Target = fn(&[u8]);

/// Every target by its name, which is that of its corpus too.
pub const TARGETS: &[(&str, Target)] = &[
    ("descriptor", descriptor::run),
    ("interface", interface::run),
    ("typestr", typestr::run),
    ("plan", plan::run),
    ("tensor", tensor::run),
];
