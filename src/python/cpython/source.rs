//! Runs Python source by the interpreter's own `exec` and `eval`: PyO3's fill cells on first use (see
//! [`cpython`](crate::python::cpython)).

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::python::cpython::new::new_str;

/// Runs statements.
///
/// # Errors
/// What they raise.
pub(crate) fn exec(py: Python<'_>, code: &str, globals: &Bound<'_, PyDict>) -> PyResult<()> {
    by(py, "exec", code, globals).map(drop)
}

/// Returns the value of an expression.
///
/// # Errors
/// What it raises.
pub(crate) fn eval<'py>(
    py: Python<'py>,
    code: &str,
    globals: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    by(py, "eval", code, globals)
}

fn by<'py>(
    py: Python<'py>,
    function: &str,
    code: &str,
    globals: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let function = py
        .import(new_str(py, "builtins")?)?
        .getattr(new_str(py, function)?)?;
    function.call1((new_str(py, code)?, globals))
}
