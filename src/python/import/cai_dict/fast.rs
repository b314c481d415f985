//! Reads a dict of numbers without running Python code.
//!
//! Takes the shape that nearly every producer sends: an exact dict with interned keys whose values are exact tuples,
//! ints and strs, and no mask. Anything else, and anything wrong, gives `None` with nothing done. As no Python code
//! runs, the values need no references of their own under the GIL.

use std::ptr;

use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::PyDict;
use pyo3::{Borrowed, ffi};

use crate::protocol::convert::{InterfaceRef, PlainDict};
use crate::protocol::stream::Stream;
use crate::python::cpython::int;
use crate::python::cpython::names::{Names, names};
use crate::python::cpython::tuple::{tuple_item, tuple_len};

/// The values of [`Names::interface`], in that order: borrowed from the dict under the GIL. Where there is
/// none another thread may change the dict as soon as it is not locked, and each is a reference of its own.
struct Values([*mut ffi::PyObject; 8]);

#[cfg(Py_GIL_DISABLED)]
impl Drop for Values {
    fn drop(&mut self) {
        for value in self.0 {
            // SAFETY: this thread is attached; NULL, or the reference that `read_values` took.
            unsafe { ffi::Py_XDECREF(value) };
        }
    }
}

/// One pass over an exact dict, comparing keys by identity. Gives up at a key that is not interned or
/// not CAI's.
#[inline(always)]
fn read_values(dict: &Bound<'_, PyDict>, names: &Names, values: &mut Values) -> Option<()> {
    with_critical_section(dict, || {
        let (mut position, mut key, mut value) = (0, ptr::null_mut(), ptr::null_mut());
        let mut expected = 0; // keys that come in our own order are found at once
        // SAFETY: an exact dict that nobody changes: no Python code runs between the steps, and where
        // there is no GIL the dict is locked. Key and value are borrowed from it.
        while unsafe {
            ffi::PyDict_Next(
                dict.as_ptr(),
                &raw mut position,
                &raw mut key,
                &raw mut value,
            )
        } != 0
        {
            if names.interface[expected & 7].as_ptr() != key {
                expected = (names.interface.iter()).position(|name| name.as_ptr() == key)?;
            }
            #[cfg(Py_GIL_DISABLED)]
            // SAFETY: the dict, which is locked, keeps it meanwhile.
            unsafe {
                ffi::Py_INCREF(value)
            };
            values.0[expected & 7] = value;
            expected += 1;
        }
        Some(())
    })
}

/// The dict that nearly every producer sends: an array of numbers without a mask.
#[derive(Clone, Copy)]
pub(crate) struct FastDict<'a> {
    pub(crate) array: InterfaceRef<'a>,
    pub(crate) stream: Stream,
    /// The dict says what to wait for: see [`ParsedDict::is_stream_known`].
    pub(crate) is_stream_known: bool,
}

/// More axes than these are unusual.
const FAST_NDIM: usize = 8;

/// Where the extents and strides of a usual dict are put.
pub(crate) type Numbers = [i64; 2 * FAST_NDIM];

/// Reads the usual dict, without running Python code; `None` where anything is unusual or wrong, with
/// nothing done: [`read`] knows the rest.
#[inline(always)]
pub(crate) fn read_fast<'a>(
    dict: &Bound<'_, PyAny>,
    numbers: &'a mut Numbers,
) -> Option<FastDict<'a>> {
    let dict = dict.cast_exact::<PyDict>().ok()?;
    let py = dict.py();
    let mut values = Values([ptr::null_mut(); 8]);
    read_values(dict, names(py), &mut values)?;
    let [shape, typestr, data, strides, version, stream, descr, mask] = values.0;
    if !is_absent(mask) {
        return None;
    }
    let dtype = PlainDict::dtype(str_fast(py, typestr)?)?;
    if !descr.is_null() && !is_trivial_descr(py, descr, typestr) {
        return None;
    }
    let ndim = ints_fast(py, shape, numbers.get_mut(..FAST_NDIM)?)?;
    let has_strides = !is_absent(strides);
    if has_strides && ints_fast(py, strides, numbers.get_mut(ndim..)?)? != ndim {
        return None;
    }
    let (data, read_only) = data_fast(py, data)?;
    let stream = if is_absent(stream) {
        Stream::None
    } else {
        // 0 is for the careful way, which remembers to warn.
        match u64_fast(py, stream)? {
            0 => return None,
            handle => Stream::from_raw(handle),
        }
    };
    // So are a missing version, which may be refused, and one that is not known.
    let version = match u64_fast(py, version)? {
        version @ 0..=3 => version,
        _ => return None,
    };
    let plain = PlainDict {
        data,
        read_only,
        dtype,
        values: numbers.get_mut(..2 * ndim)?,
        ndim: ndim as u8,
        has_strides,
    };
    Some(FastDict {
        array: plain.checked().ok()?,
        stream,
        is_stream_known: stream != Stream::None || version == 3,
    })
}

/// Whether a value is missing or `None`, which the interface does not distinguish.
#[inline]
fn is_absent(value: *mut ffi::PyObject) -> bool {
    // SAFETY: reads the address of a static.
    value.is_null() || value == unsafe { ffi::Py_None() }
}

