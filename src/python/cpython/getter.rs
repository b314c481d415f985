//! Attributes that are computed, without PyO3's way into them: 2% of the instructions of
//! `__cuda_array_interface__`, which has no more than 10% above those of the dict alone.

use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use pyo3::prelude::*;
use pyo3::types::PyType;
use pyo3::{Borrowed, ffi};

use crate::python::cpython::fastcall::raise;
use crate::python::cpython::{panic, thread_exit};

/// A declared attribute.
pub(crate) trait Getter: 'static {
    /// The attribute's name and docstring.
    const DEFINITION: &'static Definition;

    /// Returns the value for `slf`, an object of the class that has the attribute.
    fn get<'py>(slf: Borrowed<'_, 'py, PyAny>) -> PyResult<Bound<'py, PyAny>>;
}

/// CPython's definition of an attribute, which must live for ever.
pub(crate) struct Definition(ffi::PyGetSetDef);

// SAFETY: never written to; its pointers are to constants.
unsafe impl Sync for Definition {}

impl Definition {
    pub(crate) const fn new<G: Getter>(name: &'static CStr, doc: &'static CStr) -> Self {
        Self(ffi::PyGetSetDef {
            name: name.as_ptr(),
            get: Some(enter::<G>),
            set: None,
            doc: doc.as_ptr(),
            closure: ptr::null_mut(),
        })
    }
}

/// The C function that the interpreter calls.
///
/// # Safety
/// As for the `get` of a `PyGetSetDef`: the thread is attached, and `slf` is an object that lives during the call.
unsafe extern "C" fn enter<G: Getter>(
    slf: *mut ffi::PyObject,
    _closure: *mut c_void,
) -> *mut ffi::PyObject {
    thread_exit::guard();
    // SAFETY: this thread is attached (this function's contract).
    let py = unsafe { Python::assume_attached() };
    // SAFETY: not null, alive during the call (this function's contract).
    let slf = unsafe { Borrowed::from_ptr(py, slf) };
    match catch_unwind(AssertUnwindSafe(|| G::get(slf))) {
        Ok(Ok(value)) => value.into_ptr(),
        Ok(Err(error)) => raise(py, error),
        Err(payload) => raise(py, panic::caught(&*payload)),
    }
}

/// Makes the descriptor of `class`, which checks the class of the object.
pub(crate) fn descriptor<'py, G: Getter>(
    class: &Bound<'py, PyType>,
) -> PyResult<Bound<'py, PyAny>> {
    let definition = ptr::from_ref(&G::DEFINITION.0).cast_mut();
    // SAFETY: CPython reads the definition only, which is static.
    let made = unsafe { ffi::PyDescr_NewGetSet(class.as_type_ptr(), definition) };
    // SAFETY: a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(class.py(), made) }
}
