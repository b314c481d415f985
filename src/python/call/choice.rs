//! Reads arguments that are texts or bools, and refuses values of other types with the type that they must have.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::cpython::fastcall::Value;
use crate::python::cpython::int::repr;
use crate::python::cpython::release;

/// Builds the error for an argument of the wrong type; `wanted` completes "must be".
#[cold]
pub(crate) fn wrong_type(
    value: &Bound<'_, PyAny>,
    argument: &'static str,
    wanted: &str,
) -> Violation {
    Violation::new(Rule::ArgumentType, Field::Argument(argument), repr(value))
        .with_hint(format!("must be {wanted}"))
}

/// Reads a str; `None` for one with a lone surrogate, which no name has.
///
/// # Errors
/// `argument-type` for anything else, where `wanted` completes "must be".
pub(crate) fn text(
    value: &Bound<'_, PyAny>,
    argument: &'static str,
    wanted: &str,
) -> PyResult<Option<String>> {
    match value.cast::<PyString>() {
        Ok(text) => Ok(valid(text)),
        Err(_) => Err(wrong_type(value, argument, wanted).into()),
    }
}

/// Returns the text of a str, unless it has a lone surrogate.
pub(crate) fn valid(text: &Bound<'_, PyString>) -> Option<String> {
    release::dropping(|| text.to_cow().ok().map(std::borrow::Cow::into_owned))
}

/// Reads one of several texts.
///
/// # Errors
/// `argument-type` for anything but a str, `argument-value` for another text.
pub(crate) fn choice<T: Copy>(
    value: &Bound<'_, PyAny>,
    argument: &'static str,
    choices: &[(&str, T)],
) -> PyResult<T> {
    let given = text(value, argument, &one_of(choices))?;
    let is_given = |(name, _): &&(&str, T)| given.as_deref() == Some(name);
    match choices.iter().find(is_given) {
        Some((_, meaning)) => Ok(*meaning),
        None => Err(not_among(argument, &repr(value), choices).into()),
    }
}

/// Builds the error for a text that is not among `choices`.
#[cold]
pub(crate) fn not_among<T>(
    argument: &'static str,
    found: &str,
    choices: &[(&str, T)],
) -> Violation {
    Violation::new(Rule::ArgumentValue, Field::Argument(argument), found)
        .with_hint(format!("must be {}", one_of(choices)))
}

/// Lists the texts: `"a", "b" or "c"`.
fn one_of<T>(choices: &[(&str, T)]) -> String {
    let quoted: Vec<_> = choices
        .iter()
        .map(|(name, _)| format!("\"{name}\""))
        .collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

/// Reads a bool argument; takes NumPy's bools, as PyO3 does.
///
/// # Errors
/// `argument-type` for anything else.
#[inline]
pub(crate) fn flag(value: Value<'_, '_>, argument: &'static str) -> PyResult<Option<bool>> {
    let Some(value) = value else { return Ok(None) };
    // SAFETY: return the addresses of statics.
    let (yes, no) = (unsafe { ffi::Py_True() }, unsafe { ffi::Py_False() });
    let is_true = value.as_ptr() == yes;
    if is_true || value.as_ptr() == no {
        return Ok(Some(is_true));
    }
    other_flag(&value, argument).map(Some)
}

#[cold]
fn other_flag(value: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<bool> {
    value.extract().map_err(|error: PyErr| {
        release::drop_now(error);
        wrong_type(value, argument, "a bool").into()
    })
}
