//! Raises after all what comes in the midst of something else: an interrupt that is the user's.

use std::ffi::c_long;

use pyo3::exceptions::PyBaseException;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::python::cpython::new::new_str;
use crate::python::cpython::source;

/// Raises an exception in this thread, when it next runs Python code.
///
/// CPython takes a class, which it calls: one whose call returns this very exception. Without memory for it, the exception's own.
/// It keeps what the frames of the exception hold: a finaliser that ran now would be interrupted in place of the caller.
/// `PyErr_SetInterrupt` would raise `KeyboardInterrupt` in the main thread, by the handler of SIGINT, and not at all if Python has
/// none.
#[cold]
pub(super) fn raise_later(py: Python<'_>, error: PyErr) {
    // With its traceback.
    let error = error.into_value(py).into_bound(py);
    let class = class_of(&error).unwrap_or_else(|_| error.get_type().into_any());
    // SAFETY: takes and touches nothing.
    let thread = unsafe { ffi::PyThread_get_thread_ident() };
    // SAFETY: the GIL is held (`py`); `class` is an exception class, which the call keeps by a reference of its own.
    unsafe { ffi::PyThreadState_SetAsyncExc(thread as c_long, class.as_ptr()) };
}

fn class_of<'py>(error: &Bound<'py, PyBaseException>) -> PyResult<Bound<'py, PyAny>> {
    const CODE: &str = "type('Later', (BaseException,), {'__new__': lambda *_: error})";
    let py = error.py();
    let globals = PyDict::new(py);
    globals.set_item(new_str(py, "error")?, error)?;
    source::eval(py, CODE, &globals)
}
