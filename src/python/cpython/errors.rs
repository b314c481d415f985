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
use crate::python::cpython::names::names;
use crate::python::cpython::new::new_str;
use crate::python::cpython::tracing;

impl From<Violation> for PyErr {
    #[cold]
    fn from(violation: Violation) -> Self {
        Python::attach(|py| {
            let class = match violation.rule().class() {
                Class::Type => py.get_type::<PyTypeError>(),
                Class::Value => py.get_type::<PyValueError>(),
                Class::Buffer => py.get_type::<PyBufferError>(),
                Class::Runtime => py.get_type::<PyRuntimeError>(),
            };
            let (rule, field) = (violation.rule(), violation.field().name());
            refusal(&class, &violation.to_string(), rule, field)
        })
    }
}

/// Raises a violation as an `AttributeError`, for a property whose absence makes a consumer try another protocol.
#[cold]
pub(crate) fn as_attribute_error(violation: &Violation) -> PyErr {
    Python::attach(|py| {
        let class = py.get_type::<PyAttributeError>();
        let (rule, field) = (violation.rule(), violation.field().name());
        refusal(&class, &violation.to_string(), rule, field)
    })
}

/// Builds the error for a keyword that the function does not have, whose name is the caller's.
#[cold]
pub(crate) fn unexpected(name: &str, found: &str, hint: &str) -> PyErr {
    let rule = Rule::ArgumentUnexpected;
    let (sentence, id) = (rule.sentence(), rule.id());
    let message = format!("argument '{name}' = {found}: {sentence}; {hint} [{id}]");
    Python::attach(|py| refusal(&py.get_type::<PyTypeError>(), &message, rule, name))
}

/// Formats an exception for a message: class and text, the first line of it.
#[cold]
pub(crate) fn raised(error: &PyErr) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    // Of an exception without a text.
    line.trim_end_matches(": ").to_owned()
}

/// Sets the exception that an error was made of.
#[cold]
pub(crate) fn caused_by(error: Violation, cause: PyErr) -> PyErr {
    let error = PyErr::from(error);
    Python::attach(|py| error.set_cause(py, Some(cause)));
    error
}

/// Builds the error for an attribute that cannot be read. If the object's type has it, a property has raised: its
/// exception becomes the cause.
#[cold]
pub(crate) fn absent(violation: Violation, object: &Bound<'_, PyAny>, name: &str) -> PyErr {
    if !object.get_type().hasattr(name).unwrap_or(false) {
        return violation.into();
    }
    match object.getattr(name) {
        Ok(_) => violation.into(),
        Err(cause) => {
            let hint = format!("reading its {name} raised {}", raised(&cause));
            caused_by(violation.with_hint(hint), cause)
        }
    }
}

impl From<DriverError> for PyErr {
    #[cold]
    fn from(error: DriverError) -> Self {
        Python::attach(|py| {
            let make = || {
                let (call, name) = (new_str(py, error.call())?, new_str(py, error.name())?);
                let class = driver_error(py)?;
                let value = class.call1((new_str(py, &error.to_string())?,))?;
                value.setattr(new_str(py, "call")?, call)?;
                value.setattr(new_str(py, "code")?, error.code())?;
                value.setattr(&names(py).name, name)?;
                // By class and value, which CPython raises with the `__context__` of that moment.
                Ok(PyErr::from_type(class.clone(), value.unbind()))
            };
            make().unwrap_or_else(|failed| failed)
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
            Error::Producer(error) => match error.downcast::<Self>() {
                Ok(raised) => *raised,
                Err(other) => PyRuntimeError::new_err(other.to_string()),
            },
        }
    }
}

/// Makes the exception of a refusal, or that of what failed meanwhile.
fn refusal(class: &Bound<'_, PyType>, message: &str, rule: Rule, field: &str) -> PyErr {
    tracing::mark(|marks| marks.rule = Some(rule.id()));
    let py = class.py();
    let make = || {
        let value = class.call1((new_str(py, message)?,))?;
        value.setattr(new_str(py, "rule")?, new_str(py, rule.id())?)?;
        value.setattr(new_str(py, "field")?, new_str(py, field)?)?;
        // By class and value, which CPython raises with the `__context__` of that moment.
        Ok(PyErr::from_type(class.clone(), value.unbind()))
    };
    make().unwrap_or_else(|failed| failed)
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
