//! Keeps the collector away while state is read, changed and written back.

use std::marker::PhantomData;

#[cfg(not(Py_3_12))]
use pyo3::ffi;
use pyo3::prelude::*;

/// As long as it lives, no allocation of this thread collects, and so no finaliser runs inside one. From 3.12 on CPython
/// collects between byte codes alone, and this does nothing.
pub(crate) struct WithoutCollections<'py> {
    attached: PhantomData<Python<'py>>,
    #[cfg(not(Py_3_12))]
    was_enabled: bool,
}

impl<'py> WithoutCollections<'py> {
    pub(crate) fn begin(_: Python<'py>) -> Self {
        Self {
            attached: PhantomData,
            // SAFETY: the GIL is held (the argument).
            #[cfg(not(Py_3_12))]
            was_enabled: unsafe { ffi::PyGC_Disable() } != 0,
        }
    }
}

#[cfg(not(Py_3_12))]
impl Drop for WithoutCollections<'_> {
    fn drop(&mut self) {
        if self.was_enabled {
            // SAFETY: the GIL is held, as this lives no longer than the token of `begin`.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}
