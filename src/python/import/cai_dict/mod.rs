//! Reads `__cuda_array_interface__` into a [`CaiInterface`], each key once.
//!
//! [`read_fast`] reads the dict that nearly every producer sends, and never refuses. [`read`] takes every dict and
//! mapping, and reports what is wrong.
//!
//! Without the GIL another thread may change the dict meanwhile. Both read the values of one moment, so that the shape
//! of one array is not combined with the address of the next.

mod fast;

use once_cell::race::OnceBox;
use pyo3::exceptions::PyKeyError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::protocol::axes::{Axes, MAX_NDIM, Source};
use crate::protocol::device::Access;
use crate::protocol::dtype::TypeStr;
use crate::protocol::interface::{CaiInterface, Parts, Version};
use crate::protocol::mask;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;
use crate::python::cpython::int::{IntRule, repr, type_name};
use crate::python::cpython::names::names;
use crate::python::cpython::{errors, list, release};
pub(crate) use crate::python::import::cai_dict::fast::{
    FastDict, ManyNumbers, Numbers, Values, read_fast,
};

const VERSION: IntRule = IntRule::new(Field::CaiVersion, Rule::VersionType, Rule::VersionRange);
const EXTENT: IntRule = IntRule::new(Field::CaiShape, Rule::ShapeItemType, Rule::ShapeRange);
const STRIDE: IntRule = IntRule::new(Field::CaiStrides, Rule::StridesItemType, Rule::StridesRange);
const POINTER: IntRule = IntRule::new(
    Field::CaiData,
    Rule::DataPointerType,
    Rule::DataPointerRange,
);
const STREAM: IntRule = IntRule::new(Field::CaiStream, Rule::StreamType, Rule::StreamRange);

/// The contents of a dict, and what the caller warns of or refuses.
pub(crate) struct ParsedDict<'py> {
    pub(crate) interface: CaiInterface,
    /// The address, of an array without elements too, for which the interface has 0.
    pub(crate) address: u64,
    /// Whether the stream was 0, which is read as the legacy default stream.
    pub(crate) stream_was_zero: bool,
    /// The typestr as the producer wrote it.
    pub(crate) typestr: Bound<'py, PyAny>,
    /// The mask, which the caller must refuse or split off.
    pub(crate) mask: Option<Bound<'py, PyAny>>,
    /// What the flag says of writing: `None` says nothing, and the interface has it as read-only.
    pub(crate) access: Access,
}

impl ParsedDict<'_> {
    /// Whether the dict states what to wait for: version 3 does, by a stream or by having none.
    pub(crate) fn is_stream_known(&self) -> bool {
        self.interface.stream() != Stream::None || self.interface.version().number() >= 3
    }
}

/// Reads any dict or mapping, holding a reference to each value. `strict` refuses what the specification forbids but
/// producers send.
///
/// # Errors
/// The rules of the interface; the exceptions of the mapping and its values.
#[cold]
pub(crate) fn read<'py>(dict: &Bound<'py, PyAny>, strict: bool) -> PyResult<ParsedDict<'py>> {
    let py = dict.py();
    let names = names(py);
    #[cfg(Py_GIL_DISABLED)]
    let dict = &snapshot(dict)?;
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
    let (data, access) = data(
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
        read_only: access != Access::Writable,
        stream,
    };
    Ok(ParsedDict {
        interface: CaiInterface::new(parts)?,
        address: data,
        stream_was_zero,
        typestr: text,
        mask,
        access,
    })
}

/// The classes of `collections.abc` for "dictionary-like" and "a sequence".
#[derive(Clone, Copy)]
enum Abc {
    Mapping,
    Sequence,
}

/// Whether an object is an instance of the class. PyO3's types for both fill cells that wait
/// ([`cpython`](crate::python::cpython)).
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

/// Copies a dict while it is locked; returns any other mapping itself.
#[cfg(Py_GIL_DISABLED)]
fn snapshot<'py>(mapping: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match mapping.cast::<PyDict>() {
        Ok(dict) => Ok(dict.copy()?.into_any()),
        Err(_) => Ok(mapping.clone()),
    }
}

/// A dict, or a mapping ("dictionary-like" in version 0).
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

    /// Returns the value; `None` if the key is missing. Other exceptions of `__getitem__` pass through.
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
    Ok(TypeStr::parse_any_order(text)?)
}

/// Returns the items of a tuple or list; `torch.Size` is a tuple. Refuses a str, which is a sequence too.
fn items<'py>(
    value: &Bound<'py, PyAny>,
    rule: Rule,
    field: Field,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    if let Ok(tuple) = value.cast::<PyTuple>() {
        return Ok(tuple.iter().collect());
    }
    match value.cast::<PyList>() {
        Ok(list) => Ok(list::items(list)),
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

/// Reads the pointer and the read-only flag. Takes a lazy sequence (cuDF's, which un-spills when it is read), and reads
/// each item once; refuses a buffer, whose items are the array's own bytes.
fn data(value: &Bound<'_, PyAny>, size_is_zero: bool) -> PyResult<(u64, Access)> {
    let wrong = |rule| PyErr::from(Violation::new(rule, Field::CaiData, repr(value)));
    // SAFETY: a living object, of any type.
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
    Ok((address, access(&flag)?))
}

/// Reads the read-only flag: anything that is true or false, as the readers of the interface take it; `None` says
/// nothing.
///
/// # Errors
/// `data-type` for what is neither, of which the exception is the cause; an interrupt, and a lack of memory.
pub(crate) fn access(flag: &Bound<'_, PyAny>) -> PyResult<Access> {
    if flag.is_none() {
        return Ok(Access::Unknown);
    }
    match flag.is_truthy() {
        Ok(read_only) => Ok(Access::of_flag(read_only)),
        Err(error) if !errors::is_of_the_process(flag.py(), &error) => {
            let hint = format!(
                "the flag must be a bool; its bool() raised {}",
                errors::raised(&error)
            );
            let violation = Violation::new(Rule::DataType, Field::CaiData, repr(flag));
            Err(errors::caused_by(violation.with_hint(hint), error))
        }
        Err(error) => Err(error),
    }
}

fn stream(value: Option<Bound<'_, PyAny>>, strict: bool) -> PyResult<(Stream, bool)> {
    let Some(value) = value else {
        return Ok((Stream::None, false));
    };
    let number = STREAM.read_wide(&value)?;
    Ok((Stream::from_cai(number, strict)?, number == 0))
}

/// Builds the error for a masked array, whose mask may be wrong itself.
#[cold]
pub(crate) fn refuse_mask(mask: &Bound<'_, PyAny>, shape: &[i64]) -> PyErr {
    let found = || format!("<a mask of type {}>", type_name(mask));
    let inner = match mask.getattr_opt(&names(mask.py()).cai) {
        Ok(Some(inner)) => inner,
        Ok(None) => {
            let violation = Violation::new(Rule::MaskType, Field::CaiMask, repr(mask));
            return errors::absent(violation, mask, "__cuda_array_interface__");
        }
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
