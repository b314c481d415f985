//! Other libraries' arrays and streams in Rust, each behind a feature.

#[cfg(feature = "cudarc")]
pub mod cudarc;
#[cfg(feature = "ndarray")]
pub mod ndarray;
