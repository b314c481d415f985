//! `__cuda_array_interface__` -> [`CaiInterface`], each key read once.
//!
//! Two ways through the same dict. [`usual`] takes the shape that nearly every producer sends: an
//! exact dict with interned keys whose values are exact tuples, ints and strs. It runs no Python code
//! and therefore, under the GIL, needs no references of its own; it never refuses, but gives up. [`read`]
//! takes everything else, holds a reference to whatever it looks at, and says what is wrong.
//!
//! Without the GIL another thread may change the dict meanwhile. Either way looks at the values of one
//! moment, so that the shape of one array is not read with the address of the next.

use std::ptr;

use once_cell::race::OnceBox;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use pyo3::{Borrowed, ffi};

use crate::protocol::axes::{Axes, MAX_NDIM, Source};
use crate::protocol::convert::{InterfaceRef, PlainDict};
use crate::protocol::dtype::TypeStr;
use crate::protocol::interface::{CaiInterface, Parts, Version};
use crate::protocol::mask;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;
use crate::python::cpython::fastcall::{tuple_item, tuple_len};
use crate::python::cpython::int::{IntRule, repr, type_name};
use crate::python::cpython::names::{Names, names};
use crate::python::cpython::{int, release};

const VERSION: IntRule = IntRule::new(Field::CaiVersion, Rule::VersionType, Rule::VersionRange);
const EXTENT: IntRule = IntRule::new(Field::CaiShape, Rule::ShapeItemType, Rule::ShapeRange);
const STRIDE: IntRule = IntRule::new(Field::CaiStrides, Rule::StridesItemType, Rule::StridesRange);
const POINTER: IntRule = IntRule::new(
    Field::CaiData,
    Rule::DataPointerType,
    Rule::DataPointerRange,
);
const STREAM: IntRule = IntRule::new(Field::CaiStream, Rule::StreamType, Rule::StreamRange);

/// What a dict said, and what the caller may want to tell the user about it.
pub(crate) struct ParsedDict<'py> {
    pub(crate) interface: CaiInterface,
    /// The stream was 0, taken as the legacy default stream.
    pub(crate) stream_was_zero: bool,
    /// The typestr as the producer wrote it, where it took the careful way.
    pub(crate) typestr: Option<Bound<'py, PyAny>>,
    /// The mask, which the caller must not ignore.
    pub(crate) mask: Option<Bound<'py, PyAny>>,
}

impl ParsedDict<'_> {
    /// Whether the dict says what to wait for: version 3 does, by a stream or by having none.
    pub(crate) fn is_stream_known(&self) -> bool {
        self.interface.stream() != Stream::None || self.interface.version().number() >= 3
    }
}

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

/// Reads any dict or mapping, holding a reference to each value. `strict` refuses what the specification forbids
/// but producers send.
#[cold]
pub(crate) fn read<'py>(dict: &Bound<'py, PyAny>, strict: bool) -> PyResult<ParsedDict<'py>> {
    let py = dict.py();
    let names = names(py);
    #[cfg(Py_GIL_DISABLED)]
    let dict = &at_one_moment(dict)?;
    let source = Mapping::new(dict)?;
    let get = |key: &Py<PyString>| source.get(key.bind(py));
    let required = |key: &Py<PyString>, rule, field| {
        get(key)?.ok_or_else(|| PyErr::from(Violation::new(rule, field, "")))
    };

    let version = version(get(&names.version)?, strict)?;
    let text = required(&names.typestr, Rule::TypestrMissing, Field::CaiTypestr)?;
    let typestr = typestr(&text)?;
    let descr = crate::python::import::descr::read(get(&names.descr)?, typestr)?;
    let mut axes = Axes::new(Source::Cai);
    shape(
        &required(&names.shape, Rule::ShapeMissing, Field::CaiShape)?,
        &mut axes,
    )?;
    if let Some(value) = present(get(&names.strides)?) {
        strides(&value, &mut axes)?;
    }
    let size_is_zero = axes.shape().contains(&0);
    let (data, read_only) = data(
        &required(&names.data, Rule::DataMissing, Field::CaiData)?,
        size_is_zero,
    )?;
    let (stream, stream_was_zero) = stream(present(get(&names.stream)?), strict)?;
    let mask = present(get(&names.mask)?);
    let parts = Parts {
        version,
        typestr,
        descr,
        axes,
        data,
        read_only,
        stream,
    };
    Ok(ParsedDict {
        interface: CaiInterface::new(parts)?,
        stream_was_zero,
        typestr: Some(text),
        mask,
    })
}

