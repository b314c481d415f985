//! Detects forks, and keeps signals from this library's threads.
//!
//! **Features.** Without `pyo3` nothing is held across a fork, and without `cudarc` too there are no threads: what
//! is unused then is told so once, below.
#![cfg_attr(
    not(feature = "pyo3"),
    allow(dead_code, reason = "what only Python's side or a driver needs")
)]

pub(crate) mod fork;
pub(crate) mod signals;
