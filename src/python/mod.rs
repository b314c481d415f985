//! Imports and exports Python objects, for any extension crate (feature `pyo3`).
//!
//! Each extension module links its own copy of this crate, so that one process may have several `CaiView` classes, each
//! named by its own module. They exchange arrays by protocol, never by `isinstance`: the layout of a Rust type is one
//! compiler's affair. Exceptions are Python's, and those of the package `cai_dlpack` are shared if it has been imported.

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
mod shown;
mod to;
mod trace;

pub use argument::{In, InOut};
pub use class::view::PyCaiView;
pub use cpython::errors::driver_error;
pub use module::register;
