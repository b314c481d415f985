//! Detects forks, closes files in forked children, keeps signals from this library's threads, tells threads apart, and looks how much
//! is left of a stack.
//!
//! **Features.** Without `pyo3` nothing is held across a fork: what is unused then is told so once, below.
#![cfg_attr(
    not(feature = "pyo3"),
    allow(dead_code, reason = "what only Python's side needs")
)]

pub(crate) mod fork;
#[cfg(all(feature = "ipc", target_os = "linux"))]
pub(crate) mod inherited;
pub(crate) mod signals;
pub(crate) mod stack;
pub(crate) mod thread;
