//! Keeps the collector away while state is read, changed and written back.

#[cfg(not(Py_3_12))]
use pyo3::ffi;
use pyo3::prelude::*;

/// As long as it lives, no allocation of this thread collects, and so no finaliser runs inside one. From 3.12 on CPython
/// collects between byte codes alone, and this does nothing.
pub(crate) struct WithoutCollections {
    #[cfg(not(Py_3_12))]
    was_enabled: bool,
}

impl WithoutCollections {
    pub(crate) fn begin(_: Python<'_>) -> Self {
        Self {
            // SAFETY: the GIL is held (the argument).
            #[cfg(not(Py_3_12))]
            was_enabled: unsafe { ffi::PyGC_Disable() } != 0,
        }
    }
}

#[cfg(not(Py_3_12))]
impl Drop for WithoutCollections {
    fn drop(&mut self) {
        if self.was_enabled {
            // SAFETY: the GIL is held: it is not let go of while this lives (`begin`'s callers).
            unsafe { ffi::PyGC_Enable() };
        }
    }
}
