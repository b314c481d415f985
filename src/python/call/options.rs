//! The keyword arguments that `view`, `from_cai` and `from_dlpack` share, parsed.

use std::convert::Infallible;

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};
use pyo3::{Borrowed, ffi};

use crate::protocol::dtype::DType;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;
use crate::python::call::stream;
use crate::python::cpython::int;
use crate::python::cpython::int::{IntRule, repr};

/// How much the driver is asked about the data pointer.
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) enum Check {
    /// Where it is, unless somebody said.
    #[default]
    Device,
    /// Also whether every element lies in its allocation.
    Bounds,
    /// The same where there is a driver to ask: an argument of somebody's function, who asked for nothing.
    BoundsIfKnown,
}

/// `producer_stream=`: a stream, `None` for "nothing is pending", or `...` for "as the producer says", which
/// is the same as saying nothing.
#[derive(Clone, Copy, Default)]
pub(crate) struct ProducerStream<'a, 'py>(Option<Borrowed<'a, 'py, PyAny>>);

impl<'a, 'py> ProducerStream<'a, 'py> {
    /// What the caller wrote, `None` included.
    #[inline(always)]
    pub(crate) fn new(given: Option<Borrowed<'a, 'py, PyAny>>) -> Self {
        Self(given.filter(|value| !is_ellipsis(value)))
    }

    #[inline(always)]
    pub(crate) fn is_given(self) -> bool {
        self.0.is_some()
    }

    /// The object that names the stream, to be kept.
    #[inline(always)]
    pub(crate) fn object(&self) -> Option<&Bound<'py, PyAny>> {
        self.0.as_deref().filter(|value| !value.is_none())
    }

    /// # Errors
    /// `TypeError` or `ValueError`, naming the argument.
    #[inline]
    fn parse(self) -> PyResult<Option<Stream>> {
        self.0
            .map(|value| match value.is_none() {
                true => Ok(Stream::None),
                false => stream::named(&value, Field::Argument("producer_stream")),
            })
            .transpose()
    }
}

/// By its address: a reference that is made and dropped would wait in PyO3's pool (`vectorcall`).
#[inline(always)]
fn is_ellipsis(value: &Bound<'_, PyAny>) -> bool {
    // SAFETY: reads the address of a static.
    value.as_ptr() == unsafe { ffi::Py_Ellipsis() }
}

impl<'a, 'py> FromPyObject<'a, 'py> for ProducerStream<'a, 'py> {
    type Error = Infallible;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> Result<Self, Infallible> {
        Ok(Self::new(Some(value)))
    }
}

/// What the caller knows better than the producer.
#[derive(Default)]
pub(crate) struct Options<'py> {
    /// Where the data is written; [`Stream::None`] where nothing is pending.
    pub(crate) producer: Option<Stream>,
    pub(crate) dtype: Option<DType>,
    pub(crate) shape: Option<Vec<i64>>,
    pub(crate) read_only: Option<bool>,
    pub(crate) owner: Option<Bound<'py, PyAny>>,
    pub(crate) ordinal: Option<i32>,
    pub(crate) check: Check,
    pub(crate) strict: bool,
}

/// The arguments as they come, before anything is known about them.
pub(crate) struct Arguments<'a, 'py> {
    pub(crate) producer_stream: ProducerStream<'a, 'py>,
    pub(crate) dtype: Option<&'a Bound<'py, PyAny>>,
    pub(crate) shape: Option<&'a Bound<'py, PyAny>>,
    pub(crate) read_only: Option<bool>,
    pub(crate) owner: Option<&'a Bound<'py, PyAny>>,
    pub(crate) ordinal: Option<&'a Bound<'py, PyAny>>,
    pub(crate) check: Option<&'a Bound<'py, PyAny>>,
    pub(crate) strict: bool,
}

