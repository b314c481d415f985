//! The synchronisation that `queue` and `owner` are made of: the standard library's, or loom's under
//! `--cfg loom`, which runs every order that the memory model allows.

#[cfg(all(loom, test))]
pub(crate) use loom::{
    sync::{Arc, atomic::AtomicPtr, atomic::AtomicUsize},
    thread::yield_now,
};
#[cfg(not(all(loom, test)))]
pub(crate) use std::{
    sync::{Arc, atomic::AtomicPtr, atomic::AtomicUsize},
    thread::yield_now,
};
