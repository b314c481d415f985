//! Reads an attribute that may be missing, without raising an exception.
//!
//! Most producers of DLPack have no `__cuda_array_interface__`, and raising and dropping an `AttributeError` costs
//! twice as much as the rest of an import. CPython has a function that raises none: `PyObject_GetOptionalAttr` from
//! 3.13 on, `_PyObject_LookupAttr` of the same signature before. It is found by name, since the stable ABI has
//! neither; without it the exception is raised and dropped.

use std::ffi::c_int;
use std::ptr;

use once_cell::race::OnceBox;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use crate::python::cpython::gil;

type Lookup =
    unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject, *mut *mut ffi::PyObject) -> c_int;

/// Returns `object.name`, or `None` if reading it raises `AttributeError`.
///
/// # Errors
/// Every other exception.
#[inline]
pub(crate) fn optional<'py>(
    object: &Bound<'py, PyAny>,
    name: &Py<PyString>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (py, mut found) = (object.py(), ptr::null_mut());
    // SAFETY: a living object, a str, and memory for a pointer; the GIL is held.
    let status = unsafe { lookup()(object.as_ptr(), name.as_ptr(), &raw mut found) };
    if status < 0 {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: NULL, or a new reference.
    Ok(unsafe { Bound::from_owned_ptr_or_opt(py, found) })
}

/// Returns the module of this name, if it has been imported. `import sys` and its dict cost five times as much.
///
/// # Errors
/// Those of looking it up in `sys.modules`.
pub(crate) fn imported<'py>(name: &Bound<'py, PyString>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = name.py();
    // SAFETY: a str; the GIL is held.
    let module = unsafe { ffi::PyImport_GetModule(name.as_ptr()) };
    // SAFETY: NULL, or a new reference.
    match unsafe { Bound::from_owned_ptr_or_opt(py, module) } {
        None => PyErr::take(py).map_or(Ok(None), Err),
        module => Ok(module),
    }
}

/// Whether an object has the attribute, and other than as `None`, by which a class says that it has none
/// (<https://docs.python.org/3/reference/datamodel.html#special-method-names>).
///
/// # Errors
/// Every exception but `AttributeError`.
pub(crate) fn has(object: &Bound<'_, PyAny>, name: &Py<PyString>) -> PyResult<bool> {
    Ok(optional(object, name)?.is_some_and(|attribute| !attribute.is_none()))
}

type TypeLookup =
    unsafe extern "C" fn(*mut ffi::PyTypeObject, *mut ffi::PyObject) -> *mut ffi::PyObject;

/// Like [`has`], for an object's type. Before 3.12 `optional` builds an `AttributeError` for a type, and drops it: so a
/// name that no class of an ordinary type has is found to be missing by `_PyType_Lookup`, which raises nothing.
///
/// # Errors
/// Those of [`has`].
pub(crate) fn type_has(object: &Bound<'_, PyAny>, name: &Py<PyString>) -> PyResult<bool> {
    static FOUND: OnceBox<Option<TypeLookup>> = OnceBox::new();
    let kind = object.get_type();
    let found = FOUND.get_or_init(|| {
        Box::new(gil::find(&[c"_PyType_Lookup"]).map(|address| {
            // SAFETY: the function has this signature in every CPython that has it.
            unsafe { std::mem::transmute::<*mut std::ffi::c_void, TypeLookup>(address) }
        }))
    });
    // A metaclass may have the attribute, or find it by code of its own; `type` itself does neither.
    let is_ordinary = kind.get_type().is(kind.py().get_type::<PyType>());
    if let Some(lookup) = found
        && is_ordinary
        // SAFETY: a living type and a str; the GIL is held. The borrowed result is compared with NULL only.
        && unsafe { lookup(kind.as_type_ptr(), name.as_ptr()) }.is_null()
    {
        return Ok(false);
    }
    has(&kind, name)
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

/// Reads the attribute by `PyObject_GetAttr`, and clears the `AttributeError`.
///
/// # Safety
/// As for `PyObject_GetAttr`: a living object, a str, and the GIL is held; `found` is valid for a write.
unsafe extern "C" fn by_exception(
    object: *mut ffi::PyObject,
    name: *mut ffi::PyObject,
    found: *mut *mut ffi::PyObject,
) -> c_int {
    // SAFETY: a living object and a str; the GIL is held (this function's contract).
    let value = unsafe { ffi::PyObject_GetAttr(object, name) };
    // SAFETY: valid for a write (this function's contract).
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
