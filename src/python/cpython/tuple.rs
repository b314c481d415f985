//! Items and lengths of tuples, by macro where CPython's layout is public and by call under the stable ABI.

use pyo3::ffi;

/// An item of a tuple, borrowed.
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

/// The length of a tuple.
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
