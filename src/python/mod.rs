//! Imports and exports Python objects, for any extension crate (feature `pyo3`).
//!
//! Each extension module links its own copy of this crate, so that one process may have several `CaiView` classes, each
//! named by its own module. They exchange arrays by protocol, never by `isinstance`: the layout of a Rust type is one
//! compiler's affair. Exceptions are Python's, and those of the package `cai_dlpack` are shared if it has been imported.
//!
//! ```no_run
//! use cai_dlpack::CaiView;
//! use cai_dlpack::python::{In, InOut, PyCaiView, driver_error};
//! use pyo3::prelude::*;
//!
//! /// The argument itself: its borrow ends, and Python may use the array again.
//! #[pyfunction]
//! fn same(a: InOut<f32, 1>, other: In<f32, 1>) -> (CaiView, CaiView) {
//!     (a.into_cai(), other.into_cai())
//! }
//!
//! #[pymodule]
//! fn my_extension(module: &Bound<'_, PyModule>) -> PyResult<()> {
//!     module.add_function(wrap_pyfunction!(same, module)?)?;
//!     // No need for either: names for users who annotate types or catch errors.
//!     module.add_class::<PyCaiView>()?;
//!     module.add("DriverError", driver_error(module.py())?)
//! }
//! # fn main() {}
//! ```
//!
//! [`register`] makes a module with all that the package `cai_dlpack` has.

#[cfg(all(Py_LIMITED_API, not(Py_3_12)))]
compile_error!(
    "cai-dlpack takes PyO3's stable ABI from Python 3.12 on: enable its feature `abi3-py312` or a later one, or none"
);

mod argument;
mod call;
mod capsule;
mod class;
mod cpython;
mod derived;
mod exchange_table;
mod explain;
mod export;
mod functions;
mod import;
mod join;
mod methods;
mod module;
mod share;
mod shown;
mod to;
mod trace;

pub use argument::{ANY, Extents, In, InOut, Rank, Refuse, TrustStreams, Wait, WhenInUse};
pub use class::view::PyCaiView;
pub use cpython::errors::driver_error;
pub use module::register;
