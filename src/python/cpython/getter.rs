//! Attributes that are computed, without PyO3's way into them: 2% of the instructions of
//! `__cuda_array_interface__`, which has no more than 10% above those of the dict alone.

use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use pyo3::prelude::*;
use pyo3::types::PyType;
use pyo3::{Borrowed, ffi};

use crate::python::cpython::fastcall::raise;
use crate::python::cpython::tracing::{Called, Tracer};
use crate::python::cpython::{panic, thread_exit, tracing};

/// A declared attribute.
pub(crate) trait Getter: 'static {
    /// The attribute's name and docstring.
    const DEFINITION: &'static Definition;
    /// Runs a reading that is traced.
    const TRACER: Tracer;

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
            get: Some(enter::<G, true>),
            set: None,
            doc: doc.as_ptr(),
            closure: ptr::null_mut(),
        })
    }
}

/// The C function that the interpreter calls; `TRACES` states that it asks whether it is traced.
///
/// # Safety
/// As for the `get` of a `PyGetSetDef`: the thread is attached, and `slf` is an object that lives during the call.
unsafe extern "C" fn enter<G: Getter, const TRACES: bool>(
    slf: *mut ffi::PyObject,
    closure: *mut c_void,
) -> *mut ffi::PyObject {
    thread_exit::guard();
    if TRACES && tracing::may_trace() {
        // SAFETY: this function's contract.
        return unsafe { traced::<G>(slf, closure) };
    }
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

/// Calls [`enter`] by the attribute's tracer.
///
/// # Safety
/// That of [`enter`].
#[cold]
#[inline(never)]
unsafe fn traced<G: Getter>(slf: *mut ffi::PyObject, closure: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: this thread is attached (this function's contract).
    let py = unsafe { Python::assume_attached() };
    // SAFETY: not null, alive during the call (this function's contract).
    let object = unsafe { Borrowed::from_ptr(py, slf) };
    let called = Called {
        // SAFETY: the name of a definition is a C string that is never freed (`Definition::new`).
        name: unsafe { CStr::from_ptr(G::DEFINITION.0.name) },
        array: Some(object),
        stream: None,
    };
    // SAFETY: this function's contract; the body of a call runs once.
    let mut call = || unsafe { enter::<G, false>(slf, closure) };
    let result = catch_unwind(AssertUnwindSafe(|| (G::TRACER)(py, called, &mut call)));
    result.unwrap_or_else(|payload| raise(py, panic::caught(&*payload)))
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
