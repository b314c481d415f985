//! Raises after all what comes in the midst of something else: an interrupt that is the user's.

use std::ffi::c_long;

use pyo3::ffi;
use pyo3::prelude::*;

/// Raises an exception of this one's class in this thread, when it next runs Python code.
///
/// `PyErr_SetInterrupt` would raise it in the main thread, by the handler of SIGINT, and not at all if Python has none.
#[cold]
pub(super) fn raise_later(py: Python<'_>, error: &PyErr) {
    let class = error.get_type(py);
    // SAFETY: takes and touches nothing.
    let thread = unsafe { ffi::PyThread_get_thread_ident() };
    // SAFETY: the GIL is held (`py`); `class` is an exception class, which the call keeps by a reference of its own.
    unsafe { ffi::PyThreadState_SetAsyncExc(thread as c_long, class.as_ptr()) };
}
