//! Makes tuples; reads their items and lengths in place, or by a call under the stable ABI.

use pyo3::ffi;
use pyo3::prelude::*;

/// Makes a tuple of objects. PyO3's own constructor panics if there is no memory for it.
///
/// # Errors
/// Out of memory.
pub(crate) fn new_tuple<'py, T>(
    py: Python<'py>,
    items: Vec<Bound<'py, T>>,
) -> PyResult<Bound<'py, PyAny>> {
    let length = items.len().cast_signed();
    // SAFETY: the GIL is held; a length of no less than 0.
    let tuple = unsafe { ffi::PyTuple_New(length) };
    // SAFETY: a new reference, or NULL with an exception set.
    let tuple = unsafe { Bound::from_owned_ptr_or_err(py, tuple) }?;
    for (index, item) in (0..length).zip(items) {
        // SAFETY: a new tuple, to which nothing else refers, and an index below its length; the reference to the item
        // becomes the tuple's. It cannot fail.
        unsafe { ffi::PyTuple_SetItem(tuple.as_ptr(), index, item.into_ptr()) };
    }
    Ok(tuple)
}

/// Returns an item of a tuple, borrowed.
///
/// # Safety
/// `tuple` is a tuple and `index` below its length.
#[inline]
pub(crate) unsafe fn tuple_item(
    tuple: *mut ffi::PyObject,
    index: ffi::Py_ssize_t,
) -> *mut ffi::PyObject {
    #[cfg(any(Py_LIMITED_API, PyPy, GraalPy))]
    // SAFETY: a tuple and an index below its length (this function's contract).
    let item = unsafe { ffi::PyTuple_GetItem(tuple, index) };
    #[cfg(not(any(Py_LIMITED_API, PyPy, GraalPy)))]
    // SAFETY: a tuple and an index below its length (this function's contract).
    let item = unsafe { ffi::PyTuple_GET_ITEM(tuple, index) };
    item
}

/// Returns the length of a tuple.
///
/// # Safety
/// `tuple` is a tuple.
#[inline]
pub(crate) unsafe fn tuple_len(tuple: *mut ffi::PyObject) -> ffi::Py_ssize_t {
    #[cfg(any(Py_LIMITED_API, PyPy, GraalPy))]
    // SAFETY: a tuple (this function's contract).
    let length = unsafe { ffi::PyTuple_Size(tuple) };
    #[cfg(not(any(Py_LIMITED_API, PyPy, GraalPy)))]
    // SAFETY: a tuple (this function's contract).
    let length = unsafe { ffi::PyTuple_GET_SIZE(tuple) };
    length
}
