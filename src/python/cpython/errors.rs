//! Converts errors into Python exceptions.
//!
//! A [`Violation`] becomes a builtin `TypeError`, `ValueError`, `BufferError` or `RuntimeError`, by the class of its
//! rule, with the attributes `rule` (the id, an anchor in docs/rules.md) and `field`. A failure of the driver becomes a
//! `DriverError`. A producer's own exception passes through unchanged.

use once_cell::race::OnceBox;
use pyo3::exceptions::{
    PyAttributeError, PyBufferError, PyMemoryError, PyRuntimeError, PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::driver::DriverError;
use crate::error::Error;
use crate::protocol::rule::{Class, Rule, Violation};

impl From<Violation> for PyErr {
    #[cold]
    fn from(violation: Violation) -> Self {
        let message = violation.to_string();
        let error = match violation.rule().class() {
            Class::Type => PyTypeError::new_err(message),
            Class::Value => PyValueError::new_err(message),
            Class::Buffer => PyBufferError::new_err(message),
            Class::Runtime => PyRuntimeError::new_err(message),
        };
        with_rule(error, violation.rule(), violation.field().name())
    }
}

/// Raises a violation as an `AttributeError`, for a property whose absence makes a consumer try another protocol.
#[cold]
pub(crate) fn as_attribute_error(violation: &Violation) -> PyErr {
    let error = PyAttributeError::new_err(violation.to_string());
    with_rule(error, violation.rule(), violation.field().name())
}

/// Builds the error for a keyword that the function does not have, whose name is the caller's.
#[cold]
pub(crate) fn unexpected(name: &str, found: &str, hint: &str) -> PyErr {
    let rule = Rule::ArgumentUnexpected;
    let (sentence, id) = (rule.sentence(), rule.id());
    let message = format!("argument '{name}' = {found}: {sentence}; {hint} [{id}]");
    with_rule(PyTypeError::new_err(message), rule, name)
}

/// Formats an exception for a message: class and text, the first line of it.
#[cold]
pub(crate) fn raised(error: &PyErr) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().to_owned()
}

/// Sets the exception that an error was made of.
#[cold]
pub(crate) fn caused_by(error: Violation, cause: PyErr) -> PyErr {
    let error = PyErr::from(error);
    Python::attach(|py| error.set_cause(py, Some(cause)));
    error
}

impl From<DriverError> for PyErr {
    #[cold]
    fn from(error: DriverError) -> Self {
        Python::attach(|py| {
            let raised = match driver_error(py) {
                Ok(class) => PyErr::from_type(class.clone(), error.to_string()),
                Err(failed) => return failed,
            };
            let value = raised.value(py);
            let set = value
                .setattr("call", error.call())
                .and_then(|()| value.setattr("code", error.code()))
                .and_then(|()| value.setattr("name", error.name()));
            set.err().unwrap_or(raised)
        })
    }
}

impl From<Error> for PyErr {
    #[cold]
    fn from(error: Error) -> Self {
        match error {
            Error::Violation(violation) => violation.into(),
            Error::Driver(error) => error.into(),
            Error::OutOfMemory => PyMemoryError::new_err(error.to_string()),
        }
    }
}

fn with_rule(error: PyErr, rule: Rule, field: &str) -> PyErr {
    Python::attach(|py| {
        let value = error.value(py);
        let set = value
            .setattr("rule", rule.id())
            .and_then(|()| value.setattr("field", field));
        set.err().unwrap_or(error)
    })
}

/// Returns the class `cai_dlpack.DriverError`: a `RuntimeError` with `call`, `code` (an int, or None without a driver)
/// and `name`.
///
/// # Errors
/// The first call creates the class, which can fail.
pub fn driver_error(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: OnceBox<Py<PyType>> = OnceBox::new();
    CLASS
        .get_or_try_init(|| {
            let base = py.get_type::<PyRuntimeError>();
            let doc = c"A call of the CUDA driver failed, or no driver is installed.

Attributes
----------
call : str
    The name of the driver's function.
code : int | None
    CUDA's number of the error; None without a driver.
name : str
    CUDA's name of the error.";
            let class =
                PyErr::new_type(py, c"cai_dlpack.DriverError", Some(doc), Some(&base), None);
            class.map(Box::new)
        })
        .map(|class| class.bind(py))
}
