//! Reads a stream: an int, `None`, or an object with `__cuda_stream__`.
//!
//! `__cuda_stream__` is NVIDIA's protocol: a method without arguments that returns `(version, handle)`, in which handle
//! 0 is the legacy default stream. An attribute that holds the tuple is accepted as well.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyTuple, PyType};

use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Platform, Request, Stream};
use crate::python::cpython::errors::{caused_by, raised};
use crate::python::cpython::int;
use crate::python::cpython::int::{IntRule, repr, type_name};
use crate::python::cpython::names::names;
use crate::python::cpython::recursion::Level;

const ARGUMENT: IntRule = IntRule::new(
    Field::Argument("stream"),
    Rule::StreamType,
    Rule::StreamRange,
);
const HANDLE: IntRule = IntRule::new(Field::CudaStream, Rule::StreamObject, Rule::StreamRange);

/// Reads the `stream` of `__dlpack__`; None has the protocol's meaning ([`Request::from_dlpack`]).
///
/// # Errors
/// `TypeError` for an object that is no stream, `ValueError` for an int that the protocol forbids.
#[inline(always)]
pub(crate) fn request(stream: Option<&Bound<'_, PyAny>>, platform: Platform) -> PyResult<Request> {
    let Some(stream) = stream else {
        return Ok(Request::from_dlpack(None, platform)?);
    };
    match int::read_fast(stream.as_borrowed()) {
        Some(number) => Ok(Request::from_dlpack(Some(number.into()), platform)?),
        None => request_of_any(stream, platform),
    }
}

#[cold]
fn request_of_any(stream: &Bound<'_, PyAny>, platform: Platform) -> PyResult<Request> {
    Ok(Request::from_dlpack(Some(number(stream)?), platform)?)
}

/// Reads a stream object, or any int, as the number that the protocol gives it.
///
/// # Errors
/// `TypeError` for an object that is no stream.
pub(crate) fn number(stream: &Bound<'_, PyAny>) -> PyResult<i128> {
    match from_object(stream)? {
        Some(named) => Ok(i128::from(named.raw())),
        None => ARGUMENT.read_wide(stream),
    }
}

/// Reads a stream that must be named: an int of 1 or more, or a stream object.
///
/// # Errors
/// `stream-type`, `stream-none`, `stream-zero` and `stream-range`, which also refuses -1; `stream-object`.
pub(crate) fn named(stream: &Bound<'_, PyAny>, field: Field) -> PyResult<Stream> {
    if stream.is_none() {
        return Err(Violation::new(Rule::StreamNone, field, "None")
            .with_hint(
                "1 is the legacy default stream; v.synchronize() waits for the data on the host",
            )
            .into());
    }
    if let Some(stream) = from_object(stream)? {
        return Ok(stream);
    }
    let rule = IntRule::new(field, Rule::StreamType, Rule::StreamRange);
    let value = rule.read_wide(stream)?;
    match u64::try_from(value) {
        Ok(0) => Err(Violation::new(Rule::StreamZero, field, 0).into()),
        Ok(handle) => Ok(Stream::from_raw(handle)),
        Err(_) => Err(Violation::new(Rule::StreamRange, field, value).into()),
    }
}

/// Reads `__cuda_stream__`; `None` if the object has no such attribute.
fn from_object(stream: &Bound<'_, PyAny>) -> PyResult<Option<Stream>> {
    if stream.is_instance_of::<PyInt>() || stream.is_instance_of::<PyBool>() {
        return Ok(None);
    }
    let _level = Level::begin(stream.py())?;
    let name = &names(stream.py()).cuda_stream;
    let Some(protocol) = stream.getattr_opt(name)? else {
        return unreadable(stream).map_or(Ok(None), Err);
    };
    let answer = if protocol.is_callable() {
        protocol
            .call0()
            .map_err(|error| called_on_class(stream, error))?
    } else {
        protocol
    };
    let Ok(pair) = answer.cast::<PyTuple>() else {
        return Err(not_a_pair(&answer));
    };
    if pair.len() != 2 {
        return Err(not_a_pair(&answer));
    }
    let _version: i64 = HANDLE.read(&pair.get_item(0)?)?;
    let handle: u64 = HANDLE.read(&pair.get_item(1)?)?;
    Ok(Some(Stream::from_raw(handle)))
}

/// Returns the error for an object whose property `__cuda_stream__` raises `AttributeError`, as a misspelt name in it
/// does; `None` for an object without the protocol.
#[cold]
fn unreadable(stream: &Bound<'_, PyAny>) -> Option<PyErr> {
    let name = &names(stream.py()).cuda_stream;
    if !stream.get_type().hasattr(name).unwrap_or(false) {
        return None;
    }
    let cause = stream.getattr(name).err()?;
    let kind = type_name(stream);
    let found = format_args!("an object of type {kind}");
    let violation = Violation::new(Rule::StreamObject, Field::CudaStream, found)
        .with_hint(format!("reading it raised {}", raised(&cause)));
    Some(caused_by(violation, cause))
}

/// Returns the error of a call that has failed: a class in place of a stream has no `self` to call it with.
#[cold]
fn called_on_class(stream: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    if !stream.is_instance_of::<PyType>() || !error.is_instance_of::<PyTypeError>(stream.py()) {
        return error;
    }
    let violation = Violation::new(Rule::StreamObject, Field::CudaStream, repr(stream))
        .with_hint("pass a stream, not its class");
    caused_by(violation, error)
}

#[cold]
fn not_a_pair(answer: &Bound<'_, PyAny>) -> PyErr {
    Violation::new(Rule::StreamObject, Field::CudaStream, repr(answer)).into()
}
