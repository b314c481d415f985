//! Reads a dict of numbers without running Python code.
//!
//! Takes the shape that nearly every producer sends: an exact dict with interned keys whose values are exact tuples,
//! ints and strs, and no mask. A second reading of the same values takes any number of axes, NumPy's ints, under the GIL
//! exact lists, and what is warned of: stream 0 and newer versions. Anything else, and anything wrong, gives `None` with
//! nothing done.
//!
//! Under the GIL the values are borrowed. So nothing here may run code, raise an exception or allocate a Python object
//! that the garbage collector tracks: before CPython 3.12 such an allocation may start a collection, whose finalisers
//! may empty the dict.

use std::ptr;

use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::PyDict;
use pyo3::{Borrowed, ffi};

use crate::protocol::axes::MAX_NDIM;
use crate::protocol::convert::{InterfaceRef, PlainDict};
use crate::protocol::stream::Stream;
use crate::python::cpython::names::{Names, names};
use crate::python::cpython::text::Letters;
use crate::python::cpython::tuple::{tuple_item, tuple_len};
use crate::python::cpython::{int, numpy_int};
use crate::python::import::notice::Notice;

/// The values of the keys [`Names::interface`], in that order; NULL for a missing key. Borrowed from the dict under the
/// GIL; strong references without it, as another thread may change the dict once it is unlocked.
pub(crate) struct Values([*mut ffi::PyObject; 8]);

impl Values {
    /// Returns the values of an empty dict.
    #[inline(always)]
    pub(crate) fn none() -> Self {
        Self([ptr::null_mut(); 8])
    }
}

#[cfg(Py_GIL_DISABLED)]
impl Drop for Values {
    fn drop(&mut self) {
        for value in self.0 {
            // SAFETY: this thread is attached; NULL, or a reference that `read_values` took and nothing else gives up.
            unsafe { ffi::Py_XDECREF(value) };
        }
    }
}

/// Reads an exact dict in one pass, comparing keys by identity; `None` for a key that is not interned or not CAI's.
#[inline(always)]
fn read_values(dict: &Bound<'_, PyDict>, names: &Names, values: &mut Values) -> Option<()> {
    with_critical_section(dict, || {
        let (mut position, mut key, mut value) = (0, ptr::null_mut(), ptr::null_mut());
        let mut expected = 0; // keys in the order of our own export are found at once
        // The step that finds no further key costs as much as one that does.
        for _ in 0..dict.len() {
            // SAFETY: an exact dict, and pointers that are valid for writes. It does not change between the steps: no
            // Python code runs, and without the GIL it is locked.
            let found = unsafe {
                ffi::PyDict_Next(
                    dict.as_ptr(),
                    &raw mut position,
                    &raw mut key,
                    &raw mut value,
                )
            };
            if found == 0 {
                break;
            }
            if names.interface[expected & 7].as_ptr() != key {
                expected = (names.interface.iter()).position(|name| name.as_ptr() == key)?;
            }
            #[cfg(Py_GIL_DISABLED)]
            // SAFETY: alive: the dict holds a reference and is locked.
            unsafe {
                ffi::Py_INCREF(value)
            };
            values.0[expected & 7] = value;
            expected += 1;
        }
        Some(())
    })
}

/// The contents of a dict of numbers without a mask.
#[derive(Clone, Copy)]
pub(crate) struct FastDict<'a> {
    pub(crate) array: InterfaceRef<'a>,
    /// As `ParsedDict::address`.
    pub(crate) address: u64,
    pub(crate) stream: Stream,
    /// As `ParsedDict::is_stream_known`.
    pub(crate) is_stream_known: bool,
}

/// The most axes of the plain form.
const FAST_NDIM: usize = 8;

/// Memory for the extents and strides.
pub(crate) type Numbers = [i64; 2 * FAST_NDIM];

/// Reads the plain form: few axes, tuples and Python's ints alone, and nothing to warn of.
const PLAIN: bool = false;
/// Reads more axes, lists and NumPy's ints, stream 0 and newer versions too.
const ANY: bool = true;

/// Reads the dict without running Python code, if it has the plain form; `None`, with nothing done, if it has another one
/// or is wrong. `values` are then those of an exact dict of known keys, else none.
#[inline(always)]
pub(crate) fn read_fast<'a>(
    dict: &Bound<'_, PyAny>,
    values: &mut Values,
    numbers: &'a mut Numbers,
) -> Option<FastDict<'a>> {
    let dict = dict.cast_exact::<PyDict>().ok()?;
    let py = dict.py();
    if read_values(dict, names(py), values).is_none() {
        *values = Values::none();
        return None;
    }
    Some(read_form::<PLAIN, _>(py, values, numbers)?.0)
}

