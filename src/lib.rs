//! Zero-copy bridge between the CUDA Array Interface and DLPack.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod protocol;

pub mod driver;

pub mod error;
pub mod view;

#[cfg(feature = "pyo3")]
pub mod python;

pub mod interop;

pub use error::Error;
pub use view::CaiView;
