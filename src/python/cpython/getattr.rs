//! An attribute that may be missing, without an exception on the way.
//!
//! Most producers of DLPack have no `__cuda_array_interface__`, and to raise and drop an `AttributeError`
//! with its message costs twice as much as the rest of an import. CPython has a lookup that does not:
//! `PyObject_GetOptionalAttr` from 3.13 on, `_PyObject_LookupAttr` by the same signature before. Looked up,
//! since the stable ABI has neither; where there is none, the exception is raised and dropped.

use std::ffi::c_int;
use std::ptr;

use once_cell::race::OnceBox;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::python::cpython::gil;

type Lookup =
    unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject, *mut *mut ffi::PyObject) -> c_int;

/// `object.name`, or `None` where reading it says `AttributeError`. Other exceptions are errors.
#[inline]
pub(crate) fn optional<'py>(
    object: &Bound<'py, PyAny>,
    name: &Py<PyString>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (py, mut found) = (object.py(), ptr::null_mut());
    // SAFETY: a living object, a str, and room for a pointer; the GIL is held.
    let answer = unsafe { lookup()(object.as_ptr(), name.as_ptr(), &raw mut found) };
    if answer < 0 {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: NULL, or a new reference.
    Ok(unsafe { Bound::from_owned_ptr_or_opt(py, found) })
}

#[inline]
fn lookup() -> Lookup {
    static FOUND: OnceBox<Lookup> = OnceBox::new();
    *FOUND.get_or_init(|| {
        let names = [c"PyObject_GetOptionalAttr", c"_PyObject_LookupAttr"];
        Box::new(gil::find(&names).map_or(by_exception, |address| {
            // SAFETY: both names have had this signature since they exist (3.13 and 3.7).
            unsafe { std::mem::transmute::<*mut std::ffi::c_void, Lookup>(address) }
        }))
    })
}

/// The same by means that every interpreter has.
///
/// # Safety
/// As of `PyObject_GetAttr`; `found` may be written.
unsafe extern "C" fn by_exception(
    object: *mut ffi::PyObject,
    name: *mut ffi::PyObject,
    found: *mut *mut ffi::PyObject,
) -> c_int {
    // SAFETY: our own contract.
    let value = unsafe { ffi::PyObject_GetAttr(object, name) };
    // SAFETY: our own contract.
    unsafe { found.write(value) };
    if !value.is_null() {
        return 1;
    }
    // SAFETY: reads a static that the interpreter has set.
    let attribute_error = unsafe { ffi::PyExc_AttributeError };
    // SAFETY: the GIL is held, and an exception is set.
    if unsafe { ffi::PyErr_ExceptionMatches(attribute_error) } == 0 {
        return -1;
    }
    // SAFETY: the GIL is held.
    unsafe { ffi::PyErr_Clear() };
    0
}