/// Memory for the extents and strides of any number of axes.
pub(crate) type ManyNumbers = [i64; 2 * MAX_NDIM];

impl Values {
    /// Reads the values in more forms, and says what the import warns of, unless it is strict. `None`, with nothing done,
    /// if they have another form still or are wrong.
    ///
    /// # Safety
    /// The values are of [`read_fast`]; the dict lives, and no Python code has run since.
    pub(crate) unsafe fn read_any_form<'a>(
        &self,
        py: Python<'_>,
        numbers: &'a mut ManyNumbers,
    ) -> Option<(FastDict<'a>, Option<Notice>)> {
        read_form::<ANY, _>(py, self, numbers)
    }
}

#[inline(always)]
fn read_form<'a, const FORM: bool, const N: usize>(
    py: Python<'_>,
    values: &Values,
    numbers: &'a mut [i64; N],
) -> Option<(FastDict<'a>, Option<Notice>)> {
    let [shape, typestr, data, strides, version, stream, descr, mask] = values.0;
    if !is_absent(mask) {
        return None;
    }
    // First, as what has another form mostly has it here.
    let ndim = ints_fast::<FORM>(py, shape, numbers.get_mut(..N / 2)?)?;
    let dtype = PlainDict::dtype(&letters_fast(py, typestr)?)?;
    if !descr.is_null() && !is_trivial_descr(py, descr, typestr) {
        return None;
    }
    let has_strides = !is_absent(strides);
    if has_strides && ints_fast::<FORM>(py, strides, numbers.get_mut(ndim..)?)? != ndim {
        return None;
    }
    let (data, read_only) = data_fast::<FORM>(py, data)?;
    let mut notice = None;
    let stream = if is_absent(stream) {
        Stream::None
    } else {
        let handle = u64_fast::<FORM>(py, stream)?;
        match handle {
            0 if FORM == PLAIN => return None,
            0 => notice = Some(Notice::StreamZero),
            _ => {}
        }
        Stream::from_raw(handle)
    };
    // A missing version is refused or accepted by the full read.
    let version = u64_fast::<FORM>(py, version)?;
    match version {
        0..=3 => {}
        _ if FORM == PLAIN => return None,
        _ => notice = Some(Notice::NewerVersion(version.cast_signed())),
    }
    let plain = PlainDict {
        data,
        read_only,
        dtype,
        values: numbers.get_mut(..2 * ndim)?,
        ndim: ndim as u8,
        has_strides,
    };
    let fast = FastDict {
        array: plain.checked().ok()?,
        address: data,
        stream,
        is_stream_known: stream != Stream::None || version >= 3,
    };
    Some((fast, notice))
}

/// Whether a value is missing or `None`, which the interface does not distinguish.
#[inline]
fn is_absent(value: *mut ffi::PyObject) -> bool {
    // SAFETY: returns the address of a static.
    value.is_null() || value == unsafe { ffi::Py_None() }
}

#[inline(always)]
fn letters_fast<'a>(py: Python<'a>, value: *mut ffi::PyObject) -> Option<Letters<'a>> {
    if value.is_null() {
        return None;
    }
    // SAFETY: a value of the dict or an item of one: not null, and alive as long as `read_fast` runs.
    Letters::read_fast(unsafe { Borrowed::from_ptr(py, value) })
}

/// Whether `descr` only repeats `typestr`: `[('', typestr)]`, as CuPy sends it.
fn is_trivial_descr(
    py: Python<'_>,
    descr: *mut ffi::PyObject,
    typestr: *mut ffi::PyObject,
) -> bool {
    // SAFETY: a value of the dict, not null; a list when its size is read.
    if unsafe { ffi::PyList_CheckExact(descr) } == 0 || unsafe { ffi::PyList_Size(descr) } != 1 {
        return false;
    }
    let Some(field) = sole_item(py, descr) else {
        return false;
    };
    let field = field.as_ptr();
    // SAFETY: alive: the list holds a reference, or `field` does (`sole_item`); a tuple when its length is read.
    if unsafe { ffi::PyTuple_CheckExact(field) } == 0 || unsafe { tuple_len(field) } != 2 {
        return false;
    }
    // SAFETY: a tuple of two.
    let name = letters_fast(py, unsafe { tuple_item(field, 0) });
    // SAFETY: a tuple of two.
    let kind = letters_fast(py, unsafe { tuple_item(field, 1) });
    let (Some(name), Some(kind), Some(typestr)) = (name, kind, letters_fast(py, typestr)) else {
        return false;
    };
    name.is_empty() && *kind == *typestr
}

