//! Reads NumPy's ints (`numpy.int64`) without running Python code.
//!
//! Their `__index__` is NumPy's own C function: it allocates an `int`, which the garbage collector does not track, and
//! raises nothing. A type is NumPy's if it is static, which a class of Python never is, and NumPy's name for it.

#[cfg(not(Py_LIMITED_API))]
use std::ffi::CStr;

use pyo3::prelude::*;
use pyo3::{Borrowed, ffi};

use crate::python::cpython::int;

/// Returns the value of a NumPy int; `None` for anything else, for a value above 64 bits, and under the stable ABI,
/// which does not show the name of a static type.
#[cold]
#[inline(never)]
pub(crate) fn read(value: Borrowed<'_, '_, PyAny>) -> Option<i64> {
    if !is_numpy_int(value) {
        return None;
    }
    // SAFETY: a living object whose type has `__index__`.
    let index = unsafe { ffi::PyNumber_Index(value.as_ptr()) };
    // SAFETY: a new reference, or NULL with an exception set.
    let Some(index) = (unsafe { Bound::from_owned_ptr_or_opt(value.py(), index) }) else {
        // SAFETY: this thread is attached.
        unsafe { ffi::PyErr_Clear() };
        return None;
    };
    int::read_fast(index.as_borrowed())
}

#[cfg(not(Py_LIMITED_API))]
fn is_numpy_int(value: Borrowed<'_, '_, PyAny>) -> bool {
    // SAFETY: a living object.
    let kind = unsafe { ffi::Py_TYPE(value.as_ptr()) };
    // SAFETY: an object has a type.
    if unsafe { ffi::PyType_GetFlags(kind) } & ffi::Py_TPFLAGS_HEAPTYPE != 0 {
        return false;
    }
    // SAFETY: a living type.
    let name = unsafe { (*kind).tp_name };
    // SAFETY: the name of a static type is a string of its library, which is never unloaded.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    name.starts_with(b"numpy.int") || name.starts_with(b"numpy.uint")
}

#[cfg(Py_LIMITED_API)]
fn is_numpy_int(_: Borrowed<'_, '_, PyAny>) -> bool {
    false
}