#[inline(always)]
fn str_fast<'a>(_py: Python<'a>, value: *mut ffi::PyObject) -> Option<&'a str> {
    // SAFETY: NULL or one of `Values`, or of their items, which live as long as `usual` runs.
    if value.is_null() || unsafe { ffi::PyUnicode_CheckExact(value) } == 0 {
        return None;
    }
    let mut length = 0;
    // SAFETY: an exact str.
    let text = unsafe { ffi::PyUnicode_AsUTF8AndSize(value, &raw mut length) };
    if text.is_null() {
        // SAFETY: the GIL is held. A lone surrogate: the careful way will say so.
        unsafe { ffi::PyErr_Clear() };
        return None;
    }
    // SAFETY: `length` bytes that belong to the str.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast(), length.cast_unsigned()) };
    // SAFETY: CPython's promise of this function.
    Some(unsafe { std::str::from_utf8_unchecked(bytes) })
}

/// Whether `descr` says no more than `typestr`: `[('', typestr)]`, as CuPy sends it.
fn is_trivial_descr(
    py: Python<'_>,
    descr: *mut ffi::PyObject,
    typestr: *mut ffi::PyObject,
) -> bool {
    // SAFETY: one of `Values`, not null.
    if unsafe { ffi::PyList_CheckExact(descr) } == 0 || unsafe { ffi::PyList_Size(descr) } != 1 {
        return false;
    }
    let Some(field) = sole_item(py, descr) else {
        return false;
    };
    let field = field.as_ptr();
    // SAFETY: kept by the list, or by ourselves (`sole_item`).
    if unsafe { ffi::PyTuple_CheckExact(field) } == 0 || unsafe { tuple_len(field) } != 2 {
        return false;
    }
    // SAFETY: a tuple of two.
    let name = str_fast(py, unsafe { tuple_item(field, 0) });
    // SAFETY: a tuple of two.
    let kind = str_fast(py, unsafe { tuple_item(field, 1) });
    name == Some("") && kind.is_some() && kind == str_fast(py, typestr)
}

/// The item of a list of one, borrowed from it.
#[cfg(not(Py_GIL_DISABLED))]
fn sole_item<'a, 'py>(
    py: Python<'py>,
    list: *mut ffi::PyObject,
) -> Option<Borrowed<'a, 'py, PyAny>> {
    // SAFETY: a list of one item; borrowed from it, while no Python code runs.
    let item = unsafe { ffi::PyList_GetItem(list, 0) };
    // SAFETY: as above.
    Some(unsafe { Borrowed::from_ptr(py, item) })
}

/// The item of a list of one, which another thread may take out meanwhile.
#[cfg(Py_GIL_DISABLED)]
fn sole_item(py: Python<'_>, list: *mut ffi::PyObject) -> Option<Bound<'_, PyAny>> {
    // SAFETY: a list; a new reference, or NULL with an exception set.
    let item = unsafe { ffi::PyList_GetItemRef(list, 0) };
    // SAFETY: as above.
    let item = unsafe { Bound::from_owned_ptr_or_opt(py, item) };
    if item.is_none() {
        // SAFETY: this thread is attached.
        unsafe { ffi::PyErr_Clear() };
    }
    item
}

#[inline]
fn len_fast(tuple: *mut ffi::PyObject) -> Option<usize> {
    // SAFETY: one of `Values`, not null (`is_absent`, or checked by `ints_fast`).
    if unsafe { ffi::PyTuple_CheckExact(tuple) } == 0 {
        return None;
    }
    // SAFETY: an exact tuple.
    Some(unsafe { tuple_len(tuple) }.cast_unsigned())
}

/// Writes the items of an exact tuple of exact ints to the beginning of `into`; their number.
#[inline(always)]
fn ints_fast(py: Python<'_>, tuple: *mut ffi::PyObject, into: &mut [i64]) -> Option<usize> {
    if tuple.is_null() {
        return None;
    }
    let length = len_fast(tuple)?;
    for (index, number) in into.get_mut(..length)?.iter_mut().enumerate() {
        // SAFETY: an exact tuple, and `index` is below its length.
        let item = unsafe { tuple_item(tuple, index.cast_signed()) };
        *number = i64_fast(py, item)?;
    }
    Some(length)
}

#[inline(always)]
fn i64_fast(py: Python<'_>, value: *mut ffi::PyObject) -> Option<i64> {
    // SAFETY: one of `Values` or an item of one, not null, and alive while `usual` runs.
    let value = unsafe { Borrowed::from_ptr(py, value) };
    int::read_fast(value)
}

#[inline(always)]
fn u64_fast(py: Python<'_>, value: *mut ffi::PyObject) -> Option<u64> {
    if value.is_null() {
        return None;
    }
    // Device addresses and handles are below 2^63; the careful way takes the rest.
    u64::try_from(i64_fast(py, value)?).ok()
}

#[inline(always)]
fn data_fast(py: Python<'_>, data: *mut ffi::PyObject) -> Option<(u64, bool)> {
    if data.is_null() || len_fast(data)? != 2 {
        return None;
    }
    // SAFETY: an exact tuple of two.
    let pointer = u64_fast(py, unsafe { tuple_item(data, 0) })?;
    // SAFETY: an exact tuple of two.
    let flag = unsafe { tuple_item(data, 1) };
    // SAFETY: reads the addresses of statics.
    let (yes, no) = (unsafe { ffi::Py_True() }, unsafe { ffi::Py_False() });
    (flag == yes || flag == no).then_some((pointer, flag == yes))
}
