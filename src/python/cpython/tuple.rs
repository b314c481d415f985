//! Reads the items and lengths of tuples in place, or by a call under the stable ABI.

use pyo3::ffi;

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