/// The classes of `collections.abc` that stand for "dictionary-like" and "a sequence".
#[derive(Clone, Copy)]
enum Abc {
    Mapping,
    Sequence,
}

/// Whether an object says that it is one. PyO3 has types for both, whose cells wait ([`cpython`](crate::python::cpython)).
fn is_a(object: &Bound<'_, PyAny>, abc: Abc) -> PyResult<bool> {
    static CLASSES: [OnceBox<Py<PyAny>>; 2] = [const { OnceBox::new() }; 2];
    let (py, name) = match abc {
        Abc::Mapping => (object.py(), "Mapping"),
        Abc::Sequence if object.is_instance_of::<PyTuple>() => return Ok(true),
        Abc::Sequence => (object.py(), "Sequence"),
    };
    let class = CLASSES[abc as usize].get_or_try_init(|| {
        let class = py.import("collections.abc")?.getattr(name)?;
        Ok::<_, PyErr>(Box::new(class.unbind()))
    })?;
    object.is_instance(class.bind(py))
}

/// A copy of a dict, made while it is locked; another mapping itself.
#[cfg(Py_GIL_DISABLED)]
fn at_one_moment<'py>(mapping: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match mapping.cast::<PyDict>() {
        Ok(dict) => Ok(dict.copy()?.into_any()),
        Err(_) => Ok(mapping.clone()),
    }
}

/// A dict, or what version 0 calls "dictionary-like".
enum Mapping<'a, 'py> {
    Dict(&'a Bound<'py, PyDict>),
    Other(&'a Bound<'py, PyAny>),
}

impl<'a, 'py> Mapping<'a, 'py> {
    fn new(object: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        let mapping = if let Ok(dict) = object.cast::<PyDict>() {
            Self::Dict(dict)
        } else if is_a(object, Abc::Mapping)? {
            Self::Other(object)
        } else if object.is_none() {
            return Err(Violation::new(Rule::CaiNone, Field::Cai, "None").into());
        } else if object.is_callable() {
            return Err(Violation::new(Rule::CaiMethod, Field::Cai, repr(object)).into());
        } else {
            return Err(Violation::new(Rule::CaiType, Field::Cai, repr(object)).into());
        };
        if object.len()? == 0 {
            return Err(Violation::new(Rule::CaiEmpty, Field::Cai, "{}").into());
        }
        Ok(mapping)
    }

    /// The value, `None` where the key is missing; what `__getitem__` raises else passes through.
    fn get(&self, key: &Bound<'py, PyString>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self {
            Self::Dict(dict) => dict.get_item(key),
            Self::Other(mapping) => match mapping.get_item(key) {
                Ok(value) => Ok(Some(value)),
                Err(error) if error.is_instance_of::<PyKeyError>(key.py()) => {
                    release::drop_now(error);
                    Ok(None)
                }
                Err(error) => Err(error),
            },
        }
    }
}

fn present<'py>(value: Option<Bound<'py, PyAny>>) -> Option<Bound<'py, PyAny>> {
    value.filter(|value| !value.is_none())
}

fn version(value: Option<Bound<'_, PyAny>>, strict: bool) -> PyResult<Version> {
    match value {
        None if strict => Err(Violation::new(Rule::VersionMissing, Field::CaiVersion, "").into()),
        None => Ok(Version::MISSING),
        Some(value) => Ok(Version::from_int(VERSION.read(&value)?)?),
    }
}