/// Returns the item of a list of one, borrowed from it.
#[cfg(not(Py_GIL_DISABLED))]
fn sole_item<'a, 'py>(
    py: Python<'py>,
    list: *mut ffi::PyObject,
) -> Option<Borrowed<'a, 'py, PyAny>> {
    // SAFETY: a list of one item.
    let item = unsafe { ffi::PyList_GetItem(list, 0) };
    // SAFETY: not null; alive while the list holds it, as no Python code runs.
    Some(unsafe { Borrowed::from_ptr(py, item) })
}

/// Returns the item of a list of one; `None` if another thread has removed it.
#[cfg(Py_GIL_DISABLED)]
fn sole_item(py: Python<'_>, list: *mut ffi::PyObject) -> Option<Bound<'_, PyAny>> {
    // SAFETY: a list.
    let item = unsafe { ffi::PyList_GetItemRef(list, 0) };
    // SAFETY: a new reference, or NULL with an exception set.
    let item = unsafe { Bound::from_owned_ptr_or_opt(py, item) };
    if item.is_none() {
        // SAFETY: this thread is attached.
        unsafe { ffi::PyErr_Clear() };
    }
    item
}

#[inline]
fn len_fast<const FORM: bool>(sequence: *mut ffi::PyObject) -> Option<usize> {
    // SAFETY: a value of the dict, not null (both callers check it).
    if unsafe { ffi::PyTuple_CheckExact(sequence) } != 0 {
        // SAFETY: an exact tuple.
        return Some(unsafe { tuple_len(sequence) }.cast_unsigned());
    }
    if FORM == PLAIN || cfg!(Py_GIL_DISABLED) {
        return None; // without the GIL another thread may change a list
    }
    // SAFETY: a value of the dict, not null.
    if unsafe { ffi::PyList_CheckExact(sequence) } == 0 {
        return None;
    }
    // SAFETY: an exact list.
    Some(unsafe { ffi::PyList_Size(sequence) }.cast_unsigned())
}

/// Returns an item of what has a [`len_fast`] above `index`, borrowed.
#[inline(always)]
fn item_fast<const FORM: bool>(sequence: *mut ffi::PyObject, index: usize) -> *mut ffi::PyObject {
    let index = index.cast_signed();
    // SAFETY: a value of the dict, not null.
    if FORM == ANY && unsafe { ffi::PyTuple_CheckExact(sequence) } == 0 {
        // SAFETY: not a tuple, so an exact list; as long as when its length was read, as no Python code runs.
        unsafe { ffi::PyList_GetItem(sequence, index) }
    } else {
        // SAFETY: an exact tuple, and `index` is below its length.
        unsafe { tuple_item(sequence, index) }
    }
}

/// Writes the items of a sequence of ints to the beginning of `into`, and returns their number.
#[inline(always)]
fn ints_fast<const FORM: bool>(
    py: Python<'_>,
    sequence: *mut ffi::PyObject,
    into: &mut [i64],
) -> Option<usize> {
    if sequence.is_null() {
        return None;
    }
    let length = len_fast::<FORM>(sequence)?;
    for (index, number) in into.get_mut(..length)?.iter_mut().enumerate() {
        *number = i64_fast::<FORM>(py, item_fast::<FORM>(sequence, index))?;
    }
    Some(length)
}

#[inline(always)]
fn i64_fast<const FORM: bool>(py: Python<'_>, value: *mut ffi::PyObject) -> Option<i64> {
    // SAFETY: a value of the dict or an item of one: not null, and alive as long as `read_fast` runs.
    let value = unsafe { Borrowed::from_ptr(py, value) };
    match int::read_fast(value) {
        None if FORM == ANY => numpy_int::read(value),
        number => number,
    }
}

#[inline(always)]
fn u64_fast<const FORM: bool>(py: Python<'_>, value: *mut ffi::PyObject) -> Option<u64> {
    if value.is_null() {
        return None;
    }
    // Device addresses and handles are below 2^63; the full read takes the rest.
    u64::try_from(i64_fast::<FORM>(py, value)?).ok()
}

#[inline(always)]
fn data_fast<const FORM: bool>(py: Python<'_>, data: *mut ffi::PyObject) -> Option<(u64, bool)> {
    if data.is_null() || len_fast::<FORM>(data)? != 2 {
        return None;
    }
    let pointer = u64_fast::<FORM>(py, item_fast::<FORM>(data, 0))?;
    let flag = item_fast::<FORM>(data, 1);
    // SAFETY: return the addresses of statics.
    let (yes, no) = (unsafe { ffi::Py_True() }, unsafe { ffi::Py_False() });
    (flag == yes || flag == no).then_some((pointer, flag == yes))
}
