//! The synchronisation that `queue` and `owner` are made of: the standard library's, or loom's under
//! `--cfg loom`, which runs every order that the memory model allows.

#[cfg(all(loom, test))]
pub(crate) use loom::sync::{Arc, atomic::AtomicPtr};
#[cfg(not(all(loom, test)))]
pub(crate) use std::sync::{Arc, atomic::AtomicPtr};

#[cfg(all(loom, test))]
pub(crate) use loom::{sync::atomic::AtomicUsize, thread::yield_now};
#[cfg(all(any(feature = "pyo3", test), not(all(loom, test))))]
pub(crate) use std::{sync::atomic::AtomicUsize, thread::yield_now};