fn typestr(value: &Bound<'_, PyAny>) -> PyResult<TypeStr> {
    let Ok(text) = value.cast::<PyString>() else {
        return Err(Violation::new(Rule::TypestrType, Field::CaiTypestr, repr(value)).into());
    };
    let Ok(text) = text.to_str() else {
        return Err(Violation::new(Rule::TypestrSyntax, Field::CaiTypestr, repr(value)).into());
    };
    Ok(TypeStr::parse(text)?)
}

/// The items of a tuple or list; `torch.Size` is a tuple. A str, which is a sequence too, is refused.
fn items<'py>(
    value: &Bound<'py, PyAny>,
    rule: Rule,
    field: Field,
) -> PyResult<Bound<'py, PyTuple>> {
    if let Ok(tuple) = value.cast::<PyTuple>() {
        return Ok(tuple.clone());
    }
    match value.cast::<PyList>() {
        Ok(list) => Ok(list.to_tuple()),
        Err(_) => Err(Violation::new(rule, field, repr(value)).into()),
    }
}

fn shape(value: &Bound<'_, PyAny>, axes: &mut Axes) -> PyResult<()> {
    let extents = items(value, Rule::ShapeType, Field::CaiShape)?;
    if extents.len() > MAX_NDIM {
        let count = extents.len();
        let found = format_args!("{count} axes");
        return Err(Violation::new(Rule::NdimLimit, Field::CaiShape, found).into());
    }
    for extent in extents {
        axes.push_extent(EXTENT.read(&extent)?)?;
    }
    Ok(())
}

fn strides(value: &Bound<'_, PyAny>, axes: &mut Axes) -> PyResult<()> {
    let strides = items(value, Rule::StridesType, Field::CaiStrides)?;
    axes.expect_strides(strides.len())?;
    for stride in strides {
        axes.push_stride(STRIDE.read(&stride)?)?;
    }
    Ok(())
}

/// The pointer and the read-only flag. A lazy sequence (cuDF's, which un-spills when it is read) is
/// taken, and each item read once; a buffer is not: its items are the array's own bytes.
fn data(value: &Bound<'_, PyAny>, size_is_zero: bool) -> PyResult<(u64, bool)> {
    let wrong = |rule| PyErr::from(Violation::new(rule, Field::CaiData, repr(value)));
    // SAFETY: any object may be asked.
    let is_buffer = unsafe { ffi::PyObject_CheckBuffer(value.as_ptr()) } != 0;
    if is_buffer || value.is_instance_of::<PyString>() {
        return Err(wrong(Rule::DataType));
    }
    if !is_a(value, Abc::Sequence)? {
        return Err(wrong(Rule::DataType));
    }
    if value.len()? != 2 {
        return Err(wrong(Rule::DataLength));
    }
    let (pointer, flag) = (value.get_item(0)?, value.get_item(1)?);
    let address = match pointer.is_none() {
        true if size_is_zero => 0,
        true => return Err(wrong(Rule::DataPointerNone)),
        false => POINTER.read(&pointer)?,
    };
    Ok((address, flag.is_truthy()?))
}

fn stream(value: Option<Bound<'_, PyAny>>, strict: bool) -> PyResult<(Stream, bool)> {
    let Some(value) = value else {
        return Ok((Stream::None, false));
    };
    let number = STREAM.read_wide(&value)?;
    Ok((Stream::from_cai(number, strict)?, number == 0))
}

/// Says why a masked array is refused: the mask itself may be wrong.
#[cold]
pub(crate) fn refuse_mask(mask: &Bound<'_, PyAny>, shape: &[i64]) -> PyErr {
    let found = || format!("<a mask of type {}>", type_name(mask));
    let inner = match mask.getattr_opt(&names(mask.py()).cai) {
        Ok(Some(inner)) => inner,
        Ok(None) => return Violation::new(Rule::MaskType, Field::CaiMask, repr(mask)).into(),
        Err(error) => return error,
    };
    let read = match read(&inner, false) {
        Ok(read) => read,
        Err(error) => return error,
    };
    if let Err(violation) = mask::check_shape(&read.interface, shape) {
        return violation.into();
    }
    Violation::new(Rule::MaskPresent, Field::CaiMask, found())
        .with_hint("cd.split_masked(obj) gives the values and the mask as a pair")
        .into()
}
