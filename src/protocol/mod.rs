//! Room 1: both protocols as values. No pointer is followed, no CUDA, no Python.
//!
//! Untrusted numbers enter at one function of each file and leave as a checked type:
//! [`rule`] names every refusal, [`dtype`] the element types, [`layout`] shapes and strides,
//! [`stream`] the integers of both protocols, [`interface`] is a CAI dict, [`descriptor`] is a
//! `DLTensor`'s metadata and the way from the one to the other.
#![forbid(unsafe_code)]
// With both features everything is used, or said to be dead.
#![cfg_attr(
    not(all(feature = "cudarc", feature = "pyo3")),
    allow(dead_code, reason = "what only Python's side or a driver says")
)]
// What is shipped must not be able to panic or wrap unseen; a test that panics has done its work.
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

pub mod axes;
pub mod device;
pub mod dtype;
pub mod stream;

pub mod layout;

mod address;

pub mod descriptor;
pub mod interface;

pub(crate) mod convert;
pub mod mask;