impl Arguments<'_, '_> {
    /// Whether none is given.
    #[inline]
    pub(crate) fn say_nothing(&self) -> bool {
        !self.producer_stream.is_given()
            && self.dtype.is_none()
            && self.shape.is_none()
            && self.read_only.is_none()
            && self.owner.is_none()
            && self.ordinal.is_none()
            && self.check.is_none()
            && !self.strict
    }
}

impl<'py> Options<'py> {
    /// # Errors
    /// `TypeError` or `ValueError`, naming the argument.
    #[inline]
    pub(crate) fn parse(arguments: &Arguments<'_, 'py>) -> PyResult<Self> {
        Ok(Self {
            producer: arguments.producer_stream.parse()?,
            dtype: arguments.dtype.map(dtype).transpose()?,
            shape: arguments.shape.map(shape).transpose()?,
            read_only: arguments.read_only,
            owner: arguments.owner.cloned(),
            ordinal: arguments.ordinal.map(ordinal).transpose()?,
            check: arguments.check.map(check).transpose()?.unwrap_or_default(),
            strict: arguments.strict,
        })
    }
}

impl Options<'_> {
    /// Nothing known but, perhaps, the device.
    ///
    /// # Errors
    /// `TypeError` or `ValueError`, naming the argument.
    #[inline]
    pub(crate) fn located(value: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        Ok(Self {
            ordinal: value.map(ordinal).transpose()?,
            ..Self::default()
        })
    }
}

#[inline]
fn ordinal(value: &Bound<'_, PyAny>) -> PyResult<i32> {
    let field = Field::Argument("ordinal");
    if let Some(ordinal) =
        int::quick(value.as_borrowed()).and_then(|number| i32::try_from(number).ok())
        && ordinal >= 0
    {
        return Ok(ordinal);
    }
    let ordinal: i32 = IntRule::new(field, Rule::ArgumentType, Rule::OrdinalRange).read(value)?;
    if ordinal < 0 {
        return Err(Violation::new(Rule::OrdinalRange, field, ordinal).into());
    }
    Ok(ordinal)
}

fn check(value: &Bound<'_, PyAny>) -> PyResult<Check> {
    let field = Field::Argument("check");
    let Ok(text) = value.cast::<PyString>() else {
        return Err(Violation::new(Rule::ArgumentType, field, repr(value)).into());
    };
    match &*text.to_cow()? {
        "device" => Ok(Check::Device),
        "bounds" => Ok(Check::Bounds),
        _ => Err(Violation::new(Rule::ArgumentValue, field, repr(value))
            .with_hint("it is \"device\" or \"bounds\"")
            .into()),
    }
}

fn shape(value: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    let field = Field::Argument("shape");
    let rule = IntRule::new(field, Rule::ArgumentType, Rule::ShapeRange);
    match value.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().map(|extent| rule.read(&extent)).collect(),
        Err(_) => Err(Violation::new(Rule::ArgumentType, field, repr(value)).into()),
    }
}

/// A dtype by name ("bfloat16", "float8_e4m3fn", "<f4"), or an object that has one: NumPy's dtypes and
/// scalar types and ml_dtypes', known by their `name`, `dtype` or `__name__`, without importing either.
pub(crate) fn dtype(value: &Bound<'_, PyAny>) -> PyResult<DType> {
    let field = Field::Argument("dtype");
    let name = if value.is_instance_of::<PyString>() {
        value.clone()
    } else if value.is_instance_of::<PyType>() {
        value.getattr("__name__")?
    } else if let Some(name) = value.getattr_opt("name")? {
        name
    } else {
        return Err(Violation::new(Rule::DtypeArgumentType, field, repr(value)).into());
    };
    let Ok(name) = name.cast::<PyString>() else {
        return Err(Violation::new(Rule::DtypeArgumentType, field, repr(value)).into());
    };
    DType::from_name(&name.to_cow()?)
        .ok_or_else(|| Violation::new(Rule::DtypeArgument, field, repr(value)).into())
}
