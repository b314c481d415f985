//! Both protocols as values: no pointer is followed, no CUDA, no Python.
//!
//! Each file parses its part of the untrusted input into a checked type, and uses those above it only:
//!
//! | module | subject |
//! |---|---|
//! | [`rule`] | every reason for a refusal |
//! | [`device`], [`dtype`], [`stream`] | devices and flags; element types; streams and their order |
//! | `few` | short lists without an allocation |
//! | [`cai_only`] | the items of a dict that DLPack cannot describe |
//! | [`axes`], [`layout`] | shape and strides as written, and checked |
//! | [`interface`] | a `__cuda_array_interface__` dict |
//! | [`descriptor`] | the metadata of a `DLTensor` |
//! | `convert` | from a dict to a `DLTensor` and back |
//! | [`mask`] | masks, which DLPack lacks |
#![forbid(unsafe_code)]
// Dead code is found in builds with the feature `pyo3`, in which all of this is used.
#![cfg_attr(
    not(feature = "pyo3"),
    allow(dead_code, unused_imports, reason = "used by the Python bindings")
)]
// Shipped code must neither panic nor wrap unnoticed; tests may.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::cast_possible_truncation
    )
)]

pub mod rule;

mod few;

pub mod axes;
pub mod device;
pub mod dtype;
pub mod stream;

mod descr;

pub mod cai_only;
pub mod layout;

mod address;

pub mod descriptor;
pub mod interface;

pub(crate) mod convert;
pub mod mask;
pub(crate) mod whole;
