//! Zero-copy bridge between the CUDA Array Interface (CAI) and DLPack.
//!
//! ```text
//!    an object with __cuda_array_interface__          a DLPack tensor, capsule or exchange table
//!                    |                                               |
//!                    v            one description, checked           v
//!             CaiInterface <-------->  Descriptor  <-------->  DLTensor's fields
//!                                          |
//!                                       CaiView = Descriptor + Owner + ready stream + producer stream
//!                                          |
//!                    +---------------------+-----------------------+
//!                    v                     v                       v
//!                CAI dict      View<T>, cudarc's streams     DLPack tensor
//! ```
//!
//! | CAI | unit | DLPack | unit |
//! |---|---|---|---|
//! | `shape` | elements | `ndim`, `shape` | elements |
//! | `strides` | bytes | `strides` | elements |
//! | `typestr` | bytes | `dtype` | bits, lanes |
//! | `data[0]` | address | `data + byte_offset` | address |
//! | `data[1]` | read-only | `flags` | bit 0 |
//! | `stream` | 1, 2, handle, none | `stream` of `__dlpack__` | also -1: no order |
//! | the object | | `manager_ctx`, `deleter` | |
//! | none: asked of the driver | | `device` | type, number |
//!
//! The modules, each of which uses those above it only:
//!
//! | module | what it is |
//! |---|---|
//! | [`protocol`] | both protocols as checked values; no pointer is followed, no CUDA, no Python |
//! | [`driver`] | the little of the CUDA driver that order needs; loaded on first use |
//! | [`view`] | ownership: views, owners, managed tensors, typed views |
//! | `share` | views between processes, by CUDA IPC (feature `ipc`) |
//! | [`partners`] | the libraries that arrays come from and go to, one row for each |
//! | `python` | arguments and return values of extension modules (feature `pyo3`) |
//! | [`interop`] | other libraries' arrays and streams in Rust (feature `cudarc`) |
//!
//! An array argument in an extension module, and a result that Numba, torch or tvm-ffi takes:
//!
//! ```no_run
//! # #[cfg(feature = "pyo3")] mod example {
//! use cai_dlpack::CaiView;
//! use cai_dlpack::python::In;
//! use pyo3::prelude::*;
//!
//! /// The matrix itself, if it is one of float32, in C order, in memory that CUDA can read.
//! #[pyfunction]
//! fn checked(a: In<f32, 2>) -> PyResult<CaiView> {
//!     a.view().c_order()?.cuda()?;
//!     Ok(a.into_cai())
//! }
//! # }
//! ```
//!
//! The [guide](guide/index.html) shows extension modules, streams of cudarc, typed views and programs without Python; the
//! [rules](rules/index.html) are all reasons for a refusal.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod protocol;

#[cfg(feature = "view")]
pub mod driver;

#[cfg(feature = "view")]
pub mod error;
#[cfg(feature = "view")]
mod process;
#[cfg(feature = "ipc")]
pub mod share;
#[cfg(feature = "view")]
pub mod view;

pub mod partners;

#[cfg(feature = "pyo3")]
pub mod python;

#[cfg(feature = "view")]
pub mod interop;

#[cfg(feature = "view")]
pub use error::Error;
#[cfg(feature = "view")]
pub use view::CaiView;

// The crates whose types stand in our signatures: by these names a user has the versions that fit.
#[cfg(feature = "view")]
pub use bytemuck;
#[cfg(feature = "cudarc")]
pub use cudarc;
#[cfg(feature = "view")]
pub use dlpark;
#[cfg(feature = "half")]
pub use half;
#[cfg(feature = "ndarray")]
pub use ndarray;
#[cfg(feature = "num-complex")]
pub use num_complex;
#[cfg(feature = "pyo3")]
pub use pyo3;

#[cfg(all(doctest, feature = "view"))]
#[doc = include_str!("../README.md")]
struct Readme;

// The Rust blocks of the simulator's page: the crate that they use is its own package, which does not hold the page.
#[cfg(all(doctest, feature = "view", target_os = "linux"))]
#[doc = include_str!("../docs/cusim.md")]
struct Simulator;

// The pages of docs/, for who reads the documentation of the crate. There is nothing in these modules. Of two targets of a
// link the first is taken: here it is an item of the crate, in the repository another page.
#[cfg(any(
    all(doc, not(doctest)),
    all(doctest, feature = "pyo3", feature = "cudarc")
))]
/// [build]: #cost
/// [read-only]: crate::protocol::device::Access
/// [rules]: crate::rules
/// [streams]: crate::view::LiveStream
/// [times]: #cost
///
#[doc = include_str!("../docs/rust.md")]
#[allow(
    rustdoc::invalid_rust_codeblocks,
    reason = "the example is shown a few lines at a time"
)]
pub mod guide {}

#[cfg(all(doc, not(doctest)))]
/// [mapping]: crate::protocol::cai_only
///
#[doc = include_str!("../docs/rules.md")]
#[allow(
    rustdoc::invalid_rust_codeblocks,
    reason = "a template of a message, and Python"
)]
pub mod rules {}
