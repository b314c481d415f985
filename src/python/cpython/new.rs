//! Makes objects of Rust's values. PyO3's own constructors panic if there is no memory for the object.

use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyString, PyTuple};

/// Makes an int.
///
/// # Errors
/// Out of memory.
#[inline]
pub(crate) fn new_int(py: Python<'_>, value: i64) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the GIL is held.
    let made = unsafe { ffi::PyLong_FromLongLong(value) };
    // SAFETY: a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, made) }
}

/// Makes an int of an address, a size or a handle.
///
/// # Errors
/// Out of memory.
#[inline]
pub(crate) fn new_uint(py: Python<'_>, value: u64) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the GIL is held.
    let made = unsafe { ffi::PyLong_FromUnsignedLongLong(value) };
    // SAFETY: a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, made) }
}

/// Makes a str.
///
/// # Errors
/// Out of memory.
#[cold]
pub(crate) fn new_str<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyString>> {
    let length = text.len().cast_signed();
    // SAFETY: `length` bytes of UTF-8, which are copied.
    let made = unsafe { ffi::PyUnicode_FromStringAndSize(text.as_ptr().cast(), length) };
    // SAFETY: a new reference, or NULL with an exception set.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, made) }?;
    // SAFETY: `PyUnicode_FromStringAndSize` returns a str.
    Ok(unsafe { made.cast_into_unchecked() })
}

/// Makes a bytes object.
///
/// # Errors
/// Out of memory.
pub(crate) fn new_bytes<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let length = bytes.len().cast_signed();
    // SAFETY: `length` readable bytes, which are copied.
    let made = unsafe { ffi::PyBytes_FromStringAndSize(bytes.as_ptr().cast(), length) };
    // SAFETY: a new reference, or NULL with an exception set.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, made) }?;
    // SAFETY: `PyBytes_FromStringAndSize` returns bytes.
    Ok(unsafe { made.cast_into_unchecked() })
}

/// Makes an empty dict.
///
/// # Errors
/// Out of memory.
#[inline]
pub(crate) fn new_dict(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    // SAFETY: the GIL is held.
    let made = unsafe { ffi::PyDict_New() };
    // SAFETY: a new reference, or NULL with an exception set.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, made) }?;
    // SAFETY: `PyDict_New` returns a dict.
    Ok(unsafe { made.cast_into_unchecked() })
}

/// Makes an empty list.
///
/// # Errors
/// Out of memory.
pub(crate) fn new_list(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    // SAFETY: the GIL is held; a length of no less than 0.
    let made = unsafe { ffi::PyList_New(0) };
    // SAFETY: a new reference, or NULL with an exception set.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, made) }?;
    // SAFETY: `PyList_New` returns a list.
    Ok(unsafe { made.cast_into_unchecked() })
}

/// Makes a tuple of objects, or returns the error of the first that could not be made.
///
/// # Errors
/// Out of memory; those of the items.
pub(crate) fn new_tuple<'py, T>(
    py: Python<'py>,
    items: impl IntoIterator<Item = PyResult<Bound<'py, T>>, IntoIter: ExactSizeIterator>,
) -> PyResult<Bound<'py, PyTuple>> {
    let mut failed = None;
    let items = items.into_iter().map(|item| {
        let item = item.map_err(|error| failed = Some(error));
        item.map_or(ptr::null_mut(), Bound::into_ptr)
    });
    // SAFETY: a new reference each, or NULL.
    let made = unsafe { tuple_of(py, items) };
    made.ok_or_else(|| failed.unwrap_or_else(|| PyErr::fetch(py)))
}

/// Makes a tuple of ints.
///
/// # Errors
/// Out of memory.
#[inline]
pub(crate) fn new_ints<'py>(
    py: Python<'py>,
    values: impl IntoIterator<Item = i64, IntoIter: ExactSizeIterator>,
) -> PyResult<Bound<'py, PyTuple>> {
    // SAFETY: the GIL is held.
    let ints = |value| unsafe { ffi::PyLong_FromLongLong(value) };
    // SAFETY: a new reference each, or NULL.
    let made = unsafe { tuple_of(py, values.into_iter().map(ints)) };
    made.ok_or_else(|| PyErr::fetch(py))
}

/// Makes a pair of ints.
///
/// # Errors
/// Out of memory.
#[inline]
pub(crate) fn new_int_pair<'py>(
    py: Python<'py>,
    (first, second): (i32, i32),
) -> PyResult<Bound<'py, PyTuple>> {
    new_ints(py, [first.into(), second.into()])
}

/// Makes the pair of an address and a flag.
///
/// Of pointers, as `new_ints`: with a `Result` for each item `__cuda_array_interface__` takes 2275 instructions, not 2098.
///
/// # Errors
/// Out of memory.
#[inline]
pub(crate) fn new_address_and_flag(
    py: Python<'_>,
    address: u64,
    flag: bool,
) -> PyResult<Bound<'_, PyTuple>> {
    // Made one after the other, each once the tuple is there to own it.
    let items = [true, false]
        .into_iter()
        .map(|is_address| match is_address {
            // SAFETY: the GIL is held.
            true => unsafe { ffi::PyLong_FromUnsignedLongLong(address) },
            false => PyBool::new(py, flag).to_owned().into_ptr(),
        });
    // SAFETY: a new reference each, or NULL.
    let made = unsafe { tuple_of(py, items) };
    made.ok_or_else(|| PyErr::fetch(py))
}

/// Makes a tuple of new references; `None` if one is NULL, after which no other is made, or with an exception set if there
/// is no memory for the tuple.
///
/// # Safety
/// Each item is a new reference, which becomes the tuple's, or NULL.
#[inline(always)]
unsafe fn tuple_of<'py>(
    py: Python<'py>,
    items: impl ExactSizeIterator<Item = *mut ffi::PyObject>,
) -> Option<Bound<'py, PyTuple>> {
    let length = items.len().cast_signed();
    // SAFETY: the GIL is held; a length of no less than 0.
    let tuple = unsafe { ffi::PyTuple_New(length) };
    // SAFETY: a new reference, or NULL.
    let tuple = unsafe { Bound::from_owned_ptr_or_opt(py, tuple) }?;
    for (index, item) in (0..length).zip(items) {
        if item.is_null() {
            return None;
        }
        #[cfg(any(Py_LIMITED_API, PyPy, GraalPy))]
        // SAFETY: a new tuple, to which nothing else refers, and an index below its length; the reference to the item
        // becomes the tuple's. It cannot fail.
        unsafe {
            ffi::PyTuple_SetItem(tuple.as_ptr(), index, item)
        };
        #[cfg(not(any(Py_LIMITED_API, PyPy, GraalPy)))]
        // SAFETY: a new tuple, to which nothing else refers, and an index below its length, whose item is not set yet;
        // the reference to the item becomes the tuple's.
        unsafe {
            ffi::PyTuple_SET_ITEM(tuple.as_ptr(), index, item)
        };
    }
    // SAFETY: `PyTuple_New` returns a tuple, and every item is set, as the iterator has the length that it states.
    Some(unsafe { tuple.cast_into_unchecked() })
}
